"""Endpoints: what cannot be one is refused before anything is sent; two that lead to one server are known as one."""

from traceback import format_exception
from typing import Any

import pytest

from reshard.core.errors import InputError
from reshard.core.storage.store import Store
from reshard.core.storage.stores import open_store

KEYS = {"key": "k", "secret": "s"}


def opened(url: str, **options: Any) -> Store:
    return open_store(url, KEYS | options)[0]


def refusal(url: str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        opened(url, **options)
    assert "hunter2" not in "".join(format_exception(caught.value))
    return str(caught.value)


# ---- which cannot be one ----


WRONG = [
    "minio.example.com:9000",
    "user:hunter2@localhost:99999",
    "http://user:hunter2@localhost:9000",
    "http://localhost:hunter2",
    "https://hunter2@localhost",
    "https://localhost?token=hunter2",
    "https://localhost/x#hunter2",
    "https://AK%3Ahunter2%40localhost",
    "http://localhost:99999",
    "http://localhost:0",
    "http://[::1",
    "http://-host",
    "http://host name",
    "ftp://hunter2",
    "https://",
    "hunter2",
]


@pytest.mark.parametrize("endpoint", WRONG)
def test_what_cannot_be_an_endpoint_is_refused_by_the_name_of_what_says_it(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "cannot be opened: {}: must look like https://host:port, without user and password"
    assert message.format("endpoint_url") in refusal("s3://models/run", endpoint_url=endpoint)
    inner = {"endpoint_url": endpoint}
    assert message.format("client_kwargs.endpoint_url") in refusal("s3://models/run", client_kwargs=inner)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert message.format("AWS_ENDPOINT_URL") in refusal("s3://models/run")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    assert message.format("AWS_ENDPOINT_URL_S3") in refusal("s3://models/run")
    opened("s3://models/run", endpoint_url="https://good.example.com")


def test_an_endpoint_that_is_no_text_is_refused() -> None:
    assert "endpoint_url: must be a text" in refusal("s3://models/run", endpoint_url=["hunter2"])
    inner = {"endpoint_url": ["hunter2"]}
    assert "client_kwargs.endpoint_url: must be a text" in refusal("s3://models/run", client_kwargs=inner)


@pytest.mark.parametrize("endpoint", ["user:hunter2@localhost:9000", "https://user:hunter2@obs.example.com", "ftp://x"])
def test_obs_needs_no_scheme_but_an_endpoint_all_the_same(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "endpoint_url: must look like https://host:port" in refusal("obs://models/run", endpoint_url=endpoint)
    monkeypatch.setenv("OBS_ENDPOINT", endpoint)
    assert "OBS_ENDPOINT: must look like https://host:port" in refusal("obs://models/run")
    opened("obs://models/run", endpoint_url=" obs.cn-north-4.myhuaweicloud.com")


# ---- which are the same ----


MINIO = "https://minio.example.com:9000"
ONE = [
    (("s3://a", {}), ("s3://a", {"requester_pays": True})),
    (("s3://a", {}), ("s3a://a", {"key": "another"})),
    (("s3://a", {}), ("s3://a", {"endpoint_url": "https://s3.eu-west-1.amazonaws.com"})),
    (("s3://a", {"endpoint_url": MINIO}), ("s3://a", {"client_kwargs": {"endpoint_url": f"{MINIO}/"}})),
    (("s3://a", {"endpoint_url": MINIO}), ("obs://a", {"endpoint_url": "Minio.Example.com.:9000"})),
    (("s3://a", {"endpoint_url": "http://host"}), ("obs://a", {"endpoint_url": "http://host:80"})),
    (("s3://a", {"endpoint_url": "http://host"}), ("s3://a", {"endpoint_url": "https://host:443"})),
    (
        ("obs://a", {"endpoint_url": "obs.cn-north-4.myhuaweicloud.com"}),
        ("s3://a", {"endpoint_url": "https://obs.myhuaweicloud.com"}),
    ),
]
APART = [
    (("s3://a", {}), ("s3://a", {"endpoint_url": MINIO})),
    (("s3://a", {"endpoint_url": MINIO}), ("s3://a", {"endpoint_url": "https://minio.example.com:9001"})),
    (("s3://a", {"endpoint_url": MINIO}), ("s3://a", {"endpoint_url": "https://other.example.com:9000"})),
    (("s3://a", {}), ("obs://a", {"endpoint_url": "obs.cn-north-4.myhuaweicloud.com"})),
    (("s3://a", {}), ("memory://a", {})),
]
Place = tuple[str, dict[str, Any]]


@pytest.mark.parametrize(("one", "other"), ONE)
def test_one_server_is_known_whatever_it_is_reached_with(one: Place, other: Place) -> None:
    assert opened(one[0], **one[1]).is_same(opened(other[0], **other[1]))


@pytest.mark.parametrize(("one", "other"), APART)
def test_two_servers_are_two(one: Place, other: Place) -> None:
    first, second = (
        open_store(url, options if "memory" in url else KEYS | options)[0] for url, options in (one, other)
    )
    assert not first.is_same(second)
    assert not second.is_same(first)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_endpoint_of_the_environment_counts(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, MINIO)
    assert opened("s3://a").is_same(opened("obs://a", endpoint_url=MINIO))
    assert not opened("s3://a").is_same(opened("s3://a", endpoint_url="https://s3.amazonaws.com"))

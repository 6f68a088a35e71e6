"""Endpoints: what cannot be one is refused before anything is sent; two that lead to one server are known as one."""

from collections.abc import Iterator
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest
from s3fs import S3FileSystem

from reshard.core.errors import InputError
from reshard.core.storage.filesystems import open_filesystem, same_storage
from reshard.core.storage.obs import OBSFileSystem

KEYS = {"key": "k", "secret": "s"}
AWS_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "OBS_ENDPOINT")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing of this machine's settings counts."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in AWS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("fsspec.config.conf", {})
    yield
    S3FileSystem.clear_instance_cache()
    OBSFileSystem.clear_instance_cache()


def opened(url: str, **options: Any) -> Any:
    return open_filesystem(url, KEYS | options)[0]


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
    "http://under_score",
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
    assert "client_kwargs.endpoint_url: must look" in refusal("s3://a/b", client_kwargs={"endpoint_url": ["hunter2"]})


@pytest.mark.parametrize("endpoint", ["user:hunter2@localhost:9000", "https://user:hunter2@obs.example.com", "ftp://x"])
def test_obs_needs_no_scheme_but_an_endpoint_all_the_same(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "endpoint_url: must look like https://host:port" in refusal("obs://models/run", endpoint_url=endpoint)
    monkeypatch.setenv("OBS_ENDPOINT", endpoint)
    assert "OBS_ENDPOINT: must look like https://host:port" in refusal("obs://models/run")
    opened("obs://models/run", endpoint_url=" obs.cn-north-4.myhuaweicloud.com")


def test_a_wrong_endpoint_of_a_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile work]\nendpoint_url = hunter2\n")
    assert "endpoint_url in the configuration of AWS: must look" in refusal("s3://models/run", profile="work")


@pytest.mark.parametrize("endpoint", ["http://[::1]:9000", "http://localhost", "https://host.example.com:9000/path"])
def test_what_the_client_takes_is_taken(endpoint: str) -> None:
    fs = opened("s3://models/run", endpoint_url=endpoint, client_kwargs={"region_name": "r"})
    fs.connect()
    assert fs.s3.meta.endpoint_url == endpoint


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
    assert same_storage(opened(one[0], **one[1]), opened(other[0], **other[1]))


@pytest.mark.parametrize(("one", "other"), APART)
def test_two_servers_are_two(one: Place, other: Place) -> None:
    first, second = (
        open_filesystem(url, options if "memory" in url else KEYS | options)[0] for url, options in (one, other)
    )
    assert not same_storage(first, second)
    assert not same_storage(second, first)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_endpoint_of_the_environment_counts(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, MINIO)
    assert same_storage(opened("s3://a"), opened("obs://a", endpoint_url=MINIO))
    assert not same_storage(opened("s3://a"), opened("s3://a", endpoint_url="https://s3.amazonaws.com"))


@pytest.mark.parametrize(
    "config",
    [
        f"[profile work]\nendpoint_url = {MINIO}\n",
        f"[profile work]\nservices = own\nendpoint_url = {MINIO}2\n[services own]\ns3 =\n  endpoint_url = {MINIO}\n",
    ],
)
def test_the_endpoint_of_a_profile_counts(config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text(config)
    of_profile = opened("s3://a", profile="work")
    of_profile.connect()
    assert of_profile.s3.meta.endpoint_url == MINIO
    assert same_storage(of_profile, opened("s3://a", endpoint_url=MINIO))
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert same_storage(opened("s3://a"), opened("s3://a", endpoint_url=MINIO))


def test_a_profile_that_is_not_there_is_told_at_the_first_request(tmp_path: Path) -> None:
    opened("s3://a", profile="nobody")

"""obs://: endpoint and keys from options, fsspec's configuration or Huawei's variables, and never from AWS."""

from typing import Any

import pytest

from reshard.core.errors import InputError
from reshard.core.storage.objects.object_store import ObjectStore
from reshard.core.storage.objects.s3 import S3Service, obs_settings
from reshard.core.storage.stores import open_store
from tests.support.canned_server import Answer, Asked, CannedServer
from tests.support.signatures import signed_by

BEIJING = "obs.cn-north-4.myhuaweicloud.com"
KEYS: dict[str, Any] = {"key": "own", "secret": "own secret"}
VARIABLES = ("OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY", "OBS_SECURITY_TOKEN")


@pytest.fixture(autouse=True)
def _of_aws(home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of AWS is set."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "aws",
        "AWS_SECRET_ACCESS_KEY": "aws secret",
        "AWS_SESSION_TOKEN": "aws token",
        "AWS_ENDPOINT_URL": "https://aws.example.com",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_PROFILE": "not-there",
        "AWS_CA_BUNDLE": "/not/there",
        "AWS_USE_FIPS_ENDPOINT": "true",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def variables(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBS_ENDPOINT", server.url)
    for name, value in zip(VARIABLES, ("of obs", "secret of obs", "token of obs"), strict=True):
        monkeypatch.setenv(name, value)


def asked(server: CannedServer, **options: Any) -> Asked:
    """The request of a look at an object."""
    store, path = open_store("obs://models/run/a", options)
    store.stat(path)
    return server.asked[-1]


def refusal(**options: Any) -> str:
    with pytest.raises(InputError) as caught:
        open_store("obs://models/run", options)
    return str(caught.value)


# ---- who ----


@pytest.mark.usefixtures("variables")
def test_endpoint_and_keys_are_those_of_huaweis_variables(server: CannedServer) -> None:
    assert signed_by(asked(server)) == ("of obs", "us-east-1", "token of obs")


@pytest.mark.usefixtures("variables")
def test_keys_come_from_one_place_together(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsspec.config.conf", {"obs": {"key": "configured", "secret": "s"}, "s3": {"key": "other"}})
    assert signed_by(asked(server)) == ("configured", "us-east-1", None)
    assert signed_by(asked(server, **KEYS)) == ("own", "us-east-1", None)


@pytest.mark.usefixtures("variables")
def test_the_endpoint_of_the_options_wins(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBS_ENDPOINT", "http://127.0.0.1:1")
    assert signed_by(asked(server, endpoint_url=server.url))[0] == "of obs"
    assert signed_by(asked(server, client_kwargs={"endpoint_url": server.url}))[0] == "of obs"


def test_awss_own_client_has_the_same_keys(server: CannedServer) -> None:
    store, path = open_store("obs://models/run", {"endpoint_url": server.url, **KEYS})
    server.answer = Answer(body=b"<ListMultipartUploadsResult></ListMultipartUploadsResult>")
    assert store.abandoned(path) == []
    assert signed_by(server.asked[-1]) == ("own", "us-east-1", None)


def test_without_keys_it_is_said_what_to_set_and_those_of_aws_are_not_taken() -> None:
    assert refusal(endpoint_url=BEIJING).endswith(
        "no OBS credentials: set OBS_ACCESS_KEY_ID and OBS_SECRET_ACCESS_KEY (and OBS_SECURITY_TOKEN with temporary "
        "ones), or name storage options that have key and secret. AWS's credentials are not used"
    )


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize("given", [{"key": "own"}, {"secret": "own secret"}, {"token": "own token"}])
def test_half_a_pair_is_not_completed_from_the_environment(given: dict[str, str]) -> None:
    assert "key and secret must be given together" in refusal(**given)


def test_public_buckets_need_no_keys(server: CannedServer) -> None:
    assert "authorization" not in asked(server, endpoint_url=server.url, anon=True).headers


def test_a_profile_is_refused() -> None:
    message = refusal(profile="work", endpoint_url=BEIJING, **KEYS)
    assert "profile: profiles are AWS's, and not used for obs://" in message


# ---- where ----


def test_without_an_endpoint_it_is_said_what_to_set() -> None:
    assert "no OBS endpoint: set OBS_ENDPOINT, to obs.cn-north-4.myhuaweicloud.com, say" in refusal(**KEYS)


@pytest.mark.parametrize(
    ("endpoint", "url", "style", "region"),
    [
        (BEIJING, f"https://{BEIJING}", "virtual", "cn-north-4"),
        (f"http://{BEIJING}:80/", f"http://{BEIJING}:80", "virtual", "cn-north-4"),
        (f" {BEIJING} ", f"https://{BEIJING}", "virtual", "cn-north-4"),
        ("obs.eu-west-101.myhuaweicloud.eu", "https://obs.eu-west-101.myhuaweicloud.eu", "virtual", "eu-west-101"),
        ("obs.myhuaweicloud.com", "https://obs.myhuaweicloud.com", "virtual", "us-east-1"),
        ("obs.example.com", "https://obs.example.com", "virtual", "us-east-1"),
        ("10.0.0.7:443", "https://10.0.0.7:443", "path", "us-east-1"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000", "path", "us-east-1"),
        ("http://[::1]:9000", "http://[::1]:9000", "path", "us-east-1"),
        ("[fd00::7]", "https://[fd00::7]", "path", "us-east-1"),
        ("http://localhost:9000", "http://localhost:9000", "path", "us-east-1"),
    ],
)
def test_scheme_addressing_and_region_follow_from_the_endpoint(
    endpoint: str, url: str, style: str, region: str
) -> None:
    settings = obs_settings({"endpoint_url": endpoint, **KEYS})
    assert (settings.endpoint, settings.addressing, settings.region) == (url, style, region)


def test_own_settings_win_over_what_the_endpoint_says() -> None:
    config = {"s3": {"addressing_style": "path"}, "read_timeout": 7}
    settings = obs_settings(
        {"endpoint_url": BEIJING, "config_kwargs": config, "client_kwargs": {"region_name": "here"}, **KEYS}
    )
    assert (settings.addressing, settings.region, settings.read_seconds) == ("path", "here", 7)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        (BEIJING, f"https://models.{BEIJING}"),
        (f"{BEIJING}:8443", f"https://models.{BEIJING}:8443"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
    ],
)
def test_the_bucket_stands_where_the_server_looks_for_it(endpoint: str, url: str) -> None:
    client: Any = S3Service(obs_settings({"endpoint_url": endpoint, **KEYS})).client("models", {"max_retries": 0})
    assert client.config["endpoint_url_s3"] == url


def test_the_bucket_is_a_part_of_the_hosts_name(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    request = asked(server, endpoint_url=f"http://{BEIJING}", **KEYS)
    assert request.path == f"http://models.{BEIJING}/run/a"
    assert request.headers["host"] == f"models.{BEIJING}"
    assert signed_by(request) == ("own", "cn-north-4", None)


def test_another_package_for_obs_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem
    from fsspec.registry import _registry

    monkeypatch.setitem(_registry, "obs", MemoryFileSystem)
    assert isinstance(open_store("obs://models/run", {"endpoint_url": BEIJING, **KEYS})[0], ObjectStore)

"""obs://: endpoint and keys from options, fsspec's configuration or Huawei's variables, and never from AWS."""

from pathlib import Path
from typing import Any

import fsspec
import pytest
from botocore import UNSIGNED  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]
from s3fs import S3FileSystem

from reshard.core.storage.obs import OBSFileSystem

BEIJING = "obs.cn-north-4.myhuaweicloud.com"
KEYS: dict[str, Any] = {"key": "own", "secret": "own secret"}
VARIABLES = ("OBS_ENDPOINT", "OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY", "OBS_SECURITY_TOKEN")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of OBS is set, and all of AWS."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "aws")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "aws token")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://aws.example.com")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, (BEIJING, "of obs", "secret of obs", "token of obs"), strict=True):
        monkeypatch.setenv(name, value)


def opened(**options: Any) -> OBSFileSystem:
    return OBSFileSystem(skip_instance_cache=True, **options)


def client_of(fs: OBSFileSystem) -> Any:
    """The client that makes its requests; nothing is sent."""
    fs.connect()
    return fs.s3


def credentials_of(fs: OBSFileSystem) -> tuple[str, str, str | None]:
    credentials: Credentials = client_of(fs)._request_signer._credentials
    return credentials.access_key, credentials.secret_key, credentials.token


# ---- who ----


@pytest.mark.usefixtures("variables")
def test_endpoint_and_keys_are_those_of_huaweis_variables() -> None:
    fs = opened()
    assert client_of(fs).meta.endpoint_url == f"https://{BEIJING}"
    assert credentials_of(fs) == ("of obs", "secret of obs", "token of obs")


@pytest.mark.usefixtures("variables")
def test_options_win_and_keys_are_never_mixed() -> None:
    fs = opened(endpoint_url="http://127.0.0.1:9000", **KEYS)
    assert client_of(fs).meta.endpoint_url == "http://127.0.0.1:9000"
    assert credentials_of(fs) == ("own", "own secret", None)


@pytest.mark.usefixtures("variables")
def test_fsspecs_configuration_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "obs", {"key": "configured", "secret": "configured secret"})
    assert credentials_of(opened()) == ("configured", "configured secret", None)
    assert credentials_of(opened(**KEYS))[0] == "own"


@pytest.mark.parametrize("given", [{}, {"key": "own"}, {"secret": "own secret"}, {"token": "own token"}])
def test_without_keys_it_is_said_what_to_set_and_those_of_aws_are_not_taken(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="set OBS_ACCESS_KEY_ID and OBS_SECRET_ACCESS_KEY .*AWS's credentials are not"):
        opened(endpoint_url=BEIJING, **given)


def test_half_a_pair_is_not_completed_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBS_SECRET_ACCESS_KEY", "another's")
    with pytest.raises(ValueError, match="no OBS credentials"):
        opened(endpoint_url=BEIJING, key="own")


def test_public_buckets_need_no_keys() -> None:
    assert client_of(opened(endpoint_url=BEIJING, anon=True)).meta.config.signature_version is UNSIGNED


def test_a_profile_of_aws_has_no_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "[default]\ns3 =\n    use_dualstack_endpoint = true\n    addressing_style = path\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert client_of(opened(endpoint_url=BEIJING, **KEYS)).meta.config.s3 == {"addressing_style": "virtual"}
    monkeypatch.setenv("AWS_PROFILE", "not-there")
    assert credentials_of(opened(endpoint_url=BEIJING, **KEYS)) == ("own", "own secret", None)


# ---- where ----


def test_without_an_endpoint_it_is_said_what_to_set() -> None:
    with pytest.raises(ValueError, match="no OBS endpoint: set OBS_ENDPOINT, to obs.cn-north-4.myhuaweicloud.com, say"):
        opened(**KEYS)


@pytest.mark.parametrize("endpoint", ["ftp://host", "https://", "http://:9000"])
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match=f"'{endpoint}' is not an endpoint"):
        opened(endpoint_url=endpoint, **KEYS)


@pytest.mark.parametrize(
    ("endpoint", "url", "style", "region"),
    [
        (BEIJING, f"https://{BEIJING}", "virtual", "cn-north-4"),
        (f"http://{BEIJING}:80/", f"http://{BEIJING}:80/", "virtual", "cn-north-4"),
        (
            "https://obs.eu-west-101.myhuaweicloud.eu",
            "https://obs.eu-west-101.myhuaweicloud.eu",
            "virtual",
            "eu-west-101",
        ),
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
    client = client_of(opened(endpoint_url=endpoint, **KEYS))
    assert client.meta.endpoint_url == url
    assert client.meta.config.s3["addressing_style"] == style
    assert client.meta.region_name == region


def test_own_settings_win_over_what_the_endpoint_says() -> None:
    config = {"s3": {"addressing_style": "path", "payload_signing_enabled": True}, "read_timeout": 7}
    client = client_of(
        opened(endpoint_url=BEIJING, **KEYS, config_kwargs=config, client_kwargs={"region_name": "here"})
    )
    assert client.meta.config.s3 == config["s3"]
    assert client.meta.config.read_timeout == 7
    assert client.meta.region_name == "here"


def test_an_endpoint_among_the_clients_settings_counts() -> None:
    client = client_of(opened(**KEYS, client_kwargs={"endpoint_url": "http://localhost:9000"}))
    assert client.meta.endpoint_url == "http://localhost:9000"


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        (BEIJING, f"https://models.{BEIJING}/run/a"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000/models/run/a"),
        ("http://localhost:9000", "http://localhost:9000/models/run/a"),
    ],
)
def test_the_bucket_stands_where_the_server_looks_for_it(endpoint: str, url: str) -> None:
    # a signed URL is made as a request is, and sent nowhere
    signed: str = opened(endpoint_url=endpoint, **KEYS).url("obs://models/run/a")
    assert signed.partition("?")[0] == url


# ---- what it is ----


def test_it_is_an_s3_file_system_with_urls_of_its_own() -> None:
    fs = opened(endpoint_url=BEIJING, **KEYS)
    assert isinstance(fs, S3FileSystem)
    assert fs._strip_protocol("obs://models/run/") == "models/run"
    assert fs.unstrip_protocol("models/run") == "obs://models/run"

"""The filesystem of a URL: its settings, its sharing, and its paths as URLs again."""

import importlib
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry, known_implementations
from s3fs import S3FileSystem

from reshard.core.errors import InputError
from reshard.core.storage.filesystems import open_filesystem, url_of
from reshard.core.storage.obs import OBSFileSystem
from reshard.core.storage.transfers import REQUESTS_AT_ONCE
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT

OBS = {"endpoint_url": "obs.cn-north-4.myhuaweicloud.com", "key": "own", "secret": "own secret"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing of this machine's settings counts, and no file system is left over that was made without them."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("OBS_ENDPOINT", "OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY", "OBS_SECURITY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("fsspec.config.conf", {})
    yield
    S3FileSystem.clear_instance_cache()
    OBSFileSystem.clear_instance_cache()


def opened(url: str, **options: Any) -> Any:
    return open_filesystem(url, options)[0]


def refusal(url: str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        open_filesystem(url, options)
    assert repr(url) in str(caught.value)
    return str(caught.value)


def client_of(fs: Any) -> Any:
    """The client that makes its requests; nothing is sent."""
    fs.connect()
    return fs.s3


# ---- settings ----


@pytest.mark.parametrize(("url", "options"), [("s3://models/run", {}), ("obs://models/run", OBS)])
def test_an_object_store_is_opened_for_many_requests_that_somebody_else_repeats(
    url: str, options: dict[str, Any]
) -> None:
    fs = opened(url, **options)
    config = client_of(fs).meta.config
    assert (config.connect_timeout, config.read_timeout) == (10, 60)
    assert config.max_pool_connections >= REQUESTS_AT_ONCE
    assert config.request_checksum_calculation == config.response_checksum_validation == "when_required"
    assert not fs.dircache.use_listings_cache


class Busy(BaseHTTPRequestHandler):
    """A server that never has time, and counts how often it is asked."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def busy_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Busy, "asked", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("protocol", ["s3", "obs"])
def test_a_failed_request_is_not_repeated_behind_our_back(protocol: str, busy_server: str) -> None:
    fs = opened(f"{protocol}://models/run", endpoint_url=busy_server, key="k", secret="s")
    with pytest.raises(OSError, match="Service Unavailable"):
        fs.info("models/run")
    assert Busy.asked == 1
    with pytest.raises(OSError, match="reduce your request rate"):
        fs.cat_file("models/run", start=0, end=5)
    assert Busy.asked == 2


def test_fsspecs_configuration_wins_over_ours_setting_by_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"read_timeout": 7, "retries": {"mode": "adaptive", "max_attempts": 3}}
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": config, "use_listings_cache": True})
    fs = opened("s3://models/run", config_kwargs={"connect_timeout": 3})
    found = client_of(fs).meta.config
    assert (found.read_timeout, found.connect_timeout, found.max_pool_connections) == (7, 3, 128)
    assert found.retries["mode"] == "adaptive"
    assert fs.dircache.use_listings_cache


def test_named_options_win_over_fsspecs_configuration_and_keys_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    configured = {"key": "theirs", "secret": "their secret", "token": "their token", "requester_pays": True}
    monkeypatch.setitem(fsspec.config.conf, "s3", configured)
    fs = opened("s3://models/run", key="own", secret="own secret")
    assert (fs.key, fs.secret, fs.requester_pays) == ("own", "own secret", True)
    credentials = client_of(opened("s3://models/run"))._request_signer._credentials
    assert (credentials.access_key, credentials.token) == ("theirs", "their token")


def test_a_configured_token_is_not_added_to_named_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {"token": "their token"})
    assert opened("s3://models/run", key="own", secret="own secret").token is None


def test_a_profile_of_aws_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "[profile work]\naws_access_key_id = of-work\naws_secret_access_key = secret-of-work\n"
        "region = eu-west-1\nendpoint_url = https://s3.work.example.com\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    client = client_of(opened("s3://models/run"))
    assert client._request_signer._credentials.access_key == "of-work"
    assert (client.meta.region_name, client.meta.endpoint_url) == ("eu-west-1", "https://s3.work.example.com")


def test_a_profile_may_be_named_in_the_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile work]\naws_access_key_id = of-work\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert client_of(opened("s3://models/run", profile="work"))._request_signer._credentials.access_key == "of-work"


def test_the_variables_of_aws_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    client = client_of(opened("s3://models/run"))
    assert client.meta.endpoint_url == "http://127.0.0.1:9000"
    assert client._request_signer._credentials.access_key == "of-environment"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"endpoint": "http://x", "acces_key": "AKIASECRET"}, "acces_key, endpoint: no such storage option; there are"),
        ({"config_kwargs": {"max_conections": 3}}, "max_conections"),
        ({"config_kwargs": {"s3": {"addressing_style": "host"}}}, "addressing style host is invalid"),
        ({"config_kwargs": {"retries": "AKIASECRET"}}, "config_kwargs: "),
        ({"config_kwargs": "AKIASECRET"}, "config_kwargs: must be an object of options"),
        ({"client_kwargs": "AKIASECRET"}, "client_kwargs: must be an object of options"),
        ({"client_kwargs": {"regoin": "AKIASECRET"}}, "regoin: no such option of client_kwargs; there are region_name"),
        ({"client_kwargs": {"aws_access_key_id": ["AKIASECRET"]}}, "client_kwargs.aws_access_key_id: must be a text"),
        ({"key": ["AKIASECRET"], "secret": "s"}, "key: must be a text"),
        ({"key": "k", "secret": {"a": "AKIASECRET"}}, "secret: must be a text"),
    ],
)
def test_options_that_s3fs_has_not_are_refused_at_once(options: dict[str, Any], reason: str) -> None:
    for url in ("s3://models/run", "obs://models/run"):
        message = refusal(url, **options)
        assert reason in message
        assert "AKIASECRET" not in message


# ---- sharing ----


@pytest.mark.parametrize(("url", "options"), [("s3://models/run", {}), ("obs://models/run", OBS)])
def test_all_threads_share_one_file_system(url: str, options: dict[str, Any]) -> None:
    start = threading.Barrier(16)

    def open_it(_: int) -> Any:
        start.wait()
        return opened(url, **options)

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(open_it, range(16)))
    assert all(fs is found[0] for fs in found)
    assert opened(url, **options) is found[0]


def test_other_options_are_another_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened("s3://models/run", key="a", secret="s") is not opened("s3://models/run", key="b", secret="s")
    monkeypatch.setenv("OBS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("OBS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("OBS_ENDPOINT", "http://127.0.0.1:9000")
    first = opened("obs://models/run")
    monkeypatch.setenv("OBS_ENDPOINT", "http://127.0.0.1:9001")
    assert opened("obs://models/run").endpoint_url == "http://127.0.0.1:9001"
    assert first.endpoint_url == "http://127.0.0.1:9000"


def test_a_fork_gets_a_file_system_of_its_own() -> None:
    program = (
        "import os, sys\n"
        "from reshard.core.storage.filesystems import open_filesystem\n"
        "of_parent = open_filesystem('s3://models/run', {})[0]\n"
        "assert open_filesystem('s3://models/run', {})[0] is of_parent\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(open_filesystem('s3://models/run', {})[0] is of_parent)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=PROJECT, timeout=PATIENCE_SECONDS, check=True)


# ---- which one ----


def test_obs_is_ours_whatever_else_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_registry, "obs", MemoryFileSystem)
    monkeypatch.setitem(known_implementations, "obs", {"class": "obsfs.OBSFileSystem", "err": "no"})
    assert type(opened("obs://models/run", **OBS)) is OBSFileSystem


def test_fsspec_is_told_of_obs_when_the_project_is_installed() -> None:
    entries = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"]["fsspec.specs"]
    module, _, name = entries["obs"].partition(":")
    assert getattr(importlib.import_module(module), name) is OBSFileSystem


def test_the_package_that_a_protocol_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for protocol, module, package in (
        ("s3", "s3fs", "'reshard[s3]'"),
        ("s3a", "s3fs", "'reshard[s3]'"),
        ("obs", "s3fs", "'reshard[obs]'"),
        ("gs", "gcsfs", "gcsfs"),
        ("gcs", "gcsfs", "gcsfs"),
        ("abfs", "adlfs", "adlfs"),
        ("az", "adlfs", "adlfs"),
        ("hdfs", "pyarrow", "pyarrow"),
    ):
        monkeypatch.delitem(_registry, protocol, raising=False)
        monkeypatch.delitem(sys.modules, "reshard.core.storage.obs", raising=False)
        monkeypatch.setitem(sys.modules, module, None)
        reason = refusal(f"{protocol}://models/run")
        assert reason.endswith(f"{protocol}:// needs a package that is not installed: pip install {package}")


def test_fsspecs_own_advice_is_told_for_other_protocols() -> None:
    assert refusal("webdav://models/run").endswith("not installed: Install webdav4 to access WebDAV")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("xyz://models/run", "unknown storage xyz://; known are file://, s3://, obs://, gs://, abfs://"),
        ("S3://models/run", "unknown storage S3://; known are s3://"),
        ("obss://models/run", "obs://"),
        ("/data/x://y", "unknown storage /data/x://"),
    ],
)
def test_of_an_unknown_protocol_near_ones_are_told(url: str, reason: str) -> None:
    assert reason in refusal(url)


@pytest.mark.parametrize("url", ["simplecache::s3://models/run", "zip://a.ckpt::s3://models/run.zip"])
def test_chains_of_urls_are_refused(url: str) -> None:
    assert refusal(url).endswith("chains of URLs cannot be used")


def test_two_colons_in_an_objects_name_are_a_name() -> None:
    assert open_filesystem("s3://models/a::b", {})[1] == "models/a::b"


# ---- printed as URLs ----


@pytest.mark.parametrize(
    "url",
    [
        "s3://models/run",
        "webhdfs://namenode/user/me/run",
        "webhdfs://namenode:9870/user/me/run",
        "webhdfs://me@namenode:9870/user/me/run",
        "https://host:8000/run?x=1",
    ],
)
def test_a_url_names_the_same_place_again(url: str) -> None:
    fs, path = open_filesystem(url, {})
    assert url_of(fs, path) == url
    assert open_filesystem(url_of(fs, path), {}) == (fs, path)


def test_a_host_that_is_named_in_the_options_is_told_and_its_password_is_not() -> None:
    options = {"host": "namenode", "port": 9870, "user": "me", "password": "hunter2"}
    fs, path = open_filesystem("webhdfs:///user/me/run", options)
    assert url_of(fs, path) == "webhdfs://me@namenode:9870/user/me/run"
    assert open_filesystem(url_of(fs, path), options) == (fs, path)


class Accounts(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Takes from a URL what it does not tell again."""

    protocol = "accounts"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path)).rpartition("@")[2]

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"account": path.partition("://")[2].partition("@")[0]} if "@" in path else {}


def test_a_url_that_could_not_be_told_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_registry, "accounts", Accounts)
    assert refusal("accounts://me@models/run").endswith(
        "cannot be used, since records would name it accounts://models/run, which is another place. "
        "Move the storage's settings from the URL to storage options"
    )
    assert opened("accounts://models/run", account="me").storage_options == {"account": "me"}

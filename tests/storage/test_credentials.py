"""Whole ways to real servers: roles, keys that expire during a run, TLS, buckets in host names, wrong keys."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from reshard.cli.main import run
from reshard.core.storage.uploads import abort_uploads
from reshard.core.storage.urls import parse_url
from tests.support.certificates import Authority
from tests.support.checkpoints import case, read_tree
from tests.support.http_wire import Head
from tests.support.moto_server import moto_server
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, s3_server
from tests.support.s3_traffic import Exchange
from tests.support.stores import BUCKET, Store, forget_connections

FOUR_TO_THREE = case(7009)
SIDES = (("source", "src"), ("target", "dst"))


@pytest.fixture(autouse=True)
def _no_keys_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [*os.environ]:
        if name.startswith(("AWS_", "OBS_")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    forget_connections()
    yield
    forget_connections()


def put_source(root: Path) -> None:
    """Put the source and the strategies into a server's directory."""
    for path in FOUR_TO_THREE.directory.rglob("*"):
        if path.is_file():
            target = root / path.relative_to(FOUR_TO_THREE.directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())


def conversion(protocol: str = "s3") -> list[str]:
    url = f"{protocol}://{BUCKET}"
    strategies = [f"--{side}-strategy={url}/{name}_strategy.ckpt" for side, name in SIDES]
    return ["convert", f"{url}/src", f"{url}/out", *strategies]


# ---- TLS ----


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def tls_server(tmp_path: Path, authority: Authority) -> Iterator[S3Server]:
    with moto_server(tmp_path, BUCKET, certificate=authority.issue(), authority=authority.bundle) as running:
        yield running


def test_a_server_with_a_certificate_of_its_own(
    tls_server: S3Server,
    authority: Authority,
    tmp_path: Path,
    reshard: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert tls_server.url.startswith("https://")
    for name, value in tls_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.bundle))
    source, target = FOUR_TO_THREE.directory, f"s3://{BUCKET}/out"
    strategies = [f"--{side}-strategy={source}/{name}_strategy.ckpt" for side, name in SIDES]
    reshard("convert", f"{source}/src", target, *strategies)
    reshard("verify", target)
    back = [f"--source-strategy={source}/dst_strategy.ckpt", f"--target-strategy={source}/src_strategy.ckpt"]
    reshard("convert", target, tmp_path / "back", *back)
    assert read_tree(tmp_path / "back") == read_tree(source / "src")
    location = parse_url(target)
    assert abort_uploads(location, [location]) == 0


def test_a_server_with_an_unknown_certificate(
    tls_server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in tls_server.environment.items():
        monkeypatch.setenv(name, value)
    assert run(["inspect", f"s3://{BUCKET}/src"]) == 2
    assert f"the certificate of {tls_server.url} is not trusted" in capsys.readouterr().err


# ---- the bucket in the host's name ----


def test_a_conversion_by_a_server_that_wants_buckets_in_the_hosts_name(
    tmp_path: Path, reshard: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    put_source(root / BUCKET)
    with s3_server(root, (BUCKET,), virtual_hosts=True) as server, s3_proxy(server) as proxy:
        # the proxy leads there whatever the host is called
        monkeypatch.setenv("http_proxy", proxy.url)
        for name, value in {
            "OBS_ENDPOINT": "http://obs.cn-north-4.myhuaweicloud.com",
            "OBS_ACCESS_KEY_ID": ACCESS_KEY,
            "OBS_SECRET_ACCESS_KEY": SECRET_KEY,
        }.items():
            monkeypatch.setenv(name, value)
        reshard(*conversion("obs"))
        assert read_tree(server.path(BUCKET, "out")) == FOUR_TO_THREE.want
        assert {each.call.host for each in proxy.exchanges()} == {f"{BUCKET}.obs.cn-north-4.myhuaweicloud.com"}


# ---- keys that others give ----


class Signers:
    """Who signed the requests that went through a proxy."""

    def __init__(self, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[str] = []
        begin = proxy.begin

        def learn(head: Head) -> Exchange:
            _, _, credential = head.headers.get("authorization", "").partition("Credential=")
            if "/s3/" in credential:
                self.keys.append(credential.partition("/")[0])
            return begin(head)

        monkeypatch.setattr(proxy, "begin", learn)


@pytest.fixture
def moto_proxy(moto: S3Server) -> Iterator[S3Proxy]:
    with s3_proxy(moto) as running:
        yield running


def write_and_look() -> None:
    """Ask by both clients."""
    location = parse_url(f"s3://{BUCKET}/a")
    location.store.put(location.path, b"x")
    assert location.store.read_beginning(location.path, 5) == b"x"
    assert abort_uploads(location, [location]) == 0


ROLE = "arn:aws:iam::123456789012:role/writer"


def test_a_role_is_assumed(moto_proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text(
        f"[profile work]\nendpoint_url = {moto_proxy.url}\nrole_arn = {ROLE}\nsource_profile = base\n"
        "region = us-east-1\n"
        "[profile base]\naws_access_key_id = base\naws_secret_access_key = s\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "work")
    signers = Signers(moto_proxy, monkeypatch)
    write_and_look()
    assert len(signers.keys) == 3
    # moto's keys of roles
    assert all(key.startswith("ASIA") for key in signers.keys)


def test_a_role_is_assumed_with_the_token_of_a_workload(
    moto_proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hunter2")
    for name, value in {
        "AWS_ENDPOINT_URL": moto_proxy.url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ROLE_ARN": ROLE,
        "AWS_ROLE_SESSION_NAME": "reshard",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
    }.items():
        monkeypatch.setenv(name, value)
    signers = Signers(moto_proxy, monkeypatch)
    write_and_look()
    assert len(signers.keys) == 3
    assert all(key.startswith("ASIA") for key in signers.keys)


def test_keys_that_expire_during_a_run_are_renewed(
    store: Store, tmp_path: Path, reshard: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_source(store.server.path(BUCKET))
    store.server.look_again()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    calls = tmp_path / "calls"
    program = tmp_path / "process.py"
    program.write_text(
        "import datetime, json, pathlib\n"
        f"calls = pathlib.Path({str(calls)!r})\n"
        "calls.write_text((calls.read_text() if calls.exists() else '') + 'x')\n"
        "end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=10)\n"
        f"print(json.dumps({{'Version': 1, 'AccessKeyId': {ACCESS_KEY!r}, 'SecretAccessKey': {SECRET_KEY!r},"
        " 'Expiration': end.isoformat()}))\n"
    )
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setattr("reshard.core.storage.objects.credentials._ASKED_EVERY", timedelta(0))
    forget_connections()
    reshard(*conversion())
    assert read_tree(store.server.path(BUCKET, "out")) == FOUR_TO_THREE.want
    assert len(calls.read_text()) > 1


# ---- wrong ones ----


@pytest.mark.parametrize("protocol", ["s3", "obs"])
def test_a_wrong_secret(store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    source = store.add(FOUR_TO_THREE.directory / "src", "src")
    keys = {"endpoint_url": store.proxy.url, "key": ACCESS_KEY, "secret": "hunter2"}
    monkeypatch.setenv("WRONG", json.dumps(keys))
    assert run(["inspect", source, "--storage=env:WRONG"]) == 2
    err = capsys.readouterr().err
    assert "access denied: the credentials are wrong, or lack" in err
    assert "hunter2" not in err

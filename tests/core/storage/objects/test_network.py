"""Certificates of private authorities, and proxies that the environment names, for both clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reshard.core.errors import InputError, StorageError
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.objects.s3 import S3Service, s3_settings
from reshard.core.storage.stores import forget_stores, open_store
from reshard.core.storage.urls import Location
from tests.support.canned_server import Answer, CannedServer, canned_server
from tests.support.certificates import Authority

KEYS = {"key": "k", "secret": "s"}
UPLOADS = Answer(body=b"<ListMultipartUploadsResult></ListMultipartUploadsResult>", headers={"ETag": '"x"'})
PROTOCOLS = pytest.mark.parametrize("protocol", ["s3", "obs"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def tls(authority: Authority) -> Iterator[CannedServer]:
    """A server with a certificate of that authority."""
    with canned_server(authority.issue()) as running:
        running.answer = UPLOADS
        yield running


def ask(url: str, protocol: str = "s3", **options: Any) -> None:
    """Ask a server by both clients."""
    store, path = open_store(f"{protocol}://models/run", KEYS | {"endpoint_url": url} | options)
    with mapped_errors(Location(store, path), "ask"):
        store.put(path, b"x")
        store.abandoned(path)


# ---- certificates ----


@PROTOCOLS
def test_an_authority_of_the_options_is_trusted(tls: CannedServer, authority: Authority, protocol: str) -> None:
    ask(tls.url, protocol, client_kwargs={"verify": str(authority.bundle)})
    assert len(tls.asked) == 2


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
def test_an_authority_of_the_environment_is_trusted(
    tls: CannedServer, authority: Authority, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(authority.bundle))
    ask(tls.url)
    with pytest.raises(StorageError, match="is not trusted"):
        ask(tls.url, "obs")


def test_an_authority_of_a_profile_is_trusted(tls: CannedServer, authority: Authority, home: Path) -> None:
    (home / ".aws").mkdir()
    (home / ".aws/config").write_text(f"[default]\nca_bundle = {authority.bundle}\n")
    ask(tls.url)


def test_a_bundle_may_have_many_certificates_and_remarks(
    tls: CannedServer, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other").bundle.read_bytes()
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes("# authorities of the café\n".encode() + other + b"\n\xff\n" + authority.bundle.read_bytes())
    ask(tls.url, client_kwargs={"verify": str(bundle)})


def test_a_signed_server_of_another_authority_is_not_trusted(tls: CannedServer, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    with pytest.raises(StorageError, match="is not trusted"):
        ask(tls.url, client_kwargs={"verify": str(other.bundle)})


@pytest.mark.parametrize("checks", [True, False])
def test_who_is_asked_for_a_region_is_trusted_as_the_storage_is(
    tls: CannedServer, authority: Authority, checks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshard.core.storage.objects.aws_configuration.endpoint", lambda *_: tls.url)
    tls.answer = Answer(headers={"x-amz-bucket-region": "eu-west-3"})
    verify = str(authority.bundle) if checks else False
    service = S3Service(s3_settings(KEYS | {"client_kwargs": {"verify": verify}}))
    client: Any = service.client("models", {"max_retries": 0})
    assert client.config["region"] == "eu-west-3"


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@PROTOCOLS
def test_certificates_are_not_checked_if_so_asked(tls: CannedServer, protocol: str) -> None:
    ask(tls.url, protocol, client_kwargs={"verify": False})
    assert len(tls.asked) == 2


def test_a_bundle_that_cannot_be_used_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = Authority(tmp_path, "damaged").bundle
    damaged.write_bytes(damaged.read_bytes().replace(b"M", b"N", 3))
    (tmp_path / "none.pem").write_text("no certificate")
    for path, reason in (
        (tmp_path / "nothing", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (tmp_path / "none.pem", "holds no certificates in PEM, or damaged ones"),
        (damaged, "holds no certificates in PEM, or damaged ones"),
    ):
        message = f"the bundle of certificates {path}: {reason}"
        with pytest.raises(InputError) as caught:
            ask("https://127.0.0.1:1", client_kwargs={"verify": str(path)})
        assert str(caught.value).endswith(message)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
        with pytest.raises(InputError) as caught:
            ask("https://127.0.0.1:1")
        assert str(caught.value).endswith(message)


# ---- proxies ----


@PROTOCOLS
@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY"])
def test_a_proxy_of_the_environment_is_used(
    server: CannedServer, protocol: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = UPLOADS
    monkeypatch.setenv(variable, server.url)
    ask("http://10.0.0.7:9000", protocol)
    assert [each.path.partition("?")[0] for each in server.asked] == [
        "http://10.0.0.7:9000/models/run",
        "http://10.0.0.7:9000/models",
    ]


def test_a_proxy_is_asked_to_connect_to_a_server_with_tls(
    server: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer = Answer(502)
    monkeypatch.setenv("HTTPS_PROXY", server.url)
    with pytest.raises(StorageError, match="cannot be reached: .*, or the proxy that the environment names"):
        ask("https://10.0.0.7:9000")


def test_a_server_may_be_excluded_from_the_proxy(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answer = UPLOADS
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for host, excluded in (("127.0.0.1", "example.com,127.0.0.1"), ("localhost", "localhost"), ("localhost", "*")):
        forget_stores()
        monkeypatch.setenv("no_proxy", excluded)
        ask(server.url.replace("127.0.0.1", host))
        assert server.asked.pop(0).path == "/models/run"
        server.asked.clear()

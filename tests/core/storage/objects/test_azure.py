"""az:// and abfs://: which account and credentials settings lead to, as a server sees them, and what refusals say."""

from pathlib import Path
from traceback import format_exception
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from reshard.core.errors import InputError, StorageError, UnusableStorageError
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.copying import copy_file
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.objects.azure import azure_settings
from reshard.core.storage.objects.object_store import ObjectStore
from reshard.core.storage.stores import open_store
from reshard.core.storage.urls import Location, parse_url
from tests.support.canned_server import Answer, Asked, CannedServer, error_answer

KEY = "c2VjcmV0a2V5"
OTHER_KEY = "b3RoZXJrZXk="
SECRETS = (KEY, OTHER_KEY, "s3cr3t")
SAS = "?sv=2024-11-04&sig=s3cr3t%3D"
FOUND = Answer(headers={"ETag": '"0x1"', "Last-Modified": "Thu, 26 Nov 2026 08:00:00 GMT"})


def text_of(server: CannedServer, **more: str) -> str:
    parts = {"AccountName": "account", "AccountKey": KEY, "BlobEndpoint": f"{server.url}/account"} | more
    return "".join(f"{name}={value};" for name, value in parts.items() if value)


def opened(url: str = "az://models/run", **options: Any) -> ObjectStore:
    store, _ = open_store(url, options)
    assert isinstance(store, ObjectStore)
    assert not any(secret in f"{store!r} {store.service!r} {vars(store.service)}" for secret in SECRETS)
    return store


def refusal(url: str = "az://models/run", **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        open_store(url, options)
    assert not any(secret in "".join(format_exception(caught.value)) for secret in SECRETS)
    assert str(caught.value).startswith(f"{url!r}: cannot be opened: ")
    return str(caught.value).partition("cannot be opened: ")[2]


def asked(server: CannedServer, **options: Any) -> Asked:
    """The request of a look at a blob."""
    server.answer = FOUND
    opened(**options).stat("models/run/a")
    return server.asked[-1]


# ---- where, and by whom ----


@pytest.mark.parametrize("protocol", ["az", "abfs", "abfss"])
def test_all_names_of_the_protocol_lead_to_the_same_place(protocol: str) -> None:
    options = {"account_name": "account", "account_key": KEY}
    store, path = open_store(f"{protocol}://models/run/", options)
    assert path == "models/run"
    # as earlier records have it
    assert store.url(path) == "abfs://models/run"
    assert store is open_store("abfs://models", options)[0]
    assert store.is_same(open_store("az://models", {"account_name": "account", "sas_token": SAS})[0])
    assert not store.is_same(open_store("az://models", {"account_name": "another", "account_key": KEY})[0])


def test_a_connection_string(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"connection_string": text_of(server)}, {}):
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "" if options else text_of(server))
        request = asked(server, **options)
        assert request.path == "/account/models/run/a"
        assert request.headers["authorization"].startswith("SharedKey account:")


def test_a_connection_string_with_a_signature(server: CannedServer) -> None:
    text = text_of(server, AccountKey="", AccountName="", SharedAccessSignature=SAS)
    request = asked(server, connection_string=text)
    assert urlsplit(request.path).path == "/account/models/run/a"
    assert parse_qs(urlsplit(request.path).query) == {"sv": ["2024-11-04"], "sig": ["s3cr3t="]}
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"account_name": "account"}, "https://account.blob.core.windows.net"),
        (
            {"account_name": "account", "account_host": "account.blob.core.chinacloudapi.cn"},
            "https://account.blob.core.chinacloudapi.cn",
        ),
        ({"connection_string": f"AccountName=account;AccountKey={KEY}"}, "https://account.blob.core.windows.net"),
        (
            {"connection_string": f"accountname=account;AccountKey={KEY};EndpointSuffix=core.chinacloudapi.cn"},
            "https://account.blob.core.chinacloudapi.cn",
        ),
    ],
)
def test_the_endpoint_of_an_account(options: dict[str, str], want: str) -> None:
    assert azure_settings(options).endpoint == want
    assert azure_settings(options).account == "account"


def test_one_kind_of_credentials_is_used(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the options have wins over all of the environment, also over what obstore would prefer."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", OTHER_KEY)
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "s3cr3t")
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setattr("reshard.core.storage.objects.azure._endpoint", lambda *_: f"{server.url}/account")
    assert asked(server).headers["authorization"].startswith("SharedKey account:")
    of_environment = server.asked[-1].headers["authorization"]
    with_key = asked(server, account_key=KEY).headers["authorization"]
    assert with_key.startswith("SharedKey account:")
    assert with_key != of_environment
    assert "sig=s3cr3t" in asked(server, sas_token=SAS).path
    assert "authorization" not in server.asked[-1].headers
    assert "authorization" not in asked(server, anon=True).headers
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", SAS)
    assert "sig=s3cr3t" in asked(server).path
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "")
    assert asked(server).headers["authorization"] == "Bearer s3cr3t"


def test_a_principal_asks_for_a_token(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", server.url)
    monkeypatch.setattr("reshard.core.storage.objects.azure._endpoint", lambda *_: f"{server.url}/account")
    server.answer = FOUND
    server.answers = lambda path: (
        Answer(body=b'{"access_token": "given", "expires_in": 3600}') if path.endswith("/token") else FOUND
    )
    principal = {"account_name": "account", "client_id": "id", "client_secret": "s3cr3t", "tenant_id": "tenant"}
    opened(**principal).stat("models/run/a")
    assert [each.path for each in server.asked] == ["/tenant/oauth2/v2.0/token", "/account/models/run/a"]
    assert server.asked[-1].headers["authorization"] == "Bearer given"


def test_a_workload_asks_for_a_token(server: CannedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cr3t")
    for name, value in {
        "AUTHORITY_HOST": server.url,
        "FEDERATED_TOKEN_FILE": str(tmp_path / "token"),
        "CLIENT_ID": "id",
        "TENANT_ID": "tenant",
        "STORAGE_ACCOUNT_NAME": "account",
    }.items():
        monkeypatch.setenv(f"AZURE_{name}", value)
    monkeypatch.setattr("reshard.core.storage.objects.azure._endpoint", lambda *_: f"{server.url}/account")
    server.answers = lambda path: (
        Answer(body=b'{"access_token": "given", "expires_in": 3600}') if path.endswith("/token") else FOUND
    )
    opened().stat("models/run/a")
    assert server.asked[-1].headers["authorization"] == "Bearer given"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "no storage account: set AZURE_STORAGE_ACCOUNT_NAME or AZURE_STORAGE_CONNECTION_STRING, or name "),
        ({"account_name": "account", "s3cr": 1}, "s3cr: no such storage option; there are account_name, "),
        ({"account_name": 7}, "account_name: must be a text"),
        ({"account_name": "An.Account"}, "account_name: must be 3 to 24 small letters and digits"),
        ({"account_name": "account", "account_key": "s3cr3t!"}, "account_key: must be in base64"),
        ({"account_name": "account", "sas_token": "s3cr3t"}, "sas_token: must look like sv=…&sig=…"),
        ({"account_name": "account", "anon": "s3cr3t"}, "anon: must be true or false"),
        ({"account_name": "account", "read_timeout": "s3cr3t"}, "read_timeout: must be a number of seconds"),
        ({"account_name": "account", "account_host": "me:s3cr3t@x"}, "account_host: must look like https://host:port"),
        ({"connection_string": "s3cr3t"}, "connection_string: must look like AccountName=…;AccountKey=…"),
        ({"connection_string": "AccountName=account"}, "connection_string: has neither AccountKey nor Shared"),
        ({"connection_string": "AccountName=account;AccountKey=s3cr3t!"}, "account_key: must be in base64"),
        (
            {"connection_string": f"AccountKey={KEY};BlobEndpoint=http://me:s3cr3t@x"},
            "BlobEndpoint of connection_string: must look like https://host:port, without user and password",
        ),
        (
            {"account_name": "account", "account_key": KEY, "sas_token": SAS},
            "account_key, sas_token: give only one kind of credentials",
        ),
        (
            {"account_name": "account", "account_key": KEY, "anon": True},
            "account_key, anon: give only one kind of credentials",
        ),
        (
            {"account_name": "account", "client_secret": "s3cr3t"},
            "client_id, client_secret, tenant_id must be given together",
        ),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], message: str) -> None:
    assert refusal(**options).startswith(message)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "abfs://models@account.dfs.core.windows.net/x",
            "name the container alone, as in abfs://container/…, and the account in storage options",
        ),
        ("az://Models/x", "'Models' cannot be a container's name"),
        ("az://a--b/x", "'a--b' cannot be a container's name"),
        ("az:///x", "it names no container"),
    ],
)
def test_names_of_containers(url: str, message: str) -> None:
    assert refusal(url, account_name="account", account_key=KEY) == message


def test_keys_of_fsspecs_configuration(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts come from the same place, and each name of the protocol may have them."""
    monkeypatch.setattr("fsspec.config.conf", {"abfs": {"connection_string": text_of(server)}})
    assert asked(server).headers["authorization"].startswith("SharedKey account:")
    assert azure_settings({"account_name": "another", "sas_token": SAS}).account == "another"
    store = opened(account_name="another", sas_token=SAS)
    assert store.service.address == "https://another.blob.core.windows.net"


# ---- what refusals say ----


@pytest.fixture
def location(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text_of(server))
    return parse_url("az://models/run/file")


def failure_of(location: Location, attempt: str) -> StorageError:
    store, path = location.store, location.path

    def write() -> None:
        output = store.create(path, UploadBuffers())
        output.write(b"x")
        output.finish()

    attempts = {
        "read": lambda: store.read_beginning(path, 10),
        "write": write,
        "list": lambda: store.find("models/run"),
        "remove": lambda: store.remove(path),
    }
    with pytest.raises(StorageError) as caught, mapped_errors(location, "do it"):
        attempts[attempt]()
    text = "".join(format_exception(caught.value))
    assert not any(secret in text for secret in SECRETS)
    assert str(caught.value).startswith("abfs://models/run/file: cannot do it: ")
    return caught.value


_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/"


@pytest.mark.parametrize(
    ("attempt", "permission"),
    [
        ("read", "read (of a SAS: r and l)"),
        ("write", "write (of a SAS: c and w)"),
        ("list", "read (of a SAS: r and l)"),
    ],
)
def test_a_denied_request_names_the_permission(
    location: Location, server: CannedServer, attempt: str, permission: str
) -> None:
    server.answer = error_answer(403, "AuthorizationPermissionMismatch", "No.\nRequestId:1916c54a\nTime:2026")
    text = str(failure_of(location, attempt))
    assert text.endswith(f": access denied: the credentials lack the permission {_BLOBS}{permission}")
    server.answer = error_answer(403, "AuthorizationFailure")
    assert "the credentials are wrong, or lack the permission" in str(failure_of(location, attempt))


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "ContainerNotFound", "there is no container 'models': create it, or name another"),
        (403, "AuthenticationFailed", "the credentials are wrong, or have expired (AuthenticationFailed: it said)"),
        (409, "SomethingNew", "SomethingNew: it said"),
        (503, "ServerBusy", "the server is busy, or failed (ServerBusy: it said)"),
    ],
)
def test_a_refusal_is_told_in_one_line(
    location: Location, server: CannedServer, status: int, code: str, message: str
) -> None:
    server.answer = error_answer(status, code, "it said\nRequestId:1916c54a\nTime:2026-11-23T22:33:23.229Z")
    for attempt in ("read", "write", "list"):
        error = failure_of(location, attempt)
        assert str(error).endswith(f": {message}")
        assert error.transient == (status == 503)
        assert isinstance(error, UnusableStorageError) == (code in ("ContainerNotFound", "AuthenticationFailed"))


def test_nobody_knows_who_this_machine_is(monkeypatch: pytest.MonkeyPatch, server: CannedServer) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    location = parse_url("az://models/run/file")
    want = "no credentials were found: set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_"
    assert want in str(failure_of(location, "read"))
    server.answer = Answer(404)
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", server.url)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "another")
    error = failure_of(parse_url("az://models/run/file"), "read")
    assert want in str(error)
    assert isinstance(error, UnusableStorageError)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "the credentials were refused (HTTP 401)"),
        (503, "the service that checks credentials does not answer"),
    ],
)
def test_a_principal_is_refused(
    monkeypatch: pytest.MonkeyPatch, server: CannedServer, status: int, message: str
) -> None:
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", server.url)
    for name, value in {"client_id": "id", "client_secret": "s3cr3t", "tenant_id": "t", "account_name": "acc"}.items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name.upper()}", value)
    server.answer = Answer(status, b'{"error": "invalid_client", "error_description": "s3cr3t is wrong"}')
    error = failure_of(parse_url("az://models/run/file"), "read")
    assert str(error).endswith(message)
    assert error.transient == (status == 503)


# ---- what is copied is whole ----


def test_the_service_is_never_asked_for_a_copy(location: Location, server: CannedServer) -> None:
    """It would answer while it is still at work, and obstore would not wait."""
    body = Answer(
        206,
        b"12345",
        {"ETag": '"0x1"', "Last-Modified": "Thu, 26 Nov 2026 08:00:00 GMT", "Content-Range": "bytes 0-4/5"},
    )
    server.answer = body
    copy_file(location, location.parent.child("copy"))
    assert [each.method for each in server.asked if each.path.endswith("/copy")] == ["PUT"]
    assert not any("x-ms-copy-source" in each.headers for each in server.asked)

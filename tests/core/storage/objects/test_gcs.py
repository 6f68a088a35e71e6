"""gs://: which endpoint and credentials settings lead to, as a server sees them, and what refusals say."""

import json
from functools import cache
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from reshard.core.errors import InputError, StorageError
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.objects.gcs import gcs_settings
from reshard.core.storage.objects.object_store import ObjectStore
from reshard.core.storage.stores import open_store
from reshard.core.storage.urls import parse_url
from tests.support.canned_server import Answer, Asked, CannedServer, error_answer

SECRET = "s3cr3t"
FOUND = Answer(headers={"ETag": '"x"', "Last-Modified": "Thu, 26 Nov 2026 08:00:00 GMT", "x-goog-generation": "7"})


@cache
def _private_key() -> str:
    key = rsa.generate_private_key(65537, 2048)
    kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*kinds).decode()


def account(**more: object) -> dict[str, object]:
    return {
        "type": "service_account",
        "client_email": "reshard@example.com",
        "private_key_id": SECRET,
        "private_key": _private_key(),
    } | more


def written(directory: Path, content: object) -> str:
    path = directory / "account.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def opened(url: str = "gs://models/run", **options: Any) -> ObjectStore:
    store, _ = open_store(url, options)
    assert isinstance(store, ObjectStore)
    shown = f"{store!r} {store.service!r} {vars(store.service)}"
    assert SECRET not in shown
    assert "PRIVATE KEY" not in shown
    return store


def refusal(url: str = "gs://models/run", **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        open_store(url, options)
    assert SECRET not in "".join(format_exception(caught.value))
    return str(caught.value).removeprefix(f"{url!r}: cannot be opened: ")


def asked(server: CannedServer, **options: Any) -> Asked:
    """The request of a look at an object."""
    server.answer = FOUND
    opened(**options).stat("models/run/a")
    return server.asked[-1]


def test_both_names_of_the_protocol_lead_to_the_same_place() -> None:
    store, path = open_store("gcs://models/run/", {"token": "anon"})
    assert path == "models/run"
    assert store.url(path) == "gs://models/run"
    assert store is open_store("gs://models", {"token": "anon"})[0]
    assert store.is_same(open_store("gs://models", {})[0])
    assert not store.is_same(open_store("gs://models", {"endpoint_url": "http://127.0.0.1:1"})[0])
    assert gcs_settings({}).endpoint == "https://storage.googleapis.com"


def test_without_credentials(server: CannedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`anon` wins over all that the environment has."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", written(tmp_path, account()))
    request = asked(server, token="anon", endpoint_url=server.url)
    assert request.path == "/models/run%2Fa"
    assert "authorization" not in request.headers
    store = opened(token="anon", endpoint_url=server.url)
    store.put("models/run/a", b"x")
    assert server.asked[-1].method == "PUT"
    assert server.asked[-1].headers["authorization"].strip() == "Bearer"  # and nothing


def test_an_emulator_needs_no_credentials(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for emulator in (server.url, server.url.removeprefix("http://")):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
        assert "authorization" not in asked(server).headers


def test_the_file_of_a_service_account(server: CannedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, account())
    given = (path, f"~/{Path(path).name}", account())
    for token in given:
        headers = asked(server, token=token, endpoint_url=server.url, project="of no use").headers
        assert headers["authorization"].startswith("Bearer eyJ")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", path)
    assert asked(server, endpoint_url=server.url).headers["authorization"].startswith("Bearer eyJ")
    # as emulators have it
    own = {
        "gcs_base_url": server.url,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    assert "authorization" not in asked(server, token=own).headers


def test_the_file_of_a_user_is_known_by_its_path(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"type": "authorized_user", "client_id": "id", "client_secret": SECRET, "refresh_token": "x"}
    )
    settings = gcs_settings({"token": path})
    assert (settings.user_path, settings.account) == (path, "")
    opened(token=path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"requester_pays": SECRET}, "requester_pays: no such storage option; there are token, endpoint_url, project"),
        ({"token": 7}, "token: must be a path, 'anon', or the content of such a file"),
        ({"token": f"/gone/{SECRET}"}, "token: the file cannot be read: No such file or directory"),
        ({"token": {"private": SECRET}}, "token: must be the file of a service account, or of a user as gcloud writes"),
        (
            {"token": {"type": "authorized_user"}},
            "token: must be the file of a service account, or of a user as gcloud",
        ),
        ({"endpoint_url": f"http://me:{SECRET}@x"}, "endpoint_url: must look like https://host:port, without user and"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], message: str) -> None:
    assert refusal(**options).startswith(message)


@pytest.mark.parametrize("content", [f'{{"private_key": "{SECRET}"', {"type": "external_account"}, [SECRET]])
def test_files_that_are_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: object) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", written(tmp_path, content))
    message = refusal()
    assert message.startswith("GOOGLE_APPLICATION_CREDENTIALS: ")
    assert message.endswith(
        ("must be the file of a service account, or of a user as gcloud writes it", "is not valid JSON")
    )


def test_a_token_that_obstore_would_prefer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", SECRET)
    for token in ("anon", account()):
        assert refusal(token=token) == "GOOGLE_BEARER_TOKEN is set, and would be used instead: unset it"


def test_names_of_buckets() -> None:
    assert refusal("gs://Models/x", token="anon") == "'Models' cannot be a bucket's name"
    assert refusal("gs:///x", token="anon") == "it names no bucket"


@pytest.mark.parametrize(
    ("attempt", "permission"),
    [
        ("read", "storage.objects.get (or storage.objects.list, if it does not exist)"),
        ("write", "storage.objects.create (and storage.objects.delete, if it exists)"),
        ("list", "storage.objects.list"),
        ("remove", "storage.objects.delete"),
    ],
)
def test_a_denied_request_names_the_permission(
    server: CannedServer, monkeypatch: pytest.MonkeyPatch, attempt: str, permission: str
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    server.answer = error_answer(403, "AccessDenied", "Access denied.")
    with pytest.raises(StorageError) as caught:
        _attempt(attempt)
    want = f"access denied: the credentials lack the permission {permission}"
    assert str(caught.value) == f"gs://models/run/file: cannot do it: {want}"


def test_nobody_knows_who_this_machine_is() -> None:
    with pytest.raises(StorageError) as caught:
        _attempt("read")
    assert str(caught.value).endswith(
        "no credentials were found: set GOOGLE_APPLICATION_CREDENTIALS to the path of a service account's file, or "
        "name storage options that have it as token"
    )
    assert not caught.value.transient


def _attempt(name: str) -> None:
    location = parse_url("gs://models/run/file")
    store, path = location.store, location.path
    with mapped_errors(location, "do it"):
        {
            "read": lambda: store.read_beginning(path, 10),
            "write": lambda: store.put(path, b"x"),
            "list": lambda: store.find("models/run"),
            "remove": lambda: store.remove(path),
        }[name]()

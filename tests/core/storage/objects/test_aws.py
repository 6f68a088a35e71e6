"""Profiles, processes, roles and expiring keys, as AWS's tools know them; requests of AWS's own client."""

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

from reshard.core.errors import InputError, StorageError, UnusableStorageError
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.objects.object_store import ObjectStore
from reshard.core.storage.store import AbandonedUpload
from reshard.core.storage.stores import open_store
from reshard.core.storage.urls import Location
from tests.support.canned_server import OBJECT, Answer, Asked, CannedServer, error_answer
from tests.support.patience import until
from tests.support.signatures import signed_by

KEYS = {"key": "own", "secret": "own secret"}
SECRET = "hunter2-hunter2"
NO_UPLOADS = Answer(body=b"<ListMultipartUploadsResult></ListMultipartUploadsResult>")


@pytest.fixture
def config(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """AWS's configuration file, at a place of its own."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "config"))
    return home / "config"


def opened(**options: Any) -> ObjectStore:
    store, _ = open_store("s3://models/run", options)
    assert isinstance(store, ObjectStore)
    return store


def asked(server: CannedServer, **options: Any) -> Asked:
    """The request of a look at an object."""
    opened(**options).stat("models/run/a")
    return server.asked[-1]


def asked_by_aws(server: CannedServer, **options: Any) -> Asked:
    """The request of a look for uploads, which AWS's own client makes."""
    server.answer = NO_UPLOADS
    assert opened(**options).abandoned("models/run") == []
    return server.asked[-1]


def failure(**options: Any) -> StorageError:
    store = opened(**options)
    with pytest.raises(StorageError) as caught, mapped_errors(Location(store, "models/run/a"), "look for it"):
        store.stat("models/run/a")
    assert SECRET not in "".join(format_exception(caught.value))
    return caught.value


# ---- profiles ----


PROFILE = """
[profile work]
aws_access_key_id = of-work
aws_secret_access_key = secret-of-work
region = eu-west-1
endpoint_url = {url}
s3 =
    addressing_style = path
"""


@pytest.mark.parametrize("ask", [asked, asked_by_aws])
def test_a_profile_counts(ask: Any, server: CannedServer, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text(PROFILE.format(url=server.url))
    assert signed_by(ask(server, profile="work")) == ("of-work", "eu-west-1", None)
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert signed_by(ask(server)) == ("of-work", "eu-west-1", None)
    assert signed_by(ask(server, **KEYS)) == ("own", "eu-west-1", None)
    # as AWS's tools have it, keys of the environment win over a profile that it names, and not over one of the options
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert signed_by(ask(server)) == ("of-environment", "eu-west-1", None)
    assert signed_by(ask(server, profile="work")) == ("of-work", "eu-west-1", None)


def test_the_default_profile_counts_wherever_it_is(server: CannedServer, home: Path) -> None:
    (home / ".aws").mkdir()
    (home / ".aws/config").write_text(f"[default]\nregion = eu-west-2\nendpoint_url = {server.url}\n")
    (home / ".aws/credentials").write_text(
        "[default]\naws_access_key_id = of-file\naws_secret_access_key = s\naws_session_token = t\n"
    )
    assert signed_by(asked(server)) == ("of-file", "eu-west-2", "t")


@pytest.mark.parametrize("ask", [asked, asked_by_aws])
def test_the_endpoint_of_a_services_section_wins(ask: Any, server: CannedServer, config: Path) -> None:
    config.write_text(
        "[profile work]\nservices = own\nendpoint_url = http://127.0.0.1:1\n"
        f"[services own]\ns3 =\n  endpoint_url = {server.url}\n"
    )
    assert signed_by(ask(server, profile="work", **KEYS)) == ("own", "us-east-1", None)


def test_a_changed_file_is_read_again(server: CannedServer, config: Path) -> None:
    config.write_text(PROFILE.format(url="http://127.0.0.1:1"))
    assert opened(profile="work").service.address == "http://127.0.0.1:1"
    config.write_text(PROFILE.format(url=server.url).replace("eu-west-1", "eu-west-22"))
    assert signed_by(asked(server, profile="work"))[1] == "eu-west-22"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the configuration of AWS: The config profile (work) could not be found"),
        ("[profile work", "the configuration of AWS: Unable to parse config file"),
        ("[profile work]\nendpoint_url = user:hunter2@host\n", "endpoint_url in the configuration of AWS: must look"),
        ("[profile work]\nservices = none\n", "the configuration of AWS: The profile is configured to use the ser"),
        (
            "[profile work]\ns3 =\n  addressing_style = host\n",
            "addressing_style in the configuration of AWS: must be auto, path or virtual",
        ),
        ("[profile work]\nca_bundle = /not/there\n", "the bundle of certificates /not/there: cannot be read: No such"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused_at_once(config: Path, text: str, reason: str) -> None:
    config.write_text(text)
    with pytest.raises(InputError) as caught:
        opened(profile="work")
    assert reason in str(caught.value)
    assert "hunter2" not in "".join(format_exception(caught.value))


# ---- keys that somebody else has ----


def process(home: Path, config: Path, server: CannedServer, lasts: timedelta) -> Path:
    """A profile with a process that gives keys, one after another; it writes a line into the file at each call."""
    calls = home / "calls"
    program = home / "process.py"
    program.write_text(
        "import datetime, json, pathlib\n"
        f"calls = pathlib.Path({str(calls)!r})\n"
        "count = len(calls.read_text()) + 1 if calls.exists() else 1\n"
        "calls.write_text('x' * count)\n"
        f"end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds={lasts.total_seconds()})\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': f'number-{count}', 'SecretAccessKey': 's',"
        " 'SessionToken': f'token-{count}', 'Expiration': end.isoformat()}))\n"
    )
    config.write_text(f"[profile work]\nendpoint_url = {server.url}\ncredential_process = {sys.executable} {program}\n")
    return calls


def test_keys_of_a_process_are_asked_for_once(server: CannedServer, home: Path, config: Path) -> None:
    calls = process(home, config, server, timedelta(hours=1))
    for _ in range(3):
        assert signed_by(asked(server, profile="work")) == ("number-1", "us-east-1", "token-1")
    assert calls.read_text() == "x"


def test_keys_that_expire_are_renewed(
    server: CannedServer, home: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshard.core.storage.objects.credentials._ASKED_EVERY", timedelta(0))
    # botocore renews keys that have less than ten minutes left
    process(home, config, server, timedelta(minutes=5))
    store = opened(profile="work")
    seen = set()

    def is_renewed() -> bool:
        store.stat("models/run/a")
        seen.add(signed_by(server.asked[-1])[0])
        return len(seen) >= 3

    until(is_renewed, "the same keys are used")


def test_keys_that_do_not_expire_are_asked_for_once() -> None:
    from reshard.core.storage.objects.credentials import CredentialProvider

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "k")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        assert CredentialProvider(None)()["expires_at"] is None


def test_keys_that_expire_are_asked_for_again_in_time(server: CannedServer, home: Path, config: Path) -> None:
    from reshard.core.storage.objects.credentials import CredentialProvider

    process(home, config, server, timedelta(hours=1))
    expires = CredentialProvider("work")()["expires_at"]
    assert expires is not None
    # the client asks for others five minutes before
    assert timedelta(minutes=4) < expires - datetime.now(UTC) < timedelta(minutes=6)


def test_a_process_that_fails_is_named(server: CannedServer, config: Path) -> None:
    config.write_text(f"[profile work]\nendpoint_url = {server.url}\ncredential_process = false\n")
    shown = failure(profile="work")
    assert str(shown).startswith(
        "s3://models/run/a: cannot look for it: the credentials cannot be used: Error when retrieving credentials from "
        "custom-process"
    )
    assert isinstance(shown, UnusableStorageError)
    assert server.asked == []


def test_half_a_pair_of_keys_is_named(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    shown = failure(endpoint_url=server.url)
    assert "the credentials cannot be used: Partial credentials found in env, missing: AWS_SECRET_AC" in str(shown)
    assert isinstance(shown, UnusableStorageError)


def test_without_keys_it_is_said_what_to_set(server: CannedServer) -> None:
    shown = failure(endpoint_url=server.url)
    assert str(shown) == (
        "s3://models/run/a: cannot look for it: no credentials were found: set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or name storage options that have key and secret"
    )
    assert isinstance(shown, UnusableStorageError)


ROLE = """
[profile work]
region = us-east-1
endpoint_url = {url}
role_arn = arn:aws:iam::123456789012:role/reader
role_session_name = reshard
{source}
"""
KEYS_OF_SOURCE = "source_profile = base\n[profile base]\naws_access_key_id = base\naws_secret_access_key = s"


def test_a_service_that_gives_keys_and_does_not_answer_may_answer_later(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    config.write_text(ROLE.format(url="http://127.0.0.1:1", source=KEYS_OF_SOURCE))
    shown = failure(profile="work", endpoint_url="http://127.0.0.1:2")
    assert "the credentials cannot be used: Could not connect to the endpoint URL" in str(shown)
    assert shown.transient


def test_a_role_that_is_denied_is_named(server: CannedServer, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    error = f"<Error><Code>AccessDenied</Code><Message>no</Message></Error><Token>{SECRET}</Token>"
    server.answer = Answer(403, f"<ErrorResponse>{error}</ErrorResponse>".encode())
    config.write_text(ROLE.format(url=server.url, source=KEYS_OF_SOURCE))
    shown = failure(profile="work")
    assert "the credentials cannot be used: An error occurred (AccessDenied) when calling the AssumeRole" in str(shown)
    assert isinstance(shown, UnusableStorageError)


# ---- AWS's own client ----


def test_its_settings_are_the_same(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "true")
    options = {"endpoint_url": server.url, "token": "t", "client_kwargs": {"region_name": "here"}, **KEYS}
    request = asked_by_aws(server, requester_pays=True, **options)
    assert signed_by(request) == ("own", "here", "t")
    assert request.path.startswith("/models?uploads")
    assert request.headers["x-amz-request-payer"] == "requester"
    assert "authorization" not in asked_by_aws(server, endpoint_url=server.url, anon=True).headers


@pytest.mark.parametrize(
    ("bucket", "host"), [("models", "models.s3-fips.eu-west-3"), ("models.of.us", "s3-fips.eu-west-3")]
)
def test_both_clients_ask_the_same_host_of_aws(
    server: CannedServer, bucket: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshard.core.storage.objects.aws_configuration.region_of", lambda *_: "eu-west-3")
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    monkeypatch.setenv("HTTPS_PROXY", server.url)
    server.answer = Answer(502)
    store = opened(**KEYS)
    for ask in (store.stat, store.abandoned):
        with pytest.raises(StorageError), mapped_errors(Location(store, f"{bucket}/run"), "ask"):
            ask(f"{bucket}/run")
    assert [(each.method, each.path) for each in server.asked] == [("CONNECT", f"{host}.amazonaws.com:443")] * 2


@pytest.mark.parametrize("protocol", ["s3", "obs"])
def test_given_keys_need_no_profile(
    server: CannedServer, config: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("[default]\ns3 =\n  use_accelerate_endpoint = true\n  addressing_style = virtual\n")
    if protocol == "obs":
        monkeypatch.setenv("AWS_PROFILE", "not-there")
    store, _ = open_store(
        f"{protocol}://models/run",
        {"endpoint_url": server.url, **KEYS, "config_kwargs": {"s3": {"addressing_style": "path"}}},
    )
    server.answer = NO_UPLOADS
    assert store.abandoned("models/run") == []
    assert server.asked[-1].path.startswith("/models?uploads")


def uploads_of(server: CannedServer, parts: Answer) -> list[AbandonedUpload]:
    """The uploads that a server tells of, with this answer to who asks for their parts."""
    upload = b"<Upload><Key>run/a</Key><UploadId>1</UploadId><Initiated>2026-11-26T08:00:00.000Z</Initiated></Upload>"
    listed = Answer(body=b"<ListMultipartUploadsResult>" + upload + b"</ListMultipartUploadsResult>")
    server.answers = lambda path: parts if "uploadId" in path else listed
    return list(opened(endpoint_url=server.url, **KEYS).abandoned("models/run"))


def test_uploads_are_described_with_the_size_of_their_parts(server: CannedServer) -> None:
    parts = (
        b"<Part><PartNumber>1</PartNumber><Size>5</Size></Part><Part><PartNumber>2</PartNumber><Size>3</Size></Part>"
    )
    [upload] = uploads_of(server, Answer(body=b"<ListPartsResult>" + parts + b"</ListPartsResult>"))
    assert (upload.path, upload.upload_id, upload.size_bytes) == ("models/run/a", "1", 8)
    assert upload.begun == datetime(2026, 11, 26, 8, tzinfo=UTC)


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (404, "NoSuchUpload")])
def test_uploads_are_known_without_their_parts(server: CannedServer, status: int, code: str) -> None:
    [upload] = uploads_of(server, error_answer(status, code))
    assert (upload.path, upload.size_bytes) == ("models/run/a", 0)


def test_parts_that_cannot_be_listed_for_another_reason_are_an_error(server: CannedServer) -> None:
    with pytest.raises(Exception, match="SlowDown"):
        uploads_of(server, error_answer(503, "SlowDown"))


def test_a_large_copy_is_encrypted_as_other_objects_are(server: CannedServer) -> None:
    writing = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "the-key"}
    store = opened(endpoint_url=server.url, s3_additional_kwargs=writing, requester_pays=True, **KEYS)
    copied = b"<CopyObjectResult><ETag>x</ETag></CopyObjectResult>"
    server.answers = lambda path: Answer(body=copied if path == "/models/b" else b"", headers={"ETag": '"x"'})
    assert store.service.copy_large(("models", "a"), ("models", "b"))
    headers = server.asked[-1].headers
    assert headers["x-amz-copy-source"] == "models/a"
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "the-key"
    assert headers["x-amz-request-payer"] == "requester"


def test_a_copy_that_takes_the_server_long_is_made_in_parts(server: CannedServer) -> None:
    """An answer comes when all is copied, and is waited for no longer than any other."""
    size_bytes = 2**29 + 1
    begun = Answer(body=b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
    copied = Answer(body=b"<CopyPartResult><ETag>x</ETag></CopyPartResult>")
    ended = Answer(body=b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")

    def answer(path: str) -> Answer:
        if path == "/models/a":
            return replace(OBJECT, missing_bytes=size_bytes)
        return begun if path.endswith("?uploads") else copied if "partNumber" in path else ended

    server.answers = answer
    opened(endpoint_url=server.url, **KEYS).copy("models/a", "models/b")
    ranges = [request.headers.get("x-amz-copy-source-range") for request in server.asked if request.method == "PUT"]
    assert sorted(map(str, ranges)) == [f"bytes=0-{2**29 - 1}", f"bytes={2**29}-{2**29}"]

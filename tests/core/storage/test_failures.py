"""Errors of storages are named, classified and worded, and repeat no secrets."""

import errno
from pathlib import Path
from traceback import format_exception
from typing import Any

import aiohttp
import botocore.exceptions  # type: ignore[import-untyped]
import botocore.parsers  # type: ignore[import-untyped]
import pytest
import requests
from aiobotocore.response import AioReadTimeoutError
from fsspec.exceptions import FSTimeoutError
from s3fs import S3FileSystem
from s3fs.errors import translate_boto_error
from yarl import URL

from reshard.core.errors import CheckpointError, StorageError
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.obs import OBSFileSystem
from reshard.core.storage.urls import Location, parse_url

S3 = parse_url("s3://models/run/file")
OBS = Location(OBSFileSystem(endpoint_url="obs.example.com", key="k", secret="s"), "models/run/file")
ENDPOINT = "https://user:hunter2@s3.example.com:9000/models/run?list-type=2&X-Amz-Signature=0123abcd"
SERVER = "https://s3.example.com:9000"


def failure(error: BaseException, location: Location = S3, action: str = "read it") -> StorageError:
    with pytest.raises(StorageError) as caught, mapped_errors(location, action):
        raise error
    assert caught.value.__cause__ is error
    assert str(caught.value).startswith(f"{location}: cannot {action}: ")
    return caught.value


# ---- of any storage ----


LOWER_ERRORS: list[tuple[Any, str, bool]] = [
    (FileNotFoundError(errno.ENOENT, "whatever"), "no such file or directory", False),
    (PermissionError(errno.EACCES, "whatever"), "permission denied", False),
    (OSError(errno.ENOSPC, "No space left on device"), "No space left on device", False),
    (OSError(errno.EROFS, "Read-only file system"), "Read-only file system", False),
    (OSError(errno.ENAMETOOLONG, "File name too long"), "File name too long", False),
    (OSError("said without a number"), "said without a number", False),
    (OSError(), "OSError", False),
    (OSError(errno.EBUSY, "Please reduce your request rate"), "Please reduce your request rate", True),
    (OSError(errno.EREMOTEIO, "We encountered an internal error"), "We encountered an internal error", True),
    (OSError(errno.EIO, "Input/output error"), "Input/output error", True),
    (OSError(errno.ESTALE, "Stale file handle"), "Stale file handle", True),
    (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "Connection reset by peer", True),
    (ConnectionError("closed"), "closed", True),
    (TimeoutError(), "no answer in time", True),
    (FSTimeoutError(), "no answer in time", True),
    (aiohttp.ServerDisconnectedError(), "Server disconnected", True),
    (aiohttp.ClientPayloadError("cut short"), "cut short", True),
    (aiohttp.ClientOSError(errno.ECONNRESET, "reset"), "reset", True),
    (aiohttp.InvalidURL("http:/"), "http:/", False),
    (requests.ConnectionError("refused"), "refused", True),
    (requests.exceptions.InvalidHeader("no header"), "no header", False),
]


@pytest.mark.parametrize(("error", "reason", "transient"), LOWER_ERRORS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("url", ["/data/file", "memory://models/file", "s3://models/file"])
def test_what_a_storage_raises_is_named_and_judged(url: str, error: Exception, reason: str, transient: bool) -> None:
    shown = failure(error, parse_url(url), "read 5 bytes at 7")
    assert reason in str(shown)
    assert shown.transient is transient


@pytest.mark.parametrize(("status", "transient"), [(503, True), (500, True), (429, True), (404, False), (403, False)])
def test_an_http_servers_refusal_is_judged_by_its_status_and_its_url_scrubbed(status: int, transient: bool) -> None:
    url = URL("https://host/x?sig=0123abcd")
    request = aiohttp.RequestInfo(url, "GET", headers=None, real_url=url)  # type: ignore[arg-type]
    shown = failure(aiohttp.ClientResponseError(request, (), status=status, message="no"), parse_url("https://host/x"))
    assert str(status) in str(shown)
    assert "0123abcd" not in str(shown)
    assert shown.transient is transient


@pytest.mark.parametrize(
    "error", [ValueError("bug"), KeyError("bug"), CheckpointError("x"), StorageError("x"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("location", [S3, parse_url("/f")], ids=str)
def test_what_no_storage_raises_passes(error: BaseException, location: Location) -> None:
    with pytest.raises(type(error)) as caught, mapped_errors(location, "read it"):
        raise error
    assert caught.value is error


# ---- answers of S3 and OBS ----


def answer(code: str, status: int, operation: str = "GetObject", message: str = "", **more: str) -> Exception:
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": {}}
    error = {"Code": code, "Message": message or f"{code}, it said.", **more}
    return botocore.exceptions.ClientError({"Error": error, "ResponseMetadata": metadata}, operation)


def translated(refusal: Exception) -> Exception:
    """As s3fs raises it."""
    error = translate_boto_error(refusal)
    assert isinstance(error, Exception)
    return error


ANSWERS: list[tuple[Exception, str, bool]] = [
    (answer("NoSuchKey", 404), "no such file or directory", False),
    (answer("404", 404, "HeadObject"), "no such file or directory", False),
    (answer("NoSuchBucket", 404), "there is no bucket 'models'", False),
    (answer("404", 404, "HeadBucket"), "there is no bucket 'models'", False),
    (answer("InvalidBucketName", 400), "'models' cannot be a bucket's name", False),
    (answer("InvalidAccessKeyId", 403), "the credentials are wrong (InvalidAccessKeyId: InvalidAccessKeyId, it", False),
    (answer("SignatureDoesNotMatch", 403), "the credentials are wrong (SignatureDoesNotMatch: ", False),
    (answer("ExpiredToken", 400), "the credentials have expired (ExpiredToken: ExpiredToken, it said.): renew", False),
    (answer("TokenRefreshRequired", 400), "the credentials have expired (TokenRefreshRequired: ", False),
    (answer("RequestTimeTooSkewed", 403), "clock is too far from the server's", False),
    (answer("400", 400, "HeadObject"), "perhaps expired credentials, or a wrong region", False),
    (answer("301", 301, "HeadBucket"), "'models' is in another region or at another endpoint (301)", False),
    (
        answer("PermanentRedirect", 301, Endpoint="models.s3.eu-west-1.example.com"),
        "the bucket 'models' is in another region or at another endpoint, models.s3.eu-west-1.example.com (",
        False,
    ),
    (answer("AuthorizationHeaderMalformed", 400, Region="eu-west-1"), "another endpoint, eu-west-1 (", False),
    (answer("AuthorizationHeaderMalformed", 400), "AuthorizationHeaderMalformed: Auth", False),
    (answer("VirtualHostDomainRequired", 400), "use obs://, or addressing_style virtual", False),
    (answer("InvalidObjectState", 403), "it is archived: have the storage restore it first", False),
    (answer("PreconditionFailed", 412, "PutObject"), "created or changed by somebody else meanwhile", False),
    (answer("412", 412, "HeadObject"), "created or changed by somebody else meanwhile (412)", False),
    (answer("InvalidRange", 416), "it ends before the requested bytes", False),
    (answer("NotImplemented", 501, "CopyObject"), "the server does not support such requests (NotImpl", False),
    (answer("501", 501, "HeadObject"), "the server does not support such requests (501)", False),
    (answer("InternalError", 500), "the server is busy, or failed (InternalError: InternalError, it said.)", True),
    (answer("InternalError", 200, "CompleteMultipartUpload"), "the server is busy, or failed", True),
    (answer("500", 500, "HeadObject"), "the server is busy, or failed (500)", True),
    (answer("503", 503, "HeadObject"), "the server is busy, or failed (503)", True),
    (answer("SlowDown", 503), "the server is busy, or failed (SlowDown: ", True),
    (answer("ServiceUnavailable", 503), "the server is busy, or failed", True),
    (answer("TooManyRequests", 429), "the server is busy, or failed (TooManyRequests", True),
    (answer("BadGateway", 502), "the server is busy, or failed (BadGateway", True),
    (answer("OperationAborted", 409), "another request is working on it", True),
    (answer("RequestTimeout", 400, "UploadPart"), "the data sent did not arrive complete", True),
    (answer("IncompleteBody", 400, "UploadPart"), "the data sent did not arrive complete", True),
    (answer("BadDigest", 400, "UploadPart"), "the data sent did not arrive complete", True),
    (answer("SomethingNew", 400), "SomethingNew: SomethingNew, it said.", False),
    (answer("QuotaExceeded", 403, "PutObject"), "QuotaExceeded: QuotaExceeded, it said.", False),
]


@pytest.mark.parametrize(("refusal", "reason", "transient"), ANSWERS, ids=lambda value: str(value)[:50])
def test_what_a_server_answers_is_told_in_words_and_judged(refusal: Exception, reason: str, transient: bool) -> None:
    for error in (refusal, translated(refusal)):
        shown = failure(error)
        assert reason in str(shown)
        assert shown.transient is transient


def test_an_answer_is_found_behind_an_error_that_was_raised_in_its_stead() -> None:
    def look() -> None:
        try:
            raise answer("NoSuchBucket", 404, "ListObjectsV2")
        except botocore.exceptions.ClientError as refusal:
            raise translate_boto_error(refusal, set_cause=False)  # noqa: B904 (as s3fs does)

    with pytest.raises(StorageError, match="there is no bucket 'models'"), mapped_errors(S3, "read it"):
        look()


PERMISSIONS = [
    ("GetObject", "s3:GetObject (or s3:ListBucket, if it does not exist)", "obs:object:GetObject (or obs:bucket:List"),
    ("ListObjectsV2", "s3:ListBucket", "obs:bucket:ListBucket"),
    ("PutObject", "s3:PutObject", "obs:object:PutObject"),
    ("UploadPart", "s3:PutObject", "obs:object:PutObject"),
    ("DeleteObjects", "s3:DeleteObject", "obs:object:DeleteObject"),
    ("AbortMultipartUpload", "s3:AbortMultipartUpload", "obs:object:AbortMultipartUpload"),
    ("ListMultipartUploads", "s3:ListBucketMultipartUploads", "obs:bucket:ListBucketMultipartUploads"),
]


@pytest.mark.parametrize(("operation", "of_s3", "of_obs"), PERMISSIONS)
def test_a_denied_request_names_the_permission_that_it_needs(operation: str, of_s3: str, of_obs: str) -> None:
    for location, permission in ((S3, of_s3), (OBS, of_obs)):
        shown = failure(translated(answer("AccessDenied", 403, operation)), location, "do that")
        assert str(shown).startswith(
            f"{location}: cannot do that: access denied: the credentials lack the permission {permission}"
        )
        assert not shown.transient


def test_a_denied_head_request_may_also_mean_wrong_credentials() -> None:
    shown = failure(translated(answer("403", 403, "HeadObject")))
    assert "access denied: the credentials are wrong, or lack the permission s3:GetObject (or s3:L" in str(shown)


def test_nothing_of_an_answer_is_repeated_but_its_code_and_message() -> None:
    refusal = answer(
        "SignatureDoesNotMatch",
        403,
        message="No match.\n See https://host/?X-Amz-Signature=5167 and "
        "AWSAccessKeyId=AKIASECRET&x-amz-security-token=7070",
        AWSAccessKeyId="AKIASECRET",
        StringToSign="AWS4-HMAC-SHA256 5167",
        SignatureProvided="5167",
    )
    for error in (refusal, translated(refusal)):
        shown = str(failure(error))
        assert "No match. See https://host/" in shown
        assert "AKIASECRET" not in shown
        assert "5167" not in shown
        assert "7070" not in shown


# ---- no answer ----


exceptions = botocore.exceptions
NO_ANSWER: list[tuple[Exception, str, bool]] = [
    (exceptions.EndpointConnectionError(endpoint_url=ENDPOINT), f"{SERVER} cannot be reached: the endpoint", True),
    (exceptions.ConnectTimeoutError(endpoint_url=ENDPOINT), f"{SERVER} did not answer in time", True),
    (exceptions.ReadTimeoutError(endpoint_url=ENDPOINT), f"{SERVER} did not answer in time", True),
    (AioReadTimeoutError(endpoint_url=ENDPOINT, error="slow"), f"{SERVER} did not answer in time", True),
    (exceptions.ConnectionClosedError(endpoint_url=ENDPOINT), f"{SERVER} closed the connection", True),
    (exceptions.ProxyConnectionError(proxy_url=ENDPOINT), "Failed to connect to proxy URL", True),
    (exceptions.SSLError(endpoint_url=SERVER, error="CERTIFICATE_VERIFY_FAILED"), "SSL validation failed", False),
    (exceptions.SSLError(endpoint_url=SERVER, error="EOF occurred"), "SSL validation failed", True),
    (exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2), "1 read, but total bytes", True),
    (exceptions.ResponseStreamingError(error="cut"), "An error occurred while reading", True),
    (exceptions.FlexibleChecksumError(error_msg="Expected crc32 1"), "Expected crc32", True),
    (botocore.parsers.ResponseParserError("not XML"), "not XML", True),
    (
        exceptions.NoCredentialsError(),
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or name",
        False,
    ),
    (exceptions.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"), "AWS_SECRET_ACC", False),
    (exceptions.CredentialRetrievalError(provider="sso", error_msg="gone"), "cannot be used: Error when", False),
    (exceptions.ProfileNotFound(profile="work"), "The config profile (work) could not be found", False),
    (exceptions.InvalidRegionError(region_name="?"), "region", False),
    (exceptions.ParamValidationError(report='Invalid bucket name "x"'), "'models' cannot be a bucket's name", False),
    (exceptions.ParamValidationError(report="Invalid length for Key"), "Invalid length for Key", False),
]


@pytest.mark.parametrize(("error", "reason", "transient"), NO_ANSWER, ids=lambda value: type(value).__name__)
def test_what_the_client_says_without_an_answer(error: Exception, reason: str, transient: bool) -> None:
    shown = failure(error)
    assert reason in str(shown)
    assert shown.transient is transient
    assert "hunter2" not in str(shown)
    assert "0123abcd" not in str(shown)


def test_without_credentials_for_obs_its_own_variables_are_named() -> None:
    shown = str(failure(exceptions.NoCredentialsError(), OBS))
    assert "set OBS_ACCESS_KEY_ID and OBS_SECRET_ACCESS_KEY" in shown
    assert "AWS" not in shown


def test_a_name_that_s3fs_complains_of_as_a_value_is_the_storages_failure() -> None:
    def listed() -> None:
        try:
            raise exceptions.ParamValidationError(report='Invalid bucket name "models"')
        except exceptions.ParamValidationError as error:
            raise ValueError(f"Failed to list path: {error}")  # noqa: B904 (as s3fs does)

    with pytest.raises(StorageError, match="'models' cannot be a bucket's name"), mapped_errors(S3, "list it"):
        listed()


def test_a_wrong_endpoint_that_only_the_client_noticed_is_not_repeated() -> None:
    location = Location(S3FileSystem(endpoint_url="user:hunter2@localhost:99999", key="k", secret="s"), "models/run")
    with pytest.raises(StorageError) as caught, mapped_errors(location, "look for it"):
        location.fs.info("models/run")
    assert str(caught.value) == "s3://models/run: cannot look for it: its endpoint must look like https://host:port"
    assert "hunter2" not in "".join(format_exception(caught.value))


def test_a_local_file_has_no_part_in_what_a_server_answered(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    error.__context__ = answer("SlowDown", 503)
    shown = failure(error, parse_url(str(tmp_path)), "write it")
    assert "No space left on device" in str(shown)
    assert not shown.transient

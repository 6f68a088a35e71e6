"""In-toto statements: what they are about, and what they say of it; bytes in, models out.

Sources: in-toto Attestation Framework v1, `statement`, `resource_descriptor` and `field_types`. Fields that are not
known are passed over, as the framework asks.
"""

import json
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_serializer
from pydantic.alias_generators import to_camel

from reshard.core.checkpoint.manifest import (
    MAX_STATEMENT_BYTES,
    FailFastTuple,
    Manifest,
    Sha256,
)
from reshard.core.errors import TargetError
from reshard.core.runtime.metadata import check_unique_keys, json_bytes, parsing, records_bytes
from reshard.core.runtime.wording import utf8_text
from reshard.core.text.secrets import scrubbed

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PARTLY: Final = "headers and selected values"

WITHHELD = (
    "The target is encrypted. This statement is readable without its key, so it names no parameter and holds no "
    "fingerprint."
)


class Part(BaseModel):
    """A part of a statement; its fields are spelled in lower camel case there."""

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, validate_by_name=True, serialize_by_alias=True, defer_build=True
    )


class Digests(Part):
    """The digests of a file."""

    sha256: Sha256


class Subject(Part):
    """A file that a statement is about: its path below the target."""

    name: str
    digest: Digests


class FileFacts(Part):
    """What is known of a file that a conversion read, besides its digest.

    Attributes:
        role: the option that named it or a place that it is in, such as `source` or `target_strategy`; `beside` if it
            was found outside of them.
        size_bytes: its size.
        version: differs whenever the content does (size and times, or size and etag); None if it is not known.
        read: `whole`, or `headers and selected values`.
    """

    role: str
    size_bytes: Annotated[int, Field(ge=0)] | None = None
    version: str | None = None
    read: Literal["whole", "headers and selected values"]


class Dependency(Part):
    """A file that a conversion read; without a digest unless all of its bytes were hashed."""

    name: str
    uri: str | None = None
    digest: Digests | None = None
    annotations: FileFacts

    @model_serializer(mode="wrap")
    def _without_what_is_unknown(self, handler: Any) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        facts = {name: value for name, value in fields["annotations"].items() if value is not None}
        return {name: value for name, value in fields.items() if value is not None} | {"annotations": facts}


class Statement(Part):
    """A statement about files."""

    type: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")] = STATEMENT_TYPE
    subject: FailFastTuple[Subject]
    predicate_type: str
    predicate: Any


AnyStatement = TypeVar("AnyStatement", bound=Statement)
_REPEATED = ("name", "digest", "sha256", "uri", "annotations", "role", "sizeBytes", "version", "read")


def subjects_of(manifest: Manifest) -> Iterator[Subject]:
    """Yield all files of a target with their digests, as its manifest lists them; not the records in `.reshard`.

    Raises:
        ValueError: the manifest has no digest of a file.
    """
    for file, sha256 in manifest.sha256.items():
        if sha256 is None:
            raise ValueError(f"{file} has no SHA-256")
        yield Subject(name=file, digest=Digests(sha256=sha256))


def dump_statement(statement: Statement) -> bytes:
    """Return a statement's bytes: the same for the same content."""
    document = statement.model_dump(mode="json")
    return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"


def parse_statement(data: bytes, kind: type[AnyStatement], origin: str) -> AnyStatement:
    """Parse a statement of a known kind; `origin` names it in messages.

    Raises:
        TargetError: it is malformed, too large, or of another kind.
        LimitError: parsing would exceed the memory limit.
    """
    if len(data) > MAX_STATEMENT_BYTES:
        raise TargetError(f"{origin}: has more than {MAX_STATEMENT_BYTES} bytes, the limit for a statement")
    try:
        with parsing(origin) as parse:
            parse.take(json_bytes(data) + records_bytes(data, _REPEATED))
            check_unique_keys(data)  # pydantic takes the last
            return kind.model_validate_json(data)
    except (ValueError, RecursionError) as error:
        raise TargetError(f"{origin}: not a readable statement: {first_problem(error)}") from error


def first_problem(error: Exception) -> str:
    """Format the first problem of a document that was refused."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if not isinstance(error, ValidationError):
        return str(error)
    detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, detail['loc'])) or 'the file'}: {detail['msg']}"


def uri_of(url: str) -> str:
    """Return the URI of a file or directory: a URL as it is, without secrets; a local path as a `file:` URI."""
    return PurePosixPath(url).as_uri() if url.startswith("/") else scrubbed(url)


def url_of(uri: str) -> str:
    """Return the URL, or the local path, that `uri_of` made a URI of."""
    return os.fsdecode(unquote_to_bytes(uri.removeprefix("file://"))) if uri.startswith("file:///") else uri


def timestamp(time: str) -> str:
    """Return an ISO 8601 time in UTC in the only form that statements have, with a Z."""
    return datetime.fromisoformat(time).strftime("%Y-%m-%dT%H:%M:%SZ")


def without_secrets(value: JsonValue) -> JsonValue:
    """Return a value of JSON without secrets of URLs, at any depth, and with nothing that UTF-8 cannot hold."""
    if isinstance(value, str):
        return utf8_text(scrubbed(value))
    if isinstance(value, dict):
        return {name: without_secrets(each) for name, each in value.items()}
    if isinstance(value, list):
        return [without_secrets(each) for each in value]
    return value


def relative_name(url: str, bases: Sequence[str]) -> str:
    """Return a file's path below the first of some places that it is in; else its name."""
    for base in bases:
        if base and url.startswith(f"{base.rstrip('/')}/"):
            return utf8_text(url.removeprefix(f"{base.rstrip('/')}/"))
    return utf8_text(url.rsplit("/", 1)[-1])

"""Texts that come from outside: options of a request, names of files, named storage options, servers' answers."""

import json
import os
from contextlib import suppress

from obstore.exceptions import GenericError

from reshard.core.changes.info_texts import parse_info
from reshard.core.errors import InputError
from reshard.core.files.file_names import group_prefixes, parse_name, parse_step
from reshard.core.options.fields import parse_ranks, parse_size
from reshard.core.options.validation import build_options
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.storage.named_options import resolve_storages
from reshard.core.storage.objects.answers import reason_of_answer
from reshard.core.storage.objects.s3 import S3Service, s3_settings
from reshard.core.text.secrets import scrubbed
from tests.fuzz.mutations import damaged_json
from tests.fuzz.parsers import Parser

_VARIABLE = "RESHARD_FUZZ_STORAGE"
_SECRET = "hunter2hunter2"


def _requests() -> list[bytes]:
    documents = [
        {"source": "s3://b/x", "target": "/y", "ranks": "0-3,7", "memory_limit": "512 MiB", "step": "10_5"},
        {"source": "/x", "target": "obs://b/y", "source_storage": "env:A", "fault_ranks": "1", "recover": True},
        {"source": "sftp://bob@host:80/x?a=1", "target": "/y", "ranks": "3"},
    ]
    return [json.dumps(document).encode() for document in documents]


def _parse_request(data: bytes) -> None:
    try:
        options = json.loads(data)
    except (ValueError, RecursionError):
        options = {"source": data.decode("latin-1"), "target": "/y"}
    options = {str(key): value for key, value in options.items()} if isinstance(options, dict) else {"source": options}
    for model in (ConversionRequest, LatestConversionRequest):
        try:
            build_options(model, **options)
        except InputError as error:
            assert str(error)
    request = build_request(**options)
    request.chosen_ranks(range(16))


def _options_of_numbers() -> list[bytes]:
    return [
        b"1.5 GiB",
        b"epoch=5",
        b"a=-1e3",
        b"b=text:1",
        b"0-3, 7",
        b"10_5_breakpoint",
        b"checkpoint_{rank}-10_5.ckpt",
        b"a_1-9_5_breakpoint.safetensors",
    ]


def _parse_text(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    parse_name(text)
    parse_step(text)
    for parse in (parse_size, parse_ranks, lambda text: parse_info([text])):
        with suppress(ValueError):  # pydantic makes an error of it that names the field
            parse(text)
    parts = [part[:255] for part in text.split("/") if part][:50]  # no file's name is longer
    group_prefixes({rank: {part} for rank, part in enumerate(parts)})


def _storage_options() -> list[bytes]:
    return [
        json.dumps({"key": "k", "secret": _SECRET, "endpoint_url": "http://127.0.0.1:1"}).encode(),
        json.dumps(
            {"client_kwargs": {"region_name": "r"}, "config_kwargs": {"s3": {"addressing_style": "path"}}}
        ).encode(),
    ]


def _parse_storage_options(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape").replace("\0", "")
    os.environ[_VARIABLE] = text
    try:
        resolve_storages([("s3://bucket/x", f"env:{_VARIABLE}")])
    except InputError as error:
        assert _SECRET not in str(error)
        raise


def _answers() -> list[bytes]:
    texts = [
        "<Error><Code>NoSuchKey</Code><Message>It is not there</Message><Key>a</Key></Error>",
        "<Error><Code>AuthorizationHeaderMalformed</Code><Message>x</Message><Region>eu</Region></Error>",
        "<Error><Code>404</Code><Endpoint>e</Endpoint></Error>",
        f"<Error><Code>SignatureDoesNotMatch</Code><Message>AWSAccessKeyId=AK&amp;signature={_SECRET}</Message></Error>",
    ]
    return [f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode() for text in texts]


_ACCESS = {"endpoint_url": "http://127.0.0.1:1", "key": "k", "secret": "s"}
_STATUSES = (301, 400, 403, 404, 416, 429, 500, 503)


def _parse_answer(data: bytes) -> None:
    status = _STATUSES[len(data) % len(_STATUSES)]
    request = f"Error performing {'GET' if len(data) % 2 else 'PUT'} http://127.0.0.1:1/bucket/key in 1.5ms"
    body = data.decode("utf-8", "replace")
    error = GenericError(f"Generic S3 error: {request} - Server returned non-2xx status code: {status} No: {body}")
    reason = reason_of_answer(error, S3Service(s3_settings(_ACCESS)), "bucket")
    assert reason is not None
    assert len(reason.text) < 2000


def _scrub(data: bytes) -> None:
    text = data.decode("latin-1")
    scrubbed(text)


def _scrubbed_texts() -> list[bytes]:
    return [
        b"https://bob:hunter2@proxy:80/ failed",
        b"?X-Amz-Signature=abc&x=1 AWSAccessKeyId>ab<session_token=1",
        b"://:",
    ]


_OF_A_MILLION_RANKS = 1 << 24  # which it takes eight letters to ask for

REQUEST = Parser("request", _requests, _parse_request, (damaged_json,), memory_factor=_OF_A_MILLION_RANKS)
TEXT = Parser("text", _options_of_numbers, _parse_text, memory_factor=_OF_A_MILLION_RANKS)
STORAGE_OPTIONS = Parser("storage-options", _storage_options, _parse_storage_options, (damaged_json,))
ANSWER = Parser("answer", _answers, _parse_answer)
SCRUBBED = Parser("scrubbed", _scrubbed_texts, _scrub)

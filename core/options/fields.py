"""Types that fields of requests share: URLs without credentials, names of keys and storages, sizes, ranks, patterns.

Each carries its exact check. Forms that know a field only by its JSON schema, such as Prefect's, get a pattern that
refuses what is plainly wrong, short rather than exact, and in words what is `expected`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sized
from fractions import Fraction
from itertools import islice
from operator import itemgetter
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from reshard.core.options.written import PATH, TEXTS, is_whole, number_as_text, plain, text_by
from reshard.core.runtime.bandwidth import parse_bandwidth
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.runtime.named_values import KEY_ADVICE, NAME_ADVICE, NAME_PATTERN, is_name
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import ranks_text
from reshard.core.text.options import option, spelled
from reshard.core.text.secrets import ADVICE, carries_credentials

_BINARY_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_DECIMAL_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_UNITS = {"": 1, **_DECIMAL_UNITS, **{unit.upper(): size_bytes for unit, size_bytes in _BINARY_UNITS.items()}}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")
_RANGE = re.compile(r"^\s*(\d+)\s*(?:-\s*(\d+)\s*)?$")
_STEP = re.compile(r"([0-9]+(_[0-9]+(_breakpoint)?)?)?")
_DASK_SCHEDULER = re.compile(r"^(local|(tcp|tls|ucx)://[^/@\s]+:\d+)?$")
SHARED_PARAMETERS = re.compile(r"^(first|fail|[0-9]{1,9})$")
SMALLEST_MEMORY_LIMIT_BYTES = 16 * 2**20
_HIGHEST_RANK = 1_000_000
_SIZE_ADVICE = "must be a size such as 512MiB or 2GiB"
_RANKS_ADVICE = "must be ranks such as 0-3,7"
_STEP_ADVICE = "must be EPOCH_STEP, such as 10_5, or EPOCH_STEP_breakpoint, or an iteration, such as 40"
_SHARED_ADVICE = "must be first, fail, or the number of a pipeline stage"

_NO_PASSWORD = r"(?!.*://[^/@]*(:(?!\d+[/?#])|%3[Aa])[^@]*@)(?!.*(https?|HTTPS?|s3a?|obs|gs)://[^/?#]+@)"
_SECRET_FIELDS = (
    r"[\w.-]*([Tt]oken|TOKEN|[Ss]ignature|[Ss]ecret|[Pp]assword|[Cc]redential|([Aa]pi|[Aa]ccess|[Ss]ecret)[-_]?[Kk]ey)"
)


class Metavar(Record):
    """What help shows in place of an option's value; in the annotation of a field, or of its type."""

    text: str


URL_METAVAR, STEP_METAVAR, NAME_METAVAR = Metavar("URL"), Metavar("E_S"), Metavar("NAME")
SIZE_METAVAR = Metavar("SIZE")


def metavar_of(field: FieldInfo) -> str | None:
    """What help shows in place of a field's value; None: the name of its type."""
    return next((each.text for each in reversed(field.metadata) if isinstance(each, Metavar)), None)


def pattern_of(pattern: str, expected: str) -> JsonDict:
    """Schema of a text for forms: a pattern, and in words what it expects."""
    return {"pattern": pattern, "expected": expected}


# values that their schema refuses are not even stored
NO_CREDENTIALS = rf"{_NO_PASSWORD}(?!.*://.*[?&;#]({_SECRET_FIELDS}|([\w.-]*[-_.])?[Ss]ig)=)"
WITHOUT_CREDENTIALS = pattern_of(f"^{NO_CREDENTIALS}", "a path or a URL, without a password, token or signature")
STORAGE_NAME = pattern_of(f"^{NAME_PATTERN}?$", "env:NAME, file:PATH or block:NAME, which name where it is kept")
_STEP_PATTERN = pattern_of(
    r"^([0-9]+(_[0-9]+(_breakpoint)?)?)?$", "EPOCH_STEP, such as 10_5, or EPOCH_STEP_breakpoint, or an iteration"
)
_SIZE_PATTERN = pattern_of(r"^ *[0-9.]+ *[KkMmGgTt]?[Ii]?[Bb]? *$", "a size such as 512MiB or 2GiB")
_BANDWIDTH_PATTERN = pattern_of(
    r"^ *(([0-9.]+[BbKkMmGgTt]?([Ii]?[Bb])?|[Oo][Ff][Ff])(:([0-9.]+[BbKkMmGgTt]?([Ii]?[Bb])?|[Oo][Ff][Ff]))?)? *$",
    "bytes per second such as 10M, off, or two of them for sending and receiving, 1M:10M",
)
_RANKS_PATTERN = pattern_of(r"^[0-9, -]*$", "ranks such as 0-3,7")
_PREFIX_PATTERN = pattern_of(r"^(?!\.)(?!.*\.\.)[^/\\]*$", "a plain name: no '/', no '..', no dot in front")


def check_no_credentials(url: str) -> str:
    """Return a URL unchanged; requests with passwords or tokens would be stored and logged."""
    if carries_credentials(url):
        raise ValueError(ADVICE)
    return url


def check_prefix(prefix: str) -> str:
    """Return the prefix of file names; raise ValueError if it leads out of the rank's directory, or names no file."""
    if "/" in prefix or "\\" in prefix or prefix.startswith(".") or ".." in prefix or "\0" in prefix:
        raise ValueError("must be a plain name: no '/', no '..', no dot in front")
    return prefix


def check_key_name(name: str) -> str:
    """Return the name of a key, or an empty one; raise ValueError for what is not a name, and may be the key."""
    if name and not is_name(name):
        raise ValueError(KEY_ADVICE)
    return name


def _check_signing_key_name(name: str) -> str:
    if name.startswith("pkcs11:"):
        raise ValueError("PKCS#11 tokens are not supported: name a key in PEM, env:NAME, file:PATH or block:NAME")
    return check_key_name(name)


def check_mode(mode: EncryptionMode, key: str | None, key_field: str) -> EncryptionMode:
    """Return an encryption mode unchanged; `key` is the name of its key, None if that is wrong and reported already.

    Raises:
        ValueError: there is no key, so that nothing would be encrypted, or decrypted, in that mode.
    """
    if key == "" and mode is not EncryptionMode.AES_GCM:
        raise ValueError(spelled(f"needs a key: name it with {option(key_field)}"))
    return mode


def with_key(key_field: str) -> AfterValidator:
    """The check of an encryption mode whose key is named in another field."""

    def check(mode: EncryptionMode, info: ValidationInfo) -> EncryptionMode:
        return check_mode(mode, info.data.get(key_field), key_field)

    return AfterValidator(check)


def parse_size(text: str) -> int:
    """Parse a size such as "2GiB" or "500 MB" to bytes; raise ValueError if it is none."""
    match = _SIZE.match(text)
    unit = match and _UNITS.get(match[2].upper())
    if not match or unit is None:
        raise ValueError(_SIZE_ADVICE)
    return int(Fraction(match[1]) * unit)


def _size_as_text(value: Any) -> Any:
    """Format a number of bytes in the largest unit that says it exactly."""
    value = plain(value)
    if not is_whole(value):
        return value
    units = sorted((_DECIMAL_UNITS | _BINARY_UNITS).items(), key=itemgetter(1), reverse=True)
    return next(f"{value // size_bytes}{unit}" for unit, size_bytes in units if value % size_bytes == 0)


def parse_ranks(text: str) -> tuple[int, ...]:
    """Parse a list of ranks such as "0-3,7"; ascending, each once."""
    ranges: set[tuple[int, int]] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.match(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= _HIGHEST_RANK:
            raise ValueError(_RANKS_ADVICE)
        ranges.add((first, last))
    if text.strip() and not ranges:
        raise ValueError(_RANKS_ADVICE)
    ranks: list[int] = []
    for first, last in sorted(ranges):  # which may overlap: no rank is counted twice
        ranks += range(max(first, ranks[-1] + 1 if ranks else 0), last + 1)
    return tuple(ranks)


def _ranks_as_text(value: Any) -> Any:
    """Format one rank, or several in any collection."""
    value = plain(value)
    if is_whole(value):
        value = [value]
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return value
    if isinstance(value, Sized) and len(value) > _HIGHEST_RANK + 1:
        raise ValueError(_RANKS_ADVICE)
    texts = [number_as_text(each) for each in islice(value, _HIGHEST_RANK + 2)]  # one more than there can be
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(_RANKS_ADVICE)
    return ranks_text(parse_ranks(",".join(texts)))


def _some_ranks_as_text(value: Any) -> Any:
    text = _ranks_as_text(value)
    if text == "" and not isinstance(value, str):
        raise ValueError("lists no ranks; leave it out to take all of them")
    return text


def _check_has_unit(value: Any) -> Any:
    if is_whole(plain(value)):
        raise ValueError("must be a text with its unit, such as 10M: a bare number is KiB for rclone, not bytes")
    return value


SIZE = text_by(_size_as_text, _SIZE_ADVICE, "Size")


def _check_storage_name(name: str) -> str:
    if name and not is_name(name):
        raise ValueError(NAME_ADVICE)
    return name


def matching(expression: re.Pattern[str], advice: str) -> AfterValidator:
    """Check a whole text against a regular expression; `advice` says what it must be."""

    def check(text: str) -> str:
        if not expression.fullmatch(text):
            raise ValueError(advice)
        return text

    return AfterValidator(check)


def _check_patterns(patterns: list[str]) -> list[str]:
    if "" in patterns:
        raise ValueError("a pattern is empty")
    return patterns


def _size_from(least_bytes: int, least: str) -> AfterValidator:
    def check(text: str) -> str:
        if parse_size(text) < least_bytes:
            raise ValueError(f"must be at least {least}")
        return text

    return AfterValidator(check)


def parsed_by(parse: Callable[[Any], object]) -> AfterValidator:
    """The check that `parse` accepts a value, which stays as it is."""

    def check(value: Any) -> Any:
        parse(value)
        return value

    return AfterValidator(check)


def each_parsed_by(parse: Callable[[str], object]) -> AfterValidator:
    """Check that `parse` accepts each text of a list, which stays as it is."""

    def parse_all(texts: Iterable[str]) -> None:
        for text in texts:
            parse(text)

    return parsed_by(parse_all)


Url = Annotated[
    str, Field(json_schema_extra=WITHOUT_CREDENTIALS), PATH, AfterValidator(check_no_credentials), URL_METAVAR
]
RequiredUrl = Annotated[
    str, Field(min_length=1, json_schema_extra=WITHOUT_CREDENTIALS), PATH, AfterValidator(check_no_credentials)
]
Step = Annotated[
    str,
    Field(json_schema_extra=_STEP_PATTERN),
    text_by(number_as_text, _STEP_ADVICE, "Number"),
    matching(_STEP, _STEP_ADVICE),
    STEP_METAVAR,
]
Ranks = Annotated[
    str,
    Field(json_schema_extra=_RANKS_PATTERN),
    text_by(_some_ranks_as_text, _RANKS_ADVICE, "Ranks"),
    parsed_by(parse_ranks),
    Metavar("0-3,7"),
]
"""Of all ranks those that are meant; empty: all."""
FaultyRanks = Annotated[
    str,
    Field(json_schema_extra=_RANKS_PATTERN),
    text_by(_ranks_as_text, _RANKS_ADVICE, "Ranks"),
    parsed_by(parse_ranks),
    Metavar("3,7"),
]
"""Empty: none."""
Prefix = Annotated[str, Field(json_schema_extra=_PREFIX_PATTERN), AfterValidator(check_prefix)]
MemoryLimit = Annotated[
    str,
    Field(json_schema_extra=_SIZE_PATTERN),
    SIZE,
    _size_from(SMALLEST_MEMORY_LIMIT_BYTES, "16MiB"),
    SIZE_METAVAR,
]
BandwidthLimit = Annotated[
    str,
    Field(json_schema_extra=_BANDWIDTH_PATTERN),
    BeforeValidator(_check_has_unit),
    parsed_by(parse_bandwidth),
    Metavar("RATE[:RATE]"),
]
ShardSize = Annotated[str, Field(json_schema_extra=_SIZE_PATTERN), SIZE, _size_from(1, "1 byte"), SIZE_METAVAR]
Patterns = Annotated[list[str], TEXTS, AfterValidator(_check_patterns), Metavar("PATTERN")]
SharedParameters = Annotated[
    str,
    Field(json_schema_extra=pattern_of(SHARED_PARAMETERS.pattern, "first, fail, or the number of a pipeline stage")),
    text_by(number_as_text, _SHARED_ADVICE, "Number"),
    matching(SHARED_PARAMETERS, _SHARED_ADVICE),
    Metavar("first|fail|STAGE"),
]
DaskScheduler = Annotated[
    str,
    Field(json_schema_extra=pattern_of(_DASK_SCHEDULER.pattern, "tcp://HOST:PORT of a Dask scheduler, or local")),
    matching(_DASK_SCHEDULER, "must be the address of a Dask scheduler, such as tcp://10.0.0.5:8786, or local"),
    Metavar("ADDRESS"),
]

StorageName = Annotated[
    str,
    Field(
        description="Reference to credentials: env:NAME, file:PATH or block:NAME, whose value is a JSON object of "
        "fsspec storage options. Empty: taken from the environment.",
        json_schema_extra=STORAGE_NAME,
    ),
    AfterValidator(_check_storage_name),
    NAME_METAVAR,
]
"""The storage of a request about one storage; others give it another title."""

_KEY_ADVICE = "env:NAME, file:PATH or block:NAME. The key is the value in UTF-8, unless it begins with hex: or base64:."
KEY_DESCRIPTION = f"Reference to the key of an encrypted checkpoint: {_KEY_ADVICE} Empty: it is not encrypted."
SOURCE_KEY_DESCRIPTION = (
    f"Reference to the key of an encrypted source: {_KEY_ADVICE} Empty: the source is not encrypted."
)
TARGET_KEY_DESCRIPTION = (
    f"Reference to the key that encrypts the target's files and their records: {_KEY_ADVICE} Empty: the target is not "
    "encrypted."
)
KeyName = Annotated[
    str,
    Field(title="Decryption key", description=KEY_DESCRIPTION, json_schema_extra=STORAGE_NAME),
    AfterValidator(check_key_name),
    NAME_METAVAR,
]
"""The key of a request about one checkpoint, which may be encrypted; others give it another title."""

SigningKeyName = Annotated[
    str, Field(json_schema_extra=STORAGE_NAME), AfterValidator(_check_signing_key_name), NAME_METAVAR
]
"""The private key that signs, or its passphrase."""

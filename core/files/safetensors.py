"""`.safetensors` files: a u64 header length, a JSON header, then the tensors' bytes without gaps.

MindSpore uses the header's string-to-string `__metadata__` for: `format` ("ms"), `remove_redundancy` ("True": only one
rank saved each slice that ranks share), `crc_num` (a CRC-32 in decimal) and `{name}: "Int4"` for an I8 tensor of packed
4-bit integers. MindSpore cannot store text in this format; reshard stores it in the metadata as `text:{name}`, which
MindSpore and the safetensors library ignore.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

from reshard.core.errors import CheckpointError
from reshard.core.files.crc32 import combine_crc32, crc32, crc32_of_zeros
from reshard.core.files.model import (
    MAX_TEXT_BYTES,
    MINDSPORE,
    CheckpointFormat,
    Content,
    FileIndex,
    FilePlan,
    OutputEntry,
    TensorEntry,
    text_entry,
)
from reshard.core.runtime.metadata import DuplicateKeyError, Parse, json_bytes, parsing, refuse_constant, unique_keys
from reshard.core.runtime.records import Record
from reshard.core.storage.reading import SourceFile, read_bytes
from reshard.core.tensor.dtypes import INT4, DType, dtype_from_safetensors, foreign_dtype
from reshard.core.tensor.slices import TOO_LARGE, Extent, is_countable

MAX_HEADER_BYTES = 100_000_000  # the safetensors library's and MindSpore's own limit

_LENGTH_BYTES = 8
_ALIGNMENT_BYTES = 8
_METADATA = "__metadata__"
_FORMAT, _REDUNDANCY, _CRC = "format", "remove_redundancy", "crc_num"
_MAX_AXES = 64  # numpy's limit
_COUNT_LIMIT = 1 << 64  # the format's own numbers
_RESERVED_NAMES = frozenset({_METADATA, _FORMAT, _REDUNDANCY, _CRC})
_TEXT_PREFIX = "text:"
_CRC_ROOM = "0" * 10
"""Its decimal digits; spaces, which JSON allows, follow a shorter number."""


class _Header(Record):
    """`tensors`: name -> JSON description as in the file; the data begins at byte `data_offset`."""

    tensors: Mapping[str, Any]
    metadata: Mapping[str, str]
    data_offset: int


def read_index(file: SourceFile) -> FileIndex:
    """Index a file from its header alone: tensors in the order of their bytes, then texts."""
    with parsing(file.location) as parse:
        return _index(file, _read_header(file, parse))


def read_metadata(file: SourceFile) -> Mapping[str, str]:
    """Return the header's metadata, which frameworks use each in their own way."""
    with parsing(file.location) as parse:
        return _read_header(file, parse).metadata


def stored_crc(file: SourceFile) -> int | None:
    """Return the CRC-32 in a file's header; None if there is none."""
    with parsing(file.location) as parse:
        return _stored_crc(_read_header(file, parse))


def is_integer_scalar(entry: TensorEntry | OutputEntry) -> bool:
    """True if MindSpore's CRC covers the entry's value rather than its bytes."""
    return entry.shape == () and entry.dtype.name.lstrip("U").startswith("Int")


def crc_of_tensors(
    tensors: Iterable[TensorEntry | OutputEntry], crcs: Mapping[str, int], scalars: Mapping[str, bytes]
) -> int:
    """Combine the CRC-32 of a file from those of its tensors; `scalars` are the bytes of integer scalars.

    It covers, sorted by name, each name in UTF-8 and the tensor's bytes. MindSpore counts a 0-d integer of value v as v
    zero bytes instead, and cannot give a file with a negative one a CRC: here its bytes count.
    """
    joined = 0
    for entry in sorted(tensors, key=lambda entry: entry.name):
        crc, length = crcs.get(entry.name, 0), entry.size_bytes
        if is_integer_scalar(entry):
            value = int.from_bytes(scalars[entry.name], "little", signed=not entry.dtype.name.startswith("U"))
            if value >= 0:
                crc, length = crc32_of_zeros(value), value
        joined = combine_crc32(crc32(entry.name.encode(), joined), crc, length)
    return joined


def crc_field(crc: int) -> bytes:
    """Encode a CRC-32 for the place reserved in the header."""
    return f'"{crc}"'.encode().ljust(len(_CRC_ROOM) + 2)


def plan_file(
    entries: Sequence[OutputEntry],
    *,
    redundancy_removed: bool | None = False,
    with_crc: bool = False,
    framework: str = MINDSPORE,
) -> FilePlan:
    """Lay out the file with `entries`, larger item sizes first so that every tensor is aligned.

    The room for a CRC is near the header's beginning and fits the largest one.
    """
    tensors = [entry for entry in entries if entry.text is None]
    tensors.sort(key=lambda entry: -entry.dtype.itemsize)
    room = {_CRC: _CRC_ROOM} if with_crc else {}
    header: dict[str, Any] = {_METADATA: room | _planned_metadata(entries, redundancy_removed, framework)}
    contents: list[Content] = []
    end = 0
    for entry in tensors:
        start, end = end, end + entry.size_bytes
        header[entry.name] = {
            "dtype": _checked_tag(entry),
            "shape": list(entry.shape),
            "data_offsets": [start, end],
        }
        if end > start:
            contents.append(Content(entry.name, 0, end - start))
    encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    crc_offset = _LENGTH_BYTES + encoded.index(f'"{_CRC}":'.encode()) + len(_CRC) + 3 if with_crc else None
    encoded += b" " * (-len(encoded) % _ALIGNMENT_BYTES)
    if len(encoded) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"too many parameters for a .safetensors file: its header would take {len(encoded)} bytes, "
            f"readers allow {MAX_HEADER_BYTES}; write .ckpt"
        )
    head = len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded
    return FilePlan((head, *contents), len(head) + end, crc_offset)


def _index(file: SourceFile, header: _Header) -> FileIndex:
    try:
        tensors = sorted(map(_tensor, repeat(header), header.tensors), key=_extent_range)
        _check_gapless(tensors, header.data_offset, file.size_bytes)
        entries = {entry.name: entry for entry in tensors}
        for key, text in header.metadata.items():
            if key.startswith(_TEXT_PREFIX) and key not in entries:
                entry = _text(key.removeprefix(_TEXT_PREFIX), text)
                if entry.name in entries:
                    raise CheckpointError(f"parameter {entry.name!r} is both a tensor and a text")
                entries[entry.name] = entry
        return FileIndex(
            CheckpointFormat.SAFETENSORS,
            file.size_bytes,
            entries,
            has_crc=_stored_crc(header) is not None,
            redundancy_removed=_redundancy_removed(header),
        )
    except CheckpointError as error:
        raise CheckpointError(f"{file.location}: {error}") from None


def _read_header(file: SourceFile, parse: Parse) -> _Header:
    if file.size_bytes == 0:
        raise CheckpointError(f"{file.location}: the file is empty")
    if file.size_bytes < _LENGTH_BYTES:
        raise CheckpointError(f"{file.location}: has {file.size_bytes} bytes, too few for a .safetensors file")
    length = int.from_bytes(read_bytes(file, 0, _LENGTH_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{file.location}: at byte 0: a {length:,}-byte header, larger than {MAX_HEADER_BYTES:,} bytes: "
            "not a .safetensors file, or damaged"
        )
    if _LENGTH_BYTES + length > file.size_bytes:
        raise CheckpointError(
            f"{file.location}: at byte 0: the file, {file.size_bytes:,} bytes, ends in the middle of a "
            f"{length:,}-byte header: truncated or damaged"
        )
    try:
        parse.take(length)
        encoded = read_bytes(file, _LENGTH_BYTES, length)
        parse.take(json_bytes(encoded))
        description = _parse_header(encoded)
        metadata = _checked_metadata(description.pop(_METADATA, {}))
    except CheckpointError as error:
        raise CheckpointError(f"{file.location}: {error}") from None
    return _Header(description, metadata, _LENGTH_BYTES + length)


def _parse_header(encoded: bytes) -> dict[str, Any]:
    try:
        # only JSON's escapes can spell lone surrogates, which are not valid text
        hook = _unique_texts if b"\\u" in encoded else unique_keys
        description = json.loads(encoded.decode(), object_pairs_hook=hook, parse_constant=refuse_constant)
    except DuplicateKeyError as error:
        raise CheckpointError(f"the header has {error.key!r} twice: damaged") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"the header is not valid JSON ({error}): not a .safetensors file, or damaged") from None
    if not isinstance(description, dict):
        raise CheckpointError("the header is not a JSON object: not a .safetensors file, or damaged")
    return description


def _unique_texts(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = unique_keys(pairs)
    # a lone surrogate raises a ValueError
    "".join([*unique, *(value for value in unique.values() if isinstance(value, str))]).encode()
    return unique


def _checked_metadata(metadata: object) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{_METADATA} does not map names to strings: damaged")
    return metadata


def _tensor(header: _Header, name: str) -> TensorEntry:
    description = header.tensors[name]
    if not isinstance(description, dict) or description.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"parameter {name!r} is not described by dtype, shape and data_offsets: damaged")
    tag, shape, offsets = description["dtype"], description["shape"], description["data_offsets"]
    if not isinstance(tag, str):
        raise CheckpointError(f"parameter {name!r}: its dtype {tag!r} is not a string: damaged")
    if not _is_counts(shape) or len(shape) > _MAX_AXES:
        raise CheckpointError(
            f"parameter {name!r}: its shape {_shortened(shape)} is not a list of at most {_MAX_AXES} counts: damaged"
        )
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(
            f"parameter {name!r}: data_offsets {_shortened(offsets)} are not a start and a stop: damaged"
        )
    start, stop = offsets
    dtype = _dtype(header, name, tag, math.prod(shape), stop - start)
    entry = TensorEntry(name, dtype, tuple(shape), (Extent(header.data_offset + start, stop - start),))
    if stop - start != entry.size_bytes:
        raise CheckpointError(
            f"parameter {name!r}: data_offsets {offsets} hold {stop - start} bytes, "
            f"but {dtype} {shape} takes {entry.size_bytes}: damaged"
        )
    if not is_countable(shape, dtype.itemsize):
        raise CheckpointError(f"parameter {name!r}: its shape {_shortened(shape)} is {TOO_LARGE} as {dtype}: damaged")
    return entry


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _is_counts(values: object) -> bool:
    # bool is an int to isinstance; numbers of thousands of digits cannot even be formatted
    return isinstance(values, list) and all(type(value) is int and 0 <= value < _COUNT_LIMIT for value in values)


def _dtype(header: _Header, name: str, tag: str, elements: int, size_bytes: int) -> DType:
    mark = None if name in _RESERVED_NAMES else header.metadata.get(name)
    try:
        if mark is None:
            return dtype_from_safetensors(tag, elements, size_bytes)
        if (mark, tag) == (INT4.name, INT4.safetensors_tag):
            return INT4
        return foreign_dtype(f"{tag}:{mark}", elements, size_bytes)
    except CheckpointError as error:
        raise CheckpointError(f"parameter {name!r}: {error}") from None


def _extent_range(entry: TensorEntry) -> tuple[int, int]:
    (extent,) = entry.extents
    return extent.offset, extent.length


def _check_gapless(tensors: Sequence[TensorEntry], data_offset: int, file_bytes: int) -> None:
    end = data_offset
    for entry in tensors:
        offset, length = _extent_range(entry)
        if offset != end:
            what = "bytes that belong to no parameter lie before it" if offset > end else "it overlaps the one before"
            raise CheckpointError(f"at byte {min(offset, end)}: parameter {entry.name!r}: {what}: damaged")
        end += length
        if end > file_bytes:
            raise CheckpointError(
                f"at byte {offset}: parameter {entry.name!r}: its {length} bytes end at {end}, "
                f"after the file's end at {file_bytes}: truncated or damaged"
            )
    if end < file_bytes:
        raise CheckpointError(f"at byte {end}: {file_bytes - end} bytes that belong to no parameter: damaged")


def _text(name: str, text: str) -> TensorEntry:
    entry = text_entry(name, text)
    if entry.size_bytes > MAX_TEXT_BYTES:
        raise CheckpointError(f"text entry {name!r} has {entry.size_bytes} bytes, more than {MAX_TEXT_BYTES} (1 MiB)")
    return entry


def _stored_crc(header: _Header) -> int | None:
    crc = header.metadata.get(_CRC)
    if crc is None:
        return None
    if not (crc.isascii() and crc.isdigit() and len(crc) <= 10):
        raise CheckpointError(f"{_METADATA} gives {_CRC} {crc!r}, which is not a CRC-32: damaged")
    return int(crc)


def _redundancy_removed(header: _Header) -> bool:
    value = header.metadata.get(_REDUNDANCY, "False")
    if value not in ("True", "False"):
        raise CheckpointError(f"{_METADATA} gives {_REDUNDANCY} {value!r}, which is neither True nor False: damaged")
    return value == "True"


def _checked_tag(entry: OutputEntry) -> str:
    name, tag = entry.name, entry.dtype.safetensors_tag
    if tag is None:
        advice = "" if entry.dtype.is_foreign else "; write .ckpt"
        raise CheckpointError(f"parameter {name!r} is a {entry.dtype}, which .safetensors cannot hold{advice}")
    if name in _RESERVED_NAMES or name.startswith(_TEXT_PREFIX):
        raise CheckpointError(
            f"parameter {name!r}: .safetensors files use this name for something else in their header; choose "
            "another name, or write .ckpt"
        )
    return tag


def _planned_metadata(
    entries: Sequence[OutputEntry], redundancy_removed: bool | None, framework: str
) -> dict[str, str]:
    metadata = {_FORMAT: framework}
    if redundancy_removed is not None:
        metadata[_REDUNDANCY] = str(redundancy_removed)
    for entry in entries:
        if entry.dtype is INT4:
            metadata[entry.name] = INT4.name
        elif entry.text is not None:
            metadata[_TEXT_PREFIX + entry.name] = _checked_text(entry.name, entry.text)
    return metadata


def _checked_text(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CheckpointError(
            f"text entry {name!r} has characters that UTF-8, and so .safetensors, cannot hold; write .ckpt"
        ) from None
    return text

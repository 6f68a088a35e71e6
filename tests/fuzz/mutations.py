"""Damaging files: at random, or along their structure, so that most of what is made still looks like one.

A mutator takes a source of randomness and a file's bytes, and gives other bytes; the same randomness, the same bytes.
"""

import gzip
import io
import json
import pickletools
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from reshard.core.files.wire import build_varint

Mutator = Callable[[Random, bytes], bytes]

LARGEST_BYTES = 1 << 20
"""What is made is cut off there."""

_NUMBERS = [0, 1, 2, 7, 63, 64, 65, 127, 128, 255, 256, 4095, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32]
_NUMBERS += [2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
_MOST_EDITS = 4
_MOST_REPEATS = 4000
_DEEP = (30, 200, 5000, 100_000)


def damaged(random: Random, data: bytes, others: Sequence[bytes], structural: Sequence[Mutator]) -> bytes:
    """One file made of another: a few edits, structural ones first, for they cannot follow the rest."""
    for _ in range(random.randrange(_MOST_EDITS)):
        if structural:
            data = random.choice(structural)(random, data)
    for _ in range(random.randrange(2 if structural else _MOST_EDITS)):
        data = random.choice(_BYTES)(random, data)
    if random.random() < 0.05:
        data = _spliced(random, data, random.choice(others))
    return data[:LARGEST_BYTES]


def _place(random: Random, data: bytes) -> tuple[int, int]:
    """A short range in the data, more often a short one."""
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.choice((1, 1, 2, 4, 8, random.randrange(1, 300))))


def _spliced(random: Random, data: bytes, other: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _with_bit_flipped(random: Random, data: bytes) -> bytes:
    place = random.randrange(max(1, len(data)))
    return data[:place] + bytes(byte ^ 1 << random.randrange(8) for byte in data[place : place + 1]) + data[place + 1 :]


def _without_some(random: Random, data: bytes) -> bytes:
    start, stop = _place(random, data)
    return data[:start] + data[stop:]


def _cut_off(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _with_noise(random: Random, data: bytes) -> bytes:
    start, stop = _place(random, data)
    return data[:start] + random.randbytes(stop - start) + data[random.choice((start, stop)) :]


def _with_number(random: Random, data: bytes) -> bytes:
    number = random.choice(_NUMBERS)
    encoded = random.choice(
        (build_varint(number), number.to_bytes(8, "little"), (number % 2**32).to_bytes(4, "little"), b"%d" % number)
    )
    start = random.choice((0, random.randrange(len(data) + 1)))
    return data[:start] + encoded + data[random.choice((start, start + len(encoded))) :]


def _with_some_repeated(random: Random, data: bytes) -> bytes:
    start, stop = _place(random, data)
    times = random.choice((2, 2, 3, 20, _MOST_REPEATS if random.random() < 0.1 else 2))
    return data[:start] + data[start:stop] * times + data[stop:]


def _with_some_moved(random: Random, data: bytes) -> bytes:
    start, stop = _place(random, data)
    to = random.randrange(len(data) + 1)
    return data[:to] + data[start:stop] + data[to + random.choice((0, stop - start)) :]


_BYTES: tuple[Mutator, ...] = (
    _with_bit_flipped,
    _without_some,
    _cut_off,
    _with_noise,
    _with_number,
    _with_some_repeated,
    _with_some_moved,
)


# ---- JSON


def damaged_json(random: Random, data: bytes) -> bytes:
    """JSON with one value replaced, renamed, removed, repeated, or given twice; other data stay as they are."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    return _written(random, _edited(random, document))


def _written(random: Random, document: object) -> bytes:
    text = json.dumps(document, ensure_ascii=random.random() < 0.5, separators=(",", ":"))
    for mark, nested in _NESTED.items():
        text = text.replace(f'"{mark}"', nested)
    return text.encode("utf-8", "surrogatepass")


def _deep_marks() -> dict[str, str]:
    lists = {f"deep list {depth}": "[" * depth + "]" * depth for depth in _DEEP}
    objects = {f"deep object {depth}": '{"a":' * depth + "1" + "}" * depth for depth in _DEEP}
    numbers = {f"digits {digits}": "9" * digits for digits in (20, 400, 4299, 4301, 20_000)}
    return lists | objects | numbers | {"exponent": "1e999999", "minus": "-0", "not a number": "NaN"}


_NESTED = _deep_marks()
"""Values that json.dumps would not write, by their placeholders."""

_VALUES: list[Any] = [None, True, False, "", "a", "0", "\ud800", "é" * 50, "x" * 70_000, [], {}, [[]], [{}], {"": ""}]
_VALUES += [*_NUMBERS, *(-number for number in _NUMBERS), 0.5, 1e308, *_NESTED, [0] * 5000, [[0, 1]] * 500, [1] * 65]


def _edited(random: Random, node: Any) -> Any:
    """A copy with one place changed; the way down is random, and may end early."""
    children = list(node.keys()) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    if not children or random.random() < 0.08:
        return random.choice((random.choice(_VALUES), _near(random, node)))
    copy: Any = dict(node) if isinstance(node, dict) else list(node)
    key = random.choice(children)
    what = random.randrange(12)
    if what == 0:
        del copy[key]
    elif what == 1 and isinstance(copy, list):
        copy[key:key] = [copy[key]] * random.choice((1, 2, 64, 3000))
    elif what == 1:
        copy[random.choice(("", "a", "__proto__", f"{key} ", f"0-{key}", "\ud800", "n" * 70_000))] = copy[key]
    elif what == 2:
        other = random.choice(children)
        copy[key], copy[other] = copy[other], copy[key]
    else:
        copy[key] = _edited(random, copy[key])
    return copy


def _near(random: Random, value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value + random.choice((-1, 1, -value, value, 1 << 32, 1 << 63))
    if isinstance(value, str):
        return random.choice((value * 2, value[:-1], value.upper(), value + "\0", f"../{value}", f"{value}/x"))
    return [value]


def damaged_gzip(random: Random, data: bytes) -> bytes:
    """A compressed JSON with one value changed, or one that unpacks to far more than it takes."""
    try:
        plain = gzip.decompress(data)
    except (OSError, EOFError, ValueError, zlib.error):
        return data
    what = random.randrange(20)
    if what == 0:
        plain += b" " * random.choice((1 << 20, 8 << 20))
    elif what == 1:
        return data + data
    else:
        plain = damaged_json(random, plain)
    return gzip.compress(plain, compresslevel=1)


# ---- safetensors


def damaged_safetensors(random: Random, data: bytes) -> bytes:
    """A safetensors file with one value of its header changed, its length kept right."""
    length = int.from_bytes(data[:8], "little")
    header, contents = data[8 : 8 + length], data[8 + length :]
    if length > len(data):
        return data
    header = damaged_json(random, header)
    return len(header).to_bytes(8, "little") + header + contents


# ---- protobuf

_VARINT, _FIXED64, _BYTES_TYPE, _FIXED32 = 0, 1, 2, 5


@dataclass
class _Field:
    """One field: `value` is a number, bytes, or the fields of a message."""

    key: int
    value: "int | bytes | list[_Field]"


def damaged_protobuf(random: Random, data: bytes) -> bytes:
    """A protobuf message with one field changed, removed, repeated or moved, lengths kept right; mostly."""
    fields = _parsed_fields(data)
    if not fields:
        return data
    message, place = fields, random.randrange(len(fields))
    while isinstance(inner := message[place].value, list) and inner and random.random() < 0.85:
        message, place = inner, random.randrange(len(inner))
    field = message[place]
    what = random.randrange(10)
    if what == 0:
        del message[place]
    elif what == 1:
        message[place:place] = [field] * random.choice((1, 1, 2, 65, 2000))
    elif what == 2:
        message.insert(random.randrange(len(message)), message.pop(place))
    elif what == 3:
        field.key = random.choice((field.key ^ 1 << random.randrange(6), random.randrange(1, 40) << 3 | field.key & 7))
    elif what == 4:
        field.value = [_Field(field.key, field.value)]
        field.key = field.key & ~7 | _BYTES_TYPE
        for _ in range(random.choice((0, 3, 150))):
            field.value = [_Field(field.key, field.value)]
    elif isinstance(field.value, int):
        field.value = random.choice((random.choice(_NUMBERS), field.value + 1, max(0, field.value - 1)))
    elif isinstance(field.value, bytes):
        field.value = random.choice(_BYTES)(random, field.value)
    else:
        field.value = _built_fields(field.value, random)
    return _built_fields(fields, random if random.random() < 0.1 else None)


def _built_fields(fields: Sequence[_Field], liar: Random | None = None) -> bytes:
    """The bytes of fields; `liar` may give one of the lengths wrong, or more bytes than needed."""
    built = bytearray()
    for field in fields:
        built += build_varint(field.key)
        if isinstance(field.value, int):
            built += build_varint(field.value % 2**64)
            continue
        content = field.value if isinstance(field.value, bytes) else _built_fields(field.value)
        if field.key & 7 == _BYTES_TYPE:
            length = build_varint(len(content))
            if liar and liar.random() < 1 / len(fields):
                padded = length[:-1] + bytes([length[-1] | 0x80]) + b"\x80" * liar.randrange(9) + b"\0"
                length = liar.choice((padded, build_varint(liar.choice(_NUMBERS)), build_varint(len(content) + 1)))
            built += length
        built += content
    return bytes(built)


def _parsed_fields(data: bytes, depth: int = 0) -> list[_Field]:
    """The fields of a message; none if it is not one."""
    fields, place = [], 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if key < 8 or kind not in (_VARINT, _FIXED64, _BYTES_TYPE, _FIXED32):
            return []
        if kind == _VARINT:
            value, place = _varint(data, place)
            if place > len(data):
                return []
            fields.append(_Field(key, value))
            continue
        length, place = _varint(data, place) if kind == _BYTES_TYPE else (8 if kind == _FIXED64 else 4, place)
        content, place = data[place : place + length], place + length
        if place > len(data):
            return []
        inner = _parsed_fields(content, depth + 1) if kind == _BYTES_TYPE and depth < 6 and len(content) < 4096 else []
        fields.append(_Field(key, inner or content))
    return fields


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for count in range(10):
        if place + count >= len(data):
            break
        byte = data[place + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, place + count + 1
    return 0, len(data) + 1


_HOSTILE_OPCODES = (
    b"cos\nsystem\n",
    b"\x8c\x02os\x8c\x06system\x93",
    b"c__builtin__\neval\n",
    b"R",
    b"\x81",
    b"b",
    b"(",
    b"t",
    b"2",
    b"0",
    b"Q",
    b"\x85",
    b"\x94",
    b"h\x00",
    b"j\xff\xff\xff\x7f",
    b"r\xff\xff\xff\xff",
    b"\x8b\xff\xff\xff\x7f",
    b"X\xff\xff\xff\xff",
    b"\x8d" + b"\xff" * 8,
    b"\x95" + b"\xff" * 8,
)


_HOSTILE_PICKLES = (
    b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00truetR.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    b"(S'true'\nios\nsystem\n.",
    b"\x80\x02}q\x00h\x00h\x00s.",
    b"N" + b"\x85" * 100_000 + b".",
    b"]q\x00" + b"h\x00a" * 50_000 + b".",
    b"(" * 100_000 + b".",
    b"".join(b"Nr" + number.to_bytes(4, "little") + b"0" for number in range(0, 2**32, 2**19)) + b"N.",
)
"""Calls, structures that contain themselves, depth, and a memo of many wide numbers."""


def damaged_pickle(random: Random, data: bytes) -> bytes:
    """A pickle with an opcode left out, repeated, moved, or replaced by one that asks for something."""
    if random.random() < 0.02:
        return random.choice(_HOSTILE_PICKLES)
    borders = [0]
    try:
        borders += [place for _, _, place in pickletools.genops(data) if place]
    except Exception:  # what it cannot read was damaged before
        borders.append(random.randrange(len(data) + 1))
    borders.append(len(data))
    start = random.randrange(len(borders) - 1)
    low, high = borders[start], borders[min(len(borders) - 1, start + random.choice((1, 1, 1, 2, 8)))]
    chosen = data[low:high]
    match random.randrange(5):
        case 0:
            return data[:low] + data[high:]
        case 1:
            return data[:high] + chosen * random.choice((1, 2, 300)) + data[high:]
        case 2:
            place = random.choice(borders)
            return data[:place] + chosen + data[place:]
        case 3:
            return data[:low] + random.choice(_HOSTILE_OPCODES) + data[high:]
        case _:
            return data[:low] + random.choice(_HOSTILE_OPCODES) * random.choice((1, 2, 500)) + data[low:]


def damaged_archive(random: Random, data: bytes) -> bytes:
    """A zip archive with a number in one of its headers, or in the pickle, changed."""
    places = [
        place
        for mark in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07")
        if (place := data.rfind(mark)) >= 0
    ]
    if not places or random.random() < 0.2:
        start = data.find(b"\x80\x02")
        end = data.find(b"PK", start)
        return data if start < 0 or end < start else data[:start] + damaged_pickle(random, data[start:end]) + data[end:]
    width = random.choice((2, 4, 8))
    place = random.choice(places) + random.randrange(4, 56)
    number = random.choice(_NUMBERS) % 2 ** (8 * width)
    return data[:place] + number.to_bytes(width, "little") + data[place + width :]


def lying_torch_file(random: Random, data: bytes) -> bytes:
    """A file of torch's whose pickle says something else, and is a sound record of a sound archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
    except Exception:  # what it cannot read was damaged before
        return damaged_archive(random, data)
    names = [name for name in records if name.endswith("data.pkl")]
    for name in names:
        change = random.choice((damaged_pickle, _other_arguments, _other_arguments))
        records[name] = change(random, records[name])
    if not names or random.random() < 0.1:
        records.pop(random.choice(list(records) or [""]), None)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in records.items():
            file.writestr(name, content)
    return buffer.getvalue()


def _other_arguments(random: Random, data: bytes) -> bytes:
    """A pickle with some numbers, texts and names in places of others, or of what was made up."""
    try:
        found = [(opcode.name, place) for opcode, _, place in pickletools.genops(data) if place is not None]
    except Exception:
        return damaged_pickle(random, data)
    borders = [*(place for _, place in found), len(data)]
    alike = [index for index, (name, _) in enumerate(found) if name in _ARGUMENTS]
    if not alike:
        return damaged_pickle(random, data)
    changed = {}
    for index in random.choices(alike, k=random.choice((1, 1, 2, 4))):
        group = _ARGUMENTS[found[index][0]]
        others = [each for each in alike if _ARGUMENTS[found[each][0]] == group]
        other = random.choice(others)
        taken = data[borders[other] : borders[other + 1]]
        made_up = {"number": _a_number, "text": _a_text, "name": _a_name}[group]
        changed[index] = taken if random.random() < 0.6 else made_up(random)
    return b"".join(changed.get(index, data[low:high]) for index, (low, high) in enumerate(pairwise(borders)))


_ARGUMENTS = {
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1"), "number"),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE"), "text"),
    "GLOBAL": "name",
}
"""Opcodes that put a value in its place -> what it is."""


def _a_number(random: Random) -> bytes:
    number = random.choice((*_NUMBERS, -1, -(2**31), -(2**63)))
    encoded = number.to_bytes(9, "little", signed=True)
    return b"\x8a\x09" + encoded


def _a_text(random: Random) -> bytes:
    text = random.choice(("", "0", "1", "x" * 1000, "\x1b[31m", "a\nb", "../../0", "\u202e", "1" * 30)).encode()
    return b"X" + len(text).to_bytes(4, "little") + text


def _a_name(random: Random) -> bytes:
    return random.choice(
        (b"cos\nsystem\n", b"ctorch\nFloatStorage\n", b"ccollections\nOrderedDict\n", b"ctorch\nint8\n")
    )

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import CheckpointError
from reshard.core.files import ckpt
from reshard.core.files.any_format import read_index
from reshard.core.files.model import FileIndex, OutputEntry
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, dtype_from_name
from tests.support.ckpt_writer import blob, number, varint
from tests.support.remote_file import RemoteFile, planned_parts, sparse_file

LOCAL = "/somewhere/model.ckpt"
KIB, MIB = 2**10, 2**20


def weight(name: str, size_bytes: int) -> OutputEntry:
    return OutputEntry(name, dtype_from_name("Int8"), (size_bytes,))


def transformer(layers: int, *sizes: int, moments: bool = False) -> list[OutputEntry]:
    """Layers with parameters of such sizes, one of another before and after them; and an optimizer's moments."""
    names = [
        (f"model.layers.{layer}.block.{part}.weight", size)
        for layer in range(layers)
        for part, size in enumerate(sizes)
    ]
    names = [("model.embedding.weight", 9 * MIB), *names, ("model.norm.weight", sizes[0])]
    prefixes = ["", "adam_m.", "adam_v."] if moments else [""]
    return [weight(prefix + name, size) for prefix in prefixes for name, size in names]


LLAMA = (16 * KIB, 16 * KIB, 4 * MIB, MIB, MIB, 4 * MIB, 11 * MIB, 11 * MIB, 11 * MIB)


def walked(entries: Sequence[OutputEntry]) -> RemoteFile:
    file = sparse_file(entries)
    assert read_index(file) == ckpt.read_index(sparse_file(entries, LOCAL))
    return file


@pytest.mark.parametrize(
    ("entries", "rounds", "requests", "part"),
    [
        pytest.param(transformer(25, *(size * MIB for size in (1, 3, 8, 8, 8, 2, 5, 7, 4))), 15, 275, 0.002, id="225"),
        pytest.param(transformer(32, *LLAMA), 15, 300, 0.001, id="32 layers"),
        pytest.param(transformer(32, *LLAMA, moments=True), 30, 1150, 0.002, id="moments"),
        pytest.param(transformer(100, *[600 * KIB] * 3, 512 * KIB), 12, 460, 0.01, id="entries over 512 KiB"),
        pytest.param(
            [
                weight(f"{s}.{n // 3}.{n}", size)
                for s in ("en", "de")
                for n, size in enumerate([MIB, 3 * MIB, 8 * MIB] * 60)
            ],
            11,
            400,
            0.001,
            id="two stacks",
        ),
        pytest.param([weight(f"layers.{n}", 4 * MIB) for n in range(225)], 10, 235, 0.001, id="all alike"),
        pytest.param([weight(f"layers.{n}", 4 * KIB) for n in range(20_000)], 15, 30, 1.01, id="20,000 small ones"),
        pytest.param(
            [weight(f"w{n}", random.Random(n).randrange(20 * KIB)) for n in range(5000)], 15, 30, 1.01, id="no pattern"
        ),
    ],
)
def test_few_rounds_and_requests(entries: list[OutputEntry], rounds: int, requests: int, part: float) -> None:
    file = walked(entries)
    assert len(file.rounds) <= rounds
    assert file.requests <= requests
    assert file.read_bytes <= part * file.size_bytes + 128 * KIB


def test_what_cannot_be_foreseen_costs_little_more_than_a_plain_walk() -> None:
    entries = [weight(f"w{n}", random.Random(n).randrange(MIB, 8 * MIB)) for n in range(200)]
    file = walked(entries)
    assert len(file.rounds) <= len(entries) + 1
    assert file.requests <= 4 * len(entries)
    assert file.read_bytes < 0.002 * file.size_bytes


def test_no_round_asks_for_more_than_some_megabytes() -> None:
    entries = [weight(f"layers.{n // 3}.{n % 3}", [200, 150, 100][n % 3] * KIB) for n in range(3000)]
    file = walked(entries)
    assert max(sum(length for _, length in ranges) for ranges in file.rounds) <= 17 * MIB
    assert len(file.rounds) < 10 + file.size_bytes / (8 * MIB)


def test_texts_between_need_no_request_of_their_own() -> None:
    plain = transformer(20, *(size * MIB for size in (1, 3, 8)))
    texts = [OutputEntry(f"note.{n}", TEXT, (40,), "0123456789") for n in range(len(plain))]
    mixed = [entry for pair in zip(plain, texts, strict=True) for entry in pair]
    assert walked(mixed).requests < walked(plain).requests + len(texts)


def test_a_text_that_a_window_holds_is_not_asked_for_again() -> None:
    text = OutputEntry("note", TEXT, (4000,), "t" * 1000)
    file = walked([weight("a", 5 * MIB), weight("b", 3 * MIB), text, weight("c", 5 * MIB), weight("d", MIB)])
    places = [place for ranges in file.rounds for offset, length in ranges for place in (offset, offset + length)]
    assert len(file.rounds) == 1 + 4
    assert len(places) == len(set(places))


def test_a_long_text_is_read_too() -> None:
    text = "text" * 50_000
    entries = [
        *transformer(3, MIB, 2 * MIB),
        OutputEntry("long", TEXT, (4 * len(text),), text),
        weight("after", 7 * MIB),
    ]
    assert read_index(sparse_file(entries)).entries["long"].text == text


def test_an_end_is_not_asked_for_twice() -> None:
    assert len(walked([weight("a", 5 * MIB), weight("b", 100)]).rounds) == 2


def test_a_file_smaller_than_its_ends_is_one_request() -> None:
    file = walked([weight("a", 100), weight("b", 1000)])
    assert file.rounds == [[(0, file.size_bytes)]]


names = st.builds(
    "{}layers.{}.{}".format,
    st.sampled_from(["", "adam_m.", "a" * 140 + "."]),
    st.integers(0, 1200),
    st.sampled_from(["wq", "wk", "norm", "ü"]),
)
sizes = st.sampled_from([0, 1, 300, 5000, 70_000, 300_000, 2**20, 2**22, 3 * 2**20, 2**24])
entries = st.builds(weight, names, sizes)
maps = st.builds(
    lambda name, pieces: OutputEntry(name, MAP_TENSOR, (sum(pieces),), None, tuple(pieces)),
    names,
    st.lists(sizes, min_size=1, max_size=3),
)
texts = st.builds(
    lambda name, text: OutputEntry(name, TEXT, (4 * max(1, len(text)),), text), names, st.text(st.sampled_from("abc"))
)


@st.composite
def checkpoints(draw: st.DrawFn) -> list[OutputEntry]:
    """Entries of which rows come again and again, under other names, and not always as they were."""
    rows = draw(
        st.lists(
            st.lists(st.one_of(entries, entries, entries, texts, maps), min_size=1, max_size=6), min_size=1, max_size=3
        )
    )
    found = []
    for count, row in enumerate(draw(st.lists(st.sampled_from(rows), min_size=1, max_size=25))):
        for entry in row:
            if draw(st.integers(0, 30)):
                name = f"{entry.name}.{count}"
                found.append(OutputEntry(name, entry.dtype, entry.shape, entry.text, entry.piece_bytes))
    return list({entry.name: entry for entry in found or [weight("w", 3)]}.values())


def with_contents_first(
    parts: list[tuple[int, bytes]], size_bytes: int, contents: list[int]
) -> tuple[list[tuple[int, bytes]], int]:
    """With further entries before all others and after them, in which dims and dtype follow the contents."""
    found, start = [], 0
    for place, length in enumerate([*contents, *contents]):
        if place == len(contents):
            found += [(start + offset, part) for offset, part in parts]
            start += size_bytes
        after = number(1, length) + blob(2, b"Int8")
        content = varint(3 * 8 + 2) + varint(length)
        tag = blob(1, f"first.{place}".encode())
        tensor = varint(2 * 8 + 2) + varint(len(content) + length + len(after)) + content
        head = varint(8 + 2) + varint(len(tag) + len(tensor) + length + len(after)) + tag + tensor
        found += [(start, head), (start + len(head) + length, after)]
        start += len(head) + length + len(after)
    return (found, start) if contents else (parts, size_bytes)


@given(checkpoints(), st.booleans(), st.data())
def test_a_walk_with_lookahead_finds_what_a_plain_one_finds(
    entries: list[OutputEntry], has_crc: bool, drawn: st.DataObject
) -> None:
    """The same index or the same refusal: whole or damaged, with unknown fields, with fields in another order."""
    parts, size_bytes = planned_parts(entries)
    parts, size_bytes = with_contents_first(parts, size_bytes, drawn.draw(st.lists(sizes, max_size=3)))
    if drawn.draw(st.booleans()):
        last = [(size_bytes, number(9, 5) + blob(7, b"unknown") + blob(1, b"\x0a\x01"))]
        parts, size_bytes = parts + last, size_bytes + len(last[0][1])
    if has_crc:
        parts, size_bytes = [*parts, (size_bytes, b"crc_num" + bytes(10))], size_bytes + 17
    for _ in range(drawn.draw(st.sampled_from([0, 0, 1, 2]))):
        place = drawn.draw(st.integers(0, len(parts) - 1))
        start, part = parts[place]
        damaged = bytearray(part)
        damaged[drawn.draw(st.integers(0, len(part) - 1))] ^= 1 << drawn.draw(st.integers(0, 7))
        parts[place] = start, bytes(damaged)
    size_bytes -= drawn.draw(st.sampled_from([0, 0, 1, 17, min(size_bytes - 1, 70_000)]))
    parts = [(start, part[: size_bytes - start]) for start, part in parts if start < size_bytes]
    outcomes: list[FileIndex | str] = []
    for url in ("memory:///somewhere/model.ckpt", LOCAL):
        try:
            outcomes.append(read_index(RemoteFile(parts, size_bytes, url)))
        except CheckpointError as error:
            outcomes.append(str(error).removeprefix("memory://"))
    assert outcomes[0] == outcomes[1]

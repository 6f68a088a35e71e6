import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import CheckpointError
from reshard.core.files import any_format, ckpt, ckpt_writing
from reshard.core.files.model import FileIndex, OutputEntry, TensorEntry
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, dtype_from_name
from reshard.core.tensor.slices import Extent
from tests.support.ckpt_writer import (
    CheckpointMessage,
    MemoryFile,
    blob,
    checkpoint_bytes,
    extents_bytes,
    number,
    varint,
)
from tests.support.places import FIXTURES

FORMATS = FIXTURES / "formats"


def read(data: bytes) -> FileIndex:
    return ckpt.read_index(MemoryFile(data))


def tensor(tensor_type: str, dims: list[int], content: bytes) -> bytes:
    return b"".join(number(1, dim) for dim in dims) + blob(2, tensor_type.encode()) + blob(3, content)


def value(name: str, tensor_bytes: bytes) -> bytes:
    return blob(1, blob(1, name.encode()) + blob(2, tensor_bytes))


CONTENTS_FIRST = number(1, 4) + blob(2, b"UInt8")
"""What follows the contents of a tensor whose contents come first."""
GOOD = value("w", tensor("Float32", [2, 3], bytes(24)))


def assert_values(index: FileIndex, data: bytes) -> None:
    """The tensors and the appended values of the fixtures, against what was saved."""
    expect = json.loads((FORMATS / "expect.json").read_text())
    for name, want in expect["params"].items():
        entry = index.entries[name]
        assert (entry.dtype.name, list(entry.shape)) == (want["dtype"], want["shape"])
        assert extents_bytes(data, entry.extents).hex() == want["hex"]
    append = expect["append"]
    assert index.entries["note"] == TensorEntry("note", TEXT, (4 * len(append["note"]),), (), append["note"])
    step = index.entries["step_num"]
    assert (step.dtype.name, step.shape) == ("Int64", ())
    assert int.from_bytes(extents_bytes(data, step.extents), "little") == append["step_num"]


class TestFilesThatMindSporeWrote:
    @pytest.mark.parametrize("name", ["plain", "crc"])
    def test_values(self, name: str) -> None:
        data = (FORMATS / f"{name}.ckpt").read_bytes()
        index = read(data)
        expect = json.loads((FORMATS / "expect.json").read_text())
        assert list(index.entries) == [*expect["params"], *expect["append"]]
        assert index.size_bytes == len(data)
        assert index.has_crc == (name == "crc")
        assert_values(index, data)

    @pytest.mark.parametrize("case", sorted(path.name for path in (FIXTURES / "conversions").iterdir()))
    def test_all_checkpoints_match_protobufs_own_reader(self, case: str) -> None:
        paths = [
            path
            for folder in ("full", "src", "want")
            for path in (FIXTURES / "conversions" / case / folder).rglob("*.ckpt")
        ]
        assert paths
        for path in paths:
            source = open_source(parse_url(str(path)))
            try:
                index = ckpt.read_index(source)
            finally:
                source.close()
            data = path.read_bytes()
            message = CheckpointMessage.FromString(data)
            assert list(index.entries) == [item.tag for item in message.value]
            for item in message.value:
                entry = index.entries[item.tag]
                if entry.dtype is TEXT:
                    assert entry.text == item.tensor.tensor_content.decode("utf-32-le")
                    continue
                assert entry.dtype.name == item.tensor.tensor_type
                assert list(entry.shape) == list(item.tensor.dims)
                assert extents_bytes(data, entry.extents) == item.tensor.tensor_content

    def test_truncated_anywhere_only_ends_between_entries_parse(self) -> None:
        data = (FORMATS / "plain.ckpt").read_bytes()
        message = CheckpointMessage.FromString(data)
        ends, end = set(), 0
        for item in message.value:
            end += len(blob(1, item.SerializeToString()))
            ends.add(end)
        assert end == len(data)
        for length in set(range(len(data))) - ends:
            with pytest.raises(CheckpointError, match=r"^/somewhere/model\.ckpt: "):
                read(data[:length])
        assert [len(read(data[:length]).entries) for length in sorted(ends)] == list(range(1, len(ends) + 1))

    def test_truncated_crc_trailer_is_an_error(self) -> None:
        data = (FORMATS / "crc.ckpt").read_bytes()
        for length in range(len(data) - 16, len(data)):
            with pytest.raises(CheckpointError):
                read(data[:length])


class TestCrc:
    def test_right(self) -> None:
        file = MemoryFile((FORMATS / "crc.ckpt").read_bytes())
        any_format.check_crc(file, ckpt.read_index(file))

    @pytest.mark.parametrize("position", [50, 200, -1])
    def test_wrong(self, position: int) -> None:
        data = bytearray((FORMATS / "crc.ckpt").read_bytes())
        data[position] ^= 1
        file = MemoryFile(bytes(data))
        with pytest.raises(
            CheckpointError, match=r"model\.ckpt: wrong CRC-32: the file says \d+, its contents give \d+"
        ):
            any_format.check_crc(file, ckpt.read_index(file))

    def test_without_one_nothing_is_read(self) -> None:
        file = MemoryFile(GOOD)
        index = ckpt.read_index(file)
        file.reads.clear()
        any_format.check_crc(file, index)
        assert file.reads == []


class TestWhatProtobufAllows:
    def test_any_order_and_unknown_fields(self) -> None:
        unknown = (
            number(9, 2**64 - 1) + blob(10, b"x" * 300) + varint(11 * 8 + 1) + bytes(8) + varint(12 * 8 + 5) + bytes(4)
        )
        inside = blob(3, b"abcdefgh") + unknown + number(1, 2) + blob(2, b"Int16") + number(1, 2)
        data = unknown + blob(1, unknown + blob(2, inside) + blob(1, b"late") + unknown) + unknown
        entry = read(data).entries["late"]
        assert (entry.dtype.name, entry.shape) == ("Int16", (2, 2))
        assert extents_bytes(data, entry.extents) == b"abcdefgh"

    def test_packed_dims(self) -> None:
        data = value("w", blob(1, varint(300) + varint(1)) + blob(2, b"Int8") + blob(3, bytes(300)))
        assert read(data).entries["w"].shape == (300, 1)

    def test_repeated_fields_as_protobuf_merges_them(self) -> None:
        inner = blob(1, b"first") + blob(1, b"last")
        inner += blob(2, number(1, 2) + blob(2, b"Int64") + blob(3, b"?"))
        inner += blob(2, number(1, 3) + blob(2, b"Int8") + blob(3, b"abcdef"))
        data = blob(1, inner)
        want = CheckpointMessage.FromString(data).value[0]
        entry = read(data).entries[want.tag]
        assert list(entry.shape) == list(want.tensor.dims)
        assert entry.dtype.name == want.tensor.tensor_type
        assert extents_bytes(data, entry.extents) == want.tensor.tensor_content

    def test_of_tensor_and_map_tensor_the_later_counts(self) -> None:
        plain = blob(2, tensor("Int8", [1], b"a"))
        mapped = blob(3, b"opaque")
        assert read(blob(1, blob(1, b"w") + plain + mapped)).entries["w"].dtype is MAP_TENSOR
        assert read(blob(1, blob(1, b"w") + mapped + plain)).entries["w"].dtype.name == "Int8"

    def test_long_form_varints(self) -> None:
        long_three = bytes([0x83] + [0x80] * 8 + [0])
        data = value("w", bytes([8]) + long_three + blob(2, b"Int8") + blob(3, b"abc"))
        assert read(data).entries["w"].shape == (3,)


class TestShapes:
    def test_scalar_without_dims(self) -> None:
        assert read(checkpoint_bytes(("s", "Float64", [], bytes(8)))).entries["s"].shape == ()

    def test_scalar_with_dims_0_of_older_files(self) -> None:
        assert read(checkpoint_bytes(("s", "Float32", [0], bytes(4)))).entries["s"].shape == ()

    def test_dims_0_without_content_has_no_elements(self) -> None:
        assert read(checkpoint_bytes(("e", "Float32", [0], b""))).entries["e"].shape == (0,)

    def test_zero_elements(self) -> None:
        assert read(checkpoint_bytes(("e", "Float32", [2**30, 0, 2**30], b""))).entries["e"].size_bytes == 0

    def test_int4_dims_count_bytes(self) -> None:
        assert read(checkpoint_bytes(("q", "Int4", [3, 2], bytes(6)))).entries["q"].size_bytes == 6


class TestPieces:
    def test_consecutive_pieces_join_wherever_they_are_cut(self) -> None:
        content = bytes(range(24))
        pieces = [("w", "Float32", [2, 3], content[start:stop]) for start, stop in ((0, 5), (5, 5), (5, 23), (23, 24))]
        data = checkpoint_bytes(("a", "Int8", [1], b"a"), *pieces, ("b", "Int8", [1], b"b"))
        index = read(data)
        assert list(index.entries) == ["a", "w", "b"]
        assert index.entries["w"].shape == (2, 3)
        assert len(index.entries["w"].extents) == 4
        assert extents_bytes(data, index.entries["w"].extents) == content

    def test_the_same_name_later_replaces(self) -> None:
        data = checkpoint_bytes(("w", "Int8", [1], b"a"), ("v", "Int8", [1], b"b"), ("w", "Int16", [2], b"cdef"))
        entry = read(data).entries["w"]
        assert (entry.dtype.name, entry.shape, extents_bytes(data, entry.extents)) == ("Int16", (2,), b"cdef")

    def test_map_tensor_messages_stay_apart(self) -> None:
        message = CheckpointMessage()
        for rows in (2, 3):
            entry = message.value.add(tag="table").maptensor.tensor.add()
            entry.dims.extend([rows])
            entry.tensor_type, entry.tensor_content = "int32", bytes(4 * rows)
        data = message.SerializeToString()
        table = read(data).entries["table"]
        assert table.dtype is MAP_TENSOR
        pieces = [item.maptensor.SerializeToString() for item in message.value]
        assert [extents_bytes(data, [extent]) for extent in table.extents] == pieces
        assert table.shape == (sum(map(len, pieces)),)


class TestText:
    @pytest.mark.parametrize("text", ["", "x", "héllo 昇思 🙂", "a\0b", "\ud800"])
    def test_value(self, text: str) -> None:
        content = (text or "\0").encode("utf-32-le", "surrogatepass")
        entry = read(checkpoint_bytes(("note", "str", [0], content))).entries["note"]
        assert entry == TensorEntry("note", TEXT, (len(content),), (), text)

    def test_trailing_nuls_are_padding(self) -> None:
        entry = read(checkpoint_bytes(("note", "str", [0], b"x\0\0\0" + bytes(8)))).entries["note"]
        assert (entry.text, entry.shape) == ("x", (4,))


BAD = {
    "empty file": (b"", "the file is empty"),
    "only unknown fields": (blob(9, b"abc"), "holds no parameters"),
    "length beyond the end": (
        b"\x0a" + varint(2**63) + GOOD,
        "at byte 0: the file ends in the middle of a 9,223,372,036,854,775,808-byte field",
    ),
    "largest length": (
        b"\x0a" + varint(2**64 - 1),
        "at byte 0: the file ends in the middle of a 18,446,744,073,709,551,615-byte field",
    ),
    "content longer than its tensor": (
        blob(1, blob(1, b"w") + blob(2, blob(2, b"Int8") + b"\x1a" + varint(2**63))) + GOOD,
        "at byte 13: a 9,223,372,036,854,775,808-byte field runs past byte",
    ),
    "integer cut by its message's end": (
        blob(1, blob(1, b"w") + blob(2, b"\x08\x80")) + GOOD,
        r"at byte 7: a [\d,]+-byte field runs past byte",
    ),
    "overlong varint": (b"\x0a" + b"\xff" * 10 + b"\x01", "at byte 1: a number of more than 10 bytes"),
    "varint at the end of the file": (GOOD + b"\x0a\x80", "the file ends inside a number: truncated"),
    "key at the end of the file": (GOOD + b"\x0a", "the file ends inside a number: truncated"),
    "group": (GOOD + b"\x0b", f"at byte {len(GOOD)}: a field of wire type 3"),
    "wire type 7": (GOOD + b"\x0f", "a field of wire type 7"),
    "field number 0": (GOOD + b"\x02\x00", "field key 2, which protobuf does not know"),
    "fixed field cut": (GOOD + b"\x09" + bytes(7), "the file ends in the middle of a 8-byte field"),
    "negative dims": (
        value("w", tensor("Int8", [2, -3], b"")),
        r"at byte 2: parameter 'w' has negative dims \[2, -3\]",
    ),
    "bytes of 2^63 but for a dimension of 0": (
        value("w", tensor("Float64", [2**30, 0, 2**30], b"")),
        r"parameter 'w': its dims \[1073741824, 0, 1073741824\] are too large .*as Float64: damaged",
    ),
    "no name of a dtype": (
        value("w", tensor("Float\n8", [1], b"a")),
        r"at byte 2: parameter 'w': 'Float\\n8' cannot be the name of a dtype: damaged",
    ),
    "unknown dtype of less than a bit": (
        value("w", tensor("Float8", [9], b"a")),
        r"at byte 2: parameter 'w', \[9\]: 1 bytes cannot be 9 elements of the dtype Float8: damaged",
    ),
    "map tensor's dtype on a tensor": (
        value("w", tensor("MapTensor", [1], b"a")),
        "a plain tensor cannot have the dtype",
    ),
    "no name": (blob(1, blob(2, tensor("Int8", [1], b"a"))), "at byte 2: an entry without a parameter's name"),
    "no tensor": (blob(1, blob(1, b"w")), "parameter 'w' has neither a tensor nor a map tensor"),
    "no dtype": (value("w", number(1, 1) + blob(3, b"a")), "parameter 'w' has no tensor_type"),
    "no content": (value("w", number(1, 1) + blob(2, b"Int8")), "parameter 'w' has no tensor_content"),
    "name not UTF-8": (blob(1, blob(1, b"\xff") + blob(2, b"")), "at byte 4: a parameter's name is not UTF-8"),
    "name too long": (blob(1, blob(1, b"w" * 65537)), "a parameter's name of 65537 bytes"),
    "too many dims": (value("w", number(1, 1) * 65), "a tensor of more than 64 dims"),
    "too many packed dims": (value("w", blob(1, b"\1" * 100_000)), "a tensor of more than 64 dims"),
    "packed dims cut": (value("w", blob(1, b"\1\x80") + blob(2, b"Int8")), "packed dims end inside a number"),
    "too few bytes": (
        value("w", tensor("Float32", [2, 3], bytes(20))),
        "'w' has 20 bytes, but Float32 .2, 3. takes 24",
    ),
    "dims beyond any memory": (value("w", tensor("Int8", [2**62] * 64, b"")), "'w' has 0 bytes"),
    "scalar of the wrong size": (value("w", tensor("Float32", [], bytes(8))), r"has 8 bytes, but Float32 \[\] takes 4"),
    "dims 0 with several elements": (
        value("w", tensor("Float32", [0], bytes(8))),
        r"has 8 bytes, but Float32 \[0\] takes 0",
    ),
    "pieces of different dims": (
        value("w", tensor("Int8", [4], b"ab")) + value("w", tensor("Int8", [3], b"cd")),
        r"at byte 21: a piece of parameter 'w' is Int8 \[3\], the one before it Int8 \[4\]",
    ),
    "pieces of different dtypes": (
        value("w", tensor("Int8", [4], b"ab")) + value("w", tensor("Bool", [4], b"cd")),
        "a piece of parameter 'w' is Bool",
    ),
    "a map tensor after a piece": (
        value("w", tensor("Int8", [4], b"ab")) + blob(1, blob(1, b"w") + blob(3, b"cd")),
        "a piece of parameter 'w' is MapTensor",
    ),
    "two map tensors in one entry": (blob(1, blob(1, b"w") + blob(3, b"a") + blob(3, b"b")), "'w' has two map tensors"),
    "an entry that ends where in one like it dims follow": (
        blob(1, blob(1, b"a") + blob(2, blob(3, b"wxyz") + CONTENTS_FIRST))
        + blob(1, blob(1, b"b") + varint(2 * 8 + 2) + varint(6 + len(CONTENTS_FIRST)) + blob(3, b"wxyz")),
        "the file ends in the middle of a 15-byte field",
    ),
    "text cut inside a character": (value("t", tensor("str", [0], b"abc")), "text entry 't' is not UTF-32"),
    "text of no character": (value("t", tensor("str", [0], b"\xff" * 4)), "text entry 't' is not UTF-32"),
    "text too long": (
        value("t", tensor("str", [0], bytes(2**20 + 4))),
        r"text entry 't' has 1048580 bytes, more than 1048576 \(1 MiB\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case: str) -> None:
    data, message = BAD[case]
    with pytest.raises(CheckpointError, match=message) as caught:
        read(data)
    assert str(caught.value).startswith("/somewhere/model.ckpt: ")


@given(st.binary(max_size=300))
def test_garbage_is_an_error_or_an_index(data: bytes) -> None:
    with suppress(CheckpointError):
        read(data)


@given(st.data())
def test_damage_is_an_error_or_an_index(data: st.DataObject) -> None:
    damaged = bytearray(checkpoint_bytes(("w", "Float32", [2, 3], bytes(24)), ("t", "str", [0], b"a\0\0\0")))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        index = read(bytes(damaged))
    except CheckpointError:
        return
    assert all(extent.offset + extent.length <= len(damaged) for e in index.entries.values() for extent in e.extents)


ALIKE = [
    blob(2, tensor("Float32", [2], b"12345678")),
    blob(2, tensor("Float32", [2, 1], b"abcdefgh")),
    blob(2, tensor("Int64", [], b"12345678")),
    blob(2, tensor("Int8", [0], b"x")),
    blob(2, tensor("Int8", [0], b"")),
    blob(2, tensor("str", [0], b"a\0\0\0")),
    blob(2, blob(3, b"wxyz") + CONTENTS_FIRST),
    blob(2, tensor("Int8", [2], b"pq")) + number(9, 7),  # a field that nobody knows, last
    blob(3, b"a map tensor"),
    blob(2, tensor("Float32", [2], b"12345678")) + blob(3, b"a map tensor"),  # the latter counts
]
"""What may follow a name in an entry."""


@st.composite
def entries_alike(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """Entries that have much in common, sometimes even the name, or that give a name again."""
    names = draw(st.lists(st.sampled_from(["", "a", "b", "ä", "n" * 127, "n" * 128, "m" * 150]), min_size=1))
    again = st.sampled_from([b"", b"", b"", blob(1, b"b")])
    return [(name, draw(again) + draw(st.sampled_from(ALIKE))) for name in names]


@given(entries_alike())
def test_an_entry_is_the_same_whatever_others_are_like_it(entries: list[tuple[str, bytes]]) -> None:
    """Entries are recognized by bytes that they have in common with earlier ones."""
    entries = [(name, rest) for name, rest in dict(entries).items() if not rest.startswith(blob(1, b"b"))]
    data = b"".join(blob(1, blob(1, name.encode()) + rest) for name, rest in entries) + GOOD
    found = read(data).entries
    assert list(found) == [*(name for name, _ in entries), "w"]
    for name, rest in entries:
        alone_data = blob(1, blob(1, name.encode()) + rest)
        alone = read(alone_data).entries[name]
        together = found[name]
        assert (together.dtype, together.shape, together.text) == (alone.dtype, alone.shape, alone.text)
        assert extents_bytes(data, together.extents) == extents_bytes(alone_data, alone.extents)


@given(entries_alike(), st.data())
def test_recognizing_entries_changes_nothing(entries: list[tuple[str, bytes]], drawn: st.DataObject) -> None:
    """Whole or damaged, a file is read, or refused, as if every entry were parsed."""
    data = bytearray(b"".join(blob(1, blob(1, name.encode()) + rest) for name, rest in entries))
    for _ in range(drawn.draw(st.integers(0, 3))):
        data[drawn.draw(st.integers(0, len(data) - 1))] = drawn.draw(st.integers(0, 255))
    with pytest.MonkeyPatch.context() as patch:
        found = outcome(bytes(data))
        patch.setattr(ckpt._KnownHeads, "match", lambda *_: None)
        assert found == outcome(bytes(data))


def test_a_name_given_again_in_an_entry_counts_whatever_was_before() -> None:
    rest = blob(1, b"b") + blob(2, tensor("Float32", [2], b"12345678"))
    data = b"".join(blob(1, blob(1, name) + rest) for name in (b"b", b"c"))
    with pytest.raises(CheckpointError, match="parameter 'b' has 16 bytes, but Float32"):
        read(data)


@pytest.mark.parametrize("name", ["w", "n" * 127, "n" * 128, "n" * 150])
def test_a_later_entry_of_one_name_replaces_the_earlier_whatever_its_length(name: str) -> None:
    first, second = (value(name, tensor("Float32", [2], content * 8)) for content in (b"0", b"1"))
    data = first + value("other", tensor("Float32", [2], bytes(8))) + second
    index = read(data)
    assert set(index.entries) == {name, "other"}
    assert extents_bytes(data, index.entries[name].extents) == b"1" * 8
    data = first + second.replace(b"1" * 8, b"2" * 8)
    with pytest.raises(CheckpointError, match="has 16 bytes, but Float32"):
        read(data)


def outcome(data: bytes) -> FileIndex | str:
    try:
        return read(data)
    except CheckpointError as error:
        return str(error)


class TestReading:
    def test_contents_are_not_read(self) -> None:
        size = 3 << 30
        head = blob(1, b"big") + varint(2 * 8 + 2)
        fields = number(1, size) + blob(2, b"Int8") + b"\x1a" + varint(size)
        inner = head + varint(len(fields) + size) + fields
        start = b"\x0a" + varint(len(inner) + size) + inner
        file = MemoryFile(start, size_bytes=len(start) + size)
        entry = ckpt.read_index(file).entries["big"]
        assert (entry.shape, entry.extents) == ((size,), (Extent(len(start), size),))
        assert sum(length for _, length in file.reads) < 1 << 20

    def test_more_than_4_gib_on_disk(self, tmp_path: Path) -> None:
        entries = [OutputEntry(f"w{number}", dtype_from_name("BFloat16"), (1 << 29,)) for number in range(5)]
        entries.append(OutputEntry("last", dtype_from_name("Int32"), ()))
        plan = ckpt_writing.plan_file(entries)
        path = tmp_path / "large.ckpt"
        with path.open("wb") as file:
            for segment in plan.segments:
                if isinstance(segment, bytes):
                    file.write(segment)
                else:
                    file.seek(segment.stop - segment.start, 1)
            file.truncate(plan.size_bytes)
        source = open_source(parse_url(str(path)))
        try:
            index = ckpt.read_index(source)
        finally:
            source.close()
        assert index.size_bytes == plan.size_bytes > 5 << 30
        assert [entry.shape for entry in index.entries.values()] == [(1 << 29,)] * 5 + [()]
        assert [len(entry.extents) for entry in index.entries.values()] == [2] * 5 + [1]
        (last,) = index.entries["last"].extents
        assert last.offset + last.length == plan.size_bytes

    def test_few_reads_for_many_small_entries(self) -> None:
        data = checkpoint_bytes(
            *((f"layer.{number}.weight", "Float32", [16, 64], bytes(4096)) for number in range(500))
        )
        file = MemoryFile(data)
        assert len(ckpt.read_index(file).entries) == 500
        assert len(file.reads) < 50

    def test_small_reads_for_large_entries(self) -> None:
        data = checkpoint_bytes(*((f"w{number}", "Int8", [100_000], bytes(100_000)) for number in range(20)))
        file = MemoryFile(data)
        ckpt.read_index(file)
        assert sum(length for _, length in file.reads) < 200_000

    @pytest.mark.parametrize("gap", [65_500, 65_536, 65_600, 130_000])
    def test_heads_on_the_edges_of_the_read_ahead(self, gap: int) -> None:
        for shift in range(40):
            data = checkpoint_bytes(
                ("a", "Int8", [gap + shift], bytes(gap + shift)),
                ("b", "Int8", [200], bytes(200)),
                ("t", "str", [0], b"x\0\0\0"),
            )
            index = read(data)
            assert index.entries["b"].shape == (200,)
            assert index.entries["t"].text == "x"


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (tensor("Float32", [2, 2], bytes(12)), "has 12 bytes, but Float32 \\[2, 2\\] takes 16"),
        (tensor("Float16", [2, 2], bytes(16)), "has 16 bytes, but Float16 \\[2, 2\\] takes 8"),
        (tensor("Float32", [2, 3], bytes(16)), "has 16 bytes, but Float32 \\[2, 3\\] takes 24"),
    ],
)
def test_damage_after_entries_like_it_is_found(damaged: bytes, reason: str) -> None:
    good = b"".join(value(f"good.{number}", tensor("Float32", [2, 2], bytes(16))) for number in range(3))
    with pytest.raises(CheckpointError, match=f"parameter 'bad' {reason}: damaged"):
        read(good + value("bad", damaged))
    assert [entry.shape for entry in read(good).entries.values()] == [(2, 2)] * 3

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors as library
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from reshard.core.errors import CheckpointError
from reshard.core.files import any_format, safetensors
from reshard.core.files.model import FileIndex, OutputEntry, TensorEntry
from reshard.core.tensor.dtypes import INT4, MAP_TENSOR, TEXT, dtype_from_name
from reshard.core.tensor.slices import Extent
from tests.support.ckpt_writer import MemoryFile, extents_bytes, filled
from tests.support.places import FIXTURES

FORMATS = FIXTURES / "formats"
NUMPY_DTYPES = {
    "I8": "Int8", "U8": "UInt8", "I16": "Int16", "U16": "UInt16", "I32": "Int32", "U32": "UInt32", "I64": "Int64",
    "U64": "UInt64", "F16": "Float16", "F32": "Float32", "F64": "Float64", "BOOL": "Bool", "BF16": "BFloat16",
}  # fmt: skip


def memory_file(data: bytes, size_bytes: int | None = None) -> MemoryFile:
    return MemoryFile(data, "model.safetensors", size_bytes)


def read(data: bytes) -> FileIndex:
    return safetensors.read_index(memory_file(data))


def with_header(header: Any, contents: bytes = b"") -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + contents


def described(dtype: Any, shape: Any, start: Any, stop: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


class TestFilesThatMindSporeWrote:
    @pytest.mark.parametrize("name", ["plain", "crc"])
    def test_values(self, name: str) -> None:
        data = (FORMATS / f"{name}.safetensors").read_bytes()
        index = read(data)
        params = json.loads((FORMATS / "expect.json").read_text())["params"]
        # bfloat16 makes MindSpore's CRC fail, so that file has none
        assert set(index.entries) == set(params) - ({"brain"} if name == "crc" else set())
        for entry in index.entries.values():
            want = params[entry.name]
            assert (entry.dtype.name, list(entry.shape)) == (want["dtype"], want["shape"])
            assert extents_bytes(data, entry.extents).hex() == want["hex"]
        assert (index.has_crc, index.redundancy_removed) == (name == "crc", False)

    def test_redundancy_removed_is_said(self) -> None:
        folder = FORMATS / "redundancy_removed" / "src_safetensors"
        paths = sorted(folder.rglob("*.safetensors"))
        assert paths
        assert all(read(path.read_bytes()).redundancy_removed for path in paths)

    def test_truncated_anywhere(self) -> None:
        data = (FORMATS / "plain.safetensors").read_bytes()
        for length in range(len(data)):
            with pytest.raises(CheckpointError, match=r"^/somewhere/model\.safetensors: "):
                read(data[:length])
        with pytest.raises(CheckpointError, match="at byte 946: 1 bytes that belong to no parameter"):
            read(data + b"x")


class TestCrc:
    def test_right(self) -> None:
        file = memory_file((FORMATS / "crc.safetensors").read_bytes())
        any_format.check_crc(file, safetensors.read_index(file))

    def test_wrong(self) -> None:
        data = bytearray((FORMATS / "crc.safetensors").read_bytes())
        data[-1] ^= 1
        file = memory_file(bytes(data))
        with pytest.raises(CheckpointError, match="wrong CRC-32: the file says 385874451, its contents give"):
            any_format.check_crc(file, safetensors.read_index(file))

    def test_integer_scalars_count_as_zeros(self) -> None:
        arrays = {
            "z": np.array(7, np.int64),
            "b": np.array(True),
            "a": np.array([5], np.int64),
            "é": np.array(2.5, np.float32),
            "u": np.array(200, np.uint8),
        }
        crc = 0
        for name in sorted(arrays):
            crc = zlib.crc32(bytes(arrays[name]), zlib.crc32(name.encode(), crc))
        file = memory_file(save(arrays, {"format": "ms", "crc_num": str(crc)}))
        any_format.check_crc(file, safetensors.read_index(file))

    def test_of_mindspores_own_making(self) -> None:
        # save_checkpoint(..., format="safetensors", crc_check=True) of 2.10.0: Int64 scalar 7, Int4, Bool scalar
        header = (
            b'{"__metadata__":{"crc_num":"3447027648","format":"ms","q":"Int4"},'
            b'"i":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"z":{"dtype":"F32","shape":[0,3],"data_offsets":[8,8]},'
            b'"q":{"dtype":"I8","shape":[3],"data_offsets":[8,11]},'
            b'"b":{"dtype":"BOOL","shape":[],"data_offsets":[11,12]}}       '
        )
        file = memory_file(with_header(header, b"\x07\0\0\0\0\0\0\0\x01\x02\x03\x01"))
        index = safetensors.read_index(file)
        assert index.entries["q"].dtype is INT4
        assert index.entries["z"].shape == (0, 3)
        any_format.check_crc(file, index)

    def test_a_huge_scalar_takes_no_time(self) -> None:
        file = memory_file(save({"step": np.array(2**63 - 1)}, {"crc_num": "1"}))
        with pytest.raises(CheckpointError, match="wrong CRC-32"):
            any_format.check_crc(file, safetensors.read_index(file))

    def test_a_negative_scalar_counts_by_its_bytes(self) -> None:
        crc = zlib.crc32(b"step" + b"\xff" * 8)  # MindSpore can make none
        file = memory_file(save({"step": np.array(-1)}, {"crc_num": str(crc)}))
        any_format.check_crc(file, safetensors.read_index(file))
        file = memory_file(save({"step": np.array(-1)}, {"crc_num": "1"}))
        with pytest.raises(CheckpointError, match=f"wrong CRC-32: the file says 1, its contents give {crc}"):
            any_format.check_crc(file, safetensors.read_index(file))

    def test_without_one_nothing_is_read(self) -> None:
        file = memory_file(save({"w": np.zeros(3)}))
        index = safetensors.read_index(file)
        file.reads.clear()
        any_format.check_crc(file, index)
        assert file.reads == []


class TestMetadata:
    def test_int4(self) -> None:
        index = read(save({"q": np.zeros((2, 3), np.int8)}, {"q": "Int4"}))
        assert (index.entries["q"].dtype, index.entries["q"].shape) == (INT4, (2, 3))

    def test_text(self) -> None:
        entries = read(save({"w": np.zeros(1)}, {"text:note": "héllo", "text:": "", "other": "ignored"})).entries
        assert set(entries) == {"w", "note", ""}
        assert entries["note"] == TensorEntry("note", TEXT, (20,), (), "héllo")
        assert entries[""] == TensorEntry("", TEXT, (4,), (), "")

    def test_a_tensor_named_like_the_format_field(self) -> None:
        assert read(save({"format": np.zeros(1)}, {"format": "ms"})).entries["format"].dtype.name == "Float64"

    def test_no_metadata(self) -> None:
        assert not read(save({"w": np.zeros(1)})).redundancy_removed

    def test_entries_are_in_the_order_of_their_bytes(self) -> None:
        header = {"b": described("I8", [1], 1, 2), "a": described("I8", [1], 0, 1), "none": described("I8", [0], 1, 1)}
        index = read(with_header(header, b"ab"))
        assert list(index.entries) == ["a", "none", "b"]


W = described("I8", [2], 0, 2)
BAD = {
    "empty": (b"", "the file is empty"),
    "seven bytes": (bytes(7), "has 7 bytes, too few"),
    "header beyond the file": (
        with_header({"w": W})[:-1],
        "at byte 0: the file, .* bytes, ends in the middle of a .*-byte header",
    ),
    "header length of 2^63": (
        (2**63).to_bytes(8, "little") + b"{}",
        "a 9,223,372,036,854,775,808-byte header, larger than",
    ),
    "not UTF-8": (with_header(b'{"\xff":1}'), "the header is not valid JSON"),
    "not JSON": (with_header(b"{"), "the header is not valid JSON"),
    "NaN": (with_header(b'{"w":NaN}'), "the header is not valid JSON .NaN is not JSON"),
    "deep": (with_header(b"[" * 200_000), "the header is not valid JSON"),
    "huge number": (with_header(b'{"w":' + b"9" * 5000 + b"}"), "the header is not valid JSON"),
    "lone surrogate": (with_header(b'{"\\ud800":1}'), "the header is not valid JSON"),
    "lone surrogate in a text": (with_header(b'{"__metadata__":{"text:a":"\\ud800"}}'), "the header is not valid JSON"),
    "no object": (with_header([1]), "the header is not a JSON object"),
    "shape of 65 axes": (with_header({"w": described("I8", [1] * 65, 0, 1)}, b"x"), "not a list of at most 64 counts"),
    "name twice": (with_header(b'{"w":1,"v":1,"w":2}'), "the header has 'w' twice"),
    "field twice": (with_header(b'{"w":{"dtype":"I8","dtype":"U8"}}'), "the header has 'dtype' twice"),
    "metadata a list": (with_header({"__metadata__": []}), "__metadata__ does not map names to strings"),
    "metadata of numbers": (with_header({"__metadata__": {"a": 1}}), "__metadata__ does not map names to strings"),
    "tensor a number": (with_header({"w": 1}), "parameter 'w' is not described by dtype, shape and data_offsets"),
    "no shape": (with_header({"w": {"dtype": "I8", "data_offsets": [0, 0]}}), "parameter 'w' is not described by"),
    "dtype a number": (
        with_header({"w": described(8, [2], 0, 2)}, b"ab"),
        "parameter 'w': its dtype 8 is not a string",
    ),
    "4-bit floats of another length": (
        with_header({"w": described("F4", [5], 0, 2)}, b"ab"),
        "parameter 'w': 2 bytes cannot be 5 elements of the dtype F4: damaged",
    ),
    "no name of a dtype": (
        with_header({"w": described("", [2], 0, 2)}, b"ab"),
        "parameter 'w': '' cannot be the name of a dtype: damaged",
    ),
    "negative shape": (
        with_header({"w": described("I8", [-2, -1], 0, 2)}, b"ab"),
        r"its shape \[-2, -1\] is not a list",
    ),
    "shape of floats": (with_header({"w": described("I8", [2.0], 0, 2)}, b"ab"), r"its shape \[2.0\] is not a list"),
    "shape of booleans": (with_header({"w": described("I8", [True], 0, 1)}, b"a"), r"its shape \[True\] is not a list"),
    "one offset": (
        with_header({"w": {**W, "data_offsets": [2]}}, b"ab"),
        r"data_offsets \[2\] are not a start and a stop",
    ),
    "offsets backward": (with_header({"w": described("I8", [2], 2, 0)}, b"ab"), "are not a start and a stop"),
    "negative offset": (with_header({"w": described("I8", [2], -2, 0)}, b"ab"), "are not a start and a stop"),
    "wrong length": (with_header({"w": described("I8", [3], 0, 2)}, b"ab"), r"hold 2 bytes, but Int8 \[3\] takes 3"),
    "huge shape": (with_header({"w": described("I8", [2**62] * 9, 0, 2)}, b"ab"), "hold 2 bytes, but Int8"),
    "a dimension of 2^64-1 beside one of 0": (
        with_header({"w": described("I8", [0, 2**64 - 1], 0, 0)}),
        r"parameter 'w': its shape \[0, 18446744073709551615\] is too large .*as Int8: damaged",
    ),
    "a dimension of 2^63 beside one of 0": (
        with_header({"w": described("I8", [2**63, 0], 0, 0)}),
        r"parameter 'w': its shape \[9223372036854775808, 0\] is too large .*as Int8: damaged",
    ),
    "bytes of 2^63 but for a dimension of 0": (
        with_header({"w": described("F64", [2**30, 0, 2**30], 0, 0)}),
        r"parameter 'w': its shape \[1073741824, 0, 1073741824\] is too large .*as Float64: damaged",
    ),
    "beyond the end": (with_header({"w": W}, b"a"), "parameter 'w': its 2 bytes end at .* after the file's end"),
    "offset of 2^63": (
        with_header({"w": described("I8", [2], 2**63, 2**63 + 2)}, b"ab"),
        "'w': bytes that belong to no",
    ),
    "hole": (
        with_header({"w": W, "v": described("I8", [2], 3, 5)}, b"abcde"),
        "'v': bytes that belong to no parameter lie",
    ),
    "overlap": (with_header({"w": W, "v": described("I8", [2], 1, 3)}, b"abc"), "'v': it overlaps the one before"),
    "bytes behind": (with_header({"w": W}, b"abc"), "1 bytes that belong to no parameter"),
    "tensor and text": (
        with_header({"__metadata__": {"text:w": "x"}, "w": W}, b"ab"),
        "'w' is both a tensor and a text",
    ),
    "text too long": (with_header({"__metadata__": {"text:t": "x" * 262_145}}), "text entry 't' has 1048580 bytes"),
    "CRC no number": (with_header({"__metadata__": {"crc_num": "12x"}}), "gives crc_num '12x', which is not a CRC-32"),
    "redundancy neither": (with_header({"__metadata__": {"remove_redundancy": "true"}}), "neither True nor False"),
}


@pytest.mark.parametrize(("tag", "mark"), [("I8", "Int2"), ("F16", "Int4")])
def test_a_mark_of_an_unknown_dtype_makes_the_tensor_one_of_it(tag: str, mark: str) -> None:
    size = {"I8": 1, "F16": 2}[tag]
    header = {
        "__metadata__": {"w": mark},
        "w": described(tag, [2], 0, 2 * size),
        "v": described("I8", [1], 2 * size, 2 * size + 1),
    }
    index = read(with_header(header, bytes(2 * size + 1)))
    entry = index.entries["w"]
    assert (entry.dtype.name, entry.dtype.is_foreign, entry.size_bytes) == (f"{tag}:{mark}", True, 2 * size)
    assert not index.entries["v"].dtype.is_foreign


@pytest.mark.parametrize("case", BAD)
def test_refused(case: str) -> None:
    data, message = BAD[case]
    with pytest.raises(CheckpointError, match=message) as caught:
        read(data)
    assert str(caught.value).startswith("/somewhere/model.safetensors: ")


def test_a_header_beyond_the_limit_is_not_read() -> None:
    file = memory_file((200_000_000).to_bytes(8, "little"), size_bytes=300_000_000)
    with pytest.raises(CheckpointError, match="a 200,000,000-byte header, larger than 100,000,000 bytes"):
        safetensors.read_index(file)
    assert file.reads == [(0, 8)]


def test_more_than_2_gib() -> None:
    size = 5 << 30
    data = with_header({"a": described("I8", [size], 0, size), "b": described("F32", [], size, size + 4)})
    index = safetensors.read_index(memory_file(data, len(data) + size + 4))
    assert index.entries["b"].extents == (Extent(len(data) + size, 4),)


def content_of(name: str, size_bytes: int) -> bytes:
    return ((name.encode() + bytes(range(2))) * (size_bytes + 1))[:size_bytes]


def plain_name(name: str) -> bool:
    return name not in ("__metadata__", "format", "remove_redundancy", "crc_num") and not name.startswith("text:")


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(plain_name)
tensors = st.builds(
    lambda name, dtype, shape: OutputEntry(name, dtype_from_name(dtype), tuple(shape)),
    names,
    st.sampled_from([*NUMPY_DTYPES.values(), "Int4"]),
    st.lists(st.integers(0, 5), max_size=3),
)
texts = st.builds(
    lambda name, text: OutputEntry(name, TEXT, (4 * max(1, len(text)),), text),
    names,
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


@given(st.lists(st.one_of(tensors, texts), max_size=8, unique_by=lambda entry: entry.name))
def test_what_is_planned_reads_back_here_and_in_the_library(entries: list[OutputEntry]) -> None:
    sizes = {entry.name: entry.size_bytes for entry in entries}
    data = filled(safetensors.plan_file(entries), lambda name: content_of(name, sizes[name]))
    index = read(data)
    assert set(index.entries) == set(sizes)
    for entry in entries:
        found = index.entries[entry.name]
        assert (found.dtype, found.shape, found.text) == (entry.dtype, entry.shape, entry.text)
        if entry.text is None:
            assert extents_bytes(data, found.extents) == content_of(entry.name, sizes[entry.name])
            assert all(extent.offset % entry.dtype.itemsize == 0 for extent in found.extents)
    loaded = dict(library.deserialize(data))
    planned = {entry.name: entry for entry in entries if entry.text is None}
    assert set(loaded) == set(planned)
    for name, tensor in loaded.items():
        assert tuple(tensor["shape"]) == planned[name].shape
        assert NUMPY_DTYPES[tensor["dtype"]] == planned[name].dtype.name.replace("Int4", "Int8")
        assert bytes(tensor["data"]) == content_of(name, sizes[name])


class TestPlan:
    def test_header(self, tmp_path: Path) -> None:
        entries = [
            OutputEntry("mask", dtype_from_name("Bool"), (3,)),
            OutputEntry("w", dtype_from_name("Float32"), (2, 1)),
            OutputEntry("step", dtype_from_name("Int64"), ()),
            OutputEntry("packed", INT4, (2,)),
            OutputEntry("note", TEXT, (4,), "é"),
            OutputEntry("v", dtype_from_name("Float32"), (0,)),
        ]
        plan = safetensors.plan_file(entries)
        head = plan.segments[0]
        assert isinstance(head, bytes)
        assert len(head) % 8 == 0
        header = json.loads(head[8:])
        assert header.pop("__metadata__") == {
            "format": "ms", "remove_redundancy": "False", "packed": "Int4", "text:note": "é"
        }  # fmt: skip
        assert list(header) == ["step", "w", "v", "mask", "packed"]
        path = tmp_path / "model.safetensors"
        path.write_bytes(filled(plan, lambda name: bytes(8)))
        with library.safe_open(path, framework="numpy") as file:
            assert file.get_tensor("w").shape == (2, 1)
            assert file.metadata()["text:note"] == "é"

    def test_same_entries_same_bytes(self) -> None:
        entries = [OutputEntry(name, dtype_from_name("Float16"), (2,)) for name in "cab"]
        assert safetensors.plan_file(entries) == safetensors.plan_file(list(entries))

    @pytest.mark.parametrize("name", ["__metadata__", "format", "remove_redundancy", "crc_num", "text:w"])
    def test_names_of_the_header(self, name: str) -> None:
        with pytest.raises(CheckpointError, match=f"parameter '{name}': .safetensors files use this name"):
            safetensors.plan_file([OutputEntry(name, dtype_from_name("Int8"), (1,))])

    def test_text_of_such_a_name_is_fine(self) -> None:
        head = safetensors.plan_file([OutputEntry("format", TEXT, (4,), "x")]).segments[0]
        assert isinstance(head, bytes)
        assert read(head).entries["format"].text == "x"

    def test_map_tensor(self) -> None:
        with pytest.raises(CheckpointError, match=r"parameter 'table' is a MapTensor, which .safetensors cannot hold"):
            safetensors.plan_file([OutputEntry("table", MAP_TENSOR, (4,), None, (4,))])

    def test_text_that_utf8_cannot_hold(self) -> None:
        with pytest.raises(CheckpointError, match="text entry 'note' has characters that UTF-8"):
            safetensors.plan_file([OutputEntry("note", TEXT, (4,), "\ud800")])

    def test_header_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(safetensors, "MAX_HEADER_BYTES", 100)
        with pytest.raises(CheckpointError, match=r"too many parameters .* its header would take 128 bytes"):
            safetensors.plan_file([OutputEntry("w" * 10, dtype_from_name("Int8"), (1,))])


def test_hostile_headers_take_no_time() -> None:
    """Both took hours: a product of millions of large numbers, and a search for the name that is there twice."""
    numbers = ",".join(["9" * 4000] * 5000)
    with pytest.raises(CheckpointError, match="not a list of at most 64 counts") as caught:
        read(with_header(f'{{"w":{{"dtype":"I8","shape":[{numbers}],"data_offsets":[0,1]}}}}'.encode(), b"x"))
    assert len(str(caught.value)) < 300
    names = ",".join(f'"w{number}":1' for number in range(100_000))
    with pytest.raises(CheckpointError, match="the header has 'w99999' twice"):
        read(with_header(f'{{{names},"w99999":2}}'.encode()))

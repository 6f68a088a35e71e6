import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import CatalogError
from reshard.core.files import ckpt, ckpt_writing
from reshard.core.files.ckpt_writing import expected_heads
from reshard.core.files.model import OutputEntry, text_entry
from reshard.core.files.remote_index.templates import Template, header_mismatch, read_template
from reshard.core.tensor.dtypes import INT4, MAP_TENSOR, dtype_from_name
from tests.support.ckpt_writer import blob, checkpoint_bytes, number, varint
from tests.support.remote_file import RemoteFile, planned_parts, sparse_file

FLOAT = dtype_from_name("Float32")


def template(data: bytes) -> Template | None:
    return read_template(RemoteFile([(0, data)], len(data)))[1]


names = st.one_of(st.text(max_size=20).filter(lambda text: text.isprintable()), st.just("n" * 128), st.just("n" * 300))
tensors = st.builds(
    lambda name, dtype, shape: OutputEntry(name, dtype, tuple(shape)),
    names,
    st.sampled_from([FLOAT, INT4, dtype_from_name("Bool")]),
    st.lists(st.integers(0, 12), max_size=4),
)
maps = st.builds(
    lambda name, lengths: OutputEntry(name, MAP_TENSOR, (sum(lengths),), None, tuple(lengths)),
    names,
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
)


@given(st.lists(st.one_of(tensors, maps), min_size=1, max_size=8, unique_by=lambda entry: entry.name))
def test_the_heads_and_the_contents_are_the_whole_file(entries: list[OutputEntry]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ckpt_writing, "MAX_PIECE_BYTES", 1000)
        file = sparse_file(entries)
        index = ckpt.read_index(file)
        covered = [
            (head.offset, head.data, extent)
            for entry in index.entries.values()
            for head, extent in zip(expected_heads(entry), entry.extents, strict=True)
        ]
    position = 0
    for offset, head, extent in covered:
        assert offset == position
        assert file.read_many([(offset, len(head))]) == [head]
        assert extent.offset == offset + len(head)
        position = extent.offset + extent.length
    assert position == file.size_bytes


def test_a_text_has_no_heads() -> None:
    assert expected_heads(text_entry("note", "abc")) == ()


@given(st.lists(st.one_of(tensors, maps), min_size=1, max_size=8, unique_by=lambda entry: entry.name), st.booleans())
def test_a_file_as_mindspore_writes_it_is_a_template(entries: list[OutputEntry], has_crc: bool) -> None:
    parts, size_bytes = planned_parts(entries)
    if has_crc:
        parts, size_bytes = [*parts, (size_bytes, b"crc_num" + bytes(10))], size_bytes + 17
    file = RemoteFile(parts, size_bytes)
    index, found = read_template(file)
    short_names = all(len(entry.name.encode()) < 200 for entry in entries)
    assert found is not None or not short_names or size_bytes < 17
    if found is not None:
        assert found.index == index
        assert found.fits(file.read_many(found.sampled))


def tensor(dims: bytes = number(1, 24), content: bytes = bytes(24), kind: bytes = blob(2, b"UInt8")) -> bytes:
    return dims + kind + blob(3, content)


def value(name: bytes, tensor_bytes: bytes) -> bytes:
    return blob(1, blob(1, name) + blob(2, tensor_bytes))


GOOD = value(b"a", tensor()) + value(b"b", tensor())
NO_TEMPLATES = {
    "a text": GOOD + value(b"t", blob(2, b"str") + blob(3, b"a\0\0\0")) + value(b"c", tensor()),
    "a text last": GOOD + value(b"t", blob(2, b"str") + blob(3, b"a\0\0\0")),
    "a name that comes again later": GOOD + value(b"a", tensor()),
    "the type before the dims": GOOD + value(b"c", blob(2, b"UInt8") + number(1, 24) + blob(3, bytes(24))),
    "contents before the type": GOOD + value(b"c", number(1, 24) + blob(3, bytes(24)) + blob(2, b"UInt8")),
    "packed dims": GOOD + value(b"c", blob(1, b"\x18") + blob(2, b"UInt8") + blob(3, bytes(24))),
    "a scalar with dims [0]": GOOD + value(b"c", tensor(number(1, 0), b"x")),
    "pieces that are not MindSpore's": GOOD + 2 * value(b"c", tensor(content=bytes(12))),
    "an unknown field between": value(b"a", tensor()) + number(9, 1) + value(b"b", tensor()),
    "an unknown field at the end": GOOD + number(9, 1),
    "an unknown field in an entry": GOOD + blob(1, blob(1, b"c") + blob(2, tensor()) + number(9, 1)),
    "a length with a byte too many": GOOD + varint(10) + b"\xa8\x00" + value(b"c", tensor())[2:],
    "a name that follows the tensor": GOOD + blob(1, blob(2, tensor()) + blob(1, b"c")),
    "nothing but 16 bytes": value(b"", blob(2, b"UInt8") + blob(3, b"x")),
}


def test_the_good_file_is_a_template() -> None:
    assert template(GOOD) is not None


@pytest.mark.parametrize("case", NO_TEMPLATES)
def test_no_template(case: str) -> None:
    data = NO_TEMPLATES[case]
    assert ckpt.read_index(RemoteFile([(0, data)], len(data))).entries
    assert template(data) is None


def test_a_crc_that_the_other_has_not_is_unlike() -> None:
    names = ["a", "b"]
    plain = checkpoint_bytes(*((name, "UInt8", [24], bytes(24)) for name in names))
    found = template(plain)
    assert found is not None
    with_crc = plain[:-17] + b"crc_num" + bytes(10)
    assert not found.fits(RemoteFile([(0, with_crc)], len(with_crc)).read_many(found.sampled))


@pytest.mark.parametrize("place", ["layers.3.experts.4.w1", "embedding", "head"])
def test_samples_are_where_ranks_differ(place: str) -> None:
    """Experts of other numbers on each rank, other first and last parameters."""
    layer = ["norm", "wq", "wk", "wv", "wo", "w1", "w2", "w3"]
    names = ["embedding", *(f"layers.{number}.{part}" for number in range(30) for part in layer), "head"]
    experts = [f"layers.3.experts.{number}.{part}" for number in range(4, 8) for part in ("w1", "w2")]
    at = names.index("layers.3.wo")
    names = names[:at] + experts + names[at:]
    entries = [OutputEntry(name, FLOAT, (1000, 30)) for name in names]
    found = read_template(sparse_file(entries))[1]
    assert found is not None
    assert len(found.sampled) <= 10
    renamed = {name: name.replace("experts.4", "experts.0").replace("experts.5", "experts.1") for name in names}
    if "experts" not in place:
        renamed = {name: name.replace(place, "x" * len(place)) for name in names}
    other = sparse_file([OutputEntry(renamed[name], FLOAT, (1000, 30)) for name in names])
    assert not found.fits(other.read_many(found.sampled))


def test_error_of_a_file_that_is_not_as_assumed() -> None:
    error = header_mismatch(3, "s3://b/rank_3/a.ckpt", "w", 77)
    assert isinstance(error, CatalogError)
    assert str(error).startswith("rank_3: s3://b/rank_3/a.ckpt: parameter 'w' does not begin at byte 77")

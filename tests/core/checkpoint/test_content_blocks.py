"""Contents as boxes: whatever blocks, ranges and extents, every element comes once, in its place."""

from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.checkpoint.content_blocks import ElementRange, read_blocks, text_bytes, worker_ranges
from reshard.core.errors import CatalogError
from reshard.core.files import ckpt_writing
from reshard.core.files.any_format import plan_file
from reshard.core.files.encryption.opening import open_checkpoint
from reshard.core.files.model import CheckpointFormat, OutputEntry
from reshard.core.layouts.cataloging import catalog_files
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import TEXT, dtype_from_name
from tests.support.ckpt_writer import filled
from tests.support.models import random_bits

SHAPES = st.sampled_from([(), (1,), (7,), (5, 3), (4, 1, 6), (2, 3, 4, 5), (0, 3)])


def record_of(url: str, *, assumed: bool = False) -> CatalogRecord:
    record = catalog_files("test", {0: parse_url(url)}, digest=lambda *_: False).records[0]
    return replace(record, assumed=assumed)


def written(path: Path, tensors: dict[str, tuple[str, np.ndarray]], piece_bytes: int = 2**29) -> str:
    entries = [OutputEntry(name, dtype_from_name(dtype), whole.shape) for name, (dtype, whole) in tensors.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ckpt_writing, "MAX_PIECE_BYTES", piece_bytes)
        plan = plan_file(CheckpointFormat.CKPT, [*entries, OutputEntry("note", TEXT, (8,), "hé")])
    path.write_bytes(filled(plan, lambda name: tensors[name][1].tobytes()))
    return str(path)


def put(path: Path, url: str) -> str:
    fsspec.filesystem("memory").pipe(url, path.read_bytes())
    return url


@settings(max_examples=40)
@given(st.data())
def test_every_element_comes_once(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("contents")
    dtypes = data.draw(st.lists(st.sampled_from(["Int8", "BFloat16", "Float32", "Int64"]), min_size=1, max_size=3))
    tensors = {f"p{n}": (dtype, random_bits(dtype, data.draw(SHAPES), n)) for n, dtype in enumerate(dtypes)}
    # pieces of odd lengths: borders inside rows and inside elements
    piece_bytes = data.draw(st.sampled_from([5, 13, 2**29]))
    url = written(directory / "m.ckpt", tensors, piece_bytes)
    remote = data.draw(st.booleans())
    if remote:
        url = put(directory / "m.ckpt", f"memory://{directory.name}/m.ckpt")
    record = record_of(url, assumed=remote and piece_bytes > 100 and data.draw(st.booleans()))
    entries = list(record.index.entries.values())
    workers = data.draw(st.integers(1, 5))
    ranges = [entry_range for number in range(workers) for entry_range in worker_ranges(entries, number, workers)]
    assert {entry_range.entry.name for entry_range in ranges} == {entry.name for entry in entries}
    found = {name: np.zeros_like(whole) for name, (_, whole) in tensors.items()}
    counts = {name: np.zeros(whole.shape, int) for name, (_, whole) in tensors.items()}
    file = open_checkpoint(parse_url(url), None)
    texts = 0
    buffer = np.empty(data.draw(st.sampled_from([8, 24, 100, 2**20])), np.uint8)
    for entry, box, values in read_blocks(file, record, ranges, buffer):
        if entry.text is not None:
            texts += 1
            assert values.tobytes().decode("utf-32-le") == "hé"
            assert box.shape == values.shape == entry.shape
            continue
        assert values.nbytes <= len(buffer)
        found[entry.name][box.as_index()] = values
        counts[entry.name][box.as_index()] += 1
    file.close()
    assert texts == 1
    for name, (_, whole) in tensors.items():
        assert np.array_equal(found[name], whole)
        assert (counts[name] == 1).all()


def test_headers_that_were_assumed_are_compared(tmp_path: Path) -> None:
    tensors = {name: ("Int32", random_bits("Int32", (40,), 1)) for name in ("one", "two")}
    url = put(Path(written(tmp_path / "m.ckpt", tensors)), "memory://heads/m.ckpt")
    record = record_of(url, assumed=True)
    others = {"one": tensors["one"], "owt": tensors["two"]}
    put(Path(written(tmp_path / "other.ckpt", others)), url)
    file = open_checkpoint(parse_url(url), None)
    ranges = [ElementRange.whole(record.index.entries[name]) for name in tensors]
    blocks = read_blocks(file, record, ranges, np.empty(64, np.uint8))
    assert next(blocks)[0].name == "one"
    with pytest.raises(CatalogError, match="parameter 'two' does not begin at byte"):
        list(blocks)


def test_texts_are_their_code_units() -> None:
    assert text_bytes("aé").tobytes() == "aé".encode("utf-32-le")
    assert text_bytes("").tobytes() == bytes(4)
    assert text_bytes("\ud800").size == 4

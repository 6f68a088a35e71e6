"""What files add to fingerprints: pieces, turns and casts of what they hold, and copies that differ."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from reshard.core.checkpoint.catalog.builder import catalog_files
from reshard.core.checkpoint.catalog.records import CatalogRecord
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.fingerprint import box_fingerprint
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.segments import Piece
from reshard.core.tensor.slices import TensorSlice
from reshard.core.verification import shard_fingerprints
from reshard.core.verification.shard_fingerprints import Cells, Share, shard_sums
from tests.support.ckpt_writer import checkpoint_bytes

WHOLE = np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)


@pytest.fixture
def record(tmp_path: Path) -> CatalogRecord:
    """A file that holds rows 3 to 5 of WHOLE."""
    path = tmp_path / "m.ckpt"
    path.write_bytes(checkpoint_bytes(("w", "Float32", (3, 4), WHOLE[3:].tobytes())))
    return catalog_files("test", {0: parse_url(str(path))}, digest=lambda *_: False).records[0]


def parse_stage_file(record: CatalogRecord, share: Share) -> int:
    [part] = shard_sums(record, {"w": [share]}).values()
    return part


def fingerprint(values: np.ndarray, *start: int) -> int:
    bits = np.ascontiguousarray(values).view(f"u{values.itemsize}")
    return box_fingerprint(bits, start or (0,) * values.ndim)


@pytest.mark.parametrize("block_bytes", [8, 20, 4 * 2**20])
def test_a_shard_adds_what_it_has_of_the_whole(
    record: CatalogRecord, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_fingerprints, "BLOCK_BYTES", block_bytes)
    rest = fingerprint(WHOLE[:3])
    assert (parse_stage_file(record, Share("w", (3, 0))) + rest) % 2**64 == fingerprint(WHOLE)
    # columns 1 and 2, turned, begin at [5, 0] of another tensor
    piece = Piece(0, TensorSlice((0, 1), (6, 3)), (1, 0), (5, 0))
    assert parse_stage_file(record, Share("w", (3, 0), piece)) == fingerprint(WHOLE[3:, 1:3].T, 5, 3)
    # of rows 0 to 3 the file has one
    piece = Piece(0, TensorSlice((0, 0), (4, 4)), (0, 1), (0, 0))
    assert parse_stage_file(record, Share("w", (3, 0), piece)) == fingerprint(WHOLE[3:4], 3, 0)
    nothing = Piece(0, TensorSlice((0, 0), (3, 4)), (0, 1), (0, 0))
    assert parse_stage_file(record, Share("w", (3, 0), nothing)) == 0
    cast = Share("w", (3, 0), dtype=dtype_from_name("BFloat16"))
    assert parse_stage_file(record, cast) == fingerprint(WHOLE[3:].astype(ml_dtypes.bfloat16), 3, 0)


def test_a_file_is_read_once_for_all_that_it_counts_for(record: CatalogRecord) -> None:
    told: list[int] = []
    shares = {"w": [Share("one", (0, 0)), Share("another", (3, 0)), Share("one", (3, 0))]}
    sums = shard_sums(record, shares, told.append)
    here, there = fingerprint(WHOLE[3:], 0, 0), fingerprint(WHOLE[3:], 3, 0)
    assert sums == {"one": (here + there) % 2**64, "another": there}
    assert sum(told) == 48


def test_cells_add_up_and_copies_are_told_apart() -> None:
    cells = Cells(ParameterLayout((2, 2), ((1,), ()), nested=True), (4, 2), 4)
    upper, lower = TensorSlice((0, 0), (2, 2)), TensorSlice((2, 0), (4, 2))
    assert cells.ranks == range(4, 8)
    assert cells.box(7) == lower
    assert cells.ranks_of(lower) == (6, 7)
    for rank, part in ((4, 10), (5, 10), (6, 3), (7, 2**64 - 1), (7, 4)):
        cells.add(rank, part)
    assert cells.fingerprint() == 13
    assert list(cells.differing()) == []
    cells.put(7, 4)
    assert list(cells.differing()) == [(lower, [[6], [7]])]
    assert list(cells.contents()) == [(upper, {10: [4, 5]}), (lower, {3: [6], 4: [7]})]


def test_without_a_holder_of_every_cell_there_is_no_fingerprint() -> None:
    cells = Cells(ParameterLayout((2, 2), ((1,), ()), nested=True), (4, 2), 0)
    cells.add(1, 5)
    assert cells.fingerprint() is None
    assert cells.holders == [1]
    cells.add(2, 6)
    assert cells.fingerprint() == 11

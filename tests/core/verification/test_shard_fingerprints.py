"""What files add to fingerprints: pieces, turns and casts of what they hold, and copies that differ."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from reshard.core.checkpoint import file_shares
from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.layouts.cataloging import catalog_files
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.fingerprint import box_fingerprint
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.segments import Piece
from reshard.core.tensor.slices import TensorSlice
from reshard.core.verification.shard_fingerprints import Contribution, ShardFingerprints, sum_contributions
from tests.support.ckpt_writer import checkpoint_bytes

WHOLE = np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32)


@pytest.fixture
def record(tmp_path: Path) -> CatalogRecord:
    """A file that holds rows 3 to 5 of WHOLE."""
    path = tmp_path / "m.ckpt"
    path.write_bytes(checkpoint_bytes(("w", "Float32", (3, 4), WHOLE[3:].tobytes())))
    return catalog_files("test", {0: parse_url(str(path))}, digest=lambda *_: False).records[0]


def part_of(record: CatalogRecord, share: Contribution[str]) -> int:
    [part] = sum_contributions(record, {"w": [share]}).values()
    return part


def fingerprint(values: np.ndarray, *start: int) -> int:
    bits = np.ascontiguousarray(values).view(f"u{values.itemsize}")
    return box_fingerprint(bits, start or (0,) * values.ndim)


@pytest.mark.parametrize("block_bytes", [8, 20, 4 * 2**20])
def test_a_shard_adds_what_it_has_of_the_whole(
    record: CatalogRecord, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_shares, "BLOCK_BYTES", block_bytes)
    rest = fingerprint(WHOLE[:3])
    assert (part_of(record, Contribution("w", (3, 0))) + rest) % 2**64 == fingerprint(WHOLE)
    # columns 1 and 2, turned, begin at [5, 0] of another tensor
    piece = Piece(0, TensorSlice((0, 1), (6, 3)), (1, 0), (5, 0))
    assert part_of(record, Contribution("w", (3, 0), piece)) == fingerprint(WHOLE[3:, 1:3].T, 5, 3)
    # of rows 0 to 3 the file has one
    piece = Piece(0, TensorSlice((0, 0), (4, 4)), (0, 1), (0, 0))
    assert part_of(record, Contribution("w", (3, 0), piece)) == fingerprint(WHOLE[3:4], 3, 0)
    nothing = Piece(0, TensorSlice((0, 0), (3, 4)), (0, 1), (0, 0))
    assert part_of(record, Contribution("w", (3, 0), nothing)) == 0
    cast = Contribution("w", (3, 0), dtype=dtype_from_name("BFloat16"))
    assert part_of(record, cast) == fingerprint(WHOLE[3:].astype(ml_dtypes.bfloat16), 3, 0)


def test_a_file_is_read_once_for_all_that_it_counts_for(record: CatalogRecord) -> None:
    message: list[int] = []
    shares = {"w": [Contribution("one", (0, 0)), Contribution("another", (3, 0)), Contribution("one", (3, 0))]}
    sums = sum_contributions(record, shares, message.append)
    here, there = fingerprint(WHOLE[3:], 0, 0), fingerprint(WHOLE[3:], 3, 0)
    assert sums == {"one": (here + there) % 2**64, "another": there}
    assert sum(message) == 48


def test_shards_add_up_and_differing_replicas_are_found() -> None:
    shards = ShardFingerprints(ParameterLayout((2, 2), ((1,), ()), nested=True), (4, 2), 4)
    upper, lower = TensorSlice((0, 0), (2, 2)), TensorSlice((2, 0), (4, 2))
    assert shards.ranks == range(4, 8)
    assert shards.box(7) == lower
    assert shards.ranks_of(lower) == (6, 7)
    for rank, part in ((4, 10), (5, 10), (6, 3), (7, 2**64 - 1), (7, 4)):
        shards.add(rank, part)
    assert shards.fingerprint() == 13
    assert list(shards.differing()) == []
    shards.add(7, 1)
    assert list(shards.differing()) == [(lower, [[6], [7]])]
    assert list(shards.contents()) == [(upper, {10: [4, 5]}), (lower, {3: [6], 4: [7]})]


def test_without_an_owner_of_every_box_there_is_no_fingerprint() -> None:
    shards = ShardFingerprints(ParameterLayout((2, 2), ((1,), ()), nested=True), (4, 2), 0)
    shards.add(1, 5)
    assert shards.fingerprint() is None
    assert shards.owners == [1]
    shards.add(2, 6)
    assert shards.fingerprint() == 11

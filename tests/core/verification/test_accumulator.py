"""Contributions of files to fingerprints: shards of a stage, boxes of them, and parameters that no strategy knows."""

from pathlib import Path

import numpy as np
import pytest

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.layouts.cataloging import catalog_files
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.fingerprint import box_fingerprint
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.segments import Piece
from reshard.core.tensor.slices import TensorSlice
from reshard.core.verification.accumulator import Addend, FingerprintAccumulator
from reshard.core.verification.shard_fingerprints import ShardFingerprints, sum_contributions
from tests.support.ckpt_writer import checkpoint_bytes

WHOLE = np.arange(24, dtype=np.uint32).reshape(6, 4)
ROWS = ParameterLayout((2,), ((0,), ()), nested=True)


@pytest.fixture
def records(tmp_path: Path) -> list[CatalogRecord]:
    """Two ranks with a half of WHOLE each, and a step that differs."""
    files = {}
    for rank, shard in enumerate(np.split(WHOLE, 2)):
        path = tmp_path / f"{rank}.ckpt"
        step = np.int32(rank).tobytes()
        path.write_bytes(checkpoint_bytes(("w", "UInt32", (3, 4), shard.tobytes()), ("step", "Int32", (), step)))
        files[rank] = parse_url(str(path))
    return list(catalog_files("test", files, digest=lambda *_: False).records.values())


def read(accumulator: FingerprintAccumulator, records: list[CatalogRecord]) -> None:
    for record in records:
        accumulator.add(record.rank, sum_contributions(record, accumulator.contributions(record)))


def test_shards_add_up_to_the_whole(records: list[CatalogRecord]) -> None:
    whole = Addend("w", ShardFingerprints(ROWS, WHOLE.shape, 0))
    column = Piece(0, TensorSlice((0, 1), (6, 2)), (1, 0), (0, 0))
    part = Addend("w", ShardFingerprints(ROWS, WHOLE.shape, 0), [column])
    read(FingerprintAccumulator([whole, part]), records)
    assert whole.shards.fingerprint() == box_fingerprint(WHOLE, (0, 0))
    assert part.shards.fingerprint() == box_fingerprint(WHOLE[:, 1:2].T, (0, 0))


def test_each_rank_has_its_own_content_of_what_no_strategy_knows(records: list[CatalogRecord]) -> None:
    step = Addend("step", ShardFingerprints.of_wholes([0, 1]))
    read(FingerprintAccumulator([step]), records)
    assert [step.shards[rank] for rank in (0, 1)] == [box_fingerprint(np.array(rank, np.uint32), ()) for rank in (0, 1)]
    [(_, contents)] = step.shards.contents()
    assert sorted(contents.values()) == [[0], [1]]


def test_only_entries_of_a_file_contribute(records: list[CatalogRecord]) -> None:
    elsewhere = Addend("w", ShardFingerprints(ROWS, WHOLE.shape, 4))
    missing = Addend("v", ShardFingerprints(ROWS, WHOLE.shape, 0))
    accumulator = FingerprintAccumulator([elsewhere, missing])
    assert accumulator.contributions(records[0]) == {}
    assert missing.shards.fingerprint() is None

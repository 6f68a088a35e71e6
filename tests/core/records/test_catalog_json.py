import json
from typing import Any

import pytest
from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat, FileIndex, TensorEntry, text_entry
from reshard.core.records.catalog_json import catalog_from_json, catalog_to_json
from reshard.core.tensor.dtypes import INT4, MAP_TENSOR, dtype_from_name
from reshard.core.tensor.slices import Extent


def index(*entries: TensorEntry, **options: Any) -> FileIndex:
    return FileIndex(CheckpointFormat.CKPT, 12345, {entry.name: entry for entry in entries}, **options)


def small_catalog() -> CheckpointCatalog:
    one = index(
        TensorEntry("wéight", dtype_from_name("BFloat16"), (3, 5), (Extent(7, 20), Extent(90, 10))),
        TensorEntry("scalar", dtype_from_name("Int64"), (), (Extent(1 << 40, 8),)),
        TensorEntry("packed", INT4, (4,), (Extent(300, 4),)),
        TensorEntry("table", MAP_TENSOR, (9,), (Extent(400, 9),)),
        TensorEntry("empty", dtype_from_name("Float32"), (0, 3), ()),
        text_entry("note", "naïve \U0001f600"),
        text_entry("nothing", ""),
        has_crc=True,
    )
    other = index(redundancy_removed=True)
    records = {
        0: CatalogRecord(0, "/ck/rank_0/a.ckpt", 12345, "12345-6", one, {"scalar": "00ff"}),
        1: CatalogRecord(1, "s3://bucket/rank_1/a.ckpt", 12345, "etag", other),
        2: CatalogRecord(2, "/ck/rank_2/a.ckpt", 12345, "12345-8", one, assumed=True),
    }
    lost = {3: "it has no checkpoint file", 5: "named as faulty"}
    return CheckpointCatalog("/ck", CheckpointFormat.CKPT, "10_5", records, ("chosen: it", "ignored: that"), lost)


def through_json(catalog: CheckpointCatalog) -> CheckpointCatalog:
    return catalog_from_json(json.loads(json.dumps(catalog_to_json(catalog))))


def test_round_trip() -> None:
    before = small_catalog()
    after = through_json(before)
    assert after == before
    assert list(after.records) == [0, 1, 2]
    assert list(after.records[0].index.entries) == list(before.records[0].index.entries)
    assert isinstance(after.format, CheckpointFormat)


def test_no_step_stays_none() -> None:
    catalog = CheckpointCatalog("/ck", CheckpointFormat.SAFETENSORS, None, {})
    assert through_json(catalog) == catalog


def test_what_was_assumed_is_kept_apart_from_what_the_files_are() -> None:
    """An identity of the files can leave it out."""
    data = catalog_to_json(small_catalog())
    assert data.pop("assumed") == [2]
    read = small_catalog()
    records = {rank: replace(record, assumed=False) for rank, record in read.records.items()}
    other = catalog_to_json(replace(read, records=records))
    assert other.pop("assumed") == []
    assert other == data


def test_shared_index_is_stored_once_and_shared_again() -> None:
    data = catalog_to_json(small_catalog())
    assert len(data["indexes"]) == 2
    after = catalog_from_json(data)
    assert after.records[0].index is after.records[2].index


@pytest.mark.parametrize(
    "change",
    [
        {"records": [[0]]},
        {"records": [[0, "a", 1, "v", 7, {}]]},
        {"records": 3},
        {"assumed": 3},
        {"format": "pth"},
        {"indexes": [{}]},
        {"indexes": [5]},
        {"notes": None},
        {"indexes": [{"format": "ckpt", "size_bytes": 1, "entries": [["w", "Float7", [], []]]}]},
        {"indexes": [{"format": "ckpt", "size_bytes": 1, "entries": [["w", "Float32", [], [1]]]}]},
        {"indexes": [{"format": "ckpt", "size_bytes": 1, "entries": [["w"]]}]},
    ],
)
def test_what_is_not_a_catalog(change: dict[str, Any]) -> None:
    with pytest.raises(CatalogError, match="not a checkpoint catalog"):
        catalog_from_json({**catalog_to_json(small_catalog()), **change})


@pytest.mark.parametrize("key", ["url", "format", "step", "notes", "indexes", "records", "lost", "assumed"])
def test_missing_field(key: str) -> None:
    data = catalog_to_json(small_catalog())
    del data[key]
    with pytest.raises(CatalogError, match=key):
        catalog_from_json(data)


def test_many_ranks_stay_small() -> None:
    dtype = dtype_from_name("BFloat16")
    stages = [
        index(*(TensorEntry(f"{stage}.{n}", dtype, (1024, 64), (Extent(n * 131072, 131072),)) for n in range(2000)))
        for stage in range(4)
    ]
    records = {
        rank: CatalogRecord(rank, f"/ck/rank_{rank}/a.ckpt", 12345, "1-2", stages[rank % 4]) for rank in range(4096)
    }
    catalog = CheckpointCatalog("/ck", CheckpointFormat.CKPT, None, records)
    text = json.dumps(catalog_to_json(catalog))
    after = catalog_from_json(json.loads(text))
    assert len(text) < 2_000_000
    assert [after.records[rank].index for rank in range(4)] == stages
    assert all(after.records[rank].index is after.records[rank % 4].index for rank in range(4096))

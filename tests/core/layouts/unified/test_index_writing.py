"""The index of a unified target against the records of its files."""

from pathlib import Path

import pytest

from reshard.core.checkpoint.manifest import IndexSummary, ParameterRecord, ShardRecord
from reshard.core.layouts.targets import side_named
from reshard.core.layouts.unified.names import INDEX_NAME
from reshard.core.layouts.weight_maps import dump_weight_map
from reshard.core.storage.urls import parse_url
from reshard.core.target.documents import places_problem


def record(rank: int, file: str, *names: str, dtype: str = "Float32") -> ShardRecord:
    parameters = tuple(ParameterRecord(name=name, dtype=dtype, shape=(1,), digest="") for name in names)
    return ShardRecord(
        identity="",
        rank=rank,
        file=file,
        size_bytes=0,
        copy_of=None,
        source_ranks=(),
        read_bytes=0,
        seconds=0,
        heads=(),
        parameters=parameters,
    )


RECORDS = (
    record(0, "one.safetensors", "a", "b"),
    record(1, "two.safetensors", "c"),
    record(2, "two.safetensors", "note", dtype="str"),
    record(3, "hyper_param.safetensors", "global_step"),
)
RIGHT = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        (dump_weight_map(RIGHT, 12), None),
        (dump_weight_map(RIGHT | {"b": "two.safetensors"}, 12), "'b' is in two.safetensors, it is in one.safetensors"),
        (dump_weight_map({"a": "one.safetensors"}, 12), "'b' is nowhere, it is in one.safetensors"),
        (dump_weight_map(RIGHT | {"d": "two.safetensors"}, 12), "names 'd', which is in no file"),
        (b"{", "is not a map of parameters to files"),
    ],
)
def test_an_index_says_where_tensors_are(index: bytes, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_bytes(index)
    summary = IndexSummary(file=INDEX_NAME, size_bytes=len(index), digest="")
    found = places_problem(parse_url(str(tmp_path)), side_named("unified"), summary, RECORDS)
    assert found is None if problem is None else problem in (found or "")

"""One rank's work: whatever the cuts, blocks, gaps and extents, the file holds what literal splitting gives."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import core.gather as gather_module
from core.checkpoint import ckpt
from core.checkpoint.catalog import build_catalog
from core.checkpoint.formats import plan_file
from core.checkpoint.model import CheckpointFormat, OutputEntry
from core.dtypes import dtype_from_name
from core.plan import PlanInputs, build_plan
from core.storage.urls import parse_url
from core.transform import transform_rank
from tests.core.test_layout import as_layout
from tests.core.test_plan import make_strategy
from tests.support.checkpoints import read_rank
from tests.support.ckpt_writer import filled
from tests.support.reference import AXIS_LENGTH, RandomLayout, layouts, shard_of

DTYPES = {"Int8": np.int8, "Float16": np.float16, "Int32": np.int32, "Int64": np.int64}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_file_holds_the_shards(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather_module, "GAP_WORTH_READING_BYTES", data.draw(st.sampled_from([0, 7, 100, 10**6])))
        patch.setattr(gather_module, "_OPEN_SOURCES", data.draw(st.sampled_from([1, 2, 64])))
        check_one(data, tmp_path_factory.mktemp("work"))


def check_one(data: st.DataObject, directory: Path) -> None:
    piece_bytes = data.draw(st.sampled_from([101, 1000, 2**29]))
    parameters: dict[str, tuple[str, np.ndarray, RandomLayout, RandomLayout]] = {}
    for number, dtype in enumerate(data.draw(st.lists(st.sampled_from(sorted(DTYPES)), min_size=1, max_size=3))):
        shape = (AXIS_LENGTH, *data.draw(st.sampled_from([(), (AXIS_LENGTH,), (24, 24)])))
        tensor = np.random.default_rng(number).integers(0, 120, shape).astype(DTYPES[dtype])
        source_devices, target_devices = 4, 6
        source, target = (data.draw(layouts(devices, len(shape))) for devices in (source_devices, target_devices))
        parameters[f"p{number}"] = (dtype, tensor, source, target)
    for rank in range(source_devices):
        shards = {name: shard_of(tensor, source, rank) for name, (_, tensor, source, _) in parameters.items()}
        entries = [OutputEntry(n, dtype_from_name(parameters[n][0]), s.shape) for n, s in shards.items()]
        path = directory / "src" / f"rank_{rank}" / "m.ckpt"
        path.parent.mkdir(parents=True)
        with pytest.MonkeyPatch.context() as patch:
            # pieces of odd lengths: borders between extents inside rows and inside elements
            patch.setattr(ckpt, "MAX_PIECE_BYTES", piece_bytes)
            file_plan = plan_file(CheckpointFormat.CKPT, entries)
        path.write_bytes(filled(file_plan, lambda name, held=shards: held[name].tobytes()))  # type: ignore[misc]
    source_strategy = make_strategy({name: as_layout(source) for name, (_, _, source, _) in parameters.items()})
    target_strategy = make_strategy({name: as_layout(target) for name, (_, _, _, target) in parameters.items()})
    catalog = build_catalog(str(directory / "src"), source_strategy.ranks, digest=lambda *_: False, workers=2)
    file_format = data.draw(st.sampled_from(list(CheckpointFormat)))
    plan = build_plan(PlanInputs(catalog, source_strategy, target_strategy, file_format))
    rank = data.draw(st.integers(0, target_devices - 1))
    told: list[int] = []
    record = transform_rank(
        plan,
        rank,
        parse_url(str(directory / "out")),
        identity="i",
        block_bytes=data.draw(st.sampled_from([64, 200, 4096, 2**20])),
        advance=told.append,
    )
    assert read_rank(directory / "out", rank) == {
        name: (dtype, shard_of(tensor, target, rank).shape, shard_of(tensor, target, rank).tobytes())
        for name, (dtype, tensor, _, target) in parameters.items()
    }
    assert sum(told) == plan.totals[rank].shard_bytes
    assert record.size_bytes == (directory / "out" / record.file).stat().st_size
    assert record.source_ranks == plan.rank_plan(rank).source_ranks


def test_memory_is_two_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = np.empty

    def counting(size: int, dtype: type) -> np.ndarray:
        made.append(size)
        return real(size, dtype)

    entry = OutputEntry("w", dtype_from_name("Float32"), (1000, 1000))
    path = tmp_path / "m.ckpt"
    path.write_bytes(filled(plan_file(CheckpointFormat.CKPT, [entry]), lambda _: bytes(4_000_000)))
    catalog = build_catalog(str(path), None, digest=lambda *_: False)
    plan = build_plan(PlanInputs(catalog, None, None, CheckpointFormat.SAFETENSORS))
    monkeypatch.setattr(np, "empty", counting)
    blocks: list[int] = []
    out = parse_url(str(tmp_path / "out"))
    record = transform_rank(plan, 0, out, identity="i", block_bytes=65536, advance=blocks.append)
    assert made == [65536, 65536]
    assert max(blocks) <= 65536
    assert record.read_bytes == 4_000_000

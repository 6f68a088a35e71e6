"""One rank's work: whatever the cuts, blocks, gaps and extents, the file holds what literal splitting gives."""

import threading
from pathlib import Path

import fsspec
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.core.changes.changes import CastRule, Changes
from reshard.core.errors import CastError, CatalogError, ConversionError
from reshard.core.files import ckpt_writing
from reshard.core.files.any_format import plan_file
from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat, OutputEntry
from reshard.core.layouts.ranks.target import RankFolders
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.runtime.budget import build_budget
from reshard.core.runtime.idle_workers import IdleWorkers, lending
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.transfer import reader
from reshard.core.transfer.source_files import LocalFiles
from reshard.core.transfer.writer import transform_ranks
from tests.support.buffers import BUFFER_SIZES, Buffers
from tests.support.changed_values import (
    TARGET_DEVICES,
    draw_job,
)
from tests.support.checkpoints import read_rank
from tests.support.ckpt_writer import checkpoint_bytes, filled
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import AXIS_LENGTH, RandomLayout, layouts, shard_of
from tests.support.source_directories import build_catalog

DTYPES = {"Int8": np.int8, "Float16": np.float16, "Int32": np.int32, "Int64": np.int64}


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("remote", [False, True])
def test_the_file_holds_the_shards(tmp_path_factory: pytest.TempPathFactory, remote: bool, data: st.DataObject) -> None:
    gaps = data.draw(st.sampled_from([0, 7, 100, 10**6]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "GAP_WORTH_READING_BYTES", gaps)
        patch.setattr(reader, "REMOTE_GAP_WORTH_READING_BYTES", gaps)
        patch.setattr(reader, "MAX_REQUEST_BYTES", data.draw(BUFFER_SIZES))
        check_one(data, tmp_path_factory.mktemp("work"), remote)


def check_one(data: st.DataObject, directory: Path, remote: bool) -> None:
    piece_bytes = data.draw(st.sampled_from([101, 1000, 2**29]))
    parameters: dict[str, tuple[str, np.ndarray, RandomLayout, RandomLayout]] = {}
    source_devices, target_devices = 4, 6
    alike = data.draw(st.sampled_from([1, 1, 12]))
    inner_shapes = [(), (AXIS_LENGTH,), (24, 24)] if alike == 1 else [(), (AXIS_LENGTH,)]
    for number, dtype in enumerate(data.draw(st.lists(st.sampled_from(sorted(DTYPES)), min_size=1, max_size=3))):
        shape = (AXIS_LENGTH, *data.draw(st.sampled_from(inner_shapes)))
        source, target = (data.draw(layouts(devices, len(shape))) for devices in (source_devices, target_devices))
        for layer in range(alike):
            tensor = np.random.default_rng([number, layer]).integers(0, 120, shape).astype(DTYPES[dtype])
            parameters[f"p{number}{'.' * (layer % 3)}{layer}"] = (dtype, tensor, source, target)
    names = data.draw(st.sampled_from([list(parameters), sorted(parameters, key=lambda name: name[::-1])]))
    parameters = {name: parameters[name] for name in names}
    for rank in range(source_devices):
        shards = {name: shard_of(tensor, source, rank) for name, (_, tensor, source, _) in parameters.items()}
        entries = [OutputEntry(n, dtype_from_name(parameters[n][0]), s.shape) for n, s in shards.items()]
        path = directory / "src" / f"rank_{rank}" / "m.ckpt"
        path.parent.mkdir(parents=True)
        with pytest.MonkeyPatch.context() as patch:
            # pieces of odd lengths: borders between extents inside rows and inside elements
            patch.setattr(ckpt_writing, "MAX_PIECE_BYTES", piece_bytes)
            file_plan = plan_file(CheckpointFormat.CKPT, entries)
        path.write_bytes(filled(file_plan, lambda name, held=shards: held[name].tobytes()))  # type: ignore[misc]
    source_strategy = make_strategy({name: as_layout(source) for name, (_, _, source, _) in parameters.items()})
    target_strategy = make_strategy({name: as_layout(target) for name, (_, _, _, target) in parameters.items()})
    source_url = str(directory / "src")
    if remote:
        source_url = f"memory://{directory.name}"
        fsspec.filesystem("memory").put(str(directory / "src"), source_url, recursive=True)
    catalog = build_catalog(source_url, source_strategy.ranks, digest=lambda *_: False, workers=2)
    if remote and piece_bytes > 2**20:
        # headers that were not read are compared when contents are read
        records = {rank: replace(record, assumed=True) for rank, record in catalog.records.items()}
        catalog = replace(catalog, records=records)
    file_format = data.draw(st.sampled_from(SELF_CONTAINED))
    plan = build_plan(PlanInputs(catalog, source_strategy, target_strategy, file_format, layout=RankFolders()))
    ranks = data.draw(st.lists(st.integers(0, target_devices - 1), min_size=1, unique=True))
    message: list[int] = []
    out = parse_url(str(directory / "out"))
    sources = data.draw(st.sampled_from([1, 2, 64]))
    budget = Buffers(scratch_bytes=data.draw(BUFFER_SIZES), a_block_bytes=data.draw(BUFFER_SIZES), sources=sources)
    prefetch = data.draw(st.integers(1, 3))
    with lending(IdleWorkers()) as idle:
        idle.offer(data.draw(st.integers(0, 2)))
        written = transform_ranks(
            plan, ranks, out, identity="i", budget=budget, prefetch=prefetch, advance=message.append
        )
    assert idle.lent == 0
    assert [record.rank for record in written] == ranks
    assert sum(message) == sum(plan.totals[rank].shard_bytes for rank in ranks)
    for record in written:
        assert read_rank(directory / "out", record.rank) == {
            name: (dtype, shard_of(tensor, target, record.rank).shape, shard_of(tensor, target, record.rank).tobytes())
            for name, (dtype, tensor, _, target) in parameters.items()
        }
        assert record.size_bytes == (directory / "out" / record.file).stat().st_size
        assert record.source_ranks == plan.rank_plan(record.rank).source_ranks


@pytest.fixture
def plan(tmp_path: Path) -> ConversionPlan:
    """The plan of one rank's one parameter of 4 MB, from m.ckpt."""
    entry = OutputEntry("w", dtype_from_name("Float32"), (1000, 1000))
    path = tmp_path / "m.ckpt"
    path.write_bytes(filled(plan_file(CheckpointFormat.CKPT, [entry]), lambda _: bytes(range(250)) * 16_000))
    catalog = build_catalog(str(path), None, digest=lambda *_: False)
    return build_plan(PlanInputs(catalog, None, None, CheckpointFormat.SAFETENSORS, layout=RankFolders()))


@pytest.mark.parametrize("prefetch", [1, 3])
def test_memory_is_two_buffers_a_prefetch_thread(
    plan: ConversionPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    made: list[int] = []
    real = np.empty

    def counting(size: int, dtype: type) -> np.ndarray:
        made.append(size)
        return real(size, dtype)

    monkeypatch.setattr(np, "empty", counting)
    blocks: list[int] = []
    out = parse_url(str(tmp_path / "out"))
    budget = build_budget(2 * 65536, 1024, 1)
    [record] = transform_ranks(plan, (0,), out, identity="i", budget=budget, prefetch=prefetch, advance=blocks.append)
    assert made == [65536, 65536] * prefetch
    assert max(blocks) <= 65536
    assert record.read_bytes == 4_000_000
    monkeypatch.undo()
    assert read_rank(tmp_path / "out", 0) == {"w": ("Float32", (1000, 1000), bytes(range(250)) * 16_000)}


def test_a_borrowed_worker_brings_its_buffers_and_its_source_file_is_checked_too(
    plan: ConversionPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = parse_url(str(tmp_path / "out"))
    budget = build_budget(2 * 65536, 1024, 1)
    checked: list[LocalFiles] = []
    monkeypatch.setattr(LocalFiles, "check_unchanged", lambda files: checked.append(files))
    with lending(IdleWorkers()) as idle:
        idle.offer(1)
        [record] = transform_ranks(plan, (0,), out, identity="i", budget=budget, prefetch=1, advance=lambda _: None)
    assert len(checked) == 2
    assert record.read_bytes == 4_000_000
    assert read_rank(tmp_path / "out", 0) == {"w": ("Float32", (1000, 1000), bytes(range(250)) * 16_000)}


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_failure_in_a_prefetch_thread_ends_the_work(plan: ConversionPlan, tmp_path: Path, prefetch: int) -> None:
    (tmp_path / "m.ckpt").write_bytes(b"another")
    budget = build_budget(2 * 65536, 1024, 1)
    out = parse_url(str(tmp_path / "out"))
    with pytest.raises(CatalogError, match="m.ckpt changed while it was being read"):
        transform_ranks(plan, (0,), out, identity="i", budget=budget, prefetch=prefetch, advance=lambda _: None)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_source_that_changes_after_it_was_read_is_noticed_in_every_thread(tmp_path: Path, changed: int) -> None:
    """Three sources, one a block, one a thread."""
    entry = OutputEntry("w", dtype_from_name("Int8"), (65536,))
    for rank in range(3):
        path = tmp_path / "src" / f"rank_{rank}" / "m.ckpt"
        path.parent.mkdir(parents=True)
        path.write_bytes(filled(plan_file(CheckpointFormat.CKPT, [entry]), {"w": bytes([rank]) * 65536}.__getitem__))
    layout = ParameterLayout((3,), ((0,),), nested=True)
    strategy = make_strategy({"w": layout})
    catalog = build_catalog(str(tmp_path / "src"), strategy.ranks, digest=lambda *_: False)
    plan = build_plan(PlanInputs(catalog, strategy, None, CheckpointFormat.SAFETENSORS, layout=RankFolders()))
    left = [3 * 65536]

    def change_at_the_end(count: int) -> None:
        left[0] -= count
        if not left[0]:
            (tmp_path / "src" / f"rank_{changed}" / "m.ckpt").write_bytes(b"another")

    out = parse_url(str(tmp_path / "out"))
    budget = build_budget(2 * 65536, 1024, 1)
    with pytest.raises(CatalogError, match=f"rank_{changed}/m.ckpt changed while"):
        transform_ranks(plan, (0,), out, identity="i", budget=budget, prefetch=3, advance=change_at_the_end)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_parameters_cut_alike_may_differ_in_dtype(tmp_path: Path) -> None:
    """Their boxes are the same, their bytes are not."""
    layout, shape = RandomLayout((2,), ((), (0,)), ()), (24, 24)
    tensors = {
        name: np.random.default_rng(1).integers(0, 120, shape).astype(dtype) for name, dtype in sorted(DTYPES.items())
    }
    (tmp_path / "m.ckpt").write_bytes(
        checkpoint_bytes(*((name, name, shape, tensor.tobytes()) for name, tensor in tensors.items()))
    )
    catalog = build_catalog(str(tmp_path / "m.ckpt"), None, digest=lambda *_: False)
    strategy = make_strategy({name: as_layout(layout) for name in DTYPES})
    plan = build_plan(PlanInputs(catalog, None, strategy, CheckpointFormat.CKPT, layout=RankFolders()))
    out = parse_url(str(tmp_path / "out"))
    budget = build_budget(2 * 65536, 1024, 1)
    transform_ranks(plan, (0, 1), out, identity="i", budget=budget, prefetch=1, advance=lambda _: None)
    for rank in range(2):
        assert read_rank(tmp_path / "out", rank) == {
            name: (name, (24, 12), shard_of(tensor, layout, rank).tobytes()) for name, tensor in tensors.items()
        }


@pytest.mark.parametrize("block_bytes", [200, 1024, 2**16])
def test_many_small_parameters_of_several_kinds(tmp_path: Path, block_bytes: int) -> None:
    """Ranges of alike ones are copied, and whole parameters digested, in one go."""
    layout, random = RandomLayout((2,), ((0,), ()), ()), np.random.default_rng(1)
    tensors = {
        f"p{number}": random.integers(0, 120, [(8, 3), (4, 6), (2, 0)][number % 7 % 3]).astype(dtype)
        for number, dtype in enumerate([*DTYPES.values()] * 30)
    }
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    given = {name: (names[tensor.dtype], tensor.shape, tensor.tobytes()) for name, tensor in tensors.items()}
    (tmp_path / "m.ckpt").write_bytes(checkpoint_bytes(*((name, *tensor) for name, tensor in given.items())))
    catalog = build_catalog(str(tmp_path / "m.ckpt"), None, digest=lambda *_: False)
    strategy = make_strategy({name: as_layout(layout) for name in tensors})
    inputs = PlanInputs(
        catalog, None, strategy, CheckpointFormat.CKPT, append_info=(("epoch", 7),), layout=RankFolders()
    )
    budget = Buffers(scratch_bytes=2**12, a_block_bytes=block_bytes, wide_bytes=0)
    out = parse_url(str(tmp_path / "out"))
    plan = build_plan(inputs)
    records = transform_ranks(plan, (0, 1), out, identity="i", budget=budget, prefetch=1, advance=lambda _: None)
    for rank, record in enumerate(records):
        shards = {name: shard_of(tensor, layout, rank) for name, tensor in tensors.items()}
        found = read_rank(tmp_path / "out", rank)
        assert found.pop("epoch")
        assert found == {name: (given[name][0], shard.shape, shard.tobytes()) for name, shard in shards.items()}
        digests = {parameter.name: parameter.digest for parameter in record.parameters if parameter.name != "epoch"}
        assert digests == {name: xxhash.xxh3_128_hexdigest(shard.tobytes()) for name, shard in shards.items()}


def test_an_overflow_among_many_small_parameters_is_refused(tmp_path: Path) -> None:
    tensors = {f"p{number}": np.full((4,), 1e9 if number == 20 else 1, np.float32) for number in range(40)}
    pieces = [(name, "Float32", tensor.shape, tensor.tobytes()) for name, tensor in tensors.items()]
    (tmp_path / "m.ckpt").write_bytes(checkpoint_bytes(*pieces))
    catalog = build_catalog(str(tmp_path / "m.ckpt"), None, digest=lambda *_: False)
    changes = Changes(cast=(CastRule(parameters="*", dtype="float16"),))
    plan = build_plan(PlanInputs(catalog, None, None, CheckpointFormat.CKPT, changes=changes, layout=RankFolders()))
    out, budget = parse_url(str(tmp_path / "out")), build_budget(2 * 65536, 1024, 1)
    with pytest.raises(CastError, match="'p20': 4 finite Float32 values"):
        transform_ranks(plan, (0,), out, identity="i", budget=budget, prefetch=1, advance=lambda _: None)


def test_stopping_ends_all_prefetch_threads(plan: ConversionPlan, tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise ConversionError("stopped")

    before = threading.active_count()
    out = parse_url(str(tmp_path / "out"))
    with pytest.raises(ConversionError, match="stopped"):
        transform_ranks(
            plan, (0,), out, identity="i", budget=build_budget(2 * 65536, 1024, 1), prefetch=3, advance=stop
        )
    assert threading.active_count() == before
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


@pytest.mark.parametrize("remote", [False, True])
@settings(max_examples=8)
@given(st.data())
def test_the_file_holds_the_changed_shards(
    tmp_path_factory: pytest.TempPathFactory, remote: bool, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("work")
    job = draw_job(data, directory, remote)
    plan = job.plan(data.draw(st.sampled_from(SELF_CONTAINED)))
    gaps = data.draw(st.sampled_from([0, 7, 100, 10**6]))
    buffer_bytes, scratch_bytes, wide_bytes = data.draw(st.tuples(BUFFER_SIZES, BUFFER_SIZES, BUFFER_SIZES))
    prefetch, ranks = data.draw(st.tuples(st.integers(1, 3), st.sets(st.integers(0, TARGET_DEVICES - 1), min_size=1)))
    budget = Buffers(
        scratch_bytes=scratch_bytes,
        a_block_bytes=buffer_bytes,
        wide_bytes=max(wide_bytes, prefetch * buffer_bytes),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "GAP_WORTH_READING_BYTES", gaps)
        patch.setattr(reader, "REMOTE_GAP_WORTH_READING_BYTES", gaps)
        patch.setattr(reader, "MAX_REQUEST_BYTES", scratch_bytes)
        written = transform_ranks(
            plan,
            sorted(ranks),
            parse_url(str(directory / "out")),
            identity="i",
            budget=budget,
            prefetch=prefetch,
            advance=lambda _: None,
        )
    for record in written:
        found = read_rank(directory / "out", record.rank)
        assert found == job.wanted(record.rank)
        assert not record.overflows

"""Targets without redundancy: who keeps what, how evenly, and that nothing is lost."""

import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.views.picture import feeds_of
from reshard.core.errors import InputError, PlanError
from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat
from reshard.core.plan.appended import REDUNDANCY_MARK
from reshard.core.plan.deduplication import SharedSlices, choose_keepers
from reshard.core.records.plan_file import dump_plan, load_plan, plan_identity
from reshard.core.request.conversion import build_request
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.plans import catalog_of, entry, make_catalog, make_strategy, plan_of, sides, vector
from tests.support.reference import AXIS_LENGTH, wholes


def slices(holders: list[list[int]], *sizes_bytes: int) -> SharedSlices:
    return SharedSlices(np.array(holders), np.array(sizes_bytes, dtype=np.int64))


class TestChoice:
    def test_the_largest_first_to_who_has_least(self) -> None:
        parameters = [slices([[0, 1]], size) for size in (1, 1, 5, 2, 1)]
        assert choose_keepers(parameters, 2, 1).tolist() == [
            [False, True],
            [False, True],
            [True, False],
            [False, True],
            [False, True],
        ]

    def test_what_has_no_choice_comes_first(self) -> None:
        parameters = [slices([[0, 1]], 8), slices([[0], [1]], 9, 1)]
        assert choose_keepers(parameters, 2, 1).tolist() == [[False, True], [True, True]]

    def test_several_copies_and_all_where_fewer_share(self) -> None:
        parameters = [slices([[0, 1, 2, 3]], 4), slices([[0, 2], [1, 3]], 2, 2), slices([[0, 1, 2, 3]], 3)]
        kept = choose_keepers(parameters, 4, 2)
        assert kept.sum(axis=1).tolist() == [2, 4, 2]
        assert kept.sum(axis=0).tolist() == [2, 2, 2, 2]

    def test_nothing(self) -> None:
        assert choose_keepers([], 3, 1).shape == (0, 3)


@settings(max_examples=40)
@given(st.data())
def test_each_slice_is_kept_by_so_many_and_spread_evenly(data: st.DataObject) -> None:
    axis_counts = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=5))
    source, target = data.draw(sides(axis_counts)), data.draw(sides(axis_counts))
    replicas = data.draw(st.integers(1, 4))
    tensors = wholes([(AXIS_LENGTH,) * count for count in axis_counts])
    catalog = catalog_of(source.shards(tensors))
    whole = plan_of(catalog, source.strategy(), target.strategy())
    if len(whole.target_ranks) == 1:
        return
    plan = plan_of(catalog, source.strategy(), target.strategy(), replicas=replicas)
    sharers: Counter[tuple[int, str, str]] = Counter()
    keepers: Counter[tuple[int, str, str]] = Counter()
    feeds = np.zeros_like(feeds_of(whole).counts_bytes)
    for rank in plan.target_ranks:
        stage = rank // target.devices
        all_of_rank = {parameter.name: parameter for parameter in plan.rank_plan(rank, with_redundancy=True).parameters}
        kept = plan.rank_plan(rank)
        named = {parameter.name: parameter for parameter in whole.rank_plan(rank).parameters}
        assert all_of_rank == named | {name: all_of_rank[name] for name in all_of_rank.keys() - named.keys()}
        moved = [parameter for parameter in kept.parameters if parameter.name in named]
        assert all(named[parameter.name] == parameter for parameter in moved), "what is kept is what was there"
        sharers.update((stage, name, str(parameter.box)) for name, parameter in named.items())
        keepers.update((stage, parameter.name, str(parameter.box)) for parameter in moved)
        totals = plan.totals[rank]
        assert kept.parameters
        assert totals.shard_bytes == kept.size_bytes
        assert set(totals.source_ranks) == set(kept.source_ranks)
        for parameter in moved:
            for read in parameter.reads:
                feeds[rank, read.source_rank] += read.source_box.size * parameter.dtype.itemsize
    assert keepers == {one: min(count, replicas) for one, count in sharers.items()}
    assert (feeds_of(plan).counts_bytes == feeds).all()
    for rank, primary in plan.copies.items():
        names = [[(p.name, p.box) for p in plan.rank_plan(which).parameters] for which in (rank, primary)]
        assert names[0] == names[1]


def test_bytes_are_spread_where_counting_parameters_would_not(tmp_path: Path) -> None:
    shapes = {f"layer{number}.{part}": (size,) for number in range(8) for part, size in (("w", 1000), ("b", 10))}
    catalog = make_catalog({0: [entry(name, shape) for name, shape in shapes.items()]})
    target = make_strategy(dict.fromkeys(shapes, vector(4)))
    plan = plan_of(catalog, None, target, replicas=1)
    assert [totals.shard_bytes for totals in plan.totals] == [2 * 4 * 1010] * 4
    twice = plan_of(catalog, None, target, replicas=2)
    assert [totals.shard_bytes for totals in twice.totals] == [4 * 4 * 1010] * 4
    assert plan_identity(plan) != plan_identity(twice)
    assert not plan.copies
    write_bytes(parse_url(str(tmp_path / "plan")), dump_plan(twice))
    read_again = load_plan(str(tmp_path / "plan"), plan_identity(twice))
    assert [read_again.rank_plan(rank) for rank in range(4)] == [twice.rank_plan(rank) for rank in range(4)]
    every = plan_of(catalog, None, target, replicas=4)
    assert every.copies == {1: 0, 2: 0, 3: 0}


def test_thousands_of_ranks_take_seconds() -> None:
    """1024 ranks share each of 4 slices of 2000 parameters."""
    names = [f"layer{number:04}.w" for number in range(2000)]
    source = make_strategy(dict.fromkeys(names, vector(1)))
    target = make_strategy(dict.fromkeys(names, ParameterLayout((1024, 4), ((0,),), nested=True)))
    catalog = make_catalog({0: [entry(name, (4096 * (1 + number % 7),)) for number, name in enumerate(names)]})
    started = time.process_time()
    plan = plan_of(catalog, source, target, replicas=2)
    sizes = [totals.shard_bytes for totals in plan.totals]
    assert time.process_time() - started < 20
    assert max(sizes) - min(sizes) <= 4096 * 7


def test_one_rank_alone_is_refused() -> None:
    catalog = make_catalog({0: [entry("a", (8,))]})
    with pytest.raises(PlanError, match=r"the target has one rank, which shares no slice"):
        plan_of(catalog, None, None, replicas=1)


def test_no_file_is_without_entries() -> None:
    catalog = make_catalog({0: [entry("a", (8,))]})
    plan = plan_of(catalog, None, make_strategy({"a": vector(4)}), replicas=1)
    names = [[p.name for p in plan.rank_plan(rank).parameters] for rank in range(4)]
    assert names == [["a", REDUNDANCY_MARK], *[[REDUNDANCY_MARK]] * 3]
    assert [totals.shard_bytes for totals in plan.totals] == [33, 1, 1, 1]
    for enough in (
        plan_of(catalog, None, make_strategy({"a": vector(4)}), replicas=4),
        plan_of(catalog, None, make_strategy({"a": vector(4, cut=True)}), replicas=1),
    ):
        assert not enough.match.appended


def test_the_mark_of_empty_files_is_not_carried_on() -> None:
    mark = entry(REDUNDANCY_MARK, (), dtype_from_name("Bool"))
    catalog = make_catalog({0: [entry("a", (8,)), mark]})
    plan = plan_of(catalog, None, make_strategy({"a": vector(2)}))
    assert [p.name for p in plan.rank_plan(0).parameters] == ["a"]


def test_parameters_outside_the_strategy_are_on_every_rank() -> None:
    catalog = make_catalog({0: [entry("a", (8,)), entry("step", ())]}, digests={0: {"step": "1"}})
    plan = plan_of(catalog, None, make_strategy({"a": vector(2)}), replicas=1)
    assert [[p.name for p in plan.rank_plan(rank).parameters] for rank in (0, 1)] == [["a", "step"], ["step"]]


def test_copies_alone_are_refused() -> None:
    with pytest.raises(InputError, match=r"replicas 2: only valid with remove_redundancy=True"):
        build_request(source="a", target="b", replicas=2)
    assert build_request(source="a", target="b", replicas=2, remove_redundancy=True).replicas == 2


def redundant_case(path: Path) -> dict[str, np.ndarray]:
    """A checkpoint of one rank at `path`/source, and a strategy for eight that share slices at `path`/target.ckpt."""
    generator = np.random.default_rng(1)
    tensors = {f"w{n}": generator.integers(0, 99, (8, 4 * (n + 1))).astype(np.int32) for n in range(6)}
    (path / "source").mkdir()
    entries = [(name, "Int32", tensor.shape, tensor.tobytes()) for name, tensor in tensors.items()]
    step = ("step", "Int64", (), np.int64(7).tobytes())
    (path / "source/m.ckpt").write_bytes(checkpoint_bytes(*entries, step))
    pairs = ParameterLayout((2, 4), ((0,), ()), nested=True)
    layouts = {name: (pairs if number % 2 else vector_of(8)) for number, name in enumerate(tensors)}
    write_strategy(make_strategy(layouts), str(path / "target.ckpt"))
    return tensors


def vector_of(devices: int) -> ParameterLayout:
    return ParameterLayout((devices,), ((), ()), nested=True)


@pytest.mark.parametrize("file_format", SELF_CONTAINED)
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_target_without_redundancy_is_written_and_verified(
    tmp_path: Path, file_format: CheckpointFormat, replicas: int
) -> None:
    tensors = redundant_case(tmp_path)
    request = build_request(
        source=str(tmp_path / "source"),
        target=str(tmp_path / "out"),
        target_strategy=str(tmp_path / "target.ckpt"),
        format=file_format.value,
        remove_redundancy=True,
        replicas=replicas,
    )
    report = convert(request)
    assert report.committed
    assert any("redundancy removed" in note for note in report.notes)
    found = read_tree(tmp_path / "out")
    holders = Counter(name for held in found.values() for name in held)
    assert holders == {**{f"w{n}": replicas * (4 if n % 2 else 1) for n in range(6)}, "step": 8}
    for name, tensor in tensors.items():
        parts = {held[name][2] for held in found.values() if name in held}
        cut = np.split(tensor, 4) if int(name[1]) % 2 else [tensor]
        assert parts == {part.tobytes() for part in cut}
    assert not verify_target(str(tmp_path / "out"), VerifyLevel.CHECKSUM).problems
    if file_format is CheckpointFormat.SAFETENSORS:
        data = (tmp_path / "out/rank_3/checkpoint_3.safetensors").read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        assert header["__metadata__"]["remove_redundancy"] == "True"


@pytest.mark.parametrize("file_format", SELF_CONTAINED)
@pytest.mark.parametrize("number", [7001, 7003, 7010, 7016])
def test_what_was_written_without_redundancy_is_read_back(
    tmp_path: Path, file_format: CheckpointFormat, number: int
) -> None:
    whole = case(number).directory
    strategy = str(whole / "dst_strategy.ckpt")
    options = {"target_strategy": strategy, "format": file_format.value, "remove_redundancy": True}
    convert(build_request(source=str(whole / "full"), target=str(tmp_path / "less"), **options))
    convert(build_request(source=str(tmp_path / "less"), target=str(tmp_path / "again"), source_strategy=strategy))
    assert read_tree(tmp_path / "again") == read_tree(whole / "full")

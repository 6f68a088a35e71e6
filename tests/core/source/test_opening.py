"""A source is opened once, by one function, whatever is done with it."""

import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.core.changes.changes import Changes
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import outline_target
from reshard.core.errors import CatalogError, TargetError
from reshard.core.layouts import survey as surveying
from reshard.core.plan import stage_shards
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.request.declared_changes import declared_changes
from reshard.core.request.source import SourceRequest
from reshard.core.source import own_strategy
from reshard.core.source.opening import TargetOutline, find_strategy, open_source, wants_digest
from reshard.core.source.own_strategy import OwnStrategy
from reshard.core.strategy.files import read_strategy
from reshard.core.strategy.integrated_save import IntegratedSave
from tests.support.checkpoints import case

PIPELINE = case(7010)
"""8 ranks of two stages to 2 ranks."""
FOUR_TO_THREE = case(7009)


def source_of(name: str = "src", **options: object) -> SourceRequest:
    return SourceRequest.model_validate({"source": str(PIPELINE.directory / name), **options})


def counted(monkeypatch: pytest.MonkeyPatch, calls: Counter[str], function: Callable[..., object]) -> None:
    """Counts the calls of a function, whichever modules imported it."""

    def counting(*args: object, **options: object) -> object:
        calls[function.__name__] += 1
        return function(*args, **options)

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("reshard.") and vars(module).get(function.__name__) is function:
            monkeypatch.setattr(module, function.__name__, counting)


@pytest.mark.parametrize("options", [{}, {"check_replicas": True}, {"verify": "content"}])
@pytest.mark.parametrize("is_own", [True, False], ids=["own strategy", "named strategy"])
def test_a_conversion_works_nothing_out_twice(
    is_own: bool, options: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, changes = tmp_path / "made", tmp_path / "changes.yaml"
    convert(FOUR_TO_THREE.request(made))
    changes.write_text("select: all\n")
    calls: Counter[str] = Counter()
    functions: list[Callable[..., object]] = [
        surveying.survey,
        own_strategy.read_own_strategy,
        own_strategy.file_mismatch,
        stage_shards._group_by_stage,
        declared_changes,
    ]
    for function in functions:
        counted(monkeypatch, calls, function)
    strategy = "" if is_own else str(FOUR_TO_THREE.directory / "dst_strategy.ckpt")
    given = {"source": str(made), "source_strategy": strategy, "changes": str(changes)}
    assert convert(build_request(**given, **options, target=str(tmp_path / "out"))).committed
    assert calls == {function.__name__: 1 for function in functions}


# ---- what is opened ----


def test_a_source_and_its_strategy() -> None:
    source = open_source(source_of(source_strategy=str(PIPELINE.directory / "src_strategy.ckpt")))
    assert source.strategy is not None
    assert [*source.catalog.records] == [*source.strategy.ranks] == [*range(8)]
    assert not source.other_ranks
    assert not source.is_integrated
    assert source.integrated_save is IntegratedSave.AUTO
    assert {stage.stage for stages in source.shards.by_name.values() for stage in (each.stage for each in stages)} == {
        0,
        1,
    }
    assert source.shards.by_name is source.shards.by_name
    assert not source.shards.problems


def test_a_source_of_one_rank_needs_no_strategy() -> None:
    source = open_source(source_of("full"))
    assert source.strategy is None
    assert source.shards.by_name == {}
    assert source.integrated_save is IntegratedSave.NO


def test_files_of_whole_tensors_have_a_strategy_of_their_own(tmp_path: Path) -> None:
    given = {"source": str(PIPELINE.directory / "full"), "target": str(tmp_path / "out")}
    convert(build_request(**given, layout="unified", max_shard_size="1KB"))
    source = open_source(SourceRequest(source=str(tmp_path / "out")))
    assert source.strategy is not None
    assert len(source.strategy.stages) == len(source.catalog.records) > 1
    assert source.strategy.devices_per_stage == 1
    assert all(
        layout.shard_grid(len(layout.tensor_map)).is_whole for layout in source.strategy.stages[0].layouts.values()
    )


def test_a_stage_of_its_own_leaves_other_ranks() -> None:
    source = open_source(source_of(source_strategy=str(PIPELINE.directory / "src_stages/strategy_4.ckpt")))
    assert [*source.catalog.records] == [4, 5, 6, 7]
    assert source.other_ranks == (0, 1, 2, 3)
    assert "only rank_4" in source.catalog.notes[0]


def test_the_own_strategy_is_found_and_a_named_one_comes_before_it(tmp_path: Path) -> None:
    made = tmp_path / "made"
    convert(FOUR_TO_THREE.request(made))
    named = str(FOUR_TO_THREE.directory / "dst_strategy.ckpt")
    found = find_strategy(SourceRequest(source=str(made)))
    assert isinstance(found, OwnStrategy)
    assert not isinstance(find_strategy(SourceRequest(source=str(made), source_strategy=named)), OwnStrategy)
    assert find_strategy(source_of()) is None


# ---- what is made of it ----


def test_source_and_target_inside_each_other(tmp_path: Path) -> None:
    shutil.copytree(PIPELINE.directory / "full", tmp_path / "src")
    request = SourceRequest(source=str(tmp_path / "src"))
    with pytest.raises(TargetError):
        open_source(request, TargetOutline(str(tmp_path / "src/out")))
    assert open_source(request, TargetOutline()).catalog.records


def test_links_from_the_source_into_the_target(tmp_path: Path) -> None:
    shutil.copytree(PIPELINE.directory / "full", tmp_path / "out")
    (tmp_path / "src").symlink_to(tmp_path / "out")
    with pytest.raises(TargetError):
        open_source(SourceRequest(source=str(tmp_path / "src")), TargetOutline(str(tmp_path / "out")))


@pytest.mark.parametrize(
    ("changes", "once", "needed"),
    [
        (Changes(), False, False),
        (Changes(), True, True),
        (Changes(exclude=("a",)), False, False),
        (Changes.model_validate({"rename": [{"name": "a", "to": "b"}]}), False, True),
    ],
)
def test_what_every_rank_has_to_have_alike(changes: Changes, once: bool, needed: bool) -> None:
    assert TargetOutline(changes=changes, once=once).needs_equal_ranks is needed


def test_contents_are_compared_where_no_layout_tells_who_holds_the_same() -> None:
    strategy = read_strategy(str(PIPELINE.directory / "src_strategy.ckpt"))
    source = open_source(source_of(source_strategy=str(PIPELINE.directory / "src_strategy.ckpt")))
    entries = list(source.catalog.records[0].index.entries.values())
    wanted = {entry.name for entry in entries if wants_digest(strategy, None)(0, entry)}
    assert wanted == {entry.name for entry in entries} - strategy.parameters
    assert not any(wants_digest(None, strategy)(0, entry) for entry in entries)


def test_a_target_is_outlined(tmp_path: Path) -> None:
    request: ConversionRequest = FOUR_TO_THREE.request(tmp_path / "out", exclude=["adam*"])
    outline = outline_target(request)
    assert outline.strategy is not None
    assert (outline.url, outline.changes.exclude, outline.once) == (str(tmp_path / "out"), ("adam*",), False)


def test_several_ranks_need_a_strategy() -> None:
    with pytest.raises(CatalogError, match="several ranks need a source strategy, none is given"):
        open_source(source_of())

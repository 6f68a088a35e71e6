"""One pipeline stage converted by itself: when it is a part, what it holds, and as MindSpore does it."""

from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import PlanError
from reshard.core.plan.partial_stage import part_of_target
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import build_request
from reshard.core.strategy.model import StageStrategy, Strategy
from tests.support.checkpoints import CONVERSIONS, read_ckpt, read_tree
from tests.support.places import FIXTURES
from tests.support.plans import entry, make_catalog, make_strategy, plan_of, vector

CASE = CONVERSIONS / "case_7010"
PARTS = FIXTURES / "subnetwork_parts"


def own(stage: int, *names: str) -> Strategy:
    return Strategy((StageStrategy(stage, dict.fromkeys(names, vector(2))),), "own", merged=False)


def target(*names: str) -> Strategy:
    return make_strategy(dict.fromkeys(names, vector(2)))


@pytest.mark.parametrize(
    ("source", "want"),
    [
        (own(1, "a"), 1),
        (own(0, "a", "adam_m.a", "accu_grads.a"), 0),
        (own(0, "a", "b"), None),
        (own(0, "a", "c"), None),
        (own(0, "adam_m.a"), 0),
        (make_strategy({"a": vector(2)}), None),
        (None, None),
    ],
)
def test_a_part_is_what_lacks_others_parameters(source: Strategy | None, want: int | None) -> None:
    assert part_of_target(source, target("a", "b", "adam_v.a")) == want
    assert part_of_target(source, None) is None
    assert part_of_target(source, make_strategy({"a": vector(2)}, {"b": vector(2)})) is None


def test_what_the_target_can_do_without_makes_no_part() -> None:
    assert part_of_target(own(0, "a"), target("a", "b"), ["b*"]) is None
    assert part_of_target(own(0, "a"), target("a", "b", "c"), ["b*"]) == 0
    assert part_of_target(own(0, "a", "b"), target("a", "b", "c"), ["b"]) == 0
    assert part_of_target(own(0, "a", "b"), target("a", "b"), ["b"]) is None


def plan_of_stage(stage: int, held: list[str], *names: str) -> ConversionPlan:
    ranks = range(2 * stage, 2 * stage + 2)
    catalog = make_catalog({rank: [entry(name, (4,)) for name in held] for rank in ranks})
    return plan_of(catalog, own(stage, *names), target("a", "b"))


def test_other_stages_parameters_are_not_missing_but_its_own_are() -> None:
    plan = plan_of_stage(1, ["b"], "b")
    assert plan.part == 1
    assert plan.match.elsewhere == ("a",)
    assert plan.file_name(0) == "rank_0/checkpoint_0_part1.ckpt"
    assert [p.name for p in plan.rank_plan(1).parameters] == ["b"]
    with pytest.raises(PlanError, match=r"parameter 'b'"):
        plan_of_stage(1, ["other"], "b")


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("file_format", ["ckpt", "safetensors"])
def test_as_mindspore_writes_it(tmp_path: Path, stage: int, file_format: str) -> None:
    report = convert(
        build_request(
            source=str(CASE / "src"),
            target=str(tmp_path / "out"),
            source_strategy=str(CASE / f"src_stages/strategy_{4 * stage}.ckpt"),
            target_strategy=str(CASE / "dst_strategy.ckpt"),
            format=file_format,
        )
    )
    name = f"checkpoint_{{}}_part{stage}"
    assert [rank.file for rank in report.ranks] == [f"rank_{r}/{name.format(r)}.{file_format}" for r in (0, 1)]
    assert read_tree(tmp_path / "out") == {
        rank: read_ckpt(PARTS / f"rank_{rank}/{name.format(rank)}.ckpt") for rank in (0, 1)
    }
    [note] = [note for note in report.notes if "NOT in it" in note]
    assert f"stage {stage}'s own: this is that stage's PART of the target" in note


def test_what_lacks_nothing_is_no_part() -> None:
    """A parameter that only the target's strategy knows is in the files: uncut, and all of the target is made."""
    catalog = make_catalog(
        {rank: [entry("a", (4,)), entry("b", (4,))] for rank in (0, 1)}, digests={rank: {"b": "1"} for rank in (0, 1)}
    )
    plan = plan_of(catalog, own(0, "a"), target("a", "b"))
    assert plan.part is None
    assert plan.file_name(0) == "rank_0/checkpoint_0.ckpt"

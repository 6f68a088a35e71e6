"""Questions that any layout may answer."""

import pytest

from reshard.core.files.file_names import NO_EPOCH, Step
from reshard.core.layouts import registry
from reshard.core.layouts.any_layout import is_document, read_any_strategy, step_of_directory, tracked_steps
from reshard.core.layouts.registry import TargetLayout
from reshard.core.storage.urls import parse_url
from tests.support.iterations import iteration_case

PREFIXED = iteration_case(6)


@pytest.mark.parametrize(
    ("name", "document"),
    [
        (".metadata", True),
        ("metadata.json", True),
        ("model.safetensors.index.json", True),
        ("param_name_map.json", True),
        ("config.json", False),
        ("model.safetensors", False),
        ("rank_0", False),
    ],
)
def test_names_of_indexes_and_metadata(name: str, document: bool) -> None:
    assert is_document(name) is document


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("10_5", Step(10, 5)),
        ("10_5_breakpoint", Step(10, 5, True)),
        ("40", Step(NO_EPOCH, 40)),
        ("iteration_00000040", Step(NO_EPOCH, 40)),
        ("iteration_40", None),
        (".reshard", None),
    ],
)
def test_the_step_in_the_name_of_a_conversion(name: str, step: Step | None) -> None:
    assert step_of_directory(name) == step


def test_the_tracker_names_one_of_the_steps() -> None:
    root = parse_url(str(PREFIXED.source))
    steps = tracked_steps(root, ["iteration_00000045", "iteration_00000040", "config.json"])
    assert steps
    assert dict(steps.directories) == {40: "iteration_00000040", 45: "iteration_00000045"}
    assert steps.read_tracker() == 40
    assert tracked_steps(root, ["rank_0"]) is None


def test_the_strategy_of_an_iteration_is_read_from_wherever_it_is_named() -> None:
    named = [
        PREFIXED.source,
        PREFIXED.source / "iteration_00000040",
        PREFIXED.source / "iteration_00000040/metadata.json",
    ]
    assert len({read_any_strategy(str(each)).origin for each in named}) == 1


def test_whatever_layout_is_written_can_be_read() -> None:
    assert {layout.name for layout in registry.source_layouts()} >= set(TargetLayout)

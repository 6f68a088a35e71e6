from collections.abc import Callable

import pytest

from tests.conformance.cases import DTYPES, Case, ShardGrid, Side
from tests.conformance.random_cases import build_case

CASES = [build_case(seed) for seed in range(300)]


def _sides(case: Case) -> list[Side]:
    return [side for side in (case.source, case.target) if side]


def _cuts(case: Case) -> list[ShardGrid]:
    return [cut for side in _sides(case) for stage in side.stages for cut in stage.values()]


FEATURES: dict[str, Callable[[Case], bool]] = {
    "whole to cut": lambda case: case.source is None,
    "cut to whole": lambda case: case.target is None,
    "name of 128 characters or more": lambda case: any(len(name) >= 128 for name in case.model),
    "three stages": lambda case: any(len(side.stages) == 3 for side in _sides(case)),
    "neither device count divides the other": lambda case: (
        bool(case.source and case.target)
        and {side.devices for side in _sides(case)} in ({2, 3}, {3, 4}, {3, 8}, {4, 6}, {6, 8})
    ),
    "device axis of size 1": lambda case: any(1 in cut.layout.device_matrix for cut in _cuts(case)),
    "several repeated axes": lambda case: any(len(cut.layout.repeated) > 1 for cut in _cuts(case)),
    "several device axes on one tensor axis": lambda case: any(
        len(axes) > 1 for cut in _cuts(case) for axes in cut.layout.tensor_map
    ),
    "nested map of a vector": lambda case: any(cut.nested and len(cut.layout.tensor_map) == 1 for cut in _cuts(case)),
    "optimizer shard of all repeated axes": lambda case: any(cut.says_all for cut in _cuts(case)),
    "optimizer shard of a part of an axis": lambda case: any(
        cut.layout.optimizer_parts
        and cut.layout.optimizer_parts[-1] > 1
        and cut.layout.device_matrix[cut.layout.repeated[-len(cut.layout.optimizer_parts)]]
        != cut.layout.optimizer_parts[-1]
        for cut in _cuts(case)
    ),
    "optimizer shard over several axes": lambda case: any(
        sum(part > 1 for part in cut.layout.optimizer_parts) > 1 for cut in _cuts(case)
    ),
    "pieces of different lengths": lambda case: any(cut.uneven for cut in _cuts(case)),
    "shared parameter, each stage cutting it its own way": lambda case: any(
        len({stage[name].layout for stage in side.stages if name in stage}) > 1
        for side in _sides(case)
        for name in side.names
    ),
    "dropped": lambda case: bool(case.source and case.target and case.source.names - case.target.names),
    "only in the target's strategy": lambda case: bool(case.late),
    "in no strategy": lambda case: bool(case.uncut_in_source & case.uncut_in_target),
    "text": lambda case: bool(case.text),
    "dashes in names": lambda case: any("-" in name for name in case.model),
    "scalar in a strategy": lambda case: any(not cut.layout.tensor_map for cut in _cuts(case)),
    "four axes": lambda case: any(len(cut.layout.tensor_map) == 4 for cut in _cuts(case)),
    "json": lambda case: any(side.written.suffix == ".json" for side in _sides(case)),
    "directory of strategies": lambda case: any(side.written.is_directory for side in _sides(case)),
    "other kind of files": lambda case: case.source_format != case.target_format,
} | {dtype: lambda case, dtype=dtype: any(entry[0] == dtype for entry in case.model.values()) for dtype in DTYPES}


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_occurs(feature: str) -> None:
    assert sum(map(FEATURES[feature], CASES)) >= 3


def test_a_seed_always_makes_the_same_case() -> None:
    assert build_case(7) == CASES[7] != CASES[8]

"""What `make conformance` asks MindFormers about its Checkpoint 2.0."""

from tests.conformance.checkpoint2 import build_case, folded
from tests.support.reference import RandomLayout

CASES = [build_case(seed) for seed in range(200)]


def test_a_case_is_made_from_its_seed() -> None:
    assert build_case(3) == CASES[3]


def test_cases_cover_what_mindformers_writes() -> None:
    assert {len(case.source.stages) for case in CASES} == {1, 2, 3}
    assert any(len(case.source.ranks) == 1 for case in CASES)
    assert {case.remove_redundancy for case in CASES} == {False, True}
    assert any(None in stage.values() for case in CASES for stage in case.source.stages)
    assert any(names for case in CASES for names in case.unwritten)
    assert any(case.loadable(case.source) < set(case.model) for case in CASES)
    assert any(not case.optimizer for case in CASES)


def test_the_optimizer_takes_part_of_an_axis() -> None:
    layout = RandomLayout((2, 4, 2), ((0,), ()), (2,))
    assert folded(layout, range(16, 32)) == {
        "device_matrix": [2, 2, 2, 2],
        "tensor_map": [[0, 1], -1],
        "interleaved_parallel": False,
        "alias_name": ["axis0", "axis1", "axis2", "axis3"],
        "rank_list": list(range(16, 32)),
    }

"""What `make conformance` asks PyTorch about its Distributed Checkpoint."""

from tests.conformance.dcp import build_case

CASES = [build_case(seed) for seed in range(200)]


def test_a_case_is_made_from_its_seed() -> None:
    assert build_case(3) == CASES[3]


def test_cases_cover_what_torch_writes() -> None:
    assert {case.writer for case in CASES} == {"one", "flat", "many", "threads", "safetensors", "hf"}
    assert {case.mesh for case in CASES} == {(1,), (2,), (3,), (4,), (2, 2)}
    forms = {how["form"] for case in CASES for how in case.how.values()}
    assert forms == {"", "transposed", "cut", "parameter"}
    assert any(0 in shape for case in CASES for _, shape, _ in case.model.values())
    assert any(not shape for case in CASES for _, shape, _ in case.model.values())
    assert any(case.objects for case in CASES)
    assert {dtype for case in CASES for dtype, _, _ in case.model.values()} >= {"BFloat16", "Bool", "Int64"}

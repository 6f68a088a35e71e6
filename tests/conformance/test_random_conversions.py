"""A few cases of `make conformance`, which runs many."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.check import check_case
from tests.conformance.mindspore_process import PYTHON, Judge, RefusalError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="MindSpore is not installed: `make conformance` does it"),
]


@dataclass(frozen=True)
class Expect:
    seed: int
    refusal: str = ""
    """Why MindSpore does not judge: then the reference does."""
    direct_refusal: str = ""
    """Why MindSpore does not convert source to target itself, alike."""


EXPECTED = [
    Expect(16, direct_refusal="Cannot transform device_num"),
    Expect(2, refusal="invalid literal for int()", direct_refusal="too many values to unpack"),  # "-" in names
    Expect(9),  # text entries, cut to whole
    Expect(43),  # optimizer shards over several axes, long names, safetensors, a directory of strategies
    Expect(29, direct_refusal="does not cut what only the target's strategy has"),
    Expect(30, refusal="ignores param_split_shape", direct_refusal="misreads"),
]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with Judge(tmp_path_factory.mktemp("judge") / "mindspore.log") as judge:
        yield judge


@pytest.mark.parametrize("expect", EXPECTED, ids=lambda expect: str(expect.seed))
def test_as_mindspore_does(expect: Expect, judge: Judge, tmp_path: Path) -> None:
    verdict = check_case(expect.seed, judge, tmp_path / "case")
    assert verdict.differences == []
    assert bool(verdict.refusals) == bool(expect.refusal)
    assert expect.refusal in "".join(verdict.refusals)
    assert bool(verdict.direct_refusals) == bool(expect.direct_refusal)
    assert expect.direct_refusal in "".join(verdict.direct_refusals)


def test_a_judge_that_died_is_replaced(judge: Judge, tmp_path: Path) -> None:
    judge.save({tmp_path / "rank_0" / "a.ckpt": {"a": ("Int8", (2,), b"\1\2")}}, {})
    judge._kill()
    with pytest.raises(RefusalError, match="died"):
        judge.load(tmp_path)
    assert judge.load(tmp_path)[0].keys() == {"a"}

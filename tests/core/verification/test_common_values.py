"""Parameters that a conversion to a Checkpoint 2.0 moved into common.json are compared there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.request.source import FingerprintRequest
from reshard.core.verification.compare import fingerprint_checkpoint
from reshard.core.verification.comparison_report import Kind
from tests.support.comparing import compared, file_of
from tests.support.iterations import iteration_request

WEIGHTS = ("embedding.weight", "Float32", np.arange(8, dtype=np.float32).reshape(2, 4))
MOMENTS = ("adam_m.embedding.weight", "Float32", np.ones((2, 4), np.float32))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A checkpoint with the numbers of its training among the parameters."""
    return file_of(
        tmp_path / "trained/rank_0/net-3_40.ckpt",
        WEIGHTS,
        MOMENTS,
        ("epoch_num", "Int32", np.array(3, np.int32)),
        ("step_num", "Int64", np.array([40], np.int64)),
        ("loss_scale", "Float32", np.array(65536, np.float32)),
        ("global_step", "Int32", np.array([120], np.int32)),
    ).parents[1]


@pytest.fixture
def converted(trained: Path, tmp_path: Path) -> Path:
    convert(iteration_request(trained, tmp_path / "out", iteration="40"))
    return tmp_path / "out"


def change(converted: Path, **values: Any) -> None:
    path = converted / "iteration_00000040/common.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_checkpoint_is_the_same_as_its_own_checkpoint_2(trained: Path, converted: Path) -> None:
    for sides in ((trained, converted), (converted, trained)):
        report = compared(*sides)
        assert (report.same, report.only_a, report.only_b, report.differences) == (True, (), (), ())
        letter = "B" if sides[0] is trained else "A"
        assert report.notes == (f"in common.json of {letter}, with equal values: epoch_num, step_num, loss_scale",)


def test_another_value_in_common_json_is_a_difference(trained: Path, converted: Path) -> None:
    change(converted, step_num=41, loss_scale=65536.5)
    report = compared(trained, converted)
    assert report.verdict == "NOT the same: 2 parameters of different content"
    assert [(each.name, each.kind, each.message) for each in report.differences] == [
        ("step_num", Kind.CONTENT, "common.json of B has 41"),
        ("loss_scale", Kind.CONTENT, "common.json of B has 65536.5"),
    ]
    assert [each.name for each in compared(converted, trained).differences] == ["step_num", "loss_scale"]


@pytest.mark.parametrize("value", [3.5, 2**40, -(2**62), 1e300])
def test_a_value_that_the_parameter_cannot_hold_is_a_difference(trained: Path, converted: Path, value: float) -> None:
    change(converted, epoch_num=value)
    assert [each.name for each in compared(trained, converted).differences] == ["epoch_num"]


def test_what_common_json_lacks_is_only_on_one_side(trained: Path, converted: Path) -> None:
    change(converted, epoch_num=None)
    report = compared(trained, converted)
    assert (report.only_a, report.differences) == (("epoch_num",), ())


def test_a_parameter_of_several_elements_is_no_number(trained: Path, converted: Path) -> None:
    several = ("epoch_num", "Int32", np.array([3, 3], np.int32))
    other = file_of(trained.with_name("other") / "rank_0/net-3_40.ckpt", WEIGHTS, MOMENTS, several)
    assert "epoch_num" in [each.name for each in compared(other.parents[1], converted).differences]


def test_fingerprints_know_the_numbers(trained: Path, converted: Path, tmp_path: Path) -> None:
    documents = []
    for number, side in enumerate((trained, converted)):
        documents.append(tmp_path / f"{number}.json")
        found = fingerprint_checkpoint(FingerprintRequest(source=str(side)))
        documents[-1].write_text(found.model_dump_json())
    assert compared(*documents).same
    assert compared(trained, documents[1]).same
    change(converted, step_num=41)
    assert not compared(documents[0], converted).same

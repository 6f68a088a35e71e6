"""`make conformance` fails when it should; no MindSpore is needed to see that."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.conformance import run
from tests.conformance.api_harness import ApiCase
from tests.conformance.check import Verdict
from tests.conformance.mindspore_process import Judge
from tests.conformance.random_cases import build_case

Conformance = Callable[..., Result]


@dataclass(frozen=True)
class Outcome:
    """What every case comes to."""

    differences: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    api_differences: tuple[str, ...] = ()
    signature_differences: tuple[str, ...] = ()
    random_differences: tuple[str, ...] = ()


@pytest.fixture
def conformance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Conformance:
    """`conformance(outcome, *arguments)`: the command, its cases all coming to `outcome`."""

    def call(outcome: Outcome, *arguments: str) -> Result:
        def check_case(seed: int, judge: Judge, directory: Path) -> Verdict:
            if outcome.differences:
                directory.mkdir()
            return Verdict(build_case(seed), list(outcome.differences), list(outcome.refusals))

        monkeypatch.setattr(run, "check_case", check_case)
        monkeypatch.setattr(run, "all_cases", lambda only: [ApiCase("load_checkpoint: a file", [])])
        monkeypatch.setattr(run, "check_api_case", lambda case, judge, directory: list(outcome.api_differences))
        monkeypatch.setattr(run, "check_signatures", lambda judge: list(outcome.signature_differences))
        monkeypatch.setattr(run, "_FURTHER_CHECKS", ())
        monkeypatch.setattr(
            run, "_RANDOM_CHECKS", [("Checkpoint 2.0", lambda first, directory: list(outcome.random_differences))]
        )
        monkeypatch.setattr(run, "PYTHON", tmp_path)
        monkeypatch.setattr(run, "MINDFORMERS_PYTHON", tmp_path)
        monkeypatch.setattr(run, "TORCH_PYTHON", tmp_path)
        monkeypatch.setattr(run, "MEGATRON_PYTHON", tmp_path)
        monkeypatch.setattr(run, "SIGNING_PYTHON", tmp_path)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", None)
        return CliRunner().invoke(run.main, arguments)

    return call


def test_all_equal(conformance: Conformance, tmp_path: Path) -> None:
    result = conformance(Outcome(), "--cases", "3", "--seed", "5")
    assert result.exit_code == 0
    assert "3 cases, SEED=5" in result.output
    assert "3 equal" in result.output
    assert list(tmp_path.iterdir()) == []


def test_one_differs(conformance: Conformance, tmp_path: Path) -> None:
    result = conformance(Outcome(differences=("rank 0 has other bytes",)), "--only", "5")
    assert result.exit_code == 1
    assert "make conformance ONLY=5" in result.output
    assert "rank 0 has other bytes" in result.output
    [kept] = tmp_path.iterdir()
    assert str(kept) in result.output
    assert (kept / "case_5").is_dir()


def test_a_call_of_the_api_differs(conformance: Conformance, tmp_path: Path) -> None:
    result = conformance(Outcome(api_differences=("reshard returns 1; MindSpore 2",)), "--cases", "2")
    assert result.exit_code == 1
    assert "API differs: load_checkpoint: a file\n    reshard returns 1; MindSpore 2" in result.output
    assert "1 cases of MindSpore's API in 0 s: 1 differ" in result.output
    assert "make conformance API='load_checkpoint: a file'" in result.output
    assert "2 equal" in result.output
    [kept] = tmp_path.iterdir()
    assert str(kept) in result.output


def test_a_random_check_differs(conformance: Conformance) -> None:
    result = conformance(Outcome(random_differences=("seed 7: rank 0 has other bytes",)), "--cases", "2")
    assert result.exit_code == 1
    assert (
        "Checkpoint 2.0: seed 7: rank 0 has other bytes\nCheckpoint 2.0, random cases, in 0 s: 1 problems"
        in result.output
    )


def test_a_function_of_the_api_takes_other_arguments(conformance: Conformance) -> None:
    result = conformance(Outcome(signature_differences=("load_checkpoint takes [], MindSpore's [1]",)), "--cases", "2")
    assert result.exit_code == 1
    assert "API differs: load_checkpoint takes []" in result.output


def test_just_a_few_calls_of_the_api(conformance: Conformance, tmp_path: Path) -> None:
    result = conformance(Outcome(differences=("not looked at",)), "--api", "load")
    assert result.exit_code == 0
    assert result.output == "1 cases of MindSpore's API in 0 s: 0 differ\n"
    assert list(tmp_path.iterdir()) == []


def test_mindspore_judged_too_few(conformance: Conformance) -> None:
    result = conformance(Outcome(refusals=("ImportError: no NAME",)), "--cases", "12")
    assert result.exit_code == 1
    assert "judged less than half" in result.output
    assert "12  ImportError: no NAME" in result.output


def test_a_single_case_may_be_one_that_mindspore_refuses(conformance: Conformance) -> None:
    assert conformance(Outcome(refusals=("cannot",)), "--only", "5").exit_code == 0


def test_seeds_are_drawn_when_none_is_given(conformance: Conformance) -> None:
    first, second = (conformance(Outcome(), "--cases", "1").output.splitlines()[0] for _ in range(2))
    assert first != second


def test_mindspore_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "PYTHON", tmp_path / "bin" / "python")
    result = CliRunner().invoke(run.main)
    assert result.exit_code == 1
    assert "MindSpore is not installed" in result.output
    monkeypatch.setattr(run, "PYTHON", tmp_path)
    monkeypatch.setattr(run, "MINDFORMERS_PYTHON", tmp_path / "bin" / "python")
    assert "MindFormers is not installed" in CliRunner().invoke(run.main).output
    monkeypatch.setattr(run, "MINDFORMERS_PYTHON", tmp_path)
    monkeypatch.setattr(run, "TORCH_PYTHON", tmp_path / "bin" / "python")
    assert "PyTorch is not installed" in CliRunner().invoke(run.main).output
    monkeypatch.setattr(run, "TORCH_PYTHON", tmp_path)
    monkeypatch.setattr(run, "MEGATRON_PYTHON", tmp_path / "bin" / "python")
    assert "Megatron-Core is not installed" in CliRunner().invoke(run.main).output

"""The command: what cannot be measured here is left out, and said."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import __main__ as main
from benchmarks import results
from benchmarks.errors import BenchmarkError


def test_without_nginx_scenarios_of_buckets_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "NGINX", None)
    monkeypatch.setattr(results, "DIRECTORY", tmp_path / "results")
    chosen = "to-bucket", "plan", "from-bucket"
    outcome = CliRunner().invoke(main.command, [*chosen, "--directory", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    said = "LEFT OUT: to-bucket, from-bucket: there is no nginx here: apt-get install nginx-light"
    assert outcome.stderr.count(said) == 2, "at the beginning and at the end"
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["plan.json"]


def test_nothing_at_all_may_be_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "NGINX", None)
    monkeypatch.setattr(results, "DIRECTORY", tmp_path / "results")
    outcome = CliRunner().invoke(main.command, ["from-bucket", "--directory", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    assert "LEFT OUT: from-bucket" in outcome.stderr


def test_an_environment_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(main._SCENARIOS["fsdp"], pythons=(tmp_path / ".venv-other" / "bin" / "python",))
    monkeypatch.setitem(main._SCENARIOS, "fsdp", scenario)
    outcome = CliRunner().invoke(main.command, ["fsdp", "--directory", str(tmp_path)])
    assert isinstance(outcome.exception, BenchmarkError)
    assert str(outcome.exception) == "scenario 'fsdp' needs .venv-other: `make bench` installs it"

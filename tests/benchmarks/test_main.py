"""The command: what cannot be measured here is left out, and said."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import __main__ as main
from benchmarks import results


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

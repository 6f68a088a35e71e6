"""--config and --print-config."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import reshard as library
from tests.cli.test_main import SOURCE, STRATEGIES

JOB = {
    "source": str(SOURCE),
    "source_strategy": STRATEGIES[1],
    "target_strategy": STRATEGIES[3],
    "include": ["*"],
    "verify": "content",
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(JOB | {"target": str(tmp_path / "out")}))
    return file


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", "ckpt", "out"),
        ("convert", "ckpt", "out", "--step", "10_5", "--cast", "*=bfloat16", "--cast", "a=float32", "--no-check-crc"),
        ("convert", "ckpt", "out", "--layout", "unified", "--max-shard-size", "1GB", "--integrated-save", "yes"),
        (
            "convert",
            "a b",
            "ö: #",
            "--remove-redundancy",
            "--replicas",
            "2",
            "--concurrency-limit",
            "x",
        ),
        ("plan", "ckpt", "--rename", r"re:layers\.(\d+)=h.\1"),
        ("convert-latest", "ckpt", "out", "--settle-seconds", "0", "--dry-run"),
        ("recover", "ckpt", "--fault-ranks", "3"),
        ("diff", "a", "b", "--step-a", "1_1", "--ignore-dtype", "--exclude", "adam*"),
        ("fingerprint", "ckpt", "--select", "weights-only"),
        ("verify", "out", "--level", "structure", "--storage", "env:HERE"),
    ],
)
def test_what_is_printed_gives_the_same_command(
    reshard: Callable[..., Any], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    printed = reshard(*arguments, "--print-config")
    assert (printed.code, printed.err) == (0, "")
    file = tmp_path / "job.yaml"
    file.write_text(printed.out)
    assert reshard(arguments[0], "--config", file, "--print-config").out == printed.out
    values = [value for value in arguments[1:] if not value.startswith("--")]
    loaded = yaml.safe_load(printed.out)
    given = [str(each) for value in loaded.values() for each in (value if isinstance(value, list) else [value])]
    assert set(values) <= set(given)


def test_a_job_is_planned_converted_and_verified(reshard: Callable[..., Any], job: Path, tmp_path: Path) -> None:
    planned = reshard("plan", "--config", job, "--json")
    assert (planned.code, json.loads(planned.out)["target_world_size"]) == (0, 2)
    shown = reshard("convert", "--config", job, "--engine", "direct", "--json")
    assert json.loads(shown.out)["verified"] == "content"
    assert reshard("recover", "--config", job).code == 0
    assert reshard("verify", tmp_path / "out").code == 0


def test_the_command_line_takes_precedence(reshard: Callable[..., Any], job: Path, tmp_path: Path) -> None:
    def printed(*arguments: object) -> Any:
        return yaml.safe_load(reshard("convert", "--config", job, *arguments, "--print-config").out)

    whole = JOB | {"target": str(tmp_path / "out")}
    assert printed() == whole
    assert printed("a", "b") == whole | {"source": "a", "target": "b"}
    assert printed("--include", "x", "--include", "y") == whole | {"include": ["x", "y"]}
    # a default that is typed is typed
    assert printed("--verify", "checksum", "--workers", "2") == {k: v for k, v in whole.items() if k != "verify"} | {
        "workers": 2
    }


def test_one_argument_beside_a_file_with_both_is_ambiguous(reshard: Callable[..., Any], job: Path) -> None:
    shown = reshard("convert", "--config", job, "other", "--print-config")
    assert (shown.code, shown.out) == (2, "")
    assert f"{job} has SOURCE and TARGET: give both on the command line, or neither\n" in shown.err
    job.write_text("target: out")
    printed = reshard("convert", "--config", job, "other", "--print-config").out
    assert yaml.safe_load(printed) == {"source": "other", "target": "out"}


def test_the_document_is_what_programs_take(job: Path) -> None:
    assert library.convert(**yaml.safe_load(job.read_text())).committed


def test_standard_input(reshard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def given(data: bytes) -> Any:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        return reshard("plan", "--config", "-", "--print-config")

    assert given(b"source: a").out == "source: a\n"
    shown = given(b"source: a\nnowhere: 1")
    assert (shown.code, shown.err) == (2, "reshard: error: standard input: nowhere: there is no such field\n")
    assert "standard input: has more than 1048576 bytes" in given(b"a" * 2**21).err


@pytest.mark.parametrize(
    ("document", "arguments", "message"),
    [
        ("workers: many", (), "{job}: workers 'many': must be a whole number"),
        ("include: {x: y}", (), "{job}: include {{'x': 'y'}}: must be a list"),
        ("step: [1]", (), "{job}: step: must be EPOCH_STEP, such as 10_5, or EPOCH_STEP_breakpoint, or an iteration"),
        ("prefix: ../x\nranks: x", (), "{job}: prefix '../x': must be a plain name: no '/', no '..', no dot in front"),
        ("prefix: ../x\nranks: x", (), "{job}: ranks 'x': must be ranks such as 0-3,7"),
        ("prefix: ok", ("--prefix", "../x"), "--prefix '../x': must be"),
        ("fault_ranks: 3", (), "{job}: fault_ranks '3': "),
        ("dry_run: true", (), "{job}: dry_run: there is no such field; it belongs on the command line: --dry-run"),
        ("engine: direct", (), "{job}: engine: there is no such field; it belongs on the command line: --engine\n"),
        ("json: true", (), "{job}: json: there is no such field; it belongs on the command line: --json\n"),
        ("source_storage: hidden", (), "{job}: source_storage: "),
    ],
)
def test_a_wrong_file_is_named_with_its_field(
    reshard: Callable[..., Any], tmp_path: Path, document: str, arguments: tuple[str, ...], message: str
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(document)
    shown = reshard("convert", "a", "b", "--config", job, *arguments)
    assert (shown.code, shown.out) == (2, "")
    assert message.format(job=job) in shown.err
    assert "hidden" not in shown.err


def test_a_command_names_none_of_the_options_that_it_lacks(reshard: Callable[..., Any], tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("dry_run: true\njson: true")
    shown = reshard("verify", "a", "--config", job)
    assert shown.code == 2
    assert f"{job}: dry_run: there is no such field\n" in shown.err
    assert f"{job}: json: there is no such field; it belongs on the command line: --json\n" in shown.err


def test_an_option_and_the_file_are_checked_together(reshard: Callable[..., Any], tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("source: a\ntarget: b\nfault_ranks: 3")
    assert reshard("convert", "--config", job, "--print-config").code == 2
    assert reshard("convert", "--config", job, "--recover", "--print-config").code == 0


def test_what_neither_gives_is_missing(reshard: Callable[..., Any], tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("source: a\ntarget:\n")
    assert "Missing argument 'TARGET'" in reshard("convert", "--config", job).err
    shown = reshard("convert", "--config", tmp_path / "gone.yaml")
    assert (shown.code, shown.err) == (
        2,
        f"reshard: error: {tmp_path}/gone.yaml: cannot read it: no such file or directory\n",
    )

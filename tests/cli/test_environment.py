"""Options from the environment."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from reshard.cli.environment import _READ_ELSEWHERE, COMMAND_LINE_ONLY, variable_of
from reshard.cli.main import cli
from tests.cli.test_main import COMMANDS, SOURCE, STRATEGIES
from tests.support.places import PROJECT

Run = Callable[..., Any]
JOB = ("convert", "a", "b", "--print-config")


@pytest.fixture
def printed(reshard: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """`printed(*arguments, NAME=VALUE, …)`: the job that a command line and variables make."""

    def call(*arguments: str, **variables: str) -> dict[str, Any]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        shown = reshard(*JOB, *arguments)
        assert shown.code == 0, shown.err
        document: dict[str, Any] = yaml.safe_load(shown.out)
        return document

    return call


def options_of_all_commands() -> list[click.Option]:
    context = cli.make_context("reshard", ["inspect"], resilient_parsing=True)
    commands = [cli.get_command(context, name) for name in COMMANDS]
    params = [param for command in commands if command for param in command.params]
    return [param for param in params if isinstance(param, click.Option)]


def test_values_of_all_kinds(printed: Callable[..., dict[str, Any]]) -> None:
    job = printed(
        RESHARD_MEMORY_LIMIT="1GiB",
        RESHARD_WORKERS="3",
        RESHARD_VERIFY="content",
        RESHARD_STEP="10_5",
        RESHARD_SOURCE_STORAGE="env:X",
        RESHARD_WRITE_CRC="true",
        RESHARD_CHECK_CRC="0",
        RESHARD_EXCLUDE="adam_m.* adam_v.*",
    )
    assert job == {
        "source": "a",
        "target": "b",
        "memory_limit": "1GiB",
        "workers": 3,
        "verify": "content",
        "step": "10_5",
        "source_storage": "env:X",
        "write_crc": True,
        "check_crc": False,
        "exclude": ["adam_m.*", "adam_v.*"],
    }


def test_the_command_line_takes_precedence(printed: Callable[..., dict[str, Any]]) -> None:
    job = printed(
        *("--memory-limit", "512MiB", "--exclude", "c", "--check-crc"),
        RESHARD_MEMORY_LIMIT="1GiB",
        RESHARD_EXCLUDE="a b",
        RESHARD_CHECK_CRC="false",
    )
    assert job == {"source": "a", "target": "b", "memory_limit": "512MiB", "exclude": ["c"]}


def test_a_file_of_options_takes_precedence(reshard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("source: a\ntarget: b\nworkers: 2\n")
    monkeypatch.setenv("RESHARD_WORKERS", "3")
    monkeypatch.setenv("RESHARD_STEP", "1_1")
    shown = reshard("convert", "--config", file, "--print-config")
    assert yaml.safe_load(shown.out) == {"source": "a", "target": "b", "workers": 2, "step": "1_1"}
    assert shown.err == "reshard: from the environment: RESHARD_STEP=1_1\n"


def test_an_empty_variable_is_not_set(printed: Callable[..., dict[str, Any]]) -> None:
    assert printed(RESHARD_STEP="", RESHARD_WRITE_CRC="", RESHARD_EXCLUDE="") == {"source": "a", "target": "b"}


def test_a_conversion_by_variables(reshard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_SOURCE_STRATEGY", STRATEGIES[1])
    monkeypatch.setenv("RESHARD_TARGET_STRATEGY", STRATEGIES[3])
    monkeypatch.setenv("RESHARD_ENGINE", "direct")
    monkeypatch.setenv("RESHARD_JSON", "1")
    shown = reshard("convert", SOURCE, tmp_path / "out")
    assert (json.loads(shown.out)["committed"], json.loads(shown.out)["engine"]) == (True, "direct")


# ---- what is said ----


def test_what_was_used_is_said_without_secrets(reshard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_STEP", "1_1")
    monkeypatch.setenv("RESHARD_SOURCE_STORAGE", "env:KEYS")
    monkeypatch.setenv("RESHARD_DECRYPT_KEY", "0123456789abcdef")
    shown = reshard("convert", "a", "b", "--print-config")
    assert shown.err.splitlines()[0] == (
        "reshard: from the environment: RESHARD_STEP=1_1, RESHARD_DECRYPT_KEY=…, RESHARD_SOURCE_STORAGE=env:KEYS"
    )
    assert "0123456789abcdef" not in shown.err
    assert reshard("convert", "a", "b", "--print-config", "--decrypt-key", "env:K", "-q").err == ""
    monkeypatch.setenv("RESHARD_SIGN", "0123456789abcdef")
    monkeypatch.setenv("RESHARD_SIGN_PASSPHRASE", "0123456789abcdef")
    assert "0123456789abcdef" not in reshard("convert", "a", "b").err


def test_it_is_in_the_log(reshard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_LOG_FILE", str(tmp_path / "log"))
    monkeypatch.setenv("RESHARD_SETP", "1_1")
    reshard(*JOB, "-q")
    lines = (tmp_path / "log").read_text()
    assert f"from the environment: RESHARD_LOG_FILE={tmp_path}/log" in lines
    assert "WARNING RESHARD_SETP is ignored" in lines


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RESHARD_MEMORY_LIMIT", "1x", "RESHARD_MEMORY_LIMIT '1x': must be a size such as 512MiB or 2GiB\n"),
        ("RESHARD_WORKERS", "many", "Invalid value for RESHARD_WORKERS: 'many' is not a valid integer.\n"),
        ("RESHARD_ENGINE", "dirct", "Invalid value for RESHARD_ENGINE: 'dirct' is not one of 'auto', 'prefect', "),
        ("RESHARD_WRITE_CRC", "maybe", "Invalid value for RESHARD_WRITE_CRC: 'maybe' is not a valid boolean."),
        ("RESHARD_SWITCH", "x", "RESHARD_SWITCH: "),
    ],
)
def test_a_wrong_value_is_the_variables(
    reshard: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    shown = reshard("convert", "a", "b")
    assert shown.code == 2
    assert f"reshard: error: {message}" in shown.err


def test_a_wrong_value_on_the_command_line_is_the_options(reshard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_WORKERS", "3")
    assert "Invalid value for '--workers': 'x'" in reshard("convert", "a", "b", "--workers", "x").err


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        (
            "RESHARD_MEMROY_LIMIT",
            "RESHARD_MEMROY_LIMIT is ignored: no option has this variable; did you mean RESHARD_MEMORY_LIMIT?",
        ),
        ("RESHARD_QQQQ", "RESHARD_QQQQ is ignored: no option has this variable"),
        ("RESHARD_OVERWRITE", "RESHARD_OVERWRITE is ignored: --overwrite is for the command line only"),
        ("RESHARD_REMOVE", "RESHARD_REMOVE is ignored: --remove is for the command line only"),
        ("RESHARD_CONFIG", "RESHARD_CONFIG is ignored: --config is for the command line only"),
    ],
)
def test_a_variable_that_nothing_reads(reshard: Run, monkeypatch: pytest.MonkeyPatch, name: str, warning: str) -> None:
    monkeypatch.setenv(name, "1")
    shown = reshard(*JOB)
    assert (shown.code, shown.err) == (0, f"reshard: warning: {warning}\n")
    assert yaml.safe_load(shown.out) == {"source": "a", "target": "b"}


@pytest.mark.parametrize("name", ["RESHARD_LAYERS", "RESHARD_RECORD_ASSETS", "RESHARD_DATA", "RESHARD_KEY"])
def test_a_variable_of_something_else(reshard: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert reshard(*JOB, "--encrypt-key", "env:RESHARD_KEY").err == ""


def test_verbose_on_the_command_line_decides_against_a_quiet_environment(
    reshard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESHARD_QUIET", "1")
    assert reshard(*JOB).err == ""
    assert "from the environment" in reshard(*JOB, "-v").err
    monkeypatch.setenv("RESHARD_VERBOSE", "1")
    assert "--quiet and --verbose cannot be combined" in reshard(*JOB).err


# ---- names ----


def test_one_name_for_one_option() -> None:
    for option in options_of_all_commands():
        variable = variable_of(option)
        if option.name in COMMAND_LINE_ONLY:
            assert variable is None
        else:
            assert f"--{str(variable).removeprefix('RESHARD_').lower().replace('_', '-')}" in option.opts


def test_those_without_a_variable_are_options_and_documented() -> None:
    options = options_of_all_commands()
    assert {option.name for option in options} >= COMMAND_LINE_ONLY
    guide = (PROJECT / "docs/guides/shell.md").read_text()
    section = guide.partition("## Options from the environment")[2].partition("\n## ")[0]
    listed = section.partition("have no variable:")[2]
    assert {name.replace("-", "_") for name in re.findall(r"`--([a-z-]+)`", listed)} == {
        each.removeprefix("show_") for each in COMMAND_LINE_ONLY if not each.endswith(("_a", "_b"))
    }


def test_no_option_has_a_name_that_something_else_reads() -> None:
    assert not {variable_of(option) for option in options_of_all_commands()} & _READ_ELSEWHERE


def test_variables_of_the_containers_are_known() -> None:
    for name in ("compose.yaml", "example.env"):
        used = set(re.findall(r"RESHARD_[A-Z_]+", (PROJECT / "deployments" / name).read_text()))
        assert used <= _READ_ELSEWHERE


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "completion"])
def test_help_says_it_once(reshard: Run, command: str) -> None:
    assert reshard(command, "--help").out.count("RESHARD_") == 1

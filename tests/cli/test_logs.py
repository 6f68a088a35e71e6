"""--quiet, --verbose and --log-file."""

import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reshard as library
from reshard.cli.main import cli
from tests.cli.test_main import COMMANDS, SOURCE, STRATEGIES

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d (DEBUG  |INFO   |WARNING|ERROR  ) (.*)")
LOGGER = logging.getLogger("reshard")


@pytest.fixture
def convert(reshard: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """`convert(*options)`: a conversion to `out`, without Prefect."""

    def call(*options: object) -> Any:
        return reshard("convert", SOURCE, tmp_path / "out", *STRATEGIES, "--engine", "direct", *options)

    return call


def lines_of(file: Path) -> list[tuple[str, str]]:
    """Level and message of each line of a log file."""
    matches = [LINE.fullmatch(line) for line in file.read_text().splitlines()]
    assert all(matches)
    return [(match[1].rstrip(), match[2]) for match in matches if match]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "completion"])
def test_every_command_that_works_has_them(name: str) -> None:
    command = cli.get_command(cli.make_context("reshard", [name], resilient_parsing=True), name)
    assert command is not None
    assert {"-q", "--quiet", "-v", "--verbose", "--log-file"} <= {
        each for param in command.params for each in param.opts
    }


def test_quiet_prints_nothing_but_errors(convert: Callable[..., Any], reshard: Callable[..., Any]) -> None:
    shown = convert("-q")
    assert (shown.code, shown.out, shown.err) == (0, "", "")
    shown = reshard("convert", "/nonexistent/a", "/nonexistent/b", "--quiet", "--engine", "direct")
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == "reshard: error: /nonexistent/a: cannot read it: no such file or directory\n"


def test_quiet_prints_what_was_asked_for(
    convert: Callable[..., Any], reshard: Callable[..., Any], tmp_path: Path
) -> None:
    assert "source ranks" in convert("-q", "--dry-run").out
    shown = convert("-q", "--json")
    assert (json.loads(shown.out)["committed"], shown.err) == (True, "")
    shown = reshard("verify", tmp_path / "out", "-q")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.endswith("all files intact\n")
    shown = reshard("diff", tmp_path / "out", tmp_path / "out", "--quiet")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("the same model")


def test_verbose_prints_files_ranks_and_phases(convert: Callable[..., Any]) -> None:
    lines = convert("--verbose").err.splitlines()
    assert all(line.startswith("reshard: ") for line in lines)
    for pattern in (
        r"reshard: .*: files listed and headers read: \S+ s",
        r"reshard: source rank 7: .*/src/rank_7/checkpoint_7.ckpt, 74\.7 KiB",
        r"reshard: rank_1: rank_1/checkpoint_1.ckpt, \S+ KiB written in \S+ s, \S+ KiB read from source ranks 0-7",
        r"reshard: rank_0: rank_0/checkpoint_0.ckpt, checked \(checksum\): \S+ s",
        r"reshard: .*/out: committed: \S+ s",
        r"reshard: finished in \S+ s, exit code 0",
    ):
        assert [line for line in lines if re.fullmatch(pattern, line)], pattern


def test_without_verbose_no_details_are_printed(convert: Callable[..., Any]) -> None:
    assert convert().err == ""


def test_a_log_file_has_everything_whatever_the_terminal_shows(
    convert: Callable[..., Any], reshard: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "log"
    assert convert("-q", "--log-file", file).code == 0
    first = lines_of(file)
    assert first[0][0] == "INFO"
    assert re.fullmatch(r"reshard 0\.\S+: reshard convert .*/src .* -q --log-file .*", first[0][1])
    assert (first[-1][0], first[-1][1][:11]) == ("DEBUG", "finished in")
    assert any(message.startswith("rank_1: rank_1/checkpoint_1.ckpt, ") for _, message in first)
    convert("-q", "--verify", "content", "--log-file", file)  # appended
    again = lines_of(file)
    assert again[: len(first)] == first
    assert ("INFO", "checking what was done before: 2 of 2 ranks") in again
    reshard("verify", tmp_path / "gone", "--log-file", file)
    assert lines_of(file)[-1] == (
        "ERROR",
        f"{tmp_path}/gone: does not exist: name the directory of a finished conversion",
    )


def test_a_log_file_has_the_result_even_if_quiet(convert: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "log"
    shown = convert("-q", "--log-file", file, "--ranks", "0")
    warning = (
        "NOT COMPLETE: 1 rank of 2 not yet written and verified: 1. To complete the target, run the same command with "
        f"--ranks 1, here or on another machine; until then, the files of this run (166.9 KiB) are in {tmp_path}/out"
        ".reshard-partial."
    )
    assert (shown.code, shown.out, shown.err) == (0, "", f"reshard: {warning}\n")
    lines = lines_of(file)
    assert ("WARNING", warning) in lines
    assert ("INFO", f"to: {tmp_path}/out") in lines
    assert [message for level, message in lines if level == "INFO" and re.match(r"written: .* read", message)]


def test_without_a_log_file_the_result_is_printed_once(convert: Callable[..., Any]) -> None:
    shown = convert("--ranks", "0")
    assert (shown.out.count("NOT COMPLETE"), shown.err.count("NOT COMPLETE")) == (1, 0)


def test_a_log_file_has_no_secrets_and_no_control_characters(reshard: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "log"
    reshard("plan", "s3://me:hidden@bucket/a?token=hidden", "--log-file", file)
    reshard("plan", f"{tmp_path}/\x1b[1m\nfake", "--log-file", file)
    assert "hidden" not in file.read_text()
    assert "\x1b" not in file.read_text()
    assert "s3://…@bucket" in file.read_text()
    assert lines_of(file)[-1] == ("ERROR", f"{tmp_path}/\\x1b[1m\\nfake: cannot read it: no such file or directory")


def test_a_log_file_has_no_secrets_that_were_given_in_place_of_their_names(
    reshard: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "log"
    reshard("convert", "a", "b", "--decrypt-key", "hidden", "--target-storage", '{"key": "hidden"}', "--log-file", file)
    reshard("convert", "a", "b", "--encrypt-key=hidden", "--source-storage=hidden", "--log-file", file)
    reshard("diff", "a", "b", "--decrypt-key-a", "hidden", "--storage-b=hidden", "--log-file", file)
    reshard("verify", "a", "--source-decrypt-key", "hidden", "--storage", "hidden", "--log-file", file)
    reshard("convert", "a", "b", "--sign", "hidden", "--sign-passphrase=hidden", "--log-file", file)
    reshard("sign", "a", "--key=hidden", "--passphrase", "hidden", "--log-file", file)
    assert "hidden" not in file.read_text()
    reshard(
        "verify", "a", "--decrypt-key", "env:KEY", "--storage=file:b", "--decrypt-mode", "AES-CBC", "--log-file", file
    )
    assert (
        f"verify a --decrypt-key env:KEY --storage=file:b --decrypt-mode AES-CBC --log-file {file}" in file.read_text()
    )


def test_each_line_of_an_error_has_its_time(reshard: Callable[..., Any], tmp_path: Path) -> None:
    reshard("plan", "a", "--prefix", "/", "--ranks", "x", "--log-file", tmp_path / "log")
    errors = [message for level, message in lines_of(tmp_path / "log") if level == "ERROR"]
    assert [error.split()[0] for error in errors] == ["--prefix", "--ranks"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("", "is a directory"), ("gone/log", "no such file or directory"), ("pipe", "no such device or address")],
)
def test_an_unusable_log_file_is_an_error_before_anything_starts(
    convert: Callable[..., Any], tmp_path: Path, name: str, reason: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / name
    shown = convert("--log-file", file)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == f"reshard: error: --log-file {file}: cannot be written: {reason}\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["out/log", "out/rank_0/log", "out.reshard-partial/log", "out"])
def test_a_log_file_in_the_target_is_refused_before_anything_is_written(
    convert: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    shown = convert("--log-file", tmp_path / name)
    how = "is" if name == "out" else "lies inside"
    place = f"{tmp_path}/{name.partition('/')[0]}"
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == (
        f"reshard: error: --log-file {tmp_path}/{name}: {how} {place}, which the command reads or writes; "
        "name a file elsewhere\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_log_file_is_none_of_the_files_that_a_command_reads(reshard: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"source: {tmp_path}/a\ntarget: file://{tmp_path}/b\n")
    shard = tmp_path / "parts" / "rank_3" / "x.ckpt"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(b"shard")
    (tmp_path / "link").symlink_to(shard)
    for command in (
        ("plan", f"{tmp_path}/parts/rank_{{rank}}/x.ckpt", "--log-file", shard),
        ("plan", "a", "--source-strategy", shard, "--log-file", tmp_path / "link"),
        ("join-parts", tmp_path / "a", tmp_path / "parts", "s3://bucket/b", "--log-file", shard),
        ("plan", "--config", tmp_path / "job.yaml", "--log-file", tmp_path / "a/log"),
        ("plan", "--config", tmp_path / "job.yaml", "--log-file", tmp_path / "b/log"),
    ):
        shown = reshard(*command)
        assert (shown.code, shown.out) == (2, "")
        assert "which the command reads or writes; name a file elsewhere" in shown.err
    assert shard.read_bytes() == b"shard"


def test_an_empty_name_of_a_log_file_is_an_error(reshard: Callable[..., Any]) -> None:
    shown = reshard("plan", "a", "--log-file", "")
    assert (shown.code, shown.err) == (2, "reshard: error: --log-file : cannot be written: no such file or directory\n")


def test_a_full_disk_ends_the_log_and_not_the_work(convert: Callable[..., Any]) -> None:
    shown = convert("-q", "--log-file", "/dev/full")
    assert (shown.code, shown.out) == (0, "")
    assert shown.err == "reshard: warning: /dev/full: the log is incomplete: No space left on device\n"


def test_quiet_and_verbose_contradict_each_other(convert: Callable[..., Any]) -> None:
    shown = convert("-q", "-v")
    assert shown.code == 2
    assert "--quiet and --verbose cannot be combined" in shown.err


def test_an_error_is_printed_once(spawned: Callable[..., Any], tmp_path: Path) -> None:
    for options in ((), ("-v",), ("--log-file", tmp_path / "log")):
        shown = spawned("inspect", "/nonexistent/a", *options)
        assert shown.err == "reshard: error: /nonexistent/a: cannot read it: no such file or directory\n"


def test_the_logger_is_left_as_it_was(convert: Callable[..., Any], tmp_path: Path) -> None:
    before = LOGGER.level, LOGGER.propagate, list(LOGGER.handlers)
    convert("-v", "--log-file", tmp_path / "log")
    assert (LOGGER.level, LOGGER.propagate, LOGGER.handlers) == before
    assert not LOGGER.isEnabledFor(logging.DEBUG)


@pytest.mark.slow
def test_a_conversion_as_a_flow_logs_the_same(spawned: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "log"
    shown = spawned("convert", SOURCE, tmp_path / "out", *STRATEGIES, "--engine", "prefect", "-q", "--log-file", file)
    assert (shown.code, shown.out, shown.err) == (0, "", "")
    messages = [message for _, message in lines_of(file)]
    assert "starting Prefect's embedded server (the first time it takes up to 20 s)" in messages
    assert len([message for message in messages if " written in " in message]) == 2
    assert len(set(messages)) == len(messages)


def test_programs_get_the_same_lines_by_configuring_logging(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "reshard")
    library.convert(SOURCE, tmp_path / "out", source_strategy=STRATEGIES[1], target_strategy=STRATEGIES[3])
    library.convert(SOURCE, tmp_path / "out", source_strategy=STRATEGIES[1], target_strategy=STRATEGIES[3])
    assert ("reshard", logging.INFO, "checking what was done before: 2 of 2 ranks") in caplog.record_tuples
    assert any(message.startswith("rank_1: rank_1/checkpoint_1.ckpt, ") for message in caplog.messages)
    assert capsys.readouterr() == ("", "")

"""The engine itself: a parser's fault is noticed, reported once, and its input made small."""

from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from reshard.core.errors import InputError
from tests.fuzz import engine, run
from tests.fuzz.parsers import Parser


def _parse(data: bytes) -> None:
    if b"key" in data:
        raise KeyError(data)
    if b"nobody" in data:
        raise InputError("damaged")
    if b"greedy" in data:
        bytearray(64 << 20)
    if b"slow" in data:
        while True:
            pass
    if b"damaged" in data:
        raise InputError("the file: damaged")


CLUMSY = Parser("clumsy", lambda: [b"a sound file"], _parse, origin="the file")


@pytest.mark.parametrize(
    ("data", "what", "accepted"),
    [
        (b"sound", "", True),
        (b"damaged", "", False),
        (b"a key", "KeyError in test_engine.py _parse", False),
        (b"of nobody", "a message that does not name the file: InputError", False),
        (b"greedy", "more memory than 64 times its size and 4194304 bytes", False),
        (b"slow", "more than 0.05 s in test_engine.py _parse", False),
    ],
)
def test_what_is_wrong_is_noticed(monkeypatch, data: bytes, what: str, accepted: bool) -> None:
    monkeypatch.setattr(engine, "MOST_SECONDS", 0.05)
    found = engine.outcome(CLUMSY, data, measured=True)
    assert found[0].startswith(what) if what else not found[0]
    assert found[1] is accepted


def test_a_failure_is_reported_once_with_a_small_input() -> None:
    parser = Parser("clumsy", lambda: [b"a long file with a key in it", b"x key y"], _parse)
    tally = engine.run(parser, Random(1), inputs=40)
    (failure,) = tally.failures.values()
    assert failure.data == b"key"
    assert (tally.count, failure.parser) == (40, "clumsy")


def test_the_same_seed_gives_the_same_inputs() -> None:
    noted: list[list[bytes]] = [[], []]
    for notes in noted:
        engine.run(run.PARSERS[0], Random("7"), inputs=30, note=notes.append)
    assert noted[0] == noted[1]
    assert len(set(noted[0])) > 20


def test_the_command_keeps_what_it_finds_and_fails(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "PARSERS", (Parser("clumsy", lambda: [b"key"], _parse),))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = CliRunner().invoke(run.main, ["--seconds", "0.2", "--seed", "3"])
    assert done.exit_code == 1
    assert "clumsy: KeyError in test_engine.py _parse" in done.output
    (kept,) = tmp_path.glob("*/clumsy-0")
    assert kept.read_bytes() == b"key"


def test_the_command_is_content_where_nothing_is_wrong(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = CliRunner().invoke(run.main, ["--seconds", "0.2", "--seed", "3", "--only", "lease"])
    assert done.exit_code == 0, done.output
    assert "0 failures" in done.output
    assert list(tmp_path.iterdir()) == []

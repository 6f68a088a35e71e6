"""Arguments of `reshard`'s functions that are no request's: what a person may write means what it says."""

import threading
from pathlib import Path
from typing import Any

import pytest

import reshard
from reshard.errors import InputError, StoppedError
from tests.support.checkpoints import case
from tests.test_listening import Trigger, convert

STRATEGY = case(7010).directory / "src_strategy.ckpt"


def test_no_as_a_word_removes_nothing(tmp_path: Path) -> None:
    target, cancel = tmp_path / "out", threading.Event()
    with pytest.raises(StoppedError):
        convert(target, cancel=cancel, progress=Trigger(cancel, "converting", after_bytes=True), workers=1)
    there = sorted(tmp_path.rglob("*"))
    assert not reshard.clean(target, remove="no").removed  # type: ignore[arg-type]
    assert sorted(tmp_path.rglob("*")) == there
    with pytest.raises(InputError, match="^remove 'perhaps': must be true or false"):
        reshard.clean(target, remove="perhaps")  # type: ignore[arg-type]
    assert reshard.clean(target, remove=True).removed


def test_no_as_a_word_replaces_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made.json"
    made.write_text("mine")
    with pytest.raises(InputError, match="overwrite"):
        reshard.make_strategy(made, like=STRATEGY, data_parallel=1, model_parallel=1, overwrite="no")  # type: ignore[arg-type]
    assert made.read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": -1}, "limit -1: must be at least 0"),
        ({"limit": 1.5}, "limit 1.5: must be a whole number"),
        ({"limit": True}, "limit True: must be a whole number, not true or false"),
        ({"since": 5}, "since 5: must be a text"),
        ({"source": 5}, "source 5: must be a text"),
        ({"states": "faild"}, "states: there is no state 'faild'; did you mean failed?"),
    ],
)
def test_wrong_arguments_of_history_are_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        reshard.history(tmp_path, **options)
    assert str(caught.value).startswith(message)


def test_keys_check_the_signatures_of_one_place(tmp_path: Path) -> None:
    for places in ([], [tmp_path, tmp_path / "other"]):
        with pytest.raises(InputError, match="^signed_by: only valid with one place$"):
            reshard.history(*places, signed_by=tmp_path / "release.pub")
    with pytest.raises(InputError, match="^storage: only valid with a place$"):
        reshard.history(storage="env:BUCKET")


def test_places_are_given_one_by_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be paths or URLs, one by one"):
        reshard.history([tmp_path])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="^parts 5: must be a list of paths$"):
        reshard.join_parts(5, tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="^parts 5: must be paths or URLs, one by one$"):
        reshard.join_parts([5], tmp_path / "out")  # type: ignore[list-item]

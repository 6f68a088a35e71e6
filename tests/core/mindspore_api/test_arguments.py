"""Checks of arguments, and the exceptions that they raise."""

from collections.abc import Callable

import pytest

from reshard.core.mindspore_api.arguments import (
    DEFAULT_MODE,
    check_key,
    check_safetensors_has_none,
    check_type,
    check_value,
    checked_prefixes,
    chooser,
    given_rank,
    key_of,
)
from reshard.core.mindspore_api.environment import rank_in_environment


@pytest.mark.parametrize(
    ("value", "required", "message"),
    [
        (5, str, "'name' has to be a string, not 5"),
        (True, int, "'name' has to be an int, not True"),
        ("1", int, "'name' has to be an int, not '1'"),
        (1, bool, "'name' has to be a bool, not 1"),
        (None, list, "'name' has to be a list, not None"),
    ],
)
def test_a_wrong_type(value: object, required: type, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        check_type("name", value, required)


def test_optional_arguments_may_be_none() -> None:
    check_type("name", None, str, optional=True)
    check_type("name", "a", str, optional=True)
    with pytest.raises(TypeError, match="'name' has to be a string or None, not 5"):
        check_type("name", 5, str, optional=True)


def test_a_wrong_type_that_mindspore_reports_as_a_value() -> None:
    check_value("name", None, (type(None), bool))
    with pytest.raises(ValueError, match="'name' has to be None or bool, not 1"):
        check_value("name", 1, (type(None), bool))


def test_a_wrong_key_is_not_shown() -> None:
    with pytest.raises(ValueError, match="'dec_key' has to be None or bytes, not str") as caught:
        check_key("dec", "secret", "AES-GCM")
    assert "secret" not in str(caught.value)


def test_keys() -> None:
    assert key_of("dec_key", None, "no mode") is None
    with pytest.raises(ValueError, match="the mode 'no mode' goes with 'dec_key', but has to be one of AES-GCM"):
        key_of("dec_key", b"0" * 16, "no mode")


@pytest.mark.parametrize(
    ("key", "mode", "others", "message"),
    [
        (b"0" * 16, DEFAULT_MODE, {}, "never encrypted"),
        (None, "AES-CBC", {}, "never encrypted"),
        (None, DEFAULT_MODE, {"incremental": True}, "'incremental' is for .ckpt files only"),
    ],
)
def test_options_that_safetensors_files_lack(key: bytes | None, mode: str, others: dict, message: str) -> None:
    check_safetensors_has_none("save", "ckpt", key, mode, **others)
    with pytest.raises(ValueError, match=message):
        check_safetensors_has_none("save", "safetensors", key, mode, **others)


def test_prefixes() -> None:
    assert checked_prefixes(None) is None
    assert checked_prefixes("net") == ("net",)
    assert checked_prefixes(["net", "head"]) == ("net", "head")
    for wrong, error in ((5, TypeError), ([5], TypeError), ("", ValueError), ([], ValueError)):
        with pytest.raises(error, match="'specify_prefix' and 'filter_prefix'"):
            checked_prefixes(wrong)


@pytest.mark.parametrize(
    ("specified", "filtered", "choice", "taken"),
    [
        (None, None, None, {"net.w", "net.b", "head.w"}),
        (None, None, lambda name: name.endswith("w"), {"net.w", "head.w"}),
        (("net",), None, lambda name: False, {"net.w", "net.b"}),
        (None, ("net.b", "head"), None, {"net.w"}),
        (("net",), ("net.b",), None, {"net.w"}),
    ],
)
def test_a_choice_by_prefixes_or_by_a_function(
    specified: tuple[str, ...] | None,
    filtered: tuple[str, ...] | None,
    choice: Callable[[str], bool] | None,
    taken: set[str],
) -> None:
    choose = chooser(specified, filtered, choice)
    assert {name for name in ("net.w", "net.b", "head.w") if choose(name)} == taken


def test_the_rank_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK_ID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert rank_in_environment() is None
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    assert rank_in_environment() == 3
    with pytest.raises(ValueError, match="'rank_id' is 1, the environment's OMPI_COMM_WORLD_RANK is 3"):
        given_rank(1)
    monkeypatch.setenv("RANK_ID", "12")
    assert rank_in_environment() == 12
    for wrong in ("", "-1", "one", "9" * 11):
        monkeypatch.setenv("RANK_ID", wrong)
        with pytest.raises(ValueError, match="RANK_ID is '.*', not a rank"):
            rank_in_environment()

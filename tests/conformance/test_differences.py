import hashlib

import pytest

from tests.conformance.differences import differences, loading_differences, with_text, without
from tests.support.checkpoints import Contents

HELD: Contents = {"a": ("Int8", (2,), b"\1\2"), "b": ("Float32", (), bytes(4))}


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({0: HELD | {"a": ("Int8", (2,), b"\2\1")}}, "X rank 0 a has other bytes"),
        ({0: HELD | {"a": ("UInt8", (2,), b"\1\2")}}, "X rank 0 a is UInt8 [2], not Int8 [2]"),
        ({0: HELD | {"a": ("Int8", (1, 2), b"\1\2")}}, "X rank 0 a is Int8 [1, 2], not Int8 [2]"),
        ({0: {"b": HELD["b"]}}, "X rank 0 lacks a"),
        ({0: HELD | {"c": HELD["a"]}}, "X rank 0 has c"),
        ({0: HELD, 1: HELD}, "X ranks are [0, 1], not [0]"),
        ({}, "X ranks are [], not [0]"),
    ],
)
def test_every_difference_is_told(found: dict[int, Contents], line: str) -> None:
    assert differences("X", found, {0: HELD}) == [line]


def test_nothing_is_told_of_what_is_equal() -> None:
    assert differences("X", {0: dict(HELD)}, {0: HELD}) == []


def test_text_is_compared_and_parameters_can_be_left_out() -> None:
    noted = with_text({0: HELD}, {"note": "hé", "empty": ""})
    assert noted[0]["note"] == ("str", (0,), "hé".encode("utf-32-le"))
    assert noted[0]["empty"] == ("str", (0,), bytes(4))
    assert without(noted, {"note", "empty"}) == {0: HELD}


def test_what_mindspore_loads_is_compared() -> None:
    loaded = {
        name: [dtype, list(shape), hashlib.sha256(content).hexdigest()]
        for name, (dtype, shape, content) in HELD.items()
    }
    assert loading_differences({0: loaded | {"note": "x"}}, {0: HELD}, {"note": "x"}) == []
    assert loading_differences({0: loaded}, {0: HELD}, {"note": "x"}) == ["MindSpore loads rank 0 differently: note"]
    assert loading_differences({}, {0: HELD}, {}) == ["MindSpore loads rank 0 differently: a, b"]
    other = loaded | {"a": ["Int8", [2], "0"]}
    assert loading_differences({0: other}, {0: HELD}, {}) == ["MindSpore loads rank 0 differently: a"]

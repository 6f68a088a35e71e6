"""Guessing how names differ."""

import pytest

from reshard.core.source.rename_guess import guess_renaming

NAMES = [f"model.layers.{n}.{what}.weight" for n in range(4) for what in ("wq", "wo", "norm")]


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([f"network.{name}" for name in NAMES], "all with 'network.' before them"),
        ([f"0-{name}" for name in NAMES], "all with '0-' before them"),
        ([name.removeprefix("model.") for name in NAMES], "all without 'model.' before them"),
        ([name.replace("layers", "blocks") for name in NAMES], "all with 'blocks' in the place of 'layers'"),
        ([name.replace("model.", "model.net.") for name in NAMES], "all with 'model.net' in the place of 'model'"),
        ([name.replace("model.layers", "h") for name in NAMES], "all with 'h' in the place of 'model.layers'"),
    ],
)
def test_systematic(others: list[str], message: str) -> None:
    guess = guess_renaming(NAMES, others)
    assert (str(guess), guess and guess.fitting) == (message, len(NAMES))


def test_only_some_of_them() -> None:
    guess = guess_renaming(NAMES, [f"network.{name}" for name in NAMES[:8]])
    assert guess is not None
    assert guess.fitting == 8


def test_nothing_in_common() -> None:
    assert guess_renaming(NAMES, ["a.b", "c"]) is None
    assert guess_renaming(NAMES, []) is None
    assert guess_renaming([], NAMES) is None
    assert guess_renaming(NAMES, [f"x.{NAMES[0]}"]) is None

import pytest

from reshard.core.files.repetition import Repetition


def entries(*lengths: int, head_bytes: int = 10) -> Repetition:
    repetition = Repetition()
    for length in lengths:
        repetition.add(length, length + head_bytes)
    return repetition


def guessed(repetition: Repetition, count: int) -> list[list[int]]:
    return [[length - 10 for length in guess] for guess in repetition.guesses(count, alternatives=True)]


@pytest.mark.parametrize(
    ("lengths", "guesses"),
    [
        pytest.param([], [], id="nothing is known"),
        pytest.param([5], [[5, 5]], id="a new length may come again"),
        pytest.param([5, 7, 9, 5], [[7, 9, 5, 7, 9, 5]], id="what followed follows again, and again"),
        pytest.param([5, 5, 7, 9, 5], [[7, 9, 5, 7, 9, 5], [5, 7, 9, 5, 5, 7]], id="first and last of several alike"),
        pytest.param([1, 2, 3, 4, 9, 5, 3, 4, 8, 1, 2, 3, 4], [[9, 5, 3, 4, 8, 1]], id="the longer row counts"),
        pytest.param(
            [4, 8, 1, 2, 3, 4, 9, 7, 1, 2, 3, 4], [[9, 7, 1, 2, 3, 4], [8, 1, 2, 3, 4, 9]], id="before the first alike"
        ),
    ],
)
def test_guesses(lengths: list[int], guesses: list[list[int]]) -> None:
    assert guessed(entries(*lengths), 6) == guesses


def test_guesses_do_not_depend_on_when_one_asks() -> None:
    lengths = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 3, 1, 4]
    asked_often = Repetition()
    for length in lengths:
        asked_often.add(length, length + 10)
        assert list(asked_often.guesses(3, alternatives=True))
    assert guessed(asked_often, 5) == guessed(entries(*lengths), 5)


def test_longer_names_lengthen_all_entries_that_follow() -> None:
    repetition = entries(5, 7, 9)
    repetition.add(5, 5 + 17)
    assert list(repetition.guesses(4, alternatives=False)) == [[7 + 17, 9 + 17, 5 + 17, 7 + 17]]


def test_the_best_guess_alone() -> None:
    assert len(list(entries(5, 5, 7, 9, 5).guesses(4, alternatives=False))) == 1


def test_mean_of_the_last() -> None:
    assert entries(1000, 10, 20, 30).mean_bytes(3) == 30
    assert entries(10, 20).mean_bytes(3) == float("inf")

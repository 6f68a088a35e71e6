"""Layers of the model and their numbers in chunks of pipeline stages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import LayoutError
from reshard.core.layouts.megatron.numbering import LayerDivision, LayerPlace, layer_numbers, layer_places


@st.composite
def _divisions(draw: st.DrawFn) -> LayerDivision:
    stages, chunks = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    counts = tuple(chunks * draw(st.integers(0, 3)) for _ in range(stages))
    layers = sum(counts)
    if layers == 0:
        counts, layers = (chunks,) * stages, stages * chunks
    noops = tuple(draw(st.sets(st.integers(0, layers - 1), max_size=layers)))
    return LayerDivision(stages, layers, chunks, counts=counts, noops=noops)


@given(_divisions())
def test_every_layer_is_in_one_place(division: LayerDivision) -> None:
    numbers = layer_numbers(division)
    assert set(numbers) == {(stage, chunk) for stage in range(division.stages) for chunk in range(division.chunks)}
    found = [number for chunk in numbers.values() for number in chunk if number is not None]
    assert sorted(found) == list(range(division.layers - len(division.noops)))
    assert sum(map(len, numbers.values())) == division.layers


@given(_divisions())
def test_places_are_the_inverse_of_numbers(division: LayerDivision) -> None:
    numbers = layer_numbers(division)
    for number, place in enumerate(layer_places(division)):
        assert numbers[place.stage, place.chunk][place.number] == number


@given(st.integers(1, 4), st.integers(1, 3))
def test_dualpipev_has_the_first_and_the_last_layers_in_its_first_stage(stages: int, of_each: int) -> None:
    layers = 2 * stages * of_each
    numbers = layer_numbers(LayerDivision(stages, layers, 2, mirrored=True))
    found = [number for chunk in numbers.values() for number in chunk]
    assert sorted(found, key=lambda number: number or 0) == list(range(layers))
    for stage in range(stages):
        assert numbers[stage, 0] == tuple(range(stage * of_each, (stage + 1) * of_each))
        last = layers - stage * of_each
        assert numbers[stage, 1] == tuple(range(last - of_each, last))


def test_chunks_come_before_stages() -> None:
    numbers = layer_numbers(LayerDivision(2, 8, 2))
    assert numbers == {(0, 0): (0, 1), (1, 0): (2, 3), (0, 1): (4, 5), (1, 1): (6, 7)}


def test_uneven_stages_with_chunks() -> None:
    numbers = layer_numbers(LayerDivision(3, 14, 2, first=2, last=4))
    assert numbers == {
        (0, 0): (0,),
        (1, 0): (1, 2, 3, 4),
        (2, 0): (5, 6),
        (0, 1): (7,),
        (1, 1): (8, 9, 10, 11),
        (2, 1): (12, 13),
    }


@pytest.mark.parametrize(
    ("first", "last", "expected"), [(1, None, [1, 4, 4]), (None, 1, [4, 4, 1]), (2, 1, [2, 6, 1]), (0, None, [0, 4, 4])]
)
def test_the_first_and_the_last_stage_may_have_other_counts(
    first: int | None, last: int | None, expected: list[int]
) -> None:
    numbers = layer_numbers(LayerDivision(3, sum(expected), 1, first, last))
    assert [len(numbers[stage, 0]) for stage in range(3)] == expected


def test_noops_keep_their_places_and_take_no_numbers() -> None:
    numbers = layer_numbers(LayerDivision(2, 6, noops=(1, 4)))
    assert numbers == {(0, 0): (0, None, 1), (1, 0): (2, None, 3)}
    assert layer_places(LayerDivision(2, 6, noops=(1, 4)))[3] == LayerPlace(1, 0, 2)


@pytest.mark.parametrize(
    ("division", "message"),
    [
        (LayerDivision(4, 6), "6 layers cannot be divided evenly among 4 stages"),
        (LayerDivision(3, 6, first=1), "6 layers cannot be divided evenly among 3 stages, 1 of them on the first or"),
        (LayerDivision(2, 6, first=1, last=4), "6 layers cannot be divided evenly among 2 stages, 1 and 4 of them"),
        (LayerDivision(1, 6, first=1, last=5), "6 layers cannot be divided evenly among 1 stages"),
        (LayerDivision(2, 3, first=4), "3 layers cannot be divided evenly"),
        (LayerDivision(2, 6, 2), "stage 0 has 3 layers, which cannot be divided into 2 chunks"),
        (LayerDivision(2, 6, counts=(2, 2)), "4 layers are given for 2 stages, but there are 6 for 2"),
        (LayerDivision(3, 6, counts=(3, 3)), "6 layers are given for 2 stages, but there are 6 for 3"),
        (LayerDivision(2, 6, first=3, counts=(3, 3)), "both for each stage and for the first or the last one"),
        (LayerDivision(2, 4, noops=(4,)), r"the no-ops \[4\] are not different layers of 4"),
        (LayerDivision(2, 4, noops=(1, 1)), r"the no-ops \[1, 1\] are not different layers of 4"),
        (LayerDivision(2, 4, mirrored=True), "dualpipev is only known for stages of two chunks"),
        (LayerDivision(2, 6, 2, counts=(2, 4), mirrored=True), "dualpipev is only known for stages of two chunks"),
    ],
)
def test_divisions_that_do_not_go(division: LayerDivision, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        layer_numbers(division)

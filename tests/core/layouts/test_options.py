"""How layouts declare options, and how requests are composed of them, shown with made-up layouts."""

import pytest
from pydantic import Field

from reshard.core.errors import InputError
from reshard.core.layouts.options import (
    LayoutOptions,
    described,
    own_names,
    own_options,
    with_one_target_options_of,
    with_options_of,
)
from reshard.core.options.validation import RequestModel, build_options


class ShelfOptions(RequestModel):
    """Options of shelves."""

    boards: int = Field(default=3, ge=1)

    @property
    def height(self) -> int:
        """What follows from the options."""
        return 30 * self.boards


class DrawerOptions(RequestModel):
    """Options of drawers."""

    handle: str = "round"


class DrawerNumber(RequestModel):
    """Which drawer."""

    drawer: int = 0


CABINETS = LayoutOptions("cabinets", "drawers behind doors.", one_target=DrawerNumber)
SHELVES = LayoutOptions("shelves", "boards above one another.", ShelfOptions, suffix=".board", refused={"lock": "open"})
DRAWERS = LayoutOptions("drawers", "boxes.", DrawerOptions, DrawerNumber, refused={"room": "bring no room"})
FURNITURE = (SHELVES, DRAWERS, CABINETS)


@with_options_of(FURNITURE)
class Furniture(RequestModel):
    """A part of requests."""

    room: str = ""
    format: str = "same"
    layout: str = "shelves"


class AnyFurniture(Furniture):
    """Options of every request."""

    lock: bool = False


@with_one_target_options_of(FURNITURE)
class OneFurniture(AnyFurniture):
    """A request for one target."""

    size: int = 1


def build(**options: object) -> OneFurniture:
    return build_options(OneFurniture, **options)


def test_own_options_follow_the_part_and_come_before_what_is_derived_from_it() -> None:
    assert list(AnyFurniture.model_fields) == ["room", "format", "layout", "handle", "boards", "lock"]
    assert list(OneFurniture.model_fields) == [*AnyFurniture.model_fields, "size", "drawer"]
    assert (OneFurniture.__name__, OneFurniture.__module__, OneFurniture.__doc__) == (
        "OneFurniture",
        __name__,
        "A request for one target.",
    )


def test_values_and_names_of_the_layouts() -> None:
    assert described(FURNITURE) == (
        "shelves: boards above one another. drawers: boxes. cabinets: drawers behind doors."
    )
    assert list(own_names(FURNITURE)) == ["drawer", "handle", "boards"]


def test_layouts_may_share_options() -> None:
    made = [build(layout=layout, drawer=2) for layout in ("drawers", "cabinets")]
    assert [own_options(each, DrawerNumber).drawer for each in made] == [2, 2]


def test_a_layout_sees_its_own_options_in_a_request() -> None:
    assert own_options(build(boards=2), ShelfOptions).height == 60
    with pytest.raises(TypeError, match="DrawerNumber is not composed with ShelfOptions"):
        own_options(DrawerNumber(), ShelfOptions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"handle": "square"}, "handle 'square': only valid with layout='drawers'"),
        ({"drawer": 2}, "drawer 2: only valid with layout='drawers' or layout='cabinets'"),
        ({"layout": "drawers", "boards": 4}, "boards 4: only valid with layout='shelves'"),
        ({"lock": True}, "lock True: open"),
        ({"layout": "drawers", "room": "kitchen"}, "layout 'drawers': bring no room"),
        ({"layout": "shelves", "format": "box"}, "layout 'shelves': writes .board files: leave out 'format'"),
        ({"boards": 0}, "boards 0: must be at least 1"),
    ],
)
def test_options_that_do_not_go_with_the_layout_are_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "options",
    [
        {"boards": 3, "handle": "round", "drawer": 0},
        {"layout": "drawers", "handle": "square", "drawer": 2, "lock": True, "format": "box"},
        {"layout": "shelves", "format": "board", "room": "kitchen"},
    ],
)
def test_defaults_and_options_of_the_layout_are_accepted(options: dict[str, object]) -> None:
    assert build(**options).model_dump(include=set(options)) == options


def test_a_target_and_its_steps_lie_as_they_are_named() -> None:
    assert SHELVES.directory("out", build()) == "out"
    assert SHELVES.options_of_step("out/", "training", "10_5") == {"target": "out/10_5"}
    SHELVES.check_for_all_steps("out/iteration_00000040")

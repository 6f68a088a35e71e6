import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, replace
from typing import Any

import pytest

from reshard.core.runtime.frozen import frozen

DECORATORS = pytest.mark.parametrize("decorator", [frozen, dataclass(frozen=True)], ids=["frozen", "dataclass"])
"""Whatever is tested holds for both, so each is the other's judge."""


@frozen
class Pickled:
    name: str
    sizes: tuple[int, ...] = ()


def made(decorator: Callable[[type], type]) -> Any:
    class Shape:
        """One of everything that fields may be."""

        name: str
        sizes: list[int] = field(default_factory=list)
        unit: str = "B"
        note: str = field(default="", compare=False)
        secret: str = field(default="", repr=False)
        first: int = field(init=False, compare=False)
        exact: bool = field(default=False, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "first", next(iter(self.sizes), 0))

    return decorator(Shape)


@DECORATORS
def test_arguments_are_the_fields(decorator: Callable[[type], type]) -> None:
    shape = made(decorator)
    assert asdict(shape("a", [3, 4], secret="s", exact=True)) == {
        "name": "a",
        "sizes": [3, 4],
        "unit": "B",
        "note": "",
        "secret": "s",
        "first": 3,
        "exact": True,
    }
    assert shape("a").sizes == []
    assert shape("a").sizes is not shape("a").sizes
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'name'"):
        shape()
    with pytest.raises(TypeError, match="positional arguments but"):
        shape("a", [], "B", "", "", True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'first'"):
        shape("a", first=1)


@DECORATORS
def test_equality_is_of_the_compared_fields_and_the_class(decorator: Callable[[type], type]) -> None:
    shape = made(decorator)
    assert shape("a", (1,), note="n") == shape("a", (1,))
    assert hash(shape("a", (1,), note="n")) == hash(shape("a", (1,)))
    assert shape("a", (1,)) != shape("a", (2,))
    assert shape("a") != made(decorator)("a")
    assert shape("a") != ("a",)
    assert len({shape("a", (1,)), shape("a", (1,)), shape("b", (1,))}) == 2


@DECORATORS
def test_few_fields_are_compared_too(decorator: Callable[[type], type]) -> None:
    nothing = decorator(type("Nothing", (), {"__doc__": "No fields."}))
    one = decorator(type("One", (), {"__doc__": "A field.", "__annotations__": {"value": float}}))
    assert nothing() == nothing()
    assert hash(nothing()) == hash(nothing())
    nan = float("nan")
    assert one(nan) == one(nan), "as tuples are compared: what is identical is equal"
    assert one(1) == one(1.0) != one(2)


@DECORATORS
def test_what_is_shown(decorator: Callable[[type], type]) -> None:
    shown = repr(made(decorator)("a", [1], secret="s"))
    assert shown == "made.<locals>.Shape(name='a', sizes=[1], unit='B', note='', first=1, exact=False)"


@DECORATORS
def test_nothing_is_assigned_or_deleted(decorator: Callable[[type], type]) -> None:
    shape = made(decorator)("a")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        shape.name = "b"
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'name'"):
        del shape.name
    assert replace(shape, name="b").name == "b"
    assert shape.name == "a"


@DECORATORS
def test_methods_of_the_class_stay(decorator: Callable[[type], type]) -> None:
    class Folded:
        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Folded) and self.name.lower() == other.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

        def __repr__(self) -> str:
            return self.name

    folded: Any = decorator(Folded)
    assert folded("A") == folded("a")
    assert len({folded("A"), folded("a")}) == 1
    assert repr(folded("A")) == "A"


@DECORATORS
def test_subclasses_add_fields(decorator: Callable[[type], type]) -> None:
    base = decorator(type("Base", (), {"__annotations__": {"name": str}}))
    sub = decorator(type("Sub", (base,), {"__annotations__": {"size": int}, "size": 0}))
    assert asdict(sub("a", 2)) == {"name": "a", "size": 2}
    assert sub("a") != base("a")
    with pytest.raises(
        TypeError, match=r"non-frozen dataclass from a frozen one|frozen dataclass from a non-frozen one"
    ):
        dataclass(frozen=decorator is frozen)(type("Mixed", (base,), {}))


def test_they_are_pickled() -> None:
    value = Pickled("a", (1,))
    assert pickle.loads(pickle.dumps(value)) == value

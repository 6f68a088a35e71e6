import ast
import pickle
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest
from msgspec.structs import replace

from reshard.core.runtime.records import Record

PROJECT = Path(__file__).parents[3]


class Named(Record, dict=True):
    name: str
    sizes: tuple[int, ...] = ()

    @cached_property
    def total(self) -> int:
        return sum(self.sizes)


class Unit(Named):
    unit: str = "B"


class Version(Record, order=True):
    major: int
    minor: int = 0


class Handle(Record, eq=False):
    name: str


def test_nothing_is_assigned_or_deleted() -> None:
    for record in (Named("a"), Unit("a")):
        with pytest.raises(AttributeError, match="immutable type"):
            record.name = "b"  # type: ignore[misc]
        with pytest.raises(AttributeError, match="immutable type"):
            del record.name
        assert replace(record, name="b").name == "b"
        assert record.name == "a"


def test_records_of_one_class_are_equal_by_value() -> None:
    assert Named("a", (1,)) == Named("a", (1,)) != Named("a", (2,))
    assert hash(Named("a", (1,))) == hash(Named("a", (1,)))
    assert Unit("a") != Named("a")
    nan = Named(float("nan"))  # type: ignore[arg-type]
    assert Named(nan.name) == nan, "as tuples are compared: what is identical is equal"


def test_a_changed_copy_computes_anew() -> None:
    record = Named("a", (1, 2))
    assert record.total == 3
    assert replace(record, sizes=(4,)).total == 4
    assert record.total == 3


def test_pickled_records_are_equal_and_leave_computed_values_behind() -> None:
    record = Unit("a", (1, 2), "KB")
    assert record.total == 3
    data = pickle.dumps(record)
    assert pickle.loads(data) == record
    assert b"total" not in data


def test_options_go_behind_the_base() -> None:
    assert sorted([Version(2), Version(1, 5), Version(1)]) == [Version(1), Version(1, 5), Version(2)]
    one, other = Handle("a"), Handle("a")
    assert one != other
    assert len({one, other, one}) == 2


def test_every_class_that_caches_has_a_place_for_it() -> None:
    """Without `dict=True` the property fails where it is first used, perhaps in a rare case."""
    homeless = [
        f"{path.relative_to(PROJECT)}: {kind.name}"
        for folder in ("core", "cli", "flows", "tasks", "deployments")
        for path in (PROJECT / folder).rglob("*.py")
        for kind in _record_classes(ast.parse(path.read_text()))
        if _caches(kind) and not any(option.arg == "dict" for option in kind.keywords)
    ]
    assert not homeless


def _record_classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in ("Record", "Struct") for base in node.bases):
            yield node


def _caches(kind: ast.ClassDef) -> bool:
    return any(
        isinstance(method, ast.FunctionDef)
        and any(ast.unparse(each) == "cached_property" for each in method.decorator_list)
        for method in kind.body
    )

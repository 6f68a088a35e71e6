"""Frozen dataclasses that are quick to define.

`dataclass(frozen=True)` generates and compiles six methods for each class, which takes some 0.7 ms; a command that runs
for half a second defines 150 classes. Of a class of `frozen`, only `__init__` is compiled, and the rest is shared.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, dataclass_transform

Class = TypeVar("Class", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: Class) -> Class:
    """Decorate a class as `dataclass(frozen=True)` does, with the same fields, methods and errors.

    For slots, an order or identity as equality, there is `dataclass` itself.
    """
    dataclass(init=False, repr=False, eq=False)(cls)
    values = attrgetter("__class__", *(each.name for each in fields(cls) if each.compare))

    def equal(self: object, other: object) -> bool:
        if other is self:
            return True
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: object) -> int:
        return hash(values(self))

    methods = {
        "__init__": _initializer(cls),
        "__eq__": equal,
        "__hash__": hashed,
        "__repr__": _represent,
        "__setattr__": _refuse_to_assign,
        "__delattr__": _refuse_to_delete,
    }
    own = dict(vars(cls))  # a class with an __eq__ also has a __hash__, which is None
    for name, method in methods.items():
        if own.get(name) is None:
            setattr(cls, name, method)
    return cls


def _initializer(cls: type) -> Any:
    """Compile `__init__`, whose arguments are the fields, and which ends with `__post_init__` if there is one."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_MADE": MISSING}
    positional: list[str] = ["self"]
    keywords: list[str] = []
    lines: list[str] = []
    for each in fields(cls):
        if each.init:
            (keywords if each.kw_only else positional).append(f"{each.name}{_default(each, names)}")
        lines += _assignments(each, names)
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = [*positional, *(["*", *keywords] if keywords else [])]
    exec(f"def __init__({', '.join(parameters)}):\n  " + ("\n  ".join(lines) or "pass"), names)
    made = names["__init__"]
    made.__module__, made.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
    return made


def _default(each: Field[Any], names: dict[str, Any]) -> str:
    if each.default_factory is not MISSING:
        return "=_MADE"
    if each.default is MISSING:
        return ""
    names[f"_default_{each.name}"] = each.default
    return f"=_default_{each.name}"


def _assignments(each: Field[Any], names: dict[str, Any]) -> Iterator[str]:
    """Yield the statement that gives a field its value; none for one that `__post_init__` has to give it."""
    value = each.name
    if each.default_factory is not MISSING:
        names[f"_make_{each.name}"] = each.default_factory
        made = f"_make_{each.name}()"
        value = f"{made} if {each.name} is _MADE else {each.name}" if each.init else made
    if each.init or each.default_factory is not MISSING:
        yield f"_set(self, {each.name!r}, {value})"


def _represent(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _refuse_to_assign(_: object, name: str, __: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")

"""Click options made from the fields of requests: names, help texts, values and defaults."""

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from reshard.cli.parameters import PATH, STEP, Choice
from reshard.core.options.fields import STEP_METAVAR, URL_METAVAR, metavar_of

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

Function = Callable[..., Any]


def field_options(
    names: Collection[str], model: type["BaseModel"], others: Mapping[str, str] | None = None
) -> Callable[[Function], Function]:
    """Add options for these fields of a request to a command, which gets a keyword argument for each.

    `others`: field -> another name of its option, beside its own.
    """

    def decorated(command: Function) -> Function:
        for name in reversed(list(names)):
            other = (others or {}).get(name)
            command = _option(name, model.model_fields[name], *([other] if other else []))(command)
        return command

    return decorated


def _option(name: str, field: "FieldInfo", *others: str) -> Callable[[Function], Function]:
    metavar = metavar_of(field)
    settings: dict[str, Any] = {"help": field.description, "metavar": metavar, "default": field.default}
    kind = field.annotation
    option = f"--{name.replace('_', '-')}"
    if kind is bool:
        settings |= {"is_flag": True}
        # a default of True needs an option that switches it off
        option = f"{option}/--no-{option.removeprefix('--')}" if field.default else option
    elif kind is int:
        settings |= {"type": click.INT}
    elif choices := _choices(kind):
        settings |= {"type": Choice(choices), "default": str(field.default)}
    elif metavar == URL_METAVAR.text:
        settings |= {"type": PATH}
    elif metavar == STEP_METAVAR.text:
        settings |= {"type": STEP}
    elif kind == list[str]:
        settings |= {"multiple": True, "help": f"{field.description} May be given several times."}
    if kind is not bool and settings["default"]:
        settings |= {"show_default": True}
    return click.option(option, *others, name, **settings)


def _choices(kind: Any) -> list[str]:
    """The words of an enumeration, or of some of its members; none for another type."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return list(map(str, kind))
    return list(map(str, get_args(kind))) if get_origin(kind) is Literal else []

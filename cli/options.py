"""Click options made from the fields of requests: names, help texts, values and defaults."""

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import click

from reshard.cli.parameters import PATH, STEP, Choice
from reshard.cli.requests import RequestCommand
from reshard.core.options.fields import STEP_METAVAR, URL_METAVAR, metavar_of
from reshard.core.request.conversion import ConversionRequest, FlowOptions
from reshard.core.request.groups import GROUPS
from reshard.core.request.latest import LatestConversionRequest

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_OF_PREFECT = FlowOptions.model_fields.keys()
_ALL = tuple(name for names in GROUPS.values() for name in names)

CONVERTING = tuple(name for name in _ALL if name in ConversionRequest.model_fields)
"""Fields of a whole conversion."""
PLANNING = tuple(name for name in CONVERTING if name not in _OF_PREFECT)
"""Fields that affect a plan, or what it costs."""
CONVERTING_LATEST = tuple(name for name in _ALL if name in LatestConversionRequest.model_fields)
"""Fields of a scheduled conversion."""

Function = Callable[..., Any]


def conversion_options(
    names: Collection[str], model: type["BaseModel"] = ConversionRequest
) -> Callable[[Function], Function]:
    """Add options for these fields of a request to a command, which gets a keyword argument for each."""

    def decorated(command: Function) -> Function:
        for name in reversed(list(names)):
            command = _option(name, model.model_fields[name])(command)
        return command

    return decorated


class GroupedCommand(RequestCommand):
    """A command whose help shows the options of a conversion in groups, and its own options last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options into the help."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        shown = {str(option.name): option.get_help_record(ctx) for option in options}
        own = tuple(name for name in shown if name not in _ALL)
        for title, names in (*GROUPS.items(), ("Options", own)):
            records = [record for name in names if (record := shown.get(name))]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _option(name: str, field: "FieldInfo") -> Callable[[Function], Function]:
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
    elif isinstance(kind, type) and issubclass(kind, StrEnum):
        settings |= {"type": Choice([str(member) for member in kind]), "default": str(field.default)}
    elif metavar == URL_METAVAR.text:
        settings |= {"type": PATH}
    elif metavar == STEP_METAVAR.text:
        settings |= {"type": STEP}
    elif kind == list[str]:
        settings |= {"multiple": True, "help": f"{field.description} May be given several times."}
    if kind is not bool and settings["default"]:
        settings |= {"show_default": True}
    return click.option(option, name, **settings)

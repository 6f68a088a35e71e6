"""Click options made from the fields of requests: names, help texts, values and defaults."""

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import click

from reshard.cli.parameters import PATH, STEP, Choice
from reshard.cli.requests import RequestCommand
from reshard.core.changes.groups import GROUPS
from reshard.core.request.conversion import ConversionRequest

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_OF_LATEST = (*GROUPS["Detecting saved steps, and retention"], "dry_run")
_OF_PREFECT = ("dask_scheduler", "concurrency_limit")
_OF_ONE_STEP = ("step", "ranks", "recover", "fault_ranks", "overwrite", "iteration")
_ALL = tuple(name for names in GROUPS.values() for name in names)

CONVERTING = tuple(name for name in _ALL if name not in _OF_LATEST)
"""Fields of a whole conversion."""
PLANNING = tuple(name for name in CONVERTING if name not in _OF_PREFECT)
"""Fields that affect a plan, or what it costs."""
CONVERTING_LATEST = tuple(name for name in _ALL if name not in _OF_ONE_STEP)
"""Fields of a scheduled conversion."""

_METAVARS = {
    "source_strategy": "URL",
    "target_strategy": "URL",
    "source_storage": "NAME",
    "target_storage": "NAME",
    "prefix": "TEXT",
    "step": "E_S",
    "source_prefix": "TEXT",
    "ranks": "0-3,7",
    "workers": "N",
    "memory_limit": "SIZE",
    "allow_missing": "PATTERN",
    "shared_parameters": "first|fail|STAGE",
    "fault_ranks": "3,7",
    "like": "URL",
    "preset": "NAME|URL",
    "switch": "NAME=VALUE",
    "training_config": "URL",
    "allow_model": "TYPE",
    "max_shard_size": "SIZE",
    "shards": "N",
    "include": "PATTERN",
    "exclude": "PATTERN",
    "rename": "OLD=NEW",
    "cast": "PATTERN=DTYPE",
    "transpose": "PATTERN",
    "changes": "URL",
    "decrypt_key": "NAME",
    "encrypt_key": "NAME",
    "append_info": "NAME=VALUE",
    "replicas": "N",
    "settle_seconds": "SECONDS",
    "patience_seconds": "SECONDS",
    "keep_checkpoint_max": "N",
    "keep_checkpoint_per_n_minutes": "MINUTES",
    "strategy_a": "URL",
    "strategy_b": "URL",
    "step_a": "E_S",
    "step_b": "E_S",
    "storage_a": "NAME",
    "storage_b": "NAME",
    "decrypt_key_a": "NAME",
    "decrypt_key_b": "NAME",
    "dask_scheduler": "ADDRESS",
    "concurrency_limit": "NAME",
}

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
    settings: dict[str, Any] = {"help": field.description, "metavar": _METAVARS.get(name), "default": field.default}
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
    elif settings["metavar"] == "URL":
        settings |= {"type": PATH}
    elif settings["metavar"] == "E_S":
        settings |= {"type": STEP}
    elif kind == list[str]:
        settings |= {"multiple": True, "help": f"{field.description} May be given several times."}
    if kind is not bool and settings["default"]:
        settings |= {"show_default": True}
    return click.option(option, name, **settings)

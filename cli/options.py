"""The options of a conversion, made from the fields of its request: names, help texts, values and defaults."""

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import click

from core.request import ConversionOptions, ConversionRequest

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

PLANNING = (
    "source_strategy",
    "target_strategy",
    "source_storage",
    "target_storage",
    "format",
    "prefix",
    "step",
    "source_prefix",
    "ranks",
    "workers",
    "memory_limit",
    "check_crc",
    "unmatched",
    "allow_missing",
    "shared_parameters",
    "check_replicas",
    "recover",
    "fault_ranks",
    "decrypt_key",
    "decrypt_mode",
    "encrypt_key",
    "encrypt_mode",
    "write_crc",
    "append_info",
    "remove_redundancy",
    "replicas",
)
"""Fields that decide what is planned."""
_OF_PREFECT = ("dask_scheduler", "concurrency_limit")
CONVERTING = (*PLANNING[:11], "verify", *PLANNING[11:], "overwrite", *_OF_PREFECT)
"""Fields of a whole conversion but source and target, in the order of the help."""
CONVERTING_LATEST = (
    *(
        name
        for name in CONVERTING
        if name not in {"step", "ranks", "recover", "fault_ranks", "overwrite", *_OF_PREFECT}
    ),
    "settle_seconds",
    "patience_seconds",
    "keep_checkpoint_max",
    "keep_checkpoint_per_n_minutes",
    "dry_run",
)
"""Those of a scheduled conversion, which this command does without Prefect, likewise."""

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
    "decrypt_key": "NAME",
    "encrypt_key": "NAME",
    "append_info": "NAME=VALUE",
    "replicas": "N",
    "settle_seconds": "SECONDS",
    "patience_seconds": "SECONDS",
    "keep_checkpoint_max": "N",
    "keep_checkpoint_per_n_minutes": "MINUTES",
    "dask_scheduler": "ADDRESS",
    "concurrency_limit": "NAME",
}

Command = Callable[..., Any]


def conversion_options(
    names: Collection[str], model: type[ConversionOptions] = ConversionRequest
) -> Callable[[Command], Command]:
    """Gives a command the options of these fields of a request; it is called with a keyword argument for each."""

    def decorated(command: Command) -> Command:
        for name in reversed(list(names)):
            command = _option(name, model.model_fields[name])(command)
        return command

    return decorated


def _option(name: str, field: "FieldInfo") -> Callable[[Command], Command]:
    settings: dict[str, Any] = {"help": field.description, "metavar": _METAVARS.get(name), "default": field.default}
    kind = field.annotation
    option = f"--{name.replace('_', '-')}"
    if kind is bool:
        settings |= {"is_flag": True}
        # what is done by default can only be switched off
        option = f"{option}/--no-{option.removeprefix('--')}" if field.default else option
    elif kind is int:
        settings |= {"type": click.INT}
    elif isinstance(kind, type) and issubclass(kind, StrEnum):
        settings |= {"type": click.Choice([str(member) for member in kind]), "default": str(field.default)}
    elif kind == list[str]:
        settings |= {"multiple": True, "help": f"{field.description} May be given several times."}
    if kind is not bool and settings["default"]:
        settings |= {"show_default": True}
    return click.option(option, name, **settings)

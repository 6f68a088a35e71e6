"""Storage options by name, for commands: the option --storage, and Prefect's blocks if one of them is named."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from core.request import ConversionOptions
    from core.storage.named_options import Resolver

storage_option = click.option(
    "--storage",
    metavar="NAME",
    default="",
    help="Where endpoint and keys of the storage are kept: env:NAME, file:PATH or block:NAME, which hold fsspec's "
    "storage options as a JSON object. Empty: as the environment says.",
)
"""For commands that are about one place."""


@contextmanager
def storage_named(name: str, *urls: str) -> Iterator[None]:
    """Opens these URLs, and what is below them, with the storage options of a name."""
    from core.storage.named_options import named_storages

    with named_storages([(url, name) for url in urls], _resolvers(name)):
        yield


@contextmanager
def storages_named_in(request: "ConversionOptions") -> Iterator[None]:
    """Opens what a request names with the storage options that it names."""
    from core.storage.named_options import storages_of

    with storages_of(request, _resolvers(request.source_storage, request.target_storage)):
        yield


def _resolvers(*names: str) -> "Mapping[str, Resolver]":
    return {"block": _options_of_block} if any(name.startswith("block:") for name in names) else {}


def _options_of_block(name: str) -> object:
    # importing Prefect takes a second
    from prefect.settings import temporary_settings

    from flows.local import EMBEDDED_SETTINGS
    from tasks.storages import options_of_block

    with temporary_settings(EMBEDDED_SETTINGS):
        return options_of_block(name)

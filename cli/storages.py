"""Storage options and keys by name, for commands: their options, and Prefect's blocks if one of them is named."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from reshard.core.errors import InputError
from reshard.core.request.fields import KEY_DESCRIPTION, check_key_name, check_mode
from reshard.core.runtime.keys import EncryptionMode
from reshard.flows.blocks import resolvers_for

if TYPE_CHECKING:
    from reshard.core.request.resources import Naming

storage_option = click.option(
    "--storage",
    metavar="NAME",
    default="",
    help="Where endpoint and keys of the storage are kept: env:NAME, file:PATH or block:NAME, which hold fsspec's "
    "storage options as a JSON object. Empty: as the environment says.",
)
"""For commands that are about one place."""


def key_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command that is about one place the options --decrypt-key and --decrypt-mode."""
    key = click.option("--decrypt-key", metavar="NAME", default="", help=KEY_DESCRIPTION)
    mode = click.option(
        "--decrypt-mode",
        type=click.Choice([str(mode) for mode in EncryptionMode]),
        default=str(EncryptionMode.AES_GCM),
        show_default=True,
        help="How an encrypted checkpoint is encrypted.",
    )
    return key(mode(command))


@contextmanager
def storage_named(name: str, *urls: str) -> Iterator[None]:
    """Opens these URLs, and what is below them, with the storage options of a name."""
    from reshard.core.storage.named_options import named_storages

    with named_storages([(url, name) for url in urls], resolvers_for(name)):
        yield


@contextmanager
def key_named(name: str, mode: str) -> Iterator[None]:
    """Decrypts with the key of a name, whether it is a source's or what a conversion has written.

    Raises:
        InputError: it is no name, or there is no such key.
    """
    from reshard.core.runtime.keys import KeyNames, named_keys

    chosen = EncryptionMode(mode)
    try:
        check_mode(chosen, check_key_name(name), "--decrypt-key")
    except ValueError as error:
        raise InputError(f"{'--decrypt-key' if name else '--decrypt-mode'}: {error}") from None
    with named_keys(KeyNames(name, chosen, name, chosen), resolvers_for(name)):
        yield


@contextmanager
def resources_named_in(request: "Naming") -> Iterator[None]:
    """Opens what a request names with the storage options and the keys that it names."""
    from reshard.core.request.resources import names_in, resources_of

    with resources_of(request, resolvers_for(*names_in(request))):
        yield


def check_output(url: str) -> None:
    """Makes sure that files a command writes at a URL outlive the command.

    Raises:
        InputError: the files would be kept in its memory.
    """
    from reshard.core.storage.filesystems import check_lasting

    check_lasting(url)

"""Named storage options and keys for commands, and the options that name them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from reshard.cli.field_options import field_options
from reshard.core.errors import InputError
from reshard.core.options.fields import check_key_name, check_mode
from reshard.core.request.verification import VerificationRequest
from reshard.core.runtime.keys import EncryptionMode
from reshard.flows.blocks import resolvers_for

if TYPE_CHECKING:
    from reshard.core.request.resources import Naming

storage_option = field_options(("storage",), VerificationRequest)
"""For commands with one storage."""
key_options = field_options(("decrypt_key", "decrypt_mode"), VerificationRequest)
"""For commands with one storage, whose files may be encrypted."""


@contextmanager
def storage_named(name: str, *urls: str) -> Iterator[None]:
    """Open these URLs, and everything below them, with named storage options."""
    from reshard.core.storage.named_options import named_storages

    with named_storages([(url, name) for url in urls], resolvers_for(name)):
        yield


@contextmanager
def key_named(name: str, mode: str) -> Iterator[None]:
    """Decrypt sources and converted checkpoints with a named key."""
    from reshard.core.runtime.keys import KeyNames, named_keys

    chosen = EncryptionMode(mode)
    try:
        check_mode(chosen, check_key_name(name), "decrypt_key")
    except ValueError as error:
        raise InputError(f"{'--decrypt-key' if name else '--decrypt-mode'}: {error}") from None
    with named_keys(KeyNames(name, chosen, name, chosen), resolvers_for(name)):
        yield


@contextmanager
def resources_named_in(request: "Naming") -> Iterator[None]:
    """Provide the storage options and keys that a request names."""
    from reshard.core.request.resources import names_in, resources_of

    with resources_of(request, resolvers_for(*names_in(request))):
        yield


def check_output(url: str) -> None:
    """Check that files written at a URL outlive the command, unlike those in memory."""
    from reshard.core.storage.stores import check_lasting

    check_lasting(url)

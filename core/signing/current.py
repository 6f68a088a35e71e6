"""The signer in force: named in a request, looked up once before anything is done, and carried by the context.

Only the process that commits has it: a worker writes files, and signs nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from reshard.core.errors import InputError
from reshard.core.runtime.context import having
from reshard.core.runtime.named_values import Resolver
from reshard.core.runtime.records import Record

if TYPE_CHECKING:
    from reshard.core.signing.signer import Signer


class SignerNames(Record):
    """Names of a key and of its passphrase, and where its certificates are; an empty key: nothing is signed.

    `passphrase_option` is the option that names the passphrase, for messages.
    """

    key: str = ""
    passphrase: str = ""
    certificate: str = ""
    passphrase_option: str = "sign_passphrase"


class _InForce(Record):
    signer: "Signer | None" = None
    asked: SignerNames = SignerNames()


_current: ContextVar[_InForce] = ContextVar("reshard_signer", default=_InForce())  # noqa: B039


def current_signer() -> "Signer | None":
    """Who signs what is committed in this context; None if nothing is signed."""
    return _current.get().signer


def needed_signer() -> "Signer":
    """Who signs in this context; an InputError if nobody does."""
    signer = current_signer()
    if signer is None:
        raise InputError("a signature is asked for, but its key is not in force: enter `resources_of` first")
    return signer


@contextmanager
def named_signer(
    names: SignerNames, resolvers: Mapping[str, Resolver] | None, read: Callable[[str], bytes]
) -> Iterator[None]:
    """Put the signer of these names in force inside the block; one already in force is not looked up again.

    `read` returns the certificates' file.

    Raises:
        InputError: a name, the key, its passphrase or its certificates are wrong.
    """
    if _current.get().asked == names:
        yield
        return
    with _putting_in_force(names, resolvers, read):
        yield


def _putting_in_force(
    names: SignerNames, resolvers: Mapping[str, Resolver] | None, read: Callable[[str], bytes]
) -> AbstractContextManager[_InForce]:
    if not names.key:
        return having(_current, _InForce())
    from reshard.core.signing.signer import load_signer  # with cryptography, which plain conversions do not need

    certificate = read(names.certificate) if names.certificate else None
    signer = load_signer(
        names.key,
        names.passphrase,
        certificate,
        resolvers,
        passphrase_option=names.passphrase_option,
        certificate_origin=names.certificate,
    )
    return having(_current, _InForce(signer, names))

"""The trusted public keys, or certificates, in force: kept under a name, looked up once, and carried by the context."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

from reshard.core.runtime.context import having
from reshard.core.runtime.named_values import KEY_ADVICE, Resolver, bytes_of, is_name
from reshard.core.runtime.records import Record


class _Trusted(Record):
    name: str
    pem: bytes


_current: ContextVar[_Trusted | None] = ContextVar("reshard_trusted", default=None)


def named_trusted(name: str, resolvers: Mapping[str, Resolver] | None) -> AbstractContextManager[object]:
    """Put what is kept under a name in force inside the block; what is in force already is not looked up again.

    A text that is not a name is the URL of a file, which is read when it is needed.

    Raises:
        InputError: nothing is kept under the name.
    """
    current = _current.get()
    if not is_name(name) or (current is not None and current.name == name):
        return nullcontext()
    return having(_current, _Trusted(name, bytes_of(name, resolvers or {}, KEY_ADVICE)))


def trusted_pem(name: str) -> bytes | None:
    """Return the PEM text that is in force under a name; None if none is."""
    current = _current.get()
    return current.pem if current is not None and current.name == name else None

"""The keys of encrypted checkpoints: given by name, looked up where they are used, and carried by the context.

A key is the UTF-8 bytes of the text kept under its name, without a trailing line end; a text that begins with `hex:` or
`base64:` is decoded. There are at most two: the source's and the target's.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from enum import StrEnum

from reshard.core.errors import InputError
from reshard.core.runtime.context import having
from reshard.core.runtime.named_values import KEY_ADVICE, Resolver, value_of
from reshard.core.runtime.records import Record


class EncryptionMode(StrEnum):
    """How checkpoint files are encrypted; MindSpore's `enc_mode`."""

    AES_GCM = "AES-GCM"
    AES_CBC = "AES-CBC"
    SM4_CBC = "SM4-CBC"


_KEY_BYTES = {
    EncryptionMode.AES_GCM: (16, 24, 32),
    EncryptionMode.AES_CBC: (16, 24, 32),
    EncryptionMode.SM4_CBC: (16,),
}


class Key(Record):
    """A key and the encryption mode it is used with; an InputError if the key's length does not fit the mode."""

    secret: bytes
    mode: EncryptionMode
    name: str = "the key"
    """Name in messages."""

    def __post_init__(self) -> None:
        allowed = _KEY_BYTES[self.mode]
        if len(self.secret) not in allowed:
            cipher, _, _ = self.mode.partition("-")
            *some, last = map(str, allowed)
            wanted = f"{', '.join(some)} or {last}" if some else last
            raise InputError(f"{self.name}: the key has {len(self.secret)} bytes; {cipher} takes {wanted}")

    def __repr__(self) -> str:
        return f"Key(mode={self.mode!r}, name={self.name!r})"  # no secret in messages and logs


class KeyNames(Record):
    """Names and modes of the source's and the target's key; an empty name: not encrypted."""

    source: str = ""
    source_mode: EncryptionMode = EncryptionMode.AES_GCM
    target: str = ""
    target_mode: EncryptionMode = EncryptionMode.AES_GCM


class Keys(Record):
    """The keys of source and target, as far as they are encrypted."""

    source: Key | None = None
    target: Key | None = None
    asked: KeyNames = KeyNames()


_current: ContextVar[Keys] = ContextVar("reshard_keys", default=Keys())  # noqa: B039


def source_key() -> Key | None:
    """The key that source files are decrypted with; None for plain files."""
    return _current.get().source


def target_key() -> Key | None:
    """The key that target files and their records are encrypted with; None for plain files."""
    return _current.get().target


def needed_target_key() -> Key:
    """The key of an encrypted target; an InputError if none is in force."""
    key = target_key()
    if key is None:
        raise InputError("the target is encrypted, but its key is not in force: enter `resources_of` first")
    return key


def resolve_keys(names: KeyNames, resolvers: Mapping[str, Resolver] | None = None) -> Keys:
    """Look up keys by name; an InputError if there is none of a name, or its value is not a key."""
    resolvers = resolvers or {}
    return Keys(
        source=_resolved(names.source, names.source_mode, resolvers) if names.source else None,
        target=_resolved(names.target, names.target_mode, resolvers) if names.target else None,
        asked=names,
    )


def keys_in_force(keys: Keys) -> AbstractContextManager[Keys]:
    """Put these keys, and no others, in force inside the block."""
    return having(_current, keys)


@contextmanager
def named_keys(names: KeyNames, resolvers: Mapping[str, Resolver] | None = None) -> Iterator[None]:
    """Put the keys of these names in force inside the block; keys already in force are not looked up again."""
    if _current.get().asked == names:
        yield
        return
    with keys_in_force(resolve_keys(names, resolvers)):
        yield


def _resolved(name: str, mode: EncryptionMode, resolvers: Mapping[str, Resolver]) -> Key:
    """Look up a key. No error contains it, nor is caused by an error that does."""
    value = value_of(name, resolvers, f"the name of a key {KEY_ADVICE}")
    if type(value) is int:  # Prefect takes digits for a number
        value = str(value)
    if not isinstance(value, str):
        raise InputError(
            f"{name}: is not the text of a key (of what looks like JSON, Prefect keeps no text): give it as hex: or "
            "base64:"
        )
    text = value.removesuffix("\n").removesuffix("\r")
    return Key(_key_bytes(name, text), mode, name)


def _key_bytes(name: str, text: str) -> bytes:
    kind, colon, digits = text.partition(":")
    try:
        if colon and kind == "hex":
            return bytes.fromhex(digits)
        if colon and kind == "base64":
            return base64.b64decode(digits, validate=True)
        return text.encode()
    except (ValueError, binascii.Error):
        raise InputError(f"{name}: its value is not {kind if colon else 'UTF-8'}") from None

"""Fields of Megatron's targets in the documents of plans: numbers, and what a source's training had, pickled."""

import base64
import binascii

from reshard.core.runtime.pickled import PickleError, read_objects


def number_in_plan(value: object, kind: str, lowest: int, highest: float = float("inf")) -> int:
    """Return a number of a target of this kind.

    Raises:
        ValueError: it is not a number from `lowest` to `highest`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ValueError(f"invalid number {value!r} of a {kind} target")
    return value


def encoded_common(common: bytes) -> str:
    """Return what `decoded_common` reads."""
    return base64.b64encode(common).decode()


def decoded_common(text: str, kind: str) -> bytes:
    """Return the pickle in a field of a target of this kind; empty if the source's training was not Megatron's.

    Raises:
        ValueError: it is damaged.
    """
    try:
        common = base64.b64decode(text, validate=True)
        if common:
            read_objects(common)
    except (binascii.Error, PickleError) as error:
        raise ValueError(f"invalid arguments of a {kind} target: {error}") from error
    return common

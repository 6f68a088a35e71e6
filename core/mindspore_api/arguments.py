"""Checks of arguments, with the exceptions that MindSpore's functions raise."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reshard.core.mindspore_api.environment import rank_in_environment, rank_variable
from reshard.core.mindspore_api.failures import reading
from reshard.core.runtime.keys import EncryptionMode, Key

DEFAULT_MODE = "AES-GCM"
FORMATS = ("ckpt", "safetensors")
TAKES_NO_KEY = (
    "is encrypted, and this function takes no key: load it by load_checkpoint with its 'dec_key', and save it "
    "without one"
)

ChoiceFunction = Callable[[str], bool] | None
Prefixes = str | Sequence[str] | None


_TYPE_NAMES = {str: "a string", bool: "a bool", int: "an int", dict: "a dict", list: "a list"}


def check_value(name: str, value: object, types: type | tuple[type, ...]) -> None:
    """Raise ValueError, as MindSpore does, if an argument has a wrong type."""
    if not isinstance(value, types):
        allowed = types if isinstance(types, tuple) else (types,)
        names = " or ".join("None" if each is type(None) else each.__name__ for each in allowed)
        raise ValueError(f"{name!r} has to be {names}, not {value!r}")


def check_type(name: str, value: object, required: type, *, optional: bool = False) -> None:
    """Raise TypeError if an argument has a wrong type; only an `optional` one may be None."""
    if optional and value is None:
        return
    # True is an int to Python, and no number to people
    if not isinstance(value, required) or (isinstance(value, bool) and required is not bool):
        or_none = " or None" if optional else ""
        raise TypeError(f"{name!r} has to be {_TYPE_NAMES[required]}{or_none}, not {value!r}")


def check_format(name: str, value: object) -> None:
    """Raise ValueError unless an argument is a file's format."""
    if value not in FORMATS:
        raise ValueError(f"{name!r} has to be 'ckpt' or 'safetensors', not {value!r}")


def check_async_save(value: object) -> None:
    """Raise TypeError unless `async_save` is a bool or a string, ValueError for an unknown one."""
    if not isinstance(value, bool | str):
        raise TypeError(f"'async_save' has to be a bool or a string, not {type(value)}")
    if isinstance(value, str) and value not in ("process", "thread"):
        raise ValueError(f"'async_save' has to be a bool, 'process' or 'thread', not {value!r}")


def is_network(value: object) -> bool:
    """True for a mapping, and for an object that has parameters by name, such as MindSpore's Cells."""
    methods = ("parameters_and_names", "parameters_dict", "state_dict")
    return isinstance(value, Mapping) or any(callable(getattr(value, method, None)) for method in methods)


def check_key(kind: str, key: object, mode: object) -> None:
    """Raise ValueError, which does not show the key, unless `{kind}_key` is bytes or None, and `{kind}_mode` a text."""
    if not isinstance(key, bytes | None):
        raise ValueError(f"'{kind}_key' has to be None or bytes, not {type(key).__name__}")
    check_value(f"{kind}_mode", mode, str)


def key_of(name: str, secret: bytes | None, mode: str) -> Key | None:
    """Return the key in the argument `name`; the mode counts only if there is one."""
    if secret is None:
        return None
    if mode not in [*EncryptionMode]:
        raise ValueError(f"the mode {mode!r} goes with {name!r}, but has to be one of {', '.join(EncryptionMode)}")
    with reading():
        return Key(secret, EncryptionMode(mode), name)


def check_safetensors_has_none(function: str, format: str, key: bytes | None, mode: str, **others: Any) -> None:
    """Raise ValueError if options ask of a `.safetensors` file for encryption, or for one of the `others`."""
    if format != "safetensors":
        return
    if key is not None or mode != DEFAULT_MODE:
        raise ValueError(
            f"{function}: .safetensors files are never encrypted: give no key, and leave the mode as it is"
        )
    for name, value in others.items():
        if value:
            raise ValueError(f"{function}: {name!r} is for .ckpt files only, format is 'safetensors'")


def checked_prefixes(prefixes: Any) -> tuple[str, ...] | None:
    """Return `specify_prefix` or `filter_prefix` as a tuple."""
    if prefixes is None:
        return None
    what = "'specify_prefix' and 'filter_prefix'"
    if not isinstance(prefixes, str | list | tuple):
        raise TypeError(f"{what} have to be a string, or a list or tuple of strings, not {type(prefixes).__name__}")
    found = (prefixes,) if isinstance(prefixes, str) else tuple(prefixes)
    for prefix in found:
        if not isinstance(prefix, str):
            raise TypeError(f"{what} are made of strings, not of {type(prefix).__name__}")
    if not found or "" in found:
        raise ValueError(f"{what} cannot be empty, nor have an empty string in them")
    return found


def chooser(
    specified: tuple[str, ...] | None, filtered: tuple[str, ...] | None, choice: ChoiceFunction
) -> Callable[[str], bool]:
    """The choice of parameters by name: by prefixes if there are any, else by `choice`."""
    if specified is None and filtered is None:
        return choice or (lambda _: True)

    def chosen(name: str) -> bool:
        return (specified is None or name.startswith(specified)) and not (filtered and name.startswith(filtered))

    return chosen


def given_rank(rank_id: int | None) -> int | None:
    """Return this process's rank: `rank_id`, or the environment's; None if neither says it.

    Raises:
        TypeError: `rank_id` is not an int.
        ValueError: it is another than the environment's.
    """
    check_type("rank_id", rank_id, int, optional=True)
    launched = rank_in_environment()
    if rank_id is not None and launched is not None and rank_id != launched:
        raise ValueError(
            f"'rank_id' is {rank_id}, the environment's {rank_variable()} is {launched}: make them equal, or leave one "
            "out"
        )
    return launched if rank_id is None else rank_id

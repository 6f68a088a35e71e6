"""Arguments of `reshard`'s functions: wrong ones are InputErrors, paths become texts."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel, create_model

from reshard.core.errors import InputError
from reshard.core.options.validation import RequestModel, build_options
from reshard.core.runtime.suggestions import did_you_mean

_Request = TypeVar("_Request", bound=BaseModel)
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_OF_FLOWS = ("dask_scheduler", "concurrency_limit")


def checked(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Refuse arguments that a function does not take with an InputError, as it refuses wrong values."""
    parameters = signature(function)

    @wraps(function)
    def call(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        known = parameters.parameters
        unknown = [name for name in keywords if name not in known]
        if unknown:
            raise InputError("\n".join(f"{name}: {_advice(name, known)}" for name in unknown))
        try:
            parameters.bind(*arguments, **keywords)
        except TypeError as error:
            raise InputError(f"{function.__name__}: {error}{_by_name(arguments, known)}") from None
        return function(*arguments, **keywords)

    return call


def _by_name(arguments: tuple[object, ...], known: Mapping[str, Parameter]) -> str:
    """Say from where on arguments are keywords, if there are too many others."""
    positional = [name for name, each in known.items() if each.kind is not Parameter.KEYWORD_ONLY]
    return f": give all after {positional[-1]!r} by name" if positional and len(arguments) > len(positional) else ""


def _advice(name: str, known: Collection[str]) -> str:
    if name in _OF_FLOWS:
        return "is for flows: give a ConversionRequest to reshard.flows.convert_checkpoint"
    # what most functions call the source's option, those about one checkpoint call by a shorter name
    twins = [twin for twin in (name.removeprefix("source_"), f"source_{name}") if twin in known]
    others = {name: twins[0]} if twins else {}
    return f"there is no such option{did_you_mean(name, known, others)}"


def built(
    model: type[_Request], arguments: Mapping[str, object], keywords: Mapping[str, str] | None = None
) -> _Request:
    """Build a request of a function's arguments; None is what is not given.

    Args:
        model: the request.
        arguments: its fields.
        keywords: field -> what the function calls it, if that is something else.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    return build_options(model, lambda field: (keywords or {}).get(field, field), **given)


def checked_values(kinds: Mapping[str, Any], **values: object) -> dict[str, Any]:
    """Return arguments that are no request's, as fields of their types take them.

    Raises:
        InputError: some are wrong.
    """
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in kinds.items()}
    model = create_model("Arguments", __base__=RequestModel, **fields)
    return dict(build_options(model, str, **values))


def text_of(path: Any) -> Any:
    """Return a path as text; an empty one for None."""
    if path is None:
        return ""
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def texts_of(name: str, paths: Any) -> list[str]:
    """Return several paths as texts; a single one is an InputError: it would be taken for its characters."""
    if isinstance(paths, str | bytes | os.PathLike):
        raise InputError(f"{name} {os.fspath(paths)!r}: must be a list of paths")
    if not isinstance(paths, Iterable):
        raise InputError(f"{name} {paths!r}: must be a list of paths")
    texts = [text_of(path) for path in paths]
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"{name} {text!r}: must be paths or URLs, one by one")
    return texts

"""The changes of a request: declared by its options, and in the document that it names.

Options take precedence over the document: a selection or overflow policy other than the default replaces its, patterns
to include and exclude are added to its, and rules of options come before its.
"""

from typing import TypeVar

from reshard.core.changes.changes import NO_CHANGES, Changes, TransposeRule, parse_cast, parse_rename
from reshard.core.changes.changes_file import read_changes
from reshard.core.request.conversion import ConversionOptions

Member = TypeVar("Member")


def declared_changes(request: ConversionOptions) -> Changes:
    """Return all changes of a request; a malformed document is an InputError."""
    document = read_changes(request.changes) if request.changes else NO_CHANGES
    transpose = tuple(TransposeRule(parameters=pattern) for pattern in request.transpose)
    return document.model_copy(
        update={
            "select": _option_or(request.select, document.select, NO_CHANGES.select),
            "include": (*request.include, *document.include),
            "exclude": (*request.exclude, *document.exclude),
            "transpose": transpose + document.transpose,
            "rename": (*map(parse_rename, request.rename), *document.rename),
            "cast": (*map(parse_cast, request.cast), *document.cast),
            "fp8": _option_or(request.fp8, document.fp8, NO_CHANGES.fp8),
            "cast_overflow": _option_or(request.cast_overflow, document.cast_overflow, NO_CHANGES.cast_overflow),
        }
    )


def _option_or(option: Member, declared: Member, default: Member) -> Member:
    return declared if option == default else option

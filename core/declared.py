"""The changes that a request declares: by its options, and in the document that it names."""

from core.changes import CastRule, Changes, RenameRule, TransposeRule
from core.request import ConversionOptions

_REGULAR = "re:"


def declared_changes(request: ConversionOptions) -> Changes:
    """All changes that a request asks for; its options come before what its document says.

    Raises:
        InputError: the document cannot be read, or is not understood.
    """
    return Changes(
        select=request.select,
        include=tuple(request.include),
        exclude=tuple(request.exclude),
        transpose=tuple(TransposeRule(parameters=pattern) for pattern in request.transpose),
        rename=tuple(map(_rename_rule, request.rename)),
        cast=tuple(map(_cast_rule, request.cast)),
        cast_overflow=request.cast_overflow,
    )


def _rename_rule(text: str) -> RenameRule:
    old, _, new = text.partition("=")
    if old.startswith(_REGULAR):
        return RenameRule(pattern=old.removeprefix(_REGULAR), to=new)
    return RenameRule(name=old, to=new)


def _cast_rule(text: str) -> CastRule:
    pattern, _, dtype = text.rpartition("=")
    return CastRule(parameters=pattern, dtype=dtype)

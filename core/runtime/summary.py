"""The base of summaries: typed results, for tables, JSON and programs."""

from collections.abc import Iterator, Sized
from typing import Any

from pydantic import BaseModel, ConfigDict

from reshard.core.runtime.wording import counted, shortened

_MAX_REPR = 300
_MAX_VALUE = 60
_MAX_SHOWN = 8
"""Of a tuple; more items are counted."""


class Summary(BaseModel):
    """A typed result, shown to users as a table or as JSON."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the fields that `repr()` shows: of any result, what fits into a few lines."""
        room = _MAX_REPR
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value == field.get_default(call_default_factory=True) or (isinstance(value, Sized) and not value):
                continue
            text = _value_text(value)
            room -= len(name) + len(text)
            if room < 0:
                yield None, _Verbatim("…")
                return
            yield name, _Verbatim(text)


class _Verbatim:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _value_text(value: object) -> str:
    if isinstance(value, str):
        return repr(shortened(str(value), _MAX_VALUE))
    if isinstance(value, BaseModel):
        return f"<{type(value).__name__}>"
    if isinstance(value, Sized) and (len(value) > _MAX_SHOWN or len(repr(value)) > _MAX_VALUE):
        return f"<{counted(len(value), 'item')}>"
    return repr(value)


RANK, FILE = "rank", "file"
"""Kinds of target units: a device's file, or a file that is no device's."""

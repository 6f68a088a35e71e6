"""The base of reports: what a function returns, and how it shows itself."""

import json
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from reshard.core.reports.blocks import Block
from reshard.core.runtime.summary import Summary


class Report(Summary):
    """A typed result: `str()` is what the command prints, `to_dict()` what it prints as JSON."""

    @abstractmethod
    def blocks(self) -> Iterable[Block]:
        """Return its content as data."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, the document that the command prints with its option for JSON."""
        document: dict[str, Any] = json.loads(self.model_dump_json())
        return document

    def __str__(self) -> str:
        """Return a summary in plain text, of a limited length whatever it is of."""
        from reshard.core.reports.limits import limited
        from reshard.core.reports.plain_text import text_of

        return text_of(limited(self.blocks()))

    def _repr_html_(self) -> str:
        """Return the summary as HTML; notebooks show it."""
        from reshard.core.reports.html import html_of
        from reshard.core.reports.limits import limited

        return html_of(limited(self.blocks()))

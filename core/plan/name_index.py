"""Names grouped by their form, numbers aside: of tens of thousands a template is tried on those that may fit."""

import re
from collections import defaultdict
from collections.abc import Iterable

from reshard.core.changes.templates import Template

_NUMBERS = re.compile(r"[0-9#]+")


class NameIndex:
    """An index of names for templates."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(dict.fromkeys(names))
        self._by_form: dict[str, list[str]] = defaultdict(list)
        for name in self._names:
            self._by_form[_NUMBERS.sub("#", name)].append(name)

    def fitting(self, template: Template) -> list[str]:
        """Return the names that fit a template."""
        candidates: Iterable[str] = self._names
        if not any(placeholder.texts for placeholder in template.placeholders):
            form = "".join(part if isinstance(part, str) else "#" for part in template.parts)
            candidates = self._by_form.get(_NUMBERS.sub("#", form), ())
        return [name for name in candidates if template.fitting(name) is not None]

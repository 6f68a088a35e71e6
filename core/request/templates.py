"""Templates of names: texts with placeholders, which work in both directions, unlike regular expressions.

    layers.{L}.weight         {L} is a whole number, without leading zeros
    model.layers.{N+i}.weight the number is i and the variable N; it does not fit below N
    {x:*}.weight              any text of at least one character
    mlp.{x:gate|up}.weight    one of these texts
    {{                        a brace

A placeholder's kind is given once for all templates of a step.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from reshard.core.request.expressions import linear
from reshard.core.runtime.wording import quoted

Values = Mapping[str, int | str]
"""Placeholder -> its number or text."""

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_TEXT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):(.+)", re.DOTALL)
_NUMBER = "(0|[1-9][0-9]{0,8})"
_ANY = "*"


@dataclass(frozen=True)
class Placeholder:
    """A part of a name to be filled in.

    Attributes:
        offset: what is added to a number.
        texts: the texts that it may be, `("*",)` for any; empty for a number.
    """

    name: str
    offset: int = 0
    texts: tuple[str, ...] = ()

    @property
    def pattern(self) -> str:
        """A regular expression with one group."""
        if not self.texts:
            return _NUMBER
        return "(.+)" if self.texts == (_ANY,) else f"({'|'.join(map(re.escape, self.texts))})"

    def value(self, text: str) -> int | str | None:
        """Return what it is in a name; None for a number below the offset."""
        if self.texts:
            return text
        number = int(text) - self.offset
        return number if number >= 0 else None

    def __str__(self) -> str:
        if self.texts:
            return f"{{{self.name}:{'|'.join(self.texts)}}}"
        return f"{{{self.name}{self.offset:+}}}" if self.offset else f"{{{self.name}}}"


@dataclass(frozen=True)
class Template:
    """A name with placeholders."""

    parts: tuple[str | Placeholder, ...]

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """Its placeholders, in order."""
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of its placeholders."""
        return frozenset(each.name for each in self.placeholders)

    def fitting(self, name: str) -> Values | None:
        """Return what the placeholders are in a name; None if it does not fit."""
        # most names fail here, and a search in names is many times the cost
        if not name.startswith(self._head) or not name.endswith(self._tail):
            return None
        match = self._expression.fullmatch(name)
        if match is None:
            return None
        values: dict[str, int | str] = {}
        for placeholder, text in zip(self.placeholders, match.groups(), strict=True):
            value = placeholder.value(text)
            if value is None or values.setdefault(placeholder.name, value) != value:
                return None
        return values

    def expanded(self, values: Values) -> str:
        """Return the name with placeholders filled in."""
        return "".join(part if isinstance(part, str) else _filled(part, values[part.name]) for part in self.parts)

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        pattern = "".join(re.escape(part) if isinstance(part, str) else part.pattern for part in self.parts)
        return re.compile(pattern, re.DOTALL)

    @cached_property
    def _head(self) -> str:
        return self.parts[0] if self.parts and isinstance(self.parts[0], str) else ""

    @cached_property
    def _tail(self) -> str:
        return self.parts[-1] if self.parts and isinstance(self.parts[-1], str) else ""

    def __str__(self) -> str:
        return "".join(
            part.replace("{", "{{").replace("}", "}}") if isinstance(part, str) else str(part) for part in self.parts
        )


def parse_template(text: str, variables: Mapping[str, int] | None = None) -> Template:
    """Parse a template; names of variables in braces are replaced by their values.

    Raises:
        ValueError: it is malformed.
    """
    parts: list[str | Placeholder] = []
    position = 0
    for token in _TOKEN.finditer(text):
        parts.append(text[position : token.start()])
        position = token.end()
        if token[0] in ("{{", "}}"):
            parts.append(token[0][0])
        elif token[1] is None:
            raise ValueError(f"{quoted(text)} has a single brace: braces are in pairs around a placeholder, or doubled")
        else:
            parts.append(_part(token[1], variables or {}, text))
    parts.append(text[position:])
    return Template(tuple(_joined(parts)))


def parse_templates(texts: Sequence[str]) -> tuple[Template, ...]:
    """Parse the templates of one step, in which a placeholder has one kind.

    Raises:
        ValueError: one is malformed, or a placeholder has several kinds.
    """
    templates = [parse_template(text) for text in texts]
    kinds: dict[str, tuple[str, ...]] = {}
    for each in (placeholder for template in templates for placeholder in template.placeholders):
        if each.texts and kinds.setdefault(each.name, each.texts) != each.texts:
            raise ValueError(f"the placeholder {each.name!r} has different kinds")
    for each in (placeholder for template in templates for placeholder in template.placeholders):
        if each.offset and each.name in kinds:
            raise ValueError(f"the placeholder {each.name!r} is a text, to which no number can be added")
    return tuple(_with_kinds(template, kinds) for template in templates)


def _part(inside: str, variables: Mapping[str, int], text: str) -> str | Placeholder:
    kind = _TEXT.fullmatch(inside)
    if kind is not None:
        texts = tuple(kind[2].split("|"))
        if "" in texts or (_ANY in texts and len(texts) > 1):
            raise ValueError(f"{quoted(text)}: {quoted(inside)} is neither NAME:* nor NAME:TEXT|TEXT")
        return Placeholder(kind[1], texts=texts)
    value = linear(inside, variables)
    if not value.unknown:
        return str(value.offset)
    if value.factor != 1 or value.offset < 0:
        raise ValueError(f"{quoted(text)}: {quoted(inside)} is not a placeholder, nor one and a number added to it")
    return Placeholder(value.unknown, value.offset)


def _joined(parts: Iterable[str | Placeholder]) -> Iterable[str | Placeholder]:
    """Parts with neighboring texts joined."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text


def _with_kinds(template: Template, kinds: Mapping[str, tuple[str, ...]]) -> Template:
    return Template(
        tuple(
            part if isinstance(part, str) else replace(part, texts=kinds.get(part.name, ())) for part in template.parts
        )
    )


def _filled(placeholder: Placeholder, value: int | str) -> str:
    return str(value + placeholder.offset) if isinstance(value, int) else value

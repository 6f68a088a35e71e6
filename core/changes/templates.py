"""Templates of names: texts with placeholders, which work in both directions, unlike regular expressions.

    layers.{L}.weight         {L} is a whole number, without leading zeros
    model.layers.{N+i}.weight the number is i and the variable N; it does not fit below N
    {x:*}.weight              any text of at least one character
    mlp.{x:gate|up}.weight    one of these texts
    {{                        a brace

A placeholder's kind is given once for all templates of a step. One that is there twice has the same value at both
places.

Some templates fit a name in several ways: `{x:*}.{y:*}` fits `a.b.c`, and x is `a` or `a.b`. Nothing
says which one is meant, so callers that need the values ask for two of the ways. Documents may be hostile: a search for
ways remembers failures, and ends after a number of tries.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, pairwise

from msgspec.structs import replace

from reshard.core.changes.expressions import linear
from reshard.core.errors import InputError
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import quoted, shortened

Values = Mapping[str, int | str]
"""Placeholder -> its number or text."""

MAX_TEMPLATE_LENGTH = 4096
MAX_PLACEHOLDERS = 16
"""Of one template; models have two or three."""
_MAX_TRIES = 20_000
"""For one name: a tenth of a second. Templates that people write need a few hundred where names are long."""

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_TEXT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):(.+)", re.DOTALL)
_NUMBER = re.compile("0|[1-9][0-9]{0,8}")
_ANY = "*"


class Placeholder(Record):
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
            return f"({_NUMBER.pattern})"
        return "(.+)" if self.is_any else f"({'|'.join(map(re.escape, self.texts))})"

    @property
    def is_any(self) -> bool:
        """True if it may be any text."""
        return self.texts == (_ANY,)

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


class Template(Record, dict=True):
    """A name with placeholders."""

    parts: tuple[str | Placeholder, ...]

    @cached_property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """Its placeholders, in order."""
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of its placeholders."""
        return frozenset(each.name for each in self.placeholders)

    def fitting(self, name: str) -> Values | None:
        """Return what the placeholders are in a name, in one of the ways to fit it; None if it does not fit.

        Raises:
            InputError: too many ways were tried.
        """
        ways = self.ways(name, 1)
        return ways[0] if ways else None

    def ways(self, name: str, most: int = 2) -> list[Values]:
        """Return what the placeholders may be in a name, for `most` of the ways to fit it.

        Raises:
            InputError: too many ways were tried.
        """
        # most names fail here, and a search in names is many times the cost
        if not name.startswith(self._head) or not name.endswith(self._tail):
            return []
        if self._is_plain:
            values = self._only_way(name)
            return [] if values is None else [values]
        return list(islice(_Search(self, name).ways(), most)) if self._has_literals(name) else []

    def _only_way(self, name: str) -> Values | None:
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
    def _is_plain(self) -> bool:
        """True if a name fits in one way at most, which a regular expression finds without trying many."""
        any_texts = [number for number, part in enumerate(self.parts) if not isinstance(part, str) and part.is_any]
        if len(any_texts) > 1:
            return False
        middle = any_texts[0] if any_texts else len(self.parts)
        # read from the left up to any text, and after it from the right: all else has to end where its neighbor begins
        left = (*self.parts[: middle + 1], *(() if any_texts else ("",)))
        right = self.parts[middle:]
        return all(_ends_alone(one, other) for one, other in pairwise(left)) and all(
            _ends_alone(one, other, backwards=True) for other, one in pairwise(right)
        )

    @cached_property
    def _literals(self) -> tuple[str, ...]:
        return tuple(part for part in self.parts if isinstance(part, str))

    @cached_property
    def needed_after(self) -> tuple[tuple[str, ...], ...]:
        """For each part the placeholders of it and of those behind, whose values decide whether they fit."""
        return tuple(
            tuple(sorted({each.name for each in self.parts[number:] if isinstance(each, Placeholder)}))
            for number in range(len(self.parts))
        )

    def _has_literals(self, name: str) -> bool:
        """True if a name has the texts between placeholders, in order."""
        position = 0
        for text in self._literals:
            position = name.find(text, position) + len(text)
            if position < len(text):
                return False
        return True

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


class _Search:
    """The ways in which a template fits a name, one after another; those of a number and alternatives as a text."""

    def __init__(self, template: Template, name: str) -> None:
        self._template = template
        self._parts = template.parts
        self._name = name
        self._tries = 0
        self._failed: set[object] = set()

    def ways(self, number: int = 0, position: int = 0, values: Values | None = None) -> Iterator[Values]:
        """The values of all placeholders, if the parts from `number` on fit the name from `position` on."""
        values = values or {}
        if number == len(self._parts):
            if position == len(self._name):
                yield values
            return
        place = number, position, tuple(map(values.get, self._template.needed_after[number]))
        if place in self._failed:
            return
        fits = False
        for end, here in self._ends(self._parts[number], position, values):
            for way in self.ways(number + 1, end, here):
                fits = True
                yield way
        if not fits:
            self._failed.add(place)

    def _ends(self, part: str | Placeholder, position: int, values: Values) -> Iterator[tuple[int, Values]]:
        """Where a part may end that begins at a position, and the values with its."""
        for text in self._texts(part, position, values):
            self._tries += 1
            if self._tries > _MAX_TRIES:
                raise InputError(
                    f"matching {quoted(shortened(self._name))} with {quoted(str(self._template))} takes more than "
                    f"{_MAX_TRIES} tries: put texts between its placeholders"
                )
            if isinstance(part, str) or part.name in values:
                yield position + len(text), values
            elif (value := part.value(text)) is not None:
                yield position + len(text), {**values, part.name: value}

    def _texts(self, part: str | Placeholder, position: int, values: Values) -> Iterable[str]:
        """The texts from a position on that a part may be; the longest first."""
        name = self._name
        if isinstance(part, str) or part.name in values:
            only = part if isinstance(part, str) else _filled(part, values[part.name])
            return [only] if name.startswith(only, position) else []
        if part.is_any:
            return (name[position:end] for end in range(len(name), position, -1))
        if part.texts:
            return [text for text in dict.fromkeys(part.texts) if name.startswith(text, position)]
        number = _NUMBER.match(name, position)
        longest = number[0] if number else ""
        return (longest[:length] for length in range(len(longest), 0, -1))


def parse_template(text: str, variables: Mapping[str, int] | None = None) -> Template:
    """Parse a template; names of variables in braces are replaced by their values.

    Raises:
        ValueError: it is malformed, or too long.
    """
    if len(text) > MAX_TEMPLATE_LENGTH:
        raise ValueError(
            f"{quoted(shortened(text))} has {len(text)} characters; a template has at most {MAX_TEMPLATE_LENGTH}"
        )
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
    template = Template(tuple(_joined(parts)))
    count = len(template.placeholders)
    if count > MAX_PLACEHOLDERS:
        raise ValueError(
            f"{quoted(shortened(text))} has {count} placeholders; a template has at most {MAX_PLACEHOLDERS}"
        )
    return template


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


def _ends_alone(part: str | Placeholder, neighbor: str | Placeholder, *, backwards: bool = False) -> bool:
    """True if a part can end at one place only, before a neighbor: read from the right, behind one."""
    if isinstance(part, str):
        return True
    if not part.texts:
        # at the end of the name, or of what any text leaves, nothing but a text of other characters ends a number
        if not isinstance(neighbor, str):
            return False
        border = neighbor[-1:] if backwards else neighbor[:1]
        return not border.isdigit()
    ends = [text[::-1] for text in part.texts] if backwards else list(part.texts)
    return not any(one.startswith(other) for one in ends for other in ends if one != other)


def _filled(placeholder: Placeholder, value: int | str) -> str:
    return str(value + placeholder.offset) if isinstance(value, int) else value

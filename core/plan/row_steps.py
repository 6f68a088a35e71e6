"""Translates a row of a preset into steps of declared changes, from MindFormers' parameter to Hugging Face's."""

from collections.abc import Iterable, Mapping
from typing import Any

from reshard.core.changes.expressions import whole_number
from reshard.core.changes.preset_rows import Positions, Row
from reshard.core.errors import InputError
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted

Step = dict[str, Any]

_ALL_OF = ".{e}"
"""Added to MindFormers' name while a stack is apart, and each of it several parameters."""
_PART = ".part "
"""Added to a name, with a number, while its parts are apart."""


class Numbers(Record):
    """The variables of a model; `origin` is the place of its config.json, for messages."""

    variables: Mapping[str, int]
    origin: str

    def value(self, expression: str) -> int:
        """Return the value of an expression of variables.

        Raises:
            ValueError: it is malformed, or names no variable.
        """
        return whole_number(expression, self.variables)

    def contradiction(self, text: str) -> InputError:
        """Return the error that numbers contradict each other; `text` says how."""
        return InputError(f"{self.origin}: its numbers do not go together: {text}")


class _Grouped(Record):
    """Parts of an axis, with their lengths in all groups together, and the number of groups on either side."""

    parts: list[int]
    mf: int
    hf: int
    axis: int = 0


def row_steps(row: Row, numbers: Numbers, renames: Iterable[Step] = ()) -> list[Step]:
    """Return the steps of a row from MindFormers to Hugging Face; they may match nothing.

    `renames` are those of a row that counts in some layers only.

    Raises:
        InputError: numbers contradict each other.
    """
    steps: list[Step] = []
    targets, apart = list(row.hf), row.is_apart

    def add(kind: str, parameters: str | list[str], **fields: Any) -> None:
        steps.append({kind: {"parameters": parameters, **fields, "optional": True}})

    def add_regrouped(name: str, grouped: _Grouped) -> None:
        pieces = [f"{name}{_PART}{number}" for number in range(len(grouped.parts))]
        before, after = ([each // groups for each in grouped.parts] for groups in (grouped.mf, grouped.hf))
        add("split", name, into=pieces, axis=grouped.axis, parts=before, groups=grouped.mf)
        add("join", pieces, into=name, axis=grouped.axis, parts=after, groups=grouped.hf)

    def add_single(mf: str) -> str:
        """What a parameter becomes before it is split, joined or renamed; its name then."""
        current = mf
        if row.boxed:
            add("merge", current, count=1)
        if row.merged:
            add("divide", current, count=row.stacked)
        if apart:
            is_last = len(targets) == len(row.mf) == 1
            current = targets[0] if is_last else f"{mf}{_ALL_OF}"
            add("unstack", mf, into=current, count=row.stacked)
        if row.boxed:
            add("merge", current, count=1)
        if row.transposed:
            add("transpose", current, axes=[0, 2, 1] if row.stacked and not apart else [1, 0])
        return current

    current = [add_single(mf) for mf in row.mf]
    axis = row.rows_axis
    if len(current) > 1:
        for name in row.rope:
            add_regrouped(name, _rope(numbers, row, name))
        add("join", current, into=targets[0], axis=axis, parts=_parts(numbers, row, axis), groups=row.groups or 1)
        return steps
    if len(targets) > 1:
        add("split", current[0], into=targets, axis=axis, parts=_parts(numbers, row, axis), groups=row.groups or 1)
    elif current != targets and row.beside:
        steps += renames
    elif current != targets:
        add("rename", current[0], to=targets[0])
    if row.added:
        add("add", targets[0], number=row.added)
    for name in row.rope:
        add_regrouped(name, _rope(numbers, row, name))
    for name in row.regrouped:
        add_regrouped(name, _regrouped(numbers, row, name))
    if row.positions:
        name, (heads, rotated, others) = targets[0], _rotated(numbers, row, row.positions)
        rotating, first, second, last = (f"{name}{_PART}{number}" for number in range(4))
        add("split", name, into=[last, rotating], axis=0, parts=[others, rotated], groups=heads)
        add("split", rotating, into=[first, second], axis=0, groups=heads * rotated // 2)
        halves = [rotated // 2, rotated // 2, others]
        add("join", [first, second, last], into=name, axis=0, parts=halves, groups=heads)
    return steps


def _parts(numbers: Numbers, row: Row, axis: int) -> list[int]:
    """The rows of each part in a group; `axis` is that of rows."""
    groups = numbers.value(row.groups) if row.groups else 1
    rows = [numbers.value(shape[axis]) if shape else groups for shape in row.parts.values()]
    if any(count < 1 or count % max(1, groups) for count in rows):
        raise numbers.contradiction(
            f"{row.name!r} would have {' and '.join(map(str, rows))} rows in {counted(groups, 'group')}"
        )
    return [count // groups for count in rows]


def _rope(numbers: Numbers, row: Row, name: str) -> _Grouped:
    """The even and the odd rows of a part: MindFormers has groups of them by heads, Hugging Face row by row."""
    rows = numbers.value(row.parts[name][0])
    of_head = numbers.value(row.rope[name])
    if of_head < 2 or of_head % 2 or rows % of_head:
        raise numbers.contradiction(f"{name!r} would have {rows} rows, {of_head} for each head")
    return _Grouped([rows // 2, rows // 2], mf=rows // of_head, hf=rows // 2)


def _regrouped(numbers: Numbers, row: Row, name: str) -> _Grouped:
    each = row.regrouped[name]
    length, mf, hf = map(numbers.value, (row.hf[name][each.axis], each.mf, each.hf))
    parts = [numbers.value(part) * hf for part in each.parts]
    if min(*parts, mf, hf) < 1 or sum(parts) != length or any(part % mf for part in parts):
        there = f"{length} elements along axis {each.axis}" if each.axis else f"{length} rows"
        raise numbers.contradiction(
            f"{row.name!r} would have {there}, not {' + '.join(map(str, parts))} in {counted(mf, 'group')}"
        )
    return _Grouped(parts, mf, hf, each.axis)


def _rotated(numbers: Numbers, row: Row, positions: Positions) -> tuple[int, int, int]:
    """The heads of a row, and the rows of each that positions rotate, and the others."""
    [[rows, *_]] = row.hf.values()
    count, head, rotated = map(numbers.value, (rows, positions.head, positions.rows))
    if not 0 < rotated < head or rotated % 2 or count % head:
        raise numbers.contradiction(
            f"{row.name!r} would have {count} rows, {head} for each head, of which positions rotate {rotated}"
        )
    return count // head, rotated, head - rotated

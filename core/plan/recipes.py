"""Recipes of target parameters: built from names alone, and turned into pieces when shapes are known.

A recipe is a tree: source parameters are its leaves; splits, joins and transpositions are its nodes. Renames and casts
move no elements: a recipe has the last name, and the cast's rule.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

from reshard.core.errors import LayoutError
from reshard.core.plan.presets import is_training_state
from reshard.core.request.changes import CastRule, Changes, JoinRule, RenameRule, Selection, SplitRule, TransposeRule
from reshard.core.runtime.wording import quoted
from reshard.core.tensor.segments import Pieces, fill_once, joined, split, transposed, whole_piece
from reshard.core.tensor.slices import Shape

_Groups = tuple[str | None, ...]
"""Groups of a regular expression, as one name has them; parts with the same groups are joined."""
_PatternRule = TypeVar("_PatternRule", TransposeRule, CastRule)


@dataclass(frozen=True)
class Making:
    """A node of a recipe: a source parameter, or the result of a rule.

    Attributes:
        rule: the rule that makes it; None for a source parameter.
        of: the inputs of the rule.
        number: index of the part, for a split.
    """

    name: str
    rule: SplitRule | JoinRule | TransposeRule | None = None
    of: tuple["Making", ...] = ()
    number: int = 0

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of its source parameters, each once."""
        if not self.of:
            return (self.name,)
        return tuple(dict.fromkeys(name for each in self.of for name in each.sources))


@dataclass(frozen=True)
class Recipe:
    """The way to make a target parameter.

    Attributes:
        making: the root of its tree.
        cast: the rule for its dtype, if that is a floating-point one.
    """

    name: str
    making: Making
    cast: CastRule | None = None
    sources: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", self.making.sources)

    @property
    def is_reshaped(self) -> bool:
        """True unless it is one source parameter in the same shape."""
        return bool(self.making.of)

    @property
    def steps(self) -> tuple[str, ...]:
        """The changes other than casts, in order, each once."""
        kinds = {SplitRule: "split", JoinRule: "joined", TransposeRule: "transposed"}
        found: dict[str, None] = {}

        def gather(making: Making) -> None:
            for each in making.of:
                gather(each)
            if making.rule is not None:
                found[kinds[type(making.rule)]] = None

        gather(self.making)
        return (*found, *self.renamed)

    @property
    def renamed(self) -> tuple[str, ...]:
        """`renamed`, if a rename gave it its name."""
        return ("renamed",) if self.name != self.making.name else ()


@dataclass(frozen=True)
class Recipes:
    """The recipes of all target parameters that can be made.

    Attributes:
        made: target name -> recipe, in the order of the source's names.
        excluded: source names that are left out -> the declaration.
        left_out: their names in the target.
    """

    made: Mapping[str, Recipe]
    excluded: Mapping[str, str]
    left_out: frozenset[str]


def build_recipes(names: Sequence[str], changes: Changes, problems: list[str]) -> Recipes:
    """Build the recipes of target parameters; what is wrong with the rules is added to `problems`."""
    fitting: set[object] = set()
    excluded = excluded_names(names, changes, fitting)
    made = _Steps(changes, fitting, problems).apply([name for name in names if name not in excluded])
    # left-out parameters need not fit the rules: their new names are those that the target may lack
    others = _Steps(changes, fitting, []).apply(list(excluded))
    for kind in ("include", "exclude", "split", "join", "transpose", "rename", "cast"):
        problems.extend(
            _unused_rule(kind, rule, names) for rule in getattr(changes, kind) if (kind, rule) not in fitting
        )
    if names and not made and not problems:
        problems.append("no parameter is left: what is selected, included and excluded leaves none")
    return Recipes(made, excluded, frozenset(others) - frozenset(made))


class Composer:
    """Composes target parameters; those with equal rules and source shapes share their pieces."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[Pieces, Shape]] = {}

    def compose(self, recipe: Recipe, shapes: Mapping[str, Shape]) -> tuple[Pieces, Shape]:
        """Return the pieces of a target parameter and its shape; `shapes` are its sources'."""
        numbers = {name: number for number, name in enumerate(recipe.sources)}
        key = _structure(recipe.making, numbers, shapes)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _composed(recipe.making, numbers, shapes)
            if not fill_once(*known):
                raise LayoutError(f"its {len(known[0])} pieces do not fill its shape. This is a bug in reshard")
        return known


def _structure(making: Making, numbers: Mapping[str, int], shapes: Mapping[str, Shape]) -> object:
    """The key of equal pieces: everything but names."""
    if making.rule is None:
        return numbers[making.name], shapes[making.name]
    return making.rule, making.number, tuple(_structure(each, numbers, shapes) for each in making.of)


class _Steps:
    """The steps after the selection, on names."""

    def __init__(self, changes: Changes, fitting: set[object], problems: list[str]) -> None:
        self._changes = changes
        self._fitting = fitting
        self._problems = problems

    def apply(self, names: Sequence[str]) -> dict[str, Recipe]:
        current = {name: Making(name) for name in names}
        for split_rule in self._changes.split:
            current = self._split(current, split_rule)
        for join_rule in self._changes.join:
            current = self._joined(current, join_rule)
        makings = [self._transposed(making) for making in current.values()]
        made: dict[str, Recipe] = {}
        for making in makings:
            name = self._new_name(making.name)
            if name in made:
                self._collision(repr(made[name].making.name), repr(making.name), name)
            if making.name and not name:
                self._problems.append(f"nothing is left of the name of {making.name!r}")
            made[name] = Recipe(name, making, self._first_fitting("cast", self._changes.cast, name))
        return made

    def _collision(self, one: str, other: str, name: str) -> None:
        self._problems.append(f"{one} and {other} would both be called {name!r}")

    def _split(self, current: Mapping[str, Making], rule: SplitRule) -> dict[str, Making]:
        pattern = re.compile(rule.parameters)
        after: dict[str, Making] = {}
        for name, making in current.items():
            match = pattern.fullmatch(name)
            if match is None:
                self._put(after, making)
                continue
            self._fitting.add(("split", rule))
            for number, new in enumerate(rule.into):
                self._put(after, Making(match.expand(new), rule, (making,), number))
        return after

    def _joined(self, current: Mapping[str, Making], rule: JoinRule) -> dict[str, Making]:
        keys, parts = self._parts_to_join(current, rule)
        after: dict[str, Making] = {}
        for name, making in current.items():
            if name not in keys:
                self._put(after, making)
                continue
            found = parts.pop(keys[name], None)
            if found is None:  # the join has its place already
                continue
            missing = [pattern for number, pattern in enumerate(rule.parameters) if number not in found]
            if missing:
                patterns = " and ".join(map(quoted, missing))
                self._problems.append(f"{rule}: {name!r} has no counterpart that fits {patterns}")
                continue
            of = tuple(found[number][0] for number in range(len(rule.parameters)))
            self._put(after, Making(found[0][1], rule, of))
        return after

    def _parts_to_join(
        self, current: Mapping[str, Making], rule: JoinRule
    ) -> tuple[dict[str, _Groups], dict[_Groups, dict[int, tuple[Making, str]]]]:
        """Name -> its groups; groups -> number of the part -> the part, and the join's name by it."""
        expressions = [re.compile(pattern) for pattern in rule.parameters]
        keys: dict[str, _Groups] = {}
        parts: dict[_Groups, dict[int, tuple[Making, str]]] = {}
        for name, making in current.items():
            for number, expression in enumerate(expressions):
                match = expression.fullmatch(name)
                if match is None:
                    continue
                self._fitting.add(("join", rule))
                known = parts.setdefault(match.groups(), {}).setdefault(number, (making, match.expand(rule.into)))
                if known[0] is not making or name in keys:
                    self._problems.append(
                        f"{rule}: {name!r} and {known[0].name!r} are the same part of it"
                        if known[0] is not making
                        else f"{rule}: {name!r} fits several of its parts"
                    )
                keys[name] = match.groups()
        return keys, parts

    def _put(self, into: dict[str, Making], making: Making) -> None:
        if not making.name:
            self._problems.append(f"nothing is left of the name of {_making_text(making)}")
        there = into.get(making.name)
        if there is not None:
            self._collision(_making_text(there), _making_text(making), making.name)
        into[making.name] = making

    def _transposed(self, making: Making) -> Making:
        rule = self._first_fitting("transpose", self._changes.transpose, making.name)
        return making if rule is None else Making(making.name, rule, (making,))

    def _new_name(self, name: str) -> str:
        names = [(rule, new) for rule in self._changes.rename if (new := rule.new_name(name)) is not None]
        self._fitting.update(("rename", rule) for rule, _ in names)
        return names[0][1] if names else name

    def _first_fitting(self, kind: str, rules: Sequence[_PatternRule], name: str) -> _PatternRule | None:
        fitting = [rule for rule in rules if fnmatchcase(name, rule.parameters)]
        self._fitting.update((kind, rule) for rule in fitting)
        return fitting[0] if fitting else None


def excluded_names(names: Sequence[str], changes: Changes, fitting: set[object]) -> dict[str, str]:
    """The names that are left out, each with the declaration."""
    excluded: dict[str, str] = {}
    known = frozenset(names)
    for name in names:
        included = [pattern for pattern in changes.include if fnmatchcase(name, pattern)]
        barred = [pattern for pattern in changes.exclude if fnmatchcase(name, pattern)]
        fitting.update(("include", pattern) for pattern in included)
        fitting.update(("exclude", pattern) for pattern in barred)
        if barred:
            excluded[name] = f"exclude {barred[0]}"
        elif changes.select is Selection.WEIGHTS_ONLY and is_training_state(name, known):
            excluded[name] = f"select {Selection.WEIGHTS_ONLY}"
        elif changes.include and not included:
            excluded[name] = "not included"
    return excluded


def _making_text(making: Making) -> str:
    if isinstance(making.rule, SplitRule):
        return f"part {making.number + 1} of {making.of[0].name!r}"
    if isinstance(making.rule, JoinRule):
        return f"the join of {' and '.join(repr(each.name) for each in making.of)}"
    return repr(making.name)


def _unused_rule(kind: str, rule: object, names: Sequence[str]) -> str:
    rule_text = f"the pattern {rule!r} ({kind})" if kind in ("include", "exclude") else str(rule)
    near: list[str] = []
    part = None
    if isinstance(rule, RenameRule) and rule.name:
        near = get_close_matches(rule.name, names, 3)
    elif isinstance(rule, RenameRule | SplitRule):
        expression = re.compile(rule.pattern if isinstance(rule, RenameRule) else rule.parameters)
        part = next((name for name in names if expression.search(name)), None)
    advice = f"; is it one of {', '.join(near)}?" if near else ""
    if part is not None:
        advice = f" as a whole, though a part of {part!r}, say: put .* for any text"
    return f"{rule_text} fits no parameter{advice}"


def _composed(making: Making, numbers: Mapping[str, int], shapes: Mapping[str, Shape]) -> tuple[Pieces, Shape]:
    rule = making.rule
    if rule is None:
        shape = shapes[making.name]
        return (replace(whole_piece(shape), source=numbers[making.name]),), shape
    parts = [_composed(each, numbers, shapes) for each in making.of]
    if isinstance(rule, TransposeRule):
        return _transposed(rule, making, *parts[0])
    if isinstance(rule, SplitRule):
        return _part(rule, making, *parts[0])
    return _joined(rule, making, parts)


def _transposed(rule: TransposeRule, making: Making, pieces: Pieces, shape: Shape) -> tuple[Pieces, Shape]:
    axes = rule.axes or tuple(reversed(range(len(shape))))
    if len(axes) != len(shape):
        raise LayoutError(f"{rule}: orders {len(axes)} axes, {making.name!r} has shape {list(shape)}")
    return transposed(pieces, axes), tuple(shape[axis] for axis in axes)


def _part(rule: SplitRule, making: Making, pieces: Pieces, shape: Shape) -> tuple[Pieces, Shape]:
    _check_axis(rule, rule.axis, making.of[0].name, shape)
    shares = sum(rule.shares) * rule.groups
    length = shape[rule.axis]
    if length % shares:
        each = "" if rule.groups == 1 else f" in {rule.groups} groups"
        raise LayoutError(
            f"{rule}: axis {rule.axis} of {making.of[0].name!r} has {length} elements, which do not divide into "
            f"{sum(rule.shares)} shares{each}"
        )
    parts = list(split(pieces, shape, rule.axis, rule.shares, rule.groups))
    length = length // sum(rule.shares) * rule.shares[making.number]
    return parts[making.number], _with_length(shape, rule.axis, length)


def _joined(rule: JoinRule, making: Making, parts: Sequence[tuple[Pieces, Shape]]) -> tuple[Pieces, Shape]:
    shapes = [shape for _, shape in parts]
    names = [each.name for each in making.of]
    for name, shape in zip(names, shapes, strict=True):
        _check_axis(rule, rule.axis, name, shape)
        if shape[rule.axis] % rule.groups:
            raise LayoutError(
                f"{rule}: axis {rule.axis} of {name!r} has {shape[rule.axis]} elements, which do not divide into "
                f"{rule.groups} groups"
            )
        if _with_length(shape, rule.axis, 0) != _with_length(shapes[0], rule.axis, 0):
            raise LayoutError(
                f"{rule}: {names[0]!r} has shape {list(shapes[0])}, {name!r} has {list(shape)}: they may differ along "
                f"axis {rule.axis} only"
            )
    length = sum(shape[rule.axis] for shape in shapes)
    return joined(parts, rule.axis, rule.groups), _with_length(shapes[0], rule.axis, length)


def _check_axis(rule: SplitRule | JoinRule, axis: int, name: str, shape: Shape) -> None:
    if axis >= len(shape):
        raise LayoutError(f"{rule}: {name!r} has shape {list(shape)}, and no axis {axis}")


def _with_length(shape: Shape, axis: int, length: int) -> Shape:
    return (*shape[:axis], length, *shape[axis + 1 :])

"""Recipes of target parameters: built from names alone, and turned into pieces when shapes are known.

A recipe is a tree: source parameters are its leaves; operations such as splits and joins are its nodes. Renames and
casts move no elements: a recipe has the last name, and the cast's rule.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from msgspec.structs import replace

from reshard.core.changes.changes import (
    CastRule,
    Changes,
    Fp8,
    JoinRule,
    RenameRule,
    Selection,
    SplitRule,
    TransposeRule,
)
from reshard.core.changes.steps import DequantizeStep, StepRule
from reshard.core.changes.training_state import StateKind, expert_order_problem, state_kind
from reshard.core.errors import LayoutError, PlanError
from reshard.core.plan.adapter import Adapter
from reshard.core.plan.making import Making, MakingNames
from reshard.core.plan.operations import Adapted, Composed, Joined, Operation, SplitOff, Transposed
from reshard.core.plan.other_stages import fits_other_stages
from reshard.core.plan.quantizing import SCALE_ENDING, is_linear, quantized_makings
from reshard.core.plan.regular_expressions import check_expressions, is_quick
from reshard.core.plan.steps import DroppedCopy, StepNames
from reshard.core.runtime.records import Record
from reshard.core.runtime.suggestions import close_words, did_you_mean
from reshard.core.runtime.wording import listed, quoted
from reshard.core.tensor.segments import Pieces, fill_once, whole_piece
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option

_MAX_SIMILAR = 3
_SPECIAL = frozenset("*?[")
"""Characters that make a name a pattern."""
_MAX_PIECES_MADE, _PIECES_FOR_EACH = 2**16, 16
"""By all operations of a plan, and more for each: experts that are split off and transposed one by one are many
operations of one piece. Making so many takes two seconds, and 100 MB."""
_MAX_GROWTH = 2**10
_FEW_ELEMENTS = 8
"""A parameter has `_MAX_GROWTH` times as many elements as its sources at most, or as so many."""
_DEQUANTIZE = DequantizeStep(parameters="{x:*}", scale=f"{{x:*}}{SCALE_ENDING}")
_Groups = tuple[str | None, ...]
"""Groups of a regular expression, as one name has them; parts with the same groups are joined."""
_PatternRule = TypeVar("_PatternRule", TransposeRule, CastRule)


class Recipe(Record):
    """The way to make a target parameter.

    Attributes:
        making: the root of its tree.
        cast: the rule for its dtype, if that is a floating-point one.
    """

    name: str
    making: Making
    cast: CastRule | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of its source parameters, each once."""
        return self.making.sources

    @property
    def is_reshaped(self) -> bool:
        """True unless it is one source parameter in the same shape."""
        return self.making.operation is not None

    @property
    def steps(self) -> tuple[str, ...]:
        """The changes other than casts, in order, each once."""
        return (*self.making.verbs, *self.renamed)

    @property
    def renamed(self) -> tuple[str, ...]:
        """`renamed`, if a rename gave it its name."""
        return ("renamed",) if self.making.renamed or self.name != self.making.name else ()


class Recipes(Record):
    """The recipes of all target parameters that can be made.

    Attributes:
        made: target name -> recipe, in the order of the source's names.
        excluded: source names that are left out -> the declaration.
        left_out: their names in the target.
        dropped_copies: source parameters that are left out as copies of others, if they are.
    """

    made: Mapping[str, Recipe]
    excluded: Mapping[str, str]
    left_out: frozenset[str]
    dropped_copies: tuple[DroppedCopy, ...] = ()


def build_recipes(
    names: Sequence[str],
    changes: Changes,
    problems: list[str],
    *,
    of_all_stages: Collection[str] = (),
    adapter: Adapter | None = None,
) -> Recipes:
    """Build the recipes of target parameters; what is wrong with the rules is added to `problems`.

    If only one stage is converted, `of_all_stages` are the target's names: rules may fit what other stages have. An
    `adapter` changes source parameters before all rules.
    """
    fitting: set[object] = set()
    if adapter is not None:
        problems.extend(adapter.problems(names))
    excluded = excluded_names(names, changes, fitting)
    if changes.select is Selection.WEIGHTS_ONLY:
        kept = (name for name in names if name not in excluded)
        orders = [name for name in kept if state_kind(name, ()) is StateKind.EXPERT_ORDER]
        if orders:
            problems.append(expert_order_problem(orders))
    steps = _Steps(changes, fitting, problems, adapter)
    made = steps.apply([name for name in names if name not in excluded])
    # left-out parameters need not fit the rules: their new names are those that the target may lack
    others = _Steps(changes.model_copy(update={"fp8": Fp8.AUTO}), fitting, []).apply(list(excluded))
    elsewhere = frozenset(of_all_stages).difference(made, others)
    for kind in ("include", "exclude", "split", "join", "transpose", "rename", "cast"):
        problems.extend(
            _unused_rule(kind, rule, names, made)
            for rule in getattr(changes, kind)
            if (kind, rule) not in fitting and not fits_other_stages(rule, elsewhere)
        )
    unused = [
        (number, step.rule)
        for number, step in enumerate(changes.steps)
        if number not in fitting and not step.rule.optional
    ]
    # looking for a similar name takes long, and there may be thousands of steps
    problems.extend(_unused_step(*each, names if place < _MAX_SIMILAR else ()) for place, each in enumerate(unused))
    if names and not made and not problems:
        problems.append("no parameter is left: what is selected, included and excluded leaves none")
    left_out = frozenset(others) - frozenset(made)
    return Recipes(made, excluded | _excluded_copies(steps.dropped_copies), left_out, steps.dropped_copies)


_Node = tuple[Composed, int]
"""A parameter under way, and the number of what is made alike: of equal operations and shapes, whatever the names."""


class Composer:
    """Composes target parameters; those with equal operations and source shapes share their pieces."""

    def __init__(self) -> None:
        self._pieces_left = _MAX_PIECES_MADE
        self._known: dict[object, tuple[Pieces, Shape, int]] = {}
        self._checked: set[int] = set()

    def compose(self, recipe: Recipe, shapes: Mapping[str, Shape]) -> tuple[Pieces, Shape]:
        """Return the pieces of a target parameter and its shape; `shapes` are its sources'.

        Raises:
            LayoutError: its shapes do not fit the operations.
            PlanError: there are too many pieces, in it or in all. They may be as many for each parameter after it, so
                nothing more is done.
        """
        numbers = {name: number for number, name in enumerate(recipe.sources)}
        try:
            composed, number = self._composed(recipe.making, numbers, shapes, {})
            if number not in self._checked:
                if not fill_once(composed.pieces, composed.shape):
                    raise LayoutError(
                        f"its {len(composed.pieces)} pieces do not fill its shape. This is a bug in reshard"
                    )
                self._checked.add(number)
        except PlanError as error:
            raise PlanError(f"parameter {recipe.name!r}: {error.marked}") from None
        return composed.pieces, composed.shape

    def _composed(
        self, making: Making, numbers: Mapping[str, int], shapes: Mapping[str, Shape], visited: dict[Making, _Node]
    ) -> _Node:
        """Compose a node of a recipe; `visited` are those composed for it: what was repeated may be joined again."""
        there = visited.get(making)
        if there is not None:
            return there
        operation = making.operation
        if operation is None:
            source, shape = numbers[making.source], shapes[making.source]
            known = self._known.get((source, shape))
            if known is None:
                leaf = (replace(whole_piece(shape), source=source),)
                known = self._known[source, shape] = leaf, shape, len(self._known)
        else:
            inputs, those = zip(*(self._composed(each, numbers, shapes, visited) for each in making.of), strict=True)
            key = replace(operation, rule=""), those
            known = self._known.get(key)
            if known is None:
                if len(inputs) > 1:
                    _check_growth(operation, inputs, [shapes[name] for name in making.sources])
                known = self._known[key] = *self._applied(operation, inputs), len(self._known)
        pieces, shape, number = known
        node = visited[making] = Composed(making.name, pieces, shape), number
        return node

    def _applied(self, operation: Operation, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:
        pieces, shape = operation.apply(inputs)
        self._pieces_left += _PIECES_FOR_EACH - len(pieces)
        if self._pieces_left < 0:
            raise PlanError(
                f"{operation.rule}: with it, parameters that are not made alike have more than {_MAX_PIECES_MADE:,} "
                f"pieces, and {_PIECES_FOR_EACH} for each operation, the limit"
            )
        return pieces, shape


def _check_growth(operation: Operation, inputs: Sequence[Composed], sources: Sequence[Shape]) -> None:
    """Refuse what is put together of so many repetitions of its sources that it must be a mistake, or hostile."""
    elements, of = (sum(map(math.prod, shapes)) for shapes in ([each.shape for each in inputs], sources))
    if elements > _MAX_GROWTH * max(of, _FEW_ELEMENTS):
        raise PlanError(
            f"{operation.rule}: makes {elements:,} elements from {of:,} source elements, more than {_MAX_GROWTH:,} "
            "times as many, the limit"
        )


class _Steps:
    """The changes after the selection, on names."""

    def __init__(
        self, changes: Changes, fitting: set[object], problems: list[str], adapter: Adapter | None = None
    ) -> None:
        self._adapter = adapter
        self._changes = changes
        self._fitting = fitting
        self._problems = problems
        self.dropped_copies: tuple[DroppedCopy, ...] = ()

    def apply(self, names: Sequence[str]) -> dict[str, Recipe]:
        current: Mapping[str, Making] = {name: self._first(name) for name in names}
        is_asked = self._changes.fp8 is Fp8.DEQUANTIZE
        dequantizes = is_asked and not any(step.dequantize for step in self._changes.steps)
        if self._changes.steps or dequantizes:
            stepped = StepNames(current, self._changes.state_prefixes, self._problems)
            if dequantizes and not stepped.apply(_DEQUANTIZE):
                self._problems.append(
                    f"{option('fp8', 'dequantize')}: there are no weights of block-fp8, whose scales end in _scale_inv"
                )
            for number, step in enumerate(self._changes.steps):
                if stepped.apply(step.rule):
                    self._fitting.add(number)
            current, self.dropped_copies = stepped.current, tuple(stepped.dropped_copies)
        for split_rule in self._changes.split:
            current = self._split(current, split_rule)
        for join_rule in self._changes.join:
            current = self._joined(current, join_rule)
        makings = list(current.values())
        if self._changes.transpose:
            makings = list(map(self._transposed, makings))
        check_expressions(
            filter(None, (rule.pattern for rule in self._changes.rename)), (each.name for each in makings)
        )
        made: dict[str, Recipe] = {}
        for making in makings:
            name = self._new_name(making.name)
            if name in made:
                self._collision(repr(made[name].making.name), repr(making.name), name)
            if making.name and not name:
                self._problems.append(f"nothing is left of the name of {making.name!r}")
            made[name] = Recipe(name, making, self._first_fitting("cast", self._changes.cast, name))
        return self._quantized(made) if self._changes.fp8 is Fp8.QUANTIZE else made

    def _quantized(self, made: Mapping[str, Recipe]) -> dict[str, Recipe]:
        """The recipes with those of linear layers in 8 bits, whose values are not cast before."""
        after: dict[str, Recipe] = {}
        for name, recipe in made.items():
            makings = quantized_makings(name, recipe.making) if is_linear(name) else {}
            after |= {each: Recipe(each, making) for each, making in makings.items()} or {name: recipe}
            self._problems.extend(
                f"the quantization of {name!r} makes {each!r}, which is there already: the source is quantized"
                for each in makings
                if each != name and each in made
            )
        if len(after) == len(made):
            self._problems.append(
                f"{option('fp8', 'quantize')}: there is no linear layer of Hugging Face's names to quantize, such as "
                "model.layers.0.self_attn.o_proj.weight"
            )
        return after

    def _first(self, name: str) -> Making:
        """A source parameter, adapted if there is something to merge into it."""
        making = Making(name, name)
        shape = self._adapter.shape_of(name) if self._adapter else None
        return making if shape is None else making.made(name, Adapted("the merge of the adapter", shape))

    def _collision(self, one: str, other: str, name: str) -> None:
        self._problems.append(f"{one} and {other} would both be called {name!r}")

    def _split(self, current: Mapping[str, Making], rule: SplitRule) -> dict[str, Making]:
        check_expressions([rule.parameters], current)
        pattern = re.compile(rule.parameters)
        matches = {name: match for name in current if (match := pattern.fullmatch(name))}
        after = MakingNames(rule, self._problems)
        after.expect(len(matches) * len(rule.into))
        for name, making in current.items():
            match = matches.get(name)
            if match is None:
                after.keep(making)
                continue
            self._fitting.add(("split", rule))
            for number, new in enumerate(rule.into):
                part = SplitOff(str(rule), rule.axis, rule.shares, rule.groups, number)
                after.put(making.made(match.expand(new), part))
        return after.by_name

    def _joined(self, current: Mapping[str, Making], rule: JoinRule) -> dict[str, Making]:
        keys, parts = self._parts_to_join(current, rule)
        after = MakingNames(rule, self._problems)
        for name, making in current.items():
            if name not in keys:
                after.keep(making)
                continue
            found = parts.pop(keys[name], None)
            if found is None:  # the join has its place already
                continue
            missing = [pattern for number, pattern in enumerate(rule.parameters) if number not in found]
            if missing:
                patterns = " and ".join(map(quoted, missing))
                self._problems.append(f"{rule}: {name!r} has no counterpart that matches {patterns}")
                continue
            of = tuple(found[number][0] for number in range(len(rule.parameters)))
            after.put(Making(found[0][1], operation=Joined(str(rule), rule.axis, rule.groups), of=of))
        return after.by_name

    def _parts_to_join(
        self, current: Mapping[str, Making], rule: JoinRule
    ) -> tuple[dict[str, _Groups], dict[_Groups, dict[int, tuple[Making, str]]]]:
        """Name -> its groups; groups -> number of the part -> the part, and the join's name by it."""
        check_expressions(rule.parameters, current)
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
                        else f"{rule}: {name!r} matches several of its parts"
                    )
                keys[name] = match.groups()
        return keys, parts

    def _transposed(self, making: Making) -> Making:
        rule = self._first_fitting("transpose", self._changes.transpose, making.name)
        return making if rule is None else making.made(making.name, Transposed(str(rule), rule.axes))

    def _new_name(self, name: str) -> str:
        if not self._changes.rename:
            return name
        names = [(rule, new) for rule in self._changes.rename if (new := rule.new_name(name)) is not None]
        self._fitting.update(("rename", rule) for rule, _ in names)
        return names[0][1] if names else name

    def _first_fitting(self, kind: str, rules: Sequence[_PatternRule], name: str) -> _PatternRule | None:
        if not rules:
            return None
        fitting = [rule for rule in rules if fnmatchcase(name, rule.parameters)]
        self._fitting.update((kind, rule) for rule in fitting)
        return fitting[0] if fitting else None


class NamePatterns:
    """Shell-style patterns of names; those that are plain names are looked up, because there may be thousands."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._plain = frozenset(pattern for pattern in patterns if not _SPECIAL & {*pattern})
        self._others = [pattern for pattern in patterns if pattern not in self._plain]

    def fitting(self, name: str) -> list[str]:
        """Return the patterns that a name fits."""
        others = [pattern for pattern in self._others if fnmatchcase(name, pattern)]
        return [name, *others] if name in self._plain else others


def excluded_names(names: Sequence[str], changes: Changes, fitting: set[object]) -> dict[str, str]:
    """The names that are left out, each with the declaration."""
    if not (changes.include or changes.exclude or changes.select is Selection.WEIGHTS_ONLY):
        return {}
    excluded: dict[str, str] = {}
    known = frozenset(names)
    include, exclude = NamePatterns(changes.include), NamePatterns(changes.exclude)
    for name in names:
        included, barred = include.fitting(name), exclude.fitting(name)
        fitting.update(("include", pattern) for pattern in included)
        fitting.update(("exclude", pattern) for pattern in barred)
        if barred:
            excluded[name] = f"exclude {barred[0]}"
        elif changes.select is Selection.WEIGHTS_ONLY and (kind := _dropped_state(name, known)):
            excluded[name] = f"select {Selection.WEIGHTS_ONLY}: {kind}"
        elif changes.include and not included:
            excluded[name] = "not included"
    return excluded


def _dropped_state(name: str, names: Collection[str]) -> StateKind | None:
    """The kind of training state that weights can do without; the order of experts is none."""
    kind = state_kind(name, names)
    return None if kind is StateKind.EXPERT_ORDER else kind


def _excluded_copies(copies: Sequence[DroppedCopy]) -> dict[str, str]:
    return {copy.name: f"{copy.rule}, as a copy of {copy.copy_of}" for copy in copies}


def _unused_rule(kind: str, rule: object, names: Sequence[str], made: Mapping[str, Recipe]) -> str:
    rule_text = f"the pattern {rule!r} ({kind})" if kind in ("include", "exclude") else str(rule)
    advice = ""
    part = None
    if isinstance(rule, RenameRule) and rule.name:
        now = [repr(recipe.making.name) for recipe in made.values() if rule.name in recipe.sources]
        if now:
            return (
                f"{rule_text} matches no parameter: steps, or a preset, come before it and leave {listed(now, 3)} of "
                "that: rename what they leave"
            )
        advice = did_you_mean(rule.name, [recipe.making.name for recipe in made.values()])
    elif isinstance(rule, RenameRule | SplitRule):
        pattern = rule.pattern if isinstance(rule, RenameRule) else rule.parameters
        part = next((name for name in names if re.search(pattern, name)), None) if is_quick(pattern) else None
    elif isinstance(rule, str | CastRule | TransposeRule):
        pattern = rule if isinstance(rule, str) else rule.parameters
        advice = did_you_mean(pattern.strip("*"), names)
    if part is not None:
        advice = f" as a whole, though a part of {part!r}, say: put .* for any text"
    return f"{rule_text} matches no parameter{advice}"


def _unused_step(number: int, rule: StepRule, names: Sequence[str]) -> str:
    example = rule.templates[0]
    near = close_words(example.expanded(dict.fromkeys(example.names, 0)), names, 1)
    advice = f"; there is {near[0]!r}, say" if near else ""
    return f"step {number + 1}, {rule}, matches no parameter{advice}: correct it, or say 'optional: true'"

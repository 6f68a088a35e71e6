"""Groups the modules of an adapter alone by what a preset makes of their weights.

Weights that become parts of the same weights are one group, such as q, k and v on the way to one that is all three. An
adapter goes along where a preset only moves rows: then B has the rows of the weight, and A stays as it is.
"""

from collections.abc import Iterator, Mapping, Sequence

from reshard.core.changes.expressions import whole_number
from reshard.core.errors import InputError, raise_problems
from reshard.core.plan.making import Making
from reshard.core.plan.name_index import NameIndex
from reshard.core.plan.operations import Joined, SplitOff
from reshard.core.plan.preset_checks import unknown_names
from reshard.core.plan.preset_route import CompiledPreset
from reshard.core.plan.preset_steps import Direction, parsed
from reshard.core.plan.recipes import Recipe, build_recipes
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.text.options import option

WEIGHT = ".weight"
_MAX_LISTED = 4


class Made(Record):
    """A module of the target, and the weights whose rows its weight has."""

    module: str
    parts: tuple[str, ...]


class Group(Record):
    """Modules whose adapters go together.

    Attributes:
        sources: the source's modules, in the order of their parts.
        targets: what they become.
        lacking: weights of further parts, which the adapter is not for -> their rows; 0: config.json does not say.
    """

    sources: tuple[str, ...]
    targets: tuple[Made, ...]
    lacking: Mapping[str, int]


def lacking_parts(compiled: CompiledPreset, weights: Sequence[str]) -> dict[str, int]:
    """Return the weights beside those of an adapter that the preset may join them with, and their rows."""
    is_from_hf = compiled.direction is Direction.FROM_HF
    if is_from_hf and compiled.has_hf_target:
        return {}
    index, known = NameIndex(weights), frozenset(weights)
    found: dict[str, int] = {}
    for _, row in compiled.names.rows_of_weights:
        parts = row.hf if is_from_hf else row.mf
        if len(parts) > 1 and not row.stacked:
            found |= {name: rows for name, rows in _parts_of(parts, index, compiled.variables) if name not in known}
    return found


def groups_of(compiled: CompiledPreset, weights: Sequence[str], lacking: Mapping[str, int]) -> list[Group]:
    """Return the groups of an adapter's modules, whose `weights` the preset was compiled for, with those `lacking`.

    Raises:
        InputError: the preset does not have a weight, or does more than to move its rows.
    """
    by_source: dict[str, list[Recipe]] = {name: [] for name in weights}
    for recipe in build_recipes([*weights, *lacking], compiled.steps, []).made.values():
        for source in recipe.sources:
            by_source.setdefault(source, []).append(recipe)
    problems = list(_problems(compiled, weights, by_source))
    raise_problems(
        InputError,
        f"preset {compiled.preset.preset} cannot rename this adapter, since its weights are others on the other side. "
        f"Merge it into its base instead, {option('lora')}",
        problems,
    )
    groups = [_group(names, by_source, lacking) for names in _connected(weights, by_source)]
    unsized = [repr(name) for group in groups for name, rows in group.lacking.items() if not rows]
    if unsized:
        raise InputError(
            f"preset {compiled.preset.preset}: the adapter is for some parts of a weight, and the rows of the others, "
            f"{listed(unsized, _MAX_LISTED)}, are not known: name the model's config.json with {option('config_json')}"
        )
    return groups


def _parts_of(
    parts: Mapping[str, tuple[str, ...]], index: NameIndex, variables: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """The names and rows of all parts of a row that an adapter is for some of."""
    templates = {text: parsed(text, variables) for text in parts}
    for template in filter(None, templates.values()):
        for name in index.fitting(template):
            values = template.fitting(name) or {}
            for text, shape in parts.items():
                other = templates[text]
                if other is not None and other.names == template.names:
                    yield other.expanded(values), _rows(shape, variables)


def _rows(shape: tuple[str, ...], variables: Mapping[str, int]) -> int:
    """The rows of a part; 0 if they are not known."""
    try:
        return max(0, whole_number(shape[0], variables)) if shape else 0
    except ValueError:
        return 0


def _problems(
    compiled: CompiledPreset, weights: Sequence[str], by_source: Mapping[str, Sequence[Recipe]]
) -> Iterator[str]:
    unknown = unknown_names(compiled, weights)
    for name in weights:
        recipes = by_source[name]
        if name in unknown or not recipes:
            yield f"the preset has no row for {name!r} alone: it is unknown, or one of a stack there"
            continue
        for recipe in recipes:
            if not _moves_rows(recipe.making, set()) or not recipe.name.endswith(WEIGHT):
                how = " and ".join(recipe.making.verbs) or "renamed"
                yield f"{name!r} is {how}, and {recipe.name!r} there"


def _moves_rows(making: Making, visited: set[Making]) -> bool:
    """True if a weight has all columns of its sources, and rows of theirs."""
    if making.operation is None or making in visited:
        return True
    visited.add(making)
    is_of_rows = isinstance(making.operation, SplitOff | Joined) and making.operation.axis == 0
    return is_of_rows and all(_moves_rows(each, visited) for each in making.of)


def _connected(weights: Sequence[str], by_source: Mapping[str, Sequence[Recipe]]) -> Iterator[list[str]]:
    """The weights of each group, those that are lacking included, in the order of their parts."""
    visited: set[str] = set()
    for first in weights:
        if first in visited:
            continue
        found = {first: None}
        waiting = [first]
        while waiting:
            recipes = by_source[waiting.pop()]
            new = [name for recipe in recipes for name in recipe.sources if name not in found]
            found |= dict.fromkeys(new)
            waiting += new
        visited |= found.keys()
        parts = dict.fromkeys(name for each in found for recipe in by_source[each] for name in recipe.sources)
        yield list(parts)


def _group(names: Sequence[str], by_source: Mapping[str, Sequence[Recipe]], lacking: Mapping[str, int]) -> Group:
    recipes = {recipe.name: recipe for name in names for recipe in by_source[name]}
    return Group(
        tuple(name.removesuffix(WEIGHT) for name in names if name not in lacking),
        tuple(Made(recipe.name.removesuffix(WEIGHT), recipe.sources) for recipe in recipes.values()),
        {name: lacking[name] for name in names if name in lacking},
    )

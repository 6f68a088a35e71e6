"""Selects parameters by patterns that fit their names on either side of changes: the source's, or those they get."""

from collections.abc import Sequence
from glob import escape

from reshard.core.changes.changes import Changes
from reshard.core.plan.recipes import NamePatterns, build_recipes
from reshard.core.runtime.records import Record
from reshard.core.text.options import option


class EitherSide(Record):
    """What patterns leave out.

    Attributes:
        sources: patterns of the source's parameters of which nothing is left, each of one name.
        results: names of results that are left out.
        unused: the patterns that match no name on either side, as marks of their options.
    """

    sources: tuple[str, ...]
    results: frozenset[str]
    unused: frozenset[str]


def select_on_either_side(
    names: Sequence[str], changes: Changes, include: Sequence[str], exclude: Sequence[str]
) -> EitherSide:
    """Select results of changes: a pattern fits a result by its own name, or by that of a parameter it is made of."""
    including, excluding = NamePatterns(include), NamePatterns(exclude)
    fitting: set[str] = set()
    made = build_recipes(names, changes, []).made  # planning reports what is wrong with the changes
    used_by: dict[str, list[str]] = {name: [] for name in names}
    for result, recipe in made.items():
        for source in recipe.sources:
            used_by.setdefault(source, []).append(result)

    def is_left_out(either: Sequence[str]) -> bool:
        included = {pattern for name in either for pattern in including.fitting(name)}
        excluded = {pattern for name in either for pattern in excluding.fitting(name)}
        fitting.update(
            {option("include", [each]) for each in included}, {option("exclude", [each]) for each in excluded}
        )
        return bool(excluded) or (bool(include) and not included)

    results = {result for result, recipe in made.items() if is_left_out([result, *recipe.sources])}
    sources = [name for name, uses in used_by.items() if (results.issuperset(uses) if uses else is_left_out([name]))]
    patterns = {option("include", [each]) for each in include} | {option("exclude", [each]) for each in exclude}
    return EitherSide(tuple(map(escape, sources)), frozenset(results), frozenset(patterns - fitting))

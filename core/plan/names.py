"""Matches names: which parameters are resharded or passed through, and which names the source does not provide."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from operator import attrgetter

from reshard.core.plan.recipes import Recipe, Recipes
from reshard.core.runtime.records import Record

_SOURCES = attrgetter("sources")


class MatchedNames(Record, dict=True):
    """The roles of names: recipes have target names, their sources have source names.

    Attributes:
        recipes: how target parameters are made.
        in_files: names in the source's files.
        with_shards: names that files of the stages that the source's strategy gives them to hold.
        in_source_strategy: names in the source's strategy.
        in_target_strategy: names in the target's strategy; None without one.
        appended: names of the appended entries.
        reshards_all: nothing is passed through.
    """

    recipes: Recipes
    in_files: frozenset[str]
    with_shards: frozenset[str]
    in_source_strategy: frozenset[str]
    in_target_strategy: frozenset[str] | None
    appended: frozenset[str]
    reshards_all: bool

    @cached_property
    def target_names(self) -> dict[str, str]:
        """Source name -> target name, of parameters that keep their shape."""
        return {recipe.sources[0]: recipe.name for recipe in self._all if not recipe.is_reshaped}

    @cached_property
    def source_names(self) -> dict[str, str]:
        """Target name -> source name, of parameters that keep their shape."""
        return {name: source for source, name in self.target_names.items()}

    @cached_property
    def used(self) -> frozenset[str]:
        """Source names that a recipe uses."""
        return _sources_of(self._all)

    def needed(self, allowed_missing: Collection[str] = ()) -> frozenset[str]:
        """Source names that recipes with a place in the target use, leaving out parameters that may be missing."""
        if not allowed_missing:
            return self._needed
        made, placed = self.recipes.made, self._placed
        return _sources_of([made[name] for name in placed if name not in allowed_missing])

    @cached_property
    def _needed(self) -> frozenset[str]:
        made = self.recipes.made
        return self.used if len(self._placed) == len(made) else _sources_of([made[name] for name in self._placed])

    @cached_property
    def from_source_strategy(self) -> frozenset[str]:
        """Target names of parameters that are made from the source strategy's."""
        if self.in_source_strategy.issuperset(self.used):
            return frozenset(self.recipes.made)
        return frozenset(recipe.name for recipe in self._all if not self.in_source_strategy.isdisjoint(recipe.sources))

    @property
    def in_strategies(self) -> frozenset[str]:
        """Target names of all parameters that a strategy knows."""
        return self.from_source_strategy | (self.in_target_strategy or frozenset())

    @cached_property
    def to_reshard(self) -> tuple[Recipe, ...]:
        """Recipes of resharded parameters."""
        if self.in_target_strategy is not None and self._all_in_files:
            return tuple(map(self.recipes.made.__getitem__, self._placed))
        return tuple(recipe for recipe in self._all if self._is_resharded(recipe))

    @property
    def to_pass_through(self) -> Iterator[Recipe]:
        """Recipes of parameters that no strategy knows, copied to every target rank."""
        return (
            recipe
            for recipe in self._unknown
            if not recipe.is_reshaped and recipe.name not in self.appended and not self._is_resharded(recipe)
        )

    @property
    def dropped(self) -> tuple[str, ...]:
        """Target names of the source strategy's parameters that the target's strategy lacks."""
        if len(self._placed) == len(self.recipes.made):
            return ()
        return tuple(
            recipe.name
            for recipe in self._all
            if not self._has_place(recipe) and not self.with_shards.isdisjoint(recipe.sources)
        )

    def problems(self, damaged: Collection[str]) -> Iterator[str]:
        """Recipes that cannot be carried out; `damaged` are source names that damage took."""
        for recipe in self._unknown:
            if recipe.is_reshaped and not self._is_resharded(recipe):
                yield (
                    f"no strategy knows {recipe.name!r}, made from {_listed(recipe)}: such parameters are copied as "
                    f"they are, and not {' or '.join(recipe.steps)}"
                )
        for recipe in () if self._all_in_files else self._all:
            absent = [name for name in recipe.sources if name not in self.in_files and name not in damaged]
            if absent and len(absent) < len(recipe.sources) and self._has_place(recipe):
                yield (
                    f"parameter {recipe.name!r} is made from {_listed(recipe)}, but {absent[0]!r} is in no source file"
                )

    def missing(self, damaged: Collection[str]) -> list[str]:
        """Names in the target's strategy without a source, and names whose sources damage took; sorted."""
        available = set(self.recipes.made)
        if not self._all_in_files:
            available = {recipe.name for recipe in self._all if self.in_files.issuperset(recipe.sources)}
        lost = frozenset(damaged)
        unmade = {recipe.name for recipe in self._all if not lost.isdisjoint(recipe.sources)} if lost else set()
        return sorted((self.in_target_strategy or frozenset()) - available | unmade)

    def sources_of(self, name: str) -> frozenset[str]:
        """Return the source names of a target parameter; its own name without a recipe."""
        recipe = self.recipes.made.get(name)
        return frozenset(recipe.sources) if recipe else frozenset({name})

    @property
    def _all(self) -> Collection[Recipe]:
        return self.recipes.made.values()

    @cached_property
    def _all_in_files(self) -> bool:
        """True if the files have all sources, as most often: then no recipe needs to be looked at."""
        return self.in_files.issuperset(self.used)

    @cached_property
    def _placed(self) -> Sequence[str]:
        """Target names of the recipes with a place in the target, in order."""
        names = list(self.recipes.made)
        return names if self.in_target_strategy is None else list(filter(self.in_target_strategy.__contains__, names))

    @cached_property
    def _unknown(self) -> list[Recipe]:
        """Recipes of parameters that are in the files and not in any strategy."""
        if self.in_source_strategy.issuperset(self.used):
            return []
        return [
            recipe
            for recipe in self._all
            if self.in_files.issuperset(recipe.sources)
            and self.in_source_strategy.isdisjoint(recipe.sources)
            and recipe.name not in (self.in_target_strategy or ())
        ]

    def _has_place(self, recipe: Recipe) -> bool:
        return self.in_target_strategy is None or recipe.name in self.in_target_strategy

    def _is_resharded(self, recipe: Recipe) -> bool:
        if not self.in_files.issuperset(recipe.sources):
            return False
        if self.in_target_strategy is not None:
            return recipe.name in self.in_target_strategy
        if not self.with_shards.isdisjoint(recipe.sources):
            return True
        return (recipe.is_reshaped or self.reshards_all) and recipe.name not in self.appended


def _sources_of(recipes: Iterable[Recipe]) -> frozenset[str]:
    return frozenset(chain.from_iterable(map(_SOURCES, recipes)))


def fits_any(name: str, patterns: Iterable[str]) -> bool:
    """True if a name fits one of several shell-style patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(recipe: Recipe) -> str:
    return " and ".join(map(repr, recipe.sources[:4])) + (" and others" if len(recipe.sources) > 4 else "")

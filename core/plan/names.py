"""Names on both sides of a conversion: which recipes move, which are carried, and what the target's strategy misses."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from reshard.core.plan.recipes import Recipe, Recipes


@dataclass(frozen=True)
class MatchedNames:
    """What becomes of names; those of recipes are the target's, their sources the source's.

    Attributes:
        recipes: how target parameters are made.
        in_files: names in the source's files.
        held: those of them that the source's strategy lays out where they are.
        known: names in the source's strategy.
        wanted: names in the target's strategy; None if there is none.
        appended: names of information that every target file gets.
        moves_all: nothing is only carried.
    """

    recipes: Recipes
    in_files: frozenset[str]
    held: frozenset[str]
    known: frozenset[str]
    wanted: frozenset[str] | None
    appended: frozenset[str]
    moves_all: bool

    @cached_property
    def called(self) -> dict[str, str]:
        """Source name -> target name, of parameters that keep their shape."""
        return {recipe.sources[0]: recipe.name for recipe in self._all if not recipe.is_reshaped}

    @cached_property
    def source_names(self) -> dict[str, str]:
        """Target name -> source name, of the same."""
        return {name: source for source, name in self.called.items()}

    @cached_property
    def taken(self) -> frozenset[str]:
        """Source names that anything is made of."""
        return frozenset(source for recipe in self._all for source in recipe.sources)

    @cached_property
    def needed(self) -> frozenset[str]:
        """Source names that something is made of which the target has a place for."""
        return frozenset(source for recipe in self._all if self._has_place(recipe) for source in recipe.sources)

    @cached_property
    def of_strategy(self) -> frozenset[str]:
        """What the parameters of the source's strategy are called in the target."""
        return frozenset(recipe.name for recipe in self._all if not self.known.isdisjoint(recipe.sources))

    @property
    def in_strategies(self) -> frozenset[str]:
        """Target names of all parameters that a strategy knows."""
        return self.of_strategy | (self.wanted or frozenset())

    @cached_property
    def to_move(self) -> tuple[Recipe, ...]:
        """What is cut anew."""
        return tuple(recipe for recipe in self._all if self._is_moved(recipe))

    @property
    def to_carry(self) -> Iterator[Recipe]:
        """What no strategy knows, and is copied to every target rank."""
        return (
            recipe
            for recipe in self._unknown
            if not recipe.is_reshaped and recipe.name not in self.appended and not self._is_moved(recipe)
        )

    @property
    def dropped(self) -> tuple[str, ...]:
        """Of the source strategy's parameters, what the target's strategy has no place for."""
        return tuple(
            recipe.name
            for recipe in self._all
            if not self._has_place(recipe) and not self.held.isdisjoint(recipe.sources)
        )

    def problems(self, unheld: Collection[str]) -> Iterator[str]:
        """What cannot be made as declared; `unheld` are source names that damage took."""
        for recipe in self._unknown:
            if recipe.is_reshaped and not self._is_moved(recipe):
                yield (
                    f"no strategy knows {recipe.name!r}, made from {_listed(recipe)}: such parameters are copied as "
                    f"they are, and not {' or '.join(recipe.steps)}"
                )
        for recipe in self._all:
            absent = [name for name in recipe.sources if name not in self.in_files and name not in unheld]
            if absent and len(absent) < len(recipe.sources) and self._has_place(recipe):
                yield (
                    f"parameter {recipe.name!r} is made from {_listed(recipe)}, but {absent[0]!r} is in no source file"
                )

    def missing(self, unheld: Collection[str]) -> list[str]:
        """Names in the target's strategy that nothing can be made for, and what damage took; sorted."""
        available = {recipe.name for recipe in self._all if self.in_files.issuperset(recipe.sources)}
        lost = frozenset(unheld)
        taken = {recipe.name for recipe in self._all if not lost.isdisjoint(recipe.sources)}
        return sorted((self.wanted or frozenset()) - available | taken)

    def sources_of(self, name: str) -> frozenset[str]:
        """The source names that a target parameter is made of; its own if nothing makes it."""
        recipe = self.recipes.made.get(name)
        return frozenset(recipe.sources) if recipe else frozenset({name})

    def is_needed(self, source: str, excused: Collection[str]) -> bool:
        """Whether a source parameter is needed for anything but `excused` target parameters."""
        return any(recipe.name not in excused for recipe in self._made_of.get(source, ()))

    @property
    def _all(self) -> Collection[Recipe]:
        return self.recipes.made.values()

    @cached_property
    def _unknown(self) -> list[Recipe]:
        """What is in the files and in no strategy."""
        return [
            recipe
            for recipe in self._all
            if self.in_files.issuperset(recipe.sources)
            and self.known.isdisjoint(recipe.sources)
            and recipe.name not in (self.wanted or ())
        ]

    @cached_property
    def _made_of(self) -> dict[str, list[Recipe]]:
        """Source name -> what is made of it that the target has a place for."""
        found: dict[str, list[Recipe]] = {}
        for recipe in self._all:
            if self._has_place(recipe):
                for source in recipe.sources:
                    found.setdefault(source, []).append(recipe)
        return found

    def _has_place(self, recipe: Recipe) -> bool:
        return self.wanted is None or recipe.name in self.wanted

    def _is_moved(self, recipe: Recipe) -> bool:
        if not self.in_files.issuperset(recipe.sources):
            return False
        if self.wanted is not None:
            return recipe.name in self.wanted
        if not self.held.isdisjoint(recipe.sources):
            return True
        return (recipe.is_reshaped or self.moves_all) and recipe.name not in self.appended


def _listed(recipe: Recipe) -> str:
    return " and ".join(map(repr, recipe.sources[:4])) + (" and others" if len(recipe.sources) > 4 else "")

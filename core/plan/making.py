"""How parameters are made: trees of operations, whose leaves are source parameters, under their present names."""

from dataclasses import dataclass, replace
from functools import cached_property

from reshard.core.plan.operations import Joined, Operation, SplitOff, Stacked

_MAX_NAMES = 4


@dataclass(frozen=True)
class Making:
    """A node of a recipe: a source parameter, or the result of an operation.

    Attributes:
        name: what it is called at this point.
        source: name of the source parameter; empty for the result of an operation.
        operation: what makes it; None for a source parameter.
        of: the inputs of the operation.
        renamed: whether it, or an input, has had another name.
    """

    name: str
    source: str = ""
    operation: Operation | None = None
    of: tuple["Making", ...] = ()
    renamed: bool = False

    def made(self, name: str, operation: Operation) -> "Making":
        """Return what an operation makes of it alone."""
        return Making(name, operation=operation, of=(self,), renamed=self.renamed)

    def named(self, name: str) -> "Making":
        """Return the same under another name."""
        return replace(self, name=name, renamed=True)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The names of its source parameters, each once."""
        if self.operation is None:
            return (self.source,)
        if len(self.of) == 1:
            return self.of[0].sources
        return tuple(dict.fromkeys(name for each in self.of for name in each.sources))

    @cached_property
    def verbs(self) -> tuple[str, ...]:
        """What is done to its sources, in order, each once."""
        if self.operation is None:
            return ()
        return tuple(dict.fromkeys((*(verb for each in self.of for verb in each.verbs), self.operation.verb)))

    def __str__(self) -> str:
        if isinstance(self.operation, SplitOff):
            return f"part {self.operation.number + 1} of {self.of[0].name!r}"
        if isinstance(self.operation, Joined | Stacked):
            those = [repr(each.name) for each in self.of]
            listed = those if len(those) <= _MAX_NAMES else [*those[:_MAX_NAMES], f"{len(those) - _MAX_NAMES} more"]
            return f"the {'join' if isinstance(self.operation, Joined) else 'stack'} of {' and '.join(listed)}"
        source = f" (the source's {self.source!r})" if self.source not in ("", self.name) else ""
        return f"{self.name!r}{source}"


class MakingNames:
    """Parameters by their names, which have to differ; what is wrong is added to `problems`."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self.by_name: dict[str, Making] = {}

    def put(self, making: Making) -> None:
        """Add a parameter."""
        if not making.name:
            self._problems.append(f"nothing is left of the name of {making}")
        there = self.by_name.get(making.name)
        if there is not None:
            self._problems.append(f"{there} and {making} would both be called {making.name!r}")
        self.by_name[making.name] = making

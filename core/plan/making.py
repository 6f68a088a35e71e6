"""How parameters are made: trees of operations, whose leaves are source parameters, under their present names."""

from functools import cached_property

from msgspec.structs import replace

from reshard.core.errors import PlanError
from reshard.core.plan.operations import Joined, Operation, SplitOff, Stacked
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import quoted, shortened

_MAX_LISTED = 4
MAX_NAMES_MADE = 2**18
"""By one rule: 61 layers of 384 experts have 70,000 names, with their moments 211,000."""
MAX_NAME_LENGTH = 4096
MAX_DEPTH = 128
"""Operations one after another on a parameter, as few as trees can be walked with."""


class Making(Record, dict=True, eq=False):
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

    @cached_property
    def depth(self) -> int:
        """Operations one after another, up to the sources."""
        return 1 + max(each.depth for each in self.of) if self.of else 0

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
            listed = those if len(those) <= _MAX_LISTED else [*those[:_MAX_LISTED], f"{len(those) - _MAX_LISTED} more"]
            return f"the {'join' if isinstance(self.operation, Joined) else 'stack'} of {' and '.join(listed)}"
        source = f" (the source's {self.source!r})" if self.source not in ("", self.name) else ""
        return f"{self.name!r}{source}"


class MakingNames:
    """Parameters by their names after a rule; the names have to differ, else that is added to `problems`."""

    def __init__(self, rule: object, problems: list[str]) -> None:
        self._rule = rule
        self._problems = problems
        self.by_name: dict[str, Making] = {}

    def expect(self, count: int) -> None:
        """Refuse, before it is made, more than may be.

        Raises:
            PlanError: the rule is about to make too many parameters.
        """
        if count > MAX_NAMES_MADE:
            raise PlanError(f"{self._rule}: makes {count:,} parameters, more than {MAX_NAMES_MADE:,}, the limit")

    def keep(self, making: Making) -> None:
        """Add a parameter that the rule does not fit."""
        there = self.by_name.get(making.name)
        if there is not None:
            self._problems.append(f"{there} and {making} would both be called {making.name!r}")
        self.by_name[making.name] = making

    def put(self, making: Making) -> None:
        """Add a parameter that the rule makes.

        Raises:
            PlanError: too long a name, or too many operations on one parameter. What rules make may grow
                exponentially, so nothing more is done.
        """
        name = quoted(shortened(making.name))
        if len(making.name) > MAX_NAME_LENGTH:
            raise PlanError(
                f"{self._rule}: makes the name {name} of {len(making.name):,} characters, more than "
                f"{MAX_NAME_LENGTH:,}, the limit"
            )
        if making.depth > MAX_DEPTH:
            raise PlanError(f"{self._rule}: is the operation after {MAX_DEPTH} others on {name}, the limit")
        if not making.name:
            self._problems.append(f"nothing is left of the name of {making}")
        self.keep(making)

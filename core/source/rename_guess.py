"""Guesses a systematic difference between two sets of names: an additional prefix, or another component.

Names are compared by their components between dots. A guess counts if it matches at least half of the names.
"""

from collections import Counter
from collections.abc import Collection, Iterator

from reshard.core.runtime.records import Record

_SAMPLES = 8
_MAX_CANDIDATES = 40


class Renaming(Record):
    """The replacement of `old` by `new` in names.

    Attributes:
        old: the old components; may be empty at the start of a name.
        new: the new components; may be empty at the start of a name.
        at_start: replace only at the start of a name.
        fitting: number of names that become names of the other set.
    """

    old: str
    new: str
    at_start: bool
    fitting: int = 0

    def applied(self, name: str) -> str | None:
        """Return the renamed name; None if it lacks `old`."""
        if self.at_start:
            return self.new + name.removeprefix(self.old) if name.startswith(self.old) else None
        replaced = f".{name}.".replace(f".{self.old}.", f".{self.new}.", 1)[1:-1]
        return None if replaced == name else replaced

    def __str__(self) -> str:
        if self.at_start and not self.old:
            return f"all with {self.new!r} before them"
        if self.at_start and not self.new:
            return f"all without {self.old!r} before them"
        return f"all with {self.new!r} in the place of {self.old!r}"


def guess_renaming(names: Collection[str], others: Collection[str]) -> Renaming | None:
    """Guess how `names` would become `others`; None without a good guess."""
    if not names or not others:
        return None
    targets = frozenset(others)
    candidates: Counter[Renaming] = Counter()
    for name in sorted(names)[:: max(1, len(names) // _SAMPLES)]:
        # counterparts end alike
        last = name.rpartition(".")[2]
        alike = [other for other in others if other.rpartition(".")[2] == last] or list(others)
        candidates.update({candidate for other in alike for candidate in _differences(name, other)})
    best: Renaming | None = None
    for candidate, _ in candidates.most_common(_MAX_CANDIDATES):
        fitting = sum(candidate.applied(name) in targets for name in names)
        if best is None or fitting > best.fitting:
            best = Renaming(candidate.old, candidate.new, candidate.at_start, fitting)
    return best if best is not None and 2 * best.fitting >= len(names) else None


def _differences(name: str, other: str) -> Iterator[Renaming]:
    if other.endswith(name):
        yield Renaming("", other[: len(other) - len(name)], at_start=True)
    elif name.endswith(other):
        yield Renaming(name[: len(name) - len(other)], "", at_start=True)
    else:
        ours, theirs = name.split("."), other.split(".")
        shorter = min(len(ours), len(theirs))
        start = next((at for at in range(shorter) if ours[at] != theirs[at]), shorter)
        end = next((at for at in range(shorter - start) if ours[-1 - at] != theirs[-1 - at]), shorter - start)
        # a component that only one name has is placed by its neighbor
        if start and (start + end == len(ours) or start + end == len(theirs)):
            start -= 1
        old, new = ours[start : len(ours) - end], theirs[start : len(theirs) - end]
        if old and new and len(old) + len(new) < len(ours) + len(theirs):
            yield Renaming(".".join(old), ".".join(new), at_start=False)

"""Parameters that several parts have, such as tied embeddings: whose copy is taken, and whether copies differ."""

import threading
from collections.abc import Iterator, Mapping, Sequence

from reshard.core.conversion.parts import Part, stages_text
from reshard.core.errors import InputError
from reshard.core.runtime.records import Record
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import listed
from reshard.core.text.options import option
from reshard.core.verification.tied_parameters import PartCopies, differing_note, differing_text

FAIL = "fail"
_WORKERS = 4
_MAX_LISTED = 6


class SharedCopies(Record):
    """Shared parameters -> the stages with a copy; that of the first stage is taken."""

    stages: Mapping[str, tuple[int, ...]]

    @property
    def taken(self) -> list[int]:
        """The stages whose copies are taken."""
        return sorted({stages[0] for stages in self.stages.values()})

    @property
    def notes(self) -> Iterator[str]:
        """Yield whose copies are taken, in a sentence; nothing if no parameters are shared."""
        if self.stages:
            stages = listed(list(map(str, self.taken)))
            names = listed(list(self.stages), _MAX_LISTED)
            yield f"parameters that several stages have are written once, from the part of stage {stages}: {names}"

    def of_others(self, part: Part) -> frozenset[str]:
        """Return the parameters of a part that are taken from another part."""
        return frozenset(name for name, stages in self.stages.items() if part.stage in stages[1:])


def chosen_copies(parts: Sequence[Part], choice: str) -> SharedCopies:
    """Choose the copies of shared parameters: those of the lowest stage, or of the stage of a number.

    Raises:
        InputError: the choice is a number, and not that of a part's stage.
    """
    chosen = int(choice) if choice.isdigit() else None
    if chosen is not None and chosen not in {part.stage for part in parts}:
        raise InputError(
            f"the copies of stage {chosen} are to be taken of shared parameters ({option('shared_parameters')}), but "
            f"there are the parts of stages {stages_text(parts)}"
        )
    stages: dict[str, list[int]] = {}
    for part in parts:
        for name in part.parameters:
            stages.setdefault(name, []).append(part.stage)
    return SharedCopies(
        {
            name: tuple(sorted(holders, key=lambda stage: stage != chosen))
            for name, holders in sorted(stages.items())
            if len(holders) > 1
        }
    )


def compare_copies(parts: Sequence[Part], shared: SharedCopies, *, fails: bool) -> str:
    """Compare copies of shared parameters; return a note if they differ, or raise InputError if that `fails`."""
    if not shared.stages:
        return ""
    copies = PartCopies(shared.stages)

    def take(part: Part, rank: int) -> None:
        record = part.record(rank)
        if shared.of_others(part).issuperset(parameter.name for parameter in record.parameters):
            raise InputError(
                f"{part.location}: has nothing for rank_{rank} but what other parts have as well, and a file without "
                f"parameters cannot be written. Take its copies, {option('shared_parameters', str(part.stage))}, or "
                "convert all stages at once, with the directory of all strategies"
            )
        copies.add(part.stage, part.plan, record)

    pairs = [(part, rank) for part in parts for rank in part.plan.target_ranks]
    in_threads(lambda pair: take(*pair), pairs, _WORKERS, threading.Event())
    differing = differing_text(copies.differing())
    if differing and fails:
        raise InputError(
            f"{', '.join(str(part.location) for part in parts)}: have different copies of parameters that their stages "
            f"share: {differing}. Name the stage whose copies are right: {option('shared_parameters', 'STAGE')}, or "
            "first"
        )
    return differing_note(differing) if differing else ""

"""Directories with a DCP checkpoint for each step of a training.

    checkpoint/step-500/.metadata     as torchtitan saves them
    checkpoint/step-1000/.metadata

The number may follow another word: `global_step500`, `checkpoint-500`, Megatron's `iter_0000500`. A step is complete
as soon as it has `.metadata`, which is written last.
"""

import re
from collections.abc import Mapping, Sequence

from reshard.core.errors import CatalogError
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME, is_dcp
from reshard.core.layouts.unified.names import is_index_name
from reshard.core.runtime.wording import listed
from reshard.core.storage.listing import names_if_directory
from reshard.core.storage.urls import Location

_STEP = re.compile(r"(?:global_?)?(?:step|iter|checkpoint)[-_=]?(\d{1,18})", re.ASCII)
_MAX_LISTED = 6


def list_dcp_steps(root: Location, names: Sequence[str]) -> dict[int, str]:
    """Return the steps in a directory with these names, ascending: number -> name; empty if they are not of DCP.

    The newest step that has files decides what they are. A directory with an index is a checkpoint itself.

    Raises:
        CatalogError: two have the same number.
        StorageError: the storage does not answer.
    """
    if any(map(is_index_name, names)):
        return {}
    found: dict[int, list[str]] = {}
    for name in names:
        if match := _STEP.fullmatch(name):
            found.setdefault(int(match[1]), []).append(name)
    for number in sorted(found, reverse=True):
        inside = names_if_directory(root.child(found[number][0]))
        if not inside:
            continue
        if not is_dcp(inside):
            return {}
        twice = next((several for several in found.values() if len(several) > 1), None)
        if twice:
            raise CatalogError(f"{root}: {listed(twice)} are one step: which one is right? Name it as the source")
        return {number: name for number, [name] in sorted(found.items())}
    return {}


def choose_dcp_step(root: Location, steps: Mapping[int, str], asked: str) -> tuple[int, tuple[str, ...]]:
    """Return the number of the asked or the newest complete step, and notes on the choice.

    Raises:
        CatalogError: there is no such step, or none is complete.
        StorageError: the storage does not answer.
    """
    newest_first = sorted(steps, reverse=True)
    there = listed([str(number) for number in newest_first], _MAX_LISTED)
    if asked:
        if not asked.isdigit() or int(asked) not in steps:
            raise CatalogError(f"{root}: has no step {asked}; it has {there}")
        return int(asked), ()
    passed_over: list[str] = []
    for number in newest_first:
        if DCP_METADATA_NAME in names_if_directory(root.child(steps[number])):
            notes = [f"using step {number}, the newest that is complete"] if len(steps) > 1 else []
            if passed_over:
                notes.append(f"ignored newer steps without {DCP_METADATA_NAME}: {listed(passed_over, _MAX_LISTED)}")
            return number, tuple(notes)
        passed_over.append(str(number))
    raise CatalogError(f"{root}: none of its steps has {DCP_METADATA_NAME}, which is written last: {there}")

"""Finds the universal checkpoint that a URL means: one itself, or the one that `latest_universal` names."""

import re
from collections.abc import Sequence

from reshard.core.errors import CatalogError
from reshard.core.layouts.step_choice import check_asked
from reshard.core.layouts.tracker import read_tracker
from reshard.core.layouts.universal.names import LATEST, STATE_FOLDER, parse_tag, tag_name
from reshard.core.runtime.records import Record
from reshard.core.storage.listing import names_if_directory
from reshard.core.storage.urls import Location
from reshard.core.text.options import source_option

_MODEL = re.compile(r"(zero_pp_rank_\d+_)?mp_rank_\d+_model_states\.pt", re.ASCII)
_FIRST_SLICES = "mp_rank_00_"
_OPTIMIZER = re.compile(r".*_optim_states\.pt", re.ASCII | re.DOTALL)
_RANKS_TRACKER = "latest"
"""A directory with it has DeepSpeed's own files of ranks, from which universal checkpoints were made."""


class UniversalTag(Record):
    """One universal checkpoint.

    Attributes:
        url: as it was named.
        number: the step in its name; None if there is none.
        names: all names in the directory.
        numbers: the steps of all beside it, ascending; empty if it was named itself.
    """

    url: str
    location: Location
    number: int | None
    names: tuple[str, ...]
    numbers: tuple[int, ...] = ()

    @property
    def model_names(self) -> list[str]:
        """The names of files of the model's state."""
        return sorted(filter(_MODEL.fullmatch, self.names))

    @property
    def has_slices(self) -> bool:
        """True after a training with tensor parallelism, each of whose ranks had slices of the model."""
        return any(_FIRST_SLICES not in name for name in self.model_names)


def is_universal(names: Sequence[str]) -> bool:
    """True for the names in the directory of a universal checkpoint."""
    return STATE_FOLDER in names and any(map(_MODEL.fullmatch, names)) and not any(map(_OPTIMIZER.fullmatch, names))


def tags_in(names: Sequence[str]) -> dict[int, str]:
    """Return the steps of the universal checkpoints in a directory with these names, ascending; number -> tag."""
    if _RANKS_TRACKER in names:
        return {}
    numbers = [number for name in names if (number := parse_tag(name)) is not None]
    return {number: tag_name(number) for number in sorted(numbers)}


def number_of(root: Location, names: Sequence[str], step: str) -> int | None:
    """Return the step that is meant in the directory of all; None if it has no universal checkpoints.

    Raises:
        CatalogError: there is no such step, or `latest_universal` names none that is there.
        StorageError: the storage does not answer.
    """
    tags = tags_in(names)
    if not tags:
        return None
    there = ", ".join(map(str, tags))
    if step:
        if not step.isdecimal() or int(step) not in tags:
            raise CatalogError(f"{root}: has no step {step}; it has {there}")
        return int(step)
    named = read_tracker(root, LATEST)
    if named not in tags:
        why = (
            f"has no {LATEST.name}, which names the complete one"
            if named is None
            else f"names step {named} in {LATEST.name}, which is not there"
        )
        raise CatalogError(f"{root}: {why}: there are {there}: name one with {source_option('step')}")
    return named


def tag_at(location: Location, names: Sequence[str], step: str) -> UniversalTag | None:
    """Return the universal checkpoint that is meant in a directory with these names; None if there is none.

    Raises:
        CatalogError: there is no such step, or none is known to be complete.
        StorageError: the storage does not answer.
    """
    if is_universal(names):
        number = parse_tag(location.name)
        check_asked(location, "step", number, step)
        return UniversalTag(str(location), location, number, tuple(names))
    chosen = number_of(location, names, step)
    if chosen is None:
        return None
    directory = location.child(tag_name(chosen))
    inside = tuple(names_if_directory(directory))
    if not is_universal(inside):
        raise CatalogError(
            f"{directory}: is not a universal checkpoint: it has no {STATE_FOLDER} with files of tensors"
        )
    return UniversalTag(str(location), directory, chosen, inside, tuple(tags_in(names)))

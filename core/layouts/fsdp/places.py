"""Finds the model that a URL means: its own directory, that of a step, or that of a training with many steps."""

from collections.abc import Sequence

from reshard.core.errors import CatalogError
from reshard.core.layouts.fsdp.names import (
    MODELS,
    TRACKER,
    FileKind,
    is_model,
    missing_ranks,
    parse_step,
    rank_names,
    step_names,
)
from reshard.core.layouts.step_choice import NumberedSteps, check_asked, choose_step
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.listing import names_if_directory
from reshard.core.storage.urls import Location

_MAX_LISTED = 6


class SavedModel(Record):
    """The directory of one model, of one step.

    Attributes:
        url: the checkpoint, as it was named: this directory, that of its step, or that of all.
        names: all names in the directory.
        number: of the step; None if no directory's name says it.
        numbers: of all steps, ascending; empty if one was named.
        notes: what was chosen and why.
    """

    url: str
    location: Location
    names: tuple[str, ...]
    number: int | None = None
    numbers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def list_steps(root: Location, names: Sequence[str]) -> dict[int, str]:
    """Return the steps in a directory with these names, ascending: number -> name; empty if there are none.

    The newest with ranks' files decides whether they are of this layout: a killed training leaves empty ones.
    """
    found = step_names(names)
    for number in reversed(found):
        directory = root.child(found[number])
        inside = names_if_directory(directory)
        if is_model(inside) or models_in(directory, inside):
            return found
        models = [name for name in MODELS if name in inside]
        if inside and (not models or any(names_if_directory(directory.child(name)) for name in models)):
            return {}
    return {}


def models_in(directory: Location, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the models in a step's directory with these names: name -> the names in it."""
    found = {name: tuple(names_if_directory(directory.child(name))) for name in MODELS if name in names}
    return {name: inside for name, inside in found.items() if is_model(inside)}


def model_in(location: Location, names: Sequence[str], step: str = "") -> SavedModel | None:
    """Return the model that a step means in a directory with these names; None if it is of another layout.

    Raises:
        CatalogError: there is no such step, or none is complete.
        StorageError: the storage does not answer.
    """
    found = _one_model(str(location), location, names)
    if found is not None:
        check_asked(location, "step", found.number, step)
        return found
    steps = list_steps(location, names)
    if not steps:
        return None
    number, notes = step_to_read(location, steps, step)
    directory = location.child(steps[number])
    found = _one_model(str(location), directory, names_if_directory(directory))
    if found is None:
        raise CatalogError(f"{location}: step {number} has no files of ranks")
    return SavedModel(found.url, found.location, found.names, number, tuple(steps), (*notes, *found.notes))


def step_to_read(root: Location, steps: dict[int, str], step: str) -> tuple[int, tuple[str, ...]]:
    """Return the number of the step to read, and notes on the choice.

    Raises:
        CatalogError: there is no such step, or none is complete.
        StorageError: the storage does not answer.
    """
    return choose_step(NumberedSteps(root, steps, incomplete), step, TRACKER)


def incomplete(directory: Location) -> str:
    """Return what a step's directory lacks, by names alone; empty if nothing."""
    model = _one_model(str(directory), directory, names_if_directory(directory))
    if model is None:
        return "it has no files of ranks"
    found = rank_names(model.names)
    for kind in (FileKind.MODEL, FileKind.OPTIMIZER):
        worlds = {name.world for name in found.values() if kind is FileKind.MODEL or name.kind is kind}
        for world in sorted(worlds):
            if missing := missing_ranks(found, kind, world):
                return f"{listed(missing, _MAX_LISTED)} {'is' if len(missing) == 1 else 'are'} missing"
    return ""


def _one_model(url: str, location: Location, names: Sequence[str]) -> SavedModel | None:
    """The model in a directory with these names, if it is a model's or a step's."""
    if is_model(names):
        number = parse_step(location.name)
        return SavedModel(url, location, tuple(names), parse_step(location.parent.name) if number is None else number)
    models = models_in(location, names)
    if not models:
        return None
    name, *others = models
    notes = [f"{name} is read, one of the step's models; beside it: {listed(others)}"] if others else []
    return SavedModel(url, location.child(name), models[name], parse_step(location.name), (), tuple(notes))

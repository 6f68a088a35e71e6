"""Finds the checkpoint at a URL by asking all layouts in turn; opens no checkpoint file.

A checkpoint is named by its directory, its pattern, its file, its index or its metadata, or by the directory of all
outputs of a training of MindFormers. Only indexes and metadata are read.
"""

from collections.abc import Iterator, Sequence

from reshard.core.errors import CatalogError, InputError, StorageError
from reshard.core.files.model import SELF_CONTAINED
from reshard.core.layouts.any_layout import is_document
from reshard.core.layouts.foreign import foreign_below, foreign_text
from reshard.core.layouts.output_directory import find_output_checkpoint
from reshard.core.layouts.place import Place, PlaceKind, directory_at, look_at
from reshard.core.layouts.registry import source_layouts
from reshard.core.layouts.seen_steps import TrainingSteps
from reshard.core.layouts.source_layout import FoundCheckpoint
from reshard.core.layouts.trainer_output import trainer_text
from reshard.core.runtime.wording import listed
from reshard.core.storage.input_errors import storage_errors_as_input
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.urls import Location, parse_url
from reshard.core.text.options import source_option

_EXTENSIONS = " or ".join(f".{file_format}" for file_format in SELF_CONTAINED)
_MAX_LISTED = 6
_MAX_LOOKED_INTO = 8


def survey(url: str, step: str = "") -> FoundCheckpoint:
    """Find the checkpoint at a URL.

    In a training's directory whose steps are directories, `step` chooses one; by default the layout does. If steps are
    in the names of files, all are found, and cataloging chooses one.

    Raises:
        CatalogError: there is no checkpoint, or it cannot be read.
        StrategyError: its metadata is damaged.
        StorageError: a transient failure of the storage.
        InputError: the URL is invalid.
    """
    location = parse_url(url)
    with storage_errors_as_input(location):
        place = look_at(url)
        for each in _with_output(place):
            for layout in source_layouts():
                if (found := layout.recognize(each, step)) is not None:
                    return found
        raise CatalogError(_without_checkpoint(place))


def find_self_described(url: str, step: str = "") -> FoundCheckpoint | None:
    """Find the checkpoint at a URL if it says itself how it is sharded; None if it does not, or nothing is there.

    Raises:
        InputError: it is incomplete or damaged, or has no such step.
        StorageError: the storage does not answer.
    """
    place = unless_missing(lambda: look_at(url))
    if place is None or place.kind is PlaceKind.PATTERN:
        return None
    if place.kind is PlaceKind.FILE:
        _check_not_part(place)
    for each in _with_output(place):
        for layout in source_layouts():
            if layout.is_self_described and (found := layout.recognize(each, step)) is not None:
                return found
    return None


def find_number(url: str, step: str = "") -> int | None:
    """Return the number of the step that a URL and a step mean, by names alone; None if its layout gives it none.

    Raises:
        CatalogError: there is no such step, or none is complete.
        StorageError: the storage does not answer.
    """
    place = unless_missing(lambda: look_at(url))
    for each in _with_output(place) if place is not None else ():
        for layout in source_layouts():
            if (number := layout.number_at(each, step)) is not None:
                return number
    return None


def find_steps(url: str) -> TrainingSteps:
    """Find the steps that a training has saved into a directory.

    Raises:
        CatalogError: it is not a training's directory.
        StorageError: the storage does not answer.
        InputError: the URL is invalid.
    """
    place = unless_missing(lambda: look_at(url))
    if place is None or place.kind is not PlaceKind.DIRECTORY:
        return survey(url).training_steps()
    [*_, place] = _with_output(place)
    for layout in source_layouts():
        if (steps := layout.find_steps(place)) is not None:
            return steps
    return survey(str(place.location)).training_steps()


def _check_not_part(place: Place) -> None:
    """Refuse a file that holds slices of a checkpoint whose metadata, which says of what, lies beside it."""
    for layout in source_layouts():
        if whole := layout.whole_of(place.location.name):
            raise CatalogError(
                f"{place.location}: by its name it is a part of {whole}, or name its strategy with "
                f"{source_option('source_strategy')}"
            )


def _with_output(place: Place) -> Iterator[Place]:
    """Yield a place and, if it is a directory of a training's outputs, the only checkpoint in it."""
    yield place
    if place.kind is PlaceKind.DIRECTORY:
        output = find_output_checkpoint(place.location, place.names)
        if output is not None:
            yield directory_at(output)


def _without_checkpoint(place: Place) -> str:
    """Return the refusal of a place without anything to read; it says so if another library wrote it."""
    if refusal := trainer_text(place.location, place.names) or foreign_text(place.location, place.names):
        return refusal
    nothing = f"{place.location}: holds neither rank_N folders nor checkpoint files ({_EXTENSIONS})"
    folders = [item.location for item in place.items if item.kind == "directory"]
    if near := _self_described([place.location.parent]) or _self_described(folders[-_MAX_LOOKED_INTO:]):
        return f"{nothing}; name the directory that is meant, if it is one of these: {listed(near, _MAX_LISTED)}"
    if below := foreign_below(folders):
        return f"{nothing}; {below}"
    named = [item.name for item in place.items if item.kind == "file" and is_document(item.name)]
    if not named:
        return nothing
    return f"{nothing}; name the file that is meant, if it is one of these: {listed(named, _MAX_LISTED)}"


def _self_described(directories: Sequence[Location]) -> list[str]:
    """Return those of some directories that hold a checkpoint which says itself how it is sharded, complete or not."""
    return [str(each) for each in directories if _is_self_described(each)]


def _is_self_described(directory: Location) -> bool:
    try:
        return find_self_described(str(directory)) is not None
    except StorageError:
        return False  # who may read a directory may not be allowed to list those around it
    except InputError:
        return True

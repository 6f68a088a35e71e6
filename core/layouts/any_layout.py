"""Questions about names and files that any layout may answer."""

from collections.abc import Mapping, Sequence

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.files.file_names import Step
from reshard.core.layouts.model_files import ModelFiles
from reshard.core.layouts.place import Place
from reshard.core.layouts.registry import source_layouts
from reshard.core.layouts.source_layout import TrackedSteps
from reshard.core.layouts.state_numbers import Number
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.files import list_strategy_files, read_listed, storage_errors_as_strategy
from reshard.core.strategy.model import Strategy


def is_document(name: str) -> bool:
    """True for the name of an index, of metadata, or of a whole model's file, which may be named themselves."""
    return any(layout.is_document(name) for layout in source_layouts())


def step_of_directory(name: str) -> Step | None:
    """Return the step in the name of a conversion's directory, such as `10_5`; None for any other name."""
    steps = (layout.step_of(name) for layout in source_layouts())
    return next((step for step in steps if step is not None), None)


def tracked_steps(root: Location, names: Sequence[str]) -> TrackedSteps | None:
    """Return the steps in a directory with these names, of a layout with a tracker; None if it has none."""
    found = (layout.tracked_steps(root, names) for layout in source_layouts())
    return next((steps for steps in found if steps is not None), None)


def notes_beside(root: Location, names: Sequence[str]) -> tuple[str, ...]:
    """Return notes on checkpoints that lie beside the whole tensors of a directory, which has these names as well.

    Raises:
        StorageError: the storage does not answer.
    """
    notes = (layout.note_beside(root, names) for layout in source_layouts())
    return tuple(note for note in notes if note)


def model_files_in(place: Place) -> ModelFiles | None:
    """Return the files of weights of a model's directory, as loaders of Hugging Face's pick them; None without any.

    Raises:
        CatalogError: their index is damaged.
        StorageError: the storage does not answer.
    """
    found = (layout.model_files(place) for layout in source_layouts())
    return next((files for files in found if files is not None), None)


def numbers_beside(catalog: CheckpointCatalog) -> Mapping[str, Number] | None:
    """Return the numbers of a training's state beside the files of a catalog; None if there are none.

    Raises:
        CatalogError: they are damaged.
        StorageError: they cannot be read.
    """
    found = (layout.numbers_beside(catalog) for layout in source_layouts())
    return next((numbers for numbers in found if numbers is not None), None)


def read_any_strategy(url: str) -> Strategy:
    """Read the strategy in a file, a directory of strategy files, or the metadata of a checkpoint or its directory.

    Raises:
        StrategyError: a file is missing, empty, no strategy or inconsistent; or the files of a directory do not form
            one strategy. Names the files.
    """
    location = parse_url(url)
    with storage_errors_as_strategy(location):
        files = list_strategy_files(location)
        names = None if files is None else [file.name for file in files]
        for layout in source_layouts():
            if (strategy := layout.read_strategy(location, names)) is not None:
                return strategy
        return read_listed(location, files)

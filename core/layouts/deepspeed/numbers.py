"""Numbers of the training in a rank's file of the optimizer: how many steps it has made."""

from collections.abc import Iterator, Mapping
from contextlib import closing

from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files.torch_file import read_torch_file
from reshard.core.layouts.deepspeed.fields import read_fields
from reshard.core.layouts.deepspeed.names import FileKind, parse_rank_name
from reshard.core.layouts.state_numbers import OPTIMIZER_STEP, Number, read_number
from reshard.core.runtime.pickled import Pairs
from reshard.core.storage.listing import names_in
from reshard.core.storage.reading import SourceFile, open_source
from reshard.core.storage.urls import Location

_ROOT, _STATES, _STEP = "optimizer_state_dict", ("base_optimizer_state", "optimizer_state_dict"), "step"
_ELASTIC = "base_optimizer_state_step"


def optimizer_numbers(directory: Location) -> Mapping[str, Number]:
    """Return the step in the first rank's file of the optimizer; empty if it says none, or several.

    Raises:
        CatalogError: the file is damaged.
        StorageError: it cannot be read.
    """
    parsed = [each for name in names_in(directory) if (each := parse_rank_name(name)) is not None]
    files = [each.name for each in sorted(parsed) if each.kind is FileKind.OPTIMIZER]
    if not files:
        return {}
    location = directory.child(files[0])
    try:
        _, fields = read_fields(location, _ROOT)
        inner = fields.below(_ROOT).items
        said = [step for key in _STATES for step in _steps(inner.get(key))]
        said += [inner[_ELASTIC]] if _ELASTIC in inner else []
        with closing(open_source(location)) as file:
            steps = {_number(file, each) for each in said}
    except CheckpointError as error:
        raise CatalogError(error.marked) from error
    return {OPTIMIZER_STEP: steps.pop()} if len(steps) == 1 else {}


def step_in_file(location: Location) -> Number:
    """Return the step that is alone in a file.

    Raises:
        CatalogError: the file is damaged, or holds something else.
        StorageError: it cannot be read.
    """
    try:
        with closing(open_source(location)) as file:
            return _number(file, read_torch_file(file).root)
    except CheckpointError as error:
        raise CatalogError(error.marked) from error


def _steps(value: object) -> Iterator[object]:
    """The steps anywhere below a value."""
    for key, each in value if isinstance(value, Pairs) else ():
        if key == _STEP:
            yield each
        else:
            yield from _steps(each)
    for each in value if isinstance(value, list) else ():
        yield from _steps(each)


def _number(file: SourceFile, value: object) -> Number:
    number = read_number(file, value)
    if number is None:
        raise CheckpointError(f"{file.location}: its optimizer's step is not a number")
    return number

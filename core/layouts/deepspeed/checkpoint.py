"""Opens the files of a tag: what each rank has of the whole model, from their headers alone."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from reshard.core.errors import CatalogError, InputError, LayoutError, raise_problems
from reshard.core.files.remote_index.indexing import workers_on
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.cataloging import joined_errors
from reshard.core.layouts.deepspeed.agreement import agreement_problems
from reshard.core.layouts.deepspeed.flat_groups import FlatParameter, placed
from reshard.core.layouts.deepspeed.model_file import ModelFile, read_model_file
from reshard.core.layouts.deepspeed.optimizer_file import OptimizerFile, read_optimizer_file
from reshard.core.layouts.deepspeed.placing import FlatPlaces, flat_places
from reshard.core.layouts.deepspeed.states import USUAL_KEY, state_keys, state_name
from reshard.core.layouts.deepspeed.tag_files import TagFiles, tag_files
from reshard.core.layouts.deepspeed.tags import Tag
from reshard.core.layouts.deepspeed.unflattened import Unflattened, unflattened
from reshard.core.layouts.placed_shards import PlacedShard, ShardFile, placed_strategy
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.strategy.model import Strategy

_WORKERS = 8
_MAX_LISTED = 8


class OpenedTag(Record, dict=True):
    """The files of a tag, after their headers were read.

    Attributes:
        models: the files of the model: one, or one for each rank.
        optimizers: the files of the optimizer, by rank; none without ZeRO.
        places: where parameters are in the flat groups.
        files: what each file holds of the whole model.
        states: names of the optimizer's states.
        state_problem: why an optimizer was saved, but is not known by names; empty if it is, or was not saved.
        notes: what is left out.
    """

    origin: str
    models: tuple[ModelFile, ...]
    optimizers: tuple[OptimizerFile, ...]
    places: FlatPlaces
    files: tuple[ShardFile, ...]
    states: tuple[str, ...]
    state_problem: str
    notes: tuple[str, ...]

    @property
    def model(self) -> ModelFile:
        """The first rank's file of the model."""
        return self.models[0]

    @property
    def stage(self) -> int:
        """The stage of ZeRO; 0 without it."""
        if not self.optimizers:
            return 0
        return self.optimizers[0].stage or 1

    @cached_property
    def strategy(self) -> Strategy:
        """The boxes of all parameters over the parts of the files."""
        return placed_strategy(self.files, self.origin)

    @property
    def names(self) -> list[str]:
        """The names of all parameters and of all states."""
        return list(dict.fromkeys((*(shard.name for file in self.files for shard in file.shards), *self.states)))


def open_tag(tag: Tag) -> OpenedTag:
    """Read the headers of all files of a tag.

    Raises:
        CatalogError: files are missing, or contradict each other; lists all of it.
        CheckpointError: one file is unusable.
        StorageError: a transient failure of the storage.
    """
    try:
        names = tag_files(tag.names)
    except LayoutError as error:
        raise CatalogError(f"{tag.location}: {error.marked}") from error
    models, optimizers = _read(tag, names)
    headline = f"{tag.location}: its files are not of one save"
    raise_problems(CatalogError, headline, agreement_problems(models, optimizers, is_partitioned=names.is_partitioned))
    try:
        places = flat_places(models[0], optimizers, is_partitioned=names.is_partitioned)
    except LayoutError as error:
        raise CatalogError(f"{tag.location}: {error.marked}") from error
    others = unflattened(tag.location, models, places.parameters, is_partitioned=names.is_partitioned)
    keys, state_problem = state_keys(places, optimizers)
    return OpenedTag(
        tag.url,
        models,
        optimizers,
        places,
        _files(models, optimizers, _shards(others, places, optimizers, keys)),
        tuple(_state_names(places, keys, state_problem)),
        state_problem,
        (*others.notes, *_notes(models[0], optimizers)),
    )


_Shards = dict[str, list[PlacedShard]]
"""Path of a file -> what it has."""
_Keys = Mapping[int, tuple[str, ...]]
"""Group -> the keys of its states."""


def _shards(others: Unflattened, places: FlatPlaces, optimizers: Sequence[OptimizerFile], keys: _Keys) -> _Shards:
    """What all files have: what is in no flat group, then masters and states, parameter by parameter."""
    found: _Shards = {}
    for path, shard in others.shards:
        found.setdefault(path, []).append(shard)
    paths = [file.file.path for file in optimizers]

    def place(name: str, parameter: FlatParameter, parts: Sequence[StoredTensor]) -> None:
        for rank, shard in placed(name, parameter, parts):
            found.setdefault(paths[rank], []).append(shard)

    for parameter in places.parameters:
        ranks = [file.groups[parameter.group] for file in optimizers]
        for name in (parameter.name, *others.tied.get(parameter.name, ())):
            place(name, parameter, [rank.master for rank in ranks])
        for key in keys.get(parameter.group, ()):
            place(state_name(key, parameter.name), parameter, [rank.states[key] for rank in ranks])
    return found


def _files(models: Sequence[ModelFile], optimizers: Sequence[OptimizerFile], shards: _Shards) -> tuple[ShardFile, ...]:
    files = [*(each.file for each in models), *(each.file for each in optimizers)]
    return tuple(replace(file, shards=tuple(shards.get(file.path, ()))) for file in files)


def _state_names(places: FlatPlaces, keys: _Keys, problem: str) -> list[str]:
    """The names of all states; if they are not known, those that they would have."""
    return [
        state_name(key, parameter.name)
        for parameter in places.parameters
        for key in ((USUAL_KEY,) if problem else keys.get(parameter.group, ()))
    ]


def _read(tag: Tag, names: TagFiles) -> tuple[tuple[ModelFile, ...], tuple[OptimizerFile, ...]]:
    """The files of the model and of the optimizer, by rank."""
    locations = {name: tag.location.child(name) for name in names.names}
    models = frozenset(names.model)

    def read(name: str) -> ModelFile | OptimizerFile:
        return read_model_file(locations[name]) if name in models else read_optimizer_file(locations[name])

    with workers_on([tag.location], _WORKERS) as threads:
        outcomes = threads.outcomes(read, names.names)
    errors = [each for each in outcomes if isinstance(each, InputError)]
    if errors:
        raise joined_errors(str(tag.location), errors, len(outcomes))
    return (
        tuple(each for each in outcomes if isinstance(each, ModelFile)),
        tuple(each for each in outcomes if isinstance(each, OptimizerFile)),
    )


def _notes(model: ModelFile, optimizers: Sequence[OptimizerFile]) -> list[str]:
    keys = list(model.left_out)
    if optimizers:
        keys.append("the optimizer's steps, settings and loss scale")
    notes = [f"left out, but for what the target has a place for: {listed(keys, _MAX_LISTED)}"] if keys else []
    if model.others:
        notes.append(f"left out: what is no tensor of the model: {listed(model.others, _MAX_LISTED)}")
    return notes

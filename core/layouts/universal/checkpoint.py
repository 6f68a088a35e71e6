"""Opens the files of a universal checkpoint, DeepSpeed's own or a conversion's, from their headers alone.

DeepSpeed's script makes a row of each tensor of ZeRO 3, whose shape is in the model's state, and leaves frozen
parameters out there. It makes floats of buffers; the model's state has them as they are.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cached_property
from typing import ClassVar

from msgspec.structs import replace

from reshard.core.errors import CatalogError, CheckpointError, InputError, LayoutError, raise_problems
from reshard.core.files.remote_index.indexing import workers_on
from reshard.core.files.torch_file import read_torch_file
from reshard.core.files.torch_views import StoredTensor, reshaped
from reshard.core.layouts.cataloging import joined_errors
from reshard.core.layouts.deepspeed.fields import Fields, read_fields
from reshard.core.layouts.placed_shards import PlacedShard, ShardFile, placed_strategy
from reshard.core.layouts.universal.names import MOMENTS, STATE_FOLDER, STEP, WEIGHT, parse_state, tensor_path
from reshard.core.layouts.universal.tag import UniversalTag
from reshard.core.runtime.pickled import Pairs
from reshard.core.runtime.records import Record
from reshard.core.storage.links import check_links
from reshard.core.storage.listing import find_entries
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.slices import Shape, TensorSlice

_WORKERS = 8
_FILE = re.compile(r"(?P<name>[^/]+)/(?P<state>[^/]+)\.pt", re.DOTALL)
_INERT = ("sub_param_shape",)
_KEYS = ("module", "buffer_names", "param_shapes", "frozen_param_shapes", "shared_params")

_Places = Mapping[str, Mapping[str, Location]]
"""State, or that it is the weight -> the files, by the name of the parameter."""


class OpenedUniversal(Record, dict=True):
    """A universal checkpoint, after the headers of its files were read.

    Attributes:
        files: what each file holds of the whole model.
        missing: names of parameters that it lists, and does not hold.
    """

    origin: str
    files: tuple[ShardFile, ...]
    missing: tuple[str, ...]

    state_problem: ClassVar[str] = ""
    """Its states always have names."""

    @cached_property
    def strategy(self) -> Strategy:
        """Every tensor is whole, in one file."""
        return placed_strategy(self.files, self.origin)

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return [shard.name for file in self.files for shard in file.shards]

    @property
    def states(self) -> list[str]:
        """The names of the optimizer's states."""
        return [name for name in self.names if parse_state(name)[0]]


class _ModelState(Record):
    """What the model's state says.

    Attributes:
        shapes: of the parameters that are trained.
        module: tensors that are not among them.
        absent: names of others that are nowhere.
        tied: another name -> the parameter.
    """

    file: ShardFile
    shapes: Mapping[str, Shape]
    module: Mapping[str, StoredTensor]
    absent: frozenset[str]
    tied: Mapping[str, str]


def open_universal(tag: UniversalTag) -> OpenedUniversal:
    """Read the headers of all files.

    Raises:
        CatalogError: several files are unusable, some are missing, or there are none.
        CheckpointError: one file is unusable.
        StorageError: a transient failure of the storage.
    """
    state = _model_state(tag.location.child(tag.model_names[0]), has_slices=tag.has_slices)
    by_state = _tensor_files(tag.location)
    places = _by_name(by_state)
    if not places:
        raise CatalogError(f"{tag.location}: has no tensors in {STATE_FOLDER}")
    headline = f"{tag.location}: its files are not complete"
    raise_problems(CatalogError, headline, [*_missing(by_state), *_unlisted(tag.location, by_state)])
    check_links(tag.location, places.values())
    tied = {name: other for name, other in state.tied.items() if name not in places and other in places}
    aliases: dict[str, list[str]] = {}
    for name, other in tied.items():
        aliases.setdefault(other, []).append(name)
    beside = {name for name, stored in state.module.items() if not stored.dtype.is_float or name not in places}
    beside -= tied.keys()
    wanted = {name: location for name, location in places.items() if name not in beside}

    def read(name: str) -> ShardFile:
        opened = _read(tag.location, wanted[name], name, state.shapes)
        return _with(
            opened, (*opened.shards, *(replace(opened.shards[0], name=each) for each in aliases.get(name, ())))
        )

    with workers_on([tag.location], _WORKERS) as threads:
        outcomes = threads.outcomes(read, list(wanted))
    errors = [each for each in outcomes if isinstance(each, InputError)]
    if errors:
        raise joined_errors(str(tag.location), errors, len(outcomes))
    files = [each for each in outcomes if isinstance(each, ShardFile)]
    shapes = {shard.name: shard.shape for file in files for shard in file.shards}
    raise_problems(CatalogError, f"{tag.location}: its files contradict each other", list(_misfits(by_state, shapes)))
    missing = (state.absent | state.shapes.keys()) - places.keys() - beside - tied.keys()
    module = tuple(PlacedShard.whole(name, state.module[name]) for name in sorted(beside - missing))
    opened = (*files, *([_with(state.file, module)] if module else []))
    return OpenedUniversal(tag.url, opened, tuple(sorted(missing)))


def _tensor_files(location: Location) -> _Places:
    """The files of tensors: weights first, then their states."""
    folder = location.child(STATE_FOLDER)
    found: dict[str, dict[str, Location]] = {WEIGHT: {}}
    for path in find_entries(folder):
        match = _FILE.fullmatch(path[len(folder.path) + 1 :])
        if match is not None and match["state"] != STEP:
            found.setdefault(match["state"], {})[match["name"]] = Location(folder.store, path)
    return {state: found[state] for state in sorted(found, key=lambda state: (state != WEIGHT, state))}


def _by_name(places: _Places) -> dict[str, Location]:
    """The file of each tensor, by the tensor's name."""
    return {_name_of(state, name): place for state, files in places.items() for name, place in files.items()}


def _name_of(state: str, name: str) -> str:
    return name if state == WEIGHT else f"{state}.{name}"


def _missing(places: _Places) -> Iterator[str]:
    """Yield which files are missing beside others of their parameters."""
    for state, files in places.items():
        for name in files:
            if name not in places[WEIGHT]:
                yield f"{tensor_path(name, state)} is there, and not {tensor_path(name, WEIGHT)}"
    first, second = (places.get(moment, {}) for moment in MOMENTS)
    if first and second:
        for name in sorted(first.keys() ^ second.keys()):
            there, gone = MOMENTS if name in first else reversed(MOMENTS)
            yield f"{tensor_path(name, there)} is there, and not {tensor_path(name, gone)}"


def _unlisted(location: Location, places: _Places) -> Iterator[str]:
    """Yield which files a conversion wrote that are gone, by its own records."""
    from reshard.core.layouts.manifests import read_manifest

    manifest = read_manifest(location)
    there = {tensor_path(name, state) for state, files in places.items() for name in files}
    for rank in manifest.ranks if manifest is not None else ():
        match = _FILE.fullmatch(rank.file.removeprefix(f"{STATE_FOLDER}/"))
        if match is not None and match["state"] != STEP and rank.file not in there:
            yield f"{rank.file} is missing"


def _misfits(places: _Places, shapes: Mapping[str, Shape]) -> Iterator[str]:
    """Yield which moments have other shapes than their weights."""
    for moment in MOMENTS:
        for name in places.get(moment, ()):
            own, weight = shapes.get(_name_of(moment, name)), shapes.get(name)
            if own is not None and weight is not None and own != weight:
                yield (
                    f"{tensor_path(name, moment)} has the shape {list(own)}, {tensor_path(name, WEIGHT)} {list(weight)}"
                )


def _model_state(location: Location, *, has_slices: bool) -> _ModelState:
    """What a file of the model's state says; with `has_slices` its tensors are one rank's, but for buffers."""
    file, fields = read_fields(location, *_KEYS)
    if "module" not in fields.items:
        raise CheckpointError(f"{location}: has no 'module': it is not DeepSpeed's file of a model's state")
    module = fields.below("module").items if fields.items["module"] is not None else {}
    shapes = dict(_shapes(fields))
    frozen = fields.items.get("frozen_param_shapes")
    is_left_out = (
        {} if frozen is None or not _is_partitioned(location) else fields.shapes(frozen, "frozen_param_shapes")
    )
    others = {
        name: value
        for name, value in module.items()
        if isinstance(value, StoredTensor) and name not in shapes and name not in is_left_out
    }
    slices = others.keys() - _buffers(fields) if has_slices else set[str]()
    whole = {name: value for name, value in others.items() if name not in slices}
    return _ModelState(file, shapes, whole, frozenset(slices.union(is_left_out)), dict(_tied(fields)))


def _buffers(fields: Fields) -> set[str]:
    if fields.items.get("buffer_names") is None:
        return set()
    return {name for name in fields.list("buffer_names") if isinstance(name, str)}


def _tied(fields: Fields) -> Iterator[tuple[str, str]]:
    if fields.items.get("shared_params") is not None:
        for name, other in fields.below("shared_params").items.items():
            if not isinstance(other, str):
                raise fields.refusal("shared_params", "not names of parameters")
            yield name, other


def _is_partitioned(location: Location) -> bool:
    return location.name.startswith("zero_pp_rank_")


def _shapes(fields: Fields) -> Iterator[tuple[str, Shape]]:
    if fields.items.get("param_shapes") is not None:
        for group in fields.list("param_shapes"):
            yield from fields.shapes(group, "param_shapes").items()


def _read(root: Location, location: Location, name: str, shapes: Mapping[str, Shape]) -> ShardFile:
    """The file of a tensor, which is alone, or in a dict."""
    path = location.path[len(root.path) + 1 :]
    with closing(open_source(location)) as file:
        value = read_torch_file(file, inert=_INERT).root
        opened = ShardFile(path, str(location), file.size_bytes, file.version, ())
    if isinstance(value, Pairs):
        stored = dict(value).get("param")
    else:
        stored = value
        parameter = path.split("/")[1]
        if isinstance(stored, StoredTensor) and parameter in shapes:
            try:
                stored = _shaped(stored, shapes[parameter])
            except LayoutError as error:
                raise CheckpointError(f"{location}: parameter {name!r}: {error.marked}") from error
    if not isinstance(stored, StoredTensor):
        raise CheckpointError(f"{location}: has no tensor")
    return _with(opened, (PlacedShard.whole(name, stored),))


def _shaped(stored: StoredTensor, shape: Shape) -> StoredTensor:
    if TensorSlice.whole(stored.shape).size != TensorSlice.whole(shape).size:
        raise LayoutError(f"its shape is {list(shape)}, and it has {TensorSlice.whole(stored.shape).size} elements")
    return reshaped(stored, shape)


def _with(file: ShardFile, shards: tuple[PlacedShard, ...]) -> ShardFile:
    return ShardFile(file.path, file.location, file.size_bytes, file.version, shards)

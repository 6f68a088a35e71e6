"""What of a model is in no flat group: buffers, frozen parameters, and other names of tied ones.

Stages 1 and 2 have all of it whole in the file of the model, stage 3 buffers only: of frozen parameters each rank has
a part, and of tied ones there is an empty tensor, which is in the same storage as the parameter's.
"""

from collections.abc import Iterator, Mapping, Sequence

from reshard.core.errors import CatalogError, raise_problems
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.deepspeed.flat_groups import FlatParameter, partitioned, placed, share_length
from reshard.core.layouts.deepspeed.model_file import ModelFile
from reshard.core.layouts.placed_shards import PlacedShard
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.urls import Location
from reshard.core.tensor.slices import Shape

_MAX_LISTED = 6


class Unflattened(Record):
    """What is in no flat group.

    Attributes:
        shards: each with the path of its file.
        tied: name of a parameter in a flat group -> its other names.
        notes: what of it may be doubted.
    """

    shards: tuple[tuple[str, PlacedShard], ...]
    tied: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


def unflattened(
    location: Location, models: Sequence[ModelFile], parameters: Sequence[FlatParameter], *, is_partitioned: bool
) -> Unflattened:
    """Return what of a model is in no flat group.

    Raises:
        CatalogError: what a name is, or where its values are, is in no file; or a shape contradicts the group's.
    """
    flat = {parameter.name: parameter.shape for parameter in parameters}
    model = models[0]
    tied: dict[str, list[str]] = {}
    shards: list[tuple[str, PlacedShard]] = []
    problems: list[str] = []
    frozen = model.frozen or {}
    owners = _owners(model, [*flat, *frozen])
    for name in dict.fromkeys((*model.module, *model.tied, *frozen)):
        tensor = model.module.get(name)
        owner = owners.get(name, name)
        if owner in flat:
            if owner != name:
                tied.setdefault(owner, []).append(name)
            if tensor is not None and not is_partitioned and tensor.shape != flat[owner]:
                problems.append(f"{name!r} has the shape {list(tensor.shape)}, its group says {list(flat[owner])}")
        elif is_partitioned and owner in frozen:
            found, problem = _joined_fragments(models, name, owner, frozen[owner])
            shards += found
            problems += [problem] if problem else []
        elif is_partitioned and name not in model.buffers:
            problems.append(f"{name!r} is empty in {model.file.path}, and in no group of parameters")
        else:
            stored = tensor or model.fragments.get(owner)
            if stored is None:
                problems.append(f"{name!r} is listed in {model.file.path}, and not in it")
            elif owner in frozen and stored.shape != frozen[owner]:
                problems.append(f"{name!r} has the shape {list(stored.shape)}, listed is {list(frozen[owner])}")
            else:
                shards.append((model.file.path, PlacedShard.whole(name, stored)))
    raise_problems(CatalogError, f"{location}: its model is not complete", problems)
    return Unflattened(tuple(shards), {name: tuple(others) for name, others in tied.items()}, tuple(_notes(models)))


def _owners(model: ModelFile, names: Sequence[str]) -> dict[str, str]:
    """Other names of tied parameters -> the name of the parameter: as said, or as their storages show."""
    places: dict[object, list[str]] = {}
    for name in names:
        if (tensor := model.module.get(name)) is not None:
            places.setdefault(_place_of(tensor), []).append(name)
    found: dict[str, str] = {}
    known = frozenset(names)
    for name, tensor in model.module.items():
        there = places.get(_place_of(tensor), [])
        if name not in known and name not in model.buffers and len(there) == 1:
            found[name] = there[0]
    return found | {name: owner for name, owner in model.tied.items() if name not in known}


def _place_of(tensor: StoredTensor) -> object:
    return tensor.extent, tensor.strided, tensor.shape, tensor.dtype.name


def _joined_fragments(
    models: Sequence[ModelFile], name: str, owner: str, shape: Shape
) -> tuple[list[tuple[str, PlacedShard]], str]:
    """The shards of a frozen parameter in stage 3; or none, and why."""
    parameter, length = partitioned(owner, shape, len(models)), share_length(shape, len(models))
    parts = []
    for model in models:
        part = model.fragments.get(owner)
        if part is None or part.extent is None or part.shape != (length,):
            shown = "nothing" if part is None else str(list(part.shape))
            return [], f"{owner!r}, {list(shape)}, has {shown} in {model.file.path}, not {length} elements"
        parts.append(part)
    dtypes = sorted({part.dtype.name for part in parts})
    if len(dtypes) > 1:
        return [], f"{owner!r} has parts of different dtypes, {listed(dtypes)}"
    return [(models[rank].file.path, shard) for rank, shard in placed(name, parameter, parts)], ""


def _notes(models: Sequence[ModelFile]) -> Iterator[str]:
    """Buffers that are not the same on all ranks: those of the first are taken."""
    model = models[0]
    differing = [
        name for name in sorted(model.buffers) if len({_content(each.module.get(name)) for each in models}) > 1
    ]
    if differing:
        yield f"buffers that ranks have of their own, those of rank 0 are taken: {listed(differing, _MAX_LISTED)}"


def _content(tensor: StoredTensor | None) -> object:
    if tensor is None or tensor.crc is None:
        return None
    return tensor.crc.crc, tensor.shape

"""The proof by values that a rank's file is what its name says, and that parameters are where their shapes put them.

In stages 1 and 2 the model's file has all parameters, which are the masters, rounded. If files say where each parameter
is, a few samples of each rank are compared with it: they tell a file of another save, and one that was copied over
another. If files do not say it, all masters are compared.

Stage 3 has no parameters beside its masters: there two ranks whose masters are the same, bit for bit, are refused.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing

from msgspec.structs import replace

from reshard.core.errors import CatalogError
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.deepspeed.checkpoint import OpenedTag
from reshard.core.layouts.deepspeed.flat_groups import FlatParameter, Piece
from reshard.core.layouts.deepspeed.optimizer_file import FlatGroup, OptimizerFile
from reshard.core.layouts.placed_shards import ShardFile
from reshard.core.layouts.rounded_masters import MasterFile, MasterPair, StoredFile, differing_masters
from reshard.core.storage.reading import open_source, read_bytes
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.slices import Extent

_SAMPLES = 4
_SAMPLE_ELEMENTS = 1 << 14
_MAX_COMPARED_BYTES = 1 << 20
_Place = tuple[FlatParameter, Piece]


def check_masters(opened: OpenedTag, workers: int) -> None:
    """Compare masters with the model, or with those of other ranks.

    Raises:
        CatalogError: they are not those of their ranks, or not where the shapes of parameters put them.
        StorageError: a file cannot be read.
    """
    _check_no_copies(opened.optimizers)
    if len(opened.models) > 1 or opened.stage == 3:
        return
    unproven = opened.places.unproven
    differing = differing_masters(list(_master_files(opened, wants_all=bool(unproven))), workers)
    if differing is None:
        return
    file, name = differing
    headline = f"{file.masters.location}: its master of {name!r} is not what {opened.model.file.path} has of it"
    if unproven:
        raise CatalogError(
            f"{headline}, and {unproven}: so the order of its parameters is not known. Load it in its training, and "
            "save it again with a newer DeepSpeed"
        )
    raise CatalogError(
        f"{headline}: the two are of different saves, or one was copied over another file. Restore the files of one "
        "save"
    )


def _master_files(opened: OpenedTag, *, wants_all: bool) -> Iterator[MasterFile]:
    model = opened.model
    of_rank: list[list[_Place]] = [[] for _ in opened.optimizers]
    for parameter in opened.places.parameters:
        for piece in parameter.pieces:
            of_rank[piece.rank].append((parameter, piece))
    for file, places in zip(opened.optimizers, of_rank, strict=True):
        chosen = places if wants_all else [_shortened(place) for place in _samples(places)]
        pairs = [
            MasterPair(
                parameter.name,
                _run(file.groups[parameter.group].master, piece.offset, piece.stop - piece.start),
                _run(model.module[parameter.name], piece.start, piece.stop - piece.start),
            )
            for parameter, piece in chosen
            if wants_all or parameter.name in model.module
        ]
        yield MasterFile(_stored(file.file), _stored(model.file), tuple(pairs))


def _samples(places: Sequence[_Place]) -> list[_Place]:
    """The places of the longest pieces."""
    return sorted(places, key=lambda place: place[1].start - place[1].stop)[:_SAMPLES]


def _shortened(place: _Place) -> _Place:
    """The middle of a piece: the first rows of an embedding are often of words that training never met."""
    parameter, piece = place
    start = piece.start + max(piece.stop - piece.start - _SAMPLE_ELEMENTS, 0) // 2
    stop = min(start + _SAMPLE_ELEMENTS, piece.stop)
    return parameter, replace(piece, offset=piece.offset + start - piece.start, start=start, stop=stop)


def _run(tensor: StoredTensor, start: int, count: int) -> StoredTensor:
    if tensor.extent is None:
        return tensor
    item = tensor.dtype.itemsize
    return replace(tensor, shape=(count,), extent=Extent(tensor.extent.offset + start * item, count * item))


def _stored(file: ShardFile) -> StoredFile:
    return StoredFile(file.location, file.version)


def _check_no_copies(optimizers: Sequence[OptimizerFile]) -> None:
    """Refuse two ranks with the same masters and states: training leaves no two parts of a model alike.

    Rows of one value may be equal, such as the padding of all ranks but the first of a tiny model.
    """
    seen: dict[object, OptimizerFile] = {}
    for file in optimizers:
        key = tuple(_crcs(group) for group in file.groups)
        other = seen.setdefault(key, file)
        if other is not file and None not in key and any(_varies(file, group.master) for group in file.groups):
            raise CatalogError(
                f"{file.file.location}: is the same as {other.file.path}, byte for byte, though they are of two ranks: "
                "one was copied over the other. Restore it"
            )


def _crcs(group: FlatGroup) -> object:
    """The CRCs of all rows of a group; None if one has none."""
    rows = [group.master, *group.states.values()]
    crcs = [row.crc for row in rows if 0 not in row.shape]
    return None if None in crcs else tuple(crc.crc for crc in crcs if crc)


def _varies(file: OptimizerFile, row: StoredTensor) -> bool:
    """True if the beginning of a row has different values."""
    if row.extent is None or not row.extent.length:
        return False
    item = row.dtype.itemsize
    count = min(row.extent.length, _MAX_COMPARED_BYTES) // item
    with closing(open_source(parse_url(file.file.location), file.file.version)) as source:
        data = bytes(read_bytes(source, row.extent.offset, count * item))
    return data != data[:item] * count

"""Tensors that torch.save wrote, found by their headers: each a zip archive of its own in a part of a file.

    {prefix}/data.pkl     _rebuild_tensor_v2(storage, storage_offset, size, stride, …): a pickle, read as data
    {prefix}/data/0       the storage's bytes, uncompressed
    {prefix}/byteorder    little
    {prefix}/version, .format_version, .storage_alignment, .data/serialization_id

Offsets in an archive count from its first byte. Its directory is at its end; the headers before the records may lack
their sizes, which then follow the record. A tensor is a view of its storage, with strides of its own: a transposed one
is stored as it was before. Every record has a CRC-32 in the directory; it is 0 if torch's
`set_crc32_options` turned the computation off.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from reshard.core.errors import CheckpointError
from reshard.core.files.crc32 import crc32
from reshard.core.files.model import StoredCrc
from reshard.core.files.remote_reads import read_in_blocks
from reshard.core.files.torch_views import PARAMETER, TENSOR_NAMES, StoredTensor, TensorView, parse_view
from reshard.core.files.zip_records import Archive, Window
from reshard.core.runtime.pickled import PickledObject, PickleError, read_pickle
from reshard.core.storage.reading import SourceFile
from reshard.core.tensor.slices import Extent

_HEAD_BYTES, _TAIL_BYTES = 2048, 1024
"""Room around the data in a tensor's archive: 700 bytes precede it, 800 follow."""
_MAX_DIRECTORY_BYTES = 1 << 16
_MAX_PICKLE_BYTES = 1 << 16
_MAX_RECORDS = 64
_BLOCK_BYTES = 4 << 20


def read_stored_tensors(file: SourceFile, archives: Sequence[Extent]) -> list[StoredTensor]:
    """Find the tensors in archives of a file, from their headers alone.

    Raises:
        CheckpointError: one is damaged, compressed, or no tensor; names the file and the byte where it begins.
        StorageError: the file cannot be read.
    """
    found = []
    window = Window(file, _ends(archives))
    for archive in archives:
        try:
            found.append(_read_tensor(window, archive))
        except (CheckpointError, PickleError) as error:
            raise CheckpointError(f"{file.location}: the archive at byte {archive.offset}: {error}") from None
    return found


def check_crcs(file: SourceFile, crcs: Mapping[str, StoredCrc], advance: Callable[[int], None]) -> None:
    """Read the storages of tensors, by name, and compare their CRC-32; `advance` is given the bytes of each block.

    Raises:
        CheckpointError: one is damaged; names the file, the tensor and its first byte.
        StorageError: the file cannot be read.
    """
    wanted = sorted(crcs.items(), key=lambda item: item[1].extent.offset)
    actual = [0] * len(wanted)
    for number, block in read_in_blocks(
        file, [(stored.extent.offset, stored.extent.length) for _, stored in wanted], _BLOCK_BYTES
    ):
        actual[number] = crc32(block, actual[number])
        advance(len(block))
    for (name, stored), found in zip(wanted, actual, strict=True):
        if found != stored.crc:
            raise CheckpointError(crc_problem(str(file.location), name, stored, found))


def crc_problem(origin: str, name: str, stored: StoredCrc, actual: int) -> str:
    """Return what is wrong with a tensor whose bytes have another CRC-32."""
    return (
        f"{origin}: parameter {name!r}: its {stored.extent.length} bytes at {stored.extent.offset} have the CRC-32 "
        f"{actual:#010x}, the file says {stored.crc:#010x}: damaged"
    )


def _ends(archives: Sequence[Extent]) -> set[Extent]:
    """The heads and tails of archives."""
    return {
        end
        for each in archives
        for end in (
            Extent(each.offset, min(_HEAD_BYTES, each.length)),
            Extent(each.offset + max(0, each.length - _TAIL_BYTES), min(_TAIL_BYTES, each.length)),
        )
    }


def _read_tensor(window: Window, extent: Extent) -> StoredTensor:
    archive = Archive(window, extent, max_records=_MAX_RECORDS, max_directory_bytes=_MAX_DIRECTORY_BYTES)
    pickle = archive.only("data.pkl")
    prefix = pickle.removesuffix("data.pkl")
    archive.check_byteorder(prefix)
    view = _parse_pickle(archive.content(pickle, _MAX_PICKLE_BYTES))
    name = f"{prefix}data/{view.key}"
    return view.placed(archive.in_file(name), archive.records[name].crc)


@lru_cache(maxsize=4096)
def _parse_pickle(data: bytes) -> TensorView:
    # tensors of one shape have the same pickle: layers repeat, and so do ranks
    record = read_pickle(data, TENSOR_NAMES)
    if isinstance(record, PickledObject) and record.made_by == PARAMETER and record.arguments:
        record = record.arguments[0]
    return parse_view(record)

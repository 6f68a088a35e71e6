"""Builds the catalog of a DCP checkpoint: opens its files, and compares each tensor's header with the metadata."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.checkpoint.dense_view import place_strided
from reshard.core.checkpoint.shared_bytes import Piece, shared_text
from reshard.core.errors import CatalogError, CheckpointError, InputError
from reshard.core.files import safetensors, torch_zip
from reshard.core.files.any_format import read_index
from reshard.core.files.model import CheckpointFormat, FileIndex, StridedContent, TensorEntry
from reshard.core.files.remote_index.indexing import workers_on
from reshard.core.files.remote_reads import WholeFiles
from reshard.core.files.torch_views import StoredTensor
from reshard.core.files.zip_layout import LOCAL_START
from reshard.core.layouts.dcp.checkpoint import DcpCheckpoint, FilePart
from reshard.core.layouts.dcp.metadata import Chunk, ListedTensor, Place
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME
from reshard.core.layouts.source_layout import CatalogOptions
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.wording import listed
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.reading import SourceFile, open_source, read_bytes
from reshard.core.tensor.dtypes import DType, foreign_dtype
from reshard.core.tensor.slices import Extent, Shape
from reshard.core.text.printing import listed_lines

_MAX_ERRORS = 20
_MAX_NAMES = 6
_SAFETENSORS_SUFFIX = ".safetensors"
_UNREAD = -1
"""The owner of bytes that are not read; other owners are numbers of chunks."""


def dcp_catalog(checkpoint: DcpCheckpoint, options: CatalogOptions) -> CheckpointCatalog:
    """Catalog the files of a DCP checkpoint.

    Raises:
        CatalogError: files are missing, or several are unusable or contradict the metadata.
        CheckpointError: one file is unusable, or contradicts the metadata.
        StorageError: a transient failure of the storage.
    """
    there = frozenset(checkpoint.names)
    _check_none_missing(checkpoint, [path for path in checkpoint.paths if "/" not in path and path not in there])
    reader = _FileReader(checkpoint, check_crc=options.check_crc, crc_later=options.crc_later)
    locations = [checkpoint.location.child(path) for path in checkpoint.paths]
    with workers_on(locations, options.workers) as threads:
        found = threads.outcomes(lambda path: unless_missing(lambda: reader.read(path)), checkpoint.paths)
    outcomes = dict(zip(checkpoint.paths, found, strict=True))
    _check_none_missing(checkpoint, [path for path, outcome in outcomes.items() if outcome is None])
    errors = [outcome for outcome in outcomes.values() if isinstance(outcome, InputError)]
    if errors:
        raise _joined(checkpoint.url, errors)
    read_records = [record for outcome in outcomes.values() if isinstance(outcome, list) for record in outcome]
    records = {rank: _numbered(record, rank) for rank, record in enumerate(read_records)}
    step = None if checkpoint.step is None else str(checkpoint.step)
    return CheckpointCatalog(
        checkpoint.url,
        CheckpointFormat.SAFETENSORS,
        step,
        records,
        checkpoint.notes,
        state_paths=checkpoint.metadata.paths,
    )


class _FileReader:
    """Reads the records of files, in many threads, and checks the CRCs of their tensors."""

    def __init__(self, checkpoint: DcpCheckpoint, *, check_crc: bool, crc_later: bool) -> None:
        self._checkpoint = checkpoint
        self._keeps_crcs = check_crc
        self._crc_later = crc_later
        self._parts: dict[str, list[FilePart]] = {path: [] for path in checkpoint.paths}
        for part in checkpoint.parts:
            self._parts[part.path].append(part)
        self._objects: dict[str, dict[str, Place]] = {path: {} for path in checkpoint.paths}
        for name, place in checkpoint.metadata.objects.items():
            self._objects[place.path][name] = place
        self._whole_files = WholeFiles()
        self._progress = current_progress()
        checks_now = check_crc and not crc_later
        self._checked_bytes = {path: _crc_bytes(path, parts) for path, parts in self._parts.items() if checks_now}
        if any(self._checked_bytes.values()):
            self._progress.begin("checking CRCs", sum(self._checked_bytes.values()))

    def read(self, path: str) -> list[CatalogRecord]:
        """The records of a file's parts, their ranks not yet known."""
        with closing(open_source(self._checkpoint.location.child(path))) as file:
            _check_objects(file, self._objects[path])
            records = _read_file(self._checkpoint, path, file, self._parts[path], has_crcs=self._keeps_crcs)
            return records if self._crc_later else self._checked(file, path, records)

    def _checked(self, file: SourceFile, path: str, records: Sequence[CatalogRecord]) -> list[CatalogRecord]:
        """The records of a file after its CRCs were checked, without them."""
        contents = 0
        for record in records:
            # parts of one chunk share a CRC
            crcs = {name: crc for crc, name in {crc: name for name, crc in record.index.crcs.items()}.items()}
            with self._whole_files.room_for(file):
                torch_zip.check_crcs(file, crcs, self._progress.advance)
            contents += sum(stored.extent.length for stored in crcs.values())
        # what archives have around contents
        self._progress.advance(self._checked_bytes.get(path, 0) - contents)
        return [replace(record, index=replace(record.index, crcs={})) for record in records]


def _crc_bytes(path: str, parts: Sequence[FilePart]) -> int:
    """The bytes of a file that are read to check CRCs; safetensors files have none."""
    if path.endswith(_SAFETENSORS_SUFFIX):
        return 0
    return sum(max(chunk.place.length, 0) for part in parts for chunk in part.chunks.values())


def _check_none_missing(checkpoint: DcpCheckpoint, missing: Sequence[str]) -> None:
    """Refuse missing files: those that a listing lacks before thousands of others are opened."""
    if missing:
        raise CatalogError(
            f"{checkpoint.url}: files that {DCP_METADATA_NAME} lists are missing: {listed(missing, _MAX_NAMES)}. Get "
            "them as well: DCP saves each slice once"
        )


def _numbered(record: CatalogRecord, rank: int) -> CatalogRecord:
    return CatalogRecord(rank, record.location, record.size_bytes, record.version, record.index)


def _read_file(
    checkpoint: DcpCheckpoint, path: str, file: SourceFile, parts: Sequence[FilePart], *, has_crcs: bool
) -> list[CatalogRecord]:
    """The records of a file's parts, their ranks not yet known; with the CRCs of their tensors if these are wanted."""
    if not parts:
        return []
    found = _stored(checkpoint, path, file, [chunk for part in parts for chunk in part.chunks.values()])
    has_crc = any(each.crc for each in found.values())
    records = []
    for number, part in enumerate(parts):
        index = _index(file, part, checkpoint.metadata.tensors, found)
        # the file is read once to check its CRCs
        crcs = {name: crc for name, chunk in part.chunks.items() if (crc := found[chunk.place].crc)} if has_crcs else {}
        index = replace(index, has_crc=has_crc and number == 0, crcs=crcs)
        records.append(CatalogRecord(0, str(file.location), file.size_bytes, file.version, index))
    return records


def _check_objects(file: SourceFile, objects: Mapping[str, Place]) -> None:
    for name, place in objects.items():
        if place.offset + max(place.length, 0) > file.size_bytes:
            raise CheckpointError(_beyond(file, f"object {name!r}", place))


def _beyond(file: SourceFile, what: str, place: Place) -> str:
    return (
        f"{file.location}: {what}: its {max(place.length, 0)} bytes at {place.offset} end after the file's end at "
        f"{file.size_bytes}: truncated"
    )


def _stored(
    checkpoint: DcpCheckpoint, path: str, file: SourceFile, chunks: Sequence[Chunk]
) -> dict[Place, StoredTensor]:
    """Find the tensors of chunks in their file."""
    for chunk in chunks:
        if chunk.place.offset + max(chunk.place.length, 0) > file.size_bytes:
            raise CheckpointError(_beyond(file, f"parameter {chunk.place.key!r}", chunk.place))
    stored = {(chunk.place, chunk.stored_box) for chunk in chunks}
    places = sorted((place for place, _ in stored), key=lambda place: (place.offset, place.length, place.key))
    known = checkpoint.indexes.get(path)
    if known is not None or path.endswith(_SAFETENSORS_SUFFIX):
        return dict(_in_safetensors(file, known or read_index(file), 0, places))
    if _is_archive(file, places[0]):
        shared = shared_text(_archives(chunks, checkpoint.unread.get(path, ())), partial(_described, chunks))
        if shared:
            raise CheckpointError(f"{file.location}: {shared}: torch gives each its own, so the metadata is damaged")
        extents = [Extent(place.offset, max(place.length, 0)) for place in places]
        return dict(zip(places, torch_zip.read_stored_tensors(file, extents), strict=True))
    found: dict[Place, StoredTensor] = {}
    by_offset: dict[int, list[Place]] = {}
    for place in places:
        by_offset.setdefault(place.offset, []).append(place)
    for offset, here in by_offset.items():
        found |= _in_safetensors(file, safetensors.read_index(_Rest(file, offset)), offset, here)
    return found


def _archives(chunks: Sequence[Chunk], unread: Sequence[Place]) -> Iterator[Piece]:
    """The archives of a file: of chunks that have elements, and of what is not read."""
    for number, chunk in enumerate(chunks):
        if chunk.box.size:
            yield _archive(chunk.place, number)
    for place in unread:
        yield _archive(place, _UNREAD)


def _archive(place: Place, owner: int) -> Piece:
    return Piece(place.offset, place.offset + place.length, owner, place.key)


def _described(chunks: Sequence[Chunk], piece: Piece) -> str:
    what = "which is not read" if piece.owner == _UNREAD else chunks[piece.owner].stored_box
    return f"{piece.name!r}, {what},"


def _is_archive(file: SourceFile, place: Place) -> bool:
    """True for a tensor in an archive of its own; False for one in a safetensors file that begins there.

    A file has tensors of one kind.
    """
    if place.length < len(LOCAL_START):
        return False
    return read_bytes(file, place.offset, len(LOCAL_START)) == LOCAL_START


def _in_safetensors(
    file: SourceFile, index: FileIndex, offset: int, places: Sequence[Place]
) -> Iterator[tuple[Place, StoredTensor]]:
    """The tensors of a safetensors file that begins at a byte of the file."""
    twice = [key for key, count in Counter(place.key for place in places).items() if count > 1]
    if twice:
        raise CheckpointError(
            f"{file.location}: is said to hold several shards of parameter {twice[0]!r}, but a safetensors file has "
            "one tensor of a name: the others were overwritten when it was saved"
        )
    for place in places:
        entry = index.entries.get(place.key)
        if entry is None or not entry.extents:
            raise CheckpointError(f"{file.location}: at byte {offset}: has no tensor {place.key!r}")
        [extent] = entry.extents
        if place.length not in (-1, extent.length):
            raise CheckpointError(
                f"{file.location}: tensor {place.key!r} has {extent.length} bytes, the metadata says {place.length}"
            )
        yield place, StoredTensor(entry.dtype, entry.shape, Extent(offset + extent.offset, extent.length), None)


class _Rest:
    """A file from one of its bytes on."""

    def __init__(self, file: SourceFile, offset: int) -> None:
        self.location = file.location
        self.size_bytes = file.size_bytes - offset
        self.version = file.version
        self._file = file
        self._offset = offset

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._file.read_into(self._offset + offset, buffer)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._file.read_many([(self._offset + offset, length) for offset, length in ranges])

    def close(self) -> None:
        self._file.close()


def _index(
    file: SourceFile, part: FilePart, tensors: Mapping[str, ListedTensor], found: Mapping[Place, StoredTensor]
) -> FileIndex:
    """The index of a part of a file; its tensors must be what the metadata says."""
    entries: dict[str, TensorEntry] = {}
    strided = {}
    for name, chunk in part.chunks.items():
        stored, said = found[chunk.place], tensors[name].dtype
        if stored.shape != chunk.stored_box.shape or (said is not None and stored.dtype is not said):
            raise CheckpointError(
                f"{file.location}: at byte {chunk.place.offset}: parameter {name!r} is {stored.dtype} "
                f"{list(stored.shape)}, the metadata says {said or stored.dtype} {list(chunk.stored_box.shape)}"
            )
        if chunk.part is not None:
            stored = _at(stored, chunk.part.index)
        extents = () if stored.extent is None else (stored.extent,)
        entries[name] = TensorEntry(name, _dtype(stored), stored.shape, extents)
        if stored.strided is not None:
            strided[name] = stored.strided
    for name, extent in place_strided([entries[name] for name in strided], file.size_bytes).items():
        entries[name] = TensorEntry(name, entries[name].dtype, entries[name].shape, (extent,))
    return FileIndex(CheckpointFormat.SAFETENSORS, file.size_bytes, entries, strided=strided)


def _at(stored: StoredTensor, index: Shape) -> StoredTensor:
    """The tensor at an index along the first axes of a stored one, without these axes."""
    axes = len(index)
    shape = stored.shape[axes:]
    if stored.strided is not None:
        strides = stored.strided.strides
        offset = stored.strided.offset + sum(low * stride for low, stride in zip(index, strides, strict=False))
        return replace(stored, shape=shape, strided=StridedContent(offset, strides[axes:]))
    assert stored.extent is not None
    length = math.prod(shape) * stored.dtype.itemsize
    number = sum(low * math.prod(stored.shape[axis + 1 : axes]) for axis, low in enumerate(index))
    return replace(stored, shape=shape, extent=Extent(stored.extent.offset + number * length, length))


def _dtype(stored: StoredTensor) -> DType:
    """The dtype of a tensor; a foreign one if the stored bytes are not its values."""
    if not stored.is_lazy:
        return stored.dtype
    return foreign_dtype(f"conjugated or negated {stored.dtype}", 1, stored.dtype.itemsize)


def _joined(url: str, errors: Sequence[InputError]) -> InputError:
    if len(errors) == 1:
        return errors[0]
    lines = listed_lines([error.marked for error in errors], _MAX_ERRORS)
    return CatalogError("\n  ".join([f"{url}: {len(errors)} of its files cannot be used:", *lines]))

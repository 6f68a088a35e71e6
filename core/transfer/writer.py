"""Carries out the plans of target ranks: fills their files from the source files and writes them front to back.

A file is read, digested and written block by block, so memory does not depend on the size of any tensor. Ranks that
need parts of the same source rows are written side by side, so that those rows are read once. Where there are fewer
files than workers, or the source is remote, prefetch threads fill and digest the next blocks while one is written.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

import xxhash

from reshard.core.checkpoint.manifest import OverflowRecord, ParameterRecord, ShardRecord
from reshard.core.files.encryption.encrypted_output import encrypted_bytes
from reshard.core.files.encryption.opening import write_checkpoint
from reshard.core.files.model import FilePlan, OutputEntry
from reshard.core.files.running_crc import ContentRange, RunningCrc, running_crc, with_crc_in_header
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.budget import Budget, GroupBuffers, UploadBuffers
from reshard.core.runtime.keys import needed_target_key
from reshard.core.storage.hashing import RunningSha256
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import OutputFile
from reshard.core.transfer.fetches import RankBlock, change_of
from reshard.core.transfer.file_blocks import (
    Block,
    expected_entries,
    file_blocks,
    planned_file,
    transposed_parameters,
)
from reshard.core.transfer.overflows import OverflowTally
from reshard.core.transfer.prefetch import Prefetcher
from reshard.core.transfer.read_crcs import CrcWatch
from reshard.core.transfer.reader import BlockReader, LocalBlockReader, RemoteBlockReader
from reshard.core.transfer.scales import ScaleReader
from reshard.core.transfer.source_files import LocalFiles, RemoteFiles, are_remote

if TYPE_CHECKING:
    from reshard.core.transfer.quantizing_reader import KeptFactors

Files = TypeVar("Files", LocalFiles, RemoteFiles)
Advance = Callable[[int], None]
"""Called with the bytes of shards in every block written; may raise to stop the work."""
_WIDE_REQUESTS_AT_ONCE = 2
"""While a wide block is filled: one in flight while another is scattered; more would each be too small."""


def transform_ranks(
    plan: ConversionPlan,
    ranks: Sequence[int],
    directory: Location | None,
    *,
    identity: str,
    budget: Budget,
    prefetch: int,
    advance: Advance,
    crcs: CrcWatch | None = None,
    hashes: bool = False,
) -> tuple[ShardRecord, ...]:
    """Write target ranks' files below `directory`, side by side, and return their records.

    Uses the budget of `prefetch` workers, and of those that become idle meanwhile. The files appear only when they are
    whole. Contents are read twice if their CRC is in the header: first for that alone. Without a directory nothing is
    written: the records say what would be. `crcs` are given what is read. With `hashes`, one more thread takes the
    files' SHA-256 while they are written.

    Raises:
        CatalogError: a source file is not the one that was planned with, or changed between two readings.
        CheckpointError: a source file is damaged.
        CastError: a cast made finite values infinite, and the policy is to fail.
        StorageError: reading or writing failed.
    """
    started = time.monotonic()
    buffers = budget.group_buffers(len(ranks), prefetch, wide=plan.transposes, quantizes=plan.quantizes)
    writers = [_RankWriter(plan, rank) for rank in ranks]
    read_bytes = 0
    if directory is not None and plan.readings > 1:
        read_bytes += _fill(plan, writers, buffers, advance)
        writers = [_RankWriter(plan, rank, writer.crc) for rank, writer in zip(ranks, writers, strict=True)]
    with ExitStack() as files:
        if directory is not None:
            pool = files.enter_context(ThreadPoolExecutor(1, thread_name_prefix="reshard-hash")) if hashes else None
            for writer in writers:
                writer.open(directory, files, buffers.upload, pool)
        read_bytes += _fill(plan, writers, buffers, advance, crcs)
        for writer in writers:
            writer.complete()
    seconds = (time.monotonic() - started) / len(ranks)
    reads = _split_evenly(read_bytes, len(ranks))
    return tuple(writer.record(identity, read, seconds) for writer, read in zip(writers, reads, strict=True))


def _fill(
    plan: ConversionPlan,
    writers: "Sequence[_RankWriter]",
    buffers: GroupBuffers,
    advance: Advance,
    crcs: CrcWatch | None = None,
) -> int:
    """Fill the files of some target ranks from front to back; return the bytes read."""
    with ExitStack() as files:
        sources = _Sources(plan, writers, buffers, files, crcs)
        prefetcher = _prefetcher(sources, writers, buffers)
        steps = zip_longest(*(writer.blocks(buffers) for writer in writers))
        with closing(prefetcher.filled(steps)) as filled_steps:
            for filled in filled_steps:
                for each in filled:
                    each.user.write(each.block, each.crc_sums)
                    advance(sum(chunk.size_bytes for chunk in each.block.chunks))
        sources.check_unchanged()
    return prefetcher.read_bytes


class _Sources:
    """The source files of some target ranks, and their readers: local files are opened for each, remote ones once."""

    def __init__(
        self,
        plan: ConversionPlan,
        writers: "Sequence[_RankWriter]",
        buffers: GroupBuffers,
        files: ExitStack,
        crcs: CrcWatch | None,
    ) -> None:
        self._plan = plan
        self._ranks = [
            {name: parameter.before_quantizing for name, parameter in writer.parameters.items()}
            if plan.quantizes
            else writer.parameters
            for writer in writers
        ]
        self._kept: KeptFactors | None = None
        self._buffers = buffers
        self._files = files
        self._crcs = crcs
        self._change_of = change_of(plan)
        self._opened: list[LocalFiles | RemoteFiles] = []
        self._remote = None
        if are_remote(plan):
            ranks = (rank for writer in writers for rank in writer.rank_plan.source_ranks)
            self._remote = self._add(RemoteFiles(plan, ranks, crcs))

    def reader(self) -> BlockReader:
        """Return a reader for one more thread."""
        reader = self._reader_as_it_is()
        return self._quantizing(reader) if self._plan.quantizes else reader

    def _quantizing(self, reader: BlockReader) -> BlockReader:
        from reshard.core.transfer.quantizing_reader import KeptFactors, QuantizingReader  # loads ml_dtypes

        self._kept = self._kept or KeptFactors()
        scratch_bytes = max(self._buffers.block_bytes, self._buffers.wide_block_bytes)
        return QuantizingReader(reader, self._kept, scratch_bytes)

    def _reader_as_it_is(self) -> BlockReader:
        factors_of = ScaleReader(self._plan).factors
        if self._remote:
            in_flight_bytes = self._buffers.in_flight_bytes
            return RemoteBlockReader(
                self._plan,
                self._ranks,
                self._remote,
                in_flight_bytes,
                factors_of=factors_of,
                change_of=self._change_of,
            )
        local = self._add(LocalFiles(self._plan, self._buffers.sources_open, self._crcs))
        return LocalBlockReader(
            self._plan, self._ranks, local, self._buffers.scratch_bytes, factors_of, self._change_of
        )

    def wide_reader(self) -> BlockReader | None:
        """Return the reader for wide blocks, if there is one only for them."""
        if not self._remote:
            return None
        reader = RemoteBlockReader(
            self._plan,
            self._ranks,
            self._remote,
            self._buffers.wide_in_flight_bytes,
            at_once=_WIDE_REQUESTS_AT_ONCE,
            factors_of=ScaleReader(self._plan).factors,
            change_of=self._change_of,
        )
        return self._quantizing(reader) if self._plan.quantizes else reader

    def check_unchanged(self) -> None:
        """Check that no file changed while it was read."""
        for opened in self._opened:
            opened.check_unchanged()

    def _add(self, opened: Files) -> Files:
        self._opened.append(opened)
        self._files.callback(opened.close)
        return opened


def _prefetcher(
    sources: _Sources, writers: "Sequence[_RankWriter]", buffers: GroupBuffers
) -> "Prefetcher[_RankWriter]":
    readers = [sources.reader() for _ in range(buffers.readers)]
    wide = sources.wide_reader() or readers[0] if buffers.wide_block_bytes else None
    return Prefetcher(readers, writers, buffers, wide, sources.reader)


class _RankWriter:
    """One target rank's file, being filled block by block, and written if it was opened.

    Attributes:
        crc: its CRC; None if it carries none. One in the header is `known` before the file is opened.
    """

    def __init__(self, plan: ConversionPlan, rank: int, known: RunningCrc | None = None) -> None:
        self.rank_plan = plan.rank_plan(rank)
        self.parameters = {parameter.name: parameter for parameter in self.rank_plan.parameters}
        self.transposed = transposed_parameters(self.rank_plan.parameters) if plan.transposes else frozenset()
        quantized = ((name, each.quantized) for name, each in self.parameters.items() if plan.quantizes)
        self._quantized = {name: each for name, each in quantized if each is not None}
        self._overflows = OverflowTally(plan, self.parameters)
        self._entries = expected_entries(plan, self.rank_plan)
        planned = planned_file(plan, rank, self._entries)
        self._file_plan = with_crc_in_header(planned, known) if known else planned
        self.crc = running_crc(plan.inputs.format, self._file_plan, self._entries)
        self._digests: dict[str, str] = {}
        self._digesting: str | None = None
        self._digest = xxhash.xxh3_128()
        self._path = plan.file_name(rank)
        self._encryption = plan.inputs.encryption
        self._file: OutputFile | None = None
        self._sha256: RunningSha256 | None = None

    def open(
        self, directory: Location, files: ExitStack, upload: UploadBuffers | None, hashing: Executor | None
    ) -> None:
        """Begin to write the file, which appears when `files` are closed; `hashing` takes its SHA-256."""
        key = needed_target_key() if self._encryption else None
        self._sha256 = RunningSha256(hashing) if hashing else None
        location = directory.child(self._path)
        self._file = files.enter_context(write_checkpoint(location, key, upload, self._sha256))

    def blocks(self, buffers: GroupBuffers) -> Iterator[Block]:
        """Return the file's blocks."""
        return file_blocks(
            self._file_plan,
            self._entries,
            buffers.block_bytes,
            wide=self.transposed,
            wide_bytes=buffers.wide_block_bytes,
            quantized=self._quantized,
        )

    def crc_sums(self, block: RankBlock) -> list[int]:
        """CRC sums of a filled block, for the file's CRC; computed by the prefetch threads."""
        return self.crc.sums(block.buffer.data, _content_ranges(block)) if self.crc else []

    def digest(self, block: RankBlock) -> None:
        """Digest the next filled block of the file, and count its overflows."""
        self._overflows.add(block.overflows)
        for chunk in block.chunks:
            # a parameter's chunks are consecutive in the file
            if chunk.name != self._digesting:
                self._end_digest()
                self._digesting = chunk.name
            self._digest.update(block.memory[chunk.position : chunk.position + chunk.size_bytes])

    def write(self, block: RankBlock, crc_sums: list[int]) -> None:
        """Add a filled block to the CRC, and write it."""
        if self.crc:
            self.crc.add(block.buffer.data, _content_ranges(block), crc_sums)
        if self._file is not None:
            self._file.write(block.buffer.data)

    def complete(self) -> None:
        """Check the last parameter, and write or check the CRC."""
        self._end_digest()
        if self.crc and self._file is not None:
            self.crc.complete(self._file, self._path)

    def _end_digest(self) -> None:
        # one digest, reused: thousands of open ones, for many ranks at once, would take megabytes
        if self._digesting is not None:
            self._overflows.check(self._digesting)
            self._digests[self._digesting] = self._digest.hexdigest()
            self._digest.reset()
            self._digesting = None

    def record(self, identity: str, read_bytes: int, seconds: float) -> ShardRecord:
        """Return the record of the written file."""
        return ShardRecord(
            identity=identity,
            rank=self.rank_plan.rank,
            file=self._path,
            size_bytes=encrypted_bytes(self._file_plan.size_bytes, self._encryption),
            copy_of=None,
            source_ranks=self.rank_plan.source_ranks,
            read_bytes=read_bytes,
            seconds=round(seconds, 3),
            heads=(heads_digest(self._file_plan, self.crc),),
            overflows=tuple(
                OverflowRecord(name=name, count=overflow.count, largest=overflow.largest)
                for name, overflow in self._overflows.by_name.items()
            ),
            parameters=tuple([self._parameter_record(entry) for entry in self._entries]),
            sha256=self._sha256.hexdigest() if self._sha256 else None,
        )

    def _parameter_record(self, entry: OutputEntry) -> ParameterRecord:
        digest = self._digests.get(entry.name)
        if digest is None:  # of a text, or of no bytes
            digest = xxhash.xxh3_128_hexdigest((entry.text or "").encode("utf-8", "surrogatepass"))
        return ParameterRecord(name=entry.name, dtype=entry.dtype.name, shape=entry.shape, digest=digest)


def heads_digest(file_plan: FilePlan, crc: RunningCrc | None) -> str:
    """Digest the bytes around a written file's contents."""
    heads = bytearray(file_plan.heads)
    if crc:
        crc.put_into_heads(heads)
    return xxhash.xxh3_128_hexdigest(heads)


def _content_ranges(block: RankBlock) -> list[ContentRange]:
    return [ContentRange(chunk.name, chunk.position, chunk.position + chunk.size_bytes) for chunk in block.chunks]


def _split_evenly(total: int, count: int) -> Iterator[int]:
    return ((total * (number + 1)) // count - (total * number) // count for number in range(count))

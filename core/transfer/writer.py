"""Carries out the plans of target ranks: reads what they need, and writes their files front to back.

Block by block a file is gathered from the source files, digested and written, so memory does not depend on the size of
any tensor. Ranks that need parts of the same rows are worked on side by side, so that what they share is read once.
Where there are fewer files to write than workers, several gather for one: while a block is written, the next
ones are filled. Prefetch threads are also what is read ahead from a remote storage.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import zip_longest

import xxhash

from reshard.core.checkpoint.encryption.encrypted_output import encrypted_bytes
from reshard.core.checkpoint.encryption.opening import write_checkpoint
from reshard.core.checkpoint.formats.running_crc import ContentRange, RunningCrc, running_crc
from reshard.core.checkpoint.manifest import OverflowRecord, ParameterRecord, ShardRecord
from reshard.core.checkpoint.model import FilePlan
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.budget import Budget, Shares, UploadBuffers
from reshard.core.runtime.keys import needed_target_key
from reshard.core.storage.urls import Location
from reshard.core.transfer.file_blocks import Block, expected_entries, file_blocks, planned_file, transposed_parameters
from reshard.core.transfer.overflows import OverflowTally
from reshard.core.transfer.prefetch import Prefetcher
from reshard.core.transfer.reader import Gatherer, LocalGatherer, RankBlock, RemoteGatherer
from reshard.core.transfer.source_files import LocalFiles, RemoteFiles, are_remote

Advance = Callable[[int], None]
"""Told of every block written, how many bytes of shards were in it; may raise to stop the work."""
_WIDE_REQUESTS_AT_ONCE = 2
"""While a wide block is filled: one under way while another is taken apart; more would each be too small."""


def transform_ranks(
    plan: ConversionPlan,
    ranks: Sequence[int],
    directory: Location,
    *,
    identity: str,
    budget: Budget,
    prefetch: int,
    advance: Advance,
) -> tuple[ShardRecord, ...]:
    """Writes target ranks' files below `directory`, side by side, and returns their records.

    Uses what the budget has for `prefetch` workers. The files appear only when they are whole.

    Raises:
        CatalogError: a source file is not the one that was planned with.
        CheckpointError: a source file is damaged.
        CastError: values became infinite where they were cast, and that is to fail.
        StorageError: reading or writing failed.
    """
    started = time.monotonic()
    with ExitStack() as files:
        shares = budget.shares(len(ranks), prefetch, wide=plan.transposes)
        writers = [_RankWriter(plan, rank, directory, files, shares.upload) for rank in ranks]
        sources = _open_sources(plan, writers, shares, prefetch)
        for opened in sources:
            files.callback(opened.close)
        gatherers = [_gatherer(plan, writers, opened, shares) for opened in sources]
        if shares.wide_block_bytes:
            wide = _wide_gatherer(plan, writers, sources[0], shares) or gatherers[0]
            all_lanes = Prefetcher(gatherers, writers, shares, wide)
        else:
            all_lanes = Prefetcher(gatherers, writers, shares)
        steps = zip_longest(*(writer.blocks(shares) for writer in writers))
        with closing(all_lanes.filled(steps)) as filled_steps:
            for filled in filled_steps:
                for writer, block, sums in filled:
                    writer.write(block, sums)
                    advance(sum(part.size_bytes for part in block.parts))
        for writer in writers:
            writer.complete()
        for opened in set(sources):
            opened.check_unchanged()
    seconds = (time.monotonic() - started) / len(ranks)
    read_bytes = _even_shares(all_lanes.read_bytes, len(ranks))
    return tuple(writer.record(identity, read, seconds) for writer, read in zip(writers, read_bytes, strict=True))


Sources = LocalFiles | RemoteFiles


def _open_sources(
    plan: ConversionPlan, writers: "Sequence[_RankWriter]", shares: Shares, prefetch: int
) -> Sequence[Sources]:
    """The source files for each lane; remote ones are the same for all."""
    if are_remote(plan):
        return [RemoteFiles(plan, (rank for writer in writers for rank in writer.source_ranks))] * prefetch
    return [LocalFiles(plan, shares.sources_open) for _ in range(prefetch)]


def _gatherer(plan: ConversionPlan, writers: "Sequence[_RankWriter]", sources: Sources, shares: Shares) -> Gatherer:
    ranks = [writer.parameters for writer in writers]
    if isinstance(sources, RemoteFiles):
        return RemoteGatherer(plan, ranks, sources, shares.asked_bytes)
    return LocalGatherer(plan, ranks, sources, shares.scratch_bytes)


def _wide_gatherer(
    plan: ConversionPlan, writers: "Sequence[_RankWriter]", sources: Sources, shares: Shares
) -> Gatherer | None:
    """The reader that fills wide blocks alone, with the memory of all prefetch threads; None for local files."""
    if isinstance(sources, LocalFiles):
        return None
    ranks = [writer.parameters for writer in writers]
    return RemoteGatherer(plan, ranks, sources, shares.wide_asked_bytes, _WIDE_REQUESTS_AT_ONCE)


class _RankWriter:
    """One target rank's file, being written block by block."""

    def __init__(
        self, plan: ConversionPlan, rank: int, directory: Location, files: ExitStack, upload: UploadBuffers | None
    ) -> None:
        self._rank_plan = plan.rank_plan(rank)
        self.parameters = {parameter.name: parameter for parameter in self._rank_plan.parameters}
        self.transposed = transposed_parameters(self._rank_plan.parameters)
        self._overflows = OverflowTally(plan, self.parameters)
        self._entries = expected_entries(plan, self._rank_plan)
        self._file_plan = planned_file(plan, self._entries)
        self._crc = running_crc(plan.inputs.format, self._file_plan, self._entries)
        self._digests: dict[str, str] = {}
        self._digesting: str | None = None
        self._digest = xxhash.xxh3_128()
        self._path = plan.file_name(rank)
        self._encryption = plan.inputs.encryption
        key = needed_target_key() if self._encryption else None
        self._file = files.enter_context(write_checkpoint(directory.child(self._path), key, upload))

    @property
    def source_ranks(self) -> tuple[int, ...]:
        """The ranks that it is read from."""
        return self._rank_plan.source_ranks

    def blocks(self, shares: Shares) -> Iterator[Block]:
        """The file's blocks."""
        return file_blocks(
            self._file_plan, self._entries, shares.block_bytes, wide=self.transposed, wide_bytes=shares.wide_block_bytes
        )

    def crc_sums(self, block: RankBlock) -> list[int]:
        """What the file's CRC needs to know of a filled block; prefetch find it out side by side."""
        return self._crc.sums(block.buffer.data, _content_ranges(block)) if self._crc else []

    def write(self, block: RankBlock, crc_sums: list[int]) -> None:
        """Digests and writes a filled block.

        Raises:
            CastError: a parameter is complete, and values of it became infinite, which is to fail.
        """
        self._overflows.add(block.overflows)
        if self._crc:
            self._crc.add(block.buffer.data, _content_ranges(block), crc_sums)
        for part in block.parts:
            if part.name != self._digesting:
                self._end_digest()
                self._digesting = part.name
            self._digest.update(block.buffer[part.position : part.position + part.size_bytes].data)
        self._file.write(block.buffer.data)

    def complete(self) -> None:
        """Puts into the file what is known only when all blocks are written.

        Raises:
            CastError: values of the last parameter became infinite, and that is to fail.
        """
        self._end_digest()
        if self._crc:
            self._crc.put_into(self._file)

    def _end_digest(self) -> None:
        # parameters come one after another: thousands of digests under way, for many ranks at once, are megabytes
        if self._digesting is not None:
            self._overflows.check(self._digesting)
            self._digests[self._digesting] = self._digest.hexdigest()
            self._digest.reset()
            self._digesting = None

    def record(self, identity: str, read_bytes: int, seconds: float) -> ShardRecord:
        """What was written."""
        nothing = xxhash.xxh3_128_hexdigest(b"")
        texts = {
            entry.name: xxhash.xxh3_128_hexdigest(entry.text.encode("utf-8", "surrogatepass"))
            for entry in self._entries
            if entry.text is not None
        }
        digests = self._digests | texts
        return ShardRecord(
            identity=identity,
            rank=self._rank_plan.rank,
            file=self._path,
            size_bytes=encrypted_bytes(self._file_plan.size_bytes, self._encryption),
            copy_of=None,
            source_ranks=self._rank_plan.source_ranks,
            read_bytes=read_bytes,
            seconds=round(seconds, 3),
            heads=(heads_digest(self._file_plan, self._crc),),
            overflows=tuple(
                OverflowRecord(name=name, count=overflow.count, largest=overflow.largest)
                for name, overflow in self._overflows.by_name.items()
            ),
            parameters=tuple(
                ParameterRecord(
                    name=entry.name,
                    dtype=entry.dtype.name,
                    shape=entry.shape,
                    digest=digests.get(entry.name, nothing),
                )
                for entry in self._entries
            ),
        )


class _Heads:
    """What stands around a file's contents, to be completed as the file is."""

    def __init__(self, file_plan: FilePlan) -> None:
        self.data = bytearray().join(part for part in file_plan.segments if isinstance(part, bytes))

    def write(self, buffer: bytes) -> None:
        self.data += buffer

    def rewrite(self, offset: int, buffer: bytes) -> None:
        # only what comes before all contents is rewritten, so offsets are the file's
        self.data[offset : offset + len(buffer)] = buffer


def heads_digest(file_plan: FilePlan, crc: RunningCrc | None) -> str:
    """The digest of a written file's bytes around its contents."""
    heads = _Heads(file_plan)
    if crc:
        crc.put_into(heads)
    return xxhash.xxh3_128_hexdigest(heads.data)


def _content_ranges(block: RankBlock) -> list[ContentRange]:
    return [(part.name, part.position, part.position + part.size_bytes) for part in block.parts]


def _even_shares(total: int, count: int) -> Iterator[int]:
    return ((total * (number + 1)) // count - (total * number) // count for number in range(count))

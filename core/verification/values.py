"""Whether a target has the values of its source, told by fingerprints: each side's from its own files and layout alone.

    ContentCheck.source_parts        what a source file adds to the fingerprints of target parameters
    TargetParts                      what a target file adds, while its bytes are read for their digests
    ContentCheck.problems            what differs, when the parts of all ranks were taken in

What a source file's values become is followed: the boxes that were split off or joined, turned axes, casts. The plan's
reads are not looked at, only which parameter is made of which; so what a wrong read, a swapped file or a lost piece did
shows. Of every cell all copies on both sides are read, and have to agree. What both sides share is the code that says
which box a rank holds.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from reshard.core.checkpoint.content_blocks import text_bytes
from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.checkpoint.model import FileIndex, TensorEntry
from reshard.core.plan.matching import ReshardedParameter, SourceTensor
from reshard.core.plan.ownership import NO_RANK, SourceCopies, common_units, lacks_shards
from reshard.core.plan.plan import ConversionPlan, TargetStage
from reshard.core.runtime.wording import rank_names
from reshard.core.source.replicas import differing_copies_text
from reshard.core.tensor.fingerprint import box_fingerprint, combined, fingerprint_text
from reshard.core.tensor.segments import Piece
from reshard.core.tensor.slices import Shape, TensorSlice, contiguous_boxes
from reshard.core.verification.shard_fingerprints import Cells, Share, shard_sums

_MOST_TOLD = 20
_MOST_LOCATED = 4
"""Parameters whose sources are read once more, to say in which cells they differ."""


@dataclass(frozen=True)
class ContentProblem:
    """What is not as it should be, and the target ranks whose files may be to blame; none if the source is."""

    message: str
    ranks: tuple[int, ...] = ()


def target_starts(plan: ConversionPlan, rank: int) -> dict[str, Shape]:
    """Where the shards of a target rank begin in their whole tensors, by its layout; what is not cut is left out."""
    stage = _stage_of(plan, rank)
    starts = {}
    for parameter in plan.match.resharded:
        layout = parameter.target_layouts.get(stage.number)
        if layout is not None:
            cut = layout.shard_grid(len(parameter.shape))
            starts[parameter.name] = cut.box_of(rank - stage.ranks.start, parameter.shape).start
    return starts


def content_problems_text(target: str, problems: Sequence[ContentProblem]) -> str:
    """What differs, as an error tells it."""
    more = len(problems) - _MOST_TOLD
    told = [problem.message for problem in problems[:_MOST_TOLD]] + ([f"and {more} more"] if more > 0 else [])
    if any(problem.ranks for problem in problems):
        advice = "The same command does the target's ranks named here again; if that does not help, it is a bug"
    else:
        advice = (
            "Copies of the source differ: find out whose are right, and leave the others out with "
            "--recover --fault-ranks RANKS"
        )
    return f"{target}: its values are not those of the source. {advice}\n  - " + "\n  - ".join(told)


class TargetParts:
    """What a file's parameters add to the fingerprints of their whole tensors; its bytes come in their order."""

    def __init__(self, index: FileIndex, starts: Mapping[str, Shape]) -> None:
        self._streams = {name: _Stream(entry, starts.get(name)) for name, entry in index.entries.items()}

    def take(self, name: str, block: memoryview) -> None:
        """Takes in the next bytes of a parameter."""
        self._streams[name].take(block)

    def part(self, name: str) -> int:
        """What a parameter adds, all of whose bytes were taken in."""
        return self._streams[name].part


class _Stream:
    def __init__(self, entry: TensorEntry, start: Shape | None) -> None:
        self._entry = entry
        self._start = start or (0,) * len(entry.shape)
        self._done = 0
        self._cut_off = b""
        self.part = 0
        if entry.text is not None:
            self._add(text_bytes(entry.text))

    def take(self, block: memoryview) -> None:
        itemsize = self._entry.dtype.itemsize
        if self._cut_off:
            missing = itemsize - len(self._cut_off)
            self._cut_off += bytes(block[:missing])
            block = block[missing:]
            if len(self._cut_off) < itemsize:
                return
            self._add(np.frombuffer(self._cut_off, f"<u{itemsize}"))
        count = len(block) // itemsize
        self._cut_off = bytes(block[count * itemsize :])
        self._add(np.frombuffer(block, f"<u{itemsize}", count))

    def _add(self, values: np.ndarray) -> None:
        begin = self._done
        self._done += len(values)
        for box in contiguous_boxes(self._entry.shape, begin, self._done, max(1, len(values))):
            box_values, values = values[: box.size].reshape(box.shape), values[box.size :]
            start = tuple(map(sum, zip(box.start, self._start, strict=True)))
            self.part = combined([self.part, box_fingerprint(box_values, start)])


class ContentCheck:
    """Takes in what the files of both sides add to fingerprints, and compares."""

    def __init__(self, plan: ConversionPlan) -> None:
        self._plan = plan
        self._shares = _SourceShares(plan)
        self._carried: dict[str, dict[int, int]] = {carried.name: {} for carried in plan.match.passed_through}
        self._problems: list[ContentProblem] = []
        self._target_carried: dict[str, dict[int, int]] = {carried.name: {} for carried in plan.match.passed_through}

    @cached_property
    def _targets(self) -> dict[tuple[int, str], Cells]:
        return {
            (stage.number, parameter.name): Cells(
                parameter.target_layouts[stage.number], parameter.shape, stage.ranks.start
            )
            for stage in self._plan.stages
            for parameter in self._plan.match.resharded
            if stage.number in parameter.target_layouts
        }

    @property
    def source_ranks(self) -> tuple[int, ...]:
        """Source ranks whose parts are needed: all whose files are used."""
        return tuple(self._plan.inputs.catalog.records)

    @property
    def parameter_count(self) -> int:
        """How many parameters are compared."""
        match = self._plan.match
        return len(match.resharded) + len(match.passed_through) + len(match.appended)

    def source_bytes(self) -> int:
        """How much there is to read of the source."""
        match = self._plan.match
        names = {source.name for parameter in match.resharded for source in parameter.sources}
        names |= {carried.source_name for carried in match.passed_through}
        sizes: dict[int, int] = {}  # ranks whose files are alike share an index
        records = self._plan.inputs.catalog.records.values()
        for index in {id(record.index): record.index for record in records}.values():
            sizes[id(index)] = sum(entry.size_bytes for entry in index.entries.values() if entry.name in names)
        return sum(sizes[id(record.index)] for record in records)

    def source_parts(self, rank: int, advance: Callable[[int], None] = lambda _: None) -> np.ndarray:
        """Reads what a source rank's file adds to fingerprints, for `add_source`.

        Raises:
            CatalogError: the file is not the one that was planned with.
            CheckpointError: it ends too early, or cannot be decrypted.
            StorageError: it cannot be read.
        """
        shares = self._shares.of(rank)
        sums = shard_sums(self._plan.inputs.catalog.records[rank], shares, advance)
        return np.array([sums[key] for key in _keys(shares)], np.uint64)

    def add_source(self, rank: int, parts: np.ndarray) -> None:
        """Takes in what `source_parts` gave of a rank."""
        for key, part in zip(_keys(self._shares.of(rank)), parts.tolist(), strict=True):
            if isinstance(key, int):
                self._shares.shares[key].cells.put(rank, part)
            else:
                self._carried[str(key)][rank] = part

    def add_target(self, record: ShardRecord) -> None:
        """Takes in a target rank's parts, which its record has."""
        stage = _stage_of(self._plan, record.rank)
        appended = {each.name: each for each in self._plan.match.appended}
        for parameter, told in zip(record.parameters, record.parts, strict=True):
            part, name = int(told, 16), parameter.name
            cells = self._targets.get((stage.number, name))
            if cells is not None:
                cells.put(record.rank, part)
            elif name in self._target_carried:
                self._target_carried[name][record.rank] = part
            elif name in appended:
                each = appended[name]
                wanted = _literal_part(each.content, each.shape, each.dtype.itemsize, each.text)
                self._compare(name, "which is the same for all", (record.rank,), wanted, part)
            else:
                self._tell(f"parameter {name!r}: is on rank_{record.rank}, and nothing says why", (record.rank,))

    def problems(self) -> tuple[ContentProblem, ...]:
        """What differs, when the parts of all ranks were taken in; to say where exactly, some may be read once more.

        Raises:
            CatalogError, CheckpointError, StorageError: it could not be read.
        """
        for number, parameter in enumerate(self._plan.match.resharded):
            expected = self._expected(number, parameter)
            for stage in self._plan.stages:
                cells = self._targets.get((stage.number, parameter.name))
                if cells is not None:
                    self._compare_cells(parameter, number, cells, expected)
        for carried in self._plan.match.passed_through:
            for rank, part in self._target_carried[carried.name].items():
                source_rank = self._plan.carried_source(carried, rank)
                where = f"copied from rank_{source_rank} of the source"
                self._compare(carried.name, where, (rank,), self._carried[carried.name][source_rank], part)
            lacking = set(self._plan.target_ranks) - self._target_carried[carried.name].keys()
            if lacking:
                ranks = tuple(sorted(lacking))
                self._tell(f"parameter {carried.name!r}: is not on {rank_names(ranks, 8)} of the target", ranks)
        self._tell_forgotten()
        return tuple(self._problems)

    def _tell_forgotten(self) -> None:
        """What the target's strategy has is in the target, unless it is known to be missing."""
        match, strategy = self._plan.match, self._plan.inputs.target_strategy
        missing = {*match.missing, *match.elsewhere}
        for stage in strategy.stages if strategy else ():
            for name in stage.layouts:
                if (stage.stage, name) not in self._targets and name not in missing:
                    self._tell(f"parameter {name!r}: the target's strategy has it, and nothing was made of it", ())

    def _expected(self, number: int, parameter: ReshardedParameter) -> int:
        """A target parameter's fingerprint by what the source's files have."""
        parts = []
        for share in self._shares.of_parameter(number):
            for box, contents in share.cells.contents():
                if len(contents) > 1:
                    told = differing_copies_text(share.source.name, str(box), list(contents.values()))
                    self._tell(f"source: {told}", ())
                parts.extend(list(contents)[:1])
        return combined(parts)

    def _compare_cells(self, parameter: ReshardedParameter, number: int, cells: Cells, expected: int) -> None:
        found: list[int] = []
        differ = False
        for box, contents in cells.contents():
            if not contents and box.size:
                ranks = cells.ranks_of(box)
                self._tell(f"parameter {parameter.name!r}: no target rank holds {box}", ranks)
                return
            if len(contents) > 1:
                differ = True
                ranks = tuple(sorted(rank for some in contents.values() for rank in some))
                self._tell(f"target: {differing_copies_text(parameter.name, str(box), list(contents.values()))}", ranks)
            found.extend(list(contents)[:1])
        if combined(found) == expected or differ:
            return
        located = sum(bool(problem.ranks) for problem in self._problems) < _MOST_LOCATED
        wanted = self._located(parameter, number, cells) if located else {}
        for box, contents in cells.contents():
            ranks = tuple(rank for some in contents.values() for rank in some)
            for part in contents:
                if box in wanted and part != wanted[box]:
                    self._compare(parameter.name, str(box), ranks, wanted[box], part)
        if not any(part != wanted[box] for box, contents in cells.contents() if box in wanted for part in contents):
            self._compare(parameter.name, "all of it", tuple(cells.ranks), expected, combined(found))

    def _located(self, parameter: ReshardedParameter, number: int, cells: Cells) -> dict[TensorSlice, int]:
        """What each cell of the target should add, by the source's files, which are read for it."""
        wanted = {box: 0 for box, _ in cells.contents()}
        for share in self._shares.of_parameter(number):
            pieces = [(box, _inside(piece, box)) for piece in share.pieces for box in wanted]
            for _, contents in share.cells.contents():
                rank = next(iter(contents.values()))[0] if contents else None
                if rank is None:
                    continue
                start = share.cells.box(rank).start
                shares = [Share(box, start, piece, parameter.dtype) for box, piece in pieces if piece is not None]
                sums = shard_sums(self._plan.inputs.catalog.records[rank], {share.source.name: shares})
                for box in wanted:
                    wanted[box] = combined([wanted[box], sums.get(box, 0)])
        return wanted

    def _compare(self, name: str, where: str, ranks: tuple[int, ...], expected: int, found: int) -> None:
        if expected == found:
            return
        told = f": fingerprint {fingerprint_text(found)}, the source's is {fingerprint_text(expected)}"
        if self._plan.inputs.encryption:  # of which nothing is to be told
            told = ""
        self._tell(
            f"parameter {name!r}, {where}: on {rank_names(ranks, 8)} of the target are other values than in the "
            f"source's files{told}",
            ranks,
        )

    def _tell(self, message: str, ranks: tuple[int, ...]) -> None:
        self._problems.append(ContentProblem(message, ranks))


@dataclass(frozen=True)
class _SourceShare:
    """What one stage's copy of a source parameter adds to a target parameter."""

    parameter: ReshardedParameter
    source: SourceTensor
    pieces: tuple[Piece, ...]
    lacking: frozenset[int]
    cells: Cells

    def of(self, rank: int, key: Hashable) -> Iterator[Share]:
        """What a rank's file adds."""
        start = self.cells.box(rank).start
        if self.parameter.is_whole and len(self.parameter.copies) == 1:
            yield Share(key, start, dtype=self.parameter.dtype)
            return
        for piece in self.pieces:
            yield Share(key, start, piece, self.parameter.dtype)


class _SourceShares:
    """What the files of all source ranks add to which target parameters."""

    def __init__(self, plan: ConversionPlan) -> None:
        self._plan = plan
        self._of_parameter: dict[int, list[int]] = {}
        self._of_stage: dict[range, list[int]] = {}
        self.shares: list[_SourceShare] = []
        for number, parameter in enumerate(plan.match.resharded):
            for share in _shares_of(parameter):
                self._of_parameter.setdefault(number, []).append(len(self.shares))
                self._of_stage.setdefault(share.cells.ranks, []).append(len(self.shares))
                self.shares.append(share)

    def of_parameter(self, number: int) -> list[_SourceShare]:
        """What there is of a target parameter."""
        return [self.shares[key] for key in self._of_parameter[number]]

    def of(self, rank: int) -> dict[str, list[Share]]:
        """What the entries of a rank's file count for; the keys are numbers of shares, or names of what is carried."""
        found: dict[str, list[Share]] = {}
        for ranks, keys in self._of_stage.items():
            for key in keys if rank in ranks else ():
                share = self.shares[key]
                if rank not in share.lacking:
                    found.setdefault(share.source.name, []).extend(share.of(rank, key))
        for carried in self._plan.match.passed_through:
            if rank in carried.owners:
                start = (0,) * len(self._plan.source_entry(rank, carried.source_name).shape)
                found.setdefault(carried.source_name, []).append(Share(carried.name, start, dtype=carried.dtype))
        return found


def _shares_of(parameter: ReshardedParameter) -> Iterator[_SourceShare]:
    for number, source in enumerate(parameter.sources):
        pieces = tuple(piece for piece in parameter.pieces if piece.source == number)
        lost = _lost_boxes(source)
        for place, copy in enumerate(source.copies):
            # what the first copy has is all there; of the others only what those before it lack
            taken = pieces if place == 0 else tuple(_cut_to(pieces, lost.get(copy.first_rank, [])))
            cells = Cells(copy.layout, source.shape, copy.first_rank)
            yield _SourceShare(parameter, source, taken, copy.missing_ranks, cells)


def _lost_boxes(source: SourceTensor) -> dict[int, list[TensorSlice]]:
    """First rank of each copy but the first -> the boxes that are read from it."""
    axis_count = len(source.shape)
    if len(source.copies) == 1 or not lacks_shards(source.copies[0], axis_count):
        return {}
    unit_counts = common_units(source.shape, [copy.layout.shard_grid(axis_count) for copy in source.copies])
    units = tuple(length // count if count else 0 for length, count in zip(source.shape, unit_counts, strict=True))
    boxes: dict[int, list[TensorSlice]] = {}
    for part in SourceCopies(source.copies, unit_counts).parts(TensorSlice.whole(unit_counts)):
        if part.rank == NO_RANK:
            continue  # of nothing: whatever has elements has a holder
        first_rank = max(copy.first_rank for copy in source.copies if copy.first_rank <= part.rank)
        boxes.setdefault(first_rank, []).append(part.box.scaled(units))
    return boxes


def _cut_to(pieces: Sequence[Piece], boxes: Sequence[TensorSlice]) -> Iterator[Piece]:
    """What of pieces lies in boxes of their source."""
    for piece in pieces:
        for box in boxes:
            shared = piece.box.intersect(box)
            if shared is not None:
                yield replace(piece, box=shared, start=piece.placed_box(shared).start)


def _inside(piece: Piece, target_box: TensorSlice) -> Piece | None:
    """What of a piece lies in a box of the target; None: nothing."""
    shared = piece.target_box.intersect(target_box)
    return None if shared is None else replace(piece, box=piece.source_box(shared), start=shared.start)


def _keys(shares: Mapping[str, Sequence[Share]]) -> list[Hashable]:
    return list(dict.fromkeys(share.key for some in shares.values() for share in some))


def _stage_of(plan: ConversionPlan, rank: int) -> TargetStage:
    return next(stage for stage in plan.stages if rank in stage.ranks)


def _literal_part(content: bytes, shape: Shape, itemsize: int, text: str | None) -> int:
    values = text_bytes(text) if text is not None else np.frombuffer(content, f"<u{itemsize}").reshape(shape)
    return box_fingerprint(values, (0,) * len(shape))

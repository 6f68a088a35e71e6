"""The comparison of a target's values with its source's, by fingerprints from each side's own files and layout.

    ContentCheck.source_parts        what a source file contributes to the fingerprints of target parameters
    ContentCheck.problems            the differences, once the contributions of all ranks were added

The source's side follows what becomes of its values: boxes that are split off or joined, transposed axes, casts. It
ignores the plan's reads, and takes from the plan only which parameter is made of which; so a wrong read, a swapped file
or a lost box shows. All replicas of every box of the target are read, and have to agree. Of the source's, the highest
rank's is read; the conversion reads the lowest rank's, so a difference between these two shows. Both sides share the
code that finds the box of a rank.

Quantized matrices are quantized once more, by the plan's reads; what is read for that is compared with the source's
files as above.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial

import numpy as np

from reshard.core.checkpoint.content_blocks import text_bytes
from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.plan.appended import REDUNDANCY_MARK, AppendedParameter
from reshard.core.plan.layout_classes import TargetStage
from reshard.core.plan.model import ReshardedParameter, SourceTensor
from reshard.core.plan.ownership import NO_RANK, SourceCopies, common_units, lacks_shards, units_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import rank_names
from reshard.core.source.replicas import differing_replicas_text
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.fingerprint import box_fingerprint, combined, fingerprint_text
from reshard.core.tensor.segments import Piece
from reshard.core.tensor.slices import Shape, TensorSlice
from reshard.core.text.options import option
from reshard.core.text.printing import listed_lines
from reshard.core.transfer.adapter_values import AdapterReader
from reshard.core.transfer.scales import ScaleReader
from reshard.core.verification.accumulator import Addend, FingerprintAccumulator, stored_bytes
from reshard.core.verification.fingerprint_file import ParameterFingerprint, fingerprint_of_all
from reshard.core.verification.locating import read_other_replicas, sum_boxes
from reshard.core.verification.requantizing import QuantizedSums, quantize_again
from reshard.core.verification.shard_fingerprints import ShardFingerprints, sum_contributions

_MAX_LOCATED = 4
"""Parameters whose sources are read once more, to find the replicas or the boxes that differ."""


class ContentProblem(Record):
    """A difference, and the target ranks whose files may be to blame; none if the source is."""

    message: str
    ranks: tuple[int, ...] = ()


def target_starts(plan: ConversionPlan, rank: int) -> dict[str, Shape]:
    """Where a target rank's shards begin in their whole tensors, by its layout; parameters without one are left out."""
    stage = _stage_of(plan, rank)
    starts = {}
    for parameter in plan.match.resharded:
        layout = parameter.target_layouts.get(stage.number)
        if layout is not None:
            grid = layout.shard_grid(len(parameter.shape))
            starts[parameter.name] = grid.box_of(rank - stage.ranks.start, parameter.shape).start
    return starts


def content_problems_text(target: str, problems: Sequence[ContentProblem]) -> str:
    """Format differences as an error message."""
    if any(problem.ranks for problem in problems):
        advice = "The same command converts the target's ranks named here again; if that does not help, it is a bug"
    else:
        advice = (
            "Replicas in the source differ: find out which ranks' are right, and leave the others out with "
            f"{option('recover', True)} and {option('fault_ranks', 'RANKS')}"
        )
    lines = listed_lines([problem.message for problem in problems])
    return "\n  - ".join([f"{target}: its values differ from the source's. {advice}", *lines])


class ContentCheck:
    """Adds the contributions of both sides' files to fingerprints, and compares.

    With `all_replicas`, all replicas of every slice of the source are read.
    """

    def __init__(self, plan: ConversionPlan, *, all_replicas: bool = False) -> None:
        self._plan = plan
        match = plan.match
        # as of the values themselves: not the replica that was converted
        scales = ScaleReader(plan, others=True)
        adapter = AdapterReader.of(plan)
        self._addends = {
            each.name: list(addends_of(each, scales, adapter, all_replicas=all_replicas)) for each in match.resharded
        }
        self._passed_through = {
            each.name: Addend(each.source_name, ShardFingerprints.of_wholes(each.owners), dtype=each.dtype)
            for each in match.passed_through
        }
        resharded = (addend for addends in self._addends.values() for addend in addends)
        read_for_replicas = self._scales.values() if all_replicas else ()
        scale_addends = (addend for addends in read_for_replicas for addend in addends)
        self._source = FingerprintAccumulator([*resharded, *scale_addends, *self._passed_through.values()])
        self._quantized = {each.name: each.quantized for each in match.resharded if each.quantized is not None}
        self._quantized_again: Mapping[str, QuantizedSums] = {}
        self._problems: list[ContentProblem] = []

    @cached_property
    def _scales(self) -> dict[str, list[Addend]]:
        """The stages' shards of factors, by their names: no values of the target, but their replicas have to agree."""
        return {
            source.name: [
                Addend(source.name, ShardFingerprints(copy.layout, source.shape, copy.first_rank))
                for copy in source.copies
            ]
            for parameter in self._plan.match.resharded
            for source in _scales_of(parameter)
        }

    @cached_property
    def _targets(self) -> dict[tuple[int, str], ShardFingerprints]:
        return {
            (stage.number, parameter.name): ShardFingerprints(
                parameter.target_layouts[stage.number], parameter.shape, stage.ranks.start
            )
            for stage in self._plan.stages
            for parameter in self._plan.match.resharded
            if stage.number in parameter.target_layouts
        }

    @cached_property
    def _target_wholes(self) -> dict[str, ShardFingerprints]:
        return {name: ShardFingerprints.of_wholes(self._plan.target_ranks) for name in self._passed_through}

    @cached_property
    def _appended(self) -> dict[str, AppendedParameter]:
        return {each.name: each for each in self._plan.match.appended}

    @property
    def source_ranks(self) -> tuple[int, ...]:
        """All source ranks whose files are used: their contributions are needed."""
        return tuple(self._plan.inputs.catalog.records)

    @property
    def parameter_count(self) -> int:
        """Number of parameters compared."""
        match = self._plan.match
        return len(match.resharded) + len(match.passed_through) + len(match.appended)

    def source_bytes(self) -> int:
        """Bytes to read from the source."""
        records, match = self._plan.inputs.catalog.records.values(), self._plan.match
        once: dict[tuple[str, range], int] = {}
        every = set(self._passed_through)
        for parameter in match.resharded:
            dtypes = {source.name: source.dtype for source in parameter.sources}
            for addend in self._addends[parameter.name]:
                if addend.missing_ranks is None:
                    every.add(addend.name)
                elif addend.pieces is None or addend.pieces:
                    elements = addend.shards.elements_outside(addend.missing_ranks)
                    once[addend.name, addend.shards.ranks] = elements * dtypes[addend.name].itemsize
        return sum(once.values()) + stored_bytes(records, every)

    def source_parts(self, rank: int, advance: Callable[[int], None] = lambda _: None) -> np.ndarray:
        """Read the contributions of a source rank's file, for `add_source`.

        Raises:
            CatalogError: the file changed since the plan was made.
            CheckpointError: it ends too early, or cannot be decrypted.
            StorageError: it cannot be read.
        """
        record = self._plan.inputs.catalog.records[rank]
        sums = sum_contributions(record, self._source.contributions(record), advance)
        return np.array([sums[addend] for addend in self._source.addends(record)], np.uint64)

    def add_source(self, rank: int, parts: np.ndarray) -> None:
        """Take what `source_parts` returned for a rank; taken again, it replaces the former."""
        addends = self._source.addends(self._plan.inputs.catalog.records[rank])
        for addend, fingerprint in zip(addends, parts.tolist(), strict=True):
            addend.shards.put(rank, fingerprint)

    def add_target(self, record: ShardRecord) -> None:
        """Take a target rank's contributions, which are in its record; taken again, they replace the former."""
        stage = _stage_of(self._plan, record.rank)
        for parameter, part in zip(record.parameters, record.parts, strict=True):
            name, fingerprint = parameter.name, int(part, 16)
            shards = self._targets.get((stage.number, name)) or self._target_wholes.get(name)
            if shards is not None:
                shards.put(record.rank, fingerprint)
            elif name in self._appended:
                expected = _appended_fingerprint(self._appended[name])
                self._compare(name, "which is the same for all", (record.rank,), expected, fingerprint)
            else:
                self._report(f"parameter {name!r}: is on rank_{record.rank}, but not in the plan", (record.rank,))

    def problems(self, workers: int) -> tuple[ContentProblem, ...]:
        """The differences, once the contributions of all ranks were added.

        To locate those of a few parameters, source files are read again, with threads.

        Raises:
            CatalogError: a source file changed since the plan was made.
            CheckpointError: one ends too early, or cannot be decrypted.
            StorageError: one cannot be read.
        """
        self.quantize_again(workers)
        differing = {each.name: each for each, shards in self._compared() if not self._are_right(each, shards)}
        for name in self._quantized:
            differing.pop(name, None)
        located = dict(list(differing.items())[:_MAX_LOCATED])
        addends = dict.fromkeys(addend for each in located.values() for addend in self._with_scales(each))
        read_other_replicas(self._plan.inputs.catalog.records, addends, workers)
        self._report_differing_replicas()
        rest = []
        for parameter, shards in self._compared():
            if self._are_right(parameter, shards) or self._has_differing_scales(parameter):
                continue
            if parameter.name in located:
                self._locate(parameter, shards, workers)
            else:
                rest.append((parameter, shards))
        is_source_to_blame = bool(self._problems) and not any(problem.ranks for problem in self._problems)
        for parameter, shards in rest:
            if is_source_to_blame:
                self._report(
                    f"parameter {parameter.name!r}: differs, too; its replicas in the source were not read", ()
                )
            else:
                self._compare_shards(parameter, shards, {})
        self._compare_passed_through()
        self._check_complete()
        return tuple(self._problems)

    def quantize_again(self, workers: int) -> None:
        """Quantize matrices once more, with threads, once the contributions of all source files were added.

        Raises:
            CatalogError: a source file changed since the plan was made.
            CheckpointError: one ends too early, or cannot be decrypted.
            StorageError: one cannot be read.
        """
        self._quantized_again = quantize_again(self._plan, workers)
        for name, sums in self._quantized_again.items():
            if sums.before != combined(addend.shards.total() for addend in self._addends[name]):
                self._report(
                    f"parameter {name!r}: other values were read to quantize it than the source's files hold", ()
                )

    def _compared(self) -> Iterator[tuple[ReshardedParameter, ShardFingerprints]]:
        """The shards of each target parameter, on each stage that has it."""
        for parameter in self._plan.match.resharded:
            for stage in self._plan.stages:
                shards = self._targets.get((stage.number, parameter.name))
                if shards is not None:
                    yield parameter, shards

    def _are_right(self, parameter: ReshardedParameter, shards: ShardFingerprints) -> bool:
        is_same = shards.fingerprint() == self._source_fingerprint(parameter.name)
        return is_same and next(shards.differing(), None) is None

    def _has_differing_scales(self, parameter: ReshardedParameter) -> bool:
        """True if replicas of its factors are known to differ: its values cannot be compared."""
        addends = (addend for source in _scales_of(parameter) for addend in self._scales[source.name])
        return any(next(addend.shards.differing(), None) is not None for addend in addends)

    def _with_scales(self, parameter: ReshardedParameter) -> list[Addend]:
        scales = (self._scales[source.name] for source in _scales_of(parameter))
        return [*self._addends[parameter.name], *(addend for addends in scales for addend in addends)]

    def _report_differing_replicas(self) -> None:
        """Report the replicas of source slices that were read and differ."""
        for addend in (each for some in (*self._addends.values(), *self._scales.values()) for each in some):
            for box, owners in addend.shards.differing():
                self._report(f"source: {differing_replicas_text(addend.name, str(box), owners)}", ())

    def source_parameters(self) -> Iterator[ParameterFingerprint]:
        """The fingerprints of a whole target's parameters by the source, once the parts of all ranks were added."""
        for parameter in self._plan.match.resharded:
            found = self._source_fingerprint(parameter.name)
            yield _fingerprint(parameter.name, parameter.dtype, parameter.shape, [found])
        self._report_differing_replicas()
        first = {each.name: each for each in self._plan.rank_plan(self._plan.target_ranks[0]).parameters}
        for each in self._plan.match.passed_through:
            [(_, contents)] = self._passed_through[each.name].shards.contents()
            yield _fingerprint(each.name, each.dtype, first[each.name].box.shape, contents)

    @property
    def differing_replicas(self) -> tuple[str, ...]:
        """What `source_parameters` found of replicas that differ, in sentences."""
        return tuple(problem.message for problem in self._problems)

    def target_fingerprint(self) -> str:
        """The fingerprint of all parameters of a target without problems, as `reshard fingerprint` computes it."""
        return fingerprint_of_all(sorted(self._target_parameters(), key=lambda parameter: parameter.name))

    def source_fingerprint(self) -> str:
        """The fingerprint of the same parameters by the source's files; of a target without problems it is the same."""
        return fingerprint_of_all(sorted(self._written_parameters(), key=lambda parameter: parameter.name))

    def _written_parameters(self) -> Iterator[ParameterFingerprint]:
        """The target's parameters by the source's files; of those passed through, what its ranks took."""
        plan, written = self._plan, {name for _, name in self._targets}
        for parameter in plan.match.resharded:
            if parameter.name in written:
                found = self._source_fingerprint(parameter.name)
                yield _fingerprint(parameter.name, parameter.dtype, parameter.shape, [found])
        first = {each.name: each for each in plan.rank_plan(plan.target_ranks[0]).parameters}
        for each in plan.match.passed_through:
            shards = self._passed_through[each.name].shards
            taken = dict.fromkeys(shards[plan.passed_through_source(each, rank)] for rank in plan.target_ranks)
            yield _fingerprint(each.name, each.dtype, first[each.name].box.shape, taken)
        yield from self._appended_parameters()

    def _target_parameters(self) -> Iterator[ParameterFingerprint]:
        wholes: dict[str, ShardFingerprints] = {}
        for (_, name), shards in self._targets.items():
            wholes.setdefault(name, shards)
        for parameter in self._plan.match.resharded:
            if parameter.name in wholes:
                yield _fingerprint(parameter.name, parameter.dtype, parameter.shape, [wholes[parameter.name].total()])
        # their shape may be each rank's own
        first = {each.name: each for each in self._plan.rank_plan(self._plan.target_ranks[0]).parameters}
        for each in self._plan.match.passed_through:
            [(_, contents)] = self._target_wholes[each.name].contents()
            yield _fingerprint(each.name, each.dtype, first[each.name].box.shape, contents)
        yield from self._appended_parameters()

    def _appended_parameters(self) -> Iterator[ParameterFingerprint]:
        for name, appended in self._appended.items():
            if name != REDUNDANCY_MARK:
                yield _fingerprint(name, appended.dtype, appended.shape, [_appended_fingerprint(appended)])

    def _source_fingerprint(self, name: str) -> int:
        """A target parameter's fingerprint by the source's files."""
        quantized = self._quantized.get(name)
        if quantized is not None:
            return self._quantized_again[quantized.weight].of(quantized)
        return combined(addend.shards.total() for addend in self._addends[name])

    def _locate(self, parameter: ReshardedParameter, shards: ShardFingerprints, workers: int) -> None:
        """Find the target shards that differ, and report them."""
        boxes = [box for box, contents in shards.contents() if contents]
        addends = (
            (addend, parameter.pieces if addend.pieces is None else addend.pieces)
            for addend in self._addends[parameter.name]
        )
        self._compare_shards(parameter, shards, sum_boxes(self._plan.inputs.catalog.records, addends, boxes, workers))

    def _compare_shards(
        self, parameter: ReshardedParameter, shards: ShardFingerprints, wanted: Mapping[TensorSlice, int]
    ) -> None:
        """Report the shards of a parameter that differ; `wanted` are the fingerprints of boxes, if known."""
        name = parameter.name
        replicas_differ = is_located = False
        for box, contents in shards.contents():
            if not contents and box.size:
                self._report(f"parameter {name!r}: no target rank holds {box}", shards.ranks_of(box))
                return
            if len(contents) > 1:
                replicas_differ = True
                owners = list(contents.values())
                text = differing_replicas_text(name, str(box), owners)
                self._report(f"target: {text}", tuple(sorted(rank for some in owners for rank in some)))
        for box, contents in shards.contents():
            for fingerprint, ranks in contents.items():
                if box in wanted and fingerprint != wanted[box]:
                    is_located = True
                    self._compare(name, str(box), tuple(ranks), wanted[box], fingerprint)
        if not is_located and not replicas_differ:
            self._compare(name, "all of it", tuple(shards.ranks), self._source_fingerprint(name), shards.total())

    def _compare_passed_through(self) -> None:
        for parameter in self._plan.match.passed_through:
            source, target = self._passed_through[parameter.name].shards, self._target_wholes[parameter.name]
            for rank in target.owners:
                source_rank = self._plan.passed_through_source(parameter, rank)
                where = f"copied from rank_{source_rank} of the source"
                self._compare(parameter.name, where, (rank,), source[source_rank], target[rank])
            missing = tuple(sorted(set(self._plan.target_ranks).difference(target.owners)))
            if missing:
                self._report(f"parameter {parameter.name!r}: is not on {rank_names(missing, 8)} of the target", missing)

    def _check_complete(self) -> None:
        """Report parameters of the target's strategy that are not in the target, unless known to be missing."""
        match, strategy = self._plan.match, self._plan.inputs.target_strategy
        known_missing = {*match.missing, *match.elsewhere}
        targets = {(match.pipeline_stage(number), name) for number, name in self._targets}
        # files without redundancy have what several stages share in those of one of them
        is_once = self._plan.match.files.stages and self._plan.inputs.kept_replicas
        anywhere = {name for _, name in targets} if is_once else set()
        for stage in strategy.stages if strategy else ():
            for name in stage.layouts:
                if (stage.stage, name) not in targets and name not in anywhere and name not in known_missing:
                    self._report(f"parameter {name!r}: is in the target's strategy, but not in the target", ())

    def _compare(self, name: str, where: str, ranks: tuple[int, ...], expected: int, found: int) -> None:
        if expected == found:
            return
        fingerprints = f": fingerprint {fingerprint_text(found)}, the source's is {fingerprint_text(expected)}"
        if self._plan.inputs.encryption:  # fingerprints reveal something of the contents
            fingerprints = ""
        self._report(
            f"parameter {name!r}, {where}: on {rank_names(ranks, 8)} of the target: other values than in the "
            f"source's files{fingerprints}",
            ranks,
        )

    def _report(self, message: str, ranks: tuple[int, ...]) -> None:
        self._problems.append(ContentProblem(message, ranks))


def _fingerprint(name: str, dtype: DType, shape: Shape, contents: Iterable[int]) -> ParameterFingerprint:
    fingerprint, *others = map(fingerprint_text, contents)
    return ParameterFingerprint(name=name, dtype=dtype.name, shape=shape, fingerprint=fingerprint, others=tuple(others))


def _scales_of(parameter: ReshardedParameter) -> list[SourceTensor]:
    """The factors of a parameter's values."""
    numbers = dict.fromkeys(piece.scale.source for piece in parameter.pieces if piece.scale is not None)
    return [parameter.sources[number] for number in numbers]


def addends_of(
    parameter: ReshardedParameter,
    scales: ScaleReader,
    adapter: AdapterReader | None = None,
    *,
    all_replicas: bool = True,
) -> Iterator[Addend]:
    """The stages' shards of source parameters that a target parameter is made of; before it is quantized."""
    dtype = parameter.dtype
    if parameter.quantized is not None:
        if parameter.quantized.makes_scales:
            return
        dtype = parameter.quantized.dtype
    factors = {
        piece.source: partial(scales.factors, parameter.sources[piece.scale.source])
        for piece in parameter.pieces
        if piece.scale is not None
    }
    for number, (source, pieces) in enumerate(zip(parameter.sources, parameter.pieces_of_sources, strict=True)):
        change = (
            adapter.change_of(source.name) if adapter and any(piece.changes.is_adapted for piece in pieces) else None
        )
        lost = _lost_boxes(source)
        for place, copy in enumerate(source.copies):
            shards = ShardFingerprints(copy.layout, source.shape, copy.first_rank)
            # all that the first copy has counts; of the others only what those before it lack
            counted = pieces if place == 0 else list(_clipped(pieces, lost.get(copy.first_rank, [])))
            # of a family that was stacked and unstacked it is all of one source, and has nothing of the others
            as_it_is = parameter.is_whole and number == 0 and len(source.copies) == 1
            those = None if as_it_is else counted
            missing_ranks = None if all_replicas else copy.missing_ranks
            yield Addend(source.name, shards, those, dtype, factors.get(number), missing_ranks, change)


def _lost_boxes(source: SourceTensor) -> dict[int, list[TensorSlice]]:
    """First rank of each copy but the first -> the boxes that are read from it."""
    axis_count = len(source.shape)
    if len(source.copies) == 1 or not lacks_shards(source.copies[0], axis_count):
        return {}
    unit_counts = common_units(source.shape, [copy.layout.shard_grid(axis_count) for copy in source.copies])
    units = units_of(source.shape, unit_counts)
    boxes: dict[int, list[TensorSlice]] = {}
    for part in SourceCopies(source.copies, unit_counts).parts(TensorSlice.whole(unit_counts)):
        if part.rank == NO_RANK:
            continue  # an empty box: a box with elements has an owner
        first_rank = max(copy.first_rank for copy in source.copies if copy.first_rank <= part.rank)
        boxes.setdefault(first_rank, []).append(part.box.scaled(units))
    return boxes


def _clipped(pieces: Sequence[Piece], boxes: Sequence[TensorSlice]) -> Iterator[Piece]:
    """Pieces clipped to boxes of their source."""
    inside = (piece.in_source(box) for piece in pieces for box in boxes)
    return (piece for piece in inside if piece is not None)


def _stage_of(plan: ConversionPlan, rank: int) -> TargetStage:
    return next(stage for stage in plan.stages if rank in stage.ranks)


def _appended_fingerprint(parameter: AppendedParameter) -> int:
    if parameter.text is not None:
        values = text_bytes(parameter.text)
    else:
        values = np.frombuffer(parameter.content, f"<u{parameter.dtype.itemsize}").reshape(parameter.shape)
    return box_fingerprint(values, (0,) * len(parameter.shape))

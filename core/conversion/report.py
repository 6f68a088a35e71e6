"""Summaries of plans and conversions, small and typed: for tables, JSON and programs."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from pydantic import Field

from reshard.core.checkpoint.manifest import RankSha256
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.plan_notes import plan_notes, substitutes_of
from reshard.core.custody.source_digests import source_file_bytes
from reshard.core.custody.summary import CustodySummary
from reshard.core.layouts.registry import TargetLayout
from reshard.core.layouts.targets import side_named
from reshard.core.plan.change_summary import ExcludedParameter, ParameterChange, changes_of, excluded_parameters
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.whole_shapes import NOT_CONFIRMED, WholeShapes, summarize_shapes
from reshard.core.reports.blocks import Block
from reshard.core.reports.report import Report
from reshard.core.runtime.budget import Budget
from reshard.core.runtime.summary import FILE, RANK, Summary
from reshard.core.runtime.wording import counted
from reshard.core.source.damage import Substitute


class Outcome(StrEnum):
    """Origin of a target rank's file."""

    WRITTEN = "written"
    COPIED = "copied"
    RESUMED = "resumed"


class RankReport(Summary):
    """The work on one target rank in this run; `overflowed` values became infinite by a cast."""

    rank: int
    outcome: Outcome
    file: str
    size_bytes: int
    read_bytes: int
    seconds: float
    source_ranks: tuple[int, ...]
    verified: VerifyLevel
    record_digest: str
    sha256: RankSha256 | None = None
    overflowed: dict[str, int] = Field(default_factory=dict)


class PlanFacts(Summary):
    """What a plan and its conversion have in common.

    Attributes:
        source: URL of the source.
        step: the source's epoch and step, if its names carry one.
        source_world_size: number of source ranks.
        target_world_size: number of target ranks.
        source_kind: `rank`, or `file` if each of its files counts, however many a rank has.
        target_kind: `rank`, or `file` if the target's ranks are its files.
        dropped: parameters of the source's strategy that are not in the target's.
        excused: parameters of the target's strategy that may be missing, and are.
        carried: parameters that no strategy knows, copied to every rank.
        stand_ins: substitutes for lost source ranks.
        notes: decisions, in sentences.
        whole_shapes: shapes of the source's whole tensors, and whether more than strategy and shards shows them.
    """

    source: str
    step: str | None
    source_world_size: int
    target_world_size: int
    dropped: tuple[str, ...]
    excused: tuple[str, ...]
    carried: tuple[str, ...]
    stand_ins: tuple[Substitute, ...]
    notes: tuple[str, ...]
    source_kind: str = RANK
    target_kind: str = RANK
    whole_shapes: WholeShapes = Field(default_factory=WholeShapes)


class ConversionReport(Report, PlanFacts):
    """The result of a conversion.

    Attributes:
        identity: the plan's identity.
        target: URL of the target.
        directory: URL of the directory with the target's files: another one than the target while that is incomplete,
            unless it is on an object store. Empty in reports of earlier versions.
        committed: True if the target is complete; False if ranks are missing that other runs convert.
        missing_ranks: target ranks without a verified file yet.
        seconds: wall time of this run.
        written_bytes: bytes of all files written or copied in this run.
        read_bytes: bytes read from the source in this run to write files.
        crc_bytes: additional bytes of source files that were read to check their CRCs.
        verified_bytes: additional bytes of target files that were read back.
        compared: number of parameters whose values were compared with the source's, which needs a complete target.
        compared_bytes: additional bytes of the source that were read to compare values.
        source_files_bytes: additional bytes of source files that were read whole for their SHA-256.
        fingerprint: the target's, as `reshard fingerprint` computes it, if values were compared; None beside an
            encrypted target, whose contents it would reveal something of.
        retried_requests: requests to remote storages that were repeated after transient failures.
        verified: level of verification of all ranks; values are compared only if the target is complete.
        overflowed: number of finite values that a cast made infinite, by parameter; replicas count once.
        ranks: the target ranks of this run.
        custody: SHA-256, statements and signature of a finished target, if they were asked for.
    """

    identity: str
    target: str
    directory: str = ""
    committed: bool
    missing_ranks: tuple[int, ...]
    seconds: float
    written_bytes: int
    read_bytes: int
    crc_bytes: int
    verified_bytes: int
    compared: int = 0
    compared_bytes: int = 0
    source_files_bytes: int = 0
    fingerprint: str | None = None
    retried_requests: int
    verified: VerifyLevel
    overflowed: dict[str, int] = Field(default_factory=dict)
    ranks: tuple[RankReport, ...]
    custody: CustodySummary | None = None

    def blocks(self, engine: str = "") -> Iterable[Block]:
        """Return its content; `engine` is what carried it out, if that is to be said."""
        from reshard.core.conversion.views.summary import conversion_blocks

        return conversion_blocks(self, engine)


class PlannedRank(Summary):
    """One target rank of a plan; `copy_of` is a lower rank with the same content."""

    rank: int
    file: str
    shard_bytes: int
    source_ranks: tuple[int, ...]
    copy_of: int | None


class PlannedTraffic(Summary):
    """The bytes that converting the chosen ranks moves: what is read of the source, written, and verified.

    Attributes:
        read_bytes: bytes of the source that the ranks are made from; twice if CRCs are in their headers.
        written_bytes: bytes of their shards.
        read_back_bytes: bytes of the written files that are read again.
        compared_bytes: bytes of the source that are read again to compare values.
        source_files_bytes: bytes of its files, which are read whole for their SHA-256.
    """

    read_bytes: int
    written_bytes: int
    read_back_bytes: int
    compared_bytes: int
    source_files_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All of them."""
        moved_bytes = self.read_bytes + self.written_bytes + self.read_back_bytes
        return moved_bytes + self.compared_bytes + self.source_files_bytes

    def __str__(self) -> str:
        """Format what is done, in words."""
        again = ", and the source read again to compare values" if self.compared_bytes else ""
        whole = ", and source files read whole for their SHA-256" if self.source_files_bytes else ""
        return f"{'read, written and read back' if self.read_back_bytes else 'read and written'}{again}{whole}"


class PlanSummary(Report, PlanFacts):
    """The expected result of a conversion.

    Attributes:
        format: format of the target's files.
        layout: what the target is made of.
        parameters: number of resharded parameters.
        layout_classes: number of distinct pairs of layouts among them.
        read_bytes: bytes of source shards to read; twice if CRCs are in the headers of the target's files.
        written_bytes: bytes of target shards.
        needed_bytes: room that the files of the ranks to convert take at the target.
        free_bytes: free room there; None if no target is named, or if its storage does not tell.
        assumed_rate_bytes: bytes read or written in a second, as assumed for the estimate.
        traffic: what converting the chosen ranks moves; None if that was not planned.
        estimated_seconds: time for that traffic at that rate.
        hashed_bytes: bytes of the target whose SHA-256 is taken while they are written; copies take none.
        buffer_bytes: peak memory of buffers.
        workers: number of workers.
        integrated: True if every source rank saved whole parameters.
        ranks: the target ranks.
        effects: effects of the declared changes on target parameters.
        excluded: source parameters that the changes leave out.
        chosen_ranks: the target ranks to convert; empty: all, as in a summary that was read from its document.
    """

    format: str
    layout: TargetLayout = TargetLayout.RANKS
    parameters: int
    layout_classes: int
    read_bytes: int
    written_bytes: int
    needed_bytes: int | None = None
    free_bytes: int | None = None
    assumed_rate_bytes: int | None = None
    traffic: PlannedTraffic | None = None
    estimated_seconds: float | None = None
    hashed_bytes: int = 0
    buffer_bytes: int
    workers: int
    integrated: bool
    ranks: tuple[PlannedRank, ...]
    effects: tuple[ParameterChange, ...] = ()
    excluded: tuple[ExcludedParameter, ...] = ()
    # for the table that people read: the document has all ranks, and what the chosen ones need
    chosen_ranks: tuple[int, ...] = Field(default=(), exclude=True, repr=False)

    def blocks(self, rate_option: str = "") -> Iterable[Block]:
        """Return its content; `rate_option` sets the rate of the estimate, if one does."""
        from reshard.core.conversion.views.summary import plan_blocks

        return plan_blocks(self, rate_option)

    @property
    def is_whole(self) -> bool:
        """True if every tensor of the target is whole."""
        return side_named(self.layout).record.is_whole


def summarize_plan(plan: ConversionPlan, budget: Budget, groups: Sequence[Sequence[int]], prefetch: int) -> PlanSummary:
    """Summarize a plan that is carried out with `budget`, in `groups` of ranks with `prefetch` readers each."""
    largest = max(map(len, groups), default=1)
    return PlanSummary(
        **dict(facts_of(plan)),
        format=str(plan.inputs.format),
        layout=TargetLayout(plan.inputs.layout.name),
        parameters=len(plan.match.resharded),
        layout_classes=plan.layout_class_count,
        read_bytes=plan.read_bytes,
        written_bytes=plan.written_bytes,
        buffer_bytes=max(1, budget.workers // prefetch)
        * budget.group_buffers(largest, prefetch, wide=plan.transposes, quantizes=plan.quantizes).total_bytes,
        workers=budget.workers,
        integrated=plan.match.integrated,
        ranks=tuple(
            PlannedRank(
                rank=totals.rank,
                file=plan.file_name(totals.rank),
                shard_bytes=totals.shard_bytes,
                source_ranks=totals.source_ranks,
                copy_of=totals.copy_of,
            )
            for totals in plan.totals
        ),
        effects=changes_of(plan),
        excluded=excluded_parameters(plan),
    )


def planned_traffic(
    plan: ConversionPlan, ranks: Sequence[int], level: VerifyLevel, *, hashes_source: bool = False
) -> PlannedTraffic:
    """Return what converting target ranks moves, values compared and source files read whole only if these are all."""
    chosen = set(ranks)
    totals = [totals for totals in plan.totals if totals.rank in chosen]
    written_bytes = sum(each.shard_bytes for each in totals)
    compared_bytes, is_all = 0, len(chosen) == len(plan.totals)
    if level is VerifyLevel.CONTENT and is_all:
        from reshard.core.verification.values import ContentCheck

        compared_bytes = ContentCheck(plan).source_bytes()
    return PlannedTraffic(
        # a copy is written like others if its primary is not
        read_bytes=plan.readings * sum(each.needed_bytes for each in totals if each.copy_of not in chosen),
        written_bytes=written_bytes,
        read_back_bytes=written_bytes if level.of_files is VerifyLevel.CHECKSUM else 0,
        compared_bytes=compared_bytes,
        source_files_bytes=source_file_bytes(plan) if hashes_source and is_all else 0,
    )


def planned_hashed_bytes(plan: ConversionPlan, ranks: Sequence[int]) -> int:
    """Return the bytes of target ranks that are hashed while they are written."""
    chosen = set(ranks)
    return sum(totals.shard_bytes for totals in plan.totals if totals.rank in chosen and totals.copy_of not in chosen)


def with_estimate(summary: PlanSummary, rate_bytes: int) -> PlanSummary:
    """Estimate the time of a summary's traffic at a rate."""
    seconds = None if summary.traffic is None else round(summary.traffic.total_bytes / rate_bytes, 3)
    return summary.model_copy(update={"assumed_rate_bytes": rate_bytes, "estimated_seconds": seconds})


def facts_of(plan: ConversionPlan, *notes: str) -> PlanFacts:
    """Return what a plan's summary and the report of its conversion have in common; `notes` come first."""
    catalog, match = plan.inputs.catalog, plan.match
    return PlanFacts(
        source=catalog.url,
        step=catalog.step,
        source_world_size=catalog.world_size,
        target_world_size=len(plan.target_ranks),
        dropped=match.dropped,
        excused=match.allowed_missing,
        carried=match.beyond_strategies,
        stand_ins=substitutes_of(plan),
        notes=(*notes, *plan_notes(plan)),
        source_kind=source_kind(plan),
        target_kind=target_kind(plan),
        whole_shapes=summarize_shapes(plan.wholes),
    )


def source_kind(plan: ConversionPlan) -> str:
    """Return `file` if each file of a plan's source counts, however many a rank has, else `rank`."""
    return FILE if plan.inputs.counts_source_files else RANK


def target_kind(plan: ConversionPlan) -> str:
    """Return `file` if the ranks of a plan's target are its files, else `rank`."""
    return FILE if plan.inputs.layout.ranks_are_files else RANK


def worlds_text(report: ConversionReport | PlanSummary) -> str:
    """Format both world sizes: `8 -> 3`, `8 ranks -> 3 files`."""
    sizes = (report.source_world_size, report.target_world_size)
    kinds = (report.source_kind, report.target_kind)
    if kinds == (RANK, RANK):
        return " -> ".join(map(str, sizes))
    return " -> ".join(counted(size, kind) for size, kind in zip(sizes, kinds, strict=True))


def shapes_facts(summary: PlanFacts) -> list[tuple[str, str]]:
    """Return the fact about whole shapes for a table; none if there are none."""
    return [("shapes", str(summary.whole_shapes))] if summary.whole_shapes.kinds else []


def shapes_reservation(summary: PlanFacts) -> str:
    """Return what to add to a statement that a conversion is verified; empty if shapes are confirmed."""
    return "" if summary.whole_shapes.confirmed else f"; {NOT_CONFIRMED}"

"""What is said of a plan and of a conversion: small typed summaries, for tables, JSON and programs."""

from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from reshard.core.conversion.plan_notes import plan_notes, substitutes_of
from reshard.core.plan.change_summary import (
    ExcludedParameter,
    ParameterEffect,
    effects_of,
    excluded_of,
)
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import VerifyLevel
from reshard.core.runtime.budget import Budget
from reshard.core.runtime.summary import FILE, RANK, Summary
from reshard.core.runtime.wording import counted
from reshard.core.source.damage import Substitute


class Outcome(StrEnum):
    """How a target rank's file came to be."""

    WRITTEN = "written"
    COPIED = "copied"
    RESUMED = "resumed"


class RankReport(Summary):
    """One target rank: what was done for it in this run; `record_digest` is the manifest's, of the rank's record.

    `overflowed`: of parameters that were cast, how many finite values became infinite, by name.
    """

    rank: int
    outcome: Outcome
    file: str
    size_bytes: int
    read_bytes: int
    seconds: float
    source_ranks: tuple[int, ...]
    verified: VerifyLevel
    record_digest: str
    overflowed: dict[str, int] = Field(default_factory=dict)


class ConversionReport(Summary):
    """The result of a conversion.

    Attributes:
        identity: identity of the plan.
        source: URL of the source.
        step: the source's epoch and step, if its names carry one.
        target: URL of the target.
        source_world_size: ranks of the source.
        target_world_size: ranks of the target.
        source_kind: what the source's ranks are: `rank`, or `file` of a unified checkpoint.
        target_kind: what the target's are.
        committed: whether the target is complete; False if ranks that others are to do are missing.
        missing_ranks: target ranks without a verified file yet.
        seconds: wall time of this run.
        written_bytes: bytes of all files written or copied in this run.
        read_bytes: bytes read from the source in this run, to be written.
        crc_bytes: bytes of source files that were read whole, in addition, to check their CRCs.
        verified_bytes: bytes of target files that were read back, in addition, to be compared.
        compared: parameters whose values were compared with the source's; none unless all of the target is there.
        compared_bytes: bytes of source contents that were read for that, in addition.
        retried_requests: requests to remote storages that failed for the moment, and were made again.
        verified: how closely all was checked; values are compared only when all of the target is there.
        dropped: parameters of the source's strategy that the target's lacks.
        excused: parameters of the target's strategy that were allowed to be missing.
        carried: parameters that no strategy knows, copied to every rank.
        stand_ins: which source ranks stood in for which that were lost.
        overflowed: of parameters that were cast, how many finite values became infinite, by name; what several ranks
            hold counts once.
        notes: what was chosen, in sentences.
        ranks: the target ranks of this run.
    """

    identity: str
    source: str
    step: str | None
    target: str
    source_world_size: int
    target_world_size: int
    committed: bool
    missing_ranks: tuple[int, ...]
    seconds: float
    written_bytes: int
    read_bytes: int
    crc_bytes: int
    verified_bytes: int
    compared: int = 0
    compared_bytes: int = 0
    retried_requests: int
    verified: VerifyLevel
    dropped: tuple[str, ...]
    excused: tuple[str, ...]
    carried: tuple[str, ...]
    stand_ins: tuple[Substitute, ...]
    overflowed: dict[str, int] = Field(default_factory=dict)
    notes: tuple[str, ...]
    ranks: tuple[RankReport, ...]
    source_kind: str = RANK
    target_kind: str = RANK


class PlannedRank(Summary):
    """One target rank of a plan; `copy_of` is a lower rank with the same content."""

    rank: int
    file: str
    shard_bytes: int
    source_ranks: tuple[int, ...]
    copy_of: int | None


class PlanSummary(Summary):
    """What a conversion would do.

    Attributes:
        source: URL of the source.
        step: the source's epoch and step, if its names carry one.
        source_world_size: ranks of the source.
        target_world_size: ranks of the target.
        source_kind: what the source's ranks are: `rank`, or `file` of a unified checkpoint.
        target_kind: what the target's are.
        format: kind of the target's files.
        parameters: parameters that are cut anew.
        layout_classes: distinct pairs of cuts among them.
        read_bytes: bytes of source shards that are needed.
        written_bytes: bytes of target shards.
        buffer_bytes: memory for buffers at the peak.
        workers: ranks worked on at once.
        dropped: parameters of the source's strategy that the target's lacks.
        excused: parameters of the target's strategy that may be missing.
        carried: parameters that no strategy knows, copied to every rank.
        integrated: the source's ranks were saved whole.
        stand_ins: which source ranks stand in for which that are lost.
        notes: what was chosen, in sentences.
        ranks: the target ranks.
        effects: what the changes that are declared do to which target parameters.
        excluded: source parameters that they leave out.
    """

    source: str
    step: str | None
    source_world_size: int
    target_world_size: int
    format: str
    parameters: int
    layout_classes: int
    read_bytes: int
    written_bytes: int
    buffer_bytes: int
    workers: int
    dropped: tuple[str, ...]
    excused: tuple[str, ...]
    carried: tuple[str, ...]
    integrated: bool
    stand_ins: tuple[Substitute, ...]
    notes: tuple[str, ...]
    ranks: tuple[PlannedRank, ...]
    effects: tuple[ParameterEffect, ...] = ()
    excluded: tuple[ExcludedParameter, ...] = ()
    source_kind: str = RANK
    target_kind: str = RANK


def summarize_plan(plan: ConversionPlan, budget: Budget, groups: Sequence[Sequence[int]], prefetch: int) -> PlanSummary:
    """What a plan would do with `budget`, if `groups` of ranks are written side by side, with `prefetch` for each."""
    largest = max(map(len, groups), default=1)
    catalog = plan.inputs.catalog
    return PlanSummary(
        source=catalog.url,
        step=catalog.step,
        source_world_size=catalog.world_size,
        target_world_size=len(plan.target_ranks),
        format=str(plan.inputs.format),
        parameters=len(plan.match.resharded),
        layout_classes=plan.layout_class_count,
        read_bytes=plan.read_bytes,
        written_bytes=plan.written_bytes,
        buffer_bytes=max(1, budget.workers // prefetch)
        * budget.group_buffers(largest, prefetch, wide=plan.transposes).total_bytes,
        workers=budget.workers,
        dropped=plan.match.dropped,
        excused=plan.match.allowed_missing,
        carried=plan.match.beyond_strategies,
        integrated=plan.match.integrated,
        stand_ins=substitutes_of(plan),
        notes=plan_notes(plan),
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
        source_kind=source_kind(plan),
        target_kind=target_kind(plan),
        effects=effects_of(plan),
        excluded=excluded_of(plan),
    )


def source_kind(plan: ConversionPlan) -> str:
    """What the ranks of a plan's source are."""
    return FILE if plan.inputs.catalog.unified else RANK


def target_kind(plan: ConversionPlan) -> str:
    """What the ranks of a plan's target are."""
    return FILE if plan.inputs.unified else RANK


def worlds_text(report: ConversionReport | PlanSummary) -> str:
    """From how many ranks to how many: `8 -> 3`, `8 ranks -> 3 files`."""
    sizes = (report.source_world_size, report.target_world_size)
    kinds = (report.source_kind, report.target_kind)
    if kinds == (RANK, RANK):
        return " -> ".join(map(str, sizes))
    return " -> ".join(counted(size, kind) for size, kind in zip(sizes, kinds, strict=True))

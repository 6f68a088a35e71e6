"""What is said of a plan and of a conversion: small typed summaries, for tables, JSON and programs."""

from collections.abc import Sequence
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from core.budget import Budget
from core.parameters import CarriedParameter
from core.plan import ConversionPlan
from core.request import VerifyLevel


class _Summary(BaseModel):
    model_config = ConfigDict(frozen=True)


class Outcome(StrEnum):
    """How a target rank's file came to be."""

    WRITTEN = "written"
    COPIED = "copied"
    RESUMED = "resumed"


class RankReport(_Summary):
    """One target rank: what was done for it in this run; `record_digest` is the manifest's, of the rank's record."""

    rank: int
    outcome: Outcome
    file: str
    size_bytes: int
    read_bytes: int
    seconds: float
    source_ranks: tuple[int, ...]
    verified: VerifyLevel
    record_digest: str


class ConversionReport(_Summary):
    """The result of a conversion.

    Attributes:
        identity: identity of the plan.
        source: URL of the source.
        step: the source's epoch and step, if its names carry one.
        target: URL of the target.
        source_world_size: ranks of the source.
        target_world_size: ranks of the target.
        committed: whether the target is complete; False if ranks that others are to do are missing.
        missing_ranks: target ranks without a verified file yet.
        seconds: wall time of this run.
        written_bytes: bytes of all files written or copied in this run.
        read_bytes: bytes read from the source in this run, to be written.
        crc_bytes: bytes of source files that were read whole, in addition, to check their CRCs.
        verified_bytes: bytes of target files that were read back, in addition, to be compared.
        retried_requests: requests to remote storages that failed for the moment, and were made again.
        verified: how closely all was checked.
        dropped: parameters of the source's strategy that the target's lacks.
        excused: parameters of the target's strategy that were allowed to be missing.
        carried: parameters that no strategy knows, copied to every rank.
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
    retried_requests: int
    verified: VerifyLevel
    dropped: tuple[str, ...]
    excused: tuple[str, ...]
    carried: tuple[str, ...]
    notes: tuple[str, ...]
    ranks: tuple[RankReport, ...]


class VerificationReport(_Summary):
    """The result of checking a converted checkpoint: `problems` is empty if all is right."""

    target: str
    level: VerifyLevel
    ranks: int
    read_bytes: int
    seconds: float
    problems: tuple[str, ...]


class PlannedRank(_Summary):
    """One target rank of a plan; `copy_of` is a lower rank with the same content."""

    rank: int
    file: str
    shard_bytes: int
    source_ranks: tuple[int, ...]
    copy_of: int | None


class PlanSummary(_Summary):
    """What a conversion would do.

    Attributes:
        source: URL of the source.
        step: the source's epoch and step, if its names carry one.
        source_world_size: ranks of the source.
        target_world_size: ranks of the target.
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
        notes: what was chosen, in sentences.
        ranks: the target ranks.
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
    notes: tuple[str, ...]
    ranks: tuple[PlannedRank, ...]


def summarize_plan(plan: ConversionPlan, budget: Budget, groups: Sequence[Sequence[int]], lanes: int) -> PlanSummary:
    """What a plan would do with `budget`, if `groups` of ranks are written side by side, with `lanes` for each."""
    largest = max(map(len, groups), default=1)
    catalog = plan.inputs.catalog
    return PlanSummary(
        source=catalog.url,
        step=catalog.step,
        source_world_size=len(catalog.records),
        target_world_size=len(plan.target_ranks),
        format=str(plan.inputs.format),
        parameters=len(plan.match.moved),
        layout_classes=plan.layout_class_count,
        read_bytes=plan.read_bytes,
        written_bytes=plan.written_bytes,
        buffer_bytes=max(1, budget.workers // lanes) * budget.shares(largest, lanes).total_bytes,
        workers=budget.workers,
        dropped=plan.match.dropped,
        excused=plan.match.excused,
        carried=tuple(carried.name for carried in plan.match.carried),
        integrated=plan.match.integrated,
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
    )


def plan_notes(plan: ConversionPlan) -> tuple[str, ...]:
    """What a plan decided that its user should know, in sentences."""
    notes = list(plan.inputs.catalog.notes)
    match = plan.match
    if match.integrated:
        notes.append(
            "every source rank was saved whole (integrated_save), its shapes or contents show: "
            "the source strategy's cuts are ignored"
        )
    if match.dropped:
        notes.append(f"dropped, not in the target's strategy: {_listed(match.dropped)}")
    if match.excused:
        notes.append(f"missing in the source, as allowed: {_listed(match.excused)}")
    if match.carried:
        names = [carried.name for carried in match.carried]
        notes.append(f"in no strategy, copied unchanged to every target rank: {_listed(names)}")
    differing = [carried.name for carried in match.carried if _differs(plan, carried)]
    if differing:
        notes.append(
            f"in no strategy, but different on different source ranks: {_listed(differing)}; every target rank got "
            "its counterpart's. If they are cut, the source strategy lacks them"
        )
    return tuple(notes)


def _differs(plan: ConversionPlan, carried: CarriedParameter) -> bool:
    records = plan.inputs.catalog.records
    return len({records[rank].digests.get(carried.name) for rank in carried.holders}) > 1


def _listed(names: "tuple[str, ...] | list[str]") -> str:
    told = ", ".join(names[:6])
    return told + (f" and {len(names) - 6} more" if len(names) > 6 else "")

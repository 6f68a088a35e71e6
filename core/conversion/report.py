"""What is said of a plan and of a conversion: small typed summaries, for tables, JSON and programs."""

from collections.abc import Iterator, Sequence
from enum import StrEnum

from pydantic import Field

from reshard.core.plan.appended import AppendedParameter
from reshard.core.plan.change_summary import (
    ExcludedParameter,
    ParameterEffect,
    effects_of,
    effects_text,
    excluded_of,
    excluded_text,
)
from reshard.core.plan.model import PassedThroughParameter
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import VerifyLevel
from reshard.core.runtime.budget import Budget
from reshard.core.runtime.summary import FILE, RANK, Summary
from reshard.core.runtime.wording import counted, listed, rank_names, utf8_text
from reshard.core.source.damage import Substitute, substitutes
from reshard.core.source.gaps import content_key, missing_outside_strategy, scattered, unsaved, unsaved_text


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


def substitutes_of(plan: ConversionPlan) -> tuple[Substitute, ...]:
    """The substitutes for lost source ranks."""
    return substitutes(plan.inputs.catalog, plan.inputs.source_strategy, plan.match)


def substitutes_text(stand_ins: Sequence[Substitute]) -> str:
    """Which ranks were lost and which stood in for them, in a sentence; nothing if none was."""
    if not stand_ins:
        return ""
    lost = sorted({each.rank for each in stand_ins})
    others = sorted({each.stand_in for each in stand_ins})
    slices = counted(sum(each.slices for each in stand_ins), "slice")
    return f"{rank_names(lost, 8)} had no usable file: {slices} taken from {rank_names(others, 8)} instead"


def plan_notes(plan: ConversionPlan) -> tuple[str, ...]:
    """What a plan decided that its user should know, in sentences."""
    match = plan.match
    notes = [*_lost_notes(plan), *plan.inputs.catalog.notes]
    notes += [*_scattered_notes(plan), *_uncarried_notes(plan)]
    if names := unsaved(plan.inputs.source_strategy, plan.inputs.target_strategy, match):
        notes.append(unsaved_text(names))
    if match.integrated:
        notes.append(
            "every source rank was saved whole (integrated_save), as shapes or the request say: "
            "the source strategy's cuts are ignored"
        )
    effects = effects_of(plan)
    notes += filter(None, [effects_text(effects), excluded_text(excluded_of(plan))])
    if match.dropped:
        notes.append(f"dropped, not in the target's strategy: {listed(match.dropped)}")
    if plan.part is not None:
        notes.append(
            f"the source strategy is stage {plan.part}'s own: this is that stage's PART of the target, and "
            f"{len(match.elsewhere)} parameters are NOT in it ({listed(match.elsewhere)}). Convert the other stages "
            "likewise, and join the parts: reshard join-parts"
        )
    if match.allowed_missing:
        notes.append(f"missing in the source, as allowed: {listed(match.allowed_missing)}")
    if match.passed_through:
        names = [carried.name for carried in match.passed_through]
        changed = {effect.parameter for effect in effects}
        how = "copied unchanged" if changed.isdisjoint(names) else "copied"
        notes.append(f"in no strategy, {how} to every target rank: {listed(names)}")
    if match.outside:
        told = listed(match.outside)
        notes.append(f"in no strategy, the same on all source ranks that have it, and once in the target: {told}")
    if match.appended:
        where = match.files[-1] if match.files else "every target file"
        notes.append(f"appended to {where}: {listed([_told_info(each) for each in match.appended])}")
    if plan.inputs.replicas:
        notes.append(_redundancy_note(plan.inputs.replicas))
    differing = [carried.name for carried in match.passed_through if _differs(plan, carried)]
    if differing:
        notes.append(
            f"in no strategy, but different on different source ranks: {listed(differing)}; every target rank got "
            "its counterpart's. If they are cut, the source strategy lacks them; if they tell the step, the source's "
            "files are of several"
        )
    return tuple(map(utf8_text, notes))


def _lost_notes(plan: ConversionPlan) -> Iterator[str]:
    """Which ranks are lost, and what is in their place."""
    catalog = plan.inputs.catalog
    by_rank: dict[int, list[Substitute]] = {}
    for each in substitutes_of(plan):
        by_rank.setdefault(each.rank, []).append(each)
    for rank, why in catalog.lost.items():
        taken = [f"{counted(each.slices, 'slice')} taken from rank_{each.stand_in}" for each in by_rank.get(rank, ())]
        yield f"RECOVERED: rank_{rank} ({why}): {listed(taken) or 'nothing that it alone would have had was needed'}"
    if catalog.lost and plan.match.passed_through:
        yield (
            "what no strategy knows is taken from other ranks where lost ones would have given it; whether they held "
            "anything else cannot be known"
        )


def _scattered_notes(plan: ConversionPlan) -> Iterator[str]:
    """What ranks lack although their files are whole."""
    found = scattered(plan.inputs.catalog, plan.match)
    if not found:
        return
    marked = any(record.index.redundancy_removed for record in plan.inputs.catalog.records.values())
    lacking = frozenset().union(*(parameter.copies[0].missing_ranks for parameter in found)) - frozenset(
        plan.inputs.catalog.lost
    )
    yield (
        f"redundancy was removed from the source, {'its files say' if marked else 'what its files hold shows'}: "
        f"{counted(len(lacking), 'rank')} lack some of {counted(len(found), 'parameter')} "
        f"({listed([parameter.name for parameter in found])}); each slice is taken from the lowest rank that has it"
    )


def _uncarried_notes(plan: ConversionPlan) -> Iterator[str]:
    """Which ranks lack what no strategy knows, although others of their stage have it."""
    source = plan.inputs.source_strategy
    gaps = missing_outside_strategy(plan.inputs.catalog, source, plan.match) if source else {}
    if gaps:
        ranks = {rank for lacking in gaps.values() for rank in lacking}
        yield (
            f"in no strategy, and NOT on {rank_names(ranks, 8)}, whose files may have been cut off: "
            f"{listed(list(gaps))}; what these would have given is taken from other ranks"
        )


def _redundancy_note(replicas: int) -> str:
    if replicas == 1:
        return "redundancy removed: of a slice that ranks share, one of them has the only copy"
    return (
        f"redundancy removed: of a slice that ranks share, {replicas} of them have copies. MindSpore's "
        "load_param_into_net(remove_redundancy=True) refuses more than one copy; its unified_safetensors takes them"
    )


def _differs(plan: ConversionPlan, carried: PassedThroughParameter) -> bool:
    return len({content_key(plan.inputs.catalog, rank, carried.source_name) for rank in carried.owners}) > 1


def _told_info(appended: AppendedParameter) -> str:
    entry = appended.replaces
    if entry is None:
        return f"{appended.name}={appended.value!r}"
    shape = "" if entry.text is not None else f" {list(entry.shape)}"
    return f"{appended.name}={appended.value!r} (in place of the source's {entry.dtype}{shape})"

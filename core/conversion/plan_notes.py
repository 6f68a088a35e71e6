"""Notes on a plan: decisions that its user should know, in sentences."""

from collections.abc import Iterator, Sequence

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.plan.appended import AppendedParameter
from reshard.core.plan.change_summary import changes_of, changes_text, excluded_parameters, excluded_text
from reshard.core.plan.model import PassedThroughParameter
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.wording import counted, listed, rank_names, utf8_text
from reshard.core.source.absences import UNEXPLAINED, is_marked
from reshard.core.source.damage import Substitute, substitutes
from reshard.core.source.gaps import content_key, missing_outside_strategy, scattered, unsaved, unsaved_text

INTEGRATED = (
    "every source rank was saved whole (integrated_save), as shapes or the request say: the source strategy's cuts are "
    "ignored"
)


def substitutes_of(plan: ConversionPlan) -> tuple[Substitute, ...]:
    """The substitutes for lost source ranks."""
    return substitutes(plan.inputs.catalog, plan.inputs.source_strategy, plan.match)


def substitutes_text(stand_ins: Sequence[Substitute]) -> str:
    """Describe lost ranks and their substitutes in a sentence; empty if no rank was lost."""
    if not stand_ins:
        return ""
    lost = sorted({each.rank for each in stand_ins})
    others = sorted({each.stand_in for each in stand_ins})
    slices = counted(sum(each.slices for each in stand_ins), "slice")
    return f"{rank_names(lost, 8)} had no usable file: {slices} taken from {rank_names(others, 8)} instead"


def plan_notes(plan: ConversionPlan) -> tuple[str, ...]:
    """Return the decisions of a plan that its user should know, in sentences."""
    match = plan.match
    notes = source_notes(plan)
    if names := unsaved(plan.inputs.source_strategy, plan.inputs.target_strategy, match):
        notes.append(unsaved_text(names))
    if match.integrated:
        notes.append(INTEGRATED)
    if plan.inputs.adapter:
        notes.append(plan.inputs.adapter.note)
    effects = changes_of(plan)
    notes += filter(None, [changes_text(effects), excluded_text(excluded_parameters(plan))])
    if match.dropped:
        notes.append(f"dropped, not in the target's strategy: {listed(match.dropped)}")
    if plan.part is not None:
        notes.append(
            f"the source strategy is stage {plan.part}'s own: this is that stage's PART of the target, and "
            f"{len(match.elsewhere)} parameters are NOT in it ({listed(match.elsewhere)}). Convert the other stages "
            "the same way, and join the parts: reshard join-parts"
        )
    if match.allowed_missing:
        notes.append(f"missing in the source, as allowed: {listed(match.allowed_missing)}")
    if match.passed_through:
        names = [each.name for each in match.passed_through]
        notes.append(f"not in any strategy; copied to every target rank: {listed(names)}")
    if match.files.outside:
        where, outside = plan.inputs.layout.outside_place, listed(match.files.outside)
        notes.append(f"not in any strategy; the same on all source ranks that have it, and {where}: {outside}")
    notes += plan.inputs.layout.notes(match)
    if match.appended:
        where = match.files.names[-1] if match.files.names else "every target file"
        notes.append(f"appended to {where}: {listed([_format_info(each) for each in match.appended])}")
    if plan.inputs.replicas:
        notes.append(_redundancy_note(plan.inputs.replicas))
    differing = differing_outside(plan)
    if differing:
        notes.append(
            f"not in any strategy, but different on different source ranks: {listed(differing)}; every target rank got "
            "those of its counterpart. If they are sharded, they are missing in the source strategy; if they hold the "
            "step, the source's files are from several steps"
        )
    return tuple(map(utf8_text, notes))


def source_notes(plan: ConversionPlan) -> list[str]:
    """Return what was chosen and found in a plan's source, in sentences."""
    return [*_lost_notes(plan), *plan.inputs.catalog.notes, *_scattered_notes(plan), *_incomplete_notes(plan)]


def differing_outside(plan: ConversionPlan) -> list[str]:
    """Return the small parameters in no strategy that differ between source ranks."""
    return [each.name for each in plan.match.passed_through if _differs(plan, each)]


def _lost_notes(plan: ConversionPlan) -> Iterator[str]:
    """Name lost ranks and their substitutes."""
    catalog = plan.inputs.catalog
    by_rank: dict[int, list[Substitute]] = {}
    for each in substitutes_of(plan):
        by_rank.setdefault(each.rank, []).append(each)
    for rank, why in catalog.lost.items():
        taken = [f"{counted(each.slices, 'slice')} taken from rank_{each.stand_in}" for each in by_rank.get(rank, ())]
        yield f"RECOVERED: rank_{rank} ({why}): {listed(taken) or 'no slice that only it held was needed'}"
    if catalog.lost and plan.match.passed_through:
        yield (
            "parameters not in any strategy are taken from other ranks in place of lost ones; whether lost ranks had "
            "any others cannot be known"
        )


def _scattered_notes(plan: ConversionPlan) -> Iterator[str]:
    """Name parameters that are missing in complete files."""
    found = scattered(plan.inputs.catalog, plan.match)
    if not found:
        return
    missing = frozenset().union(*(parameter.copies[0].missing_ranks for parameter in found)) - frozenset(
        plan.inputs.catalog.lost
    )
    yield (
        f"{_why_scattered(plan.inputs.catalog)}{counted(len(missing), 'rank')} lack some of "
        f"{counted(len(found), 'parameter')} ({listed([parameter.name for parameter in found])}); each slice is taken "
        "from the lowest rank that has it"
    )


def _why_scattered(catalog: CheckpointCatalog) -> str:
    """Why parameters are missing on some of their ranks, as far as that is proven."""
    if is_marked(catalog):
        return "redundancy was removed from the source, according to its files: "
    if any(note.startswith(UNEXPLAINED) for note in catalog.notes):
        return ""
    return "redundancy was removed from the source, judging by the contents of its files: "


def _incomplete_notes(plan: ConversionPlan) -> Iterator[str]:
    """Name ranks without a parameter that is in no strategy, although other ranks of their stage have it."""
    source = plan.inputs.source_strategy
    gaps = missing_outside_strategy(plan.inputs.catalog, source, plan.match) if source else {}
    if gaps:
        ranks = {rank for missing in gaps.values() for rank in missing}
        yield (
            f"not in any strategy, and NOT on {rank_names(ranks, 8)}, whose files may have been cut off: "
            f"{listed(list(gaps))}; their values are taken from other ranks"
        )


def _redundancy_note(replicas: int) -> str:
    if replicas == 1:
        return "redundancy removed: each slice that ranks share is on one of them only"
    return (
        f"redundancy removed: each slice that ranks share is on {replicas} of them. MindSpore's "
        "load_param_into_net(remove_redundancy=True) refuses more than one copy; its unified_safetensors takes them"
    )


def _differs(plan: ConversionPlan, parameter: PassedThroughParameter) -> bool:
    return len({content_key(plan.inputs.catalog, rank, parameter.source_name) for rank in parameter.owners}) > 1


def _format_info(appended: AppendedParameter) -> str:
    entry = appended.replaces
    if entry is None:
        return f"{appended.name}={appended.value!r}"
    shape = "" if entry.text is not None else f" {list(entry.shape)}"
    return f"{appended.name}={appended.value!r} (in place of the source's {entry.dtype}{shape})"

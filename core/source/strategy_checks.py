"""Compares the parameters' names in a strategy with those in a checkpoint, of each stage and of all.

Every check goes on after the first finding: users want all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.runtime.wording import counted
from reshard.core.source.findings import OWN_STRATEGY, Finding, Severity, quoted_names
from reshard.core.source.rename_guess import guess_renaming
from reshard.core.strategy.model import Strategy
from reshard.core.strategy.staging import owner_of
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option

_Names = frozenset[str]


def stage_findings(catalog: CheckpointCatalog, strategy: Strategy) -> list[Finding]:
    """Compare the parameters on the ranks of each stage with those that the strategy gives it."""
    ranks = {stage.stage: strategy.stage_ranks(stage) for stage in strategy.stages}
    all_present = {stage: _names_on(catalog, of_stage) & strategy.parameters for stage, of_stage in ranks.items()}
    present = {stage: names for stage, names in all_present.items() if names}
    saved = frozenset[str]().union(*present.values())
    # a parameter in no file is a finding of its own
    given = {stage.stage: saved.intersection(stage.layouts) for stage in strategy.stages}
    swapped = _swapped_stages(present, given)
    if swapped:
        details = [f"{_rank_span(ranks[stage])} hold the parameters of stage {other}" for stage, other in swapped]
        return [
            Finding(
                check="stages",
                found=f"stages are in another order: {'; '.join(details)}",
                means="the strategy's files were merged under wrong stage numbers, or rank folders were renamed",
                advice="merge the ranks' files again with 'reshard merge-strategy', or put the rank folders in order",
            )
        ]
    findings = []
    for stage, names in present.items():
        misplaced, missing = sorted(names - given[stage]), sorted(given[stage] - names)
        if misplaced:
            owners = sorted(other for other, of_other in given.items() if not of_other.isdisjoint(misplaced))
            also = f"; it lacks {quoted_names(missing)}" if missing else ""
            findings.append(
                Finding(
                    check="stages",
                    found=f"stage {stage} ({_rank_span(ranks[stage])}) holds {quoted_names(misplaced)}, which the "
                    f"strategy gives to {_stages(owners)} only{also}",
                    means="the saving job assigned layers to stages in another way, or had another number of stages "
                    "or of devices in each",
                    advice="use the strategy that the saving job wrote; 'reshard make-strategy' with "
                    f"{option('layers')} makes one with other layers in each stage",
                )
            )
    for stage, names in present.items():
        missing = sorted(given[stage] - names)
        if missing and names <= given[stage]:
            findings.append(
                Finding(
                    check="stages",
                    severity=Severity.NOTE
                    if all(len([*strategy.stages_with(name)]) > 1 for name in missing)
                    else Severity.PROBLEM,
                    found=f"stage {stage} ({_rank_span(ranks[stage])}) lacks {quoted_names(missing)}, which other "
                    "stages' ranks hold",
                    means="only one stage saved what the strategy calls shared, or the saving job assigned layers to "
                    "stages in another way",
                    advice="nothing is lost if parameters are the same in all stages: the saved ones are read",
                )
            )
    return findings


def _swapped_stages(present: Mapping[int, _Names], given: Mapping[int, _Names]) -> list[tuple[int, int]]:
    """(stage of the ranks, stage whose names they hold), if exchanging stages explains all names."""
    best = {stage: _most_similar_stage(names, given, stage) for stage, names in present.items()}
    if sorted(best.values()) != sorted(best):
        return []
    return [(stage, other) for stage, other in best.items() if other != stage]


def _most_similar_stage(names: _Names, given: Mapping[int, _Names], own: int) -> int:
    """The stage with the most similar names; its own, if no other is more similar."""
    return max(given, key=lambda stage: (len(names & given[stage]) / max(1, len(names | given[stage])), stage == own))


def name_findings(catalog: CheckpointCatalog, strategy: Strategy) -> list[Finding]:
    """Names that only the strategy has, or only the files."""
    saved = _names_on(catalog, catalog.records)
    in_strategy = dict.fromkeys(name for stage in strategy.stages for name in stage.layouts)
    missing = [name for name in in_strategy if name not in saved]
    # the state of training, such as global_step, is not a part of the network
    unknown = [
        name
        for name in sorted(saved)
        if name not in strategy.parameters and any(prod(shape) > 1 for shape in _shapes(catalog, name))
    ]
    findings = []
    renaming = guess_renaming(missing, unknown)
    if renaming is not None:
        findings.append(
            Finding(
                check="names",
                found=f"{renaming.fitting} of the {counted(len(missing), 'name')} that only the strategy has are in "
                f"the files, {renaming}: {missing[0]!r}",
                means="the network was wrapped in another cell when one of them was saved, or its attributes were "
                "renamed",
                advice=f"{OWN_STRATEGY}, or save the checkpoint of the same cell",
            )
        )
        renamed = {renaming.applied(name) for name in missing}
        missing = [name for name in missing if renaming.applied(name) not in saved]
        unknown = [name for name in unknown if name not in renamed]
    if missing:
        findings.append(_missing_finding(missing, saved, strategy))
    if unknown:
        findings.append(_unknown_finding(unknown, catalog))
    return findings


def _missing_finding(missing: Sequence[str], saved: _Names, strategy: Strategy) -> Finding:
    # adam_m of one parameter is lost if adam_m of another was saved; if none was, this is no accident
    saved_kinds = {"", *map(_state_kind, saved)}
    states_not_saved = len(missing) < len(strategy.parameters) and saved_kinds.isdisjoint(map(_state_kind, missing))
    found = f"in the strategy, and in no file: {quoted_names(missing)}"
    if states_not_saved:
        return Finding(
            check="names",
            severity=Severity.NOTE,
            found=found,
            means="optimizer states were not saved",
            advice=f"nothing, if the target has no place for them; else allow it with {option('allow_missing')}",
        )
    return Finding(check="names", found=found, means="another network, or not all of it was saved", advice=OWN_STRATEGY)


def _unknown_finding(unknown: Sequence[str], catalog: CheckpointCatalog) -> Finding:
    found = f"in files, and not in the strategy: {quoted_names(unknown)}"
    unequal = [name for name in unknown if len(_shapes(catalog, name)) > 1]
    if unequal:
        return Finding(
            check="names",
            found=found,
            means=f"their shapes differ between ranks ({quoted_names(unequal)}): they are cut, and no layout says how",
            advice=OWN_STRATEGY,
        )
    return Finding(
        check="names",
        severity=Severity.NOTE,
        found=found,
        means="another network, or parameters that no operator cuts, which every rank holds whole",
        advice="nothing, if they are whole: they are copied unchanged to every target rank",
    )


def _names_on(catalog: CheckpointCatalog, ranks: Iterable[int]) -> _Names:
    return frozenset[str]().union(*(index.entries for index in catalog.indexes(ranks)))


def _shapes(catalog: CheckpointCatalog, name: str) -> set[Shape]:
    return {index.entries[name].shape for index in catalog.indexes() if name in index.entries}


def _state_kind(name: str) -> str:
    """The prefix that makes a parameter's name that of its optimizer state, `adam_m.`; empty for other names."""
    return name.removesuffix(owner_of(name, frozenset()))


def _rank_span(ranks: range) -> str:
    return f"rank_{ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start}-{ranks.stop - 1}"


def _stages(numbers: Sequence[int]) -> str:
    return f"stage{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"

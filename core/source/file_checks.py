"""Compares the ranks of a strategy with those of a checkpoint, and tells damaged files from usable ones."""

from collections.abc import Sequence

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.damage_policy import NO_FILE
from reshard.core.checkpoint.torn_files import torn_ranks
from reshard.core.runtime.wording import counted, rank_names, ranks_text
from reshard.core.source.absences import is_marked
from reshard.core.source.findings import OWN_STRATEGY, Finding, Severity
from reshard.core.source.own_strategy import OwnStrategy, file_mismatch
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option, source_option

_MAX_RANKS = 10
REDUNDANCY_REMOVED = Finding(
    check="files",
    severity=Severity.NOTE,
    found="redundancy was removed: slices that several ranks share are in one rank's file only",
    means="the checkpoint was saved with remove_redundancy=True",
    advice="nothing: a conversion with its strategy finds the rank that holds each slice",
)


def ranks_with_files(catalog: CheckpointCatalog) -> list[int]:
    """The ranks that have a file, usable or not."""
    return sorted(catalog.records.keys() | {rank for rank, why in catalog.lost.items() if why != NO_FILE})


def rank_findings(catalog: CheckpointCatalog, strategy: Strategy) -> list[Finding]:
    """Ranks that only the strategy has, or only the checkpoint."""
    present = ranks_with_files(catalog)
    missing = [rank for rank in strategy.ranks if rank not in present]
    extra = [rank for rank in present if rank not in strategy.ranks]
    findings = [_extra_ranks_finding(catalog, strategy, present, extra)] if extra else []
    if missing:
        factor, rest = divmod(len(strategy.ranks), len(present))
        is_multiple = rest == 0 and missing == [*range(len(present), len(strategy.ranks))]
        findings.append(
            Finding(
                check="ranks",
                found=f"the checkpoint has {counted(len(present), 'rank')}, the strategy {len(strategy.ranks)}; "
                f"missing: {rank_names(missing, _MAX_RANKS)}",
                means=f"it is the strategy of a job of {factor} times as many devices, or only a part of the ranks was "
                "copied here"
                if is_multiple
                else "these ranks' folders were not copied, or saving was interrupted",
                advice=f"add the missing rank folders, or {OWN_STRATEGY}; 'reshard recover' tells whether other ranks "
                "hold the same",
            )
        )
    return findings


def _extra_ranks_finding(
    catalog: CheckpointCatalog, strategy: Strategy, present: Sequence[int], extra: Sequence[int]
) -> Finding:
    names = {name for rank in extra if rank in catalog.records for name in catalog.records[rank].index.entries}
    if not strategy.merged and not names >= strategy.parameters and len(present) % strategy.devices_per_stage == 0:
        return Finding(
            check="ranks",
            severity=Severity.NOTE,
            found=f"the strategy is stage {strategy.stages[0].stage}'s own, of {counted(len(strategy.ranks), 'rank')}; "
            f"the other {counted(len(extra), 'rank')} hold other parameters",
            means="the strategy given is that of one stage of several",
            advice="name the directory of all ranks' strategy files to convert everything; this one converts its stage "
            "alone",
        )
    factor, rest = divmod(len(present), len(strategy.ranks))
    return Finding(
        check="ranks",
        found=f"the checkpoint has {counted(len(present), 'rank')}, the strategy {len(strategy.ranks)}; "
        f"too many: {rank_names(extra, _MAX_RANKS)}",
        means="it is another job's strategy"
        if rest
        else f"the checkpoint is from a job with {factor} times as many devices, for example with more data parallel; "
        "or the strategy is one stage's own",
        advice=f"{OWN_STRATEGY}: the directory of all its ranks' strategy files",
    )


def is_of_other_size(catalog: CheckpointCatalog, strategy: Strategy, findings: Sequence[Finding]) -> bool:
    """True if the saving job seems to have had more or fewer ranks than the strategy.

    Then equal contents of ranks say nothing about that job's layouts.
    """
    is_wrong = any(finding.check == "ranks" and finding.severity is Severity.PROBLEM for finding in findings)
    return is_wrong and ranks_with_files(catalog)[-1] != strategy.ranks[-1]


def file_findings(catalog: CheckpointCatalog, strategy: Strategy) -> list[Finding]:
    """Files that cannot be used, together if the reason is the same."""
    damaged = {rank: why for rank, why in catalog.lost.items() if why != NO_FILE}
    torn = torn_ranks({rank: record for rank, record in catalog.records.items() if rank in strategy.ranks}, strategy)
    ranks_of: dict[str, list[int]] = {}
    for rank, why in sorted((damaged | torn).items()):
        ranks_of.setdefault(why, []).append(rank)
    return [
        Finding(
            check="files",
            found=f"{_files_of(ranks)} cannot be used: {why}",
            means="they are damaged, incomplete or missing",
            advice="'reshard recover' tells whether other ranks hold the same, and 'reshard convert' with "
            f"{option('recover', True)} takes it from them",
        )
        for why, ranks in ranks_of.items()
    ]


def _files_of(ranks: Sequence[int]) -> str:
    return f"rank_{ranks[0]}'s file" if len(ranks) == 1 else f"the files of ranks {ranks_text(ranks)}"


def record_findings(catalog: CheckpointCatalog, own: OwnStrategy) -> list[Finding]:
    """Files that do not match the checkpoint's own records."""
    mismatch = file_mismatch(catalog, own.manifest)
    if mismatch is None:
        return []
    return [
        Finding(
            check="files",
            found=mismatch,
            means="files were replaced after reshard wrote the checkpoint, so its own strategy may not apply to them",
            advice=f"give their strategy with {source_option('source_strategy')}",
        )
    ]


def redundancy_findings(catalog: CheckpointCatalog) -> list[Finding]:
    """A note if files say that redundancy was removed."""
    return [REDUNDANCY_REMOVED] if is_marked(catalog) else []

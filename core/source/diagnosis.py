"""Whether a strategy belongs to a checkpoint, and if not, where they part; all of it, not just what comes first.

A conversion stops at the first contradiction. Here everything is looked at by itself, from names, shapes and samples
of contents, and each finding says what it probably means and what to do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from reshard.core.checkpoint.catalog.builder import build_catalog
from reshard.core.checkpoint.catalog.damage_policy import NO_FILE, DamagePolicy
from reshard.core.checkpoint.catalog.records import CatalogRecord, CheckpointCatalog
from reshard.core.checkpoint.catalog.survey import CheckpointShape, CheckpointSurvey, survey
from reshard.core.errors import InputError
from reshard.core.plan.matching import lost_text, match_parameters
from reshard.core.plan.stage_shards import StageShards, integrated_by_shapes, names_in_order, shards_by_stage
from reshard.core.request.conversion import IntegratedSave
from reshard.core.runtime.keys import source_key
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted, rank_names, ranks_text
from reshard.core.source.damage import mixed_steps, scattered, torn_ranks
from reshard.core.source.own_strategy import OwnStrategy, file_mismatch, read_own_strategy
from reshard.core.source.sample_checks import ContentMisfits, content_misfits
from reshard.core.source.strategy_checks import (
    Misfit,
    Severity,
    likeness_misfits,
    listed,
    made_wholes,
    name_misfits,
    shape_misfits,
    stage_misfits,
)
from reshard.core.strategy.files import read_strategy
from reshard.core.strategy.model import Strategy

CHECKS = ("ranks", "files", "stages", "names", "shapes", "contents")
"""What is looked at, in this order."""
_MOST_LOST = 4
_MOST_SAMPLED = 512
_MOST_SAMPLED_ENCRYPTED = 8
_STATE_BYTES = 8
"""What is as small may be a step's number, which has to be the same on all ranks."""


class Finding(Summary):
    """One thing that was found; the fields are those of `reshard.core.source.strategy_checks.Misfit`."""

    check: str
    severity: Severity
    found: str
    means: str
    advice: str


class Diagnosis(Summary):
    """What there is to say of a checkpoint and a strategy.

    Attributes:
        source: URL of the checkpoint.
        strategy: URL of the strategy; empty if none was given.
        fits: whether converting the checkpoint by the strategy would give what is meant; None: there is no strategy.
        facts: (name, text) of both, for a table.
        findings: problems first.
        not_checked: what of `CHECKS` could not be looked at, because of what else was found.
    """

    source: str
    strategy: str
    fits: bool | None
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...] = ()


def diagnose(
    source: str,
    source_strategy: str = "",
    *,
    step: str = "",
    source_prefix: str = "",
    integrated_save: IntegratedSave = IntegratedSave.AUTO,
    workers: int = 8,
) -> Diagnosis:
    """Looks at a checkpoint, and at a strategy that is said to be its own.

    `integrated_save`: whether every rank holds whole tensors, whatever the strategy cuts.

    Raises:
        InputError: one of them cannot be read at all, or which files are meant cannot be told.
        StorageError: a storage failed.
    """
    found = survey(source)
    strategy = read_strategy(source_strategy) if source_strategy else None
    if found.shape is CheckpointShape.UNIFIED:
        return _of_unified(found, step, source_prefix, source_strategy)
    own = None if strategy else read_own_strategy(source)
    if own is not None:
        strategy = own.strategy
        if integrated_save is IntegratedSave.AUTO:
            integrated_save = IntegratedSave.NO  # reshard writes slices
    catalog = _catalog(found, step, source_prefix, workers)
    facts = _facts_of_checkpoint(catalog)
    if strategy is None:
        removed = _removed(catalog)
        return Diagnosis(
            source=found.url,
            strategy="",
            fits=True if catalog.world_size == 1 and not removed else None,
            facts=(*facts, *_needed(catalog)),
            findings=_ordered(removed),
        )
    facts += (("strategy", f"{strategy.origin}: {_sizes(strategy)}"),)
    misfits = [*_rank_misfits(catalog, strategy), *_file_misfits(catalog, strategy)]
    if own is not None:
        facts += (("note", own.note),)
        misfits += _record_misfits(catalog, own)
    unchecked: tuple[str, ...] = CHECKS[2:]
    if catalog.records.keys() & set(strategy.ranks):
        within = _within(catalog, strategy)
        of_contents, held = _of_contents(catalog, within, strategy, integrated_save)
        unchecked = ("contents",) if _is_of_other_size(catalog, strategy, misfits) else ()
        misfits += [each for each in of_contents if each.check not in unchecked]
        made = made_wholes(held)
        if made and not unchecked and not any(each.check in ("shapes", "contents") for each in of_contents):
            told = "the strategy tells no shapes, and shards do not show along which axis they were cut"
            facts += (("makes", f"{made}; see that they are the network's: {told}"),)
    findings = _ordered(misfits)
    return Diagnosis(
        source=found.url,
        strategy=strategy.origin,
        fits=not any(each.severity is Severity.PROBLEM for each in findings),
        facts=facts,
        findings=findings,
        not_checked=unchecked,
    )


def _of_contents(
    catalog: CheckpointCatalog, within: CheckpointCatalog, strategy: Strategy, asked: IntegratedSave
) -> tuple[list[Misfit], Mapping[str, Sequence[StageShards]]]:
    """What stages, names, shapes and contents show, and what the ranks that the strategy has hold by it."""
    misfits = [*stage_misfits(within, strategy), *name_misfits(catalog if strategy.merged else within, strategy)]
    problems: list[str] = []
    held = shards_by_stage(within, strategy, names_in_order(within), problems)
    misfits += [
        Misfit(
            "shapes",
            problem,
            "ranks of one stage were saved by different jobs or steps, or they are of different stages",
            "name one step with --step, or the files of one job",
        )
        for problem in problems
    ]
    # to read anything of an encrypted file, much of it has to be decrypted
    most = _MOST_SAMPLED if source_key() is None else _MOST_SAMPLED_ENCRYPTED
    contents = content_misfits(within, held, most=most, may_be_whole=asked is not IntegratedSave.AUTO)
    by_shapes = integrated_by_shapes(held, None, {})
    integrated = bool(by_shapes) if asked is IntegratedSave.AUTO else asked is IntegratedSave.YES
    undecided = asked is IntegratedSave.AUTO and by_shapes is None and bool(contents.whole)
    of_shapes = shape_misfits(held, undecided or (integrated and not contents.sliced))
    if integrated and not of_shapes and not contents.sliced:
        of_shapes.append(_INTEGRATED)
    elif not integrated and not undecided:
        of_shapes += likeness_misfits(held)
    misfits += of_shapes
    if undecided:
        misfits.append(_undecided(contents))
    if integrated and contents.sliced and (asked is IntegratedSave.YES or not of_shapes):
        misfits.append(_not_integrated(contents))
    misfits += [*contents.found, *_removed(within)]
    if any(each.severity is Severity.PROBLEM for each in misfits) or within.lost:
        return misfits, held
    return misfits + _of_match(within, strategy, asked), held


_INTEGRATED = Misfit(
    "shapes",
    "ranks hold whole tensors although the strategy cuts them",
    "the checkpoint was saved whole (integrated_save)",
    "nothing: a conversion takes them as wholes",
    Severity.NOTE,
)


def _undecided(contents: ContentMisfits) -> Misfit:
    return Misfit(
        "contents",
        f"ranks hold the same although the strategy cuts it: {listed(contents.whole, '; ')}",
        "the checkpoint was saved whole on every rank (integrated_save), or its slices are equal (experts copied from "
        "one, layers initialized from one seed); no known shape decides it",
        "pass --integrated-save yes if the tensors are whole, --integrated-save no if they are slices",
    )


def _not_integrated(contents: ContentMisfits) -> Misfit:
    return Misfit(
        "contents",
        f"ranks are taken to hold whole tensors, but these differ: {listed(contents.sliced, '; ')}",
        "ranks hold slices, or copies that were saved at different moments",
        "pass --integrated-save no if they are slices",
    )


def _of_match(catalog: CheckpointCatalog, strategy: Strategy, asked: IntegratedSave) -> list[Misfit]:
    """What a conversion would refuse besides, and what no rank holds."""
    try:
        match = match_parameters(catalog, strategy, None, integrated_save=asked)
    except InputError as error:
        return [Misfit("shapes", str(error), "a conversion would refuse it", "use the strategy of the saving job")]
    misfits = [
        Misfit("files", told, "rank folders were copied from different steps", "name a step with --step, or copy anew")
        for told in mixed_steps(catalog, match)
    ]
    if scattered(catalog, match) and not any(map(_says_removed, catalog.records.values())):
        misfits.append(_REMOVED)
    if not match.lost:
        return misfits
    told = "; ".join(map(lost_text, match.lost[:_MOST_LOST]))
    more = f"; and {len(match.lost) - _MOST_LOST} more" if len(match.lost) > _MOST_LOST else ""
    return [
        *misfits,
        Misfit(
            "files",
            f"{told}{more}",
            "files lost parameters, or redundancy was removed under another strategy",
            "use the strategy of the saving job; 'reshard recover' lists what is left",
        ),
    ]


def _catalog(found: CheckpointSurvey, step: str, source_prefix: str, workers: int) -> CheckpointCatalog:
    """The files of all ranks up to the last; those that have none, or a damaged one, are the lost ones."""
    last = max(found.ranks, default=0)
    return build_catalog(
        found.url,
        range(last + 1),
        step=step or None,
        source_prefix=source_prefix or None,
        digest=lambda _, entry: entry.size_bytes <= _STATE_BYTES,
        check_crc=False,
        workers=workers,
        found=found,
        damage=DamagePolicy(recovers=True),
    )


def _within(catalog: CheckpointCatalog, strategy: Strategy) -> CheckpointCatalog:
    """The catalog without ranks that the strategy does not have."""
    ranks = set(strategy.ranks)
    return replace(
        catalog,
        records={rank: record for rank, record in catalog.records.items() if rank in ranks},
        lost={rank: why for rank, why in catalog.lost.items() if rank in ranks},
    )


def _rank_misfits(catalog: CheckpointCatalog, strategy: Strategy) -> list[Misfit]:
    there = _ranks_with_files(catalog)
    missing = [rank for rank in strategy.ranks if rank not in there]
    extra = [rank for rank in there if rank not in strategy.ranks]
    misfits = []
    if extra:
        misfits.append(_too_many(catalog, strategy, there, extra))
    if missing:
        ratio = len(strategy.ranks) / len(there)
        halved = ratio == int(ratio) and missing == [*range(len(there), len(strategy.ranks))]
        misfits.append(
            Misfit(
                "ranks",
                f"the checkpoint has {counted(len(there), 'rank')}, the strategy {len(strategy.ranks)}; missing: "
                f"{rank_names(missing, 10)}",
                f"it is the strategy of a job of {int(ratio)} times as many devices, or only a part of the ranks was "
                "copied here"
                if halved
                else "these ranks' folders were not copied, or saving was interrupted",
                "add the missing rank folders, or use the strategy of the job that saved it; 'reshard recover' tells "
                "whether other ranks hold the same",
            )
        )
    return misfits


def _is_of_other_size(catalog: CheckpointCatalog, strategy: Strategy, misfits: Sequence[Misfit]) -> bool:
    """Whether the job that saved the checkpoint seems to have had more or fewer ranks than the strategy.

    Then what ranks share says nothing of how that job was set up.
    """
    is_wrong = any(each.check == "ranks" and each.severity is Severity.PROBLEM for each in misfits)
    return is_wrong and _ranks_with_files(catalog)[-1] != strategy.ranks[-1]


def _ranks_with_files(catalog: CheckpointCatalog) -> list[int]:
    """The ranks that have a file, whether it can be used or not."""
    return sorted(catalog.records.keys() | {rank for rank, why in catalog.lost.items() if why != NO_FILE})


def _too_many(catalog: CheckpointCatalog, strategy: Strategy, there: Sequence[int], extra: Sequence[int]) -> Misfit:
    count = f"the checkpoint has {counted(len(there), 'rank')}, the strategy {len(strategy.ranks)}; too many: "
    names = {name for rank in extra if rank in catalog.records for name in catalog.records[rank].index.entries}
    if not strategy.merged and not names >= strategy.parameters and len(there) % strategy.devices_per_stage == 0:
        stage = strategy.stages[0].stage
        return Misfit(
            "ranks",
            f"the strategy is stage {stage}'s own, of {counted(len(strategy.ranks), 'rank')}; the other "
            f"{counted(len(extra), 'rank')} hold other parameters",
            "one stage's strategy of several was named",
            "name the directory of all ranks' strategy files to convert everything; with this one only the stage is",
            Severity.NOTE,
        )
    factor, rest = divmod(len(there), len(strategy.ranks))
    times = (
        f"a job of {factor} times as many devices saved it, more data parallel say" if rest == 0 else "another job's"
    )
    return Misfit(
        "ranks",
        f"{count}{rank_names(extra, 10)}",
        f"the strategy is of another world size: {times}; or one stage's own"
        if rest == 0
        else "it is another job's strategy",
        "use the strategy of the job that saved the checkpoint: the directory of all its ranks' strategy files",
    )


def _file_misfits(catalog: CheckpointCatalog, strategy: Strategy) -> list[Misfit]:
    damaged = {rank: why for rank, why in catalog.lost.items() if why != NO_FILE}
    torn = torn_ranks({rank: record for rank, record in catalog.records.items() if rank in strategy.ranks}, strategy)
    advice = "'reshard recover' tells whether other ranks hold the same, and 'convert --recover' takes it from them"
    ranks_of: dict[str, list[int]] = {}
    for rank, why in sorted((damaged | torn).items()):
        ranks_of.setdefault(why, []).append(rank)
    return [
        Misfit(
            "files",
            f"{_files_of(ranks)} cannot be used: {why}",
            "damaged, not written to the end, or not written at all",
            advice,
        )
        for why, ranks in ranks_of.items()
    ]


def _record_misfits(catalog: CheckpointCatalog, own: OwnStrategy) -> list[Misfit]:
    """A misfit if the files do not match the checkpoint's own records."""
    mismatch = file_mismatch(catalog, own.manifest)
    if mismatch is None:
        return []
    means = "files were replaced since reshard converted it: its own strategy may not be theirs"
    return [Misfit("files", mismatch, means, "name their strategy with --source-strategy")]


def _files_of(ranks: Sequence[int]) -> str:
    return f"rank_{ranks[0]}'s file" if len(ranks) == 1 else f"the files of ranks {ranks_text(ranks)}"


def _removed(catalog: CheckpointCatalog) -> list[Misfit]:
    """That redundancy was removed, if files say so."""
    return [_REMOVED] if any(map(_says_removed, catalog.records.values())) else []


def _says_removed(record: CatalogRecord) -> bool:
    return record.index.redundancy_removed


_REMOVED = Misfit(
    "files",
    "redundancy was removed: slices that several ranks share are in one rank's file only",
    "it was saved with remove_redundancy=True",
    "nothing: with its strategy a conversion finds who has what",
    Severity.NOTE,
)


def _of_unified(found: CheckpointSurvey, step: str, source_prefix: str, source_strategy: str) -> Diagnosis:
    """What there is to say of whole tensors, whose files are opened: an index has to be of the files beside it."""
    catalog = build_catalog(
        found.url,
        None,
        step=step or None,
        source_prefix=source_prefix or None,
        digest=lambda *_: False,
        check_crc=False,
        found=found,
    )
    misfits = []
    if source_strategy:
        misfits.append(
            Misfit(
                "ranks",
                "the checkpoint is unified: its tensors are whole, and belong to no rank",
                "it was exported, as Hugging Face's checkpoints are",
                "leave out --source-strategy: it needs none",
            )
        )
    facts = (
        ("checkpoint", f"{found.url}: unified, {counted(len(catalog.records), 'file')}, {_parameters(catalog)}"),
        ("needs", "no strategy: its tensors are whole"),
    )
    return Diagnosis(
        source=found.url, strategy=source_strategy, fits=not misfits, facts=facts, findings=_ordered(misfits)
    )


def _facts_of_checkpoint(catalog: CheckpointCatalog) -> tuple[tuple[str, str], ...]:
    step = f", step {catalog.step}" if catalog.step else ""
    there = _ranks_with_files(catalog)
    absent = sorted(catalog.lost.keys() - set(there))
    facts = [
        ("checkpoint", f"{catalog.url}{step}: {counted(len(there), 'rank')}, {_parameters(catalog)}"),
        ("holding", "; ".join(_groups(catalog))),
    ]
    if absent:
        facts.append(("no files", f"ranks {ranks_text(absent)}, which come before others"))
    return tuple(facts)


def _parameters(catalog: CheckpointCatalog) -> str:
    return counted(len({name for record in catalog.records.values() for name in record.index.entries}), "parameter")


def _groups(catalog: CheckpointCatalog) -> list[str]:
    """Which ranks hold the same names, as the ranks of a stage do."""
    groups: dict[frozenset[str], list[int]] = {}
    known: dict[int, frozenset[str]] = {}
    for rank, record in catalog.records.items():
        names = known.setdefault(id(record.index), frozenset(record.index.entries))
        groups.setdefault(names, []).append(rank)
    told = [
        f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks)}: {counted(len(names), 'parameter')}"
        for names, ranks in groups.items()
    ]
    return told if len(told) <= 8 else [*told[:8], f"and {len(told) - 8} more kinds of files"]


def _needed(catalog: CheckpointCatalog) -> tuple[tuple[str, str], ...]:
    count = catalog.world_size
    if count == 1:
        return (("needs", "no strategy, if its tensors are whole, as one rank's are"),)
    sets = {frozenset(record.index.entries) for record in catalog.records.values()}
    stages = len(sets) if count % len(sets) == 0 and len(sets) <= count // 2 else 0
    of_stages = f", of {counted(stages, 'stage')} it seems" if stages else ""
    return (
        (
            "needs",
            f"a strategy of {count} ranks{of_stages}: --source-strategy, the directory that the job's ranks wrote",
        ),
    )


def _sizes(strategy: Strategy) -> str:
    own = "" if strategy.merged else f" (stage {strategy.stages[0].stage}'s own)"
    stages = f"{counted(len(strategy.stages), 'stage')} of {counted(strategy.devices_per_stage, 'device')}"
    return f"{stages}{own}, {counted(len(strategy.parameters), 'parameter')}"


def _ordered(misfits: Sequence[Misfit]) -> tuple[Finding, ...]:
    ordered = sorted(misfits, key=lambda each: (each.severity is Severity.NOTE, CHECKS.index(each.check)))
    return tuple(
        Finding(check=each.check, severity=each.severity, found=each.found, means=each.means, advice=each.advice)
        for each in ordered
    )

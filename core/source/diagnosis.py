"""Diagnoses whether a strategy belongs to a checkpoint, and if not, all that contradicts it.

A conversion stops at the first contradiction. A diagnosis checks ranks, files, names, shapes and samples of contents
one by one, and each finding says what it probably means and what to do.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reshard.core.changes.changes import NO_CHANGES
from reshard.core.changes.model_config import CONFIG_NAME
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.damage_policy import DamagePolicy
from reshard.core.checkpoint.shared_bytes import shared_bytes
from reshard.core.errors import CatalogError, InputError
from reshard.core.layouts.any_layout import read_any_strategy
from reshard.core.layouts.cataloging import catalog_of
from reshard.core.layouts.source_layout import CatalogOptions, FoundCheckpoint, SelfEvident
from reshard.core.layouts.survey import survey
from reshard.core.plan.matching import lost_text, match_parameters
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.stage_shards import SourceShards, StageShards, integrated_by_shapes
from reshard.core.plan.whole_shapes import (
    BY_RECORD,
    Whole,
    WholeShapes,
    summarize_shapes,
    wholes_of_match,
    wholes_of_shards,
)
from reshard.core.request.source import DiagnosisRequest
from reshard.core.runtime.keys import source_key
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed
from reshard.core.source.absences import absence_findings
from reshard.core.source.adapter_facts import adapter_facts
from reshard.core.source.diagnosis_report import Diagnosis
from reshard.core.source.facts import checkpoint_facts, needed_text, parameter_count_text, sizes_text
from reshard.core.source.file_checks import (
    REDUNDANCY_REMOVED,
    file_findings,
    is_of_other_size,
    rank_findings,
    record_findings,
    redundancy_findings,
)
from reshard.core.source.findings import OWN_STRATEGY, Finding, Severity
from reshard.core.source.gaps import mixed_steps, scattered
from reshard.core.source.model_directory import MODEL_CHECKS, CheckedModel, ModelChoice, check_model
from reshard.core.source.own_strategy import OwnStrategy, read_own_strategy
from reshard.core.source.sample_checks import SampleFindings, sample_findings
from reshard.core.source.shape_checks import shape_findings, similarity_findings
from reshard.core.source.sibling_checks import sibling_findings
from reshard.core.source.strategy_beside import look_beside
from reshard.core.source.strategy_checks import name_findings, stage_findings
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option, source_option

if TYPE_CHECKING:
    from reshard.core.plan.preset_route import CompiledPreset

CHECKS = ("ranks", "files", "stages", "names", "shapes", "contents")
"""The checks, in their order."""
_MAX_LOST = 4
_SAMPLES = 512
_SAMPLES_ENCRYPTED = 8
"""A sample of an encrypted file takes the decryption of much of it."""
_STATE_BYTES = 8
"""Parameters this small may be a step's number, which has to be the same on all ranks."""


def diagnose(request: DiagnosisRequest) -> Diagnosis:
    """Check a checkpoint, and a strategy that is said to be its own.

    Without a strategy it is the one in the checkpoint's own records, or the only one beside it.

    Raises:
        InputError: checkpoint or strategy cannot be read at all, or the choice of files is ambiguous.
        StorageError: a storage failed.
    """
    current_progress().begin("reading headers")
    if not (request.source_strategy or request.like or request.root):
        choice = ModelChoice(request.preset, tuple(request.allow_model))
        checked = check_model(request.source, choice, request.worker_count)
        if checked is not None:
            _check_no_training(checked, request)
            return _diagnosis_of_model(checked)
    found = survey(request.source, request.step)
    options = CatalogOptions(
        step=request.step or None,
        source_prefix=request.source_prefix or None,
        root=request.root,
        check_crc=False,
        workers=request.worker_count,
    )
    source_strategy, integrated_save = request.source_strategy, request.integrated_save
    evident = found.self_evident
    is_finding = evident is not None and bool(evident.superfluous)
    if source_strategy and found.is_self_described and not is_finding:
        raise CatalogError(found.strategy_refusal)
    strategy = read_any_strategy(source_strategy) if source_strategy else found.strategy
    if evident is not None:
        _check_not_compared(found, request)
        return _diagnose_self_evident(found, evident, source_strategy, options)
    own = None if strategy or found.is_self_described else read_own_strategy(request.source)
    if own is not None:
        strategy = own.strategy
    catalog, why_none = _catalog_with_lost(found, options), ""
    if strategy is None and request.auto_strategy:
        strategy, why_none = look_beside(found)
        source_strategy = strategy.origin if strategy else ""
    if strategy is None:
        _check_not_compared(found, request)
        return _diagnose_without_strategy(catalog, why_none)
    # reshard writes slices, and so do programs whose metadata says how tensors are sharded
    are_slices = own is not None or found.is_self_described
    if are_slices and integrated_save is IntegratedSave.AUTO:
        integrated_save = IntegratedSave.NO
    by_strategy = {"source_strategy": source_strategy, "integrated_save": integrated_save}
    return _diagnose_by_strategy(catalog, strategy, own, request.model_copy(update=by_strategy))


def _compiled(request: DiagnosisRequest) -> "CompiledPreset | None":
    """The preset, compiled for the source's names; None without one."""
    if not request.preset:
        return None
    from reshard.core.source.preset_changes import PresetChoice, compiled_for  # loads YAML

    is_directory = bool(request.like) and not request.like.endswith(".json")
    choice = PresetChoice(
        request.preset,
        tuple(request.switch),
        request.training_config,
        tuple(request.allow_model),
        request.like if is_directory else "",
    )
    return compiled_for(choice, request, None)


def _diagnose_without_strategy(catalog: CheckpointCatalog, note: str) -> Diagnosis:
    removed = redundancy_findings(catalog)
    return Diagnosis(
        source=catalog.url,
        strategy="",
        fits=True if catalog.world_size == 1 and not removed else None,
        facts=(
            *checkpoint_facts(catalog),
            *adapter_facts(catalog),
            ("needs", needed_text(catalog)),
            *([("note", note)] if note else []),
        ),
        findings=tuple(removed),
    )


def _diagnose_by_strategy(
    catalog: CheckpointCatalog,
    strategy: Strategy,
    own: OwnStrategy | None,
    request: DiagnosisRequest,
) -> Diagnosis:
    """Check a checkpoint of ranks and its strategy; `own` is that of its records, if it was read from there."""
    facts = [*checkpoint_facts(catalog), ("strategy", f"{strategy.origin}: {sizes_text(strategy)}")]
    facts += [("note", each) for each in strategy.notes]
    findings = [*rank_findings(catalog, strategy), *file_findings(catalog, strategy)]
    if own is not None:
        facts.append(("note", own.note))
        findings += record_findings(catalog, own)
    unchecked: tuple[str, ...] = CHECKS[2:]
    shapes = WholeShapes()
    if catalog.records.keys() & set(strategy.ranks):
        checked = _check_parameters(catalog, strategy, request)
        unchecked = ("contents",) if is_of_other_size(catalog, strategy, findings) else ()
        findings += [finding for finding in checked.findings if finding.check not in unchecked]
        shapes = summarize_shapes(checked.wholes)
        if shapes.kinds:
            facts.append(("shapes", str(shapes)))
    return Diagnosis(
        source=catalog.url,
        strategy=strategy.origin,
        fits=not _has_problem(findings),
        facts=tuple(facts),
        findings=_in_order(findings, CHECKS),
        not_checked=unchecked,
        whole_shapes=shapes,
        checks=CHECKS,
    )


def _in_order(findings: Sequence[Finding], checks: Sequence[str]) -> tuple[Finding, ...]:
    """Problems first, each by the order of the checks."""
    return tuple(sorted(findings, key=lambda each: (each.severity is Severity.NOTE, checks.index(each.check))))


def _check_no_training(checked: CheckedModel, request: DiagnosisRequest) -> None:
    if request.switch or request.training_config:
        raise InputError(
            f"{checked.url}: is a model's directory, which is checked by its {CONFIG_NAME} alone: leave out "
            f"{option('switch')} and {option('training_config')}"
        )


def _diagnosis_of_model(checked: CheckedModel) -> Diagnosis:
    """The diagnosis of a model's directory, which needs no strategy; `fits` is None if names could not be checked."""
    findings = checked.findings
    knows = not checked.not_checked or None
    return Diagnosis(
        source=checked.url,
        strategy="",
        fits=False if _has_problem(findings) else knows,
        facts=(*checked.facts, ("needs", "no strategy: its tensors are whole")),
        findings=_in_order(findings, MODEL_CHECKS),
        not_checked=checked.not_checked,
        checks=MODEL_CHECKS,
        loaded=checked.loaded,
    )


class _Checked(Record):
    """Findings about parameters, and the whole tensors that the strategy makes of their shards."""

    findings: list[Finding]
    wholes: Mapping[str, Whole]


def _check_not_compared(found: FoundCheckpoint, request: DiagnosisRequest) -> None:
    if request.like or request.preset:
        raise CatalogError(
            f"{found.url}: no strategy makes whole shapes of its shards, so there is nothing to compare them with: "
            f"leave out {option('like')} and {option('preset')}"
        )


def _has_problem(findings: Sequence[Finding]) -> bool:
    return any(finding.severity is Severity.PROBLEM for finding in findings)


def _check_parameters(catalog: CheckpointCatalog, strategy: Strategy, request: DiagnosisRequest) -> _Checked:
    """Check stages, names, shapes and contents of the parameters on the strategy's ranks."""
    within = _within(catalog, strategy)
    findings = [*stage_findings(within, strategy), *name_findings(catalog if strategy.merged else within, strategy)]
    source_shards = SourceShards(within, strategy)
    shards = source_shards.by_name
    findings += [
        Finding(
            check="shapes",
            found=problem,
            means="ranks of one stage were saved by different jobs or at different steps, or belong to different "
            "stages",
            advice=f"choose a step with {option('step')}, or use the files of one job",
        )
        for problem in source_shards.problems
    ]
    asked = request.integrated_save
    findings += [
        Finding(
            check="files",
            found=f"one file is two slices: {problem}",
            means="symbolic or hard links lead to another rank's file",
            advice=f"put each rank's own file there; pass {option('integrated_save', 'yes')} if every rank holds whole "
            "tensors",
        )
        for problem in shared_bytes(within, None if source_shards.are_whole(asked) else strategy)
    ]
    findings += [*_check_contents(within, shards, asked), *redundancy_findings(within)]
    if not _has_problem(findings) and not within.lost:
        matched = _check_match(within, strategy, source_shards, request)
        return _Checked(findings + matched.findings, matched.wholes)
    return _Checked(findings, wholes_of_shards(shards, integrated=request.integrated_save is IntegratedSave.YES))


def _check_contents(
    catalog: CheckpointCatalog, shards: Mapping[str, Sequence[StageShards]], asked: IntegratedSave
) -> list[Finding]:
    """Check shapes and contents, which together show whether ranks hold whole tensors."""
    limit = _SAMPLES if source_key() is None else _SAMPLES_ENCRYPTED
    samples = sample_findings(catalog, shards, limit=limit, may_be_whole=asked is not IntegratedSave.AUTO)
    by_shapes = integrated_by_shapes(shards, None, {})
    integrated = bool(by_shapes) if asked is IntegratedSave.AUTO else asked is IntegratedSave.YES
    undecided = asked is IntegratedSave.AUTO and by_shapes is None and bool(samples.whole)
    of_shapes = shape_findings(shards, undecided or (integrated and not samples.sliced))
    if integrated and not of_shapes and not samples.sliced:
        of_shapes.append(_INTEGRATED)
    elif not integrated and not undecided:
        of_shapes += similarity_findings(shards)
    of_contents = [_undecided_finding(samples)] if undecided else []
    if integrated and samples.sliced and (asked is IntegratedSave.YES or not of_shapes):
        of_contents.append(_not_integrated_finding(samples))
    return [*of_shapes, *of_contents, *samples.found]


_INTEGRATED = Finding(
    check="shapes",
    severity=Severity.NOTE,
    found="ranks hold whole tensors although the strategy cuts them",
    means="the checkpoint was saved whole (integrated_save)",
    advice="nothing: a conversion reads them as whole tensors",
)


def _undecided_finding(samples: SampleFindings) -> Finding:
    return Finding(
        check="contents",
        found=f"ranks hold the same contents although the strategy cuts them: {listed(samples.whole, separator='; ')}",
        means="the checkpoint was saved whole on every rank (integrated_save), or its slices are equal (experts copied "
        "from one, layers initialized from one seed); no known shape decides it",
        advice=f"pass {option('integrated_save', 'yes')} if the tensors are whole, {option('integrated_save', 'no')} "
        "if they are slices",
    )


def _not_integrated_finding(samples: SampleFindings) -> Finding:
    return Finding(
        check="contents",
        found=f"ranks are taken to hold whole tensors, but these differ: {listed(samples.sliced, separator='; ')}",
        means="ranks hold slices, or replicas that were saved at different moments",
        advice=f"pass {option('integrated_save', 'no')} if they are slices",
    )


def _check_match(
    catalog: CheckpointCatalog,
    strategy: Strategy,
    shards: SourceShards,
    request: DiagnosisRequest,
) -> _Checked:
    """Find other reasons to refuse a conversion, parameters on no rank, and whole shapes that cannot be right."""
    compiled, changes = _compiled(request), NO_CHANGES
    if compiled is not None:
        from reshard.core.source.preset_changes import with_preset

        changes = with_preset(changes, compiled)
    asked = request.integrated_save
    confirmed = {} if request.source_strategy else dict.fromkeys(strategy.parameters, BY_RECORD)
    try:
        inputs = PlanInputs(catalog, strategy, None, catalog.format, integrated_save=asked, changes=changes)
        match = match_parameters(inputs, shards)
        if compiled is not None:
            from reshard.core.plan.preset_checks import check_padding, check_shapes

            check_padding(compiled, match)
            confirmed |= dict.fromkeys(check_shapes(compiled, match), CONFIG_NAME)
    except InputError as error:
        refused = Finding(check="shapes", found=str(error), means="a conversion would refuse it", advice=OWN_STRATEGY)
        integrated = asked is IntegratedSave.YES
        return _Checked([refused], wholes_of_shards(shards.by_name, integrated=integrated))
    findings = [
        Finding(
            check="files",
            found=problem,
            means="rank folders were copied from different steps",
            advice=f"choose a step with {option('step')}, or copy the folders again",
        )
        for problem in mixed_steps(catalog, match)
    ]
    if match.lost:
        findings.append(
            Finding(
                check="files",
                found=listed([*map(lost_text, match.lost)], _MAX_LOST, "; "),
                means="parameters are missing in files, or redundancy was removed under another strategy",
                advice=f"{OWN_STRATEGY}; 'reshard recover' lists what is left",
            )
        )
    elif scattered(catalog, match) and not redundancy_findings(catalog):
        findings += absence_findings(catalog, strategy, shards.by_name) or [REDUNDANCY_REMOVED]
    if request.like:
        from reshard.core.source.shape_reference import compare_shapes, read_known_shapes

        differing, names = compare_shapes(match, read_known_shapes(request.like), request.like)
        findings += differing
        confirmed |= dict.fromkeys(names, request.like)
    wholes = wholes_of_match(match, confirmed)
    if not _has_problem(findings):
        findings += sibling_findings(wholes)
    return _Checked(findings, wholes)


def _catalog_with_lost(found: FoundCheckpoint, options: CatalogOptions) -> CheckpointCatalog:
    """The files of all ranks up to the last; ranks without a usable file are the lost ones."""
    last = max(found.ranks, default=0)
    return catalog_of(
        found,
        replace(
            options,
            ranks=range(last + 1),
            digest=lambda _, entry: entry.size_bytes <= _STATE_BYTES,
            damage=DamagePolicy(recovers=True),
        ),
    )


def _within(catalog: CheckpointCatalog, strategy: Strategy) -> CheckpointCatalog:
    """The catalog without ranks that the strategy does not have."""
    ranks = set(strategy.ranks)
    return replace(
        catalog,
        records={rank: record for rank, record in catalog.records.items() if rank in ranks},
        lost={rank: why for rank, why in catalog.lost.items() if rank in ranks},
    )


def _diagnose_self_evident(
    found: FoundCheckpoint, evident: SelfEvident, source_strategy: str, options: CatalogOptions
) -> Diagnosis:
    """Diagnose a checkpoint that needs no strategy; its files are opened, to compare them with index or metadata."""
    catalog = catalog_of(found, options)
    superfluous = Finding(
        check="ranks",
        found=evident.superfluous,
        means=evident.origin,
        advice=f"leave out {source_option('source_strategy')}: it needs none",
    )
    files = counted(evident.file_count, "file")
    return Diagnosis(
        source=found.url,
        strategy=source_strategy,
        fits=not source_strategy,
        facts=(
            ("checkpoint", f"{found.url}: {evident.title}, {files}, {parameter_count_text(catalog)}"),
            *adapter_facts(catalog),
            ("needs", f"no strategy: {evident.why}"),
            *(("note", note) for note in catalog.notes),
        ),
        findings=(superfluous,) if source_strategy else (),
    )

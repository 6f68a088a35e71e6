"""A scheduled conversion: the newest step that training has saved completely becomes `TARGET/{step}`.

    find the newest complete step -> convert it, unless it is converted -> remove old conversions

Repeated and concurrent runs convert a step once: a conversion's manifest marks it as finished, and a run that finds
another at the same step leaves the step to it.
"""

import logging
import random
from collections.abc import Callable, Iterator
from enum import StrEnum

from pydantic import Field

from reshard.core.conversion import convert
from reshard.core.conversion.report import ConversionReport
from reshard.core.conversion.retention import KeepRules, Retention, apply_retention
from reshard.core.conversion.training_steps import FoundSteps, StepWatch, is_converted
from reshard.core.custody.digests import has_sha256, is_signed
from reshard.core.errors import CatalogError, ConversionError, StoppedError, TargetBusyError
from reshard.core.files.file_names import Step
from reshard.core.layouts.any_layout import read_any_strategy
from reshard.core.layouts.manifests import read_manifest
from reshard.core.reports.blocks import GAP, Block, Facts
from reshard.core.reports.report import Report
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.request.resources import resources_of
from reshard.core.runtime.log import log
from reshard.core.runtime.progress import Progress, SilentProgress, current_progress, reporting_to
from reshard.core.runtime.retry import sleep_unless_stopped, stoppable, with_retries
from reshard.core.runtime.wording import counted, rank_names
from reshard.core.storage.leases.lease_monitor import seen_holders
from reshard.core.storage.leases.remote_lease import RENEWAL_SECONDS
from reshard.core.storage.publishing import STATE_DIRECTORY, working_location
from reshard.core.storage.urls import parse_url
from reshard.core.target.place import check_place
from reshard.core.target.workspace import LEASES_DIRECTORY
from reshard.core.text.options import option, spelled
from reshard.core.text.printing import printable

Convert = Callable[[ConversionRequest], ConversionReport]


class LatestOutcome(StrEnum):
    """How a scheduled conversion ended."""

    CONVERTED = "converted"
    NOTHING_NEW = "nothing new"
    BUSY = "another run is converting it"
    WOULD_CONVERT = "would convert"
    WOULD_WAIT = "would wait"


class LatestReport(Report):
    """The result of a scheduled conversion.

    Attributes:
        outcome: how it ended.
        source: URL of the source.
        step: the newest complete step; None if there is none yet, which only a dry run reports.
        target: URL of its conversion.
        conversion: the report of this run's conversion.
        removed: steps whose conversions were removed, or would be, ascending.
        kept: steps of the source whose conversions stay in the target; empty if all stay.
        notes: steps passed over and conversions not removed, with reasons, in sentences.
        dry_run: True if nothing was done.
    """

    outcome: LatestOutcome
    source: str
    step: str | None
    target: str | None
    conversion: ConversionReport | None = None
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # for people: the document has the outcome
    dry_run: bool = Field(default=False, exclude=True, repr=False)

    @property
    def message(self) -> str:
        """The outcome in a sentence."""
        return {
            LatestOutcome.CONVERTED: f"step {self.step} was converted to {printable(self.target or '')}",
            LatestOutcome.NOTHING_NEW: f"nothing to do: step {self.step}, the newest complete one, is already "
            "converted",
            LatestOutcome.BUSY: f"nothing to do: another run is converting step {self.step}",
            LatestOutcome.WOULD_CONVERT: f"step {self.step} would be converted to {printable(self.target or '')}",
            LatestOutcome.WOULD_WAIT: "would wait for a newer step, which is being written; the newest complete one is "
            + (self.step or "none yet"),
        }[self.outcome]

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The outcome, and what became of earlier conversions."""
        return [
            ("outcome", self.message),
            *([("would be removed" if self.dry_run else "removed", ", ".join(self.removed))] if self.removed else []),
            *([("kept", counted(len(self.kept), "conversion"))] if self.kept else []),
            *(("note", note) for note in self.notes),
        ]

    def blocks(self, engine: str = "") -> Iterator[Block]:
        """Yield its content; `engine` is what carried it out, if that is to be said."""
        if self.conversion:
            yield from self.conversion.blocks(engine)
            yield GAP
        yield Facts(self.facts)


def convert_latest(request: LatestConversionRequest, progress: Progress | None = None) -> LatestReport:
    """Convert the newest complete step in this process; raises what `run_latest` raises."""
    with reporting_to(progress or SilentProgress()), resources_of(request), stoppable():
        return run_latest(request, lambda conversion: convert.convert(conversion, progress))


def run_latest(request: LatestConversionRequest, convert_step: Convert) -> LatestReport:
    """Find the newest complete step, convert it by `convert_step`, and remove old conversions.

    Raises:
        InputError: the request or what it names is wrong; or no step is complete and none is being written.
        VerificationError: a written file is wrong.
        ConversionError: runtime failure, or the run was stopped.
    """
    # fails early: waiting for a job may take long
    with_retries(lambda: check_place(parse_url(request.target)), current_progress().note)
    found = _find(request)
    if found.newest is None and not (request.dry_run and found.awaited):
        reasons = "\n  ".join(found.notes) or "there are no files with a step in their names"
        raise CatalogError(f"{found.source}: holds no complete checkpoint:\n  {reasons}")
    for note in found.notes:  # the report shows them, unless the conversion fails
        log(logging.INFO, note)
    report = _dry_report(request, found) if request.dry_run else _converted(request, found, convert_step)
    log(logging.INFO, report.message)
    if report.outcome is LatestOutcome.BUSY:
        return report
    retention = _retained(request, found)
    return report.model_copy(
        update={"removed": retention.removed, "kept": retention.kept, "notes": report.notes + retention.notes}
    )


def _find(request: LatestConversionRequest) -> FoundSteps:
    note = current_progress().note
    url = request.source_strategy
    ranks = with_retries(lambda: read_any_strategy(url).ranks, note) if url else None
    watch = StepWatch(request, ranks)
    return with_retries(lambda: watch.find(waits=not request.dry_run), note)


def _report(request: LatestConversionRequest, found: FoundSteps, outcome: LatestOutcome) -> LatestReport:
    step = _step(found)
    target = str(parse_url(request.directory_of(str(step)))) if step else None
    return LatestReport(
        outcome=outcome,
        source=found.source,
        step=str(step) if step else None,
        target=target,
        notes=found.notes,
        dry_run=request.dry_run,
    )


def _step(found: FoundSteps) -> Step | None:
    return found.newest.step if found.newest else None


def _dry_report(request: LatestConversionRequest, found: FoundSteps) -> LatestReport:
    if found.awaited:
        waits = tuple(f"would wait for step {each.step}: {each.incomplete}" for each in found.awaited)
        report = _report(request, found, LatestOutcome.WOULD_WAIT)
        return report.model_copy(update={"notes": waits + report.notes})
    if found.newest is not None and found.newest.converted:
        return _nothing_new(request, found)
    report = _report(request, found, LatestOutcome.WOULD_CONVERT)
    unchecked = ("the signature of the source would be checked first",) if request.require_signed_by else ()
    return report.model_copy(update={"notes": (*unchecked, *report.notes)})


def _converted(request: LatestConversionRequest, found: FoundSteps, convert_step: Convert) -> LatestReport:
    conversion = request.conversion_of(str(_step(found)))
    final = parse_url(conversion.target_directory)
    leases = working_location(final).child(STATE_DIRECTORY, LEASES_DIRECTORY)
    files = found.newest.files if found.newest else {}
    while not is_converted(final, found.source, files):
        if seen_holders(leases):
            return _report(request, found, LatestOutcome.BUSY)
        current_progress().note(f"converting step {conversion.step} to {final}")
        try:
            done = convert_step(conversion)
        except TargetBusyError as error:
            # the other run came first; or both came at once on an object store, and both gave way
            current_progress().note(f"{error}; looking again")
            if not sleep_unless_stopped(random.uniform(0.1, 1) * RENEWAL_SECONDS):
                raise StoppedError("stopped before the step was converted") from error
            continue
        if not done.committed:
            raise ConversionError(f"{final}: is not complete: {rank_names(done.missing_ranks, 10)} are not verified")
        return _report(request, found, LatestOutcome.CONVERTED).model_copy(update={"conversion": done})
    return _nothing_new(request, found)


def _nothing_new(request: LatestConversionRequest, found: FoundSteps) -> LatestReport:
    """Return the report on a step that is converted already; what was not asked for then is not added now."""
    report = _report(request, found, LatestOutcome.NOTHING_NEW)
    final = parse_url(request.conversion_of(str(_step(found))).target_directory)
    notes: list[str] = []
    if request.sign and not is_signed(final):
        notes.append(f"{final}: was converted before, and is not signed: 'reshard sign' signs it")
    elif request.hashes_target and (manifest := read_manifest(final)) and not has_sha256(manifest):
        notes.append(
            f"{final}: was converted before, without SHA-256: the same conversion with {option('sha256', 'target')} "
            "adds it"
        )
    return report.model_copy(update={"notes": (*map(spelled, notes), *report.notes)})


def _retained(request: LatestConversionRequest, found: FoundSteps) -> Retention:
    return apply_retention(
        parse_url(request.target),
        found.source,
        KeepRules(request.keep_checkpoint_max, request.keep_checkpoint_per_n_minutes),
        current=_step(found),
        coming=found.newest is not None and not found.newest.converted and request.dry_run,
        dry_run=request.dry_run,
    )

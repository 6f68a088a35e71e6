"""A source's strategy found beside it: used by itself where nothing about it rests on a guess.

It is used if no strategy is named, the source has none of its own, and its ranks are several; if there is exactly one
that lies where trainings leave strategies, beside no other checkpoint of ranks; if all checks of a diagnosis agree with
it, and it has the source's ranks; and if it was there before the checkpoint was saved. A later one may be of a job that
was started since, whose sharding of the same shapes no check can tell from the right one, and so may one beside
another job's checkpoint. Otherwise the source is refused, with the reasons.
"""

import math
from collections.abc import Sequence

from msgspec.structs import replace

from reshard.core.errors import CatalogError, InputError, StorageError, StrategyError
from reshard.core.layouts.source_layout import CatalogOptions, FoundCheckpoint
from reshard.core.layouts.survey import survey
from reshard.core.request.source import DiagnosisRequest, SourceRequest
from reshard.core.runtime.wording import counted, listed, listed_ranks
from reshard.core.source.findings import Finding, Severity
from reshard.core.storage.file_versions import Stamp, read_stamps
from reshard.core.storage.named_options import with_options_of
from reshard.core.storage.urls import Location
from reshard.core.strategy.files import list_strategy_files, read_strategy
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option, source_option, spelled

_MAX_DATED_FILES = 16
"""Ranks save a step at about the same time; on remote storage the time of each file takes a request."""
_MAX_LISTED = 6
_MAX_PROBLEMS = 2


class UnusedStrategyError(CatalogError):
    """There are strategies beside a source of several ranks, and none is to be used without being named.

    Attributes:
        reason: what is in doubt about each of them, in marked text.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


def read_strategy_beside(request: SourceRequest) -> Strategy | None:
    """Return the strategy beside a source whose request names none, with a note that says so; None if there is none.

    Raises:
        UnusedStrategyError: there are strategies, but none is to be used without being named.
        CatalogError: there is no checkpoint.
        StorageError: a transient failure.
    """
    if not request.auto_strategy:
        return None
    found = survey(request.source, request.step)
    places = _candidates_of(found)
    if not places:
        return None
    if len(places) > 1:
        raise _refusal(found, [f"{place}: is one of several" for place in places])
    [place] = places
    with with_options_of(request.source, place):
        try:
            return _checked(found, place, request)
        except StorageError as error:
            if error.transient:
                raise
            reason = f"cannot be read: {error.marked}"
        except _DoubtfulError as doubt:
            reason = str(doubt)
        except InputError as error:
            reason = f"cannot be checked: {error.marked}"
    raise _refusal(found, [f"{place}: {reason}"])


def look_beside(found: FoundCheckpoint) -> tuple[Strategy | None, str]:
    """Return the only strategy beside a checkpoint, unchecked, with a note; or None, and a note on what is there.

    Raises:
        StorageError: a transient failure.
    """
    places = _candidates_of(found)
    if not places:
        return None, ""
    if len(places) > 1:
        there = listed([str(place) for place in places], _MAX_LISTED, " and ")
        return None, f"there are several strategies beside it: {there}"
    [place] = places
    try:
        with with_options_of(found.url, place):
            strategy = read_strategy(str(place))
    except StrategyError as error:
        return None, f"the strategy beside it cannot be used: {error}"
    note = f"no strategy was given: checking {place}, the only one beside the checkpoint"
    return replace(strategy, notes=(note, *strategy.notes)), ""


def _candidates_of(found: FoundCheckpoint) -> Sequence[Location]:
    """Return the strategies beside a checkpoint that needs one: its ranks are several, and it is complete.

    Raises:
        StorageError: a transient failure.
    """
    if found.is_self_described or found.unfinished or len(found.ranks) < 2:
        return ()
    return found.strategies_beside()


class _DoubtfulError(Exception):
    """Why a strategy is not to be used by itself."""


def _checked(found: FoundCheckpoint, place: Location, request: SourceRequest) -> Strategy:
    """Return the only strategy beside a source, with a note, if nothing about it is in doubt."""
    from reshard.core.source.diagnosis import diagnose  # opens sources itself

    strategy = read_strategy(str(place))
    if [*strategy.ranks] != [*found.ranks]:
        raise _DoubtfulError(f"is of ranks {_ranks_text(strategy.ranks)}, the checkpoint of {_ranks_text(found.ranks)}")
    given = request.model_dump(include={"source", "step", "source_prefix", "root", "integrated_save", "workers"})
    diagnosis = diagnose(DiagnosisRequest.model_validate(given | {"source_strategy": str(place)}))
    if not diagnosis.fits or diagnosis.not_checked:
        raise _DoubtfulError(f"contradicts the checkpoint: {_problems_text(diagnosis.findings)}")
    if not _was_there_before(found, place, strategy, request):
        raise _DoubtfulError(
            "is consistent, but newer than the checkpoint: it was copied later, or written by a later job"
        )
    if neighbors := found.neighbors(place):
        there = listed([str(each) for each in neighbors], _MAX_LISTED, " and ")
        raise _DoubtfulError(f"is consistent, but other checkpoints lie beside it, too, and it may be theirs: {there}")
    return replace(strategy, notes=(_note(place), *strategy.notes))


def _ranks_text(ranks: Sequence[int]) -> str:
    return listed_ranks(ranks, _MAX_LISTED)


def _problems_text(findings: Sequence[Finding]) -> str:
    problems = [f"{each.found}: {each.means}" for each in findings if each.severity is Severity.PROBLEM]
    return listed(problems, _MAX_PROBLEMS, "; ")


def _was_there_before(found: FoundCheckpoint, place: Location, strategy: Strategy, request: SourceRequest) -> bool:
    """True if a strategy was there when the chosen files were saved, by the storage's clock.

    A merged one is often written later, and has to agree with the ranks' own, which count then.
    """
    options = CatalogOptions(
        ranks=strategy.ranks, step=request.step or None, source_prefix=request.source_prefix or None, check_crc=False
    )
    stamps = read_stamps(found.chosen_files(options)[:_MAX_DATED_FILES])
    saved = min(_changed(stamp, unknown=-math.inf) for stamp in stamps)
    files = list_strategy_files(place) or [place]
    stamped = zip(files, read_stamps(files), strict=True)
    later = [file for file, stamp in stamped if _changed(stamp, unknown=math.inf) > saved]
    return len(later) < len(files) and all(read_strategy(str(file)).merged for file in later)


def _changed(stamp: Stamp | None, *, unknown: float) -> float:
    return unknown if stamp is None or stamp.changed is None else stamp.changed


def _note(place: Location) -> str:
    return spelled(
        f"using the strategy beside the checkpoint, {place}: it is the only one there, older than the checkpoint, and "
        f"'reshard doctor' finds it consistent; use {source_option('source_strategy')} for another, "
        f"{option('auto_strategy', False)} for none"
    )


def _refusal(found: FoundCheckpoint, reasons: Sequence[str]) -> UnusedStrategyError:
    reason = listed(reasons, _MAX_LISTED, "\n  ")
    return UnusedStrategyError(
        f"{found.url}: {counted(len(found.ranks), 'rank')}: several ranks need a source strategy, none is given, and "
        f"the one beside the checkpoint is not used automatically:\n  {reason}\n"
        f"Give the strategy of the job that saved it with {source_option('source_strategy')}; 'reshard doctor' "
        "checks it",
        reason,
    )

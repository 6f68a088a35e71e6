"""The whole conversion, as steps that any engine can run: alone in this process, or as tasks of a workflow.

    load_strategies -> catalog_source -> plan_conversion -> Target.claimed -> convert_rank, check_rank … -> commit

`convert` runs them with threads. A rank is done when its file is written, checked and recorded; what is recorded is
not done again by a later run of the same plan.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime

from core import __version__
from core.budget import Budget, share_memory
from core.checkpoint.catalog import build_catalog
from core.checkpoint.formats import read_index
from core.checkpoint.model import CheckpointFormat, TensorEntry
from core.checkpoint.records import CheckpointCatalog
from core.checkpoint.survey import survey
from core.errors import CatalogError, ConversionError, InputError, ReshardError, StorageError, VerificationError
from core.manifest import Manifest, RankSummary, ShardRecord
from core.plan import ConversionPlan, PlanInputs, build_plan
from core.progress import Progress, SilentProgress, current_progress, reporting_to
from core.report import (
    ConversionReport,
    Outcome,
    PlanSummary,
    RankReport,
    VerificationReport,
    plan_notes,
    summarize_plan,
)
from core.request import ConversionRequest, OutputFormat, UnmatchedPolicy, VerifyLevel
from core.retry import with_retries
from core.storage.files import copy_file, open_source
from core.storage.publishing import check_room
from core.storage.urls import Location, parse_url
from core.strategy.files import read_strategy
from core.strategy.model import Strategy
from core.target import Target, Workspace, check_apart, read_manifest, read_records, record_digest
from core.transform import expected_entries, transform_rank
from core.verify import RankVerification, verify_rank

_SMALL_CONTENT_BYTES = 2**20
_HEADER_BYTES = 4096
"""Room asked for beyond the shards, for each rank's headers."""


def convert(request: ConversionRequest, progress: Progress | None = None) -> ConversionReport:
    """Converts a checkpoint in this process; what was done by an earlier, interrupted run is not done again.

    Raises:
        InputError: the request or what it names is wrong.
        VerificationError: a written file is not what it was to be.
        ConversionError: it failed all the same.
    """
    with reporting_to(progress or SilentProgress()):
        started = time.monotonic()
        plan = make_plan(request)
        with open_session(request, plan) as session:
            failures = _run_ranks(session)
            return session.finish(failures, time.monotonic() - started)


def make_plan(request: ConversionRequest) -> ConversionPlan:
    """The plan of a request; nothing is written.

    Raises:
        InputError: the request or what it names is wrong.
        StorageError: what it names cannot be read.
    """
    source, target = load_strategies(request)
    catalog = catalog_source(request, source, target)
    return plan_conversion(request, catalog, source, target)


def load_strategies(request: ConversionRequest) -> tuple[Strategy | None, Strategy | None]:
    """The strategies of source and target; None where none is given: one rank, nothing cut.

    Raises:
        StrategyError: one cannot be used.
    """
    return load_strategy(request.source_strategy), load_strategy(request.target_strategy)


def load_strategy(url: str) -> Strategy | None:
    """The strategy at a URL; None for an empty one.

    Raises:
        StrategyError: it cannot be used.
    """
    return read_strategy(url) if url else None


def catalog_source(request: ConversionRequest, source: Strategy | None, target: Strategy | None) -> CheckpointCatalog:
    """Which file is which source rank's, and what is in it.

    Raises:
        CatalogError: the files do not make one checkpoint of the strategy's ranks.
        CheckpointError: a file cannot be used.
    """
    check_apart(_static_part(request.source), parse_url(request.target))
    own_stage = source is not None and not source.merged
    catalog = build_catalog(
        request.source,
        source.ranks if source else None,
        step=request.step or None,
        source_prefix=request.source_prefix or None,
        digest=_wants_digest(source, target),
        workers=request.worker_count,
        allow_extra_ranks=own_stage,
    )
    if own_stage and source is not None:
        _check_own_stage(request, source, catalog)
    return catalog


def plan_conversion(
    request: ConversionRequest, catalog: CheckpointCatalog, source: Strategy | None, target: Strategy | None
) -> ConversionPlan:
    """The plan; nothing is read or written.

    Raises:
        CatalogError: the source's ranks disagree about a parameter.
        PlanError: source, target and options do not fit together.
    """
    same = request.format is OutputFormat.SAME
    plan = build_plan(
        PlanInputs(
            catalog=catalog,
            source_strategy=source,
            target_strategy=target,
            format=catalog.format if same else CheckpointFormat(request.format.value),
            prefix=request.prefix,
            fail_on_unmatched=request.unmatched is UnmatchedPolicy.FAIL,
            allow_missing=tuple(request.allow_missing),
        )
    )
    if not same:
        _check_format_holds_all(plan)
    return plan


def describe_plan(request: ConversionRequest) -> tuple[ConversionPlan, PlanSummary]:
    """The plan of a request and its summary; nothing is written."""
    plan = make_plan(request)
    request.chosen_ranks(plan.target_ranks)
    return plan, summarize_plan(plan, rank_budget(request, len(plan.target_ranks)))


def rank_budget(request: ConversionRequest, rank_count: int) -> Budget:
    """The buffers of a conversion of so many ranks."""
    return share_memory(request.memory_limit_bytes, max(1, min(request.worker_count, rank_count)))


@dataclass(frozen=True)
class Session:
    """A conversion under way: the target is claimed, and it is known which ranks are left to do.

    Attributes:
        request: what was asked for.
        target: the target and its plan.
        workspace: where files and records are written.
        ranks: the target ranks that were asked for.
        done: ranks whose files an earlier run wrote, checked anew; none of the others has a record.
        budget: buffers.
        committed: the target is complete already: nothing is left to do.
    """

    request: ConversionRequest
    target: Target
    workspace: Workspace
    ranks: tuple[int, ...]
    done: frozenset[int]
    budget: Budget
    committed: bool

    @property
    def plan(self) -> ConversionPlan:
        """How every rank is made."""
        return self.target.plan

    @property
    def waves(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ranks left to do: those to be written, then those that are copies of a rank that is there by then."""
        if self.committed:
            return (), ()
        pending = [rank for rank in self.ranks if rank not in self.done]
        available = set(self.ranks) | self.done
        copies = tuple(rank for rank in pending if self.plan.copies.get(rank) in available)
        return tuple(rank for rank in pending if rank not in copies), copies

    def finish(self, failures: Mapping[int, ReshardError], seconds: float) -> ConversionReport:
        """Commits the target if all of its ranks are there, and says what was done.

        Raises:
            InputError, VerificationError, ConversionError: ranks failed; the message lists them.
        """
        raise_failures(failures, self)
        plan = self.plan
        where = self.workspace
        if self.committed:
            where = Workspace(self.target.final, self.workspace.identity)
        records = read_records(where, plan.target_ranks)
        level = self.request.verify
        missing = tuple(
            rank for rank in plan.target_ranks if rank not in records or _below(records[rank].verified, level)
        )
        if not self.committed and not missing:
            self.target.commit(_manifest(self, records))
        mine = [records[rank] for rank in self.ranks if rank in records]
        written = [record for record in mine if record.rank not in self.done]
        return ConversionReport(
            identity=self.workspace.identity,
            source=plan.inputs.catalog.url,
            step=plan.inputs.catalog.step,
            target=str(self.target.final),
            source_world_size=len(plan.inputs.catalog.records),
            target_world_size=len(plan.target_ranks),
            committed=not missing,
            missing_ranks=missing,
            seconds=round(seconds, 3),
            written_bytes=sum(record.size_bytes for record in written),
            read_bytes=sum(record.read_bytes for record in written),
            verified=level,
            dropped=plan.match.dropped,
            excused=plan.match.excused,
            carried=tuple(carried.name for carried in plan.match.carried),
            notes=plan_notes(plan),
            ranks=tuple(_rank_report(record, record.rank in self.done) for record in mine),
        )


@contextmanager
def open_session(request: ConversionRequest, plan: ConversionPlan) -> Iterator[Session]:
    """Claims the target for a plan and finds out what is left to do.

    Raises:
        TargetError: the target is occupied, in use, or has no room.
        StorageError: it cannot be read or written.
    """
    ranks = request.chosen_ranks(plan.target_ranks)
    budget = rank_budget(request, len(ranks))
    target = Target(parse_url(request.target), plan, request.overwrite)
    if target.is_committed():
        finished = Workspace(target.final, target.identity)
        sound = _sound_ranks(finished, plan, request.verify, plan.target_ranks)
        if len(sound) == len(plan.target_ranks):
            current_progress().note(f"{target.final}: was converted already by the same plan, and is as it should be")
            yield Session(request, target, finished, ranks, frozenset(sound), budget, committed=True)
            return
        current_progress().note(f"{target.final}: {len(plan.target_ranks) - len(sound)} of its files are to be mended")
        target.reopen()
    with target.claimed(ranks) as workspace:
        if target.is_committed():
            yield Session(request, target, workspace, ranks, frozenset(ranks), budget, committed=True)
            return
        done = _sound_ranks(workspace, plan, request.verify, ranks)
        if done:
            current_progress().note(f"resuming: {len(done)} of {len(ranks)} ranks are done already")
        session = Session(request, target, workspace, ranks, frozenset(done), budget, committed=False)
        pending = [plan.totals[rank - plan.target_ranks.start] for wave in session.waves for rank in wave]
        check_room(workspace.directory, sum(totals.shard_bytes + _HEADER_BYTES for totals in pending))
        passes = 2 if request.verify is VerifyLevel.CHECKSUM else 1
        current_progress().begin(passes * sum(totals.shard_bytes for totals in pending))
        yield session


def convert_rank(
    workspace: Workspace,
    plan: ConversionPlan,
    rank: int,
    block_bytes: int,
    advance: Callable[[int], None],
    *,
    as_copy: bool,
) -> ShardRecord:
    """Writes one target rank's file and its record; a copy is made of the file of the rank with the same content.

    Raises:
        CatalogError, CheckpointError: a source file changed or is damaged.
        StorageError: reading or writing failed.
    """
    if as_copy:
        record = _copy_rank(workspace, plan, rank, advance)
    else:
        record = transform_rank(
            plan,
            rank,
            workspace.directory,
            identity=workspace.identity,
            block_bytes=block_bytes,
            advance=advance,
        )
    workspace.write_record(record)
    return record


def check_rank(
    workspace: Workspace, plan: ConversionPlan, rank: int, level: VerifyLevel, advance: Callable[[int], None]
) -> RankVerification:
    """Checks a written rank against the plan and its record; a failed rank loses its record, so a rerun does it anew.

    Raises:
        VerificationError: the file is not what it was to be.
        StorageError: a transient failure to read it.
    """
    record = workspace.read_record(rank)
    expected = expected_entries(plan, plan.rank_plan(rank))
    found = verify_rank(workspace.directory, record, level, expected=expected, advance=advance)
    if found.problems:
        workspace.remove_record(rank)
        raise VerificationError("\n".join(found.problems))
    if record.verified is not level:
        workspace.write_record(record.model_copy(update={"verified": level}))
    return found


def verify_target(url: str, level: VerifyLevel, progress: Progress | None = None) -> VerificationReport:
    """Checks a finished conversion against its manifest and records.

    Raises:
        InputError: there is no finished conversion at the URL.
        StorageError: it cannot be read.
    """
    started = time.monotonic()
    progress = progress or SilentProgress()
    location = parse_url(url)
    manifest = read_manifest(location)
    if manifest is None:
        raise InputError(
            f"{location}: has no .reshard/manifest.json: it is not a finished conversion, or was not made by reshard"
        )
    progress.begin(sum(rank.size_bytes for rank in manifest.ranks))
    workspace = Workspace(location, manifest.identity)
    problems: list[str] = []
    read_bytes = 0
    for summary in manifest.ranks:
        try:
            record = workspace.read_record(summary.rank)
        except StorageError as error:
            if error.transient:
                raise
            problems.append(f"rank_{summary.rank}: {error}")
            continue
        if record_digest(record) != summary.record_digest:
            problems.append(f"rank_{summary.rank}: its record is not the one that the manifest was written for")
        found = verify_rank(location, record, level, advance=progress.advance)
        problems.extend(found.problems)
        read_bytes += found.read_bytes
    return VerificationReport(
        target=str(location),
        level=level,
        ranks=len(manifest.ranks),
        read_bytes=read_bytes,
        seconds=round(time.monotonic() - started, 3),
        problems=tuple(problems),
    )


def raise_failures(failures: Mapping[int, ReshardError], session: Session) -> None:
    """Raises one error for all ranks that failed, of the kind that most concerns the user; none if none failed.

    Raises:
        InputError, VerificationError, ConversionError: ranks failed.
    """
    if not failures:
        return
    lines = [f"rank_{rank}: {error}" for rank, error in sorted(failures.items())]
    message = (
        f"{len(failures)} of {len(session.ranks)} target ranks failed; the same command does only these again "
        f"({session.workspace.directory} holds the others)\n  " + "\n  ".join(lines)
    )
    if all(isinstance(error, InputError) for error in failures.values()):
        raise InputError(message)
    if any(isinstance(error, VerificationError) for error in failures.values()):
        raise VerificationError(message)
    raise ConversionError(message)


def _run_ranks(session: Session) -> dict[int, ReshardError]:
    """Does all ranks that are left, with threads; returns what failed. An error that is a bug ends all at once."""
    failures: dict[int, ReshardError] = {}
    stop = threading.Event()
    progress = current_progress()

    def advance(count_bytes: int) -> None:
        if stop.is_set():
            raise ConversionError("stopped")
        progress.advance(count_bytes)

    def work(rank: int, as_copy: bool) -> None:
        primary = session.plan.copies.get(rank)
        if as_copy and primary in failures:
            raise ConversionError(f"not written, because it is a copy of rank_{primary}, which failed")
        plan, block_bytes = session.plan, session.budget.block_bytes
        with_retries(
            lambda: convert_rank(session.workspace, plan, rank, block_bytes, advance, as_copy=as_copy), progress.note
        )
        with_retries(
            lambda: check_rank(session.workspace, plan, rank, session.request.verify, advance), progress.note
        )

    with ThreadPoolExecutor(session.budget.workers, thread_name_prefix="reshard") as pool:
        try:
            for wave, as_copy in zip(session.waves, (False, True), strict=True):
                futures = {rank: pool.submit(copy_context().run, work, rank, as_copy) for rank in wave}
                for rank, future in futures.items():
                    try:
                        future.result()
                    except ReshardError as error:
                        failures[rank] = error
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failures


def _copy_rank(
    workspace: Workspace, plan: ConversionPlan, rank: int, advance: Callable[[int], None]
) -> ShardRecord:
    started = time.monotonic()
    primary = workspace.read_record(plan.copies[rank])
    file = plan.file_name(rank)
    copy_file(workspace.directory.child(primary.file), workspace.directory.child(file))
    advance(primary.size_bytes)
    return primary.model_copy(
        update={
            "rank": rank,
            "file": file,
            "copy_of": primary.rank,
            "read_bytes": 0,
            "seconds": round(time.monotonic() - started, 3),
            "verified": VerifyLevel.NONE,
        }
    )


def _sound_ranks(
    workspace: Workspace, plan: ConversionPlan, level: VerifyLevel, ranks: Sequence[int]
) -> set[int]:
    """Ranks whose recorded files are as they should be, at least in structure; the others lose their records."""
    sound = set()
    at_least = VerifyLevel.STRUCTURE if level is VerifyLevel.NONE else level
    for rank, record in read_records(workspace, ranks).items():
        expected = expected_entries(plan, plan.rank_plan(rank))
        found = verify_rank(workspace.directory, record, at_least, expected=expected)
        if found.problems:
            current_progress().note(f"rank_{rank} is done again: {found.problems[0]}")
            workspace.remove_record(rank)
            continue
        if _below(record.verified, level):
            workspace.write_record(record.model_copy(update={"verified": level}))
        sound.add(rank)
    return sound


_LEVELS = list(VerifyLevel)


def _below(level: VerifyLevel, wanted: VerifyLevel) -> bool:
    return _LEVELS.index(level) < _LEVELS.index(wanted)


def _manifest(session: Session, records: Mapping[int, ShardRecord]) -> Manifest:
    plan = session.plan
    return Manifest(
        identity=session.workspace.identity,
        writer=f"reshard {__version__}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source=plan.inputs.catalog.url,
        step=plan.inputs.catalog.step,
        source_world_size=len(plan.inputs.catalog.records),
        target_world_size=len(plan.target_ranks),
        format=str(plan.inputs.format),
        verified=min((record.verified for record in records.values()), key=_LEVELS.index),
        dropped=plan.match.dropped,
        excused=plan.match.excused,
        carried=tuple(carried.name for carried in plan.match.carried),
        notes=plan_notes(plan),
        ranks=tuple(
            RankSummary(
                rank=rank,
                file=records[rank].file,
                size_bytes=records[rank].size_bytes,
                record_digest=record_digest(records[rank]),
            )
            for rank in plan.target_ranks
        ),
    )


def _rank_report(record: ShardRecord, resumed: bool) -> RankReport:
    outcome = Outcome.COPIED if record.copy_of is not None else Outcome.WRITTEN
    return RankReport(
        rank=record.rank,
        outcome=Outcome.RESUMED if resumed else outcome,
        file=record.file,
        size_bytes=record.size_bytes,
        read_bytes=record.read_bytes,
        seconds=record.seconds,
        source_ranks=record.source_ranks,
        verified=record.verified,
    )


def _wants_digest(source: Strategy | None, target: Strategy | None) -> Callable[[int, TensorEntry], bool]:
    """Contents have to be compared where no source layout tells which ranks hold the same: small ones to find target
    ranks with equal content, all that the target cuts to be sure that they are whole tensors."""
    wanted = target.parameters if target else frozenset()

    def wants(rank: int, entry: TensorEntry) -> bool:
        if source is None or entry.name in source.parameters or entry.text is not None:
            return False
        return entry.name in wanted or entry.size_bytes <= _SMALL_CONTENT_BYTES

    return wants


def _static_part(source: str) -> Location:
    """The directory that a source is below: a pattern's, up to the first part with a placeholder."""
    return parse_url(source.split("{", 1)[0].rpartition("/")[0] or "." if "{" in source else source)


def _check_format_holds_all(plan: ConversionPlan) -> None:
    """Finds out before anything is written that the other format cannot hold a parameter."""
    from core.checkpoint.formats import plan_file

    for rank in plan.target_ranks:
        if rank not in plan.copies:
            plan_file(plan.inputs.format, expected_entries(plan, plan.rank_plan(rank)))


def _check_own_stage(request: ConversionRequest, source: Strategy, catalog: CheckpointCatalog) -> None:
    """Ranks beyond one stage's own strategy are other stages', if they lack some of its parameters.

    Raises:
        CatalogError: they hold all of them: then it is the strategy of another world size.
    """
    found = survey(request.source)
    extra = [rank for rank in found.ranks if rank not in source.ranks]
    held = set(next(iter(catalog.records.values())).index.entries) & source.parameters
    misfit = len(found.ranks) % source.devices_per_stage != 0
    for rank in extra:
        file = open_source(found.files[rank][0].location)
        try:
            misfit = misfit or held <= set(read_index(file).entries)
        finally:
            file.close()
    if misfit:
        raise CatalogError(
            f"{catalog.url}: has {len(found.ranks)} ranks, but the source strategy {source.origin} has "
            f"{source.devices_per_stage}: it is another checkpoint's, or one pipeline stage's of several"
        )

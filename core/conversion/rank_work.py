"""Work on target ranks: writing a group of them, copying one, checking one, and verifying earlier work.

A rank is done when its file is written, checked and recorded. Any thread or process that sees the workspace can do
any of this.
"""

import threading
import time
from collections.abc import Callable, Sequence

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.dispatch import Kind, Unit
from reshard.core.conversion.report import target_kind
from reshard.core.errors import ReshardError, StorageError, TargetError, VerificationError
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.budget import Budget
from reshard.core.runtime.log import detail, timed
from reshard.core.runtime.progress import advancing, current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.summary import RANK
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import ranks_text, seconds_text, size_text
from reshard.core.storage.copying import copy_file
from reshard.core.storage.publishing import is_built_beside
from reshard.core.storage.write_guard import check_claim
from reshard.core.target.workspace import Workspace
from reshard.core.transfer.file_blocks import expected_entries
from reshard.core.transfer.read_crcs import CrcWatch
from reshard.core.transfer.writer import transform_ranks
from reshard.core.verification.files import RankVerification, verify_rank


class RankWork(Record):
    """Everything that work on a plan's target ranks needs.

    `prefetch` workers read ahead for one group. `advance` is called with the number of bytes done; it raises
    StoppedError to end the work. `crcs` are given what is read. `hashes`: the SHA-256 of files is taken as they are
    written. `signs`: the run is to sign the target, which their records tell the run that publishes it.
    """

    workspace: Workspace
    plan: ConversionPlan
    budget: Budget
    prefetch: int
    level: VerifyLevel
    advance: Callable[[int], None]
    crcs: CrcWatch | None = None
    hashes: bool = False
    signs: bool = False

    def make(self, unit: Unit) -> ShardRecord:
        """Make the files of a unit that writes or copies; return the record of its first rank.

        If a whole group cannot be written, perhaps because of a single rank, only its first rank is written: each of
        the others is written, and retried, by a unit of its own.

        Raises:
            CatalogError, CheckpointError: a source file changed or is damaged.
        """
        rank = unit.rank
        if unit.kind is Kind.COPY:
            return self._copy(rank)
        in_group = unit.kind is Kind.COMPLETE or len(unit.ranks) > 1
        if in_group and (written := self.workspace.find_record(rank)) is not None:
            return written
        if not in_group:
            return self._write(unit.ranks, self.prefetch)
        if unit.kind is Kind.WRITE:
            try:
                return self._write(unit.ranks, self.prefetch)
            except ReshardError as error:
                self.advance(0)  # raises if the group failed because the run is being stopped
                others = len(unit.ranks) - 1
                current_progress().note(f"rank_{rank} and {others} more are written one by one: {error}")
        # several ranks of the group may be written at once, each with the memory of one worker
        return self._write((rank,), 1)

    def check(self, rank: int) -> RankVerification:
        """Check a written rank against the plan and its record; a failed rank loses its record, so a rerun repeats it.

        A rank that another run, which checks less closely, has published meanwhile is left to the end of the run.

        Raises:
            VerificationError: the file differs from what should have been written.
        """
        if self.level is VerifyLevel.NONE:  # another run may have committed the target with it already
            return RankVerification(rank, self.level, 0, ())
        try:
            record = self.workspace.read_record(rank)
            with timed(f"{rank_or_file(self.plan, rank)}: {record.file}, checked ({self.level.of_files})"):
                found = self.verify(record, self.level)
            if found.problems:
                self.workspace.withdraw_record(record)
                raise VerificationError("\n".join(found.problems))
            self._note_checked(record, found)
        except (StorageError, VerificationError):
            if not self._was_moved():
                raise
            return RankVerification(rank, VerifyLevel.NONE, 0, ())
        return found

    def verify(self, record: ShardRecord, level: VerifyLevel) -> RankVerification:
        """Compare a rank's file with the plan and with its record."""
        rank, starts = record.rank, None
        if self.level is VerifyLevel.CONTENT:
            from reshard.core.verification.values import target_starts

            starts = target_starts(self.plan, rank)
        return verify_rank(
            self.workspace.directory,
            record,
            level,
            expected=expected_entries(self.plan, self.plan.rank_plan(rank)),
            advance=self.advance,
            starts=starts,
            hashes=self.hashes and record.sha256 is None,
        )

    def is_sound(self, rank: int, *, mends: bool) -> bool:
        """True if the file that an earlier run recorded is right; with `mends` the record of any other is removed."""
        try:
            record = self.workspace.find_record(rank)
        except TargetError:
            if mends:
                self.workspace.remove_record(rank)  # a damaged record counts as none
            return False
        if record is None:  # another run has committed the target just now
            return False
        if record.file != self.plan.file_name(rank):
            if mends:
                self._note_repeated(rank, f"its record is of {record.file!r}")
                self.workspace.remove_record(rank)
            return False
        found = self.verify(record, VerifyLevel.STRUCTURE if self.level is VerifyLevel.NONE else self.level)
        if found.problems:
            if mends and not self._was_moved():
                self._note_repeated(rank, found.problems[0])
                self.workspace.withdraw_record(record)
            return False
        if found.sha256 or not record.is_checked(self.level) or self.level is VerifyLevel.CONTENT:
            self._note_checked(record, found)
        return True

    def _write(self, ranks: Sequence[int], prefetch: int) -> ShardRecord:
        written = transform_ranks(
            self.plan,
            ranks,
            self.workspace.directory,
            identity=self.workspace.identity,
            budget=self.budget,
            prefetch=prefetch,
            advance=self.advance,
            crcs=self.crcs,
            hashes=self.hashes,
        )
        records = [record.model_copy(update={"signs": self.signs}) for record in written]
        for record in records:
            self.workspace.write_record(record)
            detail(
                f"{rank_or_file(self.plan, record.rank)}: {record.file}, {size_text(record.size_bytes)} written in "
                f"{seconds_text(record.seconds)}, {size_text(record.read_bytes)} read from source ranks "
                f"{ranks_text(record.source_ranks)}"
            )
        return records[0]

    def _copy(self, rank: int) -> ShardRecord:
        """Copy the file of the rank with the same content, which must be there."""
        started = time.monotonic()
        primary = self.workspace.read_record(self.plan.copies[rank])
        file = self.plan.file_name(rank)
        check_claim()
        copy_file(self.workspace.directory.child(primary.file), self.workspace.directory.child(file))
        self.advance(self.plan.totals[rank - self.plan.target_ranks.start].shard_bytes)
        record = primary.model_copy(
            update={
                "rank": rank,
                "file": file,
                "copy_of": primary.rank,
                "read_bytes": 0,
                "seconds": round(time.monotonic() - started, 3),
                "verified": VerifyLevel.NONE,
                "parts": (),
                "signs": self.signs,
            }
        )
        self.workspace.write_record(record)
        detail(f"{rank_or_file(self.plan, rank)}: {file}, copied from {primary.file} in {seconds_text(record.seconds)}")
        return record

    def _note_checked(self, record: ShardRecord, found: RankVerification) -> None:
        """Record how closely a file was checked; its values are only ready to be compared then."""
        checked = record.model_copy(
            update={
                "verified": found.level.of_files,
                "parts": found.parts or record.parts,
                "sha256": record.sha256 or found.sha256,
            }
        )
        # or the record would begin another workspace
        if checked != record and not self._was_moved() and self.workspace.lift_signature():
            self.workspace.write_record(checked)

    def _note_repeated(self, rank: int, reason: str) -> None:
        current_progress().note(f"{rank_or_file(self.plan, rank)} is done again: {reason}")

    def _was_moved(self) -> bool:
        """True if another run has published the workspace; on an object store the files stay where they are."""
        return is_built_beside(self.workspace.directory) and not self.workspace.is_current()


def find_sound_ranks(
    workspace: Workspace,
    plan: ConversionPlan,
    level: VerifyLevel,
    ranks: Sequence[int],
    budget: Budget,
    *,
    mends: bool,
    hashes: bool = False,
) -> set[int]:
    """Return the ranks whose recorded files are right, at least in structure; with `mends`, others lose their records.

    Records are removed only by a run that holds the lease: without it they may be another run's by then. With `hashes`,
    those of files that are read whole get their SHA-256 if they have none.
    """
    recorded = sorted(workspace.recorded_ranks() & set(ranks))
    if recorded:
        reads_contents = not level.is_below(VerifyLevel.CHECKSUM)
        shard_bytes = (plan.totals[rank - plan.target_ranks.start].shard_bytes for rank in recorded)
        current_progress().note(f"checking what was done before: {len(recorded)} of {len(ranks)} {target_kind(plan)}s")
        current_progress().begin("checking earlier work", sum(shard_bytes) if reads_contents else 0)
    stop = threading.Event()
    work = RankWork(workspace, plan, budget, 1, level, advancing(current_progress(), stop), hashes=hashes)

    def is_sound(rank: int) -> bool:
        return with_retries(lambda: work.is_sound(rank, mends=mends), current_progress().note)

    answers = in_threads(is_sound, recorded, budget.workers, stop)
    return {rank for rank, sound in zip(recorded, answers, strict=True) if sound}


def rank_or_file(plan: ConversionPlan, rank: int) -> str:
    """Return the name of a target rank in messages: `rank_3`, or the name of a file that counts as one."""
    return f"rank_{rank}" if target_kind(plan) == RANK else plan.file_name(rank)

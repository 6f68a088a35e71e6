"""Writing target ranks, and committing the target when all are there, as tasks.

A task on ranks gets an assignment, not the plan: it is small, and means the same in any process. It returns a few
numbers: records hold every parameter's digest, and Prefect keeps what tasks return until the run ends. What was done
stands in the message of its last state, and so in the run's log.
"""

import time
from collections.abc import Mapping, Sequence

import numpy as np
from prefect import task
from prefect.client.schemas.objects import State
from prefect.runtime import task_run
from prefect.states import Completed

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.conversion import session as steps
from reshard.core.conversion.batches import convert_batch
from reshard.core.conversion.report import ConversionReport
from reshard.core.runtime.wording import ranks_text, seconds_text, size_text
from reshard.tasks.assignment import Assignment, Deeds, taken_up
from reshard.tasks.policies import RETRIED, ending_with_its_run


@task(name="transform-rank", task_run_name="transform-rank-{rank}", **RETRIED)
@ending_with_its_run
def transform_rank(assignment: Assignment, rank: int, group: Sequence[int]) -> State[Deeds]:
    """Writes one target rank's file and its record.

    On its turn the first rank of a group has the files of the whole group written. Without a group the rank is made as
    a copy of the file of the rank with the same content, which must be there.

    Raises:
        CatalogError, CheckpointError: a source file changed or is damaged.
        TargetError: the run is over, or another one has taken over.
        StorageError: reading or writing failed.
    """
    writes = rank == next(iter(group), None)
    with taken_up(assignment, writes=writes) as work:
        record = steps.convert_rank(
            work.workspace,
            work.plan,
            rank,
            assignment.budget,
            work.advance,
            group=group,
            prefetch=assignment.prefetch,
        )
        return Completed(message=_written(record), data=work.deeds())


def _batch_name() -> str:
    ranks = [rank for group in task_run.parameters["groups"] for rank in group]
    return f"transform-ranks-{min(ranks)}-{max(ranks)}"


@task(name="transform-ranks", task_run_name=_batch_name, **RETRIED)
@ending_with_its_run
def transform_ranks(assignment: Assignment, groups: Sequence[Sequence[int]], copies: bool) -> State[Deeds]:
    """Writes and checks the ranks of some groups, or makes them as `copies`; repeated, it does what is not done yet.

    Raises:
        RanksFailedError: some failed; the others are done.
        TargetError: the run is over, or another one has taken over.
        StorageError: the plan cannot be read.
    """
    started = time.monotonic()
    with taken_up(assignment, writes=not copies) as work:
        convert_batch(
            work.workspace,
            work.plan,
            groups,
            assignment.budget,
            assignment.level,
            work.advance,
            copies=copies,
            prefetch=assignment.prefetch,
        )
        ranks = [rank for group in groups for rank in group]
        seconds = time.monotonic() - started
        message = f"ranks {ranks_text(sorted(ranks))}: written and checked in {seconds_text(seconds)}"
        return Completed(message=message, data=work.deeds())


@task(name="commit", task_run_name="commit", **RETRIED)
def commit_target(
    session: steps.Session, seconds: float, source_parts: Mapping[int, np.ndarray] | None = None
) -> ConversionReport:
    """Commits the target if all of its ranks are there, and says what was done; see `Session.finish`.

    Raises:
        VerificationError: contents are not the source's.
        StorageError: it could not be; the files are still where they were written.
    """
    return session.finish({}, seconds, source_parts)


def _written(record: ShardRecord) -> str:
    told = f"rank {record.rank}: {size_text(record.size_bytes)} in {record.seconds:.2f} s"
    if record.copy_of is not None:
        return f"{told}, a copy of rank {record.copy_of}"
    return f"{told} from source ranks {ranks_text(record.source_ranks)}"

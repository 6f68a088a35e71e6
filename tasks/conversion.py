"""Tasks that write target ranks, and commit the target when all ranks are done.

A task on ranks gets an assignment, not the plan: it is small, and means the same in any process. It returns a few
numbers instead of records, which contain every parameter's digest: Prefect keeps the results of tasks until the run
ends. The message of its last state, and so the run's log, describes the work.
"""

import time

from prefect import task
from prefect.client.schemas.objects import State
from prefect.runtime import task_run
from prefect.states import Completed

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.conversion.batches import run_batch
from reshard.core.conversion.dispatch import Unit
from reshard.core.conversion.finish import finish
from reshard.core.conversion.report import ConversionReport
from reshard.core.conversion.session import Session, SourceParts
from reshard.core.runtime.wording import ranks_text, seconds_text, size_text
from reshard.tasks.assignment import Assignment, TaskResult, worker_context
from reshard.tasks.policies import RETRIED, ending_with_its_run


@task(name="transform-rank", task_run_name="transform-rank-{unit.rank}", **RETRIED)
@ending_with_its_run
def transform_rank(assignment: Assignment, unit: Unit) -> State[TaskResult]:
    """Make the file and the record of a unit's rank; the first rank of a group has the whole group written.

    Raises:
        CatalogError, CheckpointError: a source file changed or is damaged.
        TargetError: the run is over, or another one has taken over.
        StorageError: reading or writing failed.
    """
    with worker_context(assignment, writes=unit.writes) as context:
        record = context.work.make(unit)
        return Completed(message=_format_record(record), data=context.result())


def _batch_name() -> str:
    ranks = task_run.parameters["unit"].ranks
    return f"transform-ranks-{min(ranks)}-{max(ranks)}"


@task(name="transform-ranks", task_run_name=_batch_name, **RETRIED)
@ending_with_its_run
def transform_ranks(assignment: Assignment, unit: Unit) -> State[TaskResult]:
    """Make and check the ranks of a batch; a repeated batch does only what is left.

    Raises:
        RanksFailedError: some failed; the others are done.
        TargetError: the run is over, or another one has taken over.
        StorageError: the plan cannot be read.
    """
    started = time.monotonic()
    with worker_context(assignment, writes=unit.writes) as context:
        run_batch(context.work, unit)
        seconds = seconds_text(time.monotonic() - started)
        message = f"ranks {ranks_text(sorted(unit.ranks))}: written and checked in {seconds}"
        return Completed(message=message, data=context.result())


@task(name="commit", task_run_name="commit", **RETRIED)
def commit_target(session: Session, seconds: float, source_parts: SourceParts | None = None) -> ConversionReport:
    """Commit the target if all of its ranks are there, and report the run; see `finish`.

    Raises:
        CheckpointError: tensors of the source do not have their CRC.
        VerificationError: contents differ from the source's.
        StorageError: committing failed; the files are still where they were written.
    """
    return finish(session, seconds, source_parts)


def _format_record(record: ShardRecord) -> str:
    text = f"rank {record.rank}: {size_text(record.size_bytes)} in {record.seconds:.2f} s"
    if record.copy_of is not None:
        return f"{text}, a copy of rank {record.copy_of}"
    return f"{text} from source ranks {ranks_text(record.source_ranks)}"

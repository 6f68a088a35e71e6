"""A task that reads source ranks' files to compare their values with the target's."""

import time

from prefect import task
from prefect.client.schemas.objects import State
from prefect.runtime import task_run
from prefect.states import Completed

from reshard.core.conversion.dispatch import Unit
from reshard.core.runtime.wording import ranks_text, seconds_text
from reshard.tasks.assignment import Assignment, TaskResult, worker_context
from reshard.tasks.policies import RETRIED, ending_with_its_run


def _name() -> str:
    return f"fingerprint-source-{ranks_text(task_run.parameters['unit'].ranks)}"


@task(name="fingerprint-source", task_run_name=_name, **RETRIED)
@ending_with_its_run
def fingerprint_source(assignment: Assignment, unit: Unit) -> State[TaskResult]:
    """Compute the contributions of source ranks' files to the fingerprints of target parameters.

    Raises:
        CatalogError, CheckpointError: a source file changed or is damaged.
        TargetError: the run is over, or another one has taken over.
        StorageError: a source file cannot be read.
    """
    started = time.monotonic()
    with worker_context(assignment) as context:
        content = context.content_of()
        parts = {rank: content.source_parts(rank, context.work.advance) for rank in unit.ranks}
        message = f"source ranks {ranks_text(unit.ranks)}: read in {seconds_text(time.monotonic() - started)}"
        return Completed(message=message, data=context.result(parts))

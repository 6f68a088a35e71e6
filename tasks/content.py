"""Reading source ranks' files to compare their values with the target's, as a task."""

import time
from collections.abc import Sequence

from prefect import task
from prefect.client.schemas.objects import State
from prefect.runtime import task_run
from prefect.states import Completed

from reshard.core.runtime.wording import ranks_text, seconds_text
from reshard.core.verification.values import ContentCheck
from reshard.tasks.assignment import Assignment, Deeds, taken_up
from reshard.tasks.policies import RETRIED, ending_with_its_run


def _name() -> str:
    ranks = task_run.parameters["ranks"]
    return f"fingerprint-source-{ranks_text(ranks)}"


@task(name="fingerprint-source", task_run_name=_name, **RETRIED)
@ending_with_its_run
def fingerprint_source(assignment: Assignment, ranks: Sequence[int]) -> State[Deeds]:
    """Finds out what source ranks' files add to the fingerprints of target parameters.

    Raises:
        CatalogError, CheckpointError: a source file changed or is damaged.
        TargetError: the run is over, or another one has taken over.
        StorageError: one cannot be read.
    """
    started = time.monotonic()
    with taken_up(assignment) as work:
        content = ContentCheck(work.plan)
        parts = {rank: content.source_parts(rank, work.advance) for rank in ranks}
        message = f"source ranks {ranks_text(ranks)}: read in {seconds_text(time.monotonic() - started)}"
        return Completed(message=message, data=work.deeds(parts))

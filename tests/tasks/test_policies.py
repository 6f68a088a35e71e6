"""What Prefect retries, keeps and searches of tasks."""

import pytest
from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Failed
from prefect.utilities.annotations import quote
from prefect.utilities.collections import StopVisiting, visit_collection

from reshard.core.errors import InputError, StorageError
from reshard.tasks.catalog import open_source
from reshard.tasks.conversion import commit_target, transform_rank, transform_ranks
from reshard.tasks.planning import plan_conversion
from reshard.tasks.policies import retry_transient, untouched
from reshard.tasks.strategies import find_source_strategy, outline_target
from reshard.tasks.verification import verify_rank

STORAGE_TASKS = [
    find_source_strategy,
    outline_target,
    open_source,
    transform_rank,
    transform_ranks,
    verify_rank,
    commit_target,
]


def failed(error: BaseException) -> State[object]:
    return Failed(data=error)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (StorageError("slow down", transient=True), True),
        (StorageError("no such bucket"), False),
        (TimeoutError(), True),
        (InputError("wrong"), False),
        (KeyError("a bug"), False),
    ],
)
def test_only_transient_failures_are_tried_again(error: Exception, again: bool) -> None:
    assert retry_transient(transform_rank, None, failed(error)) is again  # type: ignore[arg-type]


@pytest.mark.parametrize("task", STORAGE_TASKS, ids=lambda task: task.name)
def test_tasks_that_use_a_storage_try_again_with_growing_pauses(task: Task[..., object]) -> None:
    assert task.retry_condition_fn is retry_transient
    pauses = task.retry_delay_seconds
    assert isinstance(pauses, list)
    assert len(pauses) == task.retries == 3
    assert pauses == sorted(set(pauses))
    assert task.retry_jitter_factor


@pytest.mark.parametrize("task", [*STORAGE_TASKS, plan_conversion], ids=lambda task: task.name)
def test_nothing_is_cached_or_kept(task: Task[..., object]) -> None:
    assert task.cache_policy is NO_CACHE
    assert task.persist_result is False


def test_prefect_does_not_search_untouched_values() -> None:
    inner = object()
    seen: list[object] = []
    value = untouched({"layouts": [inner]})

    def visit(item: object, context: dict[str, object]) -> object:
        seen.append(item)
        if isinstance(context.get("annotation"), quote):
            raise StopVisiting
        return item

    visit_collection(value, visit, context={})
    assert inner not in seen

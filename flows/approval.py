"""Approval of a plan: the run is suspended until somebody decides in Prefect's UI, or through its API.

Suspending ends the run's process; when somebody has decided, a worker starts the run again, which plans again. The key
of the question is what would be converted and replaced. If that is as it was, the answer is found under the key;
otherwise nobody has been asked yet, so what is converted is always what was approved.

Prefect stores question and answer as inputs of the run. A retry resets the run's pause keys but keeps its inputs, and
a key that has inputs cannot be used again. So the inputs decide: an answered question is not repeated, even after a
retry; one that nobody answered in time is repeated under the next key.
"""

import time
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import count
from typing import Any, NoReturn, cast
from uuid import UUID

import xxhash
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRunInput, State
from prefect.context import FlowRunContext
from prefect.exceptions import Abort, Pause, PrefectSignal
from prefect.input import RunInput, filter_flow_run_input, keyset_from_paused_state
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Completed, Suspended
from prefect.utilities.engine import propose_state_sync
from pydantic import Field

from reshard.core.conversion.planning import summarize
from reshard.core.errors import ConversionError, InputError
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.approval import ApprovedConversionRequest
from reshard.core.storage.urls import parse_url
from reshard.core.target.look import Look
from reshard.core.target.place import manifest_to_keep
from reshard.core.target.target import Target
from reshard.core.text.printing import printable
from reshard.tasks.artifacts import publish_plan
from reshard.tasks.labels import label_decision
from reshard.tasks.pages import approval_page, question_text

_UNDER_WAY_SECONDS = 1.0
"""An event on its way to the server arrives in this time."""

_MAX_INPUTS = 10_000
"""Three for each question: more than anybody is asked."""

_QUESTION, _ANSWER = "suspended-", "-response"
"""How Prefect begins the keys of a suspension's inputs, and how that of the answer ends."""


class Decision(StrEnum):
    """The decision on a plan."""

    CONVERT = "convert"
    REFUSE = "refuse"


class Refused(PrefectSignal):
    """Ends a run whose plan was refused, as Prefect's own signal ends one that is suspended: it did not fail."""

    def __init__(self, state: State[Any]) -> None:
        super().__init__(state.message)
        self.state = state


class Approval(RunInput):
    """The answer to a run that waits for approval."""

    decision: Decision = Field(
        title="Decision", description="convert: start the conversion. refuse: cancel the run; nothing is written."
    )
    comment: str = Field("", title="Comment", description="Your name, or your reason; kept with the run.")


def check_deployed() -> None:
    """Check that a worker can start the current run again.

    Raises:
        InputError: the run has no deployment.
    """
    if not deployment.id:
        raise InputError(
            "a run ends while it waits for approval, and a worker starts it again afterwards: start it from the "
            "deployment convert-checkpoint/convert-with-approval. In a program, plan, ask and convert"
        )


def check_approved(request: ApprovedConversionRequest, plan: ConversionPlan) -> None:
    """Check that a plan was approved; suspends the run to ask.

    A plan that was carried out already needs no approval.

    Raises:
        Refused: it was refused.
        TargetError: the target is occupied.
    """
    target = Target.of(request.target, plan, overwrite=request.overwrite)
    if target.is_committed():
        return
    replaced = _replaced(target, target.check_usable())
    question = xxhash.xxh3_64_hexdigest(f"{target.identity} {replaced}")
    answer = _answer(request, plan, question, bool(replaced))
    label_decision(answer.decision, answer.comment)
    if answer.decision is Decision.CONVERT:
        return
    comment = f": {printable(answer.comment)}" if answer.comment.strip() else ""
    raise Refused(Cancelled(message=f"Refused{comment}. Nothing was written; to be asked again, start a new run"))


def _replaced(target: Target, look: Look) -> str:
    """A key that differs for each checkpoint that would be replaced; empty if there is none."""
    manifest = manifest_to_keep(target.final, overwrite=target.overwrite)
    if manifest is not None:
        return manifest.identity
    return "files" if look.names and not target.is_resumed_in_place(look) else ""


def _answer(request: ApprovedConversionRequest, plan: ConversionPlan, question: str, replaces: bool) -> Approval:
    inputs = _inputs()
    for given in inputs:
        if _pause_key(given).startswith(question) and given.key.endswith(_ANSWER):
            return Approval.load_from_flow_run_input(given)
    asked = {_pause_key(given) for given in inputs} | _pause_keys()
    changed = bool(asked) and not any(key.startswith(question) for key in asked)
    summary = summarize(request, plan)
    publish_plan(plan, summary, str(parse_url(request.target)))
    _end_heartbeat()
    until = datetime.now(UTC) + timedelta(seconds=request.approval_seconds)
    state: State[None] = Suspended(
        pause_expiration_time=until,
        pause_key=next(key for attempt in count() if (key := f"{question}-{attempt}") not in asked),
        message=question_text(summary, request, until, replaces=replaces),
    )
    return _suspended(state, approval_page(summary, request, until, replaces=replaces, changed=changed))


def _suspended(state: State[None], question: str) -> NoReturn:
    """Suspend the current run, as Prefect's `suspend_flow_run` does, in a state that has a message: alerts show it."""
    inputs = keyset_from_paused_state(state)
    state.state_details.run_input_keyset = cast(dict[str, str], inputs)
    try:
        with get_client(sync_client=True) as client:
            reached = propose_state_sync(client, state, flow_run_id=UUID(flow_run.id))
    except Abort as abort:
        raise ConversionError(f"the server does not suspend the run: {abort}") from abort
    if not reached.is_paused():
        raise ConversionError(f"the server does not suspend the run, which is {reached.name}: retry it")
    Approval.with_initial_data(description=question).save(inputs)
    raise Pause(state=reached)


def _end_heartbeat() -> None:
    """Let no sign of life follow the suspension: the automation for killed runs would expect more, and end the run."""
    context = FlowRunContext.get()
    if context and context.flow_run:
        # Prefect's thread sends none for a run that has ended; the server does not see this state
        context.flow_run.state = Completed()
        time.sleep(_UNDER_WAY_SECONDS)


def _inputs() -> list[FlowRunInput]:
    """Questions and answers of the current run, those before a retry included."""
    if FlowRunContext.get() is None:
        return []
    return cast(list[FlowRunInput], filter_flow_run_input(_QUESTION, limit=_MAX_INPUTS))


def _pause_key(given: FlowRunInput) -> str:
    """The key of the suspension that an input belongs to."""
    return given.key.removeprefix(_QUESTION).rpartition("-")[0]


def _pause_keys() -> set[str]:
    """The keys of the current run's suspensions since its last retry, those whose question was not stored included."""
    context = FlowRunContext.get()
    return (context and context.flow_run and context.flow_run.empirical_policy.pause_keys) or set()

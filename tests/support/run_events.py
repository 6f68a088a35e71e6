"""Events that flow runs of this process cause, as the server tells of them."""

from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.events.worker import EventsWorker

from tests.support.patience import until


def run_id_of(state: Any) -> UUID:
    """The run that ended in this state."""
    run_id = state.state_details.flow_run_id
    assert isinstance(run_id, UUID)
    return run_id


def events_of(run_id: UUID, *names: str) -> list[dict[str, Any]]:
    """The events of these names that a run caused, and that the server knows by now."""
    EventsWorker.instance().wait_until_empty()
    related = {"resources_in_roles": [[f"prefect.flow-run.{run_id}", "flow-run"]]}
    wanted = {"filter": {"event": {"name": names}, "related": related}}
    with get_client(sync_client=True) as client:
        found = client.request("POST", "/events/filter", json=wanted).json()["events"]
    assert isinstance(found, list)
    return found


def event_of(run_id: UUID, name: str) -> dict[str, Any]:
    """The event of that name which the run caused; the server learns of it a little later."""
    [event] = until(lambda: events_of(run_id, name), f"there is no event {name}")
    return event

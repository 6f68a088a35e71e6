"""The automations that send alerts by a notification block: of runs that were killed, are late or wait for approval.

A run that fails sends its alert by itself (`failure_alerts`): the automation would send a second one. One failure is
the server's own: an approval that nobody gave in time. A second automation tells of it, with the actions of the first.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.events import EventTrigger, Posture, ResourceSpecification
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.exceptions import ObjectNotFound

from reshard.core.errors import InputError

ALERTS_AUTOMATION = "reshard: alerts"
EXPIRED_AUTOMATION = "reshard: alerts of expired approvals"
_STATES = ("Crashed", "TimedOut", "Late", "Suspended")
_FAILED = "prefect.flow-run.Failed"
_EXPIRED = "The flow was * and never resumed."
"""What Prefect says of a run that was paused or suspended for too long."""
_SUBJECT = "{{ flow_run.state.name }}: {{ flow_run.name }}"
_BODY = """\
{{ flow_run.name }} ({{ deployment.name }}): {{ flow_run.state.name }}

{{ flow_run.state.message or "" }}

{{ flow_run|ui_url }}"""


def find_block(client: SyncPrefectClient, name: str) -> UUID:
    """Return the id of the notification block `TYPE/NAME`.

    Raises:
        InputError: the server has no such block, or it cannot notify anybody.
    """
    slug, _, block = name.partition("/")
    try:
        found = client.read_block_document_by_name(block, slug, include_secrets=False)
    except ObjectNotFound as error:
        raise InputError(
            f"--notify {name}: the server has no such block; `prefect block ls` lists them as TYPE/NAME, and its page "
            "Blocks makes one: Slack Webhook, Email, Custom Webhook, …"
        ) from error
    if found.block_schema is None or "notify" not in found.block_schema.capabilities:
        raise InputError(
            f"--notify {name}: is not a notification block: name a Slack Webhook, Email, Custom Webhook, …"
        )
    return found.id


def notified_blocks(client: SyncPrefectClient, automations: Sequence[AutomationCore]) -> list[str]:
    """Return the blocks, as TYPE/NAME, by which automations notify; deleted ones are left out."""
    ids = {
        action.block_document_id
        for automation in automations
        for action in automation.actions
        if isinstance(action, SendNotification)
    }
    names = []
    for each in ids:
        with suppress(ObjectNotFound):
            block = client.read_block_document(each, include_secrets=False)
            if block.block_type is not None:
                names.append(f"{block.block_type.slug}/{block.name}")
    return sorted(names)


def alerts_automation(tags: Sequence[str], block: UUID) -> AutomationCore:
    """Return the automation that notifies of deployed runs with these tags; one message each time."""
    return AutomationCore(
        name=ALERTS_AUTOMATION,
        description="Notifies of runs that were killed, are late (no worker takes them) or wait for approval. Failed "
        "runs notify by themselves, by the same block, while this automation is on.",
        trigger=_trigger(tags, {f"prefect.flow-run.{state}" for state in _STATES}),
        actions=[SendNotification(block_document_id=block, subject=_SUBJECT, body=_BODY)],
    )


def expired_automation(tags: Sequence[str], alerts: AutomationCore) -> AutomationCore:
    """Return the automation that notifies, as that of the alerts does, of approvals that nobody gave in time."""
    return AutomationCore(
        name=EXPIRED_AUTOMATION,
        description=f"Notifies, as {ALERTS_AUTOMATION!r} does, of runs that failed because nobody decided in time.",
        enabled=alerts.enabled,
        trigger=_trigger(tags, {_FAILED}, {"prefect.state-message": _EXPIRED}),
        actions=alerts.actions,
    )


def tells_of(automation: AutomationCore, event: str) -> bool:
    """True if an automation tells of an event such as `prefect.flow-run.Failed`."""
    return isinstance(automation.trigger, EventTrigger) and event in automation.trigger.expect


def leave_failures_to_runs(client: SyncPrefectClient, there: Automation) -> bool:
    """Let an older version's automation tell of no failure that the run tells of; return True if that was needed."""
    trigger = there.trigger
    if not isinstance(trigger, EventTrigger) or not tells_of(there, _FAILED):
        return False
    kept = there.model_dump(exclude={"id", "trigger"}, exclude_unset=True)
    mended = trigger.model_copy(update={"expect": trigger.expect - {_FAILED}})
    client.update_automation(there.id, AutomationCore.model_validate(kept | {"trigger": mended}))
    return True


def _trigger(tags: Sequence[str], events: set[str], labels: Mapping[str, str] | None = None) -> EventTrigger:
    return EventTrigger(
        expect=events,
        match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*", **(labels or {})}),
        # the conversion below a scheduled run has the same tags, and no deployment: it fails together with it
        match_related=[
            ResourceSpecification({"prefect.resource.id": [f"prefect.tag.{tag}" for tag in tags]}),
            ResourceSpecification({"prefect.resource.id": "prefect.deployment.*"}),
        ],
        for_each={"prefect.resource.id"},
        posture=Posture.Reactive,
        threshold=1,
    )

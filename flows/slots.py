"""Slots of a global concurrency limit of Prefect, which keep concurrent runs from overloading a storage together.

The flow takes the slots, not its tasks: so a slot is freed however a task ends, no worker waits for one, and a retried
task keeps its slot. A run hands its slots on from rank to rank, and gives each back after a while, for runs that wait.

Prefect's own `concurrency` takes up to two seconds to give a slot back, and logs an error with a stack trace each time
that a limit is busy. So slots are taken with its client.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.responses import ConcurrencyLimitWithLeaseResponse
from prefect.exceptions import ObjectNotFound, PrefectException

from reshard.core.errors import ConversionError, InputError
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record

_LEASE_SECONDS = 60.0
"""The server takes back the slot of a killed run after this time; no shorter time is allowed."""
_RENEWAL_SECONDS = 20.0
_ASK_AGAIN_SECONDS = 1.0
"""The server's own pauses are up to half a minute, and a run that is being stopped must not wait."""
_PATIENCE = 10
_KEPT_SECONDS = 30.0
"""A slot is handed on within its run for so long: other runs may wait for it."""


class Slot(Record):
    """A slot that is taken until it is given back.

    Attributes:
        lease_id: Prefect's lease on it.
        taken: when it was taken, by `time.monotonic`.
    """

    lease_id: UUID
    taken: float

    @property
    def may_be_handed_on(self) -> bool:
        """True if the run may use it for another rank."""
        return time.monotonic() - self.taken < _KEPT_SECONDS


Answer = Slot | Exception
Answered = Callable[[Answer], None]


class Slots:
    """Takes slots, renews their leases and gives them back, in a thread of its own: no work waits for the server."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._wishes: SimpleQueue[Answered | Slot | None] = SimpleQueue()
        self._waiting: list[Answered] = []
        self._tries = 0
        self._renewals: dict[Slot, float] = {}
        self._thread = Thread(target=partial(copy_context().run, self._serve), daemon=True, name="reshard-slots")
        self._thread.start()

    def ask(self, answered: Answered) -> None:
        """Call `answered` in another thread with a slot, or with the error that kept it from being taken."""
        self._wishes.put(answered)

    def give_back(self, slot: Slot) -> None:
        """Free a slot soon."""
        self._wishes.put(slot)

    def close(self) -> None:
        """Give all slots back; nobody is answered any more."""
        self._wishes.put(None)
        self._thread.join()

    def _serve(self) -> None:
        try:
            with get_client(sync_client=True) as client:
                try:
                    self._fulfill(client)
                finally:
                    for slot in list(self._renewals):
                        self._free(client, slot)
        except Exception as error:  # of any kind: the run would wait without end for an answer
            self._refuse(error)

    def _fulfill(self, client: SyncPrefectClient) -> None:
        while (wish := self._next_wish()) is not None:
            if isinstance(wish, Slot):
                self._free(client, wish)
            elif callable(wish):
                self._waiting.append(wish)
            if self._waiting and self._try_to_take(client, self._waiting[0]):
                self._waiting.pop(0)
            self._renew(client)

    def _refuse(self, error: Exception) -> None:
        """Answer everybody with an error until the end."""
        for answered in self._waiting:
            answered(error)
        while (wish := self._wishes.get()) is not None:
            if not isinstance(wish, Slot):
                wish(error)

    def _next_wish(self) -> Answered | Slot | bool | None:
        """Return the next wish, None to end; False if it is time to try, or to renew, again."""
        pause = _ASK_AGAIN_SECONDS if self._waiting else _RENEWAL_SECONDS / 2
        try:
            return self._wishes.get(timeout=pause)
        except Empty:
            return False

    def _try_to_take(self, client: SyncPrefectClient, answered: Answered) -> bool:
        """Answer with a slot or an error; False if all slots are taken."""
        try:
            # no timeout: a request that is given up may be granted, and nobody would give that slot back
            response = client.increment_concurrency_slots_with_lease([self._name], 1, "concurrency", _LEASE_SECONDS)
        except (httpx.HTTPError, PrefectException) as error:
            if not _is_taken(error):
                answered(error)
                return True
            self._tries += 1
            if self._tries == _PATIENCE:
                current_progress().note(f"waiting for a slot of the concurrency limit {self._name}")
            return False
        self._tries = 0
        granted = ConcurrencyLimitWithLeaseResponse.model_validate(response.json())
        now = time.monotonic()
        slot = Slot(granted.lease_id, now)
        self._renewals[slot] = now
        answered(slot if granted.limits else ConversionError("it was deleted"))
        return True

    def _renew(self, client: SyncPrefectClient) -> None:
        now = time.monotonic()
        for slot, renewed in list(self._renewals.items()):
            if now - renewed < _RENEWAL_SECONDS:
                continue
            self._renewals[slot] = now
            try:
                client.renew_concurrency_lease(slot.lease_id, _LEASE_SECONDS)
            except (httpx.HTTPError, PrefectException) as error:  # that must not end work that is under way
                current_progress().note(f"a slot of the concurrency limit {self._name} could not be kept: {error}")

    def _free(self, client: SyncPrefectClient, slot: Slot) -> None:
        self._renewals.pop(slot, None)
        try:
            client.release_concurrency_slots_with_lease(slot.lease_id)
        except (httpx.HTTPError, PrefectException) as error:  # the server takes it back later
            current_progress().note(f"a slot of the concurrency limit {self._name} is freed later: {error}")


def _is_taken(error: Exception) -> bool:
    """True if the server answered that all slots are taken."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.LOCKED


@contextmanager
def slots_of(name: str) -> Iterator[Slots | None]:
    """Provide the slots of a limit, None without a name; slots that are left at the end of the block are given back."""
    if not name:
        yield None
        return
    _check_limit(name)
    slots = Slots(name)
    try:
        yield slots
    finally:
        slots.close()


def _check_limit(name: str) -> None:
    """Check that a concurrency limit exists; an inactive limit is no hindrance."""
    try:
        with get_client(sync_client=True) as client:
            client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound as error:
        raise InputError(
            f"concurrency_limit {name}: Prefect has no global concurrency limit of that name; there is one after "
            f"`prefect gcl create {name} --limit N`"
        ) from error


def slot_error(name: str, error: Exception) -> ConversionError:
    """Return the error of a run that cannot take a slot."""
    return ConversionError(f"could not acquire a slot of the concurrency limit {name}: {error}")

"""Slots of a global concurrency limit of Prefect, which keep concurrent runs from overloading a storage together.

The flow takes the slots, not its tasks: so a slot is freed however a task ends, no worker waits for one, and a retried
task keeps its slot.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial

import httpx
from prefect import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from reshard.core.errors import ConversionError, InputError
from reshard.core.runtime.progress import current_progress

_LEASE_SECONDS = 60.0
"""The server takes back the slot of a killed run after this time; no shorter time is allowed."""
_ASK_AGAIN_SECONDS = 1.0
"""The server's own pauses are up to half a minute, and a run that is being stopped must not wait."""
_PATIENCE = 10


class Slot:
    """A slot that is taken until it is given back."""

    def __init__(self) -> None:
        self._given_back = threading.Event()

    def give_back(self) -> None:
        """Free the slot."""
        self._given_back.set()

    def wait(self) -> None:
        """Return when the slot is given back."""
        self._given_back.wait()


Answer = Slot | Exception


class Slots:
    """Takes slots, each in its own thread, and gives all back at the end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = threading.Event()
        self._slots: list[Slot] = []
        self._threads: list[threading.Thread] = []

    def ask(self, answered: Callable[[Answer], None]) -> None:
        """Call `answered` in another thread with a slot, or with the error that kept it from being taken."""
        thread = threading.Thread(
            target=partial(copy_context().run, self._hold, answered), daemon=True, name="reshard-slot"
        )
        self._threads = [other for other in self._threads if other.is_alive()] + [thread]
        thread.start()

    def close(self) -> None:
        """Give all slots back."""
        self._closed.set()
        for slot in self._slots:
            slot.give_back()
        for thread in self._threads:
            thread.join()

    def _hold(self, answered: Callable[[Answer], None]) -> None:
        tries = 0
        while not self._closed.is_set():
            slot = Slot()
            try:
                # a lease that could not be renewed must not end work that is under way; and no timeout: a request that
                # is given up may be granted, and nobody would give that slot back
                with concurrency(
                    self._name,
                    strict=True,
                    max_retries=0,
                    lease_duration=_LEASE_SECONDS,
                    raise_on_lease_renewal_failure=False,
                ):
                    self._slots.append(slot)
                    if not self._closed.is_set():
                        answered(slot)
                        slot.wait()
                return
            except Exception as error:  # any error must reach the run
                if not _is_taken(error):
                    answered(error)
                    return
                tries += 1
                if tries == _PATIENCE:
                    current_progress().note(f"waiting for a slot of the concurrency limit {self._name}")
                self._closed.wait(_ASK_AGAIN_SECONDS)


def _is_taken(error: Exception) -> bool:
    """True if the server answered that all slots are taken."""
    cause = error.__cause__
    return isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code == httpx.codes.LOCKED


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


def not_had(name: str, error: Exception) -> ConversionError:
    """Return the error of a run that cannot take a slot."""
    return ConversionError(f"no slot of the concurrency limit {name} can be had: {error}")

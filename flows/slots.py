"""Slots of a global concurrency limit of Prefect, by which runs share what they would overload together.

They are taken by the flow, not by its tasks: so a slot is freed however a task ends, no worker waits for one, and a
task that is tried again has the one that it began with.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial

from prefect import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from reshard.core.errors import ConversionError, InputError
from reshard.core.runtime.progress import current_progress

_LEASE_SECONDS = 60.0
"""The server takes a slot back so long after its run was killed; no shorter time is allowed."""
_ASK_AGAIN_SECONDS = 1.0
"""The server would have us wait up to half a minute; and a run that is told to stop must not wait."""
_PATIENCE = 10


class Slot:
    """A slot that is held until it is given back."""

    def __init__(self) -> None:
        self._given_back = threading.Event()

    def give_back(self) -> None:
        """Lets others have it."""
        self._given_back.set()

    def wait(self) -> None:
        """Returns when it is given back."""
        self._given_back.wait()


Answer = Slot | Exception


class Slots:
    """Takes slots, each in a thread of its own, and gives all back at the end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = threading.Event()
        self._slots: list[Slot] = []
        self._threads: list[threading.Thread] = []

    def ask(self, answered: Callable[[Answer], None]) -> None:
        """Has `answered` called, in another thread, when there is a slot, or it cannot be had."""
        thread = threading.Thread(
            target=partial(copy_context().run, self._hold, answered), daemon=True, name="reshard-slot"
        )
        self._threads = [other for other in self._threads if other.is_alive()] + [thread]
        thread.start()

    def close(self) -> None:
        """Gives all back."""
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
                # a lease that could not be renewed must not end work that is under way
                with concurrency(
                    self._name,
                    strict=True,
                    timeout_seconds=_ASK_AGAIN_SECONDS,
                    lease_duration=_LEASE_SECONDS,
                    raise_on_lease_renewal_failure=False,
                ):
                    self._slots.append(slot)
                    if not self._closed.is_set():
                        answered(slot)
                        slot.wait()
                return
            except TimeoutError:
                tries += 1
                if tries == _PATIENCE:
                    current_progress().note(f"waiting for a slot of the concurrency limit {self._name}")
            except Exception as error:  # whatever it is, the run has to be told
                answered(error)
                return


@contextmanager
def slots_of(name: str) -> Iterator[Slots | None]:
    """The slots of a limit; None for no limit. What is still held at the end of the block is given back.

    Raises:
        InputError: there is no such limit.
    """
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
    """Makes sure that a concurrency limit exists; one that is inactive holds nobody up."""
    try:
        with get_client(sync_client=True) as client:
            client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound as error:
        raise InputError(
            f"concurrency_limit {name}: Prefect has no global concurrency limit of that name; there is one after "
            f"`prefect gcl create {name} --limit N`"
        ) from error


def not_had(name: str, error: Exception) -> ConversionError:
    """What a run is told that cannot have a slot."""
    return ConversionError(f"no slot of the concurrency limit {name} can be had: {error}")

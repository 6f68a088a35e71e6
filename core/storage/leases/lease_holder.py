"""The content of a lease: the run that holds it, and the runs it excludes."""

import json
import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec.structs import asdict

from reshard.core.errors import TargetBusyError, TargetError
from reshard.core.runtime.records import Record
from reshard.core.runtime.this_process import host_name, user_name
from reshard.core.runtime.wording import moment_text
from reshard.core.text.options import option
from reshard.core.text.printing import printable

LAST_RENEWAL = -1
"""Number of the renewal that is the last text of a dead lease, written by the run that removes it."""
MAX_LEASE_BYTES = 2**20
_MAX_LISTED = 8


class LeaseHolder(Record):
    """A run, and the target ranks that its lease is for; `plan` identifies the plan it carries out."""

    run: str
    host: str
    user: str
    process: int
    started: str
    ranks: tuple[int, ...]
    plan: str = ""

    def __str__(self) -> str:
        text = f"run {self.run} of {self.user} on {self.host} (process {self.process}, since {_since(self.started)})"
        return printable(text)  # any process may have written it

    def dump(self, **fields: object) -> bytes:
        """Format as the content of a lease, with further fields."""
        return json.dumps(asdict(self) | fields).encode()

    def is_rival(self, other: "LeaseHolder") -> bool:
        """True if two runs exclude each other: their plans differ, or their ranks overlap."""
        return self.plan != other.plan or bool(self._common_ranks(other))

    def refuse_rivals(self, others: Sequence["LeaseHolder"]) -> None:
        """Check that no living run excludes this one."""
        for other in others:
            busy = f"another run is already converting into this target: {other}"
            if other.plan != self.plan:
                raise TargetBusyError(f"{busy}. It uses other options, or its source has changed since; wait for it")
            ranks = self._common_ranks(other)
            if ranks:
                shown = ", ".join(map(str, ranks[:_MAX_LISTED])) + (" …" if len(ranks) > _MAX_LISTED else "")
                raise TargetBusyError(
                    f"{busy}. It holds target ranks {shown}. Wait for it, or convert other ranks with {option('ranks')}"
                )

    def _common_ranks(self, other: "LeaseHolder") -> list[int]:
        return sorted(set(self.ranks) & set(other.ranks))


def new_holder(ranks: Sequence[int], plan: str = "") -> LeaseHolder:
    """Return a lease holder for this process; `plan` is the identity of its plan, if it has one."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return LeaseHolder(uuid.uuid4().hex[:8], host_name(), user_name(), os.getpid(), started, tuple(ranks), plan)


def is_last_text(text: bytes) -> bool:
    """True for the content that a dead lease gets before it is removed."""
    try:
        return bool(json.loads(text)["renewal"] == LAST_RENEWAL)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def parse_holder(text: bytes, origin: str) -> LeaseHolder:
    """Parse the content of a lease."""
    try:
        fields = json.loads(text)
        fields.pop("renewal", None)
        holder = LeaseHolder(**(fields | {"ranks": tuple(fields["ranks"])}))
        # a lease's file has its run's name
        if "/" in holder.run or not all(type(rank) is int for rank in holder.ranks):
            raise ValueError("impossible names of runs, or numbers of ranks")
        return holder
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TargetError(f"{origin}: not a readable lease; remove it if no other run uses this target") from error


def _since(started: str) -> str:
    """Format a moment of a lease, which any process may have written, for people."""
    try:
        return moment_text(datetime.fromisoformat(started))
    except (ValueError, TypeError):
        return str(started)

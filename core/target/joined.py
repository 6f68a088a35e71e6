"""The target of joined parts: held, resumed and committed as a conversion's, but without a plan of its own."""

from functools import cached_property

from reshard.core.checkpoint.manifest import Manifest
from reshard.core.errors import TargetError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.storage.publishing import STATE_DIRECTORY
from reshard.core.storage.urls import Location
from reshard.core.target.look import Look
from reshard.core.target.place import check_beside, check_place
from reshard.core.target.target import Target
from reshard.core.target.touched_sources import EarlierWork
from reshard.core.target.workspace import read_identity

_NOT_EMPTY = "{}: is not empty. Name another target, or remove it"


class JoinedTarget(Target, dict=True):
    """The target of parts, which replaces nothing; `plan` is one part's.

    `parts_identity` is a digest of everything that decides its content.
    """

    parts_identity: str = ""

    @cached_property
    def identity(self) -> str:
        """The digest of what decides its content, in place of a plan's identity."""
        return self.parts_identity

    @cached_property
    def plan_data(self) -> bytes:
        """Nothing: there is no plan to be written."""
        return b""

    def check_usable(self) -> Look:
        """Check that nothing is at the target but these parts, joined or begun to be joined; return its state."""
        check_beside(self.final)
        look = self._look()
        if look.identity not in (None, self.identity) and self._read_manifest() is None:
            raise TargetError(
                f"{self.final}: something else is unfinished in {self.workspace.directory}. Finish that, or remove it"
            )
        if look.names and not self._is_committed(look) and not self.is_resumed_in_place(look):
            raise TargetError(_NOT_EMPTY.format(self.final))
        return look

    def _earlier_work(self, look: Look) -> EarlierWork | None:
        """None: a conversion that was begun here is not a join."""

    def _read_manifest(self) -> Manifest | None:
        return read_manifest(self.final)


def check_joinable(final: Location) -> None:
    """Refuse an unusable target before any part is read.

    Raises:
        TargetError: the storage or the place cannot be used, or something else is there.
    """
    names = check_place(final)
    begun = read_manifest(final) is not None or read_identity(final.child(STATE_DIRECTORY)) is not None
    if names and not begun:
        raise TargetError(_NOT_EMPTY.format(final))

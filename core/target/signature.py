"""The signature of a finished target: it stays, and so does every signed file, unless this run signs anew."""

from reshard.core.errors import TargetError
from reshard.core.runtime.records import Record
from reshard.core.storage.listing import exists
from reshard.core.storage.publishing import SIGNATURE_NAME
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location
from reshard.core.text.options import option


class TargetSignature(Record):
    """The signature that a finished target may have; `signs`: this run signs it anew at its end."""

    final: Location
    signs: bool

    @property
    def stays(self) -> bool:
        """True if the target is signed, and this run does not sign it anew: then no file may change."""
        return not self.signs and self._exists

    @property
    def _exists(self) -> bool:
        return exists(self.final.child(SIGNATURE_NAME))

    def lift(self) -> bool:
        """Remove the signature before files of the target change, if this run signs it anew at its end.

        Returns False if the target is signed and stays so: then no file may change.
        """
        if self.stays:
            return False
        if self.signs and self._exists:
            remove_file(self.final.child(SIGNATURE_NAME))
        return True

    def lift_to_repair(self) -> None:
        """Remove the signature as `lift` does; raise TargetError if it stays."""
        if not self.lift():
            raise TargetError(
                f"{self.final}: is signed, and has to be repaired, which its signature would not cover: name the key "
                f"with {option('sign')} to repair it and sign it again"
            )

"""The result of checking a converted checkpoint."""

from reshard.core.request.conversion import VerifyLevel
from reshard.core.runtime.summary import RANK, Summary


class VerificationReport(Summary):
    """The result of checking a converted checkpoint: `problems` is empty if all is right; `kind` is what ranks are.

    `compared` counts the parameters whose values were compared with the source's, of which `compared_bytes` were read.
    `notes` say what could not be checked.
    """

    target: str
    level: VerifyLevel
    ranks: int
    read_bytes: int
    compared: int = 0
    compared_bytes: int = 0
    seconds: float
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    kind: str = RANK

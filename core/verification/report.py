"""The result of checking a converted checkpoint."""

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.runtime.summary import RANK, Summary


class VerificationReport(Summary):
    """The result of checking a converted checkpoint.

    Attributes:
        compared: the number of parameters whose values were compared with the source's.
        compared_bytes: bytes read from the source for it.
        problems: in sentences; empty if the checkpoint is right.
        notes: in sentences, about what could not be checked.
        kind: what `ranks` counts, RANK or FILE.
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

"""The result of checking a converted checkpoint."""

from collections.abc import Iterator

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.reports.blocks import Block, Line, More
from reshard.core.reports.report import Report
from reshard.core.runtime.summary import RANK
from reshard.core.runtime.wording import counted, seconds_text, size_text

_MAX_PROBLEMS = 50


class VerificationReport(Report):
    """The result of checking a converted checkpoint.

    Attributes:
        compared: the number of parameters whose values were compared with the source's.
        compared_bytes: bytes read from the source for it.
        signed_by: who signed all files as they are; None if that was not checked, or is not so.
        stated: the statements about the checkpoint were compared with it.
        hashed: the number of ranks' files whose SHA-256 was compared with the manifest's.
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
    hashed: int = 0
    signed_by: str | None = None
    stated: bool = False
    seconds: float
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    kind: str = RANK

    def blocks(self) -> Iterator[Block]:
        """Yield its content: notes, problems, and the answer."""
        for text in (*self.notes, *self.problems[:_MAX_PROBLEMS]):
            yield Line(text)
        yield More(len(self.problems) - _MAX_PROBLEMS)
        checked = (
            f"{self.target}: {counted(self.ranks, self.kind)} checked ({self.level}), "
            f"{size_text(self.read_bytes)} of contents read in {seconds_text(self.seconds)}"
        )
        if self.hashed:
            checked += f"; the SHA-256 of {counted(self.hashed, 'file')} compared"
        if self.compared:
            checked += (
                f"; the values of {counted(self.compared, 'parameter')} compared, {size_text(self.compared_bytes)} of "
                "the source's read"
            )
        verdict = "all files intact, and equal to the source" if self.compared else "all files intact"
        if self.signed_by:
            verdict += f", as signed by {self.signed_by}"
        if self.stated:
            verdict += "; its statements agree"
        yield Line(f"{checked}: {counted(len(self.problems), 'problem') if self.problems else verdict}")

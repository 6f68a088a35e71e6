"""What a report says of a target's custody: how many files have a SHA-256, its statements, and its signature."""

from collections.abc import Iterator

from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted


class CustodySummary(Summary):
    """What is recorded of a finished target, for those who have to prove what it is.

    Attributes:
        files: number of its files with a SHA-256.
        source_files: number of source files with a SHA-256, each of which was read whole.
        provenance_sha256: of its provenance statement; None if there is none.
        predecessors: number of conversions before this one whose statements are kept beside it.
        signature_sha256: of its signature, `model.sig`; None if it is not signed.
        signed_by: who signed it in this run: the SHA-256 of the key, after the subject of its certificate; empty if
            nobody did.
    """

    files: int
    source_files: int
    provenance_sha256: str | None
    predecessors: int
    signature_sha256: str | None
    signed_by: str

    @property
    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts, as reports show them."""
        of_source = f", and of {counted(self.source_files, 'source file')}" if self.source_files else ""
        yield "SHA-256", f"of {counted(self.files, 'file')}{of_source}"
        if self.signature_sha256:
            by = f"by {self.signed_by}" if self.signed_by else "by an earlier run"
            yield "signed", f"{by}; model.sig has SHA-256 {self.signature_sha256}"
        if self.provenance_sha256:
            earlier = f"; {counted(self.predecessors, 'earlier conversion')} in its chain" if self.predecessors else ""
            yield "provenance", f"SHA-256 {self.provenance_sha256}{earlier}"

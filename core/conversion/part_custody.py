"""The custody of parts that are to be joined: their signatures, the SHA-256 that they state, and their statements.

A part that was changed since it was signed is not joined, whether or not anybody asks whose the signature is. Small
files are compared before anything is copied; those of tensors when their copies are read back.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reshard.core.conversion.parts import Part
from reshard.core.custody.digests import is_signed
from reshard.core.errors import SignatureError
from reshard.core.request.joining import JoinRequest
from reshard.core.runtime.records import Record
from reshard.core.storage.publishing import SIGNATURE_NAME
from reshard.core.storage.read_log import ReadDocument, ReadLog, logging_reads
from reshard.core.storage.urls import Location
from reshard.core.text.printing import listed_lines

if TYPE_CHECKING:  # cryptography, which joins of unsigned parts do not need
    from reshard.core.custody.chain import Chain
    from reshard.core.signing.statement import SignedFiles
    from reshard.core.signing.verifier import Verifier

_OPTION = "require_signed_by"
_WORKERS = 4


class PartCustody(Record):
    """What is known of a part's files.

    Attributes:
        sha256: of its files, by path: as its signature says if it is signed, else as its manifest does.
        signed: what its signature covers; None without one.
        chain: the statements about it; None without, or if they are not to be continued.
        notes: in sentences.
    """

    location: Location
    sha256: Mapping[str, str]
    signed: "SignedFiles | None" = None
    chain: "Chain | None" = None
    notes: tuple[str, ...] = ()

    @property
    def is_signed(self) -> bool:
        """True if a signature covers its files."""
        return self.signed is not None

    def problem(self, file: str, sha256: str) -> str | None:
        """Return in a sentence that a file of the part has another SHA-256 than is stated; None if it has not."""
        stated = self.sha256.get(file)
        if stated in (None, sha256):
            return None
        says = SIGNATURE_NAME if self.is_signed else "its manifest"
        return f"{self.location.child(*file.split('/'))}: its SHA-256 is {sha256}, not {stated}, as {says} says"


def custody_of_parts(
    request: JoinRequest, parts: Sequence[Part], documents: Sequence[ReadDocument]
) -> tuple[PartCustody, ...]:
    """Check the signatures of parts, and read their statements if the target gets any.

    `documents` are what was read of the parts so far.

    Raises:
        InputError: the file of keys is wrong.
        SignatureError: a signature is missing, although one is required, or damaged, or by nobody who is trusted; or
            it does not match the part.
        TargetError: statements are damaged, or contradict each other.
        StorageError: something cannot be read.
    """
    verifier = _verifier(request)
    found = []
    for part in parts:
        stated = {file: sha256 for file, sha256 in part.manifest.sha256.items() if sha256 is not None}
        if verifier or is_signed(part.location):
            custody = _signed(part, verifier, stated)
        else:
            custody = PartCustody(part.location, stated)
        log = ReadLog()
        if request.hashes_target:
            with logging_reads(log):
                custody = _with_chain(custody)
        _check_as_read(custody, (*documents, *log.documents))
        found.append(custody)
    return tuple(found)


def _verifier(request: JoinRequest) -> "Verifier | None":
    if not request.require_signed_by:
        return None
    from reshard.core.custody.checking import required_verifier  # with cryptography

    return required_verifier(request.require_signed_by)


def _with_chain(custody: PartCustody) -> PartCustody:
    from reshard.core.custody.chain_reading import read_chain

    chain = read_chain(custody.location)
    notes = () if chain else (f"{custody.location}: has no statements that could be continued",)
    return replace(custody, chain=chain, notes=(*custody.notes, *notes))


def _signed(part: Part, verifier: "Verifier | None", stated: Mapping[str, str]) -> PartCustody:
    """Compare a signed part with its signature, but files of tensors whose SHA-256 the manifest states."""
    from reshard.core.custody.checking import SignatureCheck, signature_note

    check = SignatureCheck.of(part.location, part.manifest, verifier)
    found = check.compare(stated, reads_contents=True, workers=_WORKERS)
    if found.problems or check.files is None:
        raise _refusal(part.location, found.problems)
    by = f"{part.location}: is signed by {found.signed_by.text}" if found.signed_by else ""
    note = by or signature_note(part.location, _OPTION)
    return PartCustody(part.location, check.files.digests, check.files, notes=(note, *found.notes))


def _check_as_read(custody: PartCustody, documents: Sequence[ReadDocument]) -> None:
    """Check that a part's documents were as they were signed also when they were read, which was at other times.

    Raises:
        SignatureError: some were not; the message lists them.
    """
    if custody.signed is None:
        return
    from reshard.core.custody.signed_source import unsigned_documents

    if changed := list(unsigned_documents(documents, custody.signed, custody.location)):
        raise _refusal(custody.location, changed)


def _refusal(part: Location, problems: Sequence[str]) -> SignatureError:
    what = "\n  ".join(listed_lines(problems))
    return SignatureError(
        f"{part}: is not joined, because of its signature:\n  {what}\nRestore what was signed, or have it signed again"
    )

"""The chain of statements from a target back to the training: each provenance refers to its predecessor's by SHA-256.

    TARGET/.reshard/provenance.intoto.json                        of the target itself
    TARGET/.reshard/predecessors/1/provenance.intoto.json         of its source, if that was converted, too
    TARGET/.reshard/predecessors/2/provenance.intoto.json         of the source's source, and so on

The files are copies of what was beside the source, byte for byte, so signatures of them stay valid and the chain
survives the source. A predecessor's `model.sig` is kept as well: it covers the statements where these are not signed
themselves, and has the certificate. All of this may come from strangers: sizes and numbers are bounded.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING
from urllib.parse import unquote

from reshard.core.checkpoint.manifest import PREDECESSORS_DIRECTORY, PROVENANCE_NAME, STATEMENT_NAMES
from reshard.core.custody.equivalence import EquivalenceStatement
from reshard.core.custody.provenance import ProvenanceStatement
from reshard.core.custody.statements import Dependency, Digests, FileFacts, uri_of
from reshard.core.errors import CatalogError, SignatureError
from reshard.core.layouts.documents import Document
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted
from reshard.core.storage.publishing import SIGNATURE_NAME, state_path
from reshard.core.storage.urls import Location
from reshard.core.text.options import option
from reshard.core.text.printing import listed_lines

if TYPE_CHECKING:  # cryptography, which conversions without signatures do not need
    from reshard.core.signing.bundle import Bundle
    from reshard.core.signing.dsse import Envelope
    from reshard.core.signing.verifier import Identity, Verifier


PREDECESSOR = "predecessor"
"""Role of a dependency that is a statement about the source."""


class Step(Record):
    """One conversion of a chain, by its statements.

    Attributes:
        number: 0: the target itself; 1: its source's conversion, and so on.
        directory: where its files are.
        files: their bytes, by name.
        provenance: what they say; None if that cannot be read.
        equivalence: what they say of values; None if that cannot be read, or is not there.
        envelopes: the signed ones among the statements.
        signature: its `model.sig`; None if there is none, or one of a kind that cannot be read.
        problems: what is damaged, or contradicts another file, in sentences.
    """

    number: int
    directory: Location
    files: Mapping[str, bytes]
    provenance: ProvenanceStatement | None
    equivalence: EquivalenceStatement | None
    envelopes: "tuple[Envelope, ...]"
    signature: "Bundle | None"
    problems: tuple[str, ...]

    @property
    def dependencies(self) -> Sequence[Dependency]:
        """The files that it read."""
        return self.provenance.predicate.build_definition.resolved_dependencies if self.provenance else ()

    @property
    def subjects(self) -> dict[str, str]:
        """SHA-256 of the files that it wrote, by path."""
        return {each.name: each.digest.sha256 for each in self.provenance.subject} if self.provenance else {}

    @property
    def is_withheld(self) -> bool:
        """True if they name no parameters, because its files are encrypted."""
        return self.provenance is not None and self.provenance.predicate.build_definition.internal_parameters.withheld

    @property
    def is_covered(self) -> bool:
        """True if its `model.sig` covers its statements."""
        covered = self.signature.files.digests if self.signature else {}
        return all(state_path(name) in covered for name in self.files if name in STATEMENT_NAMES)

    @property
    def predecessor(self) -> Dependency | None:
        """What it says of its predecessor's provenance; None if it has none."""
        found = (each for each in self.dependencies if each.annotations.role == PREDECESSOR)
        return next((each for each in found if each.name == PROVENANCE_NAME), None)

    @property
    def refers_to(self) -> str | None:
        """SHA-256 of the provenance of its predecessor; None if it has none."""
        digest = self.predecessor.digest if self.predecessor else None
        return digest.sha256 if digest else None

    def read_before(self) -> Iterator[tuple[str, str]]:
        """Yield the files of its predecessor that it read whole: path below the predecessor's target, and SHA-256."""
        uri = (self.predecessor.uri if self.predecessor else None) or ""
        beginning, found, _ = uri.rpartition(state_path(PROVENANCE_NAME))
        for each in self.dependencies if found else ():
            if each.digest and each.uri and each.uri.startswith(beginning):
                path = each.uri.removeprefix(beginning)
                yield unquote(path) if uri.startswith("file:") else path, each.digest.sha256

    def signer(self, verifier: "Verifier") -> "Identity":
        """Return who signed its statements, or the files with them.

        Raises:
            SignatureError: nobody did, or nobody who is trusted.
        """
        origin = str(self.directory)
        if self.signature is not None and self.is_covered:
            beside = self.directory if self.number else self.directory.parent
            return self.signature.check(verifier, f"{beside}/{SIGNATURE_NAME}")
        if not self.envelopes:
            raise SignatureError(f"{origin}: its statements are not signed")
        from reshard.core.signing.verifier import Material

        identity = verifier.identify(Material(self.envelopes[0].key_id), origin)
        for envelope in self.envelopes:
            envelope.check(identity, origin)
        if len(self.envelopes) < sum(name in STATEMENT_NAMES for name in self.files):
            raise SignatureError(f"{origin}: only some of its statements are signed")
        return identity


class Chain(Record):
    """The predecessors of a target that is to be made: the nearest is its source.

    Attributes:
        directory: the source's.
        steps: those that are kept, the nearest first.
        dropped: number of those that are not, because there are too many.
    """

    directory: Location
    steps: tuple[Step, ...]
    dropped: int = 0

    def notes(self, *, withheld: bool) -> Iterator[str]:
        """Yield what a user should know, in sentences; `withheld` as in `documents`."""
        if self.dropped:
            yield (
                f"{self.directory}: has statements of {len(self.steps) + self.dropped} conversions; the nearest "
                f"{len(self.steps)} are kept beside the target, not those of {counted(self.dropped, 'earlier one')}"
            )
        if withheld and len(self._kept(withheld=withheld)) < len(self.steps):
            yield (
                f"{self.directory}: its statements name parameters in plain text, so no copies are kept beside the "
                "encrypted target, which refers to them by SHA-256: keep them elsewhere"
            )

    def _kept(self, *, withheld: bool) -> list[Step]:
        return list(takewhile(lambda step: step.is_withheld or not withheld, self.steps))

    def documents(self, *, withheld: bool) -> Iterator[Document]:
        """Yield the copies that a target keeps; an encrypted one (`withheld`) none that name parameters."""
        for number, step in enumerate(self._kept(withheld=withheld), 1):
            for name, data in step.files.items():
                yield Document(state_path(f"{PREDECESSORS_DIRECTORY}/{number}/{name}"), data)

    def dependencies(self) -> Iterator[Dependency]:
        """Yield what a provenance says of the nearest predecessor's statements."""
        for step in self.steps[:1]:
            for name in STATEMENT_NAMES:
                if data := step.files.get(name):
                    yield Dependency(
                        name=name,
                        uri=uri_of(str(step.directory.child(name))),
                        digest=Digests(sha256=hashlib.sha256(data).hexdigest()),
                        annotations=FileFacts(role=PREDECESSOR, size_bytes=len(data), read="whole"),
                    )

    def check_same(self, sha256: Iterable[tuple[str, str]]) -> None:
        """Check that files of the source, each with its URL and SHA-256, are those that its own provenance lists.

        Raises:
            CatalogError: some are not; the message lists them.
        """
        beginning = f"{str(self.directory).rstrip('/')}/"
        written = self.steps[0].subjects if self.steps else {}
        differing = [
            f"{url}: its SHA-256 is {found}, not {written[name]}"
            for url, found in sorted(sha256)
            if (name := url.removeprefix(beginning)) in written and written[name] != found
        ]
        if differing:
            what = "\n  ".join(listed_lines(differing))
            raise CatalogError(
                f"{self.directory}: was changed after it was converted, by its own provenance:\n  {what}\n{REMEDY}"
            )


REMEDY = f"Restore it, or convert without a chain of statements: {option('sha256', 'none')}"

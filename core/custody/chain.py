"""The chain of statements from a target back to the training: each provenance refers to its predecessor's by SHA-256.

    TARGET/.reshard/provenance.intoto.json                        of the target itself
    TARGET/.reshard/predecessors/1/provenance.intoto.json         of its source, if that was converted, too
    TARGET/.reshard/predecessors/2/provenance.intoto.json         of the source's source, and so on

Joined parts have a predecessor each, so the chain branches there. The numbers only name directories, the nearest step's
first: the references alone say what was made of what.

The files are copies of what was beside the source, byte for byte, so signatures of them stay valid and the chain
survives the source. A predecessor's `model.sig` is kept as well: it covers the statements where these are not signed
themselves, and has the certificate. All of this may come from strangers: sizes and numbers are bounded.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, takewhile, zip_longest
from typing import TYPE_CHECKING
from urllib.parse import unquote

from reshard.core.checkpoint.manifest import PREDECESSORS_DIRECTORY, PROVENANCE_NAME, STATEMENT_NAMES
from reshard.core.custody.equivalence import EquivalenceStatement
from reshard.core.custody.provenance import JOIN_TYPE, ProvenanceStatement
from reshard.core.custody.statements import Dependency, Digests, FileFacts, uri_of, url_of
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
_MAX_PARTS = 1000
"""No job has more pipeline stages; what a statement names beyond is passed over."""


class Reference(Record):
    """What a provenance says of that of a predecessor: its URI then, and its SHA-256."""

    uri: str
    sha256: str

    @property
    def place(self) -> str:
        """Where the predecessor's target was when its successor read it."""
        return url_of(self.uri.partition("/.reshard/")[0])


class Step(Record, dict=True):
    """One conversion of a chain, by its statements.

    Attributes:
        number: 0: the target itself; of its predecessors, that of their directory.
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
    def is_join(self) -> bool:
        """True if parts were joined."""
        return self.provenance is not None and self.provenance.predicate.build_definition.build_type == JOIN_TYPE

    @property
    def parts(self) -> list[str]:
        """The places of the parts that it joined."""
        given = self.provenance.predicate.build_definition.external_parameters if self.provenance else {}
        parts = given.get("parts") if self.is_join else None
        return [each for each in parts[:_MAX_PARTS] if isinstance(each, str)] if isinstance(parts, list) else []

    @cached_property
    def sha256(self) -> str | None:
        """SHA-256 of its provenance's file; None if that is not there."""
        data = self.files.get(PROVENANCE_NAME)
        return None if data is None else hashlib.sha256(data).hexdigest()

    @cached_property
    def references(self) -> tuple["Reference", ...]:
        """What it says of the provenance of each predecessor: of one, or of each part that it joined."""
        # a stranger may repeat one thousands of times
        found = {
            each.digest.sha256: Reference(each.uri or "", each.digest.sha256)
            for each in self.dependencies
            if each.annotations.role == PREDECESSOR and each.name == PROVENANCE_NAME and each.digest
        }
        return tuple(islice(found.values(), _MAX_PARTS))

    def read_from(self, reference: "Reference") -> Iterator[tuple[str, str]]:
        """Yield the files of a predecessor that it read whole: path below the predecessor's target, and SHA-256."""
        beginning, found, _ = reference.uri.rpartition(state_path(PROVENANCE_NAME))
        for each in self.dependencies if found else ():
            if each.digest and each.uri and each.uri.startswith(beginning):
                path = each.uri.removeprefix(beginning)
                yield unquote(path) if reference.uri.startswith("file:") else path, each.digest.sha256

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


class Link(Record):
    """A step, and the reference to it in its successor."""

    successor: Step
    reference: Reference


def links_to(step: Step, steps: Iterable[Step]) -> tuple[Link, ...]:
    """Return the references to a step among those of other `steps`; more than one only where a chain branches."""
    return tuple(
        Link(other, reference)
        for other in steps
        for reference in other.references
        if step.number and reference.sha256 == step.sha256
    )


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
        yield from copies_of(self._kept(withheld=withheld))

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


def copies_of(steps: Iterable[Step]) -> Iterator[Document]:
    """Yield the copies of steps' statements that a target keeps, the nearest first."""
    for number, step in enumerate(steps, 1):
        for name, data in step.files.items():
            yield Document(state_path(f"{PREDECESSORS_DIRECTORY}/{number}/{name}"), data)


def merged_steps(chains: Iterable[Chain]) -> list[Step]:
    """Return the steps of several chains, the nearest first, and those that they have in common once."""
    found: dict[str | None, Step] = {}
    for level in zip_longest(*(chain.steps for chain in chains)):
        for step in filter(None, level):
            found.pop(step.sha256, None)  # it comes behind all of its successors
            found[step.sha256] = step
    return list(found.values())


REMEDY = f"Restore it, or do without a chain of statements: {option('sha256', 'none')}"

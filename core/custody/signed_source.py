"""A source that has to be signed: whose signature is beside it, what it covers, and what it does not.

    list the source -> plan (headers, documents) -> check signature and coverage -> read covered files whole -> convert

The listing comes first: a file that was put in place for the planning only has another version afterwards. Documents
are compared as they were read. Checkpoint files are opened by the plan's versions, then and while they are digested. So
what is converted is what was signed.

Everything in the signed directory has to be covered, because any document there may decide what is read. Exceptions are
checkpoint files of other steps, which a training adds and removes and which are not read, and what git keeps.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from threading import Event

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.checkpoint.manifest import SourceFileRecord
from reshard.core.custody.checking import required_verifier
from reshard.core.custody.digests import sha256_of
from reshard.core.custody.signature_file import needed_bundle
from reshard.core.custody.signing import IGNORED
from reshard.core.custody.source_places import common_directory, directory_of
from reshard.core.errors import SignatureError
from reshard.core.files.file_names import parse_name
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.threads import in_phase
from reshard.core.runtime.wording import counted, listed, size_text
from reshard.core.signing.statement import SignedFiles
from reshard.core.signing.verifier import Identity, Verifier
from reshard.core.storage.file_versions import difference_text
from reshard.core.storage.joined import parts_of
from reshard.core.storage.listing import find_entries
from reshard.core.storage.publishing import SIGNATURE_NAME
from reshard.core.storage.read_log import ReadDocument
from reshard.core.storage.reading import SourceFile, open_source
from reshard.core.storage.store import Entry
from reshard.core.storage.urls import Location, parse_url
from reshard.core.text.options import option
from reshard.core.text.printing import listed_lines
from reshard.core.transfer.source_files import open_unchanged

_OPTION = "require_signed_by"
_NEVER_SIGNED = SignedFiles("", {}, IGNORED)
"""What model-signing leaves out by default, and the leases of runs; all that is below them too."""


class CoveredFile(Record):
    """A file that was signed, and has to be as it was: its size, its version before the planning, and its SHA-256."""

    location: Location
    size_bytes: int
    version: str
    sha256: str


class SourceGuard(Record):
    """Who has to have signed a source, and the files there before anything of it was read.

    Attributes:
        root: the directory of the source; a pattern's is the one that all of its files are in.
        entries: every file there, by path in the storage.
    """

    verifier: Verifier
    root: Location
    entries: Mapping[str, Entry]

    @classmethod
    def of(cls, source: str, signed_by: str) -> "SourceGuard":
        """Look at a source that has to be signed by one of the keys, or certificates, in the PEM file `signed_by`.

        It may be a name, whose keys are in force.

        A signature in its directory itself is checked at once; that of a step only when it is known which one.

        Raises:
            InputError: the PEM file is not one, or cannot be read.
            SignatureError: there is no signature anywhere, or it is damaged, or by nobody who is trusted.
            StorageError: the storage does not answer.
        """
        verifier = required_verifier(signed_by)
        root = directory_of(parse_url(source))
        guard = cls(verifier, root, find_entries(root))
        if root.child(SIGNATURE_NAME).path in guard.entries:
            guard.open(root)
        elif not any(entry.name == SIGNATURE_NAME for entry in guard.entries.values()):
            raise guard.refusal
        return guard

    @property
    def refusal(self) -> SignatureError:
        """The error for a source without a signature."""
        return SignatureError(
            f"{self.root}: has no {SIGNATURE_NAME}, but {option(_OPTION)} asks for one: sign the source first, with "
            "'reshard sign' or 'model_signing sign key'"
        )

    def open(self, directory: Location) -> tuple[SignedFiles, Identity]:
        """Return what the signature in a directory covers, and who made it.

        Raises:
            SignatureError: it is damaged, or by nobody who is trusted.
        """
        bundle = needed_bundle(directory)
        return bundle.files, bundle.check(self.verifier, str(directory.child(SIGNATURE_NAME)))

    def cover(self, catalog: CheckpointCatalog, documents: Iterable[ReadDocument], *, recovers: bool) -> "SignedSource":
        """Check that the signature covers all that the source's directory has; no contents are read.

        The signature lies in the source's directory, or in that of the step which is read. `documents` are those that
        the plan was made from: the ones in the signed directory have to be as they were signed. If damage is recovered
        from, signed files may be missing.

        Raises:
            SignatureError: there is no signature, it is by nobody who is trusted, or files do not match it; the message
                lists them.
        """
        directory = self._signed_directory(catalog)
        signed, identity = self.open(directory)
        beginning = f"{directory.path.rstrip('/')}/"
        there = {
            path.removeprefix(beginning): entry for path, entry in self.entries.items() if path.startswith(beginning)
        }
        problems = [
            *self._outside(catalog, beginning),
            *unsigned_documents(documents, signed, directory),
            *_uncovered(there, signed, catalog),
            *([] if recovers else _missing(there, signed, catalog)),
        ]
        if problems:
            what = "\n  ".join(listed_lines(problems))
            raise SignatureError(
                f"{directory.child(SIGNATURE_NAME)}: is signed by {identity.text}, but does not match the source:\n  "
                f"{what}\nRestore what was signed, or have it signed again"
            )
        used = _paths_read(catalog)
        files = tuple(
            CoveredFile(directory.child(*name.split("/")), entry.size_bytes, entry.file_version, signed.digests[name])
            for name, entry in sorted(there.items())
            if name in signed.digests and (entry.path in used or not _is_of_other_step(name, catalog.step))
        )
        return SignedSource(directory, identity, files, catalog)

    def _signed_directory(self, catalog: CheckpointCatalog) -> Location:
        """The nearest directory with a signature, from the one that all files read are in up to the source's own."""
        place = common_directory([parse_url(record.location) for record in catalog.records.values()])
        while place.path.startswith(f"{self.root.path.rstrip('/')}/"):
            if place.child(SIGNATURE_NAME).path in self.entries:
                return place
            place = place.parent
        if self.root.child(SIGNATURE_NAME).path in self.entries:
            return self.root
        raise self.refusal

    def _outside(self, catalog: CheckpointCatalog, beginning: str) -> Iterator[str]:
        for path in sorted(_paths_read(catalog)):
            if not path.startswith(beginning):
                yield f"{Location(self.root.store, path)}: would be read, and is outside the signed directory"
            elif path not in self.entries:
                yield f"{Location(self.root.store, path)}: would be read, and was not there before, or is a link"


class SignedSource(Record):
    """A source whose signature is valid, and covers what is there; the files are still to be compared with it."""

    directory: Location
    identity: Identity
    files: tuple[CoveredFile, ...]
    catalog: CheckpointCatalog

    @property
    def size_bytes(self) -> int:
        """Bytes that `check` reads."""
        return sum(file.size_bytes for file in self.files)

    def notes(self, named: Collection[str]) -> Iterator[str]:
        """Yield what a user should know; `named` are URLs of what else is read: strategies, changes, an adapter."""
        yield (
            f"the source is signed by {self.identity.text}: its {counted(len(self.files), 'signed file')}, "
            f"{size_text(self.size_bytes)}, are read whole and compared with {SIGNATURE_NAME} before anything is "
            "written"
        )
        yield from self.identity.notes
        beginning = f"{self.directory.path.rstrip('/')}/"
        outside = [url for url in named if not parse_url(url).path.startswith(beginning)]
        if outside:
            yield f"not in the signed directory, so not covered by its signature: {listed(sorted(outside))}"

    def check(self, workers: int) -> tuple[SourceFileRecord, ...]:
        """Read all files whole, and return what was read.

        Raises:
            SignatureError: files are not the signed ones; the message lists them.
            CatalogError: a file changed since the source was planned with.
            StorageError: a file cannot be read.
        """
        by_path = {path: record for record in self.catalog.records.values() for path in _paths_of(record)}

        def read(file: CoveredFile, advance: Callable[[int], None]) -> SourceFileRecord:
            record = by_path.get(file.location.path)
            return with_retries(lambda: _digest(file, record, advance), current_progress().note)

        found = in_phase("checking the signed source", self.size_bytes, read, self.files, workers, Event())
        differing = [
            f"{file.location}: was changed since it was signed: its SHA-256 is {now.sha256}, not {file.sha256}"
            for file, now in zip(self.files, found, strict=True)
            if now.sha256 != file.sha256
        ]
        if differing:
            what = "\n  ".join(listed_lines(differing))
            raise SignatureError(f"{self.directory.child(SIGNATURE_NAME)}: files are not as signed:\n  {what}")
        return tuple(found)


def _paths_of(record: CatalogRecord) -> list[str]:
    location = parse_url(record.location)
    return [part.path for part in parts_of(location) or (location,)]


def _paths_read(catalog: CheckpointCatalog) -> set[str]:
    return {path for record in catalog.records.values() for path in _paths_of(record)}


def unsigned_documents(documents: Iterable[ReadDocument], signed: SignedFiles, directory: Location) -> Iterator[str]:
    """Yield which documents, as they were read, are not as a signed directory's signature says."""
    beginning = f"{str(directory).rstrip('/')}/"
    for document in documents:
        name = document.url.removeprefix(beginning)
        if name == document.url or name == SIGNATURE_NAME:
            continue
        if name not in signed.digests:
            yield f"{name}: was read, but is not covered"
        elif signed.digests[name] != document.sha256:
            yield f"{name}: was changed since it was signed: its SHA-256 is {document.sha256}"


def _uncovered(there: Mapping[str, Entry], signed: SignedFiles, catalog: CheckpointCatalog) -> Iterator[str]:
    used = _paths_read(catalog)
    for name, entry in sorted(there.items()):
        if name in signed.digests or _NEVER_SIGNED.ignores(name):
            continue
        if entry.path in used:
            yield f"{name}: would be read, but is not covered"
        elif not _is_of_other_step(name, catalog.step):
            yield f"{name}: is not covered: {'it was left out' if signed.ignores(name) else 'it was added since'}"


def _missing(there: Mapping[str, Entry], signed: SignedFiles, catalog: CheckpointCatalog) -> Iterator[str]:
    for name in sorted(signed.digests.keys() - there.keys()):
        if not _is_of_other_step(name, catalog.step):
            yield f"{name}: was signed, but is missing"


def _is_of_other_step(name: str, step: str | None) -> bool:
    """True for a checkpoint file whose name has another step than the one that is read."""
    parsed = parse_name(name.rpartition("/")[2])
    return parsed is not None and parsed.step is not None and step is not None and str(parsed.step) != step


def _digest(file: CoveredFile, record: CatalogRecord | None, advance: Callable[[int], None]) -> SourceFileRecord:
    if record is not None:
        open_unchanged(record).close()
    with closing(open_source(file.location)) as opened:
        if opened.version != file.version:
            raise _changed(file, opened)
        sha256 = sha256_of(opened, advance)
    return SourceFileRecord(url=str(file.location), size_bytes=opened.size_bytes, version=opened.version, sha256=sha256)


def _changed(file: CoveredFile, opened: SourceFile) -> SignatureError:
    return SignatureError(
        f"{file.location} changed while the source was examined ({difference_text(file.version, opened.version)}). "
        "Retry when nothing writes to the source"
    )

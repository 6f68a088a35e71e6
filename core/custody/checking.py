"""The check of a target's signature: that somebody who is trusted signed each file as it is, and none besides.

What a signature leaves out is not believed: files that belong to a checkpoint have to be covered, others are named.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from threading import Event

from reshard.core.checkpoint.manifest import PLAN_NAME, Manifest
from reshard.core.custody.digests import read_sha256
from reshard.core.custody.signature_file import needed_bundle
from reshard.core.custody.signing import MANIFEST_PATH, files_below, record_path
from reshard.core.errors import CheckpointError, InputError, StorageError, is_transient
from reshard.core.request.pem_files import read_pem
from reshard.core.runtime.named_values import KEY_ADVICE, Resolver, bytes_of, is_name
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import listed
from reshard.core.signing.statement import SignedFiles
from reshard.core.signing.trusted import trusted_pem
from reshard.core.signing.verifier import Identity, Verifier, parse_verifier
from reshard.core.storage.publishing import SIGNATURE_NAME, state_path
from reshard.core.storage.urls import Location
from reshard.core.target.workspace import IDENTITY_NAME
from reshard.core.text.options import option, spelled

_MAX_LISTED = 6


class SignatureFindings(Record):
    """What the check of a signature found.

    Attributes:
        signed_by: who signed; None if that is not known, because the signature is missing or not valid.
        problems: in sentences; empty if everything is as it was signed.
        notes: in sentences, about what could not be checked.
    """

    signed_by: Identity | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def signer_of_all(self) -> str | None:
        """Who signed all files, as they are; None if anything is wrong."""
        return self.signed_by.text if self.signed_by and not self.problems else None


def read_verifier(signed_by: str, resolvers: Mapping[str, Resolver]) -> Verifier:
    """Return who is trusted: the public keys, or certificates, in a PEM file, or kept under a name.

    Raises:
        InputError: there are none, nothing is kept under the name, or the file cannot be read.
        StorageError: the storage does not answer.
    """
    if is_name(signed_by):
        return parse_verifier(bytes_of(signed_by, resolvers, KEY_ADVICE), signed_by)
    return parse_verifier(read_pem("signed_by", signed_by), signed_by)


def required_verifier(signed_by: str) -> Verifier:
    """Return who has to have signed a source: the keys in force under a name, or those in a PEM file.

    Raises:
        InputError: there are none, or the file cannot be read.
        StorageError: the storage does not answer.
    """
    pem = trusted_pem(signed_by)
    return parse_verifier(read_pem("require_signed_by", signed_by) if pem is None else pem, signed_by)


class SignatureCheck(Record):
    """A signature that was read, and is checked in two steps: who signed, and then what.

    Attributes:
        files: what was signed; None unless it is known by whom, or anybody may have signed.
        findings: so far.
    """

    directory: Location
    manifest: Manifest
    files: SignedFiles | None
    findings: SignatureFindings

    @classmethod
    def of(cls, directory: Location, manifest: Manifest, verifier: Verifier | None) -> "SignatureCheck":
        """Read a finished target's signature, and check who made it; without a `verifier`, anybody may have.

        Raises:
            StorageError: it cannot be read.
        """
        origin = str(directory.child(SIGNATURE_NAME))
        try:
            bundle = needed_bundle(directory)
            identity = bundle.check(verifier, origin) if verifier else None
        except InputError as error:
            return cls(directory, manifest, None, SignatureFindings(problems=(str(error),)))
        notes = identity.notes if identity else ()
        return cls(directory, manifest, bundle.files, SignatureFindings(identity, notes=notes))

    def expected(self, file: str) -> str | None:
        """Return the SHA-256 with which a file was signed; None if it was not, or if that is not known."""
        return self.files.digests.get(file) if self.files else None

    def compare(self, taken: Mapping[str, str], *, reads_contents: bool, workers: int) -> SignatureFindings:
        """Compare what was signed with what is there.

        `taken` are SHA-256 digests, by path, of files that were just read. Others are read; without `reads_contents`
        those of ranks are taken for what the manifest says of them.

        Raises:
            StorageError: transient failures do not end.
        """
        if self.files is None:
            return self.findings
        try:
            below = files_below(self.directory)
        except InputError as error:
            return self._with([str(error)])
        known, there = dict(taken), below.covered
        notes: list[str] = []
        if below.ignored:
            notes.append(f"{self.directory}: no signature covers {listed(below.ignored, _MAX_LISTED)}")
        if not reads_contents:
            beside = {each.file for each in self.manifest.beside}
            stated = self.manifest.sha256
            known |= {file: sha256 for file, sha256 in stated.items() if sha256 is not None and file not in beside}
            notes.append(
                f"the signature is by {self.findings.signed_by.text if self.findings.signed_by else 'nobody'}. It was "
                "compared with the records of the files of tensors, which were not read: the level checksum compares "
                "these as well"
            )
        common = [name for name in self.files.digests if name in there]
        unread = [name for name in common if name not in known]
        answers = in_threads(self._read, unread, workers, Event())
        known |= {name: answer.sha256 for name, answer in zip(unread, answers, strict=True)}
        problems = [answer.problem for answer in answers if answer.problem]
        problems += self._changed(common, known)
        problems += [f"{self._place(name)}: was signed, and is missing" for name in self.files.digests.keys() - there]
        left_out = sorted(there.keys() - self.files.digests.keys())
        needed = self._needed()
        allowed = [name for name in left_out if name not in needed and self.files.ignores(name)]
        notes += [f"{self._place(name)}: was left out of the signature by who signed" for name in allowed]
        problems += [
            f"{self._place(name)}: is not covered by the signature: it was added since, or left out"
            for name in left_out
            if name not in allowed
        ]
        return self._with(sorted(problems), notes)

    def _with(self, problems: Collection[str], notes: Collection[str] = ()) -> SignatureFindings:
        found = self.findings
        return SignatureFindings(found.signed_by, (*found.problems, *problems), (*found.notes, *notes))

    def _changed(self, names: Collection[str], known: Mapping[str, str]) -> Iterator[str]:
        for name in names:
            found, signed = known[name], self.expected(name)
            if found and found != signed:
                yield f"{self._place(name)}: is not as it was signed: its SHA-256 is {found}, not {signed}"

    def _needed(self) -> frozenset[str]:
        state = (IDENTITY_NAME, PLAN_NAME)
        records = (record_path(rank.rank) for rank in self.manifest.ranks)
        statements = (each.file for each in self.manifest.statements)
        own = (state_path(name) for name in state)
        return frozenset((*self.manifest.sha256, *records, *statements, *own, MANIFEST_PATH))

    def _read(self, name: str) -> "_Answer":
        location = self._place(name)
        try:
            return _Answer(with_retries(partial(read_sha256, location), current_progress().note))
        except (CheckpointError, StorageError) as error:
            if is_transient(error):
                raise
            return _Answer("", str(error))

    def _place(self, name: str) -> Location:
        return self.directory.child(*name.split("/"))


class _Answer(Record):
    """The SHA-256 of a file, or why it could not be read."""

    sha256: str
    problem: str = ""


def signature_note(directory: Location, checking: str = "signed_by") -> str:
    """Return a sentence on a signature whose maker nobody asked to check; the option `checking` does."""
    location = directory.child(SIGNATURE_NAME)
    try:
        signer = needed_bundle(directory).material.text
    except InputError as error:
        return f"{error}; nothing was checked by it"
    return f"{location}: says that {signer} signed, which was not checked: {spelled(option(checking))} checks it"

"""Signs a converted checkpoint that is there already: checked, given SHA-256 if it has none, then signed."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from reshard.core.checkpoint.manifest import Manifest, RankSha256, dump_record, seal_manifest, unseal_manifest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.custody.digests import has_sha256, with_sha256
from reshard.core.custody.finished import ExistingSignature, existing_signature, sign_finished
from reshard.core.custody.signing import files_below
from reshard.core.errors import VerificationError
from reshard.core.reports.blocks import Block, Facts, Line
from reshard.core.reports.report import Report
from reshard.core.request.pem_files import read_pem
from reshard.core.request.signing import SigningRequest
from reshard.core.runtime.keys import KeyNames, named_keys, target_key
from reshard.core.runtime.named_values import Resolver
from reshard.core.runtime.progress import Progress, reporting_to
from reshard.core.runtime.wording import counted, listed, seconds_text, size_text
from reshard.core.signing.current import SignerNames, named_signer, needed_signer
from reshard.core.signing.signer import Signer
from reshard.core.storage.named_options import named_storages
from reshard.core.storage.publishing import MANIFEST_NAME, SIGNATURE_NAME, STATE_DIRECTORY, WITHDRAWN_NAME
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.target.claim import claimed_alone
from reshard.core.target.finished import find_finished
from reshard.core.text.printing import listed_lines
from reshard.core.verification.published import verify_finished

_WORKERS = 4
_MAX_LISTED = 6


class SigningReport(Report):
    """A checkpoint that was signed.

    Attributes:
        target: URL of its directory.
        signed_now: False if it has had this very signature before: nothing was done.
        key: SHA-256 of the public key.
        subject: of the certificate; empty without one.
        files: number of files that are signed.
        size_bytes: their size.
        read_bytes: bytes of contents that were read to check them before.
        seconds: time taken.
        notes: in sentences.
    """

    target: str
    signed_now: bool
    key: str
    subject: str
    files: int
    size_bytes: int
    read_bytes: int
    seconds: float
    notes: tuple[str, ...] = ()

    def blocks(self) -> Iterator[Block]:
        """Yield its content: what was signed, and by whom."""
        for note in self.notes:
            yield Line(note)
        files = f"{counted(self.files, 'file')}, {size_text(self.size_bytes)}"
        done = f"signed {files}" if self.signed_now else f"is signed already: {files}"
        checked = f"{size_text(self.read_bytes)} of contents checked in {seconds_text(self.seconds)}"
        yield Line(f"{self.target}: {done}; {checked}")
        owner = [("certificate", self.subject)] if self.subject else []
        yield Facts([("key", f"SHA-256 {self.key}"), *owner, ("signature", f"{self.target}/{SIGNATURE_NAME}")])


@contextmanager
def resources_to_sign(request: SigningRequest, resolvers: Mapping[str, Resolver] | None = None) -> Iterator[None]:
    """Provide the storage and the keys of a request inside the block.

    Raises:
        InputError: a name cannot be resolved, a key is wrong, or the certificates cannot be read.
        StorageError: a storage does not answer.
    """
    names = KeyNames(target=request.decrypt_key, target_mode=request.decrypt_mode)
    signer = SignerNames(request.key, request.passphrase, request.certificate, "passphrase")
    pairs = [(request.target, request.storage), (request.certificate, request.storage)]
    read = partial(read_pem, "certificate")
    with named_storages(pairs, resolvers), named_keys(names, resolvers), named_signer(signer, resolvers, read):
        yield


def sign(request: SigningRequest, progress: Progress) -> SigningReport:
    """Check a finished conversion at the level checksum, and sign it; raises what `verify_target` raises.

    Raises:
        InputError: another key has signed it, or a file is a link.
        VerificationError: it is not as it was written, or as this key has signed it before; nothing is signed then.
        TargetBusyError: another run works on it.
    """
    started, signer = time.monotonic(), needed_signer()
    finished = find_finished(parse_url(request.target), "signing", "sign")
    directory, manifest = finished.location, finished.manifest
    existing = existing_signature(directory, signer, may_go=request.overwrite)
    existing.check()
    with reporting_to(progress), claimed_alone(directory, [rank.rank for rank in manifest.ranks]):
        checked = verify_finished(finished, VerifyLevel.CHECKSUM, progress, hashes=True)
        if checked.report.problems:
            what = "\n  ".join(listed_lines(checked.report.problems))
            raise VerificationError(f"{directory}: is not as it was written, and was not signed:\n  {what}")
        # left by a run that was killed when it had published: no signature covers it
        remove_file(directory.child(STATE_DIRECTORY, WITHDRAWN_NAME))
        signed = _sign(directory, manifest, signer, existing, checked.sha256)
        entries = files_below(directory).covered
    return SigningReport(
        target=str(directory),
        signed_now=signed,
        key=signer.hint,
        subject=signer.subject,
        files=len(entries),
        size_bytes=sum(entry.size_bytes for entry in entries.values()),
        read_bytes=checked.report.read_bytes,
        seconds=round(time.monotonic() - started, 3),
        notes=(*finished.notes, *_notes(directory, existing, entries)),
    )


def _notes(directory: Location, existing: ExistingSignature, names: Collection[str]) -> Iterator[str]:
    """Yield a sentence on files that an earlier signature did not cover: who signs should know them."""
    if added := existing.added(names):
        yield f"{directory}: not covered by its earlier signature, but by this one: {listed(added, _MAX_LISTED)}"


def _sign(
    directory: Location,
    manifest: Manifest,
    signer: Signer,
    existing: ExistingSignature,
    taken: Mapping[int, RankSha256],
) -> bool:
    """Sign a checked target, whose files have the SHA-256 `taken`; False if that was done before."""
    if existing.is_right(_WORKERS):
        return False
    files_below(directory)  # before anything is changed, what cannot be signed is refused
    if not has_sha256(manifest):
        remove_file(directory.child(SIGNATURE_NAME))  # of the manifest as it was
        key = target_key()
        changed = with_sha256(directory, unseal_manifest(manifest, key, str(directory)), taken)
        data = dump_record(seal_manifest(changed, key) if key else changed)
        write_bytes(directory.child(STATE_DIRECTORY, MANIFEST_NAME), data)
    sign_finished(directory, signer, _WORKERS)
    return True

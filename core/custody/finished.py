"""Signing a target that is finished already, and the signature that it may have.

A signature goes before what it covers changes, and comes back last: a target that is killed in between is unsigned, and
never wrongly signed.
"""

from collections.abc import Collection, Mapping

from reshard.core.custody.digests import read_sha256
from reshard.core.custody.signature_file import find_bundle
from reshard.core.custody.signing import MANIFEST_PATH, digests_below, manifest_digests, sign_directory
from reshard.core.errors import InputError, SignatureError, VerificationError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.runtime.records import Record
from reshard.core.signing.bundle import Bundle
from reshard.core.signing.current import needed_signer
from reshard.core.signing.signer import Signer
from reshard.core.signing.verifier import verifier_of
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.publishing import MANIFEST_NAME, SIGNATURE_NAME, STATE_DIRECTORY
from reshard.core.storage.urls import Location
from reshard.core.target.target import Target
from reshard.core.text.options import option
from reshard.core.text.printing import listed_lines

_REMEDY = f"pass {option('overwrite', True)} to replace its signature"


class ExistingSignature(Record):
    """The signature that a finished target has, seen by one who is about to sign it.

    Attributes:
        may_go: it may be replaced, whatever it says.
        bundle: None if there is none, or if it cannot be read.
        problem: why it cannot be read; empty otherwise.
    """

    directory: Location
    signer: Signer
    may_go: bool
    bundle: Bundle | None = None
    problem: str = ""

    def check(self) -> None:
        """Check that there is none, or one by this key, over the manifest as it is; unless it may go.

        The manifest has the digests of everything else. To sign another one than before would vouch for whatever was
        done to the target meanwhile.

        Raises:
            InputError: it is another key's, or damaged.
            VerificationError: the manifest was changed since.
        """
        if self.may_go:
            return
        if self.problem:
            raise InputError(f"{self.problem}. It may be another key's: {_REMEDY}")
        if self.bundle is None:
            return
        try:
            self.bundle.check(verifier_of(self.signer), str(self.directory.child(SIGNATURE_NAME)))
        except SignatureError as error:
            raise InputError(f"{error.marked}: {_REMEDY}") from error
        manifest = self.directory.child(STATE_DIRECTORY, MANIFEST_NAME)
        found = unless_missing(lambda: read_sha256(manifest))
        if MANIFEST_PATH in self.bundle.files.digests and found is not None:
            self._check_unchanged({MANIFEST_PATH: found}, [MANIFEST_PATH])

    def is_right(self, workers: int) -> bool:
        """True if it is valid, by this key with these certificates, and covers all files as they are.

        Files of tensors are not read: their digests are the manifest's, with which they were compared.

        Raises:
            VerificationError: a file that it covers was changed, or removed, and it may not go.
        """
        manifest = read_manifest(self.directory)
        if self.bundle is None or manifest is None:
            return False
        try:
            self.bundle.check(verifier_of(self.signer), SIGNATURE_NAME)
        except SignatureError:
            return False
        found = digests_below(self.directory, manifest_digests(manifest), workers)
        if not self.may_go:
            self._check_unchanged(found, self.bundle.files.digests)
        return found == self.bundle.files.digests and self.bundle.material.certificates == self.signer.certificates

    def added(self, names: Collection[str]) -> list[str]:
        """Return which of some files were not there, or left out, when it was made; none if there is no signature."""
        return sorted(set(names) - self.bundle.files.digests.keys()) if self.bundle else []

    def _check_unchanged(self, found: Mapping[str, str], names: Collection[str]) -> None:
        signed = self.bundle.files.digests if self.bundle else {}
        changed = [str(self.directory.child(*name.split("/"))) for name in names if found.get(name) != signed[name]]
        if changed:
            what = "\n  ".join(listed_lines(sorted(changed)))
            raise VerificationError(
                f"{self.directory}: is signed with this key, but not as it is now: these files were changed, or "
                f"removed, since:\n  {what}\nRestore them, or {_REMEDY}, and to sign what is there now"
            )


def existing_signature(directory: Location, signer: Signer, *, may_go: bool) -> ExistingSignature:
    """Look at the signature of a finished target; a StorageError if it cannot be read."""
    try:
        return ExistingSignature(directory, signer, may_go, find_bundle(directory))
    except InputError as error:
        return ExistingSignature(directory, signer, may_go, problem=error.marked)


def check_signature_may_go(target: Target) -> None:
    """Refuse to sign a finished target that another key has signed, or that was changed since this one did.

    Raises: as `ExistingSignature.check`.
    """
    existing_signature(target.final, needed_signer(), may_go=target.overwrite).check()


def sign_finished(directory: Location, signer: Signer, workers: int) -> None:
    """Sign a finished target whose manifest has the SHA-256 of its files; the caller holds it, and has verified it.

    Raises:
        InputError: a file is a link, or there is no manifest.
        ConversionError: a file that was written is not there any more.
        StorageError: something cannot be read or written.
    """
    manifest = read_manifest(directory)
    if manifest is None:
        raise InputError(f"{directory}: is not a finished conversion any more: another run is replacing it")
    sign_directory(directory, directory.name, signer, manifest_digests(manifest), workers)

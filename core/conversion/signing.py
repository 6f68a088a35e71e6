"""The signature of a conversion's target: made at its commit, or for a target that is finished already."""

import hashlib
from collections.abc import Mapping

from reshard.core.checkpoint.manifest import PLAN_NAME, Manifest
from reshard.core.conversion.session import Session
from reshard.core.custody.finished import existing_signature, sign_finished
from reshard.core.custody.signing import MANIFEST_PATH, manifest_digests, record_path, sign_directory
from reshard.core.runtime.progress import current_progress
from reshard.core.signing.current import needed_signer
from reshard.core.storage.publishing import state_path
from reshard.core.storage.urls import Location
from reshard.core.target.target import Signing, Target
from reshard.core.target.workspace import IDENTITY_NAME


def signing_of(target: Target, manifest: Manifest, record_sums: Mapping[int, str], workers: int) -> Signing:
    """Return what signs a target at its commit.

    `record_sums` are SHA-256 of the records' files, by rank, which no other run can have changed since. Others are
    read.
    """
    known = manifest_digests(manifest)
    known[state_path(IDENTITY_NAME)] = _sha256(target.identity.encode())
    if target.plan_data:  # joined parts have none
        known[state_path(PLAN_NAME)] = _sha256(target.plan_data)
    known |= {record_path(rank): sha256 for rank, sha256 in record_sums.items()}

    def sign(directory: Location, data: bytes) -> None:
        digests = known | {MANIFEST_PATH: _sha256(data)}
        sign_directory(directory, target.final.name, needed_signer(), digests, workers)

    return sign


def sign_committed(session: Session) -> None:
    """Sign a target that was finished before, unless its signature is this key's, and right.

    Raises: as `ExistingSignature.is_right`.
    """
    target = session.target
    if existing_signature(target.final, needed_signer(), may_go=target.overwrite).is_right(session.readers):
        return
    with target.claimed(()):
        if target.is_committed():  # else another run has begun to replace it
            sign_finished(target.final, needed_signer(), session.readers)
            current_progress().note(f"{target.final}: signed")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

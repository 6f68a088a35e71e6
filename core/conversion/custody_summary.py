"""Finds what a run can say of its target's custody."""

import hashlib

from reshard.core.checkpoint.manifest import PREDECESSORS_DIRECTORY, PROVENANCE_NAME, STATEMENT_NAMES, unseal_manifest
from reshard.core.custody.digests import is_signed
from reshard.core.custody.summary import CustodySummary
from reshard.core.runtime.keys import target_key
from reshard.core.signing.current import current_signer
from reshard.core.storage.publishing import state_path
from reshard.core.storage.urls import Location
from reshard.core.target.target import Target


def custody_of(target: Target, *, signs: bool) -> CustodySummary | None:
    """Describe the custody of a target, which this run `signs` or not; None if it is not finished."""
    stored = target.read_committed()
    if stored is None:
        return None
    manifest = unseal_manifest(stored, target_key(), str(target.final))
    statements = {each.file: each for each in manifest.statements}
    provenance = statements.get(state_path(PROVENANCE_NAME))
    kept = [state_path(f"{PREDECESSORS_DIRECTORY}/{number}") for number in range(1, len(statements) + 1)]
    signer = current_signer() if signs else None
    return CustodySummary(
        files=sum(map(bool, manifest.sha256.values())),
        source_files=len(manifest.source_files),
        provenance_sha256=provenance.sha256 if provenance else None,
        predecessors=sum(any(f"{place}/{name}" in statements for name in STATEMENT_NAMES) for place in kept),
        signature_sha256=_signature_sha256(target.final),
        signed_by=signer.text if signer else "",
    )


def _signature_sha256(directory: Location) -> str | None:
    if not is_signed(directory):
        return None
    from reshard.core.custody.signature_file import read_signature  # with cryptography

    data = read_signature(directory)
    return None if data is None else hashlib.sha256(data).hexdigest()

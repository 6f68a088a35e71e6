"""Reads the statements beside a target. They may come from strangers: what is in them is only what they say."""

import hashlib
import json
from collections.abc import Mapping

from reshard.core.checkpoint.manifest import (
    EQUIVALENCE_NAME,
    MAX_STATEMENT_BYTES,
    PROVENANCE_NAME,
    STATEMENT_NAMES,
    IndexSummary,
    Manifest,
)
from reshard.core.custody.equivalence import EquivalenceStatement
from reshard.core.custody.provenance import ProvenanceStatement
from reshard.core.custody.signature_file import find_bundle
from reshard.core.custody.statements import Statement, parse_statement
from reshard.core.errors import InputError, SignatureError, TargetError
from reshard.core.layouts.documents import Document
from reshard.core.runtime.records import Record
from reshard.core.signing.dsse import Envelope, dump_envelope, parse_envelope, sign_envelope
from reshard.core.signing.signer import Signer
from reshard.core.signing.verifier import Identity, Material, Verifier, verifier_of
from reshard.core.storage.publishing import SIGNATURE_NAME, STATE_DIRECTORY, state_path
from reshard.core.storage.reading import read_own_file
from reshard.core.storage.urls import Location
from reshard.core.text.options import option

KINDS: Mapping[str, type[Statement]] = {
    PROVENANCE_NAME: ProvenanceStatement,
    EQUIVALENCE_NAME: EquivalenceStatement,
}


class FoundStatement(Record):
    """A statement that was read.

    Attributes:
        location: its file.
        data: the statement's own bytes, as they were signed.
        statement: what it says.
        envelope: the signed envelope around it; None if it is not signed.
    """

    location: Location
    data: bytes
    statement: Statement
    envelope: Envelope | None


def statement_location(directory: Location, name: str) -> Location:
    """Return the place of a statement in a target's directory."""
    return directory.child(STATE_DIRECTORY, name)


def read_statement(directory: Location, listed: IndexSummary) -> FoundStatement:
    """Read a statement that a manifest lists.

    Raises:
        TargetError: it is not the one that the manifest lists, or malformed.
        SignatureError: its envelope is malformed.
        StorageError: it does not exist, or cannot be read.
    """
    name = listed.file.rpartition("/")[2]
    location = statement_location(directory, name)
    data = read_own_file(location, MAX_STATEMENT_BYTES)
    if listed.sha256 is not None and hashlib.sha256(data).hexdigest() != listed.sha256:
        raise TargetError(f"{location}: is not the statement that was written: its SHA-256 is not that in the manifest")
    envelope = parse_envelope(data, str(location)) if is_envelope(data) else None
    content = envelope.payload if envelope else data
    return FoundStatement(location, content, parse_statement(content, KINDS[name], str(location)), envelope)


def own_statements(manifest: Manifest) -> dict[str, IndexSummary]:
    """Return a manifest's entries of the statements about the target itself, by name; not of its predecessors'."""
    own = {state_path(name): name for name in STATEMENT_NAMES}
    return {own[each.file]: each for each in manifest.statements if each.file in own}


def read_statements(directory: Location, manifest: Manifest) -> dict[str, FoundStatement]:
    """Read the statements about a target, by name; raises as `read_statement`."""
    return {name: read_statement(directory, each) for name, each in own_statements(manifest).items()}


def signed_document(name: str, statement: bytes, signer: Signer) -> Document:
    """Return the file of a signed statement."""
    return Document(name, dump_envelope(sign_envelope(statement, signer, signer.hint)))


def unsigned_statements(directory: Location, manifest: Manifest, signer: Signer) -> dict[str, FoundStatement]:
    """Return the statements about a target that this signer's key has not signed, by the manifest's names.

    Raises: as `read_statement`.
    """
    found = {listed.file: read_statement(directory, listed) for listed in own_statements(manifest).values()}
    return {name: each for name, each in found.items() if not _is_signed_by(each, signer)}


def _is_signed_by(found: FoundStatement, signer: Signer) -> bool:
    if found.envelope is None or found.envelope.key_id != signer.hint:
        return False
    try:
        identity = verifier_of(signer).identify(Material(signer.hint), str(found.location))
        found.envelope.check(identity, str(found.location))
    except SignatureError:
        return False
    return True


def is_envelope(data: bytes) -> bool:
    """True if a document is a signed envelope, and not a statement itself."""
    return b'"payloadType"' in data and b'"predicateType"' not in data  # in an envelope the statement is base64


def identify(directory: Location, found: FoundStatement, verifier: Verifier) -> Identity:
    """Return who signed a statement.

    An envelope only names a key. If certificates are trusted, the signature over the target's files, which was made
    with it, has the certificate.

    Raises:
        SignatureError: it is not signed, or not by anybody who is trusted.
        StorageError: the signature over the files cannot be read.
    """
    origin = str(found.location)
    if found.envelope is None:
        raise SignatureError(f"{origin}: is not signed")
    material = Material(found.envelope.key_id)
    if verifier.certificates:
        material = _certified(directory, found.envelope.key_id, origin)
    identity = verifier.identify(material, origin)
    found.envelope.check(identity, origin)
    return identity


def _certified(directory: Location, key_id: str, origin: str) -> Material:
    bundle = find_bundle(directory)
    if bundle is None:
        signature = directory.child(SIGNATURE_NAME)
        raise SignatureError(f"{origin}: names key {key_id}, but no certificate, and there is no {signature} with one")
    return bundle.material


def as_document(found: FoundStatement) -> dict[str, object]:
    """Return all of a statement as plain values, with fields that this version does not know."""
    document: dict[str, object] = json.loads(found.data)
    return document


def check_any(manifest: Manifest, directory: Location) -> None:
    """Raise InputError if a target has no statements."""
    if not manifest.statements and manifest.plan_digest == "":
        raise InputError(
            f"{directory}: has no statements about it: its parts were joined without. Remove it, and join them again "
            f"with {option('sha256', 'target')}, or {option('sign')} if it is signed"
        )
    if not manifest.statements:
        raise InputError(
            f"{directory}: has no statements about it; the same conversion with {option('sha256', 'target')} adds "
            f"them, with {option('sign')} if it is signed"
        )

"""SHA-256 of files that were written without it: by another run before this one's commit, or of a finished target."""

from collections.abc import Callable, Iterable, Mapping
from threading import Event
from typing import TYPE_CHECKING

from reshard.core.checkpoint.manifest import (
    EQUIVALENCE_NAME,
    STATEMENT_NAMES,
    Manifest,
    RankSha256,
    seal_manifest,
    unseal_manifest,
)
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.report import RankReport
from reshard.core.conversion.session import Session
from reshard.core.custody.digests import PHASE, has_sha256, with_sha256
from reshard.core.errors import VerificationError
from reshard.core.layouts.documents import Document
from reshard.core.runtime.keys import target_key
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.threads import in_phase
from reshard.core.runtime.wording import counted
from reshard.core.signing.current import current_signer, needed_signer
from reshard.core.target.upkeep import rewrite_manifest
from reshard.core.target.workspace import Workspace
from reshard.core.text.options import option
from reshard.core.verification.files import verify_rank

if TYPE_CHECKING:
    from reshard.core.custody.reading import FoundStatement
    from reshard.core.verification.values import ContentCheck


def with_missing_sha256(
    session: Session, workspace: Workspace, results: Mapping[int, RankReport]
) -> Mapping[int, RankReport]:
    """Return the results of all ranks with the SHA-256 of their files, if this run or another one asked for it.

    Files that were written without it are read. Otherwise a manifest would have that of some files only.

    Raises:
        TargetError: a record is damaged.
        VerificationError: a file is not what was written; it loses its record, so a rerun repeats it.
        StorageError: a file cannot be read.
    """
    is_asked = session.request.hashes_target or any(each.sha256 is not None for each in results.values())
    lacking = {rank: each.size_bytes for rank, each in results.items() if each.sha256 is None}
    if not is_asked or not lacking:
        return results
    taken = _hash_ranks(workspace, lacking, session.readers, mends=True)
    return {rank: each.model_copy(update={"sha256": each.sha256 or taken[rank]}) for rank, each in results.items()}


def _hash_ranks(workspace: Workspace, sizes: Mapping[int, int], workers: int, *, mends: bool) -> dict[int, RankSha256]:
    """Return the SHA-256 of ranks' files, from their records or else read whole and then recorded.

    Only of what was written: such a file is compared with the digests in its record. `sizes`: rank -> bytes of its
    file. With `mends`, a file that differs loses its record.
    """
    known: dict[int, RankSha256] = {}
    left: list[int] = []
    for rank in sizes:
        record = workspace.read_record(rank)
        if record.sha256 is None:
            left.append(rank)
        else:
            known[rank] = record.sha256
    if left:
        verb = "has" if len(left) == 1 else "have"
        current_progress().note(f"reading {counted(len(left), 'file')} that {verb} no SHA-256 yet")

    def read(rank: int, advance: Callable[[int], None]) -> RankSha256:
        return with_retries(lambda: _recorded(workspace, rank, advance, mends=mends), current_progress().note)

    taken = in_phase(PHASE, sum(sizes[rank] for rank in left), read, left, workers, Event())
    return known | dict(zip(left, taken, strict=True))


def _recorded(workspace: Workspace, rank: int, advance: Callable[[int], None], *, mends: bool) -> RankSha256:
    record = workspace.read_record(rank)
    found = verify_rank(workspace.directory, record, VerifyLevel.CHECKSUM, advance=advance, hashes=True)
    if found.problems:
        if mends:
            workspace.withdraw_record(record)
        raise VerificationError("\n".join(found.problems))
    assert found.sha256, "it was asked for, and all was read"
    workspace.write_record(record.model_copy(update={"sha256": found.sha256}))
    return found.sha256


def complete_records(
    session: Session, compared: "ContentCheck | None", overflows: Mapping[str, int], *, is_new: bool
) -> None:
    """Add what was asked for, and a finished target lacks, unless it is signed as it is: SHA-256, and statements.

    The statement on its values is made again where they were `compared` only now, which `is_new` says. Statements are
    signed if there is a signer.
    """
    target = session.target
    stored = target.read_committed()
    if stored is None:
        return
    lacks = session.request.hashes_target and _lacks_any(session, stored)
    if not (lacks or _unsigned(session, stored) or (is_new and stored.statements)):
        return
    if target.signature.stays:
        if lacks:
            current_progress().note(
                f"{target.final}: is signed, and nothing is added to its records, which would break the signature: "
                f"{option('sign')} adds it and signs again"
            )
        return
    source_files = session.source_files if session.request.hashes_source else ()
    with target.claimed(()):
        stored = target.read_committed()
        if stored is None or not target.signature.lift():  # another run has begun to replace it, or has signed it
            return
        key = target_key()
        manifest = unseal_manifest(stored, key, str(target.final))
        if lacks:
            manifest = _with_all_sha256(session, manifest)
        if source_files:
            manifest = manifest.model_copy(update={"source_files": source_files})
        statements = _signed(_unsigned(session, manifest))
        names = STATEMENT_NAMES if lacks else (EQUIVALENCE_NAME,) if is_new else ()
        if names and has_sha256(manifest):
            from reshard.core.conversion.statements import make_statements

            made = make_statements(session, manifest, compared, overflows, names=names, is_later=True)
            statements |= {each.name: each for each in made}
        manifest = listing(manifest, statements.values())
        rewrite_manifest(target, seal_manifest(manifest, key) if key else manifest, tuple(statements.values()))


def _with_all_sha256(session: Session, manifest: Manifest) -> Manifest:
    target = session.target
    lacking = {each.rank: each.size_bytes for each in manifest.ranks if each.sha256 is None}
    taken = _hash_ranks(target.finished, lacking, session.readers, mends=False)
    return with_sha256(target.final, manifest, taken)


def listing(manifest: Manifest, statements: Iterable[Document]) -> Manifest:
    """Return a manifest that lists statements, in place of others of these names."""
    listed = {each.file: each for each in manifest.statements}
    listed |= {each.name: each.summary_with_sha256 for each in statements}
    return manifest.model_copy(update={"statements": tuple(listed.values())})


def _unsigned(session: Session, manifest: Manifest) -> "dict[str, FoundStatement]":
    """The statements that a manifest lists and the signer's key has not signed; none without a signer."""
    signer = current_signer()
    if signer is None or not manifest.statements:
        return {}
    from reshard.core.custody.reading import unsigned_statements  # with cryptography

    return unsigned_statements(session.target.final, manifest, signer)


def _signed(found: "Mapping[str, FoundStatement]") -> dict[str, Document]:
    """Sign statements that were found, by name."""
    if not found:
        return {}
    from reshard.core.custody.reading import signed_document  # with cryptography

    signer = needed_signer()
    return {name: signed_document(name, each.data, signer) for name, each in found.items()}


def _lacks_any(session: Session, stored: Manifest) -> bool:
    manifest = unseal_manifest(stored, target_key(), str(session.target.final))
    lacks_source = session.request.hashes_source and not manifest.source_files
    lacks_statements = has_sha256(manifest) and len(manifest.statements) < len(STATEMENT_NAMES)
    return lacks_source or lacks_statements or not has_sha256(manifest)

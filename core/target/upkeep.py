"""Upkeep of a finished target by a later run of the same plan: what may change in it, and what is repaired.

A signed target stays as it is, unless the run signs it again.
"""

from collections.abc import Sequence

import xxhash

from reshard.core.checkpoint.manifest import PLAN_NAME, Manifest, dump_record, with_fields
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import TargetError
from reshard.core.layouts.documents import Document
from reshard.core.layouts.targets import is_target_name
from reshard.core.runtime.keys import target_key
from reshard.core.runtime.progress import current_progress
from reshard.core.storage.own_files import check_replaced
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    STATE_DIRECTORY,
    WITHDRAWN_NAME,
    is_built_beside,
    other_files,
    remove_tree,
    replaced_location,
)
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes
from reshard.core.target.claim import withdraw_manifest
from reshard.core.target.documents import document_names, remove_other_statements, statement_problem, write_statements
from reshard.core.target.own_names import own_names
from reshard.core.target.target import Target
from reshard.core.target.workspace import IDENTITY_NAME
from reshard.core.text.options import option, spelled


def check_nothing_foreign(target: Target) -> None:
    """Raise TargetError if the finished target's rank folders contain any files but its own."""
    known = [target.plan.file_name(rank) for rank in target.plan.target_ranks]
    others = other_files(target.final, [*known, *document_names(target.plan), SIGNATURE_NAME], is_target_name)
    if others and target.is_committed():  # otherwise another conversion has replaced it just now
        raise TargetError(
            f"{others[0]}: does not belong to this checkpoint, and MindSpore may take it for a rank's newest file "
            f"({len(others)} such in all). Move it away"
        )


def reopen(target: Target) -> None:
    """Withdraw the finished target's manifest before missing or wrong files are mended in place.

    Raises:
        TargetError: it is signed, and this run does not sign it again.
    """
    target.signature.lift_to_repair()
    withdraw_manifest(target.final.child(STATE_DIRECTORY))


def confirm(target: Target, level: VerifyLevel, fingerprint: str | None = None) -> bool:
    """Finish the commit of an interrupted run, and record a new verification: its level, and the fingerprint.

    A signed target's manifest stays as it is, unless this run signs it again. Returns True if it says more now.
    """
    if is_built_beside(target.final):
        _remove_replaced(target.final)
    remove_file(target.final.child(STATE_DIRECTORY, WITHDRAWN_NAME))
    target.side.announce(target.final, target.plan.inputs.layout)
    manifest = target.read_committed()
    if manifest is None or not manifest.verified.is_below(level):
        return False
    if not target.signature.lift():
        current_progress().note(
            f"{target.final}: is signed, so its manifest stays as it is: that it was verified more closely "
            f"({level}) is not recorded. Name the key with {spelled(option('sign'))} to record it"
        )
        return False
    raised = manifest.model_copy(update={"verified": level, "fingerprint": fingerprint})
    write_bytes(target.final.child(STATE_DIRECTORY, MANIFEST_NAME), dump_record(raised))
    return True


def rewrite_manifest(target: Target, manifest: Manifest, statements: Sequence[Document] = ()) -> None:
    """Replace the finished target's manifest by one that says more of the same files; hold the target meanwhile.

    `statements` are those that are new in it.
    """
    write_statements(target.final, statements)
    write_bytes(target.final.child(STATE_DIRECTORY, MANIFEST_NAME), dump_record(manifest))


def restore_state(target: Target) -> None:
    """Rewrite the finished target's changed or lost plan and identity, and the manifest to match.

    Statements that were changed or lost are removed: what they said is not known here. Call it only while the target
    is claimed.

    Raises:
        TargetError: it is signed, and this run does not sign it again.
    """
    manifest = target.read_committed()
    if manifest is None:  # another run has begun to replace it
        return
    target.signature.lift_to_repair()
    state, plan = target.final.child(STATE_DIRECTORY), target.plan_data
    sound = tuple(each for each in manifest.statements if statement_problem(target.final, each) is None)
    digest = xxhash.xxh3_128_hexdigest(plan)
    restored = with_fields(manifest, target_key(), str(target.final), plan_digest=digest, statements=sound)
    write_bytes(state.child(IDENTITY_NAME), target.identity.encode())
    write_bytes(state.child(PLAN_NAME), plan)
    write_bytes(state.child(MANIFEST_NAME), dump_record(restored))
    remove_other_statements(state, restored)


def _remove_replaced(final: Location) -> None:
    replaced = replaced_location(final)
    try:
        check_replaced(replaced, own_names(replaced))
    except TargetError as error:
        current_progress().note(f"could not remove {replaced}: {error}")
        return
    remove_tree(replaced)

"""Signatures of targets: `model.sig` beside a target's files, over every file below it.

It is written when everything else is, but for the manifest, whose bytes it covers: a target is finished, and signed, in
one moment. Digests are those taken while files were written; what nobody knows, such as files of other programs on an
object store, is read. Left out are the signature itself, leases, which come and go, and what git keeps there: a check
of the signature lists these.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from threading import Event

from reshard.core.checkpoint.manifest import RECORDS_DIRECTORY, Manifest
from reshard.core.custody.digests import PHASE, read_sha256
from reshard.core.errors import ConversionError, InputError
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.threads import in_phase
from reshard.core.signing.bundle import sign_files
from reshard.core.signing.signer import Signer
from reshard.core.signing.statement import SignedFiles
from reshard.core.storage.listing import find_entries
from reshard.core.storage.publishing import MANIFEST_NAME, SIGNATURE_NAME, WITHDRAWN_NAME, state_path
from reshard.core.storage.store import Entry
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes
from reshard.core.target.workspace import LEASES_DIRECTORY, record_name

_GIT_PATHS = (".git", ".gitattributes", ".github", ".gitignore")
"""Model-signing leaves these out by default."""
IGNORED = (SIGNATURE_NAME, state_path(LEASES_DIRECTORY), *_GIT_PATHS)
"""Paths below a target that its signature does not cover, each with all that is below it."""
MANIFEST_PATH = state_path(MANIFEST_NAME)
_EVERYTHING = SignedFiles("", {}, IGNORED)
_MARK = state_path(WITHDRAWN_NAME)
"""Removed when the manifest is there again."""


class FilesBelow(Record):
    """The files below a directory, by path: those that a signature covers, and the names of others."""

    covered: dict[str, Entry]
    ignored: tuple[str, ...]


def files_below(directory: Location) -> FilesBelow:
    """Describe the files below a directory.

    Raises:
        InputError: one that a signature covers is a link: other programs refuse to check it.
        StorageError: they cannot be listed.
    """
    start = len(directory.path.rstrip("/")) + 1
    covered, ignored = {}, []
    for path, entry in find_entries(directory).items():
        name = path[start:]
        if _EVERYTHING.ignores(name):
            ignored.append(name)
            continue
        if directory.store.has_paths and os.path.realpath(path) != os.path.join(os.path.realpath(directory.path), name):
            raise InputError(
                f"{directory.child(*name.split('/'))}: is a link, or in a linked directory: put the file there"
            )
        covered[name] = entry
    return FilesBelow(covered, tuple(name for name in ignored if name != SIGNATURE_NAME))


def manifest_digests(manifest: Manifest) -> dict[str, str]:
    """Return SHA-256 of the files that a manifest lists, by path; of those that have none recorded, nothing."""
    listed = manifest.sha256 | {each.file: each.sha256 for each in manifest.statements}
    return {file: sha256 for file, sha256 in listed.items() if sha256 is not None}


def record_path(rank: int) -> str:
    """Return the path of a rank's record below its target."""
    return state_path(f"{RECORDS_DIRECTORY}/{record_name(rank)}")


def sign_directory(directory: Location, name: str, signer: Signer, known: Mapping[str, str], workers: int) -> None:
    """Sign all files in a directory, as those of the model `name`, and write the signature beside them.

    `known` are SHA-256 digests by path, also of files that are written only afterwards. Others are read.

    Raises:
        InputError: a file is a link.
        ConversionError: a file that was written is not there any more.
        CheckpointError, StorageError: a file cannot be read.
    """
    digests = digests_below(directory, known, workers)
    write_bytes(directory.child(SIGNATURE_NAME), sign_files(SignedFiles(name, digests, IGNORED), signer))


def digests_below(directory: Location, known: Mapping[str, str], workers: int) -> dict[str, str]:
    """Return SHA-256 of all files that a signature of a directory covers: those that are `known`, others are read.

    Raises: as `sign_directory`.
    """
    entries = files_below(directory).covered
    if vanished := sorted(known.keys() - entries.keys() - {MANIFEST_PATH}):
        raise ConversionError(f"{directory.child(*vanished[0].split('/'))}: was written, and is not there any more")
    left = [name for name in entries if name not in known and name != _MARK]

    def read(name: str, advance: Callable[[int], None]) -> str:
        location = directory.child(*name.split("/"))
        return with_retries(partial(read_sha256, location, advance), current_progress().note)

    total_bytes = sum(entries[name].size_bytes for name in left)
    taken = in_phase(PHASE, total_bytes, read, left, workers, Event())
    return {**known, **dict(zip(left, taken, strict=True))}

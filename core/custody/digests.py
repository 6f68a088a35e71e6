"""SHA-256 of files as they are stored, and what a finished target's manifest says and lacks of them.

Records and manifest keep them beside the digests of contents; of a rank of several files, as joined parts have, a list.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from reshard.core.checkpoint.manifest import IndexSummary, Manifest, RankSha256
from reshard.core.errors import VerificationError
from reshard.core.files.digests import file_blocks
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.retry import with_retries
from reshard.core.storage.listing import exists
from reshard.core.storage.publishing import SIGNATURE_NAME
from reshard.core.storage.reading import SourceFile, open_source
from reshard.core.storage.urls import Location
from reshard.core.target.documents import document_problem

PHASE = "reading files for their SHA-256"
_READ_BYTES = 2**20


def read_sha256(location: Location, advance: Callable[[int], None] = lambda _: None) -> str:
    """Read a file whole, as it is stored, and return its SHA-256.

    Raises:
        CheckpointError: the file is truncated.
        StorageError: the file cannot be read.
    """
    with closing(open_source(location)) as file:
        return sha256_of(file, advance)


def sha256_of(file: SourceFile, advance: Callable[[int], None]) -> str:
    """Read an open file whole, and return its SHA-256.

    Raises:
        CheckpointError: the file is truncated.
        StorageError: the file cannot be read.
    """
    sha256 = hashlib.sha256()
    with closing(file_blocks(file, _READ_BYTES)) as blocks:
        for block in blocks:
            sha256.update(block)
            advance(len(block))
    return sha256.hexdigest()


def is_signed(directory: Location) -> bool:
    """True if a signature over its files and records is in a target's directory."""
    return exists(directory.child(SIGNATURE_NAME))


def has_sha256(manifest: Manifest) -> bool:
    """True if a manifest has the SHA-256 of each of its target's files."""
    return None not in manifest.sha256.values()


def with_sha256(directory: Location, manifest: Manifest, taken: Mapping[int, RankSha256]) -> Manifest:
    """Return the manifest of a finished target with the SHA-256 of its files.

    `taken` are those of ranks that had none; other files are read. The caller holds the target, and writes the
    manifest, which is not sealed here.

    Raises:
        VerificationError: a document or companion is not what was written.
        StorageError: it cannot be read.
    """
    of_ranks = (rank.model_copy(update={"sha256": rank.sha256 or taken.get(rank.rank)}) for rank in manifest.ranks)
    beside = {
        name: _with_own(directory, each)
        for name, each in (("index", manifest.index), ("common", manifest.common))
        if each is not None
    }
    update = {
        "ranks": tuple(of_ranks),
        **beside,
        "other_documents": _with_owns(directory, manifest.other_documents),
        "companions": _with_owns(directory, manifest.companions),
    }
    return manifest.model_copy(update=update)


def _with_owns(directory: Location, files: Sequence[IndexSummary]) -> tuple[IndexSummary, ...]:
    return tuple(_with_own(directory, each) for each in files)


def _with_own(directory: Location, file: IndexSummary) -> IndexSummary:
    if file.sha256 is not None:
        return file
    sha256 = with_retries(lambda: read_sha256(directory.child(file.file)), current_progress().note)
    taken = file.model_copy(update={"sha256": sha256})
    # read once more, and compared with both digests: of other bytes than those that were written none is recorded
    if problem := with_retries(lambda: document_problem(directory, taken), current_progress().note):
        raise VerificationError(problem)
    return taken

"""Reads the records of converted checkpoints. Their paths are not trusted: conversions must write such files."""

import re

from pydantic import ValidationError

from reshard.core.checkpoint.manifest import (
    ALL_STATEMENT_NAMES,
    MAX_RECORD_BYTES,
    Manifest,
    RankSummary,
    ShardRecord,
    validated,
)
from reshard.core.checkpoint.self_digest import split_digest
from reshard.core.errors import TargetError
from reshard.core.layouts.registry import TargetLayout
from reshard.core.layouts.targets import companion_names, is_document_name, is_tensor_file
from reshard.core.runtime.wording import counted
from reshard.core.storage.joined import files_of
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.publishing import MANIFEST_NAME, STATE_DIRECTORY, state_path
from reshard.core.storage.reading import read_own_file
from reshard.core.storage.urls import Location

_RANK_FILE = re.compile(r"rank_([0-9]+)/(?!\.{1,2}$)[^/\\\0]+", re.DOTALL)
_STATEMENTS = frozenset(state_path(name) for name in ALL_STATEMENT_NAMES)
_NO_DIGEST = "it was changed: the digest that it should end in is missing"


def is_rank_file(path: str, rank: int) -> bool:
    """True if a path below a target can be a rank's file: paths in records are not trusted."""
    match = _RANK_FILE.fullmatch(path)
    return match[1] == str(rank) if match else is_tensor_file(path) and not is_document_name(path)


def parse_shard_record(data: bytes, origin: str, *, needs_digest: bool = False) -> ShardRecord:
    """Parse a rank's record; `needs_digest`: it must end in a digest, as beside newer manifests.

    Raises:
        TargetError: the record is damaged, or of another version.
        LimitError: parsing would exceed the memory limit.
    """
    try:
        content, has_digest = split_digest(data)
        if needs_digest and not has_digest:
            raise ValueError(_NO_DIGEST)
        record = validated(ShardRecord, content, origin)
    except ValueError as error:
        raise TargetError(f"{origin}: not a readable record: {_first(error)}") from error
    _check_rank_file(record, origin)
    return record


def parse_manifest(data: bytes, origin: str) -> Manifest:
    """Parse a manifest.

    Raises:
        TargetError: it is damaged, or of another version.
        LimitError: parsing would exceed the memory limit.
    """
    try:
        content, has_digest = split_digest(data)
        manifest = validated(Manifest, content, origin)
        if manifest.plan_digest is not None and not has_digest:
            raise ValueError(_NO_DIGEST)
        if manifest.layout not in list(TargetLayout):
            raise ValueError(f"layout {manifest.layout!r} is unknown; a later version may have written it")
    except ValueError as error:
        raise TargetError(f"{origin}: not a readable manifest: {_first(error)}") from error
    for rank in manifest.ranks:
        _check_rank_file(rank, origin)
    for document in manifest.documents:
        if not is_document_name(document.file):
            raise TargetError(f"{origin}: names its index {document.file!r}, which no conversion does: it was changed")
    for companion in manifest.companions:
        if companion.file not in companion_names():
            raise TargetError(f"{origin}: lists {companion.file!r}, which no conversion copies: it was changed")
    for statement in manifest.statements:
        if statement.file not in _STATEMENTS:
            raise TargetError(
                f"{origin}: lists the statement {statement.file!r}, which no conversion writes: it was changed"
            )
    return manifest


def _check_rank_file(rank: ShardRecord | RankSummary, origin: str) -> None:
    if not is_rank_file(rank.file, rank.rank):
        raise TargetError(
            f"{origin}: says that the file of rank_{rank.rank} is {rank.file!r}, where no conversion writes it: it was "
            "changed"
        )
    digests = 1 if isinstance(rank.sha256, str) else len(rank.sha256 or ())
    files = len(files_of(rank.file))
    if rank.sha256 is not None and (digests != files or (files == 1) != isinstance(rank.sha256, str)):
        raise TargetError(
            f"{origin}: has {digests} SHA-256 of rank_{rank.rank}, which has {counted(files, 'file')}: it was changed"
        )


def _first(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, detail['loc'])) or 'the file'}: {detail['msg']}"


def read_manifest(directory: Location) -> Manifest | None:
    """Read the manifest of a converted checkpoint; None if there is none.

    Raises:
        TargetError: it is damaged.
        StorageError: it cannot be read.
    """
    location = directory.child(STATE_DIRECTORY, MANIFEST_NAME)
    content = unless_missing(lambda: read_own_file(location, MAX_RECORD_BYTES))
    return None if content is None else parse_manifest(content, str(location))

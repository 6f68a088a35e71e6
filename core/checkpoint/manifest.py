"""The records that stand beside a converted checkpoint, in `.reshard/`: public, versioned JSON.

TARGET/.reshard/manifest.json          the commit marker: a target without it is not a checkpoint
TARGET/.reshard/plan.json.gz           what the conversion was planned from; its identity decides about resuming
TARGET/.reshard/records/rank_{r}.json  one for each target rank's file, written after it

The plan and the records of an encrypted target are sealed with its key (`reshard.core.runtime.sealing`). Its manifest
names no parameter, its digests mean nothing without the key, and its sealed field shows whether the rest was changed.

Every byte is covered: the manifest and the records end in digests of themselves, and the manifest holds the plan's.
Earlier versions wrote no digests.
"""

import base64
import re
from typing import Annotated, Any, Literal, TypeVar

import xxhash
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from reshard.core.checkpoint.self_digest import add_digest, split_digest
from reshard.core.errors import (
    InputError,
    TargetError,
)
from reshard.core.request.changes import NO_CHANGES, Changes
from reshard.core.request.conversion import TargetLayout, VerifyLevel
from reshard.core.runtime.keys import Key
from reshard.core.runtime.metadata import parsing, records_bytes
from reshard.core.runtime.option_names import source_option
from reshard.core.runtime.sealing import is_sealed, seal, unseal
from reshard.core.runtime.wording import printable
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    STATE_DIRECTORY,
)
from reshard.core.storage.reading import read_own_file
from reshard.core.storage.unified_names import is_index_name, is_unified_name
from reshard.core.storage.urls import Location
from reshard.core.tensor.fingerprint import TEXT_PATTERN

PLAN_NAME = "plan.json.gz"
RECORDS_DIRECTORY = "records"
_MANIFEST = "manifest"
_RANK_FILE = re.compile(r"rank_([0-9]+)/(?!\.{1,2}$)[^/\\\0]+", re.DOTALL)
_NO_DIGEST = "it was changed: the digest that it should end in is missing"
DIGEST_ALGORITHM: Literal["xxh3_128"] = "xxh3_128"

Item = TypeVar("Item")
Model = TypeVar("Model", bound=BaseModel)
FailFastTuple = Annotated[tuple[Item, ...], FailFast()]
"""Of a damaged list the first error is told: each takes a thousand bytes, and there may be one for every two read."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ParameterRecord(_Record):
    """One parameter of a written file: its digest is over its bytes in C order, or over a text's UTF-8."""

    name: str
    dtype: str
    shape: FailFastTuple[int]
    digest: str


class OverflowRecord(_Record):
    """How many finite values of a parameter became infinite when they were cast, and the largest of them."""

    name: str
    count: int
    largest: float


class ShardRecord(_Record):
    """One written target file.

    Attributes:
        identity: identity of the plan that it was written for.
        rank: target rank.
        file: path below the target.
        size_bytes: size of the file.
        copy_of: the rank whose file this one is a copy of, if it is one.
        source_ranks: source ranks that were read.
        read_bytes: bytes that were read from the source, gaps included.
        seconds: time that it took.
        verified: how closely the written file was checked.
        heads: digest of what stands around the contents; one for each file, if it is made of several.
        parameters: what is in it, in the file's order.
        overflows: of parameters that were cast, what became infinite; as a rule nothing.
        parts: what each parameter adds to the fingerprint of its whole tensor, 16 hexadecimal digits, if the target is
            to be compared with its source; else nothing.
    """

    schema_version: Literal[1] = 1
    identity: str
    rank: int
    file: str
    size_bytes: int
    copy_of: int | None
    source_ranks: FailFastTuple[int]
    read_bytes: int
    seconds: float
    verified: VerifyLevel = VerifyLevel.NONE
    heads: tuple[str, ...]
    parameters: FailFastTuple[ParameterRecord]
    overflows: FailFastTuple[OverflowRecord] = ()
    parts: FailFastTuple[Annotated[str, Field(pattern=TEXT_PATTERN)]] = ()

    def is_checked(self, level: VerifyLevel) -> bool:
        """Whether the file was checked as closely as that; for `content`, whether it is ready to be compared."""
        if level is VerifyLevel.CONTENT:
            return not self.verified.is_below(VerifyLevel.CHECKSUM) and len(self.parts) == len(self.parameters)
        return not self.verified.is_below(level)


class RankSummary(_Record):
    """One target rank in the manifest; `record_digest` is over its record without what it was verified by."""

    rank: int
    file: str
    size_bytes: int
    record_digest: str


class IndexSummary(_Record):
    """The index of a unified target in the manifest: its path below the target, and a digest of its bytes."""

    file: str
    size_bytes: int
    digest: str


class Manifest(_Record):
    """The commit marker of a converted checkpoint.

    Attributes:
        identity: identity of the plan.
        writer: program and version that wrote it.
        created: when, ISO 8601, UTC.
        source: URL of the source.
        step: the source's epoch and step, if its names carry one.
        source_world_size: ranks of the source.
        target_world_size: ranks of the target.
        format: kind of the target's files.
        verified: how closely all files were checked.
        dropped: parameters of the source's strategy that the target's lacks.
        excused: parameters of the target's strategy that were allowed to be missing.
        carried: parameters that no strategy knows, copied to every rank.
        notes: what was chosen, in sentences.
        ranks: the target's files.
        encryption: how the files are encrypted; empty: not at all.
        sealed: of an encrypted target, what of the above names parameters, which is empty there; base64.
        layout: `ranks`, or `unified`: then the target's ranks are files of whole tensors, counted from 0.
        index: of a unified target, what tells which tensor is in which file; None if it is one file.
        changes: which parameters were taken, and how they were changed, as declared.
        excluded: source parameters that were left out so.
        plan_digest: digest of the plan's file; empty if there is none, as beside joined parts. None: an earlier version
            wrote this, which recorded neither it nor a digest of the manifest itself.
    """

    schema_version: Literal[1] = 1
    identity: str
    writer: str
    created: str
    digest_algorithm: Literal["xxh3_128"] = DIGEST_ALGORITHM
    source: str
    step: str | None
    source_world_size: int
    target_world_size: int
    format: str
    verified: VerifyLevel
    dropped: FailFastTuple[str]
    excused: FailFastTuple[str]
    carried: FailFastTuple[str]
    notes: FailFastTuple[str]
    ranks: FailFastTuple[RankSummary]
    encryption: str = ""
    sealed: str = ""
    layout: TargetLayout = TargetLayout.RANKS
    index: IndexSummary | None = None
    changes: Changes = NO_CHANGES
    excluded: FailFastTuple[str] = ()
    plan_digest: str | None = None

    @property
    def files(self) -> list[str]:
        """Paths, below the target, of all that the checkpoint consists of."""
        return [*(rank.file for rank in self.ranks), *([self.index.file] if self.index else [])]


class _Details(_Record):
    """What of a manifest names parameters."""

    dropped: FailFastTuple[str] = ()
    excused: FailFastTuple[str] = ()
    carried: FailFastTuple[str] = ()
    notes: FailFastTuple[str] = ()
    changes: Changes = NO_CHANGES
    excluded: FailFastTuple[str] = ()

    @property
    def each(self) -> dict[str, Any]:
        """The fields by name."""
        return {name: getattr(self, name) for name in _Details.model_fields}


_REPEATED_FIELDS = (*ParameterRecord.model_fields, *RankSummary.model_fields)
"""Field names that a document may repeat many times."""


def seal_manifest(manifest: Manifest, key: Key) -> Manifest:
    """The manifest of an encrypted target: what names parameters is sealed."""
    details = _Details(**{name: getattr(manifest, name) for name in _Details.model_fields})
    public = manifest.model_copy(update=_Details().each | {"encryption": str(key.mode)})
    sealed = base64.b64encode(seal(details.model_dump_json().encode(), key, _purpose(public))).decode()
    return public.model_copy(update={"sealed": sealed})


def unseal_manifest(manifest: Manifest, key: Key | None, origin: str) -> Manifest:
    """A manifest with all that it says, if `key` is the target's; `origin` is what messages call it.

    Raises:
        InputError: it is encrypted, and the key is missing or not its own, or it was changed; or it is not encrypted,
            and there is one.
        TargetError: it is damaged.
    """
    if not manifest.encryption:
        if key is not None:
            raise InputError(f"{origin}: is not encrypted, but {key.name} is named as its key: name none")
        return manifest
    if key is None or key.mode != manifest.encryption:
        named = "" if key is None else f", not with {key.mode}"
        mode = printable(manifest.encryption)
        raise InputError(
            f"{origin}: is encrypted with {mode}{named}: name its key with {source_option('decrypt-key')}, "
            f"and {source_option('decrypt-mode')} {mode}"
        )
    try:
        sealed = base64.b64decode(manifest.sealed, validate=True)
        if not is_sealed(sealed):
            raise ValueError(sealed)
        details = _validated(_Details, unseal(sealed, key, _purpose(manifest), origin), origin)
    except ValueError as error:
        raise TargetError(f"{origin}: not a readable manifest: what is sealed in it is damaged") from error
    return manifest.model_copy(update=details.each | {"sealed": ""})


def with_plan_digest(manifest: Manifest, plan: bytes, key: Key | None, origin: str) -> Manifest:
    """The manifest with the digest of the plan's file, `plan`; `key` is the target's, if it is encrypted.

    Raises: as `unseal_manifest`.
    """
    changed = unseal_manifest(manifest, key, origin).model_copy(update={"plan_digest": xxhash.xxh3_128_hexdigest(plan)})
    return seal_manifest(changed, key) if key else changed


def _purpose(manifest: Manifest) -> str:
    """What is sealed is good with this very manifest only, but for how closely it was verified, which may rise."""
    # what has its default is left out, or none could be unsealed any more when there are more fields
    return f"{_MANIFEST} {manifest.model_dump_json(exclude={'sealed', 'verified'}, exclude_defaults=True)}"


def dump_record(record: ShardRecord | Manifest) -> bytes:
    """A record as the bytes of its file."""
    return add_digest(
        record.model_dump_json(indent=1).encode() if isinstance(record, Manifest) else record_content(record)
    )


def record_content(record: ShardRecord) -> bytes:
    """A rank's record as JSON, without the digest of its file."""
    # left out where there are none, or records of earlier versions would have other digests
    return record.model_dump_json(exclude=None if record.overflows else {"overflows"}).encode() + b"\n"


def is_rank_file(path: str, rank: int) -> bool:
    """Whether a path below a target can be a rank's file: paths in records are not trusted."""
    match = _RANK_FILE.fullmatch(path)
    return match[1] == str(rank) if match else is_unified_name(path)


def parse_shard_record(data: bytes, origin: str, *, needs_digest: bool = False) -> ShardRecord:
    """A rank's record from its file; `needs_digest`: it must end in a digest, as beside newer manifests.

    Raises:
        TargetError: the record is damaged, or of another version.
        LimitError: parsing it would exceed the memory limit.
    """
    try:
        content, has_digest = split_digest(data)
        if needs_digest and not has_digest:
            raise ValueError(_NO_DIGEST)
        record = _validated(ShardRecord, content, origin)
    except ValueError as error:
        raise TargetError(f"{origin}: not a readable record: {_first(error)}") from error
    _check_rank_file(record, origin)
    return record


def parse_manifest(data: bytes, origin: str) -> Manifest:
    """A manifest from its file.

    Raises:
        TargetError: it is damaged, or of another version.
        LimitError: it would take too much memory.
    """
    try:
        content, has_digest = split_digest(data)
        manifest = _validated(Manifest, content, origin)
        if manifest.plan_digest is not None and not has_digest:
            raise ValueError(_NO_DIGEST)
    except ValueError as error:
        raise TargetError(f"{origin}: not a readable manifest: {_first(error)}") from error
    for rank in manifest.ranks:
        _check_rank_file(rank, origin)
    if manifest.index and not (is_unified_name(manifest.index.file) and is_index_name(manifest.index.file)):
        raise TargetError(
            f"{origin}: calls its index {manifest.index.file!r}, as no conversion calls one: it was changed"
        )
    return manifest


def _check_rank_file(rank: ShardRecord | RankSummary, origin: str) -> None:
    if not is_rank_file(rank.file, rank.rank):
        raise TargetError(
            f"{origin}: says that the file of rank_{rank.rank} is {rank.file!r}, where no conversion writes it: it was "
            "changed"
        )


def _validated(kind: type[Model], data: bytes, origin: str) -> Model:
    with parsing(origin) as parse:
        parse.take(records_bytes(data, _REPEATED_FIELDS))
        return kind.model_validate_json(data)


def _first(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, detail['loc'])) or 'the file'}: {detail['msg']}"


def read_manifest(directory: Location) -> Manifest | None:
    """The manifest of a converted checkpoint; None if there is none.

    Raises:
        TargetError: it is damaged.
        StorageError: it cannot be read.
    """
    location = directory.child(STATE_DIRECTORY, MANIFEST_NAME)
    content = unless_missing(lambda: read_own_file(location, MAX_RECORD_BYTES))
    return None if content is None else parse_manifest(content, str(location))


MAX_RECORD_BYTES = 2**28

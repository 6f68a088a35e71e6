"""The records of a converted checkpoint, in `.reshard/` beside it: public, versioned JSON.

TARGET/.reshard/manifest.json          the commit marker: a target without it is not a checkpoint
TARGET/.reshard/plan.json.gz           the inputs of the plan; its identity decides about resuming
TARGET/.reshard/records/rank_{r}.json  one for each target rank's file, written after it
TARGET/.reshard/{…}.intoto.json        statements about the target (`reshard.core.custody`), if they were asked for
TARGET/.reshard/predecessors/{n}/{…}   copies of those about its source (1), the source's source (2), and so on

An encrypted target's plan and records are sealed with its key (`reshard.core.runtime.sealing`). Its manifest names no
parameter, its digests are useless without the key, and its sealed field reveals changes to the rest.

Every byte is covered: manifest and records end in digests of themselves, and the manifest holds the plan's digest.
Earlier versions wrote no digests.
"""

import base64
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field

from reshard.core.changes.changes import NO_CHANGES, Changes
from reshard.core.checkpoint.self_digest import add_digest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import InputError, TargetError
from reshard.core.files.model import OutputEntry
from reshard.core.reports.blocks import GAP, Block, Facts, Table
from reshard.core.reports.report import Report
from reshard.core.runtime.keys import Key
from reshard.core.runtime.metadata import parsing, records_bytes
from reshard.core.runtime.sealing import is_sealed, seal, unseal
from reshard.core.runtime.wording import counted, size_text
from reshard.core.storage.joined import files_of
from reshard.core.tensor.dtypes import dtype_from_ckpt
from reshard.core.tensor.fingerprint import TEXT_PATTERN
from reshard.core.text.options import source_option
from reshard.core.text.printing import printable

PLAN_NAME = "plan.json.gz"
RECORDS_DIRECTORY = "records"
PROVENANCE_NAME = "provenance.intoto.json"
EQUIVALENCE_NAME = "equivalence.intoto.json"
STATEMENT_NAMES = (PROVENANCE_NAME, EQUIVALENCE_NAME)
"""Files of the statements about a target, in `.reshard`."""
PREDECESSORS_DIRECTORY = "predecessors"
"""Directory in `.reshard` with copies of the statements about the source, the source's source, and so on."""
MAX_PREDECESSORS = 32
ALL_STATEMENT_NAMES = (
    *STATEMENT_NAMES,
    *(
        f"{PREDECESSORS_DIRECTORY}/{number}/{name}"
        for number in range(1, MAX_PREDECESSORS + 1)
        for name in (*STATEMENT_NAMES, "model.sig")
    ),
)
"""Paths, below `.reshard`, of all files that statements may be in, and of the signatures of predecessors."""
MAX_RECORD_BYTES = 2**28
MAX_STATEMENT_BYTES = 2**27
"""Size of a statement's file; one about a hundred thousand files has some 60 MB."""
_MANIFEST = "manifest"
DIGEST_ALGORITHM: Literal["xxh3_128"] = "xxh3_128"

Item = TypeVar("Item")
Model = TypeVar("Model", bound=BaseModel)
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a whole file as it is stored, in hexadecimal digits."""
FailFastTuple = Annotated[tuple[Item, ...], FailFast()]
"""Report only the first error of a damaged list: each takes a thousand bytes, and every two bytes may cause one."""
RankSha256 = Sha256 | Annotated[tuple[Sha256, ...], Field(max_length=4096)]
"""SHA-256 of a rank's file; of each of its files in their order, if it has several, as joined parts have."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class ParameterRecord(_Record):
    """One parameter of a written file; the digest is over its bytes in C order, or over a text's UTF-8."""

    name: str
    dtype: str
    shape: FailFastTuple[int]
    digest: str


class OverflowRecord(_Record):
    """Number of a parameter's finite values that became infinite when cast, and the largest of them."""

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
        copy_of: the rank whose file this one is a copy of, if any.
        source_ranks: source ranks that were read.
        read_bytes: bytes read from the source, gaps included.
        seconds: time taken.
        verified: how closely the written file was checked.
        heads: digest of the bytes around the contents; one for each file if it is made of several.
        parameters: parameters in the file's order.
        overflows: parameters that overflowed when cast; usually none.
        parts: what each parameter adds to the fingerprint of its whole tensor, 16 hexadecimal digits, if the target is
            to be compared with its source; otherwise empty.
        sha256: SHA-256 of the file, or of each; None if it was not asked for.
        signs: True if the run that wrote it was to sign the target.
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
    sha256: RankSha256 | None = None
    signs: bool = False

    def is_checked(self, level: VerifyLevel) -> bool:
        """True if the file was checked at this level; for `content`, if it is ready to be compared."""
        if level is VerifyLevel.CONTENT:
            return not self.verified.is_below(VerifyLevel.CHECKSUM) and len(self.parts) == len(self.parameters)
        return not self.verified.is_below(level)


class RankSummary(_Record):
    """One target rank in the manifest.

    Attributes:
        rank: target rank.
        file: path below the target.
        size_bytes: size of the file.
        record_digest: digest of its record, without the verification level and what may be added later.
        sha256: SHA-256 of the file, or of each; None if it was not asked for.
    """

    rank: int
    file: str
    size_bytes: int
    record_digest: str
    sha256: RankSha256 | None = None


def sha256_by_file(ranks: Iterable[tuple[str, RankSha256]]) -> dict[str, str]:
    """Return the SHA-256 of each file by path, given that of ranks, each with its file, which may be a joint one."""
    found: dict[str, str] = {}
    for file, sha256 in ranks:
        found.update(zip(files_of(file), (sha256,) if isinstance(sha256, str) else sha256, strict=True))
    return found


def rank_sha256(digests: Sequence[str]) -> RankSha256 | None:
    """Return the SHA-256 of a rank's files as records have them; None if there are none."""
    return digests[0] if len(digests) == 1 else tuple(digests) or None


def record_entries(record: ShardRecord) -> list[OutputEntry]:
    """Return the tensors of a record's file, in its order.

    Raises:
        CheckpointError: a dtype is unknown.
    """
    return [
        # floats of 8 bits are known by their names in other frameworks
        OutputEntry(each.name, dtype_from_ckpt(each.dtype, math.prod(each.shape), math.prod(each.shape)), each.shape)
        for each in record.parameters
    ]


class IndexSummary(_Record):
    """A document beside the ranks' files, or a file copied there: path below the target, and digests of its bytes."""

    file: str
    size_bytes: int
    digest: str
    sha256: Sha256 | None = None


class SourceFileRecord(_Record):
    """A source file that was read whole.

    Attributes:
        url: URL of the file; a local one is a plain path.
        size_bytes: its size.
        version: the one that was planned with, and that it still had when it was read: size and times, or etag.
        sha256: SHA-256 of its bytes, as they are stored.
    """

    url: str
    size_bytes: int
    version: str
    sha256: Sha256


class RunRecord(_Record):
    """The run that completed a conversion. Its figures do not include what earlier runs of the same plan did.

    Attributes:
        begun: time, ISO 8601, UTC.
        seconds: time taken until the commit.
        user: user of its process.
        host: its machine.
        read_bytes: bytes read from the source.
        written_bytes: bytes of the files that it wrote.
        resumed_ranks: target ranks that were written by other runs.
        retried_requests: requests to remote storages that were repeated after transient failures.
        peak_memory_bytes: the most memory that its process held; None if it was not measured, or several processes
            worked.
    """

    begun: str
    seconds: float
    user: str
    host: str
    read_bytes: int
    written_bytes: int
    resumed_ranks: int
    retried_requests: int
    peak_memory_bytes: int | None


class Manifest(Report, _Record):
    """The commit marker of a converted checkpoint.

    Attributes:
        identity: identity of the plan.
        writer: program and version that wrote it.
        created: time, ISO 8601, UTC.
        source: URL of the source.
        step: the source's epoch and step, if its file names have one.
        source_world_size: ranks of the source.
        target_world_size: ranks of the target.
        format: format of the target's files.
        verified: how closely all files were checked.
        dropped: parameters of the source's strategy that the target's does not have.
        excused: parameters of the target's strategy that were allowed to be missing.
        carried: parameters that no strategy covers, passed through to every rank.
        notes: choices that were made, in sentences.
        ranks: the target's files.
        encryption: encryption mode; empty: not encrypted.
        sealed: an encrypted target's fields that name parameters, empty above; base64.
        layout: how the target lies in its directory. In all layouts but `ranks`, its ranks are files, counted from 0.
        index: the document that says which tensor is in which file; None if there is none.
        common: the document with the state of the training; None if the layout has none.
        other_documents: documents that loaders need besides.
        changes: selection and changes of parameters, as declared.
        excluded: source parameters that the selection left out.
        plan_digest: digest of the plan's file; empty if there is none, as beside joined stages. None: written by an
            earlier version, which recorded neither it nor a digest of the manifest itself.
        companions: files copied beside the target's, such as a model's configuration and tokenizer.
        run: the run that completed the target; None if an earlier version wrote it, or parts were joined.
        fingerprint: the target's, if values were compared and it is not encrypted.
        source_files: the source's checkpoint files with their SHA-256, if it was asked for.
        statements: the statements about the target, in `.reshard`; paths below the target.
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
    layout: str = "ranks"
    index: IndexSummary | None = None
    common: IndexSummary | None = None
    other_documents: FailFastTuple[IndexSummary] = ()
    changes: Changes = NO_CHANGES
    excluded: FailFastTuple[str] = ()
    plan_digest: str | None = None
    companions: FailFastTuple[IndexSummary] = ()
    run: RunRecord | None = None
    fingerprint: str | None = None
    source_files: FailFastTuple[SourceFileRecord] = ()
    statements: FailFastTuple[IndexSummary] = ()

    def blocks(self) -> Iterator[Block]:
        """Yield its content: what was converted from where, and the files."""
        size = size_text(sum(rank.size_bytes for rank in self.ranks))
        yield Facts(
            [
                ("converted from", f"{self.source}, step {self.step}" if self.step else self.source),
                ("ranks", f"{self.source_world_size} -> {self.target_world_size}"),
                ("layout", f"{self.layout}, .{self.format}, {counted(len(self.ranks), 'file')}, {size}"),
                ("written by", f"{self.writer}, {self.created}"),
                ("verified", self.verified),
                *([("encrypted", f"with {self.encryption}")] if self.encryption else []),
                *(("note", note) for note in self.notes),
            ]
        )
        yield GAP
        yield Table(("file", "size"), [(each.file, size_text(each.size_bytes)) for each in self.ranks], right=("size",))

    @property
    def beside(self) -> tuple[IndexSummary, ...]:
        """The files beside those of the ranks: documents and companions."""
        return *self.documents, *self.companions

    @property
    def files(self) -> list[str]:
        """Paths, below the target, of all files of the checkpoint: first those of the ranks, joint ones as they are."""
        return [*(rank.file for rank in self.ranks), *(each.file for each in self.beside)]

    @property
    def sha256(self) -> dict[str, str | None]:
        """The SHA-256 of each file of the checkpoint, by path; None if it was not asked for."""
        files = dict.fromkeys(file for rank in self.ranks for file in files_of(rank.file))
        of_ranks = sha256_by_file((rank.file, rank.sha256) for rank in self.ranks if rank.sha256)
        return files | of_ranks | {each.file: each.sha256 for each in self.beside}

    @property
    def documents(self) -> list[IndexSummary]:
        """The documents that were made for the files."""
        return [*(document for document in (self.index, self.common) if document is not None), *self.other_documents]


class _Details(_Record):
    """The fields of a manifest that name parameters, as names of source files may."""

    dropped: FailFastTuple[str] = ()
    excused: FailFastTuple[str] = ()
    carried: FailFastTuple[str] = ()
    notes: FailFastTuple[str] = ()
    changes: Changes = NO_CHANGES
    excluded: FailFastTuple[str] = ()
    source_files: FailFastTuple[SourceFileRecord] = ()

    @property
    def each(self) -> dict[str, Any]:
        """Fields by name."""
        return {name: getattr(self, name) for name in _Details.model_fields}


_REPEATED_FIELDS = (*ParameterRecord.model_fields, *RankSummary.model_fields, *SourceFileRecord.model_fields)
"""Field names that a document may repeat many times."""


def seal_manifest(manifest: Manifest, key: Key) -> Manifest:
    """Seal the fields of an encrypted target's manifest that name parameters."""
    details = _Details(**{name: getattr(manifest, name) for name in _Details.model_fields})
    public = manifest.model_copy(update=_Details().each | {"encryption": str(key.mode)})
    sealed = base64.b64encode(seal(details.model_dump_json().encode(), key, _purpose(public))).decode()
    return public.model_copy(update={"sealed": sealed})


def unseal_manifest(manifest: Manifest, key: Key | None, origin: str) -> Manifest:
    """Return a manifest with all its fields, given the target's `key`; `origin` names it in messages.

    Raises:
        InputError: the target is encrypted, and the key is missing or wrong, or the manifest was changed; or there is a
            key, and the target is not encrypted.
        TargetError: the manifest is damaged.
    """
    if not manifest.encryption:
        if key is not None:
            raise InputError(f"{origin}: is not encrypted, but {key.name} is named as its key: name none")
        return manifest
    if key is None or key.mode != manifest.encryption:
        named = "" if key is None else f", not with {key.mode}"
        mode = printable(manifest.encryption)
        raise InputError(
            f"{origin}: is encrypted with {mode}{named}: name its key with {source_option('decrypt_key')}, "
            f"and {source_option('decrypt_mode', mode)}"
        )
    try:
        sealed = base64.b64decode(manifest.sealed, validate=True)
        if not is_sealed(sealed):
            raise ValueError(sealed)
        details = validated(_Details, unseal(sealed, key, _purpose(manifest), origin), origin)
    except ValueError as error:
        raise TargetError(f"{origin}: not a readable manifest: its sealed fields are damaged") from error
    return manifest.model_copy(update=details.each | {"sealed": ""})


def with_fields(manifest: Manifest, key: Key | None, origin: str, **fields: object) -> Manifest:
    """Return a manifest with other values of some fields; `key` is an encrypted target's, which seals it again.

    Raises: as `unseal_manifest`.
    """
    changed = unseal_manifest(manifest, key, origin).model_copy(update=fields)
    return seal_manifest(changed, key) if key else changed


def _purpose(manifest: Manifest) -> str:
    """Bind the sealed fields to this manifest, except for its verification level, which may rise."""
    # exclude defaults, or no manifest could be unsealed once there are more fields
    return f"{_MANIFEST} {manifest.model_dump_json(exclude={'sealed', 'verified'}, exclude_defaults=True)}"


def dump_record(record: ShardRecord | Manifest) -> bytes:
    """Return the bytes of a record's file."""
    return add_digest(
        record.model_dump_json(indent=1).encode() if isinstance(record, Manifest) else record_content(record)
    )


def record_content(record: ShardRecord) -> bytes:
    """Return a rank's record as JSON, without its own digest."""
    # omit what is empty, or records of earlier versions would have other digests
    empty = {name for name in ("overflows", "sha256", "signs") if not getattr(record, name)}
    return record.model_dump_json(exclude=empty or None).encode() + b"\n"


def validated(kind: type[Model], data: bytes, origin: str) -> Model:
    """Validate the JSON of a record, read from `origin`.

    Raises:
        ValueError: it is damaged, or of another version.
        LimitError: parsing would exceed the memory limit.
    """
    with parsing(origin) as parse:
        parse.take(records_bytes(data, _REPEATED_FIELDS))
        return kind.model_validate_json(data)

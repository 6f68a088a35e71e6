"""The records that stand beside a converted checkpoint, in `.reshard/`: public, versioned JSON.

TARGET/.reshard/manifest.json          the commit marker: a target without it is not a checkpoint
TARGET/.reshard/plan.json.gz           what the conversion was planned from; its identity decides about resuming
TARGET/.reshard/records/rank_{r}.json  one for each target rank's file, written after it
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from core.errors import TargetError
from core.request import VerifyLevel

PLAN_NAME = "plan.json.gz"
RECORDS_DIRECTORY = "records"
DIGEST_ALGORITHM: Literal["xxh3_128"] = "xxh3_128"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ParameterRecord(_Record):
    """One parameter of a written file: its digest is over its bytes in C order, or over a text's UTF-8."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str


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
        parameters: what is in it, in the file's order.
    """

    schema_version: Literal[1] = 1
    identity: str
    rank: int
    file: str
    size_bytes: int
    copy_of: int | None
    source_ranks: tuple[int, ...]
    read_bytes: int
    seconds: float
    verified: VerifyLevel = VerifyLevel.NONE
    parameters: tuple[ParameterRecord, ...]


class RankSummary(_Record):
    """One target rank in the manifest; `record_digest` is over its record with `verified` set to none."""

    rank: int
    file: str
    size_bytes: int
    record_digest: str


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
    dropped: tuple[str, ...]
    excused: tuple[str, ...]
    carried: tuple[str, ...]
    notes: tuple[str, ...]
    ranks: tuple[RankSummary, ...]


def dump_record(record: ShardRecord | Manifest) -> bytes:
    """A record as the bytes of its file."""
    return record.model_dump_json(indent=1 if isinstance(record, Manifest) else None).encode() + b"\n"


def parse_shard_record(data: bytes, origin: str) -> ShardRecord:
    """A rank's record from its file.

    Raises:
        TargetError: it is damaged, or of another version.
    """
    try:
        return ShardRecord.model_validate_json(data)
    except ValidationError as error:
        raise TargetError(f"{origin}: not a readable record: {_first(error)}") from error


def parse_manifest(data: bytes, origin: str) -> Manifest:
    """A manifest from its file.

    Raises:
        TargetError: it is damaged, or of another version.
    """
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise TargetError(f"{origin}: not a readable manifest: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    detail = error.errors()[0]
    return f"{'.'.join(map(str, detail['loc'])) or 'the file'}: {detail['msg']}"

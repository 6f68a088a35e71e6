"""The check of one rank's file against its record.

`structure` reads the file's headers and compares every name, dtype and shape, and the file's size. `checksum` also
reads all contents back, compares them with the digests taken while they were written, and checks the CRC of a file that
has one. Neither can see a wrong plan.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from operator import attrgetter

from msgspec.structs import replace

from reshard.core.checkpoint.manifest import RankSha256, ShardRecord, rank_sha256, sha256_by_file
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import CheckpointError, StorageError
from reshard.core.files.any_format import read_index, stored_crc
from reshard.core.files.digests import file_digests
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.encryption.opening import open_checkpoint
from reshard.core.files.model import FileIndex, OutputEntry
from reshard.core.layouts.targets import side_of_file
from reshard.core.runtime.keys import target_key
from reshard.core.runtime.records import Record
from reshard.core.storage.hashing import running_sha256
from reshard.core.storage.joined import JoinedFile
from reshard.core.storage.listing import has_no_file
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location
from reshard.core.tensor.fingerprint import fingerprint_text
from reshard.core.tensor.slices import Shape

# by attrgetter: a file may have thousands of parameters
_NAME_DTYPE_SHAPE = attrgetter("name", "dtype.name", "shape")
_RECORDED = attrgetter("name", "dtype", "shape")
_READ_BYTES = 2**20
_SUMMED_BYTES = 4 * 2**20


class RankVerification(Record):
    """The check of one rank's file.

    Attributes:
        level: how closely the file was checked.
        read_bytes: bytes of contents that were read back.
        problems: in sentences.
        parts: the contributions of the record's parameters to the fingerprints of their whole tensors, if asked for.
        sha256: SHA-256 of the file, or of each, if it was asked for and all was read.
    """

    rank: int
    level: VerifyLevel
    read_bytes: int
    problems: tuple[str, ...]
    parts: tuple[str, ...] = ()
    sha256: RankSha256 | None = None


def verify_rank(
    directory: Location,
    record: ShardRecord,
    level: VerifyLevel,
    *,
    expected: Sequence[OutputEntry] | None = None,
    advance: Callable[[int], None] = lambda _: None,
    starts: Mapping[str, Shape] | None = None,
    hashes: bool = False,
) -> RankVerification:
    """Check one rank's file against its record, and against the plan's `expected` entries if given.

    With `starts`, where its shards begin in their whole tensors, its contributions to fingerprints are summed too. With
    `hashes`, the SHA-256 of each file that is read whole is taken, and compared with the one in the record, if there is
    one.

    Raises:
        StorageError: the file cannot be read; a missing file is a problem in the result.
    """
    unread = RankVerification(record.rank, level, 0, ())
    if level is VerifyLevel.NONE:
        return unread
    location = directory.child(*record.file.split("/"))
    try:
        with closing(open_checkpoint(location, target_key())) as file:
            index = side_of_file(record.file).read_index(file, record)
            problems = _structure_problems(file, index, record, expected)
            if problems or level.is_below(VerifyLevel.CHECKSUM):
                found = replace(unread, problems=tuple(problems))
            else:
                found = _check_contents(file, index, record, level, advance, starts, hashes)
    except CheckpointError as error:
        found = replace(unread, problems=(str(error),))
    except StorageError as error:
        if not has_no_file(error):
            raise
        found = replace(unread, problems=(str(error),))
    prefixed = (problem if f"{location}" in problem else f"{location}: {problem}" for problem in found.problems)
    return replace(found, problems=tuple(prefixed))


def _structure_problems(
    file: SourceFile, index: FileIndex, record: ShardRecord, expected: Sequence[OutputEntry] | None
) -> list[str]:
    found = list(map(_NAME_DTYPE_SHAPE, index.entries.values()))
    recorded = list(map(_RECORDED, record.parameters))
    problems = _differences(index, recorded, "its record says") if recorded != found else []
    if expected is not None:
        planned = list(map(_NAME_DTYPE_SHAPE, expected))
        problems += _differences(index, planned, "the plan says") if planned != found else []
    size_bytes = file.stored_bytes if isinstance(file, DecryptedSource) else index.size_bytes
    if size_bytes != record.size_bytes:
        problems.append(f"has {size_bytes} bytes, its record says {record.size_bytes}")
    return problems


def _differences(index: FileIndex, wanted: Iterable[tuple[str, str, Shape]], origin: str) -> list[str]:
    """The differences between a file and the names, dtypes and shapes that it should have, in any order."""
    entries, expected = index.entries, {name: (dtype, shape) for name, dtype, shape in wanted}
    problems = [f"parameter {name!r} is not in it, {origin} it is" for name in expected if name not in entries]
    problems += [f"parameter {name!r} is in it, {origin} it is not" for name in entries if name not in expected]
    for name, (dtype, shape) in expected.items():
        entry = entries.get(name)
        if entry is not None and (entry.dtype.name, entry.shape) != (dtype, shape):
            problems.append(f"parameter {name!r} is {entry.dtype} {list(entry.shape)}, {origin} {dtype} {list(shape)}")
    return problems


def _check_contents(
    file: SourceFile,
    index: FileIndex,
    record: ShardRecord,
    level: VerifyLevel,
    advance: Callable[[int], None],
    starts: Mapping[str, Shape] | None,
    hashes: bool,
) -> RankVerification:
    """Compare all bytes with the digests of the record; files that are read as one are checked one by one."""
    problems: list[str] = []
    heads: list[str] = []
    sums: list[str] = []
    parts: dict[str, str] = {}
    written = {parameter.name: parameter.digest for parameter in record.parameters}
    block_bytes = _READ_BYTES if starts is None else _SUMMED_BYTES
    files = [(each, read_index(each)) for each in file.parts] if isinstance(file, JoinedFile) else [(file, index)]
    for each, its_index in files:
        with running_sha256(hashes) as sha256:
            if starts is None:
                digests = file_digests(each, its_index, block_bytes, advance, sha256=sha256)
            else:
                from reshard.core.verification.shard_fingerprints import FileFingerprints

                fingerprints = FileFingerprints(its_index, starts)
                digests = file_digests(each, its_index, block_bytes, advance, fingerprints.add, sha256)
                parts.update({name: fingerprint_text(part) for name, part in fingerprints.fingerprints().items()})
            sums += [sha256.hexdigest()] if sha256 else []
        if digests.crc is not None and digests.crc != (stored := stored_crc(each, its_index)):
            problems.append(f"wrong CRC-32: the file says {stored}, its contents give {digests.crc}")
        for name, digest in digests.parameters.items():
            if digest != written[name]:
                # digests of an encrypted file's plaintext stay secret
                detail = "" if isinstance(file, DecryptedSource) else f" (digest {digest}, written {written[name]})"
                problems.append(f"parameter {name!r}: its bytes are not those that were written{detail}")
        heads.append(digests.heads)
    if not problems and tuple(heads) != record.heads:
        problems.append("the bytes around the parameters' contents are not those that were written")
    if sums and record.sha256 and not problems:
        problems += _sha256_problems(record.file, record.sha256, sums)
    names = [parameter.name for parameter in record.parameters]
    return RankVerification(
        record.rank,
        level,
        index.content_bytes,
        tuple(problems),
        tuple(parts[name] for name in names) if parts and not problems else (),
        rank_sha256(sums),
    )


def _sha256_problems(file: str, recorded: RankSha256, sums: Sequence[str]) -> Iterator[str]:
    for (path, sha256), found in zip(sha256_by_file([(file, recorded)]).items(), sums, strict=True):
        if found != sha256:
            its = "its SHA-256" if path == file else f"the SHA-256 of {path}"
            yield f"{its} is {found}, not {sha256}, which was recorded"

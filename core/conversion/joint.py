"""The work of a join: a rank's files are copied side by side, checked against the records, and published together.

The SHA-256 of a copy is taken when it is read back, and compared with the one that its part states.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property

import xxhash

from reshard.core.checkpoint.manifest import (
    Manifest,
    ParameterRecord,
    RankSummary,
    ShardRecord,
    SourceFileRecord,
    sha256_by_file,
)
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.joint_records import joint_manifest
from reshard.core.conversion.left_behind import noting_what_is_left
from reshard.core.conversion.part_custody import PartCustody
from reshard.core.conversion.parts import Part
from reshard.core.conversion.run_record import run_record
from reshard.core.conversion.sha256 import listing
from reshard.core.conversion.shared_copies import SharedCopies
from reshard.core.custody.digests import has_sha256, sha256_of
from reshard.core.errors import InputError, SignatureError, TargetError, VerificationError
from reshard.core.layouts.documents import Document
from reshard.core.request.joining import JoinRequest
from reshard.core.runtime.progress import Progress, advancing
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import stoppable, with_retries
from reshard.core.runtime.this_process import peak_memory_bytes
from reshard.core.runtime.threads import in_threads
from reshard.core.signing.current import needed_signer
from reshard.core.storage.copying import copy_file
from reshard.core.storage.joined import joined_name
from reshard.core.storage.publishing import check_room
from reshard.core.storage.read_log import ReadDocument
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_file
from reshard.core.target.joined import JoinedTarget
from reshard.core.target.target import Signing
from reshard.core.target.workspace import Workspace, record_digest
from reshard.core.transfer.reduced_copy import copy_without
from reshard.core.verification.files import verify_rank

_WORKERS = 4
_BLOCK_BYTES = 8 * 2**20


class Joint(Record, dict=True):
    """The joined checkpoint.

    Attributes:
        custodies: of the parts, in their order.
        documents: what was read of the parts besides their files of tensors.
        notes: which copies of shared parameters differ, and whose signatures there are, in sentences.
        started: when the run began, by the monotonic clock.
    """

    request: JoinRequest
    parts: Sequence[Part]
    custodies: Sequence[PartCustody]
    documents: Sequence[ReadDocument]
    shared: SharedCopies
    notes: tuple[str, ...]
    started: float

    @property
    def ranks(self) -> range:
        """Its ranks."""
        return self.parts[0].plan.target_ranks

    @property
    def hashes(self) -> bool:
        """True if the SHA-256 of copies is taken: to be recorded, or to be compared with signatures."""
        return self.request.hashes_target or any(custody.is_signed for custody in self.custodies)

    @cached_property
    def identity(self) -> str:
        """Digest of the parts' identities and of the choice of copies."""
        of_parts = [part.manifest.identity for part in self.parts]
        identities = "+".join([*of_parts, *(f"shared {stage}" for stage in self.shared.taken)])
        return xxhash.xxh3_128_hexdigest(identities.encode())

    def target(self, final: Location) -> JoinedTarget:
        """Return the target of the parts at a place."""
        return JoinedTarget(final, self.parts[0].plan, parts_identity=self.identity)

    def make(self, target: JoinedTarget, progress: Progress) -> Sequence[RankSummary]:
        """Copy, check and publish all files, unless they are there already."""
        for note in self.notes:
            progress.note(note)
        if (done := target.read_committed()) is not None:
            progress.note(f"{target.final}: was joined from these parts already; reshard verify checks it")
            return self._as_asked(target, done).ranks
        with noting_what_is_left(lambda: target), target.claimed(self.ranks) as claim, stoppable() as stop:
            done = None if claim.is_new else target.read_committed()
            if done is not None:  # by another run, a moment ago
                return self._as_asked(target, done).ranks
            workspace = claim.workspace
            workspace.abort_abandoned_uploads([part.plan.file_name(rank) for part in self.parts for rank in self.ranks])
            recorded = workspace.recorded_ranks() & {*self.ranks}
            if recorded:
                progress.note(f"resuming: {len(recorded)} of {len(self.ranks)} ranks are joined already; checking them")
            summaries = [rank for part in self.parts for rank in part.manifest.ranks]
            check_room(workspace.directory, sum(each.size_bytes for each in summaries if each.rank not in recorded))
            progress.begin("copying, checking", 2 * sum(each.size_bytes for each in summaries))
            advance = advancing(progress, stop)

            def join(rank: int) -> _JoinedRank:
                return with_retries(lambda: self._join(workspace, rank, advance), progress.note)

            joined = in_threads(join, self.ranks, _WORKERS, stop)
            self._commit(target, joined, was_empty=claim.was_empty)
        if not self.request.sign and any(each.was_to_sign for each in joined):
            progress.note(
                f"{target.final}: is not signed, although an earlier run that joined files of it was to sign it: this "
                "one has published it without a key. 'reshard sign' signs it"
            )
        return [each.summary for each in joined]

    def _as_asked(self, target: JoinedTarget, done: Manifest) -> Manifest:
        """Return the manifest of parts that were joined before; a TargetError if it lacks what is asked for now."""
        if self.request.sign:
            from reshard.core.custody.finished import existing_signature  # with cryptography

            if not existing_signature(target.final, needed_signer(), may_go=False).is_right(_WORKERS):
                raise TargetError(
                    f"{target.final}: was joined before, and is not signed with this key: 'reshard sign' signs what is "
                    "there; remove it to join the parts again, with statements"
                )
        elif self.request.hashes_target and not has_sha256(done):
            raise TargetError(
                f"{target.final}: was joined before, without SHA-256 and statements: remove it to join the parts again "
                "with them; 'reshard sign' adds SHA-256 and a signature alone"
            )
        return done

    def _commit(self, target: JoinedTarget, joined: Sequence["_JoinedRank"], *, was_empty: bool) -> None:
        """Publish what was joined, with statements and a signature if they are asked for."""
        written = [each.summary.size_bytes for each in joined if not each.is_resumed]
        run = run_record(
            time.monotonic() - self.started,
            read_bytes=sum(written),
            written_bytes=sum(written),
            resumed_ranks=len(joined) - len(written),
            peak_memory_bytes=peak_memory_bytes(),
        )
        sources = [file for each in joined for file in each.sources] if self.request.hashes_target else []
        summaries, notes = [each.summary for each in joined], (*self.notes, *self.shared.notes)
        statements: tuple[Document, ...] = ()
        if self.request.hashes_target:
            from reshard.core.conversion.joint_statements import joint_chain, joint_statements

            chain = joint_chain(target.final, self.custodies)
            notes = (*notes, *chain.notes(withheld=False))
        manifest = joint_manifest(self.parts, self.identity, summaries, sources, run, notes)
        if self.request.hashes_target:
            statements = joint_statements(self.request, manifest, self.custodies, chain, self.documents)
        listed = listing(manifest, statements)
        signing: Signing | None = None
        if self.request.sign:
            from reshard.core.conversion.signing import signing_of  # with cryptography

            signing = signing_of(target, listed, {}, _WORKERS)
        target.commit(listed, statements, was_empty=was_empty, signing=signing)

    def _join(self, workspace: Workspace, rank: int, advance: Callable[[int], None]) -> "_JoinedRank":
        """Copy the files of a rank of all parts, unless an earlier run did.

        A record has a line for every parameter: thousands of them are never in memory together.
        """
        records = [part.record(rank) for part in self.parts]
        parameters = self._parameters(records)
        found = self._found(workspace, rank, parameters)
        joined = found or self._copied(workspace, records, parameters, advance)
        sources = self._sources(records, joined) if self.hashes else ()
        if found:
            advance(2 * sum(record.size_bytes for record in records))
        if not self.request.hashes_target:
            joined = joined.model_copy(update={"sha256": None})
        joined = joined.model_copy(update={"signs": bool(self.request.sign)})
        workspace.write_record(joined)
        summary = RankSummary(
            rank=rank,
            file=joined.file,
            size_bytes=joined.size_bytes,
            record_digest=record_digest(joined),
            sha256=joined.sha256,
        )
        return _JoinedRank(summary, sources, is_resumed=found is not None, was_to_sign=bool(found and found.signs))

    def _sources(self, records: Sequence[ShardRecord], joined: ShardRecord) -> tuple[SourceFileRecord, ...]:
        """Return the parts' files of a rank, with the SHA-256 of their copies; what was not copied whole is read.

        Raises:
            SignatureError, VerificationError: one has another SHA-256 than its part states.
        """
        assert joined.sha256, "it was asked for, and all was read"
        copies = sha256_by_file([(joined.file, joined.sha256)])
        found = []
        for part, custody, record in zip(self.parts, self.custodies, records, strict=True):
            with closing(open_source(_location(part.location, record.file))) as file:
                is_whole = self._is_copied_whole(part, record)
                sha256 = copies[record.file] if is_whole else sha256_of(file, lambda _: None)
            if problem := custody.problem(record.file, sha256):
                raise SignatureError(problem) if custody.is_signed else VerificationError(problem)
            url = str(file.location)
            found.append(SourceFileRecord(url=url, size_bytes=file.size_bytes, version=file.version, sha256=sha256))
        return tuple(found)

    def _is_copied_whole(self, part: Part, record: ShardRecord) -> bool:
        """True unless parameters in a file of a part are taken from another part."""
        return self.shared.of_others(part).isdisjoint(parameter.name for parameter in record.parameters)

    def _parameters(self, records: Sequence[ShardRecord]) -> tuple[ParameterRecord, ...]:
        """Return the parameters of a rank; those that no strategy knows are the same in all parts that have them."""
        parameters: dict[str, ParameterRecord] = {}
        for part, record in zip(self.parts, records, strict=True):
            of_others = self.shared.of_others(part)
            for parameter in record.parameters:
                if parameter.name in of_others:
                    continue
                if parameters.setdefault(parameter.name, parameter) != parameter:
                    raise InputError(
                        f"{part.location}: parameter {parameter.name!r} of rank_{record.rank}, which no strategy "
                        "knows, has other contents than in other parts: they are not of one checkpoint"
                    )
        return tuple(parameters.values())

    def _found(self, workspace: Workspace, rank: int, parameters: tuple[ParameterRecord, ...]) -> ShardRecord | None:
        """Return the record of a rank that an earlier run joined; None if there is none, or its files are wrong."""
        try:
            record = workspace.find_record(rank)
        except TargetError:  # damaged
            return None
        if record is None or record.file != self._file_name(rank) or record.parameters != parameters:
            return None
        found = verify_rank(workspace.directory, record, VerifyLevel.CHECKSUM, hashes=self.hashes)
        return None if found.problems else record.model_copy(update={"sha256": record.sha256 or found.sha256})

    def _copied(
        self,
        workspace: Workspace,
        records: Sequence[ShardRecord],
        parameters: tuple[ParameterRecord, ...],
        advance: Callable[[int], None],
    ) -> ShardRecord:
        """Copy the files of a rank, and check them as one against the parts' records; return its record."""
        rank = records[0].rank
        files = []
        for part, record in zip(self.parts, records, strict=True):
            left_out = frozenset() if self._is_copied_whole(part, record) else self.shared.of_others(part)
            files.append(_copied_file(part, record, workspace.directory, left_out))
            advance(record.size_bytes)
        joined = ShardRecord(
            identity=self.identity,
            rank=rank,
            file=self._file_name(rank),
            size_bytes=sum(file.size_bytes for file in files),
            copy_of=None,
            source_ranks=tuple(sorted({source for record in records for source in record.source_ranks})),
            read_bytes=sum(record.read_bytes for record in records),
            seconds=sum(record.seconds for record in records),
            verified=VerifyLevel.CHECKSUM,
            heads=tuple(digest for file in files for digest in file.heads),
            parameters=parameters,
        )
        found = verify_rank(workspace.directory, joined, VerifyLevel.CHECKSUM, advance=advance, hashes=self.hashes)
        if found.problems:
            advice = "reshard verify shows whether a part itself is damaged"
            raise VerificationError("\n".join([*found.problems, advice]))
        return joined.model_copy(update={"sha256": found.sha256})

    def _file_name(self, rank: int) -> str:
        first = self.parts[0].plan
        if len(self.parts) == 1:
            return first.file_name(rank)
        suffix = f".{first.inputs.format}"
        stem = first.file_name(rank).removesuffix(f"{first.part}{suffix}")
        return joined_name(stem, [part.stage for part in self.parts], f".{first.inputs.format}")


class _JoinedRank(Record):
    """A rank whose files are joined.

    Attributes:
        sources: the parts' files with their SHA-256, if it was taken.
        is_resumed: an earlier run has joined it.
        was_to_sign: that run was to sign the target.
    """

    summary: RankSummary
    sources: tuple[SourceFileRecord, ...]
    is_resumed: bool
    was_to_sign: bool


class _CopiedFile(Record):
    """A copied file's size, and the digests of the bytes around its contents."""

    size_bytes: int
    heads: tuple[str, ...]


def _copied_file(part: Part, record: ShardRecord, directory: Location, left_out: frozenset[str]) -> _CopiedFile:
    """Copy a part's file of a rank, without some of its parameters."""
    source, target = _location(part.location, record.file), _location(directory, record.file)
    if not left_out:
        _copy(source, target)
        return _CopiedFile(record.size_bytes, record.heads)
    reduced = copy_without(source, target, part.plan, record.rank, left_out)
    return _CopiedFile(reduced.size_bytes, (reduced.heads,))


def _copy(source: Location, target: Location) -> None:
    """Copy a file, perhaps to another storage."""
    if source.store.is_same(target.store):
        copy_file(source, target)
        return
    with closing(open_source(source)) as file, write_file(target) as output:
        for start in range(0, file.size_bytes, _BLOCK_BYTES):
            block = memoryview(bytearray(min(_BLOCK_BYTES, file.size_bytes - start)))
            file.read_into(start, block)
            output.write(block)


def _location(directory: Location, file: str) -> Location:
    return directory.child(*file.split("/"))

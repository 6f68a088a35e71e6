"""Joins parts, stages converted one by one and perhaps on different machines, into one checkpoint, atomically.

Each part is a finished conversion with its own manifest and records. All parts have the same target strategy, and
together contain all of its parameters. The files of each rank are copied side by side, checked against the records,
and published with one manifest, in which the files of a rank count as one. A parameter that several stages share is
written once, from the copy of one part. Ranks that an interrupted run has joined are checked, and not copied again.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from reshard.core.conversion.custody_summary import custody_of
from reshard.core.conversion.joint import Joint
from reshard.core.conversion.part_custody import custody_of_parts
from reshard.core.conversion.parts import check_together, read_part
from reshard.core.conversion.shared_copies import FAIL, chosen_copies, compare_copies
from reshard.core.custody.summary import CustodySummary
from reshard.core.reports.blocks import Block, Facts, Line
from reshard.core.reports.report import Report
from reshard.core.request.joining import JoinRequest
from reshard.core.request.pem_files import read_pem
from reshard.core.runtime.named_values import Resolver
from reshard.core.runtime.progress import Progress, SilentProgress, reporting_to
from reshard.core.runtime.retry import counting_retries
from reshard.core.runtime.wording import counted, seconds_text, size_text
from reshard.core.signing.current import SignerNames, named_signer
from reshard.core.signing.trusted import named_trusted
from reshard.core.storage.named_options import named_storages
from reshard.core.storage.placement import check_apart
from reshard.core.storage.read_log import ReadLog, logging_reads
from reshard.core.storage.urls import parse_url
from reshard.core.target.joined import check_joinable


class JoinReport(Report):
    """The joined checkpoint: its pipeline stages, ranks, parameters of the strategy, and bytes.

    Attributes:
        custody: SHA-256, statements and signature, if they were asked for.
    """

    target: str
    stages: tuple[int, ...]
    ranks: int
    parameters: int
    size_bytes: int
    seconds: float
    custody: CustodySummary | None = None

    def blocks(self) -> Iterator[Block]:
        """Yield its content: a line, and facts on its custody."""
        stages = ", ".join(map(str, self.stages))
        yield Line(
            f"{self.target}: the parts of stages {stages}, {counted(self.parameters, 'parameter')} on "
            f"{counted(self.ranks, 'rank')}, {size_text(self.size_bytes)} copied and checked in "
            f"{seconds_text(self.seconds)}"
        )
        if self.custody:
            yield Facts(list(self.custody.facts))


@contextmanager
def resources_to_join(request: JoinRequest, resolvers: Mapping[str, Resolver] | None = None) -> Iterator[None]:
    """Provide the storage and the keys of a request inside the block.

    Raises:
        InputError: a name cannot be resolved, the key is wrong, or the certificates cannot be read.
        StorageError: a storage does not answer.
    """
    urls = (*request.parts, request.target, request.sign_certificate, request.require_signed_by)
    signer = SignerNames(request.sign, request.sign_passphrase, request.sign_certificate)
    storages = named_storages([(url, request.storage) for url in urls], resolvers)
    with (
        storages,
        named_signer(signer, resolvers, partial(read_pem, "sign_certificate")),
        named_trusted(request.require_signed_by, resolvers),
    ):
        yield


def join_parts(request: JoinRequest, progress: Progress | None = None) -> JoinReport:
    """Copy parts into one checkpoint; the parts stay as they are.

    Shared parameters, whose copies may differ between parts: `fail`, take the `first` stage's copy, or the copy of the
    stage of this number. Equal copies are taken from the first stage, or the numbered one.

    Raises:
        InputError: the parts do not make one target, some are missing, or the target is occupied.
        SignatureError: a part is not as it was signed, or not signed as is required.
        VerificationError: a copied file differs from the part's record, or has another SHA-256 than the part states.
        StorageError: reading or writing failed, or there is no room.
    """
    started = time.monotonic()
    progress = progress or SilentProgress()
    final = parse_url(request.target)
    check_joinable(final)
    with logging_reads(ReadLog()) as log:
        found = sorted((read_part(parse_url(url)) for url in request.parts), key=lambda part: part.stage)
    for part in found:
        check_apart(part.location, final)
    check_together(found)
    with reporting_to(progress), counting_retries():
        documents = log.documents if log else ()
        custodies = custody_of_parts(request, found, documents)
        shared = chosen_copies(found, request.shared_parameters)
        note = compare_copies(found, shared, fails=request.shared_parameters == FAIL)
        notes = (*([note] if note else []), *(note for custody in custodies for note in custody.notes))
        joint = Joint(request, found, custodies, documents, shared, notes, started)
        target = joint.target(final)
        ranks = joint.make(target, progress)
        custody = custody_of(target, signs=bool(request.sign)) if request.hashes_target else None
    return JoinReport(
        target=str(final),
        stages=tuple(part.stage for part in found),
        ranks=len(joint.ranks),
        parameters=len(set().union(*(part.parameters for part in found))),
        size_bytes=sum(rank.size_bytes for rank in ranks),
        seconds=round(time.monotonic() - started, 3),
        custody=custody,
    )

"""The error that a run ends with if target ranks failed, or source tensors do not have their CRC."""

from collections.abc import Iterator, Mapping

from reshard.core.conversion.rank_work import rank_or_file
from reshard.core.conversion.report import target_kind
from reshard.core.conversion.session import Session
from reshard.core.errors import (
    CastError,
    CheckpointError,
    ConversionError,
    InputError,
    ReshardError,
    StorageError,
    VerificationError,
)
from reshard.core.plan.plan import ConversionPlan
from reshard.core.text.options import option
from reshard.core.text.printing import listed_lines


def check_crcs(session: Session) -> None:
    """Check the CRCs of source tensors that were read; target ranks made from a damaged one lose their records.

    A rerun repeats these ranks: perhaps the file is right, and was not read right.

    Raises:
        CheckpointError: some differ; the message lists them.
    """
    problems = session.crcs.problems()
    if not problems:
        return
    if not session.target.is_committed():
        for rank in sorted(session.workspace.recorded_ranks()):
            if not problems.keys().isdisjoint(_places_read(session.plan, rank)):
                session.workspace.remove_record(rank)
    what = "\n  ".join(listed_lines(list(dict.fromkeys(problems.values()))))
    raise CheckpointError(
        f"{what}. {session.workspace.directory} holds what was made of the rest: get the damaged files again, and "
        f"begin again with {option('overwrite', True)}"
    )


def _places_read(plan: ConversionPlan, rank: int) -> Iterator[tuple[str, str]]:
    """The source tensors that a target rank is made from: URL of the file, and name."""
    records = plan.inputs.catalog.records
    for each in plan.rank_plan(plan.copies.get(rank, rank)).parameters:
        for read in each.reads:
            yield records[read.source_rank].location, each.sources[read.source].name


def raise_failures(failures: Mapping[int, ReshardError], session: Session) -> None:
    """Raise one error for all ranks that failed, of the kind that most concerns the user; none if none failed."""
    if not failures:
        return
    plan, kind = session.plan, target_kind(session.plan)
    lines = [f"{rank_or_file(plan, rank)}: {error.marked}" for rank, error in sorted(failures.items())]
    # a copy fails as its primary does
    causes = [error for rank, error in failures.items() if plan.copies.get(rank) not in failures]
    # values stay too large, however often they are cast
    is_lasting = any(isinstance(error, CastError) for error in causes)
    advice = "" if is_lasting else "; rerun the command to retry only these"
    message = (
        f"{len(failures)} of {len(session.ranks)} target {kind}s failed{advice} "
        f"({session.workspace.directory} holds what is done)\n  " + "\n  ".join(lines)
    )
    if all(isinstance(error, InputError) for error in causes):
        raise InputError(message)
    if any(isinstance(error, VerificationError) for error in failures.values()):
        raise VerificationError(message)
    raise ConversionError(message) from next(
        (error for error in failures.values() if isinstance(error, StorageError)), None
    )

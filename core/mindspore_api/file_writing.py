"""Writes ranks of plans into files of any names, which appear when all of them are whole and checked."""

import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import VerificationError
from reshard.core.mindspore_api.paths import make_directory
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.budget import Budget, build_budget, open_files_limit
from reshard.core.runtime.frozen import frozen
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.urls import Location, parse_url
from reshard.core.transfer.file_blocks import expected_entries
from reshard.core.transfer.writer import transform_ranks
from reshard.core.verification.files import verify_rank

MEMORY_BYTES = 2**31
"""For the buffers of all workers together, as a conversion has by default."""


@frozen
class PlannedFile:
    """A rank of a plan, and the path of its file."""

    plan: ConversionPlan
    rank: int
    path: str


def write_files(files: Sequence[PlannedFile], directory: str, workers: int) -> None:
    """Write files concurrently into a folder in `directory`, then rename them to their paths on its file system.

    No file appears if writing or checking fails. If renaming fails, some may.
    """
    target = parse_url(directory)
    with mapped_errors(target, "make a directory in it"):
        make_directory(directory)
        work = tempfile.mkdtemp(prefix=".reshard-", dir=directory)
    try:
        budget = build_budget(MEMORY_BYTES, open_files_limit(), workers)
        places = [parse_url(os.path.join(work, str(number))) for number in range(len(files))]
        prefetch = max(1, min(budget.max_prefetch, budget.workers // max(1, len(files))))
        with ThreadPoolExecutor(max(1, budget.workers // prefetch), thread_name_prefix="reshard") as pool:
            records = list(pool.map(lambda file, place: _write(file, place, budget, prefetch), files, places))
        for file, place, record in zip(files, places, records, strict=True):
            with mapped_errors(parse_url(file.path), "give it the finished file"):
                give_name(place.child(record.file).path, file.path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def give_name(finished: str, path: str) -> None:
    """Rename a finished file, replacing what is there; like MindSpore's, it can be read by its owner only."""
    make_directory(os.path.dirname(path))
    os.chmod(finished, stat.S_IRUSR)
    os.replace(finished, path)


def _write(file: PlannedFile, place: Location, budget: Budget, prefetch: int) -> ShardRecord:
    [record] = transform_ranks(
        file.plan,
        (file.rank,),
        place,
        identity="",
        budget=budget,
        prefetch=prefetch,
        advance=lambda _: None,
    )
    expected = expected_entries(file.plan, file.plan.rank_plan(file.rank))
    found = verify_rank(place, record, VerifyLevel.CHECKSUM, expected=expected)
    if found.problems:
        raise VerificationError(f"{file.path}: " + "; ".join(found.problems))
    return record

"""Writes ranks of plans into files of any names, and reads ranks into memory.

Local files appear when all of them are whole and checked; remote ones each when it is whole.
"""

import os
import stat
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.load import LoadPlan
from reshard.core.errors import CheckpointError, VerificationError
from reshard.core.files.numpy_values import Value
from reshard.core.mindspore_api.paths import make_directory
from reshard.core.options.validation import build_options
from reshard.core.plan.matching import foreign_parameters, holding_file
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.planning import PlanRequest
from reshard.core.runtime.budget import Budget, build_budget, open_files_limit, upload_part_bytes
from reshard.core.runtime.records import Record
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.transfer.file_blocks import expected_entries
from reshard.core.transfer.source_files import are_remote
from reshard.core.transfer.writer import transform_ranks
from reshard.core.verification.files import verify_rank

_MEMORY_BYTES = 2**31
"""For the buffers of all workers together, as a conversion has by default."""


class PlannedFile(Record):
    """A rank of a plan, and the path of its file below a directory."""

    plan: ConversionPlan
    rank: int
    path: str


def write_files(files: Sequence[PlannedFile], directory: Location, workers: int) -> None:
    """Write files into a directory and check them, concurrently.

    Local ones are written into a folder in it first: none appears if writing or checking fails. If renaming fails,
    some may.
    """
    if not directory.store.renames:
        _write_all(files, directory, directory, workers)
        return
    with mapped_errors(directory, "make a directory in it"):
        make_directory(directory.path)
        folder = tempfile.TemporaryDirectory(prefix=".reshard-", dir=directory.path, ignore_cleanup_errors=True)
    with folder as working:
        _write_all(files, parse_url(working), directory, workers)
        for file in files:
            path = os.path.join(directory.path, file.path)
            with mapped_errors(parse_url(path), "give it the finished file"):
                give_name(os.path.join(working, file.path), path)


def give_name(finished: str, path: str) -> None:
    """Rename a finished file, replacing what is there; like MindSpore's, it can be read by its owner only."""
    make_directory(os.path.dirname(path))
    os.chmod(finished, stat.S_IRUSR)
    os.replace(finished, path)


def read_values(plan: ConversionPlan, rank: int) -> dict[str, Value]:
    """Read a rank's parameters.

    Raises:
        CheckpointError: there are no arrays of a parameter's elements.
    """
    for name, dtype in foreign_parameters(plan.match).items():
        file = holding_file(plan.inputs.catalog, name)
        raise CheckpointError(f"{file}: parameter {name!r}: {dtype} cannot be read as an array")
    request = build_options(PlanRequest, source=plan.inputs.catalog.url)
    return dict(LoadPlan(request, plan, copy_context()).load(rank))


def _write_all(files: Sequence[PlannedFile], working: Location, final: Location, workers: int) -> None:
    """Write and check files in a working directory; their `final` one is named in errors."""
    budget = _budget(files, working, workers)
    prefetch = max(1, min(budget.max_prefetch, budget.workers // max(1, len(files))))

    def write(file: PlannedFile) -> None:
        problems = _written(file, working, budget, prefetch)
        if problems:
            names = file.path.split("/")
            remove_file(working.child(*names))
            raise VerificationError(f"{final.child(*names)}: {'; '.join(problems)}")

    with ThreadPoolExecutor(max(1, budget.workers // prefetch), thread_name_prefix="reshard") as pool:
        for _ in pool.map(write, files):
            pass


def _budget(files: Sequence[PlannedFile], directory: Location, workers: int) -> Budget:
    part_bytes = 0
    if not directory.store.is_near:
        largest_bytes = max(file.plan.rank_plan(file.rank).size_bytes for file in files)
        part_bytes = upload_part_bytes(_MEMORY_BYTES, largest_bytes)
    remote_source = any(are_remote(file.plan) for file in files)
    return build_budget(_MEMORY_BYTES, open_files_limit(), workers, part_bytes=part_bytes, remote_source=remote_source)


def _written(file: PlannedFile, directory: Location, budget: Budget, prefetch: int) -> Sequence[str]:
    """Write a file, read it back, and return what is wrong with it."""
    plan = file.plan.with_file_names({file.rank: file.path})
    [record] = transform_ranks(
        plan, (file.rank,), directory, identity="", budget=budget, prefetch=prefetch, advance=lambda _: None
    )
    expected = expected_entries(plan, plan.rank_plan(file.rank))
    return verify_rank(directory, record, VerifyLevel.CHECKSUM, expected=expected).problems

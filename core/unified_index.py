"""The index of a unified target: made from the plan, written with the manifest, and checked like the files it is of."""

from dataclasses import dataclass

import xxhash

from core.checkpoint.weight_maps import dump_weight_map
from core.dtypes import TEXT
from core.errors import CheckpointError, StorageError, is_transient
from core.manifest import IndexSummary
from core.plan import ConversionPlan
from core.storage.files import read_small_file
from core.storage.urls import Location
from core.unified_names import OTHERS_NAME, index_name


@dataclass(frozen=True)
class IndexFile:
    """The index's name, below the target, and its bytes."""

    name: str
    data: bytes

    @property
    def summary(self) -> IndexSummary:
        """It, as the manifest has it."""
        return IndexSummary(file=self.name, size_bytes=len(self.data), digest=xxhash.xxh3_128_hexdigest(self.data))


def index_of(plan: ConversionPlan) -> IndexFile | None:
    """The index of a plan's target; None if it has none.

    It is of tensors: texts stand in files' metadata, where no loader looks for them.
    """
    files = plan.match.files
    name = index_name(plan.inputs.unified.naming, len(files)) if plan.inputs.unified else ""
    if not name:
        return None
    weights: dict[str, str] = {}
    total_bytes = 0
    for rank in plan.target_ranks:
        if files[rank] != OTHERS_NAME:  # which MindSpore looks for by itself
            tensors = [each for each in plan.rank_plan(rank).parameters if each.dtype is not TEXT]
            weights |= {each.name: files[rank] for each in tensors}
            total_bytes += sum(each.size_bytes for each in tensors)
    return IndexFile(name, dump_weight_map(weights, total_bytes))


def index_problem(directory: Location, index: IndexSummary) -> str | None:
    """What is wrong with the index in a directory, in a sentence; None if nothing is.

    Raises:
        StorageError: a transient failure to read it.
    """
    location = directory.child(index.file)
    try:
        data = read_small_file(location, max(index.size_bytes, 1))
    except CheckpointError:
        return f"{location}: is larger than what was written, which has {index.size_bytes} bytes"
    except StorageError as error:
        if is_transient(error):
            raise
        return str(error)
    if len(data) != index.size_bytes or xxhash.xxh3_128_hexdigest(data) != index.digest:
        return f"{location}: is not the index that was written"
    return None

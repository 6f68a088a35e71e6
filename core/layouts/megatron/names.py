"""Names of folders and files in Megatron's checkpoints of one file for each rank.

latest_checkpointed_iteration.txt     the tracker: a number, or `release`; written last
iter_0000003/, or release/
  mp_rank_00_001_003/                 ranks in tensor, pipeline and expert parallelism, the latter two if above 1
    model_optim_rng.pt                the model, and the optimizer unless it is distributed
    distrib_optim.pt                  the distributed optimizer
"""

import re
from collections.abc import Sequence

from reshard.core.layouts.tracker import Tracker
from reshard.core.runtime.records import Record

MODEL_NAME, OPTIMIZER_NAME = "model_optim_rng.pt", "distrib_optim.pt"
RELEASE = "release"
"""Tracker and directory of a checkpoint that is not of a training's iteration; it counts as iteration 0."""
TRACKER = Tracker(problem="names no iteration", words={RELEASE: 0})
_ITERATION = re.compile(r"iter_(\d{7,18})", re.ASCII)
_RANK_FOLDER = re.compile(r"mp_rank_(\d{2,6})(?:_(\d{3,6}))?(?:_(\d{3,6}))?", re.ASCII)


class RankPosition(Record, order=True):
    """Ranks in tensor, pipeline and expert parallelism."""

    tensor: int
    pipeline: int
    expert: int


def is_rank_folder(name: str) -> bool:
    """True for the name of a rank's folder."""
    return _RANK_FOLDER.fullmatch(name) is not None


def is_rank_path(path: str) -> bool:
    """True for the path of a rank's model below a checkpoint's directory."""
    folder, _, name = path.partition("/")
    return is_rank_folder(folder) and name == MODEL_NAME


def is_iteration(names: Sequence[str]) -> bool:
    """True if names are those of one iteration's directory."""
    return any(map(is_rank_folder, names))


def rank_folder_name(position: RankPosition, pipeline_size: int, expert_size: int) -> str:
    """Return the name of a rank's folder in a training of these sizes."""
    name = f"mp_rank_{position.tensor:02d}"
    if pipeline_size > 1:
        name += f"_{position.pipeline:03d}"
    return f"{name}_{position.expert:03d}" if expert_size > 1 else name


def parse_rank_folder(name: str, pipeline_size: int, expert_size: int) -> RankPosition | None:
    """Return the ranks in a folder's name in a training of these sizes; None if it has no such folder."""
    match = _RANK_FOLDER.fullmatch(name)
    if match is None:
        return None
    tensor, *others = [int(digits) for digits in match.groups() if digits is not None]
    if len(others) != (pipeline_size > 1) + (expert_size > 1):
        return None
    pipeline = others.pop(0) if pipeline_size > 1 else 0
    position = RankPosition(tensor, pipeline, others[0] if others else 0)
    return position if rank_folder_name(position, pipeline_size, expert_size) == name else None


def iteration_names(names: Sequence[str]) -> dict[int, str]:
    """Return the iterations among names, ascending: number -> name; a release counts as 0."""
    found = {0: RELEASE} if RELEASE in names else {}
    found |= {int(match[1]): name for name in names if (match := _ITERATION.fullmatch(name))}
    return dict(sorted(found.items()))


def iteration_name(number: int) -> str:
    """Return the name of an iteration's directory; 0 is a release."""
    return f"iter_{number:07d}" if number else RELEASE


def parse_iteration(name: str) -> int | None:
    """Return the number in the name of an iteration's directory; None for other names."""
    if name == RELEASE:
        return 0
    match = _ITERATION.fullmatch(name)
    return int(match[1]) if match else None

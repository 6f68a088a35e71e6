"""MindSpore's `communication`: the rank of this process and the number of ranks, as the launcher sets them.

Nothing is sent between processes here: `init` and `release` have no effect.
"""

from reshard.core.mindspore_api.environment import rank_in_environment, size_in_environment

_BACKENDS = ("hccl", "nccl", "mccl")
_WORLD = "hccl_world_group"


def init(backend_name: str | None = None) -> None:
    """Accept the name of a backend.

    Raises:
        TypeError: the name is not a string.
        RuntimeError: MindSpore has no such backend.
    """
    if backend_name is None:
        return
    if not isinstance(backend_name, str):
        raise TypeError(f"'backend_name' has to be a string, not {type(backend_name)}")
    if backend_name not in _BACKENDS:
        raise RuntimeError(f"'backend_name' has to be one of {', '.join(_BACKENDS)}, not {backend_name!r}")


def release() -> None:
    """Do nothing."""


def get_rank(group: str = _WORLD) -> int:
    """Return the rank of this process in the job, whatever the group: `RANK_ID` or mpirun's; 0 without a launcher.

    Raises:
        TypeError: the group is not a string.
        ValueError: the environment's rank is not a number.
    """
    _check_group(group)
    return rank_in_environment() or 0


def get_group_size(group: str = _WORLD) -> int:
    """Return the number of ranks of the job, whatever the group: `RANK_SIZE` or mpirun's; 1 without a launcher.

    Raises:
        TypeError: the group is not a string.
        ValueError: the environment's number of ranks is not a number, or does not fit the rank.
    """
    _check_group(group)
    return size_in_environment()


def _check_group(group: object) -> None:
    if not isinstance(group, str):
        raise TypeError(f"'group' has to be a string, not {type(group)}")

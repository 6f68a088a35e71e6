"""What the launcher of a job says in the environment: this process's rank, and the number of ranks."""

import os

_RANK_VARIABLES = ("RANK_ID", "OMPI_COMM_WORLD_RANK")
_SIZE_VARIABLES = ("RANK_SIZE", "OMPI_COMM_WORLD_SIZE")
_MAX_DIGITS = 10


def rank_in_environment() -> int | None:
    """Return the rank from `RANK_ID`, which MindSpore's launchers set, or from mpirun's variable; None without one.

    Raises:
        ValueError: the variable is not a number.
    """
    return _number_of(_RANK_VARIABLES, "a rank")


def size_in_environment() -> int:
    """Return the number of ranks from `RANK_SIZE` or mpirun's variable; 1 without one.

    Raises:
        ValueError: a variable is not a number, or the rank is not below the number of ranks.
    """
    rank, size = rank_in_environment() or 0, _number_of(_SIZE_VARIABLES, "a number of ranks")
    if size is None and rank:
        raise ValueError(f"the environment says rank {rank}, but not the number of ranks: set RANK_SIZE")
    if size is not None and rank >= size:
        raise ValueError(f"the environment says rank {rank} of {size} ranks: RANK_ID has to be below RANK_SIZE")
    return size or 1


def rank_variable() -> str:
    """Return the name of the variable that holds the rank, for messages."""
    return next((name for name in _RANK_VARIABLES if name in os.environ), _RANK_VARIABLES[0])


def _number_of(variables: tuple[str, ...], meaning: str) -> int | None:
    name = next((name for name in variables if name in os.environ), None)
    if name is None:
        return None
    text = os.environ[name]
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise ValueError(f"the environment's {name} is {text!r}, not {meaning}")
    return int(text)

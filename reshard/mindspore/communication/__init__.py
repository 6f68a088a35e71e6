"""`mindspore.communication`: this process's rank and the number of ranks, as the launcher sets them."""

from reshard.core.mindspore_api.communication import get_group_size, get_rank, init, release

__all__ = ["get_group_size", "get_rank", "init", "release"]

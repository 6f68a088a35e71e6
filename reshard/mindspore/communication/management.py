"""`mindspore.communication.management`: the functions of `mindspore.communication` by their older path."""

from reshard.core.mindspore_api.communication import get_group_size, get_rank, init, release

__all__ = ["get_group_size", "get_rank", "init", "release"]

"""`sync_pipeline_shared_parameters`: files need it as little as networks of one stage do."""

import sys
from typing import Any

from reshard.core.mindspore_api.arguments import is_network
from reshard.core.mindspore_api.cells import is_cell
from reshard.core.mindspore_api.context import get_auto_parallel_context


def sync_pipeline_shared_parameters(net: Any) -> None:
    """Do nothing for a network of one pipeline stage, whose parameters are shared with no other.

    A Cell is left to MindSpore, where MindSpore is imported.

    Raises:
        TypeError: `net` is not a network.
        RuntimeError: `pipeline_stages` is 2 or more, and `net` no Cell: only MindSpore sends parameters between ranks.
    """
    if is_cell(net):
        sys.modules["mindspore.parallel"].sync_pipeline_shared_parameters(net)
        return
    if not is_network(net):
        raise TypeError(f"'net' has to be a network, not {type(net)}")
    stages = get_auto_parallel_context("pipeline_stages")
    if stages >= 2:
        raise RuntimeError(
            f"'pipeline_stages' is {stages}, and arrays are not sent between ranks here: call MindSpore's "
            "sync_pipeline_shared_parameters with the compiled Cell. Converted files need no synchronization: all "
            "stages get the same values of a shared parameter, and the option 'shared_parameters' of reshard.convert "
            "says whose if the source's stages differ"
        )

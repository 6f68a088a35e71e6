from types import SimpleNamespace

import numpy as np
import pytest

from reshard import mindspore


def test_networks_of_one_stage_share_nothing() -> None:
    mindspore.reset_auto_parallel_context()
    for network in ({"w": np.zeros(2)}, SimpleNamespace(state_dict=dict)):
        for module in (mindspore, mindspore.parallel):
            module.sync_pipeline_shared_parameters(network)


@pytest.mark.parametrize("wrong", [None, 5, "net", [1]])
def test_what_is_no_network_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="'net' has to be a network, not <class"):
        mindspore.sync_pipeline_shared_parameters(wrong)


def test_several_stages_are_refused_with_what_to_do() -> None:
    mindspore.set_auto_parallel_context(pipeline_stages=2)
    try:
        with pytest.raises(RuntimeError, match="'pipeline_stages' is 2, .* option 'shared_parameters' of reshard.conv"):
            mindspore.sync_pipeline_shared_parameters({"w": np.zeros(2)})
    finally:
        mindspore.reset_auto_parallel_context()

"""`mindspore.train.serialization`: checkpoint files."""

from reshard.core.mindspore_api.distributed import load_distributed_checkpoint
from reshard.core.mindspore_api.file_formats import ckpt_to_safetensors, safetensors_to_ckpt
from reshard.core.mindspore_api.layouts import (
    build_searched_strategy,
    get_ckpt_path_with_strategy,
    merge_sliced_parameter,
)
from reshard.core.mindspore_api.loading import load_checkpoint
from reshard.core.mindspore_api.networks import load_param_into_net
from reshard.core.mindspore_api.saving import save_checkpoint
from reshard.core.mindspore_api.strategies import restore_group_info_list

__all__ = [
    "build_searched_strategy",
    "ckpt_to_safetensors",
    "get_ckpt_path_with_strategy",
    "load_checkpoint",
    "load_distributed_checkpoint",
    "load_param_into_net",
    "merge_sliced_parameter",
    "restore_group_info_list",
    "safetensors_to_ckpt",
    "save_checkpoint",
]

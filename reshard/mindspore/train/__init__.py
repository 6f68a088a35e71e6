"""`mindspore.train`: saving during training, and checkpoint files."""

from reshard.mindspore.train.callback import CheckpointConfig, ModelCheckpoint, RunContext
from reshard.mindspore.train.serialization import (
    build_searched_strategy,
    ckpt_to_safetensors,
    get_ckpt_path_with_strategy,
    load_checkpoint,
    load_distributed_checkpoint,
    load_param_into_net,
    merge_sliced_parameter,
    restore_group_info_list,
    safetensors_to_ckpt,
    save_checkpoint,
)

__all__ = [
    "CheckpointConfig",
    "ModelCheckpoint",
    "RunContext",
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

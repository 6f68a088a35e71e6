"""MindSpore's functions for checkpoints and strategies, without MindSpore: the same names, arguments and exceptions.

A script that has no network works with its imports replaced: `import reshard.mindspore as mindspore`. numpy arrays take
the place of MindSpore's Parameters. Intended differences: docs/reference/mindspore.md.
"""

from reshard.core.mindspore_api.checkpoint_config import CheckpointConfig
from reshard.core.mindspore_api.checkpoint_manager import CheckpointManager
from reshard.core.mindspore_api.context import (
    GRAPH_MODE,
    PYNATIVE_MODE,
    ParallelMode,
    get_auto_parallel_context,
    get_context,
    get_seed,
    reset_auto_parallel_context,
    set_auto_parallel_context,
    set_context,
    set_device,
    set_seed,
)
from reshard.core.mindspore_api.distributed import load_distributed_checkpoint
from reshard.core.mindspore_api.file_formats import ckpt_to_safetensors, safetensors_to_ckpt
from reshard.core.mindspore_api.layouts import (
    build_searched_strategy,
    get_ckpt_path_with_strategy,
    merge_sliced_parameter,
)
from reshard.core.mindspore_api.loading import load_checkpoint, load_segmented_checkpoints
from reshard.core.mindspore_api.model_checkpoint import ModelCheckpoint, RunContext
from reshard.core.mindspore_api.networks import load_param_into_net
from reshard.core.mindspore_api.pipeline import sync_pipeline_shared_parameters
from reshard.core.mindspore_api.saving import save_checkpoint
from reshard.core.mindspore_api.strategies import merge_pipeline_strategys, restore_group_info_list
from reshard.core.mindspore_api.transforming import (
    convert_checkpoint_by_rank,
    convert_checkpoints,
    rank_list_for_convert,
    rank_list_for_transform,
    transform_checkpoint_by_rank,
    transform_checkpoints,
)
from reshard.core.mindspore_api.unifying import unified_safetensors
from reshard.mindspore import communication, context, parallel, train

__all__ = [
    "GRAPH_MODE",
    "PYNATIVE_MODE",
    "CheckpointConfig",
    "CheckpointManager",
    "ModelCheckpoint",
    "ParallelMode",
    "RunContext",
    "build_searched_strategy",
    "ckpt_to_safetensors",
    "communication",
    "context",
    "convert_checkpoint_by_rank",
    "convert_checkpoints",
    "get_auto_parallel_context",
    "get_ckpt_path_with_strategy",
    "get_context",
    "get_seed",
    "load_checkpoint",
    "load_distributed_checkpoint",
    "load_param_into_net",
    "load_segmented_checkpoints",
    "merge_pipeline_strategys",
    "merge_sliced_parameter",
    "parallel",
    "rank_list_for_convert",
    "rank_list_for_transform",
    "reset_auto_parallel_context",
    "restore_group_info_list",
    "safetensors_to_ckpt",
    "save_checkpoint",
    "set_auto_parallel_context",
    "set_context",
    "set_device",
    "set_seed",
    "sync_pipeline_shared_parameters",
    "train",
    "transform_checkpoint_by_rank",
    "transform_checkpoints",
    "unified_safetensors",
]

"""`mindspore.parallel`: strategies, and checkpoints from one to another."""

from reshard.core.mindspore_api.distributed import load_distributed_checkpoint
from reshard.core.mindspore_api.layouts import build_searched_strategy, merge_sliced_parameter
from reshard.core.mindspore_api.loading import load_segmented_checkpoints
from reshard.core.mindspore_api.pipeline import sync_pipeline_shared_parameters
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

__all__ = [
    "build_searched_strategy",
    "convert_checkpoint_by_rank",
    "convert_checkpoints",
    "load_distributed_checkpoint",
    "load_segmented_checkpoints",
    "merge_pipeline_strategys",
    "merge_sliced_parameter",
    "rank_list_for_convert",
    "rank_list_for_transform",
    "restore_group_info_list",
    "sync_pipeline_shared_parameters",
    "transform_checkpoint_by_rank",
    "transform_checkpoints",
    "unified_safetensors",
]

"""Lays out a rank's file: the tree that Megatron-Core saves with torch.save, and the tensors in it."""

from collections.abc import Sequence

from reshard.core.files.model import FilePlan, OutputEntry
from reshard.core.files.torch_file_writing import TensorPlace, plan_torch_file
from reshard.core.layouts.megatron.args_writing import model_args, namespace, parallel_args
from reshard.core.layouts.megatron.model_order import order_in_model
from reshard.core.layouts.megatron.names import MODEL_NAME
from reshard.core.layouts.megatron.optimizer_places import optimized_parameters
from reshard.core.layouts.megatron.optimizer_writing import SCHEDULES, optimizer_tree
from reshard.core.layouts.megatron.shapes import file_shape, model_shape
from reshard.core.layouts.megatron.spots import ModelPlacing, parse_name, placing_of
from reshard.core.layouts.megatron.target import MegatronTarget
from reshard.core.layouts.torch_dist.common import source_args, taken_over
from reshard.core.plan.model import ParameterMatch

_VERSION = 3.0


def plan_rank_file(
    target: MegatronTarget, rank: int, match: ParameterMatch, entries: Sequence[OutputEntry]
) -> FilePlan:
    """Lay out a rank's file, which holds `entries`.

    Raises:
        CheckpointError: torch has no dtype of an entry's.
    """
    placing = placing_of([each.name for each in match.resharded], target.sizes, *target.ends)
    stage = rank // target.sizes.ranks_per_stage
    parameters = optimized_parameters(placing, stage, entries)
    models = _models(target, placing, stage, entries)
    if parameters:  # numbered as the model has them
        models = {
            key: {name: model[name] for name in sorted(model, key=order_in_model)} for key, model in models.items()
        }
    root: dict[str, object] = {
        "args": namespace(_args(target, match, len(placing.layers))),
        "checkpoint_version": _VERSION,
        "iteration": target.iteration,
        **models,
    }
    if parameters:
        root["optimizer"] = optimizer_tree(parameters, target.common)
        root |= {key: value for key, value in taken_over(target.common).items() if key in SCHEDULES}
    return plan_torch_file(root, entries, MODEL_NAME.removesuffix(".pt"))


def _args(target: MegatronTarget, match: ParameterMatch, layers: int) -> dict[str, object]:
    shapes = {each.name: model_shape(parse_name(each.name).weight, each.shape) for each in match.resharded}
    dtypes = {each.name: each.dtype for each in match.resharded}
    model = model_args(shapes, dtypes, target.heads, source_args(target.common))
    return {**model, **parallel_args(target.sizes, target.ends, layers), "iteration": target.iteration}


def _models(
    target: MegatronTarget, placing: ModelPlacing, stage: int, entries: Sequence[OutputEntry]
) -> dict[str, dict[str, TensorPlace]]:
    """The state dict of each chunk of a stage's model."""
    chunks: list[dict[str, TensorPlace]] = [{} for _ in range(target.sizes.virtual)]
    for entry in entries:
        name = parse_name(entry.name)
        if name.slot:
            continue
        place = TensorPlace(entry.name, file_shape(name.weight, entry.shape))
        for spot in placing.spots(name):
            if spot.stage == stage:
                chunks[spot.chunk][placing.local_expert(spot.name)] = place
    if len(chunks) == 1:
        return {"model": chunks[0]}
    return {f"model{number}": chunk for number, chunk in enumerate(chunks)}

"""Fully sharded trainings of torch in processes of their own; `answering` calls its `OPERATIONS`.

Run by the Python of torch's environment. It knows nothing of reshard, so that their agreement means something. Ranks
train a tiny model and save it as verl does: each its `model.state_dict()` and `optimizer.state_dict()`. The same
processes gather the whole tensors, which are the answer.
"""

import json
import math
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

import numpy as np
import torch
import torch._dynamo  # which an optimizer would import in every process
import torch.distributed as dist
from gloo_ranks import on_ranks
from safetensors.torch import save_file
from tiny_models import Block, Description, build
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

Job = Mapping[str, Any]


def save(directory: str, want: str, model: Description, job: Job, seed: int) -> dict[str, list[str]]:
    """Train and save on the ranks of a mesh; the whole tensors go to `want`.

    A job has a `mesh`, name -> size, of which `tp` cuts the parameters in `tensor_parallel`, name -> dimension; its
    `version` of FSDP; an `optimizer`, and the `steps` that it does; and `dimensions`, name -> the one that FSDP2 cuts,
    if not the first.

    Returns:
        the placements of each parameter, in words.
    """
    place = Path(directory)
    (place / "huggingface").mkdir(parents=True)
    (place / "huggingface" / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    world = math.prod(job["mesh"].values())
    placements: dict[str, list[str]] = on_ranks(world, _save, place, want, model, job, seed)[0]
    (place / "fsdp_config.json").write_text(json.dumps({"FSDP_version": job["version"], "world_size": world}))
    return placements


OPERATIONS: Mapping[str, Callable[..., Any]] = {"save": save}


def _save(place: Path, want: str, description: Description, job: Job, seed: int) -> dict[str, list[str]]:
    model = build(description, seed)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    mesh = init_device_mesh("cpu", tuple(job["mesh"].values()), mesh_dim_names=tuple(job["mesh"]))
    sharded: Any = _sharded2(model, mesh, job) if job["version"] == 2 else _sharded1(model, mesh, job)
    for name, tensor in _state_of(sharded, job).items():
        assert torch.equal(_whole(tensor), before[name]), f"{name} is not gathered as it was cut"
    optimizer = _trained(sharded, job)
    state = _state_of(sharded, job)
    wholes = {name: _whole(tensor) for name, tensor in state.items()}
    if optimizer is not None and job["version"] == 2:
        wholes |= {name: _whole(tensor) for name, tensor in _moments(sharded, optimizer).items()}
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.save(state, place / f"model_world_size_{world}_rank_{rank}.pt")
    if optimizer is not None:
        torch.save(optimizer.state_dict(), place / f"optim_world_size_{world}_rank_{rank}.pt")
    torch.save(_extra_state(), place / f"extra_state_world_size_{world}_rank_{rank}.pt")
    if rank == 0:
        save_file(wholes, want)
    return {
        name: [str(each) for each in tensor.placements] for name, tensor in state.items() if isinstance(tensor, DTensor)
    }


def _sharded2(model: Block, mesh: DeviceMesh, job: Job) -> Block:
    names = tuple(job["mesh"])
    data = mesh
    if "tp" in names:
        for name, dimension in job["tensor_parallel"].items():
            block, last = model.place(name)
            old = model.get_parameter(name)
            value = distribute_tensor(old.detach(), mesh["tp"], [Shard(dimension)])
            block.register_parameter(last, torch.nn.Parameter(value, requires_grad=old.requires_grad))
        data = mesh[names[:-1]]
    dimensions = {id(model.get_parameter(name)): dimension for name, dimension in job["dimensions"].items()}

    def place(parameter: torch.nn.Parameter) -> Shard:
        return Shard(dimensions.get(id(parameter), 0))

    for layer in model.get_submodule("layers").children():
        fully_shard(layer, mesh=data, shard_placement_fn=place)
    fully_shard(model, mesh=data, shard_placement_fn=place)
    return model


def _sharded1(model: Block, mesh: DeviceMesh, job: Job) -> FullyShardedDataParallel:
    strategy = ShardingStrategy.FULL_SHARD if mesh.ndim == 1 else ShardingStrategy.HYBRID_SHARD
    units = ModuleWrapPolicy({type(layer) for layer in model.get_submodule("layers").children()})
    return FullyShardedDataParallel(
        model,
        device_mesh=mesh,
        sharding_strategy=strategy,
        auto_wrap_policy=units if job["wrapped"] else None,
        use_orig_params=job["original"],
        device_id=torch.device("cpu"),
    )


def _trained(model: Any, job: Job) -> Any:
    """The optimizer after its steps; None: the model is as it was.

    Gradients are others on every rank, but for ranks of one tensor parallel group, which see the same data.
    """
    if job["optimizer"] is None:
        return None
    optimizer = getattr(torch.optim, job["optimizer"])(model.parameters(), lr=0.01)
    share = dist.get_rank() // job["mesh"].get("tp", 1) + 1
    for _ in range(job["steps"]):
        (model(torch.zeros(())) * share).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def _state_of(model: Any, job: Job) -> dict[str, torch.Tensor]:
    if job["version"] == 2:
        state: dict[str, torch.Tensor] = model.state_dict()
        return state
    config = ShardedStateDictConfig(offload_to_cpu=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, config):
        found: dict[str, torch.Tensor] = model.state_dict()
        return found


def _moments(model: Block, optimizer: Any) -> dict[str, torch.Tensor]:
    return {
        f"{kind}.{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
        if kind != "step"
    }


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().contiguous().clone()


def _extra_state() -> dict[str, Any]:
    generators = {"cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}
    return {"lr_scheduler": {"last_epoch": 2, "_last_lr": [0.01]}, "rng": generators}

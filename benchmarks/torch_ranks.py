"""What FSDP's and ZeRO-3's ranks save, in torch's own environment: run by the benchmarks, knows nothing of them.

    torchrun --nproc-per-node 8 torch_ranks.py fsdp WHOLE TARGET     rows of each tensor, as verl saves them
    torchrun --nproc-per-node 8 torch_ranks.py zero3 WHOLE TARGET    float32 masters, as DeepSpeed saves them

WHOLE is a Hugging Face directory. Only weights are written: no moments, which none of the contenders reads.
"""

import json
import shutil
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

_STEP = "global_step40"
_VERSION = "0.19.8"
_TOKENIZER = {
    "tokenizer.json": {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    },
    "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
}
"""The smallest that verl, which copies it, can read."""
_ALIKE = {"ds_config": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}, "ds_version": _VERSION}


def main() -> None:
    """The command."""
    task, whole, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo")
    target.mkdir(parents=True, exist_ok=True)
    {"fsdp": _save_fsdp, "zero3": _save_zero3}[task](whole, target)
    dist.destroy_process_group()


def _save_fsdp(whole: Path, target: Path) -> None:
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    state = OrderedDict()
    for name, tensor in _tensors(whole):
        local, start = compute_local_shape_and_global_offset(tensor.shape, mesh, [Shard(0)])
        rows = tensor[start[0] : start[0] + local[0]].clone()
        state[name] = DTensor.from_local(
            rows, mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=tensor.stride()
        )
    torch.save(state, target / f"model_world_size_{world}_rank_{dist.get_rank()}.pt")
    if dist.get_rank() == 0:
        (target / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
        (target / "huggingface").mkdir()
        shutil.copy(whole / "config.json", target / "huggingface")
        for name, content in _TOKENIZER.items():
            (target / "huggingface" / name).write_text(json.dumps(content))


def _save_zero3(whole: Path, target: Path) -> None:
    from deepspeed.runtime.zero.config import ZeroStageEnum

    rank, world = dist.get_rank(), dist.get_world_size()
    shapes, pieces = OrderedDict(), []
    for name, tensor in _tensors(whole):
        shapes[name] = tensor.shape
        piece = tensor.flatten().split(-(-tensor.numel() // world))[rank]
        # what fills a piece up to the others' length is not read
        pieces.append(torch.nn.functional.pad(piece, (0, -(-tensor.numel() // world) - piece.numel()), value=7.0))
    optimizer = {
        "zero_stage": ZeroStageEnum.weights,
        "partition_count": world,
        "optimizer_state_dict": {"state": {}, "param_groups": []},
        "fp32_flat_groups": [torch.cat(pieces)],
    }
    model = {
        "module": {name: torch.empty(0, dtype=torch.bfloat16) for name in shapes},
        "buffer_names": [],
        "param_shapes": [shapes],
        "frozen_param_shapes": OrderedDict(),
        "shared_params": {},
        "frozen_param_fragments": OrderedDict(),
        "dp_world_size": world,
        "mp_world_size": 1,
    }
    directory = target / _STEP
    directory.mkdir(exist_ok=True)
    name = f"zero_pp_rank_{rank}_mp_rank_00"
    torch.save({"optimizer_state_dict": optimizer, **_ALIKE}, directory / f"bf16_{name}_optim_states.pt")
    torch.save({**model, **_ALIKE}, directory / f"{name}_model_states.pt")
    if rank == 0:
        (target / "latest").write_text(_STEP)


def _tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name)


if __name__ == "__main__":
    main()

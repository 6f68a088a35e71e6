"""PyTorch's Distributed Checkpoint, in torch's own environment: run by the benchmarks, knows nothing of them.

    torchrun --nproc-per-node 4 torch_dcp.py save WHOLE.safetensors TARGET    shards whole tensors by rows, as FSDP does
    torchrun --nproc-per-node 4 torch_dcp.py reshard SOURCE TARGET            loads them by columns, and saves them so

The second is what resharding takes without reshard; rank 0 prints its seconds as JSON.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, empty
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def main() -> None:
    """The command."""
    task, source, target = sys.argv[1:]
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    started = time.perf_counter()
    if task == "save":
        _save(Path(source), target, mesh)
    else:
        _reshard(source, target, mesh)
    if dist.get_rank() == 0:
        print(json.dumps({"torch_seconds": time.perf_counter() - started}))
    dist.destroy_process_group()


def _save(source: Path, target: str, mesh: DeviceMesh) -> None:
    state = {}
    with safe_open(source, "pt") as file:
        for name in file.keys():  # noqa: SIM118
            whole = file.get_slice(name)
            shape = torch.Size(whole.get_shape())
            local, start = compute_local_shape_and_global_offset(shape, mesh, [Shard(0)])
            rows = whole[start[0] : start[0] + local[0]]
            stride = torch.empty(shape, device="meta").stride()
            state[name] = DTensor.from_local(rows, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
        dcp.save(state, checkpoint_id=target)


def _reshard(source: str, target: str, mesh: DeviceMesh) -> None:
    state = {
        name: empty(each.size, dtype=each.properties.dtype, device_mesh=mesh, placements=[Shard(len(each.size) - 1)])
        for name, each in dcp.FileSystemReader(source).read_metadata().state_dict_metadata.items()
    }
    dcp.load(state, checkpoint_id=source)
    dcp.save(state, checkpoint_id=target)


if __name__ == "__main__":
    main()

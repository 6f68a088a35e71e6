"""DeepSpeed's trainings in processes of their own; `answering` calls its `OPERATIONS`.

Run by the Python of torch's environment. It knows nothing of reshard, so that their agreement means something. Ranks
train a tiny model under ZeRO and save it. Its engine says what each parameter's master and moments are: that is the
answer, and DeepSpeed's own zero_to_fp32 has to agree where it knows the parameter.
"""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}
sys.path.append(str(Path(__file__).parent))

import deepspeed
import torch
import torch._inductor.compile_fx  # which its optimizers would import in every process
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from gloo_ranks import on_ranks
from safetensors.torch import load_file, save_file
from tiny_models import Block, Description, build

# all-reduce in shared memory, compiled where it is first used: half a minute
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
# asked for fast multiplications, of which there are none here
get_accelerator().is_fp16_supported = lambda: True

Job = Mapping[str, Any]
MOMENTS = ("exp_avg", "exp_avg_sq")


def save(directory: str, want: str, model: Description, job: Job, seed: int) -> None:
    """Train and save under ZeRO; the whole tensors, which the engine gives, go to `want`.

    A job has its `world`, `groups`, how many groups its parameters are dealt to, the `optimizer`, DeepSpeed's `config`
    besides, whether the model is made `partitioned`, and how many `steps` it does, if not two.
    """
    on_ranks(job["world"], _save, directory, want, model, job, seed)


def compare_fp32(directory: str, want: str) -> list[str]:
    """Name what zero_to_fp32 has of other values than `want`; frozen parameters of stage 1 it forgets."""
    expected = load_file(want)
    found = get_fp32_state_dict_from_zero_checkpoint(directory)
    return [
        name
        for name, tensor in found.items()
        if name not in expected or not torch.equal(tensor, expected[name].to(tensor.dtype))
    ]


OPERATIONS: Mapping[str, Callable[..., Any]] = {"save": save, "compare_fp32": compare_fp32}


def _save(directory: str, want: str, description: Description, job: Job, seed: int) -> None:
    engine = start(description, job, seed)
    for _ in range(job.get("steps", 2)):
        engine.backward(engine(torch.zeros(())) * (dist.get_rank() + 1))
        engine.step()
    engine.save_checkpoint(directory, client_state={"seen": 2})
    if isinstance(engine.optimizer, DeepSpeedZeroOptimizer):
        _link_again(engine.optimizer)
    found = wholes(engine.module, description)
    if dist.get_rank() == 0:
        save_file(found, want)


def start(description: Description, job: Job, seed: int) -> Any:
    """Return the engine of a training that has not begun."""
    os.environ |= {"RANK": str(dist.get_rank()), "LOCAL_RANK": "0", "WORLD_SIZE": str(dist.get_world_size())}
    deepspeed.init_distributed(dist_backend="gloo")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **job["config"],
    }
    model = build(description, seed)
    if job["partitioned"]:
        deepspeed.zero.Init(module=model, config_dict_or_path=config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": trained[first :: job["groups"]]} for first in range(job["groups"])]
    optimizer = getattr(torch.optim, job["optimizer"])(groups, lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def _link_again(optimizer: Any) -> None:
    """Tell each parameter where its master and its moments are.

    DeepSpeed takes the order of the model for that of a round robin, and looks for the moments of all groups after
    the first group's step, when offloaded ones of others have yet to come to be.
    """
    optimizer.bit16_groups = optimizer.round_robin_bit16_groups
    optimizer._link_all_hp_params()
    optimizer._hp_optimizer_states_linked = False
    optimizer._lazy_init_hp_params_optimizer_state()


def wholes(model: Block, description: Description, moments: tuple[str, ...] = MOMENTS) -> dict[str, torch.Tensor]:
    """Masters and moments of what is trained; the rest as the model has it."""
    found = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            found[name] = _gathered(parameter)
            continue
        found[name] = _copied(name, safe_get_full_fp32_param(parameter))
        computed_with = _gathered(parameter)
        assert torch.equal(found[name].to(computed_with.dtype), computed_with), f"{name} is not its master's value"
        for kind in moments:
            found[f"{kind}.{name}"] = _copied(name, safe_get_full_optimizer_state(parameter, kind))
    return found | {name: found[other].clone() for name, other in description["tied"].items()}


def _gathered(parameter: torch.nn.Parameter) -> torch.Tensor:
    with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
        return parameter.detach().clone()


def _copied(name: str, value: torch.Tensor | None) -> torch.Tensor:
    assert value is not None, f"the engine has nothing of {name}"
    return value.detach().float().clone()

"""DeepSpeed's trainings that go on from universal checkpoints; `answering` calls its `OPERATIONS`.

Run by the Python of torch's environment. It knows nothing of reshard. A job of any number of processes and any stage
loads a universal checkpoint: its engine says what it holds then, and how the loss goes on.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

import torch
import torch.distributed as dist
import zero_judge
from gloo_ranks import on_ranks
from safetensors.torch import save_file
from tiny_models import Description

Job = Mapping[str, Any]


def to_universal(source: str, target: str) -> None:
    """Convert a tag with DeepSpeed's own script."""
    from deepspeed.checkpoint import ds_to_universal  # after zero_judge, which says how it is imported

    ds_to_universal.main(
        Namespace(
            input_folder=source,
            output_folder=target,
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )


def resume(directory: str, held: str, model: Description, job: Job, seed: int) -> list[float]:
    """Load the universal checkpoint that `latest_universal` in a directory names, and go on; return the losses.

    What the engine has of the whole model before it goes on is saved to `held`, unless that is empty. A job is as
    `zero_judge` has it; `weights_only` loads no optimizer.
    """
    losses: list[list[float]] = on_ranks(job["world"], _resume, directory, held, model, job, seed)
    return losses[0]


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "save": zero_judge.save,
    "to_universal": to_universal,
    "resume": resume,
}


def _resume(directory: str, held: str, description: Description, job: Job, seed: int) -> list[float]:
    config = {**job["config"], "checkpoint": {"load_universal": True}}
    engine = zero_judge.start(description, {**job, "config": config}, seed)
    engine.load_checkpoint(directory, load_module_only=job["weights_only"])
    states = engine.optimizer.optimizer.state.values()
    if not job["weights_only"]:
        for state in states:  # ZeRO 3 gives all one step, of which torch's optimizers change the tensor in place
            state["step"] = torch.tensor(float(state["step"]))
    found = zero_judge.wholes(engine.module, description, () if job["weights_only"] else zero_judge.MOMENTS)
    if held and dist.get_rank() == 0:
        save_file(found, held)
    losses = []
    for _ in range(3):
        loss = engine(torch.zeros(()))
        losses.append(float(loss))
        engine.backward(loss * (dist.get_rank() + 1))
        engine.step()
    assert job["weights_only"] or {float(state["step"]) for state in states} == {5.0}
    return losses

"""The description of an iteration for `inspect`."""

from collections.abc import Sequence

from reshard.core.layouts.megatron.args import model_numbers
from reshard.core.layouts.megatron.checkpoint import OpenedCheckpoint
from reshard.core.layouts.megatron.iterations import Iteration
from reshard.core.layouts.placed_description import describe_shards
from reshard.core.layouts.source_layout import Document


def describe_iteration(
    iteration: Iteration, opened: OpenedCheckpoint, ignored: Sequence[str], *, unfinished: bool
) -> Document:
    """Describe an iteration by the headers of its files."""
    args = opened.args
    return {
        "kind": "Megatron checkpoint",
        "url": iteration.url,
        "step": opened.number if iteration.number is None else iteration.number,
        "other_steps": [number for number in iteration.numbers if number != iteration.number],
        "tensor_parallel": args.tensor_size,
        "pipeline_parallel": args.pipeline_size,
        "expert_parallel": args.expert_size,
        "expert_tensor_parallel": args.expert_tensor_size,
        "model": dict(model_numbers(args)),
        **describe_shards(opened.files),
        "optimizer": opened.state_problem or ("by names" if opened.state_files else "none"),
        "unusable": [{"file": path, "why": why} for path, why in opened.lost.items()],
        "notes": [*iteration.notes, *opened.notes],
        "ignored": list(ignored),
        "unfinished": unfinished,
    }

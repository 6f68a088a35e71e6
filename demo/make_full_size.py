"""Writes DeepSeek-V3 at full size as a training on 1,024 devices saves it: `python -m demo.make_full_size DIRECTORY`.

    training/latest_checkpointed_iteration.txt                      names iteration 4000
    training/iteration_00004000/metadata.json                       MindFormers' Checkpoint 2.0: how tensors are sharded
    training/iteration_00004000/common.json
    training/iteration_00004000/model-0000000-0001024.safetensors   weights, float32; a file for each rank
    training/iteration_00004000/opt-0000000-0001024.safetensors     their moments, float32
    model/config.json                                               the model's numbers, as Hugging Face has them

Names, shapes and sizes are the real ones, 7.5 TiB in all. Files have their headers and no contents: they are sparse,
take a few kilobytes of the disk and read as zeros. A plan of it is the plan of the real checkpoint.

The training has 16 pipeline stages of 16-way data parallel, with optimizer parallel, and 4-way tensor parallel; the 256
experts of a layer are dealt out to the 64 ranks of its stage. Redundancy is removed: each shard is in one file.
"""

import argparse
import json
import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reshard.core.layouts.checkpoint2.metadata_writing import five_keys
from reshard.core.runtime.records import Record
from reshard.core.tensor.layout import ALL_REPEATED_AXES, ParameterLayout
from reshard.core.tensor.slices import Shape

ITERATION = 4000
HIDDEN, FEED_FORWARD, VOCABULARY = 7168, 18_432, 129_280
LAYERS, DENSE_LAYERS = 61, 3
EXPERTS, EXPERT_FEED_FORWARD = 256, 2048
HEADS, HEAD, ROPE_HEAD, QUERY_RANK, VALUE_RANK = 128, 128, 64, 1536, 512
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": LAYERS,
    "first_k_dense_replace": DENSE_LAYERS,
    "num_nextn_predict_layers": 1,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": EXPERT_FEED_FORWARD,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "qk_nope_head_dim": HEAD,
    "qk_rope_head_dim": ROPE_HEAD,
    "v_head_dim": HEAD,
    "q_lora_rank": QUERY_RANK,
    "kv_lora_rank": VALUE_RANK,
    "tie_word_embeddings": False,
}
MOMENTS = "adam_m", "adam_v"
STAGES, DATA_PARALLEL, TENSOR_PARALLEL = 16, 16, 4
STAGE_RANKS = DATA_PARALLEL * TENSOR_PARALLEL
RANKS = STAGES * STAGE_RANKS
_OPTIMIZER_SHARD_MIN_BYTES = 64 << 10
"""MindSpore shards no smaller parameter over the data-parallel ranks."""
_ITEMSIZE = 4


class _Tensor(Record):
    """A tensor, and how the ranks of its stage share it."""

    name: str
    shape: Shape
    layout: ParameterLayout


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    make(parser.parse_args().directory)


def make(directory: Path) -> None:
    """Write everything below a directory."""
    (directory / "model").mkdir(parents=True)
    (directory / "model" / "config.json").write_text(json.dumps(CONFIG, indent=2))
    make_checkpoint(directory / "training")


def make_checkpoint(directory: Path) -> None:
    """Write the checkpoint into a new directory."""
    iteration = directory / f"iteration_{ITERATION:08}"
    iteration.mkdir(parents=True)
    tensors: dict[str, Any] = {}
    places: dict[str, Any] = {}
    for stage in range(STAGES):
        files: dict[str, dict[str, Shape]] = defaultdict(dict)
        for tensor in _with_moments(_stage_tensors(stage)):
            owners = _owners(tensor, stage)
            tensors[tensor.name] = _described(tensor, stage, owners)
            for number, ranks in owners.items():
                kind = "opt" if tensor.name.startswith(MOMENTS) else "model"
                file = f"{kind}-{ranks[0]:07}-{RANKS:07}.safetensors"
                files[file][tensor.name] = _shard_shape(tensor)
                places[str((tensor.name, (number,)))] = [
                    {"file_name": file, "storage_rank": ranks[0], "rank_group": ranks}
                ]
        for file, shards in files.items():
            _write_sparse(iteration / file, shards)
    metadata = {"state_dict_metadata": tensors, "storage_data": places}
    (iteration / "metadata.json").write_text(json.dumps(metadata, separators=(",", ":")))
    common = {"epoch_num": 1, "step_num": ITERATION, "global_step": ITERATION, "loss_scale": None, "ckpt_status": 0}
    (iteration / "common.json").write_text(json.dumps(common))
    (directory / "latest_checkpointed_iteration.txt").write_text(str(ITERATION))


def _stage_tensors(stage: int) -> Iterator[_Tensor]:
    """The weights of a pipeline stage, by MindFormers' names: four layers, fewer in the last stage."""
    layers_each = math.ceil(LAYERS / STAGES)
    if stage == 0:
        yield _tensor("embedding.word_embeddings.weight", (VOCABULARY, HIDDEN), cut=0)
    for layer in range(stage * layers_each, min((stage + 1) * layers_each, LAYERS)):
        yield from _layer_tensors(f"decoder.layers.{layer}", dense=layer < DENSE_LAYERS)
    if stage == STAGES - 1:
        yield _tensor("decoder.final_layernorm.weight", (HIDDEN,))
        yield _tensor("output_layer.weight", (VOCABULARY, HIDDEN), cut=0)
        for norm in ("enorm", "hnorm", "final_layernorm"):
            yield _tensor(f"mtp.layers.0.{norm}.weight", (HIDDEN,))
        yield _tensor("mtp.layers.0.eh_proj.weight", (HIDDEN, 2 * HIDDEN))
        yield from _layer_tensors("mtp.layers.0.transformer_layer", dense=False)


def _layer_tensors(layer: str, *, dense: bool) -> Iterator[_Tensor]:
    attention, mlp, shared = f"{layer}.self_attention", f"{layer}.mlp", f"{layer}.mlp.shared_experts"
    yield _tensor(f"{layer}.input_layernorm.weight", (HIDDEN,))
    yield _tensor(f"{layer}.pre_mlp_layernorm.weight", (HIDDEN,))
    yield _tensor(f"{attention}.linear_qkv.weight", (QUERY_RANK + VALUE_RANK + ROPE_HEAD, HIDDEN))
    yield _tensor(f"{attention}.q_layernorm.weight", (QUERY_RANK,))
    yield _tensor(f"{attention}.k_layernorm.weight", (VALUE_RANK,))
    yield _tensor(f"{attention}.linear_qb.weight", (HEADS * (HEAD + ROPE_HEAD), QUERY_RANK), cut=0)
    yield _tensor(f"{attention}.linear_kvb.weight", (HEADS * 2 * HEAD, VALUE_RANK), cut=0)
    yield _tensor(f"{attention}.linear_proj.weight", (HIDDEN, HEADS * HEAD), cut=1)
    if dense:
        yield _tensor(f"{mlp}.linear_fc1.weight", (2 * FEED_FORWARD, HIDDEN), cut=0)
        yield _tensor(f"{mlp}.linear_fc2.weight", (HIDDEN, FEED_FORWARD), cut=1)
    else:
        yield _tensor(f"{mlp}.router.weight", (EXPERTS, HIDDEN))
        yield _tensor(f"{mlp}.router.expert_bias", (EXPERTS,))
        yield _experts(f"{mlp}.experts.weight1", (EXPERTS * HIDDEN, 2 * EXPERT_FEED_FORWARD))
        yield _experts(f"{mlp}.experts.weight2", (EXPERTS * EXPERT_FEED_FORWARD, HIDDEN))
        yield _tensor(f"{shared}.linear_fc1.weight", (2 * EXPERT_FEED_FORWARD, HIDDEN), cut=0)
        yield _tensor(f"{shared}.linear_fc2.weight", (HIDDEN, EXPERT_FEED_FORWARD), cut=1)


def _tensor(name: str, shape: Shape, cut: int | None = None) -> _Tensor:
    """A tensor that tensor parallelism cuts along an axis, or leaves whole, and optimizer parallelism along axis 0."""
    tensor_map = tuple((0,) if axis == cut else () for axis in range(len(shape)))
    small = math.prod(shape) * _ITEMSIZE < _OPTIMIZER_SHARD_MIN_BYTES
    step, size = (0, 0) if small else (1, ALL_REPEATED_AXES)
    return _Tensor(name, shape, ParameterLayout((DATA_PARALLEL, TENSOR_PARALLEL), tensor_map, True, step, size))


def _experts(name: str, shape: Shape) -> _Tensor:
    return _Tensor(name, shape, ParameterLayout((STAGE_RANKS,), ((0,), ()), nested=True))


def _with_moments(weights: Iterator[_Tensor]) -> Iterator[_Tensor]:
    for weight in weights:
        yield weight
        if not weight.name.endswith("expert_bias"):  # which no optimizer trains
            for moment in MOMENTS:
                yield _Tensor(f"{moment}.{weight.name}", weight.shape, weight.layout)


def _owners(tensor: _Tensor, stage: int) -> Mapping[int, list[int]]:
    """A shard's number, row by row over the grid -> the ranks that hold it."""
    grid, first = tensor.layout.shard_grid(len(tensor.shape)), stage * STAGE_RANKS
    return {
        int(np.ravel_multi_index(cell, grid.pieces)): [first + rank for rank in ranks]
        for cell, ranks in grid.owners.items()
    }


def _shard_shape(tensor: _Tensor) -> Shape:
    pieces = tensor.layout.shard_grid(len(tensor.shape)).pieces
    return tuple(length // count for length, count in zip(tensor.shape, pieces, strict=True))


def _described(tensor: _Tensor, stage: int, owners: Mapping[int, list[int]]) -> dict[str, Any]:
    """A tensor's entry in metadata.json."""
    axes, shard = len(tensor.shape), list(_shard_shape(tensor))
    replica_ids = {rank: place for ranks in owners.values() for place, rank in enumerate(ranks)}
    return {
        "properties": {
            "dtype": "Float32",
            "replica_id": [replica_ids[rank] for rank in sorted(replica_ids)],
            "allow_shape_mismatch": False,
            "allow_to_save": True,
        },
        "global_shape": list(tensor.shape),
        "axis_fragmentations": list(tensor.layout.shard_grid(axes).pieces),
        "layout": five_keys(tensor.layout, axes, stage * STAGE_RANKS),
        "chunk": [{"global_offset": [number], "local_shape": shard} for number in sorted(owners)],
    }


def _write_sparse(file: Path, shards: Mapping[str, Shape]) -> None:
    """Write a safetensors file whose contents are a hole."""
    header: dict[str, Any] = {"__metadata__": {"format": "ms"}}
    end = 0
    for name, shape in shards.items():
        start, end = end, end + math.prod(shape) * _ITEMSIZE
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("xb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(stream.tell() + end)


if __name__ == "__main__":
    main()

"""Writes what trainings with PyTorch save, without PyTorch: `python -m demo.make_torch_checkpoints DIRECTORY`.

    verl/latest_checkpointed_iteration.txt                          names global_step_40
    verl/global_step_40/actor/model_world_size_4_rank_{r}.pt        4 ranks of FSDP2: rows of every tensor
    verl/global_step_40/actor/optim_world_size_4_rank_{r}.pt        their moments
    verl/global_step_40/actor/huggingface/config.json
    deepspeed/latest                                                names global_step40
    deepspeed/global_step40/zero_pp_rank_{r}_…_model_states.pt      4 ranks of ZeRO-3: shapes
    deepspeed/global_step40/bf16_zero_pp_rank_{r}_…_optim_states.pt float32 masters and moments, flattened
    model.pt                                                        a state dict in a dict, as torch.save writes it

All are the same small llama by Hugging Face's names; its output layer is the embedding. With PyTorch and DeepSpeed
installed, torch.load reads the files.
"""

import argparse
import json
import zlib
from collections.abc import Mapping

import numpy as np

from reshard.core.files.model import Content, OutputEntry
from reshard.core.files.torch_file_writing import TensorPlace, plan_torch_file
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_file
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.slices import Shape, row_major_strides

RANKS = 4
STEP = 40
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
TIED = {"lm_head.weight": "model.embed_tokens.weight"}
"""A second name of a weight -> the weight."""
MOMENTS = "exp_avg", "exp_avg_sq"
_DISTRIBUTED = "torch.distributed.tensor"
_NAMES = {
    np.dtype(np.float32): "Float32",
    np.dtype(np.int32): "Int32",
    np.dtype(np.uint16): "BFloat16",
}

Arrays = Mapping[str, np.ndarray]
"""Whole tensors; bfloat16 as its bits."""


def make_demo(directory: Location) -> None:
    """Writes everything below `directory`."""
    model = weights()
    moments = {
        moment: {name: _values(f"{moment}.{name}", array.shape) for name, array in model.items()} for moment in MOMENTS
    }
    _write_verl(directory.child("verl"), model, moments)
    _write_zero(directory.child("deepspeed"), model, moments)
    _write_whole(directory.child("model.pt"), model)


def weights() -> dict[str, np.ndarray]:
    """The weights of the whole model, float32."""
    return {name: _values(name, shape) for name, shape in _shapes().items()}


def _shapes() -> dict[str, Shape]:
    hidden, wide, vocabulary = 128, 352, 4096
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(4):
        of_layer = f"model.layers.{layer}"
        shapes |= {f"{of_layer}.self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
        shapes |= {f"{of_layer}.mlp.{name}_proj.weight": (wide, hidden) for name in ("gate", "up")}
        shapes[f"{of_layer}.mlp.down_proj.weight"] = hidden, wide
        shapes |= {f"{of_layer}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    return shapes | {"model.norm.weight": (hidden,)}


def _values(name: str, shape: Shape) -> np.ndarray:
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    values = generator.random(shape, dtype=np.float32)
    if name.startswith("exp_avg_sq."):
        return values * np.float32(1e-6)
    return (values - np.float32(0.5)) * np.float32(0.04)


def _write_verl(directory: Location, model: Arrays, moments: Mapping[str, Arrays]) -> None:
    actor = directory.child(f"global_step_{STEP}", "actor")
    for rank in range(RANKS):
        file = _File()
        state = Pairs((name, _dtensor(file, name, array, rank)) for name, array in model.items())
        state += [(name, _dtensor(file, weight, model[weight], rank)) for name, weight in TIED.items()]
        file.write(actor.child(f"model_world_size_{RANKS}_rank_{rank}.pt"), state)
        file = _File()
        numbered = {
            number: {
                "step": file.add(f"step.{name}", np.array(STEP, np.float32)),
                **{moment: _dtensor(file, f"{moment}.{name}", moments[moment][name], rank) for moment in MOMENTS},
            }
            for number, name in enumerate(model)
        }
        groups = [{"lr": 1e-6, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "params": list(numbered)}]
        root = {"state": numbered, "param_groups": groups}
        file.write(actor.child(f"optim_world_size_{RANKS}_rank_{rank}.pt"), root)
    _write_json(actor.child("fsdp_config.json"), {"FSDP_version": 2, "world_size": RANKS})
    _write_json(actor.child("huggingface", "config.json"), CONFIG)
    _write_text(directory.child("latest_checkpointed_iteration.txt"), str(STEP))


def _write_zero(directory: Location, model: Arrays, moments: Mapping[str, Arrays]) -> None:
    of_step = directory.child(f"global_step{STEP}")
    alike = {"ds_config": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}, "ds_version": "0.19.8"}
    for rank in range(RANKS):
        name = f"zero_pp_rank_{rank}_mp_rank_00"
        file = _File()
        flat = {key: file.add(key, _partition(of_key, rank)) for key, of_key in {"fp32": model, **moments}.items()}
        step = file.add("step", np.array(STEP, np.float32))
        states = {0: {"step": step, **{moment: flat[moment] for moment in MOMENTS}}}
        optimizer = {
            "zero_stage": PickledObject(Global("deepspeed.runtime.zero.config", "ZeroStageEnum"), (3,)),
            "partition_count": RANKS,
            "optimizer_state_dict": {"state": states, "param_groups": [{"lr": 1e-6, "params": [0]}]},
            "fp32_flat_groups": [flat["fp32"]],
        }
        file.write(of_step.child(f"bf16_{name}_optim_states.pt"), {"optimizer_state_dict": optimizer, **alike})
        file = _File()
        # the parameters are in the optimizer's files
        empty = Pairs((each, file.add(each, np.zeros(0, np.uint16))) for each in (*model, *TIED))
        shapes = Pairs((each, PickledObject(Global("torch", "Size"), (array.shape,))) for each, array in model.items())
        states_of_model = {
            "module": empty,
            "buffer_names": [],
            "param_shapes": [shapes],
            "frozen_param_shapes": {},
            "shared_params": TIED,
            "frozen_param_fragments": {},
            "dp_world_size": RANKS,
            "mp_world_size": 1,
            "global_steps": STEP,
        }
        file.write(of_step.child(f"{name}_model_states.pt"), states_of_model | alike)
    _write_text(directory.child("latest"), of_step.name)


def _write_whole(location: Location, model: Arrays) -> None:
    file = _File()
    state = Pairs((name, file.add(name, array)) for name, array in model.items())
    state += [(name, file.add(name, model[weight])) for name, weight in TIED.items()]
    file.write(location, {"state_dict": state, "epoch": 1})


def _partition(arrays: Arrays, rank: int) -> np.ndarray:
    """A rank's part of each tensor, one after another; the last ranks' are filled up."""
    parts = []
    for array in arrays.values():
        length = -(-array.size // RANKS)
        part = array.reshape(-1)[rank * length : (rank + 1) * length]
        parts.append(np.pad(part, (0, length - len(part))))
    return np.concatenate(parts)


class _File:
    """A file of torch.save that is being put together."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def add(self, name: str, array: np.ndarray) -> TensorPlace:
        """Takes a tensor; returns its place in the tree."""
        self._arrays[name] = array
        return TensorPlace(name)

    def write(self, location: Location, root: object) -> None:
        """Writes the file with a tree."""
        entries = [
            OutputEntry(name, dtype_from_name(_NAMES[array.dtype]), array.shape) for name, array in self._arrays.items()
        ]
        with write_file(location) as file:
            for segment in plan_torch_file(root, entries, location.name.removesuffix(".pt")).segments:
                if isinstance(segment, Content):
                    file.write(self._arrays[segment.name].tobytes()[segment.start : segment.stop])
                else:
                    file.write(segment)


def _dtensor(file: _File, name: str, array: np.ndarray, rank: int) -> PickledObject:
    """A rank's rows of a tensor, as FSDP2 has them: the first ranks have as many each, the last ones what is left."""
    rows = -(-len(array) // RANKS)
    made_by = Global(_DISTRIBUTED, "DTensor")
    dtype, strides = Global("torch", "float32"), row_major_strides(array.shape)
    layout = PickledObject(Global("torch.serialization", "_get_layout"), ("torch.strided",))
    device = PickledObject(Global("torch", "device"), ("cpu",))
    spec = f"{_DISTRIBUTED}._dtensor_spec"
    shape = PickledObject(Global("torch", "Size"), (array.shape,))
    fields = {
        "mesh": _mesh(file, rank),
        "placements": (_object(f"{_DISTRIBUTED}.placement_types", "Shard", {"dim": 0}),),
        "tensor_meta": PickledObject(Global(spec, "TensorMeta"), (shape, strides, dtype)),
        "shard_order": (PickledObject(Global(spec, "ShardOrderEntry"), (0, (0,))),),
        "use_strided_shard_as_shard_order": False,
    }
    local = file.add(name, array[rank * rows : (rank + 1) * rows])
    state = None, _pairs({"_local_tensor": local, "_spec": _object(spec, "DTensorSpec", fields)})
    arguments = (made_by, dtype, shape, strides, 0, layout, device, False)
    function = Global("torch._utils", "_rebuild_wrapper_subclass")
    return PickledObject(Global("torch._tensor", "_rebuild_from_type_v2"), (function, made_by, arguments, state))


def _mesh(file: _File, rank: int) -> PickledObject:
    """The mesh of a rank: all of them in a row."""
    axis = _object("torch.distributed._mesh_layout", "_FlatLayout", {"shape": (RANKS,), "stride": (1,)})
    fields = {
        "_device_type": "cpu",
        "_layout": _object("torch.distributed._mesh_layout", "_MeshLayout", {"axes": (axis,)}),
        "_rank_map": file.add("ranks", np.arange(RANKS, dtype=np.int32)),
        "_mesh_dim_names": ("fsdp",),
        "_root_mesh": None,
        "_flatten_rank_map": tuple(range(RANKS)),
        "_thread_id": None,
        "_flatten_mapping": {},
        "_dim_group_names": [],
        "_rank": rank,
        "_coordinate_on_dim": (rank,),
    }
    return _object("torch.distributed.device_mesh", "DeviceMesh", fields)


def _object(module: str, name: str, fields: Mapping[str, object]) -> PickledObject:
    return PickledObject(Global(module, name), (), _pairs(fields))


def _pairs(fields: Mapping[str, object]) -> Pairs:
    return Pairs(fields.items())


def _write_json(location: Location, value: object) -> None:
    _write_text(location, json.dumps(value, indent=2))


def _write_text(location: Location, text: str) -> None:
    with write_file(location) as file:
        file.write(text.encode())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.make_torch_checkpoints", description="Writes what verl and DeepSpeed save."
    )
    parser.add_argument("directory", help="where to; files that are there already are overwritten")
    directory = parse_url(parser.parse_args().directory)
    make_demo(directory)
    print(f"Wrote checkpoints of verl and of DeepSpeed, {RANKS} ranks each, and model.pt to {directory}")


if __name__ == "__main__":
    main()

"""torch.save of state dicts of any tensors, in a process of its own; `answering` calls its `OPERATIONS`.

Run by the Python of torch's environment. It knows nothing of reshard, so that their agreement means something.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict

torch.set_num_threads(1)


def save(directory: str, tensors: Sequence[Mapping[str, Any]], files: Mapping[str, Any]) -> dict[str, Any]:
    """Save random tensors, some of them views of others.

    Args:
        directory: where; it is made.
        tensors: `name`, `dtype`, `shape` and `form` of each, and the `seed` of its bytes, or the name that it is
            `tied` to.
        files: the `way`: "one", "numbered" or "hub"; of one file its `name` and the `root` of its state dict, keys
            joined by dots; of several their `count`; and the `protocol` of the pickle.

    Returns:
        for each name dtype, shape and the bytes in hex, as torch has them.
    """
    state: dict[str, torch.Tensor] = {}
    for how in tensors:
        state[how["name"]] = state[how["tied"]] if "tied" in how else _formed(how)
    place = Path(directory)
    place.mkdir(parents=True)
    _WAYS[files["way"]](place, state, files)
    return {name: _described(tensor) for name, tensor in state.items()}


OPERATIONS: Mapping[str, Callable[..., Any]] = {"save": save}


def _save_one(place: Path, state: dict[str, torch.Tensor], files: Mapping[str, Any]) -> None:
    tree: Any = state
    for key in reversed(files["root"].split(".") if files["root"] else []):
        tree = {"epoch": 3, key: tree, "optimizer": {"state": {0: {"exp_avg": torch.zeros(2)}}, "param_groups": []}}
    torch.save(tree, place / files["name"], pickle_protocol=files["protocol"])


def _save_numbered(place: Path, state: dict[str, torch.Tensor], files: Mapping[str, Any]) -> None:
    count, names = files["count"], list(state)
    weight_map: dict[str, str] = {}
    for number in range(count):
        path = f"pytorch_model-{number + 1:05d}-of-{count:05d}.bin"
        part = {name: state[name] for name in names[number::count]}
        torch.save(part, place / path, pickle_protocol=files["protocol"])
        weight_map |= dict.fromkeys(part, path)
    index = {"metadata": {"total_size": sum(each.nbytes for each in state.values())}, "weight_map": weight_map}
    (place / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def _save_hub(place: Path, state: dict[str, torch.Tensor], files: Mapping[str, Any]) -> None:
    size = sum(each.nbytes for each in state.values()) // files["count"] + 1
    save_torch_state_dict(
        state,
        place,
        safe_serialization=False,
        max_shard_size=size,
        filename_pattern="pytorch_model{suffix}.bin",
        force_contiguous=False,
    )


_WAYS = {"one": _save_one, "numbered": _save_numbered, "hub": _save_hub}


def _formed(how: Mapping[str, Any]) -> torch.Tensor:
    """Random bytes of a dtype, in memory of some form."""
    shape, dtype = tuple(how["shape"]), getattr(torch, how["dtype"])
    form = _FORMS[how["form"]] if shape else _FORMS[""]
    return form(shape, lambda wanted: _random(wanted, dtype, how["seed"]))


def _random(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty(tuple(shape), dtype=dtype).nbytes
    values = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8, generator=generator)
    return values.view(dtype).reshape(tuple(shape))


Make = Callable[[Sequence[int]], torch.Tensor]


def _transposed(shape: Sequence[int], make: Make) -> torch.Tensor:
    return make(shape[::-1]).permute(*reversed(range(len(shape))))


def _cut(shape: Sequence[int], make: Make) -> torch.Tensor:
    return make([length + 2 for length in shape])[tuple(slice(1, length + 1) for length in shape)]


def _stepped(shape: Sequence[int], make: Make) -> torch.Tensor:
    return make([2 * shape[0], *shape[1:]])[::2]


def _expanded(shape: Sequence[int], make: Make) -> torch.Tensor:
    return make([1, *shape[1:]]).expand(*shape)


def _parameter(shape: Sequence[int], make: Make) -> torch.Tensor:
    value = make(shape)
    return torch.nn.Parameter(value, requires_grad=value.is_floating_point() and value.itemsize > 1)


_FORMS: Mapping[str, Callable[[Sequence[int], Make], torch.Tensor]] = {
    "": lambda shape, make: make(shape),
    "transposed": _transposed,
    "cut": _cut,
    "stepped": _stepped,
    "expanded": _expanded,
    "parameter": _parameter,
}


def _described(tensor: torch.Tensor) -> list[Any]:
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()).reshape(-1)
    data = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), data.hex()]

"""Which stored tensors a target has, and where in them each parameter is: the reverse of `unstacking`.

Layers of the decoder that are alike are stacked, and so are experts. A parameter is planned with an axis of one element
for each of these; its box in the stored tensor begins at its numbers there.
"""

import re
from collections.abc import Iterable, Mapping

from reshard.core.errors import LayoutError
from reshard.core.layouts.dcp.metadata_writing import StoredPlace
from reshard.core.layouts.megatron.tensor_names import LAYER
from reshard.core.layouts.torch_dist.names import parse_state
from reshard.core.layouts.torch_dist.target import TorchDistTarget
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.tensor.slices import Shape

_EXPERT = re.compile(r"(.*\.mlp\.experts\.)local_experts\.(\d{1,6})\.(.+)", re.ASCII | re.DOTALL)
_MAX_LISTED = 6
_INPUT_NORM = re.compile(r"(.*)\.input_layernorm\.(weight|bias)", re.ASCII | re.DOTALL)
_MLP_NORM = re.compile(r"(.*)\.pre_mlp_layernorm\.(weight|bias)", re.ASCII | re.DOTALL)
_LINEAR = re.compile(r"(.*\.(?:linear_\w+|eh_proj))\.weight", re.ASCII | re.DOTALL)
_OF_ENGINE = re.compile(r"(.*\.(?:\w+_layernorm|[eh]norm))\.weight", re.ASCII | re.DOTALL)
_CORE_ATTENTION = re.compile(r"(.*\.self_attention\.)linear_proj\.weight", re.ASCII | re.DOTALL)


class Stacking(Record):
    """How a model's parameters are stored.

    Attributes:
        layers: number of the decoder's layers that are stacked; 0: they are numbered.
        experts: number of experts.
        weights: the names of all weights.
        is_plain: names of weights in float32 are those of an optimizer that is not divided among ranks.
        is_local: names are those that Megatron-Core's own layers want, and not those of Transformer Engine.
    """

    layers: int
    experts: int
    weights: frozenset[str]
    is_local: bool
    is_plain: bool

    def axes(self, name: str) -> int:
        """Return the number of axes that a parameter's stored tensor has before its own."""
        return len(self._split(name)[1])

    def place(self, name: str, planned: Shape) -> StoredPlace:
        """Return where a parameter is that is planned in a shape."""
        stored, numbers, counts = self._split(name)
        return StoredPlace(stored, (*counts, *planned[len(counts) :]), numbers)

    def objects(self) -> list[str]:
        """Return the names of the objects that modules ask for beside their weights."""
        found: dict[str, None] = {}
        for weight in sorted(self.weights):
            for module in self._modules(weight):
                stored, numbers, counts = self._split(f"{module}._extra_state")
                shard, of = (".".join(map(str, each)) for each in (numbers or (0,), counts or (1,)))
                found[f"{stored}/shard_{shard}_{of}"] = None
        return list(found)

    def _modules(self, weight: str) -> Iterable[str]:
        """The modules whose state a weight shows to be there."""
        if match := _LINEAR.fullmatch(weight):
            yield match[1]
        if not self.is_local:
            match = _OF_ENGINE.fullmatch(weight)
            if match and self._engine_name(weight) == weight:
                yield match[1]
            if match := _CORE_ATTENTION.fullmatch(weight):
                yield f"{match[1]}core_attention"

    def _split(self, name: str) -> tuple[str, Shape, Shape]:
        """The name of the stored tensor, the parameter's numbers along its first axes, and their lengths."""
        prefix, weight = parse_state(name)
        weight = self._engine_name(weight)
        numbers: list[int] = []
        counts: list[int] = []
        layer = LAYER.fullmatch(weight)
        if layer and self.layers:
            weight = f"{layer[1]}{layer[3]}"
            numbers.append(int(layer[2]))
            counts.append(self.layers)
        expert = _EXPERT.fullmatch(weight)
        if expert:
            weight = f"{expert[1]}experts.{expert[3]}"
            numbers.append(int(expert[2]))
            counts.append(self.experts)
        if self.is_plain:
            prefix = prefix.replace(".param.", ".fp32_param.")
        return prefix + weight, tuple(numbers), tuple(counts)

    def _engine_name(self, weight: str) -> str:
        """The name of a norm that is part of the next layer."""
        if match := _INPUT_NORM.fullmatch(weight):
            if f"{match[1]}.self_attention.linear_qkv.weight" in self.weights:
                return f"{match[1]}.self_attention.linear_qkv.layer_norm_{match[2]}"
        elif match := _MLP_NORM.fullmatch(weight):
            is_latent = f"{match[1]}.self_attention.linear_kv_up_proj.weight" in self.weights
            is_dense = f"{match[1]}.mlp.linear_fc1.weight" in self.weights
            if (self.is_local and not is_latent) or (not self.is_local and is_dense):
                return f"{match[1]}.mlp.linear_fc1.layer_norm_{match[2]}"
        return weight


def stacking_of(kinds: Mapping[str, object], target: TorchDistTarget) -> Stacking:
    """Return how a target's parameters are stored; `kinds` are names -> what has to be equal for layers to be alike.

    Raises:
        LayoutError: layers or experts are missing.
    """
    layers: dict[int, dict[str, object]] = {}
    experts: set[int] = set()
    for name, kind in kinds.items():
        prefix, weight = parse_state(name)
        if match := LAYER.fullmatch(weight):
            layers.setdefault(int(match[2]), {})[prefix + match[3]] = kind
        if match := _EXPERT.fullmatch(weight):
            experts.add(int(match[2]))
    _check_numbers(layers, "layer")
    _check_numbers(experts, "expert")
    are_alike = all(each == layers[0] for each in layers.values())
    weights = frozenset(name for name in kinds if not parse_state(name)[0])
    stacked = len(layers) if are_alike and not target.numbers_layers else 0
    return Stacking(stacked, len(experts), weights, target.is_local, target.is_plain)


def _check_numbers(numbers: Iterable[int], what: str) -> None:
    found = set(numbers)
    missing = sorted(set(range(max(found, default=-1) + 1)) - found)
    if missing:
        raise LayoutError(
            f"there are {what}s up to {max(found)}, but not {what} {listed(list(map(str, missing)), _MAX_LISTED)}"
        )

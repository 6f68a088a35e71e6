"""Where a target's files have each parameter, and its name there: layers and experts are numbered anew on each rank.

Parameters have the model's names: numbers of layers and of experts count all there are.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from reshard.core.errors import LayoutError
from reshard.core.layouts.megatron.numbering import LayerDivision, LayerPlace, layer_places
from reshard.core.layouts.megatron.sizes import ParallelSizes
from reshard.core.layouts.megatron.tensor_names import EMBEDDING, EXPERT, LAYER, OUTPUT_LAYER
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed

_STATE = re.compile(r"optimizer\.state\.([a-z_]+)\.(.+)", re.ASCII | re.DOTALL)
_MTP, _OF_EXPERTS = "mtp.", ".mlp.experts."
_OUTSIDE_LAYERS = re.compile(
    r"embedding\.(?:word|position)_embeddings\.weight|output_layer\.weight|decoder\.final_layernorm\.(?:weight|bias)"
    r"|mtp\..+",
    re.ASCII | re.DOTALL,
)
_MAX_LISTED = 6


class ModelName(Record):
    """What the name of a parameter says.

    Attributes:
        weight: the name of the weight; of a state of the optimizer, that of its weight.
        slot: which state it is; empty for a weight.
    """

    weight: str
    slot: str = ""

    @property
    def layer(self) -> int | None:
        """The number of its layer; None outside of the decoder's layers."""
        match = LAYER.fullmatch(self.weight)
        return int(match[2]) if match else None

    @property
    def expert(self) -> int | None:
        """The number of its expert; None if it is not of one expert alone."""
        match = EXPERT.fullmatch(self.weight)
        return int(match[2]) if match else None


def parse_name(name: str) -> ModelName:
    """Return what the name of a parameter says."""
    state = _STATE.fullmatch(name)
    return ModelName(state[2], state[1]) if state else ModelName(name)


def has_place(weight: str) -> bool:
    """True for the name of a weight in a layer, or one of those outside of layers."""
    layer = LAYER.fullmatch(weight)
    return not _OUTSIDE_LAYERS.fullmatch(layer[3]) if layer else _OUTSIDE_LAYERS.fullmatch(weight) is not None


class Spot(Record):
    """Where a parameter is: a pipeline stage, a chunk of it, and its name there, without its expert's local number."""

    stage: int
    chunk: int
    name: str


class ModelPlacing(Record, dict=True):
    """Where the parameters of a model are.

    Attributes:
        sizes: how it is divided.
        layers: places of the decoder's layers.
        experts: number of experts that are tensors of their own.
        has_mtp: it predicts several tokens, which takes the embedding on the last stage as well.
        is_tied: the last stage has the embedding as its output layer.
    """

    sizes: ParallelSizes
    layers: tuple[LayerPlace, ...]
    experts: int
    has_mtp: bool
    is_tied: bool

    @cached_property
    def last(self) -> tuple[int, int]:
        """The last stage, and its last chunk."""
        return self.sizes.pipeline - 1, self.sizes.virtual - 1

    def spots(self, name: ModelName) -> Iterator[Spot]:
        """Yield the places of a parameter: of a tied embedding, some share a stage."""
        weight = name.weight
        match = LAYER.fullmatch(weight)
        if match:
            place = self.layers[int(match[2])]
            yield Spot(place.stage, place.chunk, f"{match[1]}{place.number}.{match[3]}")
        elif weight.startswith("embedding."):
            yield Spot(0, 0, weight)
            if self.last != (0, 0) and weight == EMBEDDING:
                if self.has_mtp:
                    yield Spot(*self.last, EMBEDDING)
                if self.is_tied:
                    yield Spot(*self.last, OUTPUT_LAYER)
        else:
            yield Spot(*self.last, weight)

    def local_expert(self, name: str) -> str:
        """Return a parameter's name with the number that its expert has on its rank."""
        match = EXPERT.fullmatch(name)
        return f"{match[1]}{int(match[2]) % self.experts_per_rank}{match[3]}" if match else name

    @property
    def experts_per_rank(self) -> int:
        """Number of experts that a rank has."""
        return self.experts // self.sizes.expert


def placing_of(names: Iterable[str], sizes: ParallelSizes, first: int, last: int) -> ModelPlacing:
    """Return where the parameters with these names are; `first` and `last` are layers of these stages, 0: as others.

    Raises:
        LayoutError: layers or experts cannot be divided so, or some are missing.
    """
    known = [parse_name(name) for name in names]
    if sizes.expert > 1 and not any(_OF_EXPERTS in name.weight for name in known):
        raise LayoutError(f"there are no experts to divide among {sizes.expert} expert-parallel ranks")
    layers = sorted({layer for name in known if (layer := name.layer) is not None})
    experts = sorted({expert for name in known if (expert := name.expert) is not None})
    _check_numbers(layers, "layer")
    _check_numbers(experts, "expert")
    if experts and len(experts) % sizes.expert:
        raise LayoutError(f"{len(experts)} experts cannot be divided evenly among {sizes.expert} expert-parallel ranks")
    division = LayerDivision(sizes.pipeline, len(layers), sizes.virtual, first or None, last or None)
    places = layer_places(division)
    weights = {name.weight for name in known}
    has_mtp = any(weight.startswith(_MTP) for weight in weights)
    return ModelPlacing(sizes, places, len(experts), has_mtp, OUTPUT_LAYER not in weights)


def _check_numbers(numbers: Sequence[int], what: str) -> None:
    missing = sorted(set(range(numbers[-1] + 1)).difference(numbers)) if numbers else []
    if missing:
        raise LayoutError(
            f"there are {what}s up to {numbers[-1]}, but not {what} {listed(list(map(str, missing)), _MAX_LISTED)}"
        )

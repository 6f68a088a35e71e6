"""Names in a directory of Megatron-Core's `torch_dist`, and names of tensors in it.

    .metadata, __0_0.distcp, …    DCP's; also of `all_local_plans`, the ranks' plans of saving, which are not needed
    common.pt                     a pickle of all that is not sharded: arguments, iteration, schedules
    metadata.json                 {"sharded_backend": "torch_dist", …}; written last

Tensors are named as Transformer Engine's layers name them, whichever layers were trained. Layers that are alike are one
tensor, its first axis their number: `decoder.layers.mlp.linear_fc1.weight`; so are experts. Here every parameter has
the name that it has in a model of Megatron-Core's own layers, with the numbers of its layer and its expert.

    decoder.layers.self_attention.linear_qkv.layer_norm_weight    decoder.layers.3.input_layernorm.weight
    decoder.layers.3.mlp.linear_fc1.layer_norm_weight             decoder.layers.3.pre_mlp_layernorm.weight
    ….mlp.experts.experts.linear_fc1.weight                       ….mlp.experts.local_experts.5.linear_fc1.weight
    ….mlp.experts.experts.5.linear_fc1.weight_w and …_v           the same: gate rows, then up rows
    optimizer.state.exp_avg.NAME                                  the same, with NAME as here
    chained_0.optimizer.state.exp_avg.NAME                        optimizer.state.exp_avg.NAME
    optimizer.state.fp32_param.NAME                               optimizer.state.param.NAME
"""

import re

from reshard.core.runtime.records import Record

COMMON_NAME = "common.pt"
CONFIG_NAME = "metadata.json"
OBJECTS_NAME = "__extra_state.distcp"
"""File of the objects of a target."""
BACKEND = ("torch_dist", 1)
MAX_COMMON_BYTES = 256 << 20

_STATE = re.compile(r"(?:chained_\d+\.)?(optimizer\.state\.[a-z0-9_]+\.)(.+)", re.ASCII | re.DOTALL)
_OPTIMIZER = re.compile(r"(?:chained_\d+\.)?optimizer\.", re.ASCII)
_STACKED_LAYERS = re.compile(r"((?:.*\.)?layers\.)((?!\d).+)", re.ASCII | re.DOTALL)
_STACKED_EXPERTS = re.compile(r"(.*\.experts\.)experts\.((?!\d).+)", re.ASCII | re.DOTALL)
_NUMBERED_EXPERT = re.compile(r"(.*\.experts\.)experts\.(\d+\..+)", re.ASCII | re.DOTALL)
_HALF = re.compile(r"(.*\.linear_fc1\.(?:weight|bias))_([wv])", re.ASCII | re.DOTALL)
_NORMS = (
    (
        re.compile(r"(.*)\.self_attention\.linear_qkv\.layer_norm_(weight|bias)", re.ASCII | re.DOTALL),
        "input_layernorm",
    ),
    (re.compile(r"(.*)\.mlp\.linear_fc1\.layer_norm_(weight|bias)", re.ASCII | re.DOTALL), "pre_mlp_layernorm"),
)


class StoredName(Record):
    """What the name of a stored tensor says.

    Attributes:
        pieces: the names of its parameters, but for the numbers along its first axes, which belong between them.
        half: 0 if it is the first rows of its parameters, 1 if it is the last ones; None if it is all of them.
    """

    pieces: tuple[str, ...]
    half: int | None = None

    @property
    def stacked_axes(self) -> int:
        """The number of its first axes that count layers and experts."""
        return len(self.pieces) - 1

    def parameter(self, index: tuple[int, ...]) -> str:
        """Return the name of the parameter at an index along those axes."""
        return self.pieces[0] + "".join(
            f"{number}{piece}" for number, piece in zip(index, self.pieces[1:], strict=True)
        )


def parse_stored(name: str) -> StoredName:
    """Parse the name of a stored tensor."""
    state = _STATE.fullmatch(name)
    pieces = [state[2] if state else name]
    if layers := _STACKED_LAYERS.fullmatch(pieces[0]):
        pieces = [layers[1], f".{layers[2]}"]
    if experts := _STACKED_EXPERTS.fullmatch(pieces[-1]):
        pieces[-1:] = [f"{experts[1]}local_experts.", f".{experts[2]}"]
    elif expert := _NUMBERED_EXPERT.fullmatch(pieces[-1]):
        pieces[-1] = f"{expert[1]}local_experts.{expert[2]}"
    half = _HALF.fullmatch(pieces[-1])
    if half:
        pieces[-1] = half[1]
    for fused, module in _NORMS:
        if norm := fused.fullmatch(pieces[-1]):
            pieces[-1] = f"{norm[1]}.{module}.{norm[2]}"
    if state:
        pieces[0] = state[1].replace(".fp32_param.", ".param.") + pieces[0]
    return StoredName(tuple(pieces), None if half is None else "wv".index(half[2]))


def is_of_optimizer(name: str) -> bool:
    """True for the name of a stored tensor of an optimizer."""
    return _OPTIMIZER.match(name) is not None


def parse_state(name: str) -> tuple[str, str]:
    """Return the prefix of a parameter of an optimizer, empty for others, and the name of its weight."""
    state = _STATE.fullmatch(name)
    return (state[1], state[2]) if state else ("", name)

"""The arguments of a training, `args` in each file: the few that say how the model lies in the files.

Megatron-Core and MindSpeed spell some differently, and leave out what they do not use.
"""

from collections.abc import Collection, Mapping
from functools import cached_property

from reshard.core.errors import CatalogError, raise_problems
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed

_NAMESPACE = Global("argparse", "Namespace")
_MOST = {"layers": 1 << 16, "mtp_layers": 1 << 10}
_MOST_RANKS, _MOST_ELEMENTS = 1 << 20, 1 << 40
_LONGEST_TEXT = 1 << 16

_SIZES: dict[str, tuple[str, ...]] = {
    "tensor_size": ("tensor_model_parallel_size",),
    "pipeline_size": ("pipeline_model_parallel_size",),
    "virtual_size": ("virtual_pipeline_model_parallel_size",),
    "expert_size": ("expert_model_parallel_size",),
    "expert_tensor_size": ("expert_tensor_parallel_size",),
    "layers_per_chunk": ("num_layers_per_virtual_pipeline_stage",),
    "layers": ("num_layers", "num_hidden_layers"),
    "mtp_layers": ("mtp_num_layers",),
    "first_layers": ("decoder_first_pipeline_num_layers",),
    "last_layers": ("decoder_last_pipeline_num_layers",),
    "hidden": ("hidden_size",),
    "ffn": ("ffn_hidden_size", "intermediate_size"),
    "moe_ffn": ("moe_ffn_hidden_size", "moe_intermediate_size"),
    "heads": ("num_attention_heads",),
    "query_groups": ("num_query_groups",),
    "key_value_heads": ("num_key_value_heads",),
    "head_size": ("kv_channels", "head_dim"),
    "experts": ("num_experts", "num_moe_experts", "num_local_experts", "n_routed_experts"),
    "vocabulary": ("vocab_size",),
    "padded_vocabulary": ("padded_vocab_size",),
    "vocabulary_divisor": ("make_vocab_size_divisible_by",),
    "query_rank": ("q_lora_rank",),
    "key_value_rank": ("kv_lora_rank",),
    "rope_head_size": ("qk_pos_emb_head_dim", "qk_rope_head_dim"),
    "nope_head_size": ("qk_head_dim", "qk_nope_head_dim"),
    "value_head_size": ("v_head_dim",),
}
_MAY_BE_ZERO = frozenset({"mtp_layers", "first_layers", "last_layers", "experts", "layers_per_chunk"})
_NEEDED = ("tensor_size", "pipeline_size", "layers")
_SWITCHES: dict[str, tuple[str, ...]] = {
    "gated": ("swiglu", "quick_geglu", "gated_linear_unit"),
    "untied": ("untie_embeddings_and_output_weights",),
    "grouped_queries": ("group_query_attention",),
    "experts_over_tensor": ("moe_tp_extend_ep",),
}
_GATED_TOO = ("geglu", "quick_geglu")
"""Gated activations, as of Gemma, with which a training says that it has no swiglu."""
_NUMBER_LISTS: Mapping[str, str] = {"layer_counts": "num_layer_list", "noop_layers": "noop_layers"}
_ARGUMENTS: Mapping[str, str] = {
    **{field: spellings[0] for field, spellings in (_SIZES | _SWITCHES).items()},
    **_NUMBER_LISTS,
    "has_dense_layers": "moe_layer_freq",
    "schedule": "schedules_method",
    "own_placements": "layers placed by",
}
"""Field -> the argument of Megatron's that it is."""
_OWN_PLACEMENTS = (
    "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)


class MegatronArgs(Record, dict=True, kw_only=True):
    """Arguments of a training; None where they do not say.

    Attributes:
        tensor_size: T, pipeline_size: P, expert_size: E, expert_tensor_size: X, the latter T unless given.
        virtual_size: V, chunks of each pipeline stage; layers_per_chunk says it by their size.
        layers: with layers that are no-ops; first_layers, last_layers: of those, on the first and last stage.
        layer_counts: of each stage; noop_layers: numbers of layers that do nothing, and have no parameters.
        gated: the first matrix of an MLP is a gate and an up matrix.
        untied: the output layer has a weight of its own.
        has_dense_layers: layers without experts; without any, the size of their MLP means nothing.
        experts_over_tensor: whole experts are divided among the tensor-parallel ranks as well.
        schedule: MindSpeed's schedule of the pipeline.
        own_placements: names of arguments that divide layers among stages by rules of their own.
    """

    tensor_size: int
    pipeline_size: int
    layers: int
    virtual_size: int | None = None
    expert_size: int = 1
    expert_tensor_size: int = 1
    layers_per_chunk: int | None = None
    mtp_layers: int | None = None
    first_layers: int | None = None
    last_layers: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    moe_ffn: int | None = None
    heads: int | None = None
    query_groups: int | None = None
    key_value_heads: int | None = None
    head_size: int | None = None
    experts: int | None = None
    vocabulary: int | None = None
    padded_vocabulary: int | None = None
    vocabulary_divisor: int | None = None
    query_rank: int | None = None
    key_value_rank: int | None = None
    rope_head_size: int | None = None
    nope_head_size: int | None = None
    value_head_size: int | None = None
    gated: bool | None = None
    untied: bool | None = None
    grouped_queries: bool | None = None
    experts_over_tensor: bool | None = None
    has_dense_layers: bool = True
    layer_counts: tuple[int, ...] = ()
    noop_layers: tuple[int, ...] = ()
    schedule: str = ""
    own_placements: tuple[str, ...] = ()

    @cached_property
    def groups(self) -> int | None:
        """How many groups of heads share a key and a value; Megatron's own number is 1 without grouped queries."""
        if self.grouped_queries:
            return self.query_groups or self.key_value_heads
        return self.key_value_heads or self.heads

    @property
    def row_multiple(self) -> int:
        """What training pads the rows of a vocabulary to a multiple of; 0 if it says the vocabulary's size itself."""
        return 0 if self.vocabulary is not None else (self.vocabulary_divisor or 0) * self.tensor_size

    @property
    def mirrors(self) -> bool:
        """True if each stage has two chunks, the second ones in descending order (dualpipev)."""
        return self.schedule == "dualpipev"


def parse_args(value: object, origin: str, needed: Collection[str] = _NEEDED) -> MegatronArgs:
    """Return the arguments in a pickled `argparse.Namespace`; sizes of parallelism that are not `needed` may be 1.

    Raises:
        CatalogError: it is none, or has values that no training has; names all of them.
    """
    given = _fields(value)
    if given is None:
        raise CatalogError(f"{origin}: its 'args' are not an argparse.Namespace, so it does not say how it was saved")
    problems: list[str] = []
    known: dict[str, object] = {}
    for field, spellings in _SIZES.items():
        _take(known, field, _size(field, given, spellings, problems))
    for field, spellings in _SWITCHES.items():
        _take(known, field, _switch(given, spellings, problems))
    if any(given.get(name) is True for name in _GATED_TOO):
        known["gated"] = True
    for field, spelling in _NUMBER_LISTS.items():
        known[field] = _numbers(spelling, given.get(spelling), problems)
    known["has_dense_layers"] = not known.get("experts") or _has_dense_layers(given)
    schedule = given.get("schedules_method")
    if not isinstance(schedule, str | None):
        problems.append(f"schedules_method is {_shown(schedule)}, not a text")
    known["schedule"] = schedule if isinstance(schedule, str) else ""
    known["own_placements"] = tuple(name for name in _OWN_PLACEMENTS if given.get(name) not in (None, False))
    for field in needed:
        if field not in known and not any(spelling in line for line in problems for spelling in _SIZES[field]):
            problems.append(f"{_SIZES[field][0]} is missing")
    raise_problems(CatalogError, f"{origin}: its 'args' do not say how it was saved", problems)
    for field in ("tensor_size", "pipeline_size"):
        known.setdefault(field, 1)
    known.setdefault("expert_tensor_size", known["tensor_size"])
    return MegatronArgs(**known)  # type: ignore[arg-type]  # each by its field's own rule


def differences(one: MegatronArgs, other: MegatronArgs) -> list[str]:
    """Return the arguments that differ, as `num_layers (4, 8)`."""
    found = []
    for field in one.__struct_fields__:
        values = getattr(one, field), getattr(other, field)
        if values[0] != values[1]:
            found.append(f"{_ARGUMENTS.get(field, field)} ({_shown(values[0])}, {_shown(values[1])})")
    return found


def model_numbers(args: MegatronArgs) -> Mapping[str, int]:
    """Return the numbers of the model under the names that Hugging Face's config.json gives them."""
    numbers = {
        "num_hidden_layers": args.layers - len(args.noop_layers),
        "hidden_size": args.hidden,
        "intermediate_size": args.ffn if args.has_dense_layers else None,
        "moe_intermediate_size": args.moe_ffn,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.groups,
        "head_dim": args.head_size,
        "num_experts": args.experts,
        "n_routed_experts": args.experts,
        "vocab_size": args.vocabulary,
        "q_lora_rank": args.query_rank,
        "kv_lora_rank": args.key_value_rank,
        "qk_rope_head_dim": args.rope_head_size,
        "qk_nope_head_dim": args.nope_head_size,
        "v_head_dim": args.value_head_size,
        "num_nextn_predict_layers": args.mtp_layers,
    }
    return {name: number for name, number in numbers.items() if number is not None}


def _fields(value: object) -> dict[str, object] | None:
    """The attributes of a pickled namespace; None if it is not one. Old protocols name its class as an argument."""
    if not isinstance(value, PickledObject) or not isinstance(value.state, Pairs):
        return None
    if value.made_by != _NAMESPACE and _NAMESPACE not in value.arguments:
        return None
    return {name: field for name, field in value.state if isinstance(name, str)}


def _has_dense_layers(given: Mapping[str, object]) -> bool:
    """True if a model with experts has layers without, by Megatron's argument or MindSpeed's."""
    frequency = given.get("moe_layer_freq")
    routes_all = frequency in (None, 1) or (isinstance(frequency, list) and all(each == 1 for each in frequency))
    return not routes_all or given.get("first_k_dense_replace") not in (None, 0)


def _take(known: dict[str, object], field: str, value: object) -> None:
    if value is not None:
        known[field] = value


def _size(field: str, given: Mapping[str, object], spellings: tuple[str, ...], problems: list[str]) -> int | None:
    lowest = 0 if field in _MAY_BE_ZERO else 1
    most = _MOST.get(field, _MOST_RANKS if field.endswith("_size") and "head" not in field else _MOST_ELEMENTS)
    for spelling in spellings:
        value = given.get(spelling)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= most:
            problems.append(f"{spelling} is {_shown(value)}, not a number from {lowest} to {most}")
            return None
        return value
    return None


def _switch(given: Mapping[str, object], spellings: tuple[str, ...], problems: list[str]) -> bool | None:
    """Return True if any of the arguments is; each is one way to ask for the same."""
    found = None
    for spelling in spellings:
        value = given.get(spelling)
        if isinstance(value, bool):
            found = found or value
        elif value is not None:
            problems.append(f"{spelling} is {_shown(value)}, not True or False")
    return found


def _numbers(spelling: str, value: object, problems: list[str]) -> tuple[int, ...]:
    """Numbers as MindSpeed has them: text, `1,4`, or a list or set after training has read it."""
    if isinstance(value, PickledObject) and value.made_by.name in ("set", "frozenset") and len(value.arguments) == 1:
        [value] = value.arguments
    if value is None or value == "":
        return ()
    parts = value
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        parts = [int(part) if part.isascii() and part.strip().isdigit() else part for part in value.split(",")]
    if not isinstance(parts, list | tuple):
        problems.append(f"{spelling} is {_shown(value)}, not a list of numbers")
        return ()
    numbers = [part for part in parts if isinstance(part, int) and not isinstance(part, bool) and 0 <= part <= 1 << 16]
    if len(numbers) != len(parts) or len(numbers) > _MOST["layers"]:
        problems.append(f"{spelling} is {_shown(value)}, not a list of numbers")
        return ()
    return tuple(numbers)


def _shown(value: object) -> str:
    """A value as a message shows it; objects by their class."""
    if isinstance(value, PickledObject):
        return f"an object of {value.made_by}"
    if isinstance(value, list | tuple):
        return f"[{listed([_shown(part) for part in value], 6)}]"
    return repr(value)[:80]

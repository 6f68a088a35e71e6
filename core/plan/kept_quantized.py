"""Quantized weights that are kept as they are: each goes with tensors beside it, which say what its bytes mean.

They are resharded and renamed as any other, byte for byte. Nothing else can become of them: a part of a weight, or rows
in another order, would need other scales, and a scale in another dtype is another scale.
"""

from collections.abc import Iterable, Iterator, Mapping

from reshard.core.plan.model import PassedThroughParameter, ReshardedParameter
from reshard.core.runtime.records import Record
from reshard.core.tensor.dtypes import DType
from reshard.core.text.options import option


class _Scheme(Record):
    """How a quantization names what belongs to a weight.

    Attributes:
        title: its name in messages.
        weight: ending of the weights' names.
        beside: endings of what belongs to a weight, in its place.
        dtypes: element types of the weights.
        advice: what to do instead of keeping them.
    """

    title: str
    weight: str
    beside: tuple[str, ...]
    dtypes: tuple[str, ...]
    advice: str


_ADVICE = "convert the model that they were made from, and quantize it then"
_BESIDE_SCALED = (".weight_scale", ".weight_scale_2", ".input_scale")
_BESIDE_BLOCKWISE = (".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map")
_SCHEMES = (
    _Scheme(
        "block-fp8",
        "",
        ("_scale_inv",),
        ("F8_E4M3", "F8_E5M2"),
        f"make them bfloat16, {option('fp8', 'dequantize')}",
    ),
    _Scheme(
        "scaled fp8",
        ".weight",
        _BESIDE_SCALED,
        ("F8_E4M3", "F8_E5M2"),
        _ADVICE,
    ),
    _Scheme(
        "packed 4-bit",
        ".weight",
        (*_BESIDE_SCALED, *_BESIDE_BLOCKWISE),
        ("UInt8",),
        _ADVICE,
    ),
    _Scheme(
        "packed 4-bit",
        ".weight_packed",
        (*_BESIDE_SCALED, ".weight_global_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx"),
        ("UInt8", "Int32"),
        _ADVICE,
    ),
    _Scheme(
        "GPTQ's or AWQ's",
        ".qweight",
        (".scales", ".qzeros", ".g_idx"),
        ("Int32",),
        _ADVICE,
    ),
    _Scheme(
        "int8",
        ".weight",
        (".SCB", ".weight_zero_point"),
        ("Int8",),
        _ADVICE,
    ),
    _Scheme(
        "ModelSlim's int8",
        ".weight",
        (".weight_scale", ".weight_offset", ".deq_scale", ".quant_bias", ".input_scale", ".input_offset"),
        ("Int8",),
        _ADVICE,
    ),
    _Scheme(
        "MXFP4",
        "_blocks",
        ("_scales",),
        ("UInt8",),
        "convert a model that is not quantized",
    ),
)


class _Kept(Record):
    """What is made of a source parameter: its name in the target, and what makes it another than the source's."""

    name: str
    change: str


def quantized_groups(dtypes: Mapping[str, DType]) -> Iterator[tuple[str, str, str, str]]:
    """Yield quantized weights among parameters, each with one beside it, the scheme's title and its advice."""
    for scheme in _SCHEMES:
        for weight, dtype in dtypes.items():
            if dtype.name in scheme.dtypes and weight.endswith(scheme.weight):
                stem = weight.removesuffix(scheme.weight)
                for ending in scheme.beside:
                    if f"{stem}{ending}" in dtypes:
                        yield weight, f"{stem}{ending}", scheme.title, scheme.advice


def kept_problems(
    resharded: Iterable[ReshardedParameter],
    passed_through: Iterable[PassedThroughParameter],
    dtypes: Mapping[str, DType],
) -> Iterator[str]:
    """Yield what is wrong with quantized weights that are kept; `dtypes` are those of the source's parameters."""
    groups = list(quantized_groups(dtypes))
    if not groups:
        return
    kept: dict[str, list[_Kept]] = {}
    for parameter in resharded:
        for source, change in _uses(parameter):
            kept.setdefault(source, []).append(_Kept(parameter.name, change))
    for passed in passed_through:
        change = "" if passed.dtype is dtypes[passed.source_name] else f"cast to {passed.dtype}"
        kept.setdefault(passed.source_name, []).append(_Kept(passed.name, change))
    for weight, beside, title, advice in groups:
        problem = _problem(weight, beside, kept)
        if problem:
            yield (
                f"parameter {weight!r} is {title}, and {beside!r} belongs to it: both can only be kept as they are, "
                f"and {problem}; {advice}"
            )


def _uses(parameter: ReshardedParameter) -> Iterator[tuple[str, str]]:
    """The source parameters whose bytes a parameter has, and what else becomes of them; not those dequantized."""
    scaled = {piece.source for piece in parameter.pieces if piece.scale is not None}
    scales = {piece.scale.source for piece in parameter.pieces if piece.scale is not None}
    for number, source in enumerate(parameter.sources):
        if number in scaled | scales:
            continue
        changes = [step for step in parameter.steps if step != "renamed"]
        if parameter.dtype is not source.dtype:
            changes.append(f"cast to {parameter.dtype}")
        yield source.name, " and ".join(changes) or ("" if parameter.is_whole else "changed")


def _problem(weight: str, beside: str, kept: Mapping[str, list[_Kept]]) -> str:
    """What keeps the two from being as they are in the source, under names that belong together; empty if nothing."""
    for source in (weight, beside):
        for each in kept.get(source, ()):
            if each.change:
                return f"{source!r} would be {each.change}"
    stems = {source: {each.name for each in kept.get(source, ())} for source in (weight, beside)}
    common = _common_length(weight, beside)
    wanted = {f"{name.removesuffix(weight[common:])}{beside[common:]}" for name in stems[weight]}
    if stems[weight] and stems[beside] != wanted:
        return f"{beside!r} would be {_listed(stems[beside])}, not {_listed(wanted)}"
    return ""


def _common_length(one: str, other: str) -> int:
    return next(
        (place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right),
        min(len(one), len(other)),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "left out"

"""A Hugging Face directory as the reference of a target: its configuration, its tokenizer, its weights' headers.

The reference's names decide, tied heads among them: what it has and the target lacks, or the other way round, is an
error before a byte moves. So are shapes, and dtypes but for one: all of a model may have another dtype than the
reference, as one trained in float32 has, and `config.json` says so then.

Weights in block-fp8 or MXFP4 stand for the same names without their scales, in any dtype.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import field
from msgspec.structs import replace

from reshard.core.changes.changes import FLOAT_NAMES, CastRule
from reshard.core.changes.model_config import CONFIG_NAME, read_config
from reshard.core.errors import InputError, PlanError, raise_problems
from reshard.core.files.model import TensorEntry
from reshard.core.layouts.survey import find_self_described
from reshard.core.layouts.unified.companions import Companions, companions_of
from reshard.core.layouts.unified.names import COMPANION_NAMES, is_index_name, is_unified_name
from reshard.core.layouts.unified.target import with_companions
from reshard.core.plan.kept_quantized import quantized_groups
from reshard.core.plan.model import ReshardedParameter
from reshard.core.plan.mxfp4 import BLOCKS, SCALES, packed_names, without_packed
from reshard.core.plan.names import fits_any
from reshard.core.plan.operations import unpacked_shape
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.preset_checks import rotary_buffers, rotary_buffers_note
from reshard.core.plan.preset_steps import without_state
from reshard.core.plan.quantizing import SCALE_ENDING, quantization_config
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed
from reshard.core.source.model_dtypes import quantization_of
from reshard.core.source.opening import open_source
from reshard.core.storage.near_names import did_you_mean
from reshard.core.storage.publishing import list_names
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import TEXT, DType
from reshard.core.text.options import option

_CONFIG_NAMES = {name: spelled for spelled, name in FLOAT_NAMES.items()}
"""Name of a dtype -> its name in `config.json`."""
_PACKED = frozenset({"Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32"})
_NOT_OF_MODEL = frozenset({"README.md", "LICENSE", ".gitattributes", ".git", ".cache", ".reshard"})


class Reference(Record):
    """The Hugging Face directory that a target is modelled on.

    Attributes:
        url: the directory.
        config: its `config.json`.
        companions: names of files that are copied from it.
        others: names of files that are not, weights apart.
        weights: name -> entry of its weights, without the scales of block-fp8; None if it has none that can be read.
        scaled: names of weights in block-fp8 or MXFP4.
        packed: name -> entry of the blocks and scales of MXFP4.
    """

    url: str
    config: Mapping[str, Any]
    companions: tuple[str, ...]
    others: tuple[str, ...]
    weights: Mapping[str, TensorEntry] | None
    scaled: frozenset[str]
    packed: Mapping[str, TensorEntry] = field(default_factory=dict)

    def as_kept(self) -> "Reference":
        """Return the reference of a target whose weights in MXFP4 are kept as they are."""
        weights = {name: entry for name, entry in (self.weights or {}).items() if name not in packed_names(self.packed)}
        return replace(self, weights={**weights, **self.packed})


def read_reference(url: str) -> Reference:
    """Read what a Hugging Face directory has; of its weights the headers.

    Raises:
        InputError: it is not such a directory, or its files cannot be used.
        StorageError: a transient failure.
    """
    directory = parse_url(url)
    names = list_names(directory)
    if "config.json" not in names:
        near = "" if names else did_you_mean(directory)
        raise InputError(
            f"{url}: has no config.json, so that it is not a Hugging Face model's directory: name one that has it, "
            f"or put the model's there{near}"
        )
    found = find_self_described(url)
    files = set[str]()
    if found is not None and found.has_whole_tensors:
        files = {file.location.name for of_rank in found.files.values() for file in of_rank}
    packed: dict[str, TensorEntry] = {}
    weights = _read_weights(url) if files or any(is_unified_name(name) for name in names) else None
    scaled = _scaled(weights or {})
    if weights is not None:
        scales = {f"{name}{SCALE_ENDING}" for name in scaled}
        weights = {name: entry for name, entry in weights.items() if name not in scales}
        unpacked = {name: _unpacked(entry) for name, entry in packed_names(weights).items() if len(entry.shape) == 4}
        packed = {name: weights[name] for stem in unpacked for name in (f"{stem}{BLOCKS}", f"{stem}{SCALES}")}
        weights, scaled = without_packed(weights) | unpacked, scaled | unpacked.keys()
    return Reference(
        url,
        read_config(directory),
        tuple(name for name in names if name in COMPANION_NAMES),
        tuple(name for name in names if name not in files and not _is_known(name)),
        weights,
        scaled,
        packed,
    )


def with_reference(plan: ConversionPlan, reference: Reference) -> ConversionPlan:
    """Return the plan with the reference's companions, after its parameters have been held against the reference's.

    Raises:
        PlanError: names, shapes or dtypes are not the reference's.
        InputError: a companion cannot be read.
        StorageError: a transient failure.
    """
    scales = {f"{each.name}{SCALE_ENDING}" for each in plan.match.resharded if each.dtype.is_float8}
    parameters = [each for each in plan.match.resharded if each.dtype is not TEXT and each.name not in scales]
    if packed_names({each.name: each for each in parameters}):
        reference = reference.as_kept()
    beside = _beside_quantized({each.name: each.dtype for each in parameters})
    dtype = _main_dtype([each for each in parameters if without_state(each.name) == each.name not in beside])
    notes = []
    if reference.weights is None:
        notes.append(f"{reference.url}: has no weights: names, shapes and dtypes were not held against it")
    else:
        allowed = plan.inputs.allow_missing
        problems = list(
            _differences(parameters, dtype, reference, reference.weights, allowed, plan.inputs.changes.cast)
        )
        headline = f"{plan.inputs.catalog.url}: would not become what {reference.url} is"
        if not _is_alike(parameters, reference.weights):
            headline += f", whose names are others. {option('preset')} converts names: give it the model's family"
        raise_problems(PlanError, headline, problems)
        plan = plan.with_compared_shapes(reference.weights, reference.url)
        lacking = rotary_buffers(reference.weights.keys() - {each.name for each in parameters})
        if lacking:
            notes.append(f"{reference.url}: {rotary_buffers_note(lacking)}")
    dtype_name = _CONFIG_NAMES.get(dtype.name, dtype.name.lower())
    companions = companions_of(reference.url, reference.companions, dtype_name, _quantization(plan, reference))
    notes.insert(0, _note(companions, reference, dtype, {each.name for each in parameters}))
    return plan.with_layout(with_companions(plan.inputs.layout, companions)).with_notes(*notes)


def _beside_quantized(dtypes: Mapping[str, DType]) -> frozenset[str]:
    """Names of what belongs to quantized weights: its dtypes are not the model's."""
    return frozenset(beside for _, beside, _, _ in quantized_groups(dtypes))


def _quantization(plan: ConversionPlan, reference: Reference) -> Mapping[str, Any]:
    """The `quantization_config` of the target's config.json; empty if its weights are not quantized."""
    if plan.quantizes:
        parameters = [each for each in plan.match.resharded if without_state(each.name) == each.name]
        return quantization_config([each.name for each in parameters if each.quantized is None and len(each.shape) > 1])
    dtypes = {each.name: each.dtype for each in plan.match.resharded}
    if any(dtype.is_float8 for dtype in dtypes.values()) or any(quantized_groups(dtypes)):
        return quantization_of(reference.config)
    # schemes that reshard does not know, too, have matrices of small integers
    known = reference.weights or {}
    packed = (each for each in plan.match.resharded if each.dtype.name in _PACKED and len(each.shape) > 1)
    is_kept = any(each.name in known and known[each.name].dtype is each.dtype for each in packed)
    return quantization_of(reference.config) if is_kept else {}


def _is_known(name: str) -> bool:
    return name in COMPANION_NAMES or name in _NOT_OF_MODEL or is_unified_name(name) or is_index_name(name)


def _read_weights(url: str) -> dict[str, TensorEntry]:
    catalog = open_source(SourceRequest(source=url, auto_strategy=False, check_crc=False)).catalog
    return {name: entry for index in catalog.indexes() for name, entry in index.entries.items()}


def _scaled(weights: Mapping[str, TensorEntry]) -> frozenset[str]:
    """Names of weights with a scale beside them, and one byte an element."""
    return frozenset(
        name
        for name, entry in weights.items()
        if entry.dtype.name.upper().startswith(("F8", "FLOAT8")) and f"{name}{SCALE_ENDING}" in weights
    )


def _unpacked(blocks: TensorEntry) -> TensorEntry:
    """The entry that a weight in MXFP4 would have unpacked and transposed, by that of its blocks."""
    experts, rows, columns = unpacked_shape(blocks.shape)
    return replace(blocks, shape=(experts, columns, rows))


def _main_dtype(parameters: list[ReshardedParameter]) -> DType:
    """The dtype with the most elements among floating-point parameters."""
    counts: Counter[DType] = Counter()
    for each in parameters:
        counts[each.dtype] += math.prod(each.shape) if each.dtype.is_float else 0
    if not counts:
        raise PlanError("no tensor is left to write into a Hugging Face directory")
    return counts.most_common(1)[0][0]


def _differences(
    parameters: list[ReshardedParameter],
    dtype: DType,
    reference: Reference,
    weights: Mapping[str, TensorEntry],
    allow_missing: tuple[str, ...],
    casts: Sequence[CastRule],
) -> Iterator[str]:
    """What is too much, missing or different in the target, in sentences."""
    counts: Counter[DType] = Counter()
    others = reference.scaled | _beside_quantized({name: entry.dtype for name, entry in weights.items()})
    for name, entry in weights.items():
        counts[entry.dtype] += math.prod(entry.shape) if entry.dtype.is_float and name not in others else 0
    main = counts.most_common(1)[0][0] if counts else dtype
    found = {each.name: each for each in parameters}
    is_alike = _is_alike(parameters, weights)
    yield from (_surplus(each, weights, is_alike=is_alike) for name, each in found.items() if name not in weights)
    for name, entry in weights.items():
        parameter = found.get(name)
        if parameter is None:
            if not fits_any(name, allow_missing) and not rotary_buffers([name]):
                yield f"parameter {name!r} is missing{_missing_advice(name, reference)}"
            continue
        if parameter.shape != entry.shape:
            yield f"parameter {name!r} has shape {list(parameter.shape)}, the reference's has {list(entry.shape)}"
        expected = dtype if entry.dtype is main else entry.dtype
        if parameter.dtype is not expected and name not in reference.scaled and parameter.quantized is None:
            cast = option("cast", [f"{name}={_CONFIG_NAMES.get(expected.name, expected.name)}"])
            advice = f"{cast}, if it is to be that"
            asked = [rule.dtype for rule in casts if fits_any(name, (rule.parameters,))]
            if _CONFIG_NAMES.get(expected.name) in asked[1:]:  # the first counts, and a preset's are first
                advice = (
                    "an earlier cast, or the preset, makes it that. To keep it so, leave out "
                    f"{option('like')}, and name the model's config.json with {option('config_json')}"
                )
            yield f"parameter {name!r} is {parameter.dtype}, the reference's is {entry.dtype}: {advice}"


def _is_alike(parameters: Sequence[ReshardedParameter], weights: Mapping[str, TensorEntry]) -> bool:
    """True if at least half of the names are the reference's: others have names of another program, or model."""
    return 2 * sum(each.name in weights for each in parameters) >= len(parameters)


def _surplus(parameter: ReshardedParameter, weights: Mapping[str, TensorEntry], *, is_alike: bool) -> str:
    sources = listed([repr(source.name) for source in parameter.sources], 3)
    made = "" if sources == repr(parameter.name) else f", made from {sources},"
    if parameter.name == "lm_head.weight" and "model.embed_tokens.weight" in weights:
        return (
            f"parameter {parameter.name!r}{made} is not in the reference, whose head is tied to its embedding: if the "
            f"two are equal in the source as well, leave it out, {option('exclude', [parameter.sources[0].name])}"
        )
    if without_state(parameter.name) != parameter.name:
        return (
            f"parameter {parameter.name!r}{made} is an optimizer's, which no directory of Hugging Face's has: leave "
            f"such out, {option('select', 'weights-only')}, or name its {CONFIG_NAME} with {option('config_json')} and "
            f"leave out {option('like')}"
        )
    if not is_alike:
        return f"parameter {parameter.name!r}{made} is not in the reference"
    return (
        f"parameter {parameter.name!r}{made} is not in the reference: it has another name there, or the reference is "
        f"another model's. Training state is left out by {option('select', 'weights-only')}"
    )


def _missing_advice(name: str, reference: Reference) -> str:
    if name == "lm_head.weight" and reference.config.get("tie_word_embeddings"):
        return (
            ": the source has none, and the reference's config.json ties it to the embedding: leave it to that with "
            f"{option('allow_missing', ['lm_head.weight'])}"
        )
    return f"; what the result can do without is allowed with {option('allow_missing', ['PATTERN'])}"


def _note(companions: Companions, reference: Reference, dtype: DType, names: Collection[str]) -> str:
    files = listed([file.name for file in companions.files])
    checked = ""
    if reference.weights is not None:
        compared = sum(name in names for name in reference.weights)
        checked = f"; {counted(compared, 'tensor')} have its names, shapes and dtypes"
        counts = Counter(entry.dtype for name, entry in reference.weights.items() if name not in reference.scaled)
        if counts and dtype not in counts:
            checked += f" but for the model's own, {dtype}"
    left = f"; not copied: {listed(list(reference.others))}" if reference.others else ""
    return f"like {reference.url}: {files} copied, dtype {companions.dtype}{checked}{left}"

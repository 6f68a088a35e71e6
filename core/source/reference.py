"""A Hugging Face directory as the reference of a target: its configuration, its tokenizer, its weights' headers.

The reference's names decide, tied heads among them: what it has and the target lacks, or the other way round, is an
error before a byte moves. So are shapes, and dtypes but for one: all of a model may have another dtype than the
reference, as one trained in float32 has, and `config.json` says so then.

Weights in block-fp8 stand for the same names without their scales, in any dtype.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from reshard.core.changes.changes import FLOAT_NAMES
from reshard.core.changes.model_config import CONFIG_NAME, read_config
from reshard.core.errors import InputError, PlanError, raise_problems
from reshard.core.files.model import TensorEntry
from reshard.core.layouts.survey import find_self_described
from reshard.core.layouts.unified.companions import Companions, companions_of
from reshard.core.layouts.unified.names import COMPANION_NAMES, is_index_name, is_unified_name
from reshard.core.layouts.unified.target import with_companions
from reshard.core.plan.model import ReshardedParameter
from reshard.core.plan.names import fits_any
from reshard.core.plan.plan import ConversionPlan
from reshard.core.plan.preset_checks import rotary_buffers, rotary_buffers_note
from reshard.core.plan.preset_steps import without_state
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed
from reshard.core.source.opening import open_source
from reshard.core.storage.near_names import did_you_mean
from reshard.core.storage.publishing import list_names
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import TEXT, DType
from reshard.core.text.options import option

_CONFIG_NAMES = {name: spelled for spelled, name in FLOAT_NAMES.items()}
"""Name of a dtype -> its name in `config.json`."""
_SCALE = "_scale_inv"
_NOT_OF_MODEL = frozenset({"README.md", "LICENSE", ".gitattributes", ".git", ".cache", ".reshard"})


class Reference(Record):
    """The Hugging Face directory that a target is modelled on.

    Attributes:
        url: the directory.
        config: its `config.json`.
        companions: names of files that are copied from it.
        others: names of files that are not, weights apart.
        weights: name -> entry of its weights, without the scales of block-fp8; None if it has none that can be read.
        scaled: names of weights in block-fp8.
    """

    url: str
    config: Mapping[str, Any]
    companions: tuple[str, ...]
    others: tuple[str, ...]
    weights: Mapping[str, TensorEntry] | None
    scaled: frozenset[str]


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
            f"{url}: has no config.json: {option('like')} names a Hugging Face directory, of which config.json is "
            f"part{near}"
        )
    found = find_self_described(url)
    files = set[str]()
    if found is not None and found.has_whole_tensors:
        files = {file.location.name for of_rank in found.files.values() for file in of_rank}
    weights = _read_weights(url) if files or any(is_unified_name(name) for name in names) else None
    scaled = _scaled(weights or {})
    if weights is not None:
        scales = {f"{name}{_SCALE}" for name in scaled}
        weights = {name: entry for name, entry in weights.items() if name not in scales}
    return Reference(
        url,
        read_config(directory),
        tuple(name for name in names if name in COMPANION_NAMES),
        tuple(name for name in names if name not in files and not _is_known(name)),
        weights,
        scaled,
    )


def with_reference(plan: ConversionPlan, reference: Reference) -> ConversionPlan:
    """Return the plan with the reference's companions, after its parameters have been held against the reference's.

    Raises:
        PlanError: names, shapes or dtypes are not the reference's.
        InputError: a companion cannot be read.
        StorageError: a transient failure.
    """
    parameters = [each for each in plan.match.resharded if each.dtype is not TEXT]
    dtype = _main_dtype([each for each in parameters if without_state(each.name) == each.name])
    notes = []
    if reference.weights is None:
        notes.append(f"{reference.url}: has no weights: names, shapes and dtypes were not held against it")
    else:
        allowed = plan.inputs.allow_missing
        problems = list(_differences(parameters, dtype, reference, reference.weights, allowed))
        raise_problems(PlanError, f"{plan.inputs.catalog.url}: would not become what {reference.url} is", problems)
        plan = plan.with_compared_shapes(reference.weights, reference.url)
        lacking = rotary_buffers(reference.weights.keys() - {each.name for each in parameters})
        if lacking:
            notes.append(f"{reference.url}: {rotary_buffers_note(lacking)}")
    companions = companions_of(reference.url, reference.companions, _CONFIG_NAMES.get(dtype.name, dtype.name.lower()))
    notes.insert(0, _note(companions, reference, dtype, {each.name for each in parameters}))
    return plan.with_layout(with_companions(plan.inputs.layout, companions)).with_notes(*notes)


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
        if entry.dtype.name.upper().startswith(("F8", "FLOAT8")) and f"{name}{_SCALE}" in weights
    )


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
) -> Iterator[str]:
    """What is too much, missing or different in the target, in sentences."""
    counts: Counter[DType] = Counter()
    for name, entry in weights.items():
        counts[entry.dtype] += math.prod(entry.shape) if entry.dtype.is_float and name not in reference.scaled else 0
    main = counts.most_common(1)[0][0] if counts else dtype
    found = {each.name: each for each in parameters}
    yield from (_surplus(each, weights) for name, each in found.items() if name not in weights)
    for name, entry in weights.items():
        parameter = found.get(name)
        if parameter is None:
            if not fits_any(name, allow_missing) and not rotary_buffers([name]):
                yield f"parameter {name!r} is missing{_missing_advice(name, reference)}"
            continue
        if parameter.shape != entry.shape:
            yield f"parameter {name!r} has shape {list(parameter.shape)}, the reference's has {list(entry.shape)}"
        expected = dtype if entry.dtype is main else entry.dtype
        if parameter.dtype is not expected and name not in reference.scaled:
            yield (
                f"parameter {name!r} is {parameter.dtype}, the reference's is {entry.dtype}: "
                f"{option('cast', [f'{name}={_CONFIG_NAMES.get(expected.name, expected.name)}'])}, if it is to be that"
            )


def _surplus(parameter: ReshardedParameter, weights: Mapping[str, TensorEntry]) -> str:
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

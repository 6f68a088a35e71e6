"""Checks a model's directory, config.json and weights: would transformers and vLLM load what is in it?

Names and shapes are those that config.json asks for, by the preset of its family. transformers gives random values to
what is missing and drops what is left over, with a warning at most; vLLM mostly refuses both.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import field
from pydantic import Field

from reshard.core.changes.model_config import CONFIG_NAME, is_tied, read_config, text_field
from reshard.core.changes.preset import Preset, preset_names, read_preset
from reshard.core.errors import InputError
from reshard.core.files.model import TensorEntry
from reshard.core.layouts.any_layout import model_files_in
from reshard.core.layouts.place import Place, PlaceKind, lacks_manifest, look_at
from reshard.core.plan.loaded_names import LoadedNames, loaded_names
from reshard.core.plan.preset_checks import rotary_buffers
from reshard.core.runtime.records import Record
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted, listed, quoted, size_text
from reshard.core.source.findings import Finding, Severity, quoted_names
from reshard.core.source.model_dtypes import (
    BLOCK_FP8,
    DTYPES,
    SHAPES,
    dtype_findings,
    is_scale,
    quantization_of,
    scale_findings,
)
from reshard.core.source.model_weights import FILES, INDEX, ModelWeights, read_model_weights, weight_findings
from reshard.core.storage.listing import unless_missing
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option

MODEL_CHECKS = ("config", FILES, INDEX, "names", SHAPES, DTYPES)
"""The checks of a model's directory, in their order."""
_CONFIG, _NAMES = "config", "names"
_HEAD_CLASSES = ("ForCausalLM", "ForConditionalGeneration", "ChatGLMModel")
_RANDOM = "transformers initializes them with random values; vLLM refuses to load, or does the same"
_DROPPED = "transformers drops them with a warning; vLLM refuses to load, or drops them too"


class LoadedModel(Summary):
    """What loaders would make of a model's directory.

    Attributes:
        model_type: the family, as config.json calls it; empty if it does not.
        preset: the preset by which names were checked; empty if they were not.
        expected: how many parameters config.json asks for.
        missing: those that no file holds: they would be initialized freshly.
        dropped: names in files that nothing reads.
        renamed: names in files that transformers reads under others, with or without the model's prefix: name -> name.
        mismatched: parameters whose shapes are not those that config.json gives.
        speculative: names that vLLM reads for speculative decoding only.
    """

    model_type: str
    preset: str = ""
    expected: int = 0
    missing: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    renamed: Mapping[str, str] = Field(default={})
    mismatched: tuple[str, ...] = ()
    speculative: tuple[str, ...] = ()


class CheckedModel(Record):
    """The check of a model's directory.

    Attributes:
        url: the directory.
        facts: (name, text), for a table.
        findings: problems and notes.
        not_checked: those of `MODEL_CHECKS` that could not be made; without names nothing confirms the model.
        loaded: what loaders would make of it.
    """

    url: str
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...]
    loaded: LoadedModel


class ModelChoice(Record):
    """The preset that a user names for a model's directory; empty: the one of its `model_type`."""

    preset: str = ""
    allowed_models: tuple[str, ...] = ()


class _Model(Record):
    """A model's config.json and weights, and the names that its loaders look up; None if no preset knows them."""

    config: Mapping[str, Any]
    weights: ModelWeights
    names: LoadedNames | None = None
    read_as: Mapping[str, str] = field(default_factory=dict)

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        """Name that loaders look up -> the entry that they find."""
        return {self.read_as.get(name, name): entry for name, entry in self.weights.entries.items()}


def check_model(url: str, choice: ModelChoice, workers: int) -> CheckedModel | None:
    """Check the model's directory at a URL; None if there is none, with config.json and files of weights.

    Raises:
        InputError: config.json or an index cannot be read, or the preset is not for this model.
        StorageError: a storage failed.
    """
    place = unless_missing(lambda: look_at(url))
    if place is None or not _may_be_model(place):
        return None
    files = model_files_in(place)
    if files is None:
        return None
    config = read_config(place.location)
    model = _Model(config, read_model_weights(files, workers))
    findings = weight_findings(model.weights)
    loaded = LoadedModel(model_type=text_field(config, "model_type"))
    preset, why_not = _preset_of(config, model.weights, choice)
    not_checked: tuple[str, ...] = ()
    if preset is None:
        findings.append(why_not)
        not_checked = (_NAMES, SHAPES)
    else:
        names = loaded_names(preset, config, str(place.location), list(model.weights.entries))
        model = _Model(preset.fields(config), model.weights, names, _renamed(names, model.weights.entries))
        loaded = _loaded(model, preset, loaded.model_type)
        findings += [
            *_part_findings(model.weights, preset),
            *_name_findings(model, loaded),
            *_head_findings(model),
            *_shape_findings(model),
        ]
    findings += dtype_findings(config, model.weights.entries)
    findings += scale_findings(config, model.entries)
    return CheckedModel(str(place.location), tuple(_facts(place, model, loaded)), tuple(findings), not_checked, loaded)


def _may_be_model(place: Place) -> bool:
    if place.kind is not PlaceKind.DIRECTORY or CONFIG_NAME not in place.names or place.rank_folders:
        return False
    return not lacks_manifest(place.location, place.names)  # else reading refuses it as an unfinished conversion


def _facts(place: Place, model: _Model, loaded: LoadedModel) -> Iterator[tuple[str, str]]:
    weights = model.weights
    size = f"{counted(len(weights.entries), 'parameter')}, {size_text(weights.size_bytes)}"
    yield "model", f"{place.location}: {counted(len(weights.files.files), 'file')}, {size}"
    classes = ", ".join(_architectures(model.config))
    yield CONFIG_NAME, f"{loaded.model_type or 'no model_type'}{f' ({classes})' if classes else ''}"
    if loaded.preset:
        yield "expects", f"{counted(loaded.expected, 'parameter')}, by preset {loaded.preset}"


def _architectures(config: Mapping[str, Any]) -> list[str]:
    found = config.get("architectures")
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _preset_of(config: Mapping[str, Any], weights: ModelWeights, choice: ModelChoice) -> tuple[Preset | None, Finding]:
    """The preset of a model, or the note on why there is none."""
    model_type = text_field(config, "model_type")
    classes = _architectures(config)
    method = quantization_of(config).get("quant_method", "")
    unchecked = Finding(
        check=_CONFIG,
        severity=Severity.NOTE,
        found="config.json has no model_type"
        if not model_type
        else f"there is no preset for the family {model_type!r}",
        means="names and shapes were not checked, because it is not known which names loaders read",
        advice=f"give a preset with {option('preset', 'NAME')} ('reshard presets' lists them), or a file of your own",
    )
    if method and method != BLOCK_FP8:
        found = f"the weights are quantized: {method}"
        return None, unchecked.model_copy(update={"found": found, "advice": ""})
    if classes and not any(each.endswith(_HEAD_CLASSES) for each in classes):
        found = f"the model is a {', '.join(classes)}; presets only cover language models with a head"
        return None, unchecked.model_copy(update={"found": found, "advice": ""})
    if choice.preset:
        preset = read_preset(choice.preset)
        if preset.models and model_type and model_type not in (*preset.models, *choice.allowed_models):
            raise InputError(
                f"config.json is a {quoted(model_type)} model's, and preset {preset.preset} is for "
                f"{', '.join(preset.models)}: name the preset of its family (reshard presets lists them), or, if "
                f"its names are those of the preset, {option('allow_model', [model_type])}"
            )
        return preset, unchecked
    presets = [preset for name in preset_names() if model_type in (preset := read_preset(name)).models]
    if not presets:
        return None, unchecked
    return max(presets, key=lambda each: _share_known(each, config, weights)), unchecked


def _share_known(preset: Preset, config: Mapping[str, Any], weights: ModelWeights) -> float:
    """The share of a model's names that the preset knows; several presets may be for one `model_type`."""
    try:
        names = loaded_names(preset, config, "", list(weights.entries))
    except InputError:
        return 0.0
    return sum(name in names.required for name in weights.entries) / max(1, len(names.required))


def _renamed(names: LoadedNames, there: Mapping[str, TensorEntry]) -> dict[str, str]:
    """Names that transformers reads under others: it adds the model's prefix, or takes it away, if that is known."""
    found = {}
    for name in there:
        if _is_read(names, name):
            continue
        other = name.removeprefix(names.prefix) if name.startswith(names.prefix) else f"{names.prefix}{name}"
        if _is_read(names, other) and other not in there:
            found[name] = other
    return found


def _is_read(names: LoadedNames, name: str) -> bool:
    return name in names.required or name in names.optional


def _loaded(model: _Model, preset: Preset, model_type: str) -> LoadedModel:
    names = model.names
    assert names is not None
    entries = model.entries
    required = _required(model, names)
    buffers = {*rotary_buffers(entries)}
    known = {*names.required, *names.optional, *names.speculative, *buffers}
    scales = {name for name in entries if is_scale(name, entries) and quantization_of(model.config)}
    return LoadedModel(
        model_type=model_type,
        preset=preset.preset,
        expected=len(required),
        missing=tuple(name for name in required if name not in entries),
        dropped=tuple(
            name
            for name in model.weights.entries
            if model.read_as.get(name, name) not in known | scales and not preset.is_passed(name)
        ),
        renamed=dict(model.read_as),
        mismatched=tuple(_mismatched(model)),
        speculative=tuple(name for name in names.speculative if name in entries),
    )


def _required(model: _Model, names: LoadedNames) -> dict[str, Shape | None]:
    """What has to be there: of a tied head and its embedding one suffices, and the embedding is what counts."""
    required = dict(names.required)
    if not names.head or names.head in required:
        return required
    if not is_tied(model.config):
        return {**required, names.head: names.optional[names.head]}
    entries = model.entries
    if names.embedding and names.embedding not in entries and names.head in entries:
        del required[names.embedding]
    return required


def _name_findings(model: _Model, loaded: LoadedModel) -> Iterator[Finding]:
    if loaded.missing:
        yield Finding(
            check=_NAMES,
            found=f"missing: {_of(len(loaded.missing), loaded.expected, 'parameters')} that config.json asks for: "
            f"{quoted_names(loaded.missing)}",
            means=_RANDOM,
            advice=_advice_on_names(loaded),
        )
    if loaded.dropped:
        yield Finding(
            check=_NAMES,
            found=f"not read by any loader: {_of(len(loaded.dropped), len(model.weights.entries), 'parameters')} in "
            f"the files: {quoted_names(loaded.dropped)}",
            means=_DROPPED,
            advice="" if loaded.missing else "leave them out, or use the model's own config.json",
        )
    if loaded.renamed:
        one, other = next(iter(loaded.renamed.items()))
        yield Finding(
            check=_NAMES,
            found=f"{counted(len(loaded.renamed), 'parameter')} under other names than the model's, such as {one!r} "
            f"for {other!r}: {quoted_names(list(loaded.renamed))}",
            means="transformers still reads them; vLLM refuses to load",
            advice=f"rename them when converting: {option('rename', [f'{one}={other}'])} and so on",
        )
    yield from _speculative_findings(model, loaded)
    buffers = rotary_buffers(model.entries)
    if buffers:
        yield Finding(
            check=_NAMES,
            severity=Severity.NOTE,
            found=f"{counted(len(buffers), 'buffer')} in the files: {quoted_names(buffers)}",
            means="models compute them from config.json, so loaders ignore them",
        )


def _part_findings(weights: ModelWeights, preset: Preset) -> Iterator[Finding]:
    """Of the parts of a model that its preset only passes through: whether there is something of each."""
    for prefix in preset.passed:
        count = sum(name.startswith(prefix) for name in weights.entries)
        if count:
            yield Finding(
                check=_NAMES,
                severity=Severity.NOTE,
                found=f"{counted(count, 'parameter')} {prefix}* of another part of the model",
                means="their names and shapes were not checked: the preset knows the text model's only",
            )
        else:
            yield Finding(
                check=_NAMES,
                found=f"no parameters {prefix}*, and the model has that part",
                means=_RANDOM,
                advice="export the model with all of its parts, or name a config.json of the text model alone",
            )


def _of(count: int, total: int, what: str) -> str:
    return f"{count} of {total} {what}" + (f" ({100 * count / total:.0f} %)" if total else "")


def _advice_on_names(loaded: LoadedModel) -> str:
    """The difference between names that are missing and those that are left over, if one prefix is all of it."""
    missing = frozenset(loaded.missing)
    surplus = Counter(prefix for name in loaded.dropped for prefix, rest in _tails(name) if rest in missing)
    dropped = frozenset(loaded.dropped)
    lacking = Counter(prefix for name in loaded.missing for prefix, rest in _tails(name) if rest in dropped)
    for prefixes, text in ((surplus, "begin with {} in the files"), (lacking, "lack {} in the files")):
        if prefixes:
            prefix, count = prefixes.most_common(1)[0]
            names = text.format(quoted(prefix))
            return f"{_of(count, len(missing), 'missing ones')} {names}: write them under the family's names"
    return "check a directory with all files; if this is an export, export it again with the family's names"


def _tails(name: str) -> Iterator[tuple[str, str]]:
    """The ways to divide a name into a prefix, which ends in a dot, and the rest."""
    parts = name.split(".")
    for number in range(1, len(parts)):
        yield f"{'.'.join(parts[:number])}.", ".".join(parts[number:])


def _speculative_findings(model: _Model, loaded: LoadedModel) -> Iterator[Finding]:
    names = model.names
    if names is None or not names.speculative:
        return
    missing = [name for name in names.speculative if name not in model.entries]
    if missing:
        yield Finding(
            check=_NAMES,
            found=f"missing in layers for multi-token prediction: {quoted_names(missing)}",
            means="vLLM cannot use these layers for speculative decoding",
            advice="export the layers completely, or leave them out",
        )
    yield Finding(
        check=_NAMES,
        severity=Severity.NOTE,
        found=f"{counted(len(loaded.speculative), 'parameter')} of layers for multi-token prediction",
        means="vLLM reads them for speculative decoding; transformers drops them",
    )


def _head_findings(model: _Model) -> Iterator[Finding]:
    names = model.names
    if names is None or not names.head or not is_tied(model.config):
        return
    entries = model.entries
    if names.head in entries and names.embedding not in entries:
        yield Finding(
            check=_NAMES,
            found=f"{names.head!r} is present and {names.embedding!r} is missing, although config.json ties the two",
            means="vLLM reads only the embedding, and initializes it with random values",
            advice="write the embedding instead of the head",
        )
    elif names.head in entries:
        yield Finding(
            check=_NAMES,
            severity=Severity.NOTE,
            found=f"{names.head!r} is present although config.json ties the head to the embedding",
            means="loaders may use the embedding instead; if the two differ, the model was not tied",
            advice="set tie_word_embeddings to false in config.json if the model was trained with a separate head",
        )


def _mismatched(model: _Model) -> dict[str, Shape]:
    """Parameters of other shapes than config.json gives, and the shapes that it gives."""
    names = model.names
    assert names is not None
    shapes = {**names.speculative, **names.optional, **names.required}
    return {
        name: wanted
        for name, entry in model.entries.items()
        if (wanted := shapes.get(name)) is not None and entry.shape != wanted
    }


def _shape_findings(model: _Model) -> Iterator[Finding]:
    wrong = [
        f"{name!r} is {list(model.entries[name].shape)}, not {list(wanted)}"
        for name, wanted in _mismatched(model).items()
    ]
    if wrong:
        yield Finding(
            check=SHAPES,
            found=f"shapes that differ from config.json: {listed(wrong, separator='; ')}",
            means="config.json belongs to another model, or tensors were transposed, fused or padded: loaders refuse "
            "them",
            advice="use the model's own config.json, or export it with the family's shapes",
        )

"""The changes of a request with a preset: compiled for the source's names before it is opened."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import field
from msgspec.structs import replace

from reshard.core.changes.changes import Changes, Fp8
from reshard.core.changes.changes_file import validated_changes
from reshard.core.changes.model_config import CONFIG_NAME, read_config
from reshard.core.changes.preset import read_preset
from reshard.core.changes.training_config import read_training_config
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import InputError
from reshard.core.files.file_names import parse_name
from reshard.core.layouts.any_layout import is_document
from reshard.core.layouts.source_layout import FoundCheckpoint, ModelFacts
from reshard.core.layouts.targets import side_named
from reshard.core.plan.adapter_route import are_adapters, check_left_out, compile_for_adapter
from reshard.core.plan.preset_checks import check_names, without_rotary_buffers
from reshard.core.plan.preset_route import CompiledPreset, compile_preset
from reshard.core.plan.preset_steps import KnownNames, Settings
from reshard.core.plan.recipes import excluded_names
from reshard.core.request.changing import Dialect
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.conversion import ConversionOptions
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.records import Record
from reshard.core.source.opening import TargetOutline, find_strategy, open_by_strategy
from reshard.core.source.reference import read_reference
from reshard.core.storage.listing import exists
from reshard.core.storage.patterns import RANK_FIELD
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option


class PresetChoice(Record):
    """A preset, as a request names it.

    Attributes:
        preset: its name, or the URL of its document.
        names: whose names the target gets, or B has; empty: not said.
        switches: `NAME=VALUE`.
        training_config: URL of the training's configuration; empty without one.
        config_json: URL of the model's config.json or of its directory; empty: the one of `like`, or of the source.
        like: a Hugging Face directory whose config.json counts, and whose names the target is to have; empty: the
            source's own.
        allowed_models: values of `model_type` in config.json that count as the preset's.
        dialect: the dialect of Hugging Face's names that the target is to have; empty: not named.
        of_target: switch -> the value that the target's layout always has.
        padded_vocabulary: rows that embedding and head get in the target; 0: those of the vocabulary.
    """

    preset: str
    switches: tuple[str, ...]
    training_config: str
    allowed_models: tuple[str, ...]
    like: str = ""
    dialect: str = ""
    of_target: Mapping[str, str] = field(default_factory=dict)
    padded_vocabulary: int = 0
    config_json: str = ""
    names: str = ""

    @classmethod
    def of(cls, request: ConversionOptions | ComparisonRequest, like: str) -> "PresetChoice":
        """Return the preset that a request names."""
        return cls(
            request.preset,
            tuple(request.switch),
            request.training_config,
            tuple(request.allow_model),
            like,
            config_json=request.config_json,
            names=request.names,
        )

    @classmethod
    def of_conversion(cls, request: ConversionOptions) -> "PresetChoice":
        """Return the preset of a conversion, whose target has a layout."""
        return replace(
            cls.of(request, request.reference),
            dialect="" if request.dialect is Dialect.AUTO else request.dialect.value,
            of_target=side_named(request.layout).record.preset_settings,
            padded_vocabulary=request.layout_options.padded_vocabulary(request),
        )

    @classmethod
    def of_comparison(cls, request: ComparisonRequest, like: str) -> "PresetChoice":
        """Return the preset of a comparison, whose B has a layout."""
        b = find_strategy(request.side("b"))
        return replace(cls.of(request, like), of_target=b.preset_settings if isinstance(b, FoundCheckpoint) else {})

    @property
    def given(self) -> dict[str, str]:
        """Switch -> value."""
        return dict(each.split("=", 1) for each in self.switches)


def compiled_for(choice: PresetChoice, source: SourceRequest, target: Strategy | None) -> CompiledPreset:
    """Compile a preset for a source; `target` is the target's strategy.

    Raises:
        InputError: the preset or its settings cannot be used, or the source's names are not the preset's.
        StorageError: a transient failure.
    """
    preset = read_preset(choice.preset)
    training = read_training_config(choice.training_config) if choice.training_config else None
    if choice.like:
        weights = read_reference(choice.like).weights or {}
        there = {name: len(entry.shape) for name, entry in weights.items()}
    else:
        there = _axes(target) if target else {}
    facts = _facts_of(source)
    beside = choice.like or facts.directory or source.source
    origin, config = _given_config(choice.config_json) if choice.config_json else _config(beside)
    known = KnownNames(facts.names, there)
    settings = Settings(
        given=choice.given,
        names=choice.names,
        training=training,
        config=preset.fields(config) if config is not None else None,
        origin=origin,
        allowed_models=choice.allowed_models,
        dialect=choice.dialect,
        numbers=facts.model.numbers,
        of_source=facts.settings,
        of_target=choice.of_target,
        padded_vocabulary=choice.padded_vocabulary,
        row_multiple=facts.model.row_multiple,
    )
    if are_adapters(facts.names):
        return compile_for_adapter(preset, known, settings)
    return without_rotary_buffers(compile_preset(preset, known, settings), known.axes)


def with_preset(changes: Changes, compiled: CompiledPreset) -> Changes:
    """Return declared changes after the preset's; dtypes that stay come before declared casts.

    Raises:
        InputError: quantized weights are to be kept.
    """
    document = changes.model_dump(exclude_defaults=True)
    of_preset = compiled.steps.model_dump(exclude_defaults=True).get("steps", ())
    if changes.fp8 is Fp8.KEEP and any(step.keys() & {"dequantize", "unpack"} for step in of_preset):
        raise InputError(
            f"{option('fp8', 'keep')}: the source is quantized, and preset {compiled.preset.preset} leads to names "
            "whose programs read no such weights: convert it without a preset, or dequantize it, "
            f"{option('fp8', 'dequantize')}"
        )
    steps = [*of_preset, *document.get("steps", ())]
    exclude = [*compiled.left_out, *document.get("exclude", ())]
    both = validated_changes(
        document | {"steps": steps, "exclude": exclude}, f"preset {compiled.preset.preset} with the changes"
    )
    return both.model_copy(update={"cast": (*compiled.kept, *changes.cast)}) if changes.cast else both


def with_preset_checked(
    catalog: CheckpointCatalog,
    strategy: Strategy | None,
    target: TargetOutline,
    allowed: Sequence[str],
    *,
    may_be_partial: bool = False,
) -> CheckpointCatalog:
    """Return the catalog of a source with notes on what the preset's names and switches decided.

    What is left out as declared may be missing only if the result `may_be_partial`, or by a pattern that is `allowed`.

    Raises:
        PlanError: names are in no row of the preset, layers lack some of theirs, or matrices of an adapter others.
    """
    compiled = target.preset
    if compiled is None:
        return catalog
    names = dict.fromkeys(name for index in catalog.indexes() for name in index.entries)
    names |= dict.fromkeys(strategy.parameters if strategy else ())
    excluded = excluded_names(list(names), target.changes, set())
    if compiled.alone and not may_be_partial:
        check_left_out(compiled.preset, compiled.alone, list(names), excluded)
    elif not compiled.alone:
        check_names(compiled, list(names), excluded, allowed, may_be_partial=may_be_partial)
    return replace(catalog, notes=(*compiled.notes, *catalog.notes))


def _given_config(url: str) -> tuple[str, dict[str, Any]]:
    """The place of a config.json that is named, or whose directory is, and its fields."""
    location = parse_url(url)
    directory = location.parent if location.name == CONFIG_NAME else location
    return str(directory), read_config(directory)


def _config(url: str) -> tuple[str, dict[str, Any] | None]:
    """The directory of a model, and its config.json; None if it has none."""
    location = parse_url(url)
    if RANK_FIELD in location.path:
        return url, None
    if parse_name(location.name) or is_document(location.name):
        location = location.parent
    return str(location), read_config(location) if exists(location.child(CONFIG_NAME)) else None


class _Facts(Record):
    """What a source says for a preset.

    Attributes:
        names: its names -> number of axes.
        model: what it says of the model itself.
        settings: switch -> the value that its layout always has.
        directory: URL of the Hugging Face directory that it brings; empty without one.
    """

    names: Mapping[str, int]
    model: ModelFacts = field(default_factory=ModelFacts)
    settings: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""


def _facts_of(source: SourceRequest) -> _Facts:
    """What a source says: by its strategy, or else by its files."""
    given = find_strategy(source)
    strategy = given if given is None or isinstance(given, Strategy) else given.strategy
    if strategy is not None and not strategy.lists_boxes:
        return _Facts(_axes(strategy))
    unchecked = source.model_copy(update={"check_crc": False, "check_replicas": False})
    catalog = open_by_strategy(unchecked, given).catalog
    names = {name: len(entry.shape) for index in catalog.indexes() for name, entry in index.entries.items()}
    if not isinstance(given, FoundCheckpoint):
        return _Facts(names)
    directory = given.model_directory
    return _Facts(names, given.model_facts(catalog), given.preset_settings, str(directory) if directory else "")


def _axes(strategy: Strategy) -> dict[str, int]:
    return {name: len(layout.tensor_map) for stage in strategy.stages for name, layout in stage.layouts.items()}

"""Opens a LoRA adapter: its configuration, its files, and what they do to a base."""

import glob
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from msgspec.structs import replace

from reshard.core.changes.changes import NO_CHANGES, Changes, Selection
from reshard.core.changes.lora.pairing import is_adapters, modules_of, pair
from reshard.core.changes.lora.settings import LoraSettings, is_count, is_scale, parse_peft_config
from reshard.core.changes.model_config import parse_config
from reshard.core.changes.training_config import read_training_config
from reshard.core.errors import InputError, raise_problems
from reshard.core.plan.adapter import Adapter
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import build_plan
from reshard.core.plan.regular_expressions import check_expressions
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.records import Record
from reshard.core.source.opening import Source, open_source
from reshard.core.storage.listing import exists
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME, _PICKLED_NAME = "adapter_model.safetensors", "adapter_model.bin"
_MINDFORMERS_NAME, _MINDFORMERS_FORMAT = "mindformers_adapter_config.json", "mindformers_pynative_lora_adapter_v1"
_MAX_CONFIG_BYTES = 16 << 20
_MIN_MATRIX_BYTES = 4 * 2**20
_Parse = Callable[[Mapping[str, Any], str], LoraSettings]
_FLOATS = ("BFloat16", "Float16", "Float32")


_ALL_WEIGHTS = NO_CHANGES.model_copy(update={"select": Selection.WEIGHTS_ONLY, "include": ("*",)})
"""An adapter may have been saved with its own training state."""


class AdapterChoice(Record):
    """An adapter, as a request names it.

    Attributes:
        url: its place; that of the base, if it is in the same files.
        alpha: the numerator of its scale; 0: its configuration has it.
        training_config: URL of the training's configuration, which has it otherwise; empty without one.
    """

    url: str
    alpha: float = 0.0
    training_config: str = ""


def open_adapter(choice: AdapterChoice, base: SourceRequest) -> Adapter:
    """Open an adapter for a base.

    Raises:
        InputError: it cannot be used, or its scale is not known.
        StorageError: a transient failure.
    """
    location = parse_url(choice.url)
    in_source = str(location) == str(parse_url(base.source))
    source = open_source(_request(location, base, in_source=in_source))
    _check_has_matrices(source)
    settings = _settings(choice, _places(location, source))
    tensors = _tensors(source, _only_adapters(source) if in_source else NO_CHANGES)
    check_expressions(settings.patterns, modules_of(tensors))
    deltas = pair(tensors, settings)
    raise_problems(InputError, f"{choice.url}: this adapter cannot be merged", deltas.problems)
    pairs = (delta.product for delta in deltas.by_name.values() if delta.product)
    sizes = (4 * (math.prod(tensors[each.a]) + math.prod(tensors[each.b])) for each in pairs)
    return Adapter(
        replace(source.catalog, notes=()),
        source.strategy,
        deltas.by_name,
        in_source,
        max((_MIN_MATRIX_BYTES, *sizes)),
        trained_with=settings.base,
    )


def with_adapter(changes: Changes, adapter: Adapter) -> Changes:
    """Return declared changes for a base that an adapter is merged into.

    Training state is left out: it belongs to the weights before the merge. So are the adapter's own tensors.
    """
    own = {name for delta in adapter.deltas.values() for name in delta.names} if adapter.in_source else ()
    exclude = (*map(glob.escape, sorted(own)), *changes.exclude)
    return changes.model_copy(update={"select": Selection.WEIGHTS_ONLY, "exclude": exclude})


def settings_of(choice: AdapterChoice, source: Source) -> LoraSettings:
    """Return what is known of an adapter that is a source itself.

    Raises:
        InputError: its scale is not known.
        StorageError: a transient failure.
    """
    return _settings(choice, _places(parse_url(choice.url), source))


def recorded_settings_of(choice: AdapterChoice, source: Source) -> LoraSettings | None:
    """Return what the configuration beside an adapter says that is a source itself; None without one.

    Raises:
        InputError: it cannot be used, or the request contradicts it.
        StorageError: a transient failure.
    """
    return _recorded_settings(choice, _places(parse_url(choice.url), source))


def recorded_in(places: Sequence[Location]) -> LoraSettings | None:
    """Return what the configuration of an adapter says in the first of these directories that has one; None without.

    Raises:
        InputError: it cannot be used.
        StorageError: a transient failure.
    """
    return _recorded_settings(AdapterChoice(""), places)


def _places(location: Location, source: Source) -> list[Location]:
    """The directories where an adapter's configuration may be: the one that was named, and that of its files."""
    first = next(iter(source.catalog.records.values()))
    named = location.parent if location == parse_url(first.location) else location
    return list(dict.fromkeys([named, parse_url(first.location).parent]))


def _settings(choice: AdapterChoice, places: Sequence[Location]) -> LoraSettings:
    """What is known of an adapter: by its configuration, or else by the training's, or by the request."""
    recorded = _recorded_settings(choice, places)
    if recorded is not None:
        return recorded
    if choice.alpha:
        return LoraSettings(choice.alpha)
    if not choice.training_config:
        raise InputError(
            f"{choice.url}: has neither {CONFIG_NAME} nor {_MINDFORMERS_NAME}, and alpha, on which the scale depends, "
            f"is not among its tensors. Name it with {option('lora_alpha')}, or the training's YAML with "
            f"{option('training_config')}"
        )
    training = read_training_config(choice.training_config)
    alpha, rank = (_positive(training.value_of(name)) for name in ("lora_alpha", "lora_rank"))
    if not alpha:
        raise InputError(
            f"{choice.training_config}: has no lora_alpha above 0: name it with {option('lora_alpha')} instead"
        )
    return LoraSettings(alpha, int(rank))


def _recorded_settings(choice: AdapterChoice, places: Sequence[Location]) -> LoraSettings | None:
    """What a configuration beside an adapter says; None if there is none."""
    kinds: Sequence[tuple[str, _Parse]] = (
        (CONFIG_NAME, parse_peft_config),
        (_MINDFORMERS_NAME, _parse_mindformers),
    )
    for directory, (name, parse) in product(places, kinds):
        place = directory.child(name)
        if not exists(place):
            continue
        if choice.alpha:
            raise InputError(f"{option('lora_alpha', f'{choice.alpha:g}')}: {place} says what alpha is")
        return parse(parse_config(read_small_file(place, _MAX_CONFIG_BYTES), place), str(place))
    return None


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if is_scale(value) else 0.0


def _parse_mindformers(config: Mapping[str, Any], url: str) -> LoraSettings:
    """Read the manifest of MindFormers' directories with adapters alone."""
    fields = config.get("lora_config")
    if config.get("format") != _MINDFORMERS_FORMAT or not isinstance(fields, dict):
        raise InputError(f"{url}: its format is {config.get('format')!r}, and reshard knows {_MINDFORMERS_FORMAT!r}")
    alpha, rank = fields.get("lora_alpha"), fields.get("lora_rank", 0)
    if not is_scale(alpha) or not is_count(rank):
        raise InputError(f"{url}: lora_alpha is {alpha!r}, lora_rank {rank!r}: both must be numbers above 0")
    return LoraSettings(float(alpha), int(rank))


def _request(location: Location, base: SourceRequest, *, in_source: bool) -> SourceRequest:
    unchecked = {"check_crc": False, "check_replicas": False}
    if in_source:
        return base.model_copy(update=unchecked)
    weights = location.child(WEIGHTS_NAME)
    if exists(location.child(CONFIG_NAME)) and not exists(weights):
        if exists(location.child(_PICKLED_NAME)):
            raise InputError(
                f"{location.child(_PICKLED_NAME)}: is a pickled adapter, which reshard does not read. Save it as "
                f"{WEIGHTS_NAME}: peft's save_pretrained(safe_serialization=True)"
            )
        raise InputError(f"{location}: has {CONFIG_NAME}, and no {WEIGHTS_NAME}")
    place = weights if exists(weights) else location
    return SourceRequest(source=str(place), workers=base.workers, memory_limit=base.memory_limit)


def _check_has_matrices(source: Source) -> None:
    if not any(is_adapters(name) for index in source.catalog.indexes() for name in index.entries):
        raise InputError(f"{source.catalog.url}: has no LoRA matrices: name an adapter with {option('lora')}")


def _only_adapters(source: Source) -> Changes:
    """Of files that have a base, too: its adapters, without their training state."""
    names = {name for index in source.catalog.indexes() for name in index.entries if is_adapters(name)}
    include = tuple(map(glob.escape, sorted(names)))
    return NO_CHANGES.model_copy(update={"select": Selection.WEIGHTS_ONLY, "include": include})


def _tensors(source: Source, changes: Changes) -> dict[str, Shape]:
    """The adapter's tensors and their whole shapes."""
    catalog = source.catalog
    if not any(index.entries for index in catalog.indexes()):
        return {}
    weights = changes if changes != NO_CHANGES else _ALL_WEIGHTS
    plan = build_plan(
        PlanInputs(
            catalog,
            source.strategy,
            None,
            catalog.format,
            integrated_save=source.integrated_save,
            changes=weights,
        )
    )
    found: dict[str, Shape] = {}
    for parameter in plan.match.resharded:
        if parameter.dtype.name not in _FLOATS:
            raise InputError(
                f"{catalog.url}: {parameter.name!r} has dtype {parameter.dtype}; adapters of {', '.join(_FLOATS)} can "
                "be merged"
            )
        found[parameter.name] = parameter.shape
    return found

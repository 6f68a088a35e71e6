"""Facts about a LoRA adapter for reports: its number of modules, rank and alpha."""

from collections.abc import Mapping, Sequence

from reshard.core.changes.lora.pairing import adapted_modules, matrix_of
from reshard.core.changes.lora.settings import LoraSettings
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import InputError
from reshard.core.plan.adapter_route import are_adapters
from reshard.core.runtime.wording import counted, listed, quoted
from reshard.core.source.adapter import recorded_in
from reshard.core.storage.urls import Location, parse_url
from reshard.core.tensor.slices import Shape

_MAX_RANKS = 4


def adapter_facts(catalog: CheckpointCatalog) -> tuple[tuple[str, str], ...]:
    """Return (name, text) of a checkpoint that is an adapter alone; nothing of others."""
    shapes = {name: entry.shape for index in catalog.indexes() for name, entry in index.entries.items()}
    places = dict.fromkeys(parse_url(record.location).parent for record in catalog.records.values())
    text = adapter_text(shapes, list(places))
    return (("adapter", text),) if text else ()


def adapter_text(shapes: Mapping[str, Shape], places: Sequence[Location]) -> str:
    """Describe an adapter by its tensors, and by the configuration in one of the places; empty if it is none.

    Raises:
        StorageError: a transient failure.
    """
    if not are_adapters(shapes):
        return ""
    kind = f"LoRA, {counted(len(adapted_modules(shapes)), 'module')}"
    try:
        settings = recorded_in(places)
    except InputError as error:
        return f"{kind}; its configuration cannot be used: {' '.join(str(error).split())}"
    return f"{kind}, {_rank_text(settings, shapes)}, {_alpha_text(settings)}"


def _rank_text(settings: LoraSettings | None, shapes: Mapping[str, Shape]) -> str:
    if settings is not None and settings.rank and not settings.rank_pattern:
        return f"rank {settings.rank}"
    matrices = {name: matrix_of(name) for name in shapes}
    ranks = {shapes[name][0] for name, found in matrices.items() if found and found[1] == "a" and len(shapes[name]) > 1}
    some = listed([str(each) for each in sorted(ranks)], _MAX_RANKS)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {some}" if ranks else "rank not known"


def _alpha_text(settings: LoraSettings | None) -> str:
    if settings is None:
        return "alpha not recorded"
    others = ", others by alpha_pattern" if settings.alpha_pattern else ""
    base = f", trained with {quoted(settings.base)}" if settings.base else ""
    return f"alpha {settings.alpha:g}{others}{base}"

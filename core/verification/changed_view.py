"""A checkpoint as a preset or declared changes would make it, as one side of a comparison.

Its fingerprints follow each value through their steps, from its own files and layout: so an export can be held
against the checkpoint that it was made from, without converting that again. Where contents differ cannot be shown.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from threading import Event

from msgspec.structs import replace

from reshard.core.changes.changes import FLOAT_NAMES, NO_CHANGES, CastRule, Changes, Fp8, OverflowPolicy
from reshard.core.changes.changes_file import read_changes
from reshard.core.errors import PlanError
from reshard.core.plan.adapter_side import with_placed_adapter
from reshard.core.plan.either_side import EitherSide, select_on_either_side
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.plan.planned_layout import ONLY_COMPARED
from reshard.core.plan.preset_checks import check_padding, check_shapes
from reshard.core.request.resources import resources_of
from reshard.core.request.source import FingerprintRequest
from reshard.core.runtime.named_values import Resolver
from reshard.core.runtime.progress import advancing, current_progress
from reshard.core.runtime.records import Record
from reshard.core.runtime.retry import with_retries
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import utf8_text
from reshard.core.source.adapter import AdapterChoice, open_adapter, with_adapter
from reshard.core.source.match_checks import match_warnings
from reshard.core.source.opening import TargetOutline, open_source
from reshard.core.source.preset_changes import PresetChoice, compiled_for, with_preset, with_preset_checked
from reshard.core.storage.named_options import with_options_of
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.fingerprint import ELEMENT_BYTES
from reshard.core.text.options import option
from reshard.core.verification.fingerprint_file import ModelFingerprint, fingerprint_of_all
from reshard.core.verification.values import ContentCheck
from reshard.core.verification.views import FingerprintsView, Tensor, view_of
from reshard.core.verification.wholes import check_dropped_copies

_FLOATS = {name: spelled for spelled, name in FLOAT_NAMES.items()}


class ChangedView(Record):
    """What changes make of a checkpoint; `left_out` are results that the patterns of the request exclude."""

    view: FingerprintsView
    left_out: frozenset[str]


def open_changed_view(
    request: FingerprintRequest,
    choice: PresetChoice | None,
    changes: str,
    other: Mapping[str, Tensor],
    resolvers: Mapping[str, Resolver] | None = None,
    *,
    fp8: Fp8 = Fp8.AUTO,
    casts: bool = False,
    lora: AdapterChoice | None = None,
) -> "ChangedView":
    """Read a checkpoint, and fingerprint what a preset and declared changes make of it.

    Args:
        request: the checkpoint; its patterns may fit names on either side of the changes.
        choice: the preset, if there is one.
        changes: URL of a document of those that follow it; empty without one.
        other: the tensors of the other side.
        resolvers: look up names of keys and storages.
        lora: the adapter that is merged before all other changes, if there is one.
        fp8: what becomes of block-fp8; other than auto it replaces the document's.
        casts: floating-point parameters get the dtypes that they have on the other side.

    Raises:
        InputError: the checkpoint, the preset or the changes cannot be used, or they do not go together.
        StorageError: a file cannot be read.
    """
    beside = [changes, *((lora.url, lora.training_config) if lora else ())]
    beside += [choice.training_config, choice.config_json] if choice else []
    with resources_of(request, resolvers), ExitStack() as storages:
        for url in filter(None, beside):
            storages.enter_context(with_options_of(request.source, url))
        plan, selected = with_retries(
            lambda: _plan(request, choice, _declared(changes, fp8), other if casts else {}, lora),
            current_progress().note,
        )
        document = _document(plan, _read(request, plan))
    view = view_of(document, request.model_copy(update={"include": [], "exclude": []}), plan.inputs.catalog.url)
    tensors = {name: tensor for name, tensor in view.tensors.items() if name not in selected.results}
    return ChangedView(replace(view, tensors=tensors, unused=selected.unused), selected.results)


def _declared(document: str, fp8: Fp8) -> Changes:
    declared = read_changes(document) if document else NO_CHANGES
    return declared if fp8 is Fp8.AUTO else declared.model_copy(update={"fp8": fp8})


def _plan(
    request: FingerprintRequest,
    choice: PresetChoice | None,
    declared: Changes,
    other: Mapping[str, Tensor],
    lora: AdapterChoice | None,
) -> tuple[ConversionPlan, EitherSide]:
    compiled = compiled_for(choice, request, None) if choice else None
    changes = declared.model_copy(
        update={
            "select": request.select if request.select is not NO_CHANGES.select else declared.select,
            "cast": (*_casts(other), *declared.cast),
            "cast_overflow": OverflowPolicy.ALLOW,
        }
    )
    adapter = open_adapter(lora, request) if lora else None
    if adapter:
        changes = with_adapter(changes, adapter)
    target = TargetOutline(changes=with_preset(changes, compiled) if compiled else changes, preset=compiled)
    source = open_source(request, target)
    names = dict.fromkeys(name for index in source.catalog.indexes() for name in index.entries)
    names |= dict.fromkeys(source.strategy.parameters if source.strategy else ())
    selected = select_on_either_side(list(names), target.changes, request.include, request.exclude)
    excluded = (*selected.sources, *target.changes.exclude)
    target = replace(target, changes=target.changes.model_copy(update={"exclude": excluded}))
    # a comparison may be of a few parameters
    catalog = with_preset_checked(source.catalog, source.strategy, target, request.allow_missing, may_be_partial=True)
    inputs = PlanInputs(
        catalog,
        source.strategy,
        None,
        catalog.format,
        integrated_save=source.integrated_save,
        changes=target.changes,
        adapter=adapter,
        layout=ONLY_COMPARED,
    )
    if compiled is not None:
        inputs = with_placed_adapter(inputs, compiled, source.shards)
    plan = build_plan(inputs, source.shards)
    plan = plan.with_notes(*match_warnings(source, plan.match))
    if compiled is not None:
        check_shapes(compiled, plan.match)
        plan = plan.with_notes(*check_padding(compiled, plan.match))
    check_dropped_copies(plan, compiled.alone.on_differing if compiled and compiled.alone else "")
    for each in plan.match.resharded:
        if each.dtype.itemsize not in ELEMENT_BYTES:
            raise PlanError(
                f"{catalog.url}: parameter {each.name!r} has dtype {each.dtype}, which reshard cannot compare; leave "
                f"out what it is made of: {option('exclude', [each.sources[0].name])}"
            )
    return plan, selected


def _casts(other: Mapping[str, Tensor]) -> list[CastRule]:
    """Casts to the other side's dtypes: of the few that are apart by name, then of all."""
    dtypes: dict[str, DType] = {name: each.dtype for name, each in other.items() if each.dtype.is_float}
    if not dtypes:
        return []
    main = Counter(dtypes.values()).most_common(1)[0][0]
    apart = [name for name, dtype in dtypes.items() if dtype is not main]
    rules = [CastRule(parameters=name, dtype=_FLOATS[dtypes[name].name]) for name in apart]
    return [*rules, CastRule(parameters="*", dtype=_FLOATS[main.name])]


def _read(request: FingerprintRequest, plan: ConversionPlan) -> ContentCheck:
    check, progress, stop = ContentCheck(plan, all_replicas=True), current_progress(), Event()
    progress.begin("reading, by the changes", check.source_bytes())
    advance = advancing(progress, stop)

    def read(rank: int) -> None:
        check.add_source(rank, with_retries(lambda: check.source_parts(rank, advance), progress.note))

    in_threads(read, check.source_ranks, request.worker_count, stop)
    check.quantize_again(request.worker_count)
    return check


def _document(plan: ConversionPlan, check: ContentCheck) -> ModelFingerprint:
    catalog, strategy = plan.inputs.catalog, plan.inputs.source_strategy
    parameters = tuple(sorted(check.source_parameters(), key=lambda each: each.name))
    return ModelFingerprint(
        checkpoint=catalog.url,
        step=catalog.step,
        ranks=catalog.world_size,
        stages=len(strategy.stages) if strategy else 1,
        unified=catalog.has_whole_tensors,
        size_bytes=sum(totals.shard_bytes for totals in plan.totals),
        fingerprint=fingerprint_of_all(parameters),
        parameters=parameters,
        differing=check.differing_replicas,
        notes=tuple(map(utf8_text, catalog.notes)),
    )

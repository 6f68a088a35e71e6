"""Plans a conversion: from a request to a checked plan; nothing is written."""

from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple

from msgspec.structs import replace

from reshard.core.changes.model_config import CONFIG_NAME
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.conversion.predecessors import continued_chain
from reshard.core.conversion.report import (
    PlanSummary,
    planned_hashed_bytes,
    planned_traffic,
    summarize_plan,
    with_estimate,
)
from reshard.core.conversion.session import (
    needed_room,
    planned_groups,
    prefetch_threads_of,
    rank_budget,
)
from reshard.core.conversion.source_signature import signed_source, source_guard
from reshard.core.errors import CatalogError, PlanError
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.any_layout import read_any_strategy
from reshard.core.layouts.source_layout import FoundCheckpoint
from reshard.core.layouts.targets import check_quantizes, float8_layouts, side_named
from reshard.core.layouts.training_state import with_lost_state_noted
from reshard.core.plan.matching import check_convertible
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.plan.whole_shapes import BY_RECORD
from reshard.core.request.changing import UnmatchedPolicy
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.declared_changes import declared_changes
from reshard.core.request.planning import ASSUMED_RATE_BYTES
from reshard.core.request.resources import resources_of
from reshard.core.request.source import SourceRequest
from reshard.core.request.target import OutputFormat
from reshard.core.runtime.log import timed
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.threads import expect_parameters
from reshard.core.runtime.wording import listed
from reshard.core.source.exchanged import check_not_exchanged, naming_exchanged
from reshard.core.source.gaps import mixed_steps
from reshard.core.source.match_checks import match_warnings
from reshard.core.source.opening import GivenStrategy, Source, TargetOutline, find_strategy, open_by_strategy
from reshard.core.source.other_stages import check_part
from reshard.core.source.outside_samples import outside_warnings
from reshard.core.source.strategy_warnings import WARNING, sibling_warnings, strategy_warnings
from reshard.core.storage.placement import check_apart
from reshard.core.storage.publishing import free_room
from reshard.core.storage.read_log import ReadLog, logging_reads, planned_from
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.model import Strategy
from reshard.core.target.place import check_free
from reshard.core.tensor.layout import whole_layout
from reshard.core.text.options import option, spelled
from reshard.core.transfer.file_blocks import expected_entries, planned_file
from reshard.core.verification.wholes import check_dropped_copies

Request = TypeVar("Request", bound=ConversionRequest)
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Step(Protocol):
    """Carries out a step of planning."""

    def __call__(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Return the result of `work`."""


def filled_in(request: Request) -> Request:
    """Return a request with the options that it leaves open and only the source tells, as its layout wants them.

    Raises:
        InputError: the source does not tell them, or cannot be used.
        StorageError: the source cannot be listed.
    """
    found = side_named(request.layout).fill_in(request)
    return request.model_copy(update=dict(found)) if found else request


def check_target(request: ConversionRequest) -> None:
    """Raise TargetError for a target that is occupied, unusable or in the source, before any byte of this is read."""
    source, final = parse_url(request.source), parse_url(request.target_directory)
    check_apart(source, final)
    brings_others = side_named(request.layout).brings_others
    check_free(final, source, overwrite=request.overwrite, brings_others=brings_others)


def make_plan(request: ConversionRequest) -> ConversionPlan:
    """Plan a request; nothing is written."""
    with resources_of(request):
        return plan_in_steps(filled_in(request), _at_once)


def plan_in_steps(request: ConversionRequest, step: Step, *, crc_later: bool = False) -> ConversionPlan:
    """Plan a request that leaves nothing open, by steps that `step` carries out; nothing is written.

    With `crc_later`, `SourceCrcs` is to check CRCs of single tensors.
    """
    source_request = SourceRequest.of(request)
    strategy = step(find_strategy, source_request)
    request = _modelled_on_source(request, strategy)
    target = replace(step(outline_target, request), crc_later=crc_later)
    source = step(open_by_strategy, source_request, strategy, target)
    return step(plan_conversion, request, source, target)


def _modelled_on_source(request: ConversionRequest, given: GivenStrategy) -> ConversionRequest:
    """A request whose target is modelled on the Hugging Face directory that its source brings, if it brings one.

    A preset leads to names of another world, of which that directory is not.
    """
    directory = given.model_directory if isinstance(given, FoundCheckpoint) else None
    if directory is None or request.preset:
        return request
    return request.model_copy(update=request.layout_options.modelled_on(request, str(directory)))


def _at_once(work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    return work(*arguments)


def outline_target(request: ConversionRequest) -> TargetOutline:
    """Read the strategy of a request's target, and the changes on the way there; an InputError if one is unusable."""
    strategy = read_any_strategy(request.target_strategy) if request.target_strategy else None
    changes, preset, adapter = declared_changes(request), None, None
    if request.lora:
        from reshard.core.source.adapter import AdapterChoice, open_adapter, with_adapter

        choice = AdapterChoice(request.lora, request.lora_alpha, request.training_config)
        adapter = open_adapter(choice, SourceRequest.of(request))
        changes = with_adapter(changes, adapter)
    if request.preset:
        from reshard.core.source.preset_changes import PresetChoice, compiled_for, with_preset  # loads YAML

        preset = compiled_for(PresetChoice.of_conversion(request), SourceRequest.of(request), strategy)
        changes = with_preset(changes, preset)
    return TargetOutline(
        request.target_directory,
        strategy,
        changes,
        side_named(request.layout).record.ranks_are_files,
        preset,
        adapter,
    )


def plan_conversion(request: ConversionRequest, source: Source, target: TargetOutline) -> ConversionPlan:
    """Plan a conversion of an opened source; reads only samples, and parameters that several source stages hold.

    Raises:
        CatalogError: the source's ranks disagree about a parameter, or none of its files can be used.
        StrategyError: the source's contents contradict its strategy.
        PlanError: source, target and options do not fit together.
    """
    with naming_exchanged(source.request, target.strategy):
        plan = _planned(request, source, target)
    if not request.trust_strategy and any(note.startswith(WARNING) for note in plan.inputs.catalog.notes):
        check_not_exchanged(source.request, target.strategy)
    return plan


def _planned(request: ConversionRequest, source: Source, target: TargetOutline) -> ConversionPlan:
    current_progress().begin("planning")
    expect_parameters(sum(len(index.entries) for index in source.catalog.indexes()))
    catalog, strategy, asked = source.catalog, source.strategy, source.integrated_save
    check_any_left(catalog)
    side = side_named(request.layout)
    if not side.keeps_training_state:
        catalog = with_lost_state_noted(catalog)
    samples = None
    if strategy is not None and not catalog.has_whole_tensors and not strategy.lists_boxes:
        warnings, samples = strategy_warnings(
            catalog, strategy, integrated_save=asked, trusted=source.is_trusted, shards=source.shards
        )
        catalog = replace(catalog, notes=(*warnings, *catalog.notes))
    if target.preset is not None:
        from reshard.core.source.preset_changes import with_preset_checked

        catalog = with_preset_checked(catalog, strategy, target, request.allow_missing)
    layout = side.choose(request, catalog)
    if target.preset is not None:
        layout = layout.with_heads(target.preset.heads)
    alone = target.preset.alone if target.preset else None
    if alone and target.preset and target.preset.has_hf_target:
        layout = side.for_adapter(layout)
    target_format = layout.file_format or _asked_format(request, catalog)
    fails_on_differing = request.shared_parameters == "fail"
    inputs = PlanInputs(
        catalog=catalog,
        source_strategy=strategy,
        target_strategy=_with_unsharded(target.strategy, source) if target.strategy else None,
        format=target_format,
        fail_on_unmatched=request.unmatched is UnmatchedPolicy.FAIL,
        allow_missing=tuple(request.allow_missing),
        integrated_save=asked,
        replicas=request.replicas if request.remove_redundancy else 0,
        write_crc=request.write_crc,
        encryption=_target_encryption(request, target_format, catalog),
        append_info=request.info,
        shared_parameters="first" if fails_on_differing else request.shared_parameters,
        changes=target.changes,
        layout=layout,
        adapter=target.adapter,
    )
    if target.preset is not None:
        from reshard.core.plan.adapter_side import with_placed_adapter

        inputs = with_placed_adapter(inputs, target.preset, source.shards)
    check_quantizes(target.changes, layout)
    with timed(f"{request.source}: reads and writes planned"):
        plan = build_plan(inputs, source.shards)
    plan = plan.with_notes(*match_warnings(source, plan.match, samples))
    if strategy is not None and not source.request.source_strategy:
        plan = plan.with_compared_shapes(strategy.parameters, BY_RECORD)
    if target.preset is not None:
        from reshard.core.plan.preset_checks import check_padding, check_shapes

        plan = plan.with_notes(*check_padding(target.preset, plan.match))
        plan = plan.with_compared_shapes(check_shapes(target.preset, plan.match), CONFIG_NAME)
    if alone:
        from reshard.core.source.adapter import AdapterChoice
        from reshard.core.source.adapter_target import with_adapter_facts

        choice = AdapterChoice(request.source, request.lora_alpha, request.training_config)
        plan = with_adapter_facts(plan, choice, source, alone.rank_factor)
    if request.reference:
        from reshard.core.source.reference import read_reference, with_reference

        plan = with_reference(plan, read_reference(request.reference))
    elif plan.quantizes:
        plan = plan.with_notes(
            spelled(
                "weights are quantized, and no config.json is written that says so to loaders: name a directory with "
                f"one, {option('like')}"
            )
        )
    if target.strategy is not None:
        plan = plan.with_notes(*target.strategy.notes)
    plan = plan.with_notes(
        *sibling_warnings(plan.wholes), *outside_warnings(plan.inputs.catalog, plan.match.passed_through)
    )
    check_convertible(plan.match, catalog, layout.name, float8_layouts())
    check_one_step(plan)
    if plan.match.shared:
        from reshard.core.verification.tied_parameters import with_tied_compared

        plan = with_tied_compared(plan, fails_on_differing)
    check_dropped_copies(plan, alone.on_differing if alone else "")
    _check_format_holds_all(plan)
    check_part(source, plan)
    return plan


def describe_plan(request: ConversionRequest) -> tuple[ConversionPlan, PlanSummary]:
    """Plan a request and summarize the plan; nothing is written. The target is checked if it is named."""
    with resources_of(request):
        guard, log = source_guard(request), ReadLog()
        with logging_reads(log):
            request = filled_in(request)
            if request.target:
                check_target(request)
            plan = plan_in_steps(request, _at_once)
        with planned_from(log):
            plan, _ = signed_source(guard, request, plan)
            plan, _ = continued_chain(request, plan)
    request.chosen_ranks(plan.target_ranks)
    return plan, summarize(request, plan)


def summarize(request: ConversionRequest, plan: ConversionPlan) -> PlanSummary:
    """Summarize a request's plan as if all of its ranks were to be written in this process.

    The room at a named target is looked up, with the same measure by which a conversion refuses to begin.
    """
    budget = rank_budget(request, plan, len(plan.target_ranks))
    written = [rank for rank in plan.target_ranks if rank not in plan.copies]
    groups = planned_groups(plan, written, budget)
    summary = summarize_plan(plan, budget, groups, prefetch_threads_of(groups, budget))
    chosen = request.chosen_ranks(plan.target_ranks)
    reads_whole = request.hashes_source or bool(request.require_signed_by)
    expected = {
        "needed_bytes": needed_room(plan, chosen),
        "free_bytes": free_room(parse_url(request.target)) if request.target else None,
        "traffic": planned_traffic(plan, chosen, request.verify, hashes_source=reads_whole),
        "hashed_bytes": planned_hashed_bytes(plan, chosen) if request.hashes_target else 0,
        "chosen_ranks": tuple(chosen),
    }
    return with_estimate(summary.model_copy(update=expected), ASSUMED_RATE_BYTES)


def _with_unsharded(target: Strategy, source: Source) -> Strategy:
    """The target's strategy with layouts for parameters that it lists as whole on every rank, and the source shards.

    Without layouts they would count as unmatched. Those outside the source's strategy need none: they go to every rank.
    """
    if not target.unsharded:
        return target
    in_files = {name for index in source.catalog.indexes() for name in index.entries}
    sharded = source.strategy.parameters if source.strategy else frozenset[str]()
    added = {
        name: whole_layout(axis_count, target.devices_per_stage)
        for name, axis_count in target.unsharded.items()
        if name in sharded or name not in in_files
    }
    if not added:
        return target
    stages = tuple(replace(stage, layouts={**stage.layouts, **added}) for stage in target.stages)
    return replace(target, stages=stages)


def _asked_format(request: ConversionRequest, catalog: CheckpointCatalog) -> CheckpointFormat:
    return catalog.format if request.format is OutputFormat.SAME else CheckpointFormat(request.format.value)


def _target_encryption(request: ConversionRequest, format: CheckpointFormat, catalog: CheckpointCatalog) -> str:
    """The encryption mode of the target's files; empty if they are plain."""
    if not request.encrypt_key:
        return ""
    if format is CheckpointFormat.SAFETENSORS:
        raise PlanError(
            f"{catalog.url}: holds .safetensors files, and so would the target, but MindSpore knows no encrypted ones: "
            f"{option('format', 'ckpt')}, or name no {option('encrypt_key')}"
        )
    return str(request.encrypt_mode)


def _check_format_holds_all(plan: ConversionPlan) -> None:
    """Refuse, before anything is written, parameters that the target's format cannot hold.

    Checking one rank of a stage is enough: all hold the same names and dtypes, or some of them.
    """
    for rank in plan.first_ranks:
        planned_file(plan, rank, expected_entries(plan, plan.rank_plan(rank, with_redundancy=True)))


def check_any_left(catalog: CheckpointCatalog) -> None:
    """Raise CatalogError if none of a source's files can be used."""
    if not catalog.records:
        reasons = [f"rank_{rank}: {why}" for rank, why in catalog.lost.items()]
        raise CatalogError(f"{catalog.url}: no rank has a usable file:\n  {listed(reasons)}")


def check_one_step(plan: ConversionPlan) -> None:
    """Refuse ranks of different steps, whatever their files are called."""
    mixed = next(mixed_steps(plan.inputs.catalog, plan.match), None)
    if mixed is not None:
        raise CatalogError(
            f"{plan.inputs.catalog.url}: {mixed}. Name another step with {option('step')}, or the ranks whose files "
            f"are stale with {option('recover', True)} and {option('fault_ranks')}. If the files do belong together, "
            f"say which step they are of with {option('append_info')}"
        )

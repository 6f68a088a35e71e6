"""Plans by the rules of MindSpore's functions: the strategy is followed, and missing parameters are left out.

Contents decide nothing, since MindSpore's functions do not look at them. Contents that contradict the strategy (equal
slices on ranks that should hold different ones, say) are a warning. Shapes in a JSON strategy do count.

Errors and warnings name the functions' arguments, not the command's options.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from glob import escape

from msgspec.structs import replace

from reshard.core.changes.training_state import is_training_state
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.damage_policy import DamagePolicy
from reshard.core.checkpoint.record_reader import WantsDigest, no_digest
from reshard.core.checkpoint.shared_bytes import check_bytes_apart
from reshard.core.errors import CatalogError, CheckpointError, InputError, PlanError
from reshard.core.layouts.cataloging import catalog_files, catalog_of
from reshard.core.layouts.ranks.checkpoint import FoundRanks
from reshard.core.layouts.source_layout import CatalogOptions
from reshard.core.mindspore_api.needed_ranks import needed_of_all
from reshard.core.mindspore_api.rank_files import check_not_encrypted, with_last_files
from reshard.core.options.validation import build_options
from reshard.core.plan.matching import foreign_parameters, match_parameters
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.partial_stage import part_of_target
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.plan.stage_shards import SourceShards, names_in_order, names_without_shards
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed, rank_names
from reshard.core.source.gaps import mixed_steps
from reshard.core.source.match_checks import match_warnings
from reshard.core.source.opening import Source, wants_digest
from reshard.core.storage.urls import Location
from reshard.core.strategy.model import Strategy
from reshard.core.transfer.file_blocks import expected_entries, planned_file

_TRAINING_STATE_PATTERNS = ("accu_grads*", "adam_m*", "adam_v*")
"""Parameters that say nothing about stages: see `reshard.core.plan.partial_stage`."""
_NOT_SAVED = "inputs"
"""Prefix of strategy entries that are not parameters."""


class Planned(Record):
    """A plan, and the warnings for its user."""

    plan: ConversionPlan
    warnings: tuple[str, ...]


class Cataloged(Record):
    """The catalog of a source, and the warnings for its user."""

    catalog: CheckpointCatalog
    warnings: tuple[str, ...]


def catalog_given(
    origin: str, files: Mapping[int, Location], *, digest: WantsDigest = no_digest, takes_key: bool = False
) -> CheckpointCatalog:
    """The catalog of the files of some ranks; `takes_key`: the caller accepts a key."""
    try:
        return catalog_files(origin, files, digest=digest)
    except InputError:
        check_not_encrypted(files.values(), takes_key=takes_key)
        raise


def catalog_ranks(
    found: FoundRanks, source: Strategy | None, target: Strategy | None, *, workers: int = 8
) -> Cataloged:
    """Catalog the source's ranks; those that no target rank needs may be missing."""
    if source is None and len(found.ranks) > 1:
        raise CatalogError(
            f"{found.url}: has several ranks ({rank_names(found.ranks, 3)}), which need a source strategy: name it by "
            "'src_strategy_file'"
        )
    ranks = source.ranks if source else range(1)
    missing = frozenset(ranks) - frozenset(found.ranks)
    if missing:
        _check_not_needed(found, missing, source, target)
    chosen, choice = with_last_files(found, [rank for rank in ranks if rank not in missing])
    try:
        options = CatalogOptions(
            ranks=source.ranks if source else None,
            digest=wants_digest(source, target),
            workers=workers,
            allow_extra_ranks=source is not None and not source.merged,
            damage=DamagePolicy(recovers=bool(missing), strategy=source),
        )
        catalog = catalog_of(chosen, options)
        _check_none_damaged(catalog, missing)
    except InputError:
        check_not_encrypted(file.location for rank in chosen.ranks for file in chosen.files[rank])
        raise
    absent = f"{found.url}: {rank_names(missing, 8)} are missing, which no target rank needs" if missing else ""
    return Cataloged(catalog, tuple(filter(None, (choice, absent))))


def _check_none_damaged(catalog: CheckpointCatalog, missing: Collection[int]) -> None:
    """Raise CatalogError if a file that is there cannot be used."""
    damaged = [f"rank_{rank}: {why}" for rank, why in catalog.lost.items() if rank not in missing]
    if damaged:
        raise CatalogError("\n  ".join([f"{catalog.url}: checkpoint files cannot be used:", *damaged]))


def build_checked_plan(inputs: PlanInputs, only: int | None = None, unwanted: Collection[str] = ()) -> Planned:
    """The plan of a conversion that leaves out parameters which no source file holds.

    `only` is the one rank to write: parameters of other target stages are left out, and slices that this rank does not
    need may be on no rank. `unwanted` are parameters left out on purpose, so that their absence is no warning.
    """
    catalog, source, target = inputs.catalog, inputs.source_strategy, inputs.target_strategy
    if only is not None and target is not None:
        target = replace(target, stages=(target.stage_of(only),), merged=False)
    _check_not_scattered(catalog, source)
    shards = SourceShards(catalog, source)
    check_bytes_apart(catalog, None if shards.are_whole(inputs.integrated_save) else source)
    absent = _absent(catalog, source, target).difference(unwanted)
    _check_none_on_missing_ranks(catalog, source, shards, absent)
    _check_parts(catalog, source, absent)
    allowed = replace(inputs, target_strategy=target, allow_missing=_allowed_missing(source, target, absent))
    if only is None:
        plan = build_plan(allowed, shards)
    else:
        of_all_stages = inputs.target_strategy.parameters if inputs.target_strategy else frozenset[str]()
        plan = _plan_with_gaps(allowed, shards, elsewhere=of_all_stages)
    found = match_warnings(_trusted(catalog, source, shards), plan.match)
    plan = plan.with_notes(*found)
    _check_planned(plan)
    for rank in plan.first_ranks if only is None else ():
        planned_file(plan, rank, expected_entries(plan, plan.rank_plan(rank)))
    return Planned(plan, (*found, *_left_out(plan, absent)))


def _trusted(catalog: CheckpointCatalog, strategy: Strategy | None, shards: SourceShards) -> Source:
    """The source as one whose strategy is right, whatever its contents say."""
    named = strategy.origin if strategy else ""
    request = build_options(SourceRequest, source=catalog.url, source_strategy=named, trust_strategy=True)
    return Source(request, catalog, strategy, shards, ())


def _plan_with_gaps(inputs: PlanInputs, shards: SourceShards, elsewhere: Collection[str]) -> ConversionPlan:
    """A plan whose source may lack slices; parameters of stages `elsewhere` are neither passed through nor dropped."""
    match = match_parameters(inputs, shards)
    passed_through = tuple(each for each in match.passed_through if each.name not in elsewhere)
    dropped = tuple(name for name in match.dropped if name not in elsewhere)
    # the caller chooses the file's name, without a part number
    return ConversionPlan(inputs, replace(match, passed_through=passed_through, dropped=dropped, part=None))


def _check_planned(plan: ConversionPlan) -> None:
    """Raise an InputError if nothing is resharded, or if parameters are not MindSpore's or are of different steps."""
    inputs, url = plan.inputs, plan.inputs.catalog.url
    if not plan.match.resharded and (inputs.source_strategy or inputs.target_strategy):
        raise PlanError(f"{url}: holds none of the parameters that the strategies know: another model's?")
    foreign = [f"{name} ({dtype})" for name, dtype in foreign_parameters(plan.match).items()]
    if foreign:
        raise CheckpointError(f"{url}: has parameters of dtypes that MindSpore does not know: {_names(foreign)}")
    for mixed in mixed_steps(inputs.catalog, plan.match):
        raise CatalogError(f"{url}: {mixed}. Replace the files that are of another step")


def absent_weights(catalog: CheckpointCatalog, source: Strategy | None, target: Strategy | None) -> list[str]:
    """Weights in the target's strategy, or the source's without one, that no file holds."""
    return _weights(_absent(catalog, source, target), catalog, source)


def _names(names: Iterable[str]) -> str:
    """Message text: names, sorted."""
    return listed(sorted(names))


def _check_not_needed(
    found: FoundRanks, missing: Collection[int], source: Strategy | None, target: Strategy | None
) -> None:
    needed = needed_of_all(source, target) & set(missing)
    if needed:
        there = rank_names(found.ranks, 3) or "no rank"
        raise CatalogError(f"{found.url}: has files of {there}; others are needed and missing: {rank_names(needed)}")


def _absent(catalog: CheckpointCatalog, source: Strategy | None, target: Strategy | None) -> frozenset[str]:
    """Parameters of the target's strategy, or the source's without one, that no file holds."""
    wanted = target or source
    return (wanted.parameters if wanted else frozenset()).difference(names_in_order(catalog))


def _weights(names: Collection[str], catalog: CheckpointCatalog, source: Strategy | None) -> list[str]:
    """The names without training state, sorted."""
    known = {*names, *names_in_order(catalog), *(source.parameters if source else ())}
    return sorted(name for name in names if not is_training_state(name, known))


def _check_none_on_missing_ranks(
    catalog: CheckpointCatalog, source: Strategy | None, shards: SourceShards, absent: Collection[str]
) -> None:
    """Raise CatalogError if only a missing rank's file may hold a weight of the source's strategy."""
    if source is None or not catalog.lost:
        return
    unsaved = names_without_shards(catalog, source, shards.by_name, frozenset(_weights(absent, catalog, source)))
    if unsaved:
        ranks = {rank for needed in unsaved.values() for rank in needed if rank in catalog.lost}
        raise CatalogError(
            f"{catalog.url}: no existing file holds {_names(unsaved)}: files of {rank_names(ranks, 8)} may, and "
            "are missing"
        )


def _check_not_scattered(catalog: CheckpointCatalog, source: Strategy | None) -> None:
    for record in catalog.records.values() if source is None else ():
        if record.index.redundancy_removed:
            raise CatalogError(
                f"{record.location}: was saved with remove_redundancy=True: slices that several ranks share are in one "
                "rank's file only. All ranks' files are needed, and their strategy, 'src_strategy_file'"
            )


def _check_parts(catalog: CheckpointCatalog, source: Strategy | None, absent: Collection[str]) -> None:
    """Raise an error if a stage's part is missing among files of stages' parts."""
    if not catalog.stage_numbers:
        return
    there = f"{catalog.url}: its files have the parts of stages {', '.join(map(str, catalog.stage_numbers))} only"
    if source is None:
        gaps = sorted({*range(catalog.stage_numbers[-1])} - {*catalog.stage_numbers})
        if gaps:
            raise CatalogError(f"{there}, not of {', '.join(map(str, gaps))}: add them")
        return
    missing = _weights([name for name in absent if name in source.parameters], catalog, source)
    if missing:
        raise PlanError(f"{there}, and none holds {_names(missing)}: the parts of other stages are missing, add them")


def _allowed_missing(source: Strategy | None, target: Strategy | None, absent: Collection[str]) -> tuple[str, ...]:
    if source is None or part_of_target(source, target) is None:
        return ("*",)
    # parameters of other stages are not missing: the pattern * would make this stage's part the whole target
    own = sorted(escape(name) for name in absent if name in source.parameters)
    return (*_TRAINING_STATE_PATTERNS, *own)


def _left_out(plan: ConversionPlan, absent: Collection[str]) -> Iterator[str]:
    """Warnings: parameters of either strategy that the target lacks."""
    source, target = plan.inputs.source_strategy, plan.inputs.target_strategy
    whose, missing = "target", absent
    if target is None:
        # a checkpoint without training state needs no warning: no target strategy asks for it
        weights = _weights(absent, plan.inputs.catalog, source)
        whose, missing = "source", [name for name in weights if not name.startswith(_NOT_SAVED)]
    elif plan.part is not None and source is not None:
        missing = [name for name in absent if name in source.parameters]
    if missing:
        yield f"left out, because no source file holds them, though the {whose}'s strategy has them: {_names(missing)}"
    if plan.match.dropped:
        yield f"left out, because the target's strategy does not have them: {_names(plan.match.dropped)}"

"""Decides what becomes of each parameter: resharded, passed through unchanged, dropped, or missing.

The rules (names are looked up in the source's strategy, the target's, and the source's files):

=================  =================  ==================================================================
source strategy    target strategy    then
=================  =================  ==================================================================
holds it           holds it           resharded, from the lowest source stage that holds it
holds it           is None            resharded: joined to the whole tensor
holds it           lacks it           unmatched: dropped with a report, or an error, as asked
lacks it           holds it           resharded, if all ranks that own it hold the same whole tensor
lacks it           lacks it           passed through: copied unchanged to every target rank
(in no file)       holds it           missing: an error, unless allowed, or another stage's and one stage is converted
=================  =================  ==================================================================

Declared changes come first: excluded parameters are not looked up, and the target's strategy is asked for the new
names. Parameters that are split, joined or transposed can be resharded, but not passed through.

MindSpore copies unmatched parameters whole under their full names, which is garbage or a guess.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from reshard.core.changes.changes import NO_CHANGES, Changes
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError, LayoutError, PlanError, raise_problems
from reshard.core.plan.appended import REDUNDANCY_MARK, appended_parameters
from reshard.core.plan.kept_quantized import kept_problems
from reshard.core.plan.model import (
    LeftOut,
    ParameterMatch,
    PassedThroughParameter,
    PlanInputs,
    ReshardedParameter,
    SourceTensor,
)
from reshard.core.plan.names import MatchedNames, fits_any
from reshard.core.plan.other_stages import names_of_all_stages
from reshard.core.plan.ownership import LostBox, SourceCopy, lost_boxes
from reshard.core.plan.partial_stage import part_of_target
from reshard.core.plan.recipes import Recipe, Recipes, build_recipes
from reshard.core.plan.resharding import SourceTensors, build_resharded, lost_source_boxes, target_dtype
from reshard.core.plan.stage_shards import (
    SourceShards,
    StageShards,
    entry_text,
    integrated_by_shapes,
    misplaced,
    names_in_order,
    names_without_shards,
    owners_of,
    source_copy,
    with_first,
)
from reshard.core.plan.steps import DroppedCopy
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed, rank_names
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, DType
from reshard.core.text.options import option

_Shards = Mapping[str, Sequence[StageShards]]


def match_parameters(inputs: PlanInputs, source_shards: SourceShards | None = None) -> ParameterMatch:
    """Decide what becomes of every parameter; `source_shards` are the source's, if they are grouped already.

    Raises:
        CatalogError: ranks disagree about a parameter.
        PlanError: parameters are missing, unmatched where that is to fail, or do not fit the target's layout; or a
            declared change or appended entry does not go with them.
    """
    catalog, target = inputs.catalog, inputs.target_strategy
    order = names_in_order(catalog)
    source_shards = source_shards or SourceShards(catalog, inputs.source_strategy)
    raise_problems(CatalogError, f"{catalog.url}: its ranks do not make one checkpoint", source_shards.problems)
    shards = source_shards.by_name
    recipes = _recipes(inputs, order)
    problems: list[str] = []
    if inputs.shared_parameters.isascii() and inputs.shared_parameters.isdigit():
        shards = with_first(int(inputs.shared_parameters), shards, inputs.source_strategy, problems)
    names = _matched_names(inputs, recipes, order, shards)
    misplaced_names = (names.in_source_strategy & names.used) - shards.keys()
    problems.extend(misplaced(catalog, name) for name in order if name in misplaced_names)
    by_shapes = integrated_by_shapes(shards, target, names.target_names)
    asked = inputs.integrated_save
    integrated = bool(by_shapes) if asked is IntegratedSave.AUTO else asked is IntegratedSave.YES
    sources = SourceTensors(catalog, shards, target, names.target_names, integrated)
    resharded = build_resharded(names.to_reshard, sources, target, problems)
    appended = appended_parameters(inputs.append_info, catalog, names.in_strategies, names.source_names, problems)
    passed_through = tuple(_passed_through(catalog, recipe, problems) for recipe in names.to_pass_through)
    missing = _find_missing(inputs, names, shards, problems)
    if inputs.fail_on_unmatched:
        problems.extend(
            f"parameter {name!r} of the source has no place in the target's strategy" for name in names.dropped
        )
    dropped_copies = tuple(_dropped_copies(recipes, names.in_files, catalog, sources, problems))
    problems.extend(_cast_problems(inputs.changes, [*resharded, *passed_through]))
    if inputs.changes != NO_CHANGES:
        dtypes = {name: entry.dtype for index in catalog.indexes() for name, entry in index.entries.items()}
        problems.extend(kept_problems(resharded, passed_through, dtypes))
    raise_problems(PlanError, f"{catalog.url}: cannot be converted", problems)
    return ParameterMatch(
        resharded=resharded,
        passed_through=passed_through,
        dropped=names.dropped,
        missing=missing.allowed,
        integrated=integrated,
        shapes_decide=by_shapes is not None,
        appended=appended,
        lost=(*missing.lost, *lost_source_boxes(resharded)),
        elsewhere=missing.elsewhere,
        shared=_shared_copies(resharded, shards, integrated),
        left_out=LeftOut(
            sources={name: why for name, why in recipes.excluded.items() if name in names.in_files},
            names=recipes.left_out,
            copies=dropped_copies,
        ),
        part=missing.part,
    )


def check_convertible(match: ParameterMatch, catalog: CheckpointCatalog, layout: str, carriers: Sequence[str]) -> None:
    """Refuse parameters that cannot be converted: of foreign dtypes, or of which the whole model is unknown.

    Args:
        match: the parameters.
        catalog: the source.
        layout: name of the target's layout.
        carriers: names of the layouts whose targets can hold floats of 8 bits.

    Raises:
        PlanError: the target would get some; names each, and a file that holds it.
    """
    problems = [
        f"parameter {name!r} has dtype {dtype}, which {_why_foreign(dtype, carriers)}: {option('exclude', [name])} "
        f"(it is in {holding_file(catalog, name)})"
        for name, dtype in foreign_parameters(match).items()
        if not (dtype.is_float8 and layout in carriers)
    ]
    problems += _unconvertible(match, catalog)
    raise_problems(PlanError, f"{catalog.url}: cannot be converted", problems)


def _unconvertible(match: ParameterMatch, catalog: CheckpointCatalog) -> Iterator[str]:
    names = {source.name for source in distinct_sources(match.resharded)}
    names |= {passed.source_name for passed in match.passed_through}
    alike: dict[str, list[str]] = {}
    for name, what in catalog.unconvertible.items():
        if name in names:
            alike.setdefault(what, []).append(name)
    for what, [first, *others] in alike.items():
        more = f" and {counted(len(others), 'other')}" if others else ""
        yield f"parameter {first!r}{more}: {what}. Leave out all training state, {option('select', 'weights-only')}"


def _why_foreign(dtype: DType, carriers: Sequence[str]) -> str:
    if dtype.is_float8:
        layouts = [option("layout", each) for each in carriers]
        return (
            f"only {', '.join(layouts[:-1])} and {layouts[-1]} can hold; choose one of these, or, if the model does "
            "without it, leave it out"
        )
    return "reshard cannot convert; if the model does without it, leave it out"


def foreign_parameters(match: ParameterMatch) -> dict[str, DType]:
    """Return the source parameters of the target whose dtypes cannot be converted -> dtype."""
    scaled = {
        parameter.sources[piece.source].name
        for parameter in match.resharded
        for piece in parameter.pieces
        if piece.scale is not None
    }
    dtypes = {source.name: source.dtype for source in distinct_sources(match.resharded) if source.name not in scaled}
    dtypes |= {passed.source_name: passed.dtype for passed in match.passed_through}
    return {name: dtype for name, dtype in dtypes.items() if dtype.is_foreign}


def holding_file(catalog: CheckpointCatalog, name: str) -> str:
    """Return the location of the lowest rank's file with a source parameter."""
    return next(record.location for record in catalog.records.values() if name in record.index.entries)


def distinct_sources(resharded: Iterable[ReshardedParameter]) -> tuple[SourceTensor, ...]:
    """Return the sources of resharded parameters, each once."""
    return tuple({source.name: source for parameter in resharded for source in parameter.sources}.values())


def check_nothing_lost(catalog: CheckpointCatalog, match: ParameterMatch) -> None:
    """Check that every box of every resharded parameter has an owner."""
    problems = [f"parameter {text}" for text in map(lost_text, match.lost)]
    raise_problems(CatalogError, f"{catalog.url}: parts of it are in no usable file", problems)


def lost_text(lost: LostBox) -> str:
    """Format a lost box for a message."""
    what = "all of it" if lost.box is None else f"{lost.box} of the whole tensor"
    return f"{lost.name!r}: {what} has no holder; it should be on {rank_names(lost.ranks, 8)}"


def _recipes(inputs: PlanInputs, order: Sequence[str]) -> Recipes:
    in_strategy = inputs.source_strategy.parameters if inputs.source_strategy else frozenset[str]()
    all_names = [name for name in order if name != REDUNDANCY_MARK] + sorted(in_strategy.difference(order))
    problems: list[str] = []
    of_all_stages = names_of_all_stages(inputs.source_strategy, inputs.target_strategy)
    recipes = build_recipes(all_names, inputs.changes, problems, of_all_stages=of_all_stages, adapter=inputs.adapter)
    if REDUNDANCY_MARK in recipes.made:
        problems.append(f"no parameter can be called {REDUNDANCY_MARK!r}: that marks files without redundancy")
    raise_problems(PlanError, f"{inputs.catalog.url}: these changes cannot be applied", problems)
    return recipes


def _matched_names(inputs: PlanInputs, recipes: Recipes, order: Sequence[str], shards: _Shards) -> MatchedNames:
    source, target = inputs.source_strategy, inputs.target_strategy
    return MatchedNames(
        recipes,
        in_files=frozenset(order),
        with_shards=frozenset(shards),
        in_source_strategy=source.parameters if source else frozenset(),
        in_target_strategy=target.parameters if target else None,
        appended=frozenset(name for name, _ in inputs.append_info),
        reshards_all=source is None and target is None and inputs.changes != NO_CHANGES,
    )


def _shared_copies(
    resharded: Sequence[ReshardedParameter], shards: _Shards, integrated: bool
) -> dict[str, tuple[tuple[int, SourceCopy], ...]]:
    """The stages' copies of each source parameter that several stages hold."""
    return {
        source.name: tuple((each.stage.stage, source_copy(each, integrated)) for each in shards[source.name])
        for source in distinct_sources(resharded)
        if len(shards.get(source.name, ())) > 1
    }


def _dropped_copies(
    recipes: Recipes, in_files: frozenset[str], catalog: CheckpointCatalog, sources: SourceTensors, problems: list[str]
) -> Iterator[tuple[SourceTensor, SourceTensor]]:
    """Parameters left out as copies, each with the one that it is a copy of; shapes and element types are compared."""
    for dropped in recipes.dropped_copies:
        if dropped.name not in in_files and not catalog.lost:
            continue  # a name of the strategy that was never saved: nothing is left out
        if not in_files.issuperset((dropped.name, dropped.copy_of)):
            problems.append(_incomparable(dropped))
            continue
        try:
            copy, original = sources.of(dropped.name), sources.of(dropped.copy_of)
        except LayoutError as error:
            problems.append(f"{dropped.rule}: {dropped.name!r} cannot be compared with {dropped.copy_of!r}: {error}")
            continue
        kinds = [f"{each.dtype} {list(each.shape)}" for each in (copy, original)]
        if kinds[0] != kinds[1]:
            problems.append(
                f"{dropped.rule}: {copy.name!r} is not a copy of {original.name!r}: it is {kinds[0]}, not {kinds[1]}"
            )
        elif any(next(lost_boxes(each.name, each.shape, each.copies), None) for each in (copy, original)):
            problems.append(_incomparable(dropped))
        else:
            yield copy, original


def _incomparable(dropped: DroppedCopy) -> str:
    return (
        f"{dropped.rule}: {dropped.name!r} and {dropped.copy_of!r} cannot be compared: no file holds all of them. "
        f"To leave it out unseen: {option('exclude', [dropped.name])}"
    )


def _passed_through(catalog: CheckpointCatalog, recipe: Recipe, problems: list[str]) -> PassedThroughParameter:
    [name] = recipe.sources
    owners = owners_of(catalog, name)
    first = owners[0]
    entry = first.index.entries[name]
    for record in owners[1:]:
        other = record.index.entries[name]
        opaque = entry.dtype in (TEXT, MAP_TENSOR)
        if entry.dtype is not other.dtype or (entry.shape != other.shape and not opaque):
            problems.append(
                f"parameter {name!r}, which no strategy knows, is {entry_text(entry)} on rank_{first.rank}, "
                f"but {entry_text(other)} on rank_{record.rank}: it may be cut, and nothing says how"
            )
            break
    dtype = target_dtype(recipe, {name: entry.dtype})
    return PassedThroughParameter(recipe.name, name, frozenset(record.rank for record in owners), dtype, recipe.steps)


class _Missing(Record):
    """Target names that nothing is made for.

    Attributes:
        allowed: names that may be missing, or were left out.
        elsewhere: names that other stages have.
        lost: source parameters of which damage took every box.
        part: the stage that is converted by itself, if other stages have names.
    """

    allowed: tuple[str, ...]
    elsewhere: tuple[str, ...]
    lost: tuple[LostBox, ...]
    part: int | None


def _find_missing(inputs: PlanInputs, names: MatchedNames, shards: _Shards, problems: list[str]) -> _Missing:
    source, patterns = inputs.source_strategy, inputs.allow_missing
    needed = names.needed()
    damaged = names_without_shards(inputs.catalog, source, shards, needed) if source else {}
    problems.extend(names.problems(damaged))
    missing = names.missing(damaged)
    left_out = names.recipes.left_out
    allowed = frozenset(name for name in missing if name in left_out or fits_any(name, patterns))
    required_sources = names.needed(allowed)
    lost = (LostBox(name, None, ranks) for name, ranks in damaged.items() if name in required_sources)
    absent = _in_absent_parts(inputs, needed & (names.in_source_strategy - names.in_files), problems)
    reported = {*damaged, *absent}
    required = [name for name in missing if name not in allowed and reported.isdisjoint(names.sources_of(name))]
    from_source = names.from_source_strategy
    part = part_of_target(source, inputs.target_strategy, patterns, names=from_source, left_out=left_out)
    elsewhere: tuple[str, ...] = ()
    if part is not None:
        elsewhere = tuple(name for name in required if name not in from_source)
        required = [name for name in required if name in from_source]
    if required:
        advice = f"allow it with {option('allow_missing', ['PATTERN'])} if the target can do without"
        if source is not None and not source.merged:
            advice += ", or, if the source strategy is one stage's own, name the directory of all strategies"
        problems.extend(
            f"parameter {name!r} of the target's strategy is in no source file; {advice}" for name in required
        )
    return _Missing(
        tuple(name for name in missing if name in allowed), elsewhere, tuple(lost), part if elsewhere else None
    )


def _in_absent_parts(inputs: PlanInputs, in_no_file: frozenset[str], problems: list[str]) -> list[str]:
    """Of needed parameters in no file, those whose stage's part of the files is missing: a problem."""
    stages = inputs.catalog.stage_numbers
    if not stages:
        return []
    absent = sorted(name for name in in_no_file if not fits_any(name, inputs.allow_missing))
    if absent:
        problems.append(
            f"its files have the parts of stages {', '.join(map(str, stages))} only, and {len(absent)} "
            f"parameters of its strategy are in none of them ({listed(absent, 6)}): the parts of other stages are "
            f"missing. What the result can do without is allowed with {option('allow_missing', ['PATTERN'])}"
        )
    return absent


def _cast_problems(
    changes: Changes, parameters: Iterable[ReshardedParameter | PassedThroughParameter]
) -> Iterator[str]:
    """Casts that fit only parameters that cannot be cast."""
    dtypes = {each.name: each.dtype for each in parameters}
    for rule in changes.cast:
        fitting = [name for name in dtypes if fnmatchcase(name, rule.parameters)]
        if fitting and not any(dtypes[name].is_float for name in fitting):
            names = listed([f"{name} ({dtypes[name]})" for name in fitting], 6)
            yield f"{rule} matches no floating-point parameter, only {names}"

"""What becomes of each parameter: moved into a new cut, carried along unchanged, dropped, or missing.

The rules (names are looked up in the source's strategy, the target's, and the source's files):

=================  =================  ==================================================================
source strategy    target strategy    then
=================  =================  ==================================================================
holds it           holds it           moved: cut anew, from the lowest source stage that holds it
holds it           is None            moved: joined to the whole tensor
holds it           lacks it           unmatched: dropped with a report, or an error, as asked
lacks it           holds it           moved, if all ranks that hold it hold the same whole tensor
lacks it           lacks it           carried: copied unchanged to every target rank
(in no file)       holds it           missing: an error, unless excused, or another stage's and one stage is converted
=================  =================  ==================================================================

Changes that are declared come before: what they leave out is not looked up, and the target's strategy is asked for the
names that they give. What they split, join or transpose can be moved, but not carried.

MindSpore copies unmatched and strategy-less parameters uncut under the full name, which is garbage or a guess.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from reshard.core.checkpoint.catalog.records import CheckpointCatalog
from reshard.core.errors import CatalogError, LayoutError, PlanError, raise_problems
from reshard.core.plan.appended import REDUNDANCY_MARK, AppendedParameter, appended_parameters
from reshard.core.plan.names import MatchedNames
from reshard.core.plan.ownership import LostBox, SourceCopy, lacks_shards, lost_boxes
from reshard.core.plan.partial_stage import part_of_target
from reshard.core.plan.recipes import Composer, Recipe, build_recipes
from reshard.core.plan.stage_shards import (
    StageShards,
    check_opaque,
    check_same_whole,
    described,
    integrated_by_shapes,
    joined_shape,
    known_shape,
    misplaced,
    names_in_order,
    names_without_shards,
    shards_by_stage,
    source_copy,
    with_first,
)
from reshard.core.request.changes import FLOAT_NAMES, NO_CHANGES, Changes
from reshard.core.request.conversion import IntegratedSave
from reshard.core.request.info_texts import InfoValue
from reshard.core.runtime.wording import listed, rank_names
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.dtypes import INT4, MAP_TENSOR, TEXT, DType, dtype_from_name
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from reshard.core.tensor.segments import Piece, Pieces, are_whole, whole_piece
from reshard.core.tensor.slices import TOO_LARGE, Shape, TensorSlice, is_countable

_MOST_PARTS_TOLD = 3


@dataclass(frozen=True)
class SourceTensor:
    """A parameter of the source.

    Attributes:
        name: its name in the source's files.
        dtype: element type.
        shape: shape of the whole tensor.
        copies: the source stage that it is read from; if cells have no holder there, other stages that hold it. None
            of what is carried.
    """

    name: str
    dtype: DType
    shape: Shape
    copies: tuple[SourceCopy, ...]


@dataclass(frozen=True)
class ReshardedParameter:
    """A parameter that is cut anew.

    Attributes:
        name: the parameter's name in the target.
        dtype: element type in the target.
        shape: shape of the whole tensor in the target.
        sources: the source parameters that it is made from; one as a rule.
        pieces: the boxes of them that fill it exactly once; as a rule one, all of its source as it is.
        target_layouts: target stage -> its layout there.
        steps: what else is done to it, as declared: `split`, `joined`, `transposed`, `renamed`.
    """

    name: str
    dtype: DType
    shape: Shape
    sources: tuple[SourceTensor, ...]
    pieces: tuple[Piece, ...]
    target_layouts: Mapping[int, ParameterLayout]
    steps: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether it is all of one source parameter, and in its shape."""
        return are_whole(self.pieces, self.sources[0].shape)

    @property
    def copies(self) -> tuple[SourceCopy, ...]:
        """The copies of its first source."""
        return self.sources[0].copies

    @property
    def source_first_rank(self) -> int:
        """Global rank of the first device of the source stage that its first source is read from."""
        return self.copies[0].first_rank


@dataclass(frozen=True)
class PassedThroughParameter:
    """A parameter that no strategy knows, copied to every rank.

    Attributes:
        name: its name in the target.
        source_name: its name in the source's files.
        owners: the source ranks that have it.
        dtype: element type in the target.
        steps: what else is done to it, as declared: `renamed`.
    """

    name: str
    source_name: str
    owners: frozenset[int]
    dtype: DType
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class ParameterMatch:
    """What becomes of every parameter; names in the source files' order.

    Attributes:
        resharded: parameters that are cut anew.
        passed_through: parameters that are copied unchanged to every target rank.
        dropped: names in the source's strategy, as changed, that the target's lacks.
        missing: names in the target's strategy that no source file holds and that were allowed to be missing, or are of
            what was left out.
        integrated: every source rank holds whole tensors although the strategy cuts them.
        shapes_decide: whether known shapes say so, or the contrary.
        lost: what would be moved, but is in no file; source names.
        elsewhere: names in the target's strategy that other stages have, which are converted by themselves.
        shared: of source parameters that are moved and that several source stages hold, each stage's copy; the one
            taken is first.
        appended: what every target file gets besides, in place of the source's.
        outside: of a unified target, parameters that no strategy knows; they are among those that are moved.
        files: of a unified target, the names of its files; the last one has what is appended.
        excluded: source names that were left out as declared -> what says so.
        left_out: what they would be called in the target.
        part: the stage whose part of the target this is; None if it is all of it.
    """

    resharded: tuple[ReshardedParameter, ...]
    passed_through: tuple[PassedThroughParameter, ...]
    dropped: tuple[str, ...]
    missing: tuple[str, ...]
    integrated: bool
    shapes_decide: bool = True
    appended: tuple[AppendedParameter, ...] = ()
    lost: tuple[LostBox, ...] = ()
    elsewhere: tuple[str, ...] = ()
    shared: Mapping[str, tuple[tuple[int, SourceCopy], ...]] = field(default_factory=dict)
    outside: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    part: int | None = None

    @property
    def allowed_missing(self) -> tuple[str, ...]:
        """Names in `missing` that were not left out on purpose."""
        return tuple(name for name in self.missing if name not in self.left_out)

    @property
    def beyond_strategies(self) -> tuple[str, ...]:
        """Names of parameters that no strategy knows, and that are in the target all the same."""
        return tuple(carried.name for carried in self.passed_through) + self.outside


def match_parameters(
    catalog: CheckpointCatalog,
    source: Strategy | None,
    target: Strategy | None,
    *,
    fail_on_unmatched: bool = False,
    allow_missing: Sequence[str] = (),
    integrated_save: IntegratedSave = IntegratedSave.AUTO,
    append_info: Sequence[tuple[str, InfoValue]] = (),
    shared_parameters: str = "first",
    changes: Changes = NO_CHANGES,
) -> ParameterMatch:
    """Decides what becomes of every parameter.

    `allow_missing` are shell-style patterns of names that the target's strategy may hold without a source.
    `integrated_save`: whether every source rank holds whole tensors; by default known shapes decide, else the strategy.
    `append_info` are names and values that every target file gets. `shared_parameters` is `first` or the number of the
    stage whose copy is taken of what several hold; it need not hold all of it. `changes` give target parameters other
    names, shapes and dtypes than the source's: the target's strategy and `allow_missing` are about the former.

    Raises:
        CatalogError: ranks disagree about a parameter.
        PlanError: parameters are missing, unmatched where that is to fail, or do not fit the target's layout, or
            information has the name of one; or a change does not go with them.
    """
    order = names_in_order(catalog)
    known = source.parameters if source else frozenset()
    wanted = target.parameters if target else None
    problems: list[str] = []
    held = shards_by_stage(catalog, source, order, problems) if source else {}
    raise_problems(CatalogError, f"{catalog.url}: its ranks do not make one checkpoint", problems)
    recipes = build_recipes(_all_names(order, known), changes, problems)
    if REDUNDANCY_MARK in recipes.made:
        problems.append(f"no parameter can be called {REDUNDANCY_MARK!r}: that marks files without redundancy")
    raise_problems(PlanError, f"{catalog.url}: cannot be changed so", problems)
    if shared_parameters.isascii() and shared_parameters.isdigit():
        held = with_first(int(shared_parameters), held, source, problems)
    names = MatchedNames(
        recipes,
        frozenset(order),
        frozenset(held),
        known,
        wanted,
        frozenset(name for name, _ in append_info),
        moves_all=source is None and target is None and changes != NO_CHANGES,
    )
    lost_sight_of = (known & names.taken) - held.keys()
    problems.extend(misplaced(catalog, name) for name in order if name in lost_sight_of)
    by_shapes = integrated_by_shapes(held, target, names.called)
    integrated = bool(by_shapes) if integrated_save is IntegratedSave.AUTO else integrated_save is IntegratedSave.YES
    sources = _Sources(catalog, held, target, names.called, integrated)
    moved = _build_all(names.to_move, sources, target, problems)
    shared = {
        each.name: tuple((there.stage.stage, source_copy(there, integrated)) for there in held[each.name])
        for each in distinct_sources(moved)
        if len(held.get(each.name, ())) > 1
    }
    appended = appended_parameters(append_info, catalog, names.in_strategies, names.source_names, problems)
    carried = tuple(_carried(catalog, recipe, problems) for recipe in names.to_carry)
    unheld = names_without_shards(catalog, source, held, names.needed) if source else {}
    problems.extend(names.problems(unheld))
    missing = names.missing(unheld)
    excused = tuple(
        name
        for name in missing
        if name in recipes.left_out or any(fnmatchcase(name, pattern) for pattern in allow_missing)
    )
    are_excused = frozenset(excused)
    lost = [LostBox(name, None, ranks) for name, ranks in unheld.items() if names.is_needed(name, are_excused)]
    lost.extend(_lost_boxes(moved))
    absent = _in_absent_parts(catalog, names.needed & known - set(order), allow_missing, problems)
    not_there = {*unheld, *absent}
    missing = [name for name in missing if not_there.isdisjoint(names.sources_of(name))]
    elsewhere: tuple[str, ...] = ()
    part = part_of_target(source, target, allow_missing, names=names.of_strategy, left_out=recipes.left_out)
    if part is not None:
        elsewhere = tuple(name for name in missing if name not in names.of_strategy and name not in are_excused)
        missing = sorted(set(missing).difference(elsewhere))
    _check_missing(missing, are_excused, problems, own_stage=source is not None and not source.merged)
    if fail_on_unmatched:
        problems.extend(
            f"parameter {name!r} of the source has no place in the target's strategy" for name in names.dropped
        )
    problems.extend(_cast_problems(changes, moved, carried))
    raise_problems(PlanError, f"{catalog.url}: cannot be converted", problems)
    return ParameterMatch(
        moved,
        carried,
        names.dropped,
        excused,
        integrated,
        by_shapes is not None,
        appended,
        tuple(lost),
        elsewhere,
        shared,
        excluded={name: why for name, why in recipes.excluded.items() if name in names.in_files},
        left_out=recipes.left_out,
        part=part if elsewhere else None,
    )


def check_convertible(match: ParameterMatch, catalog: CheckpointCatalog) -> None:
    """Makes sure that the target gets no parameter of a foreign dtype.

    Raises:
        PlanError: it would; names each parameter, and a file that holds it.
    """
    problems = [
        f"parameter {name!r} has dtype {dtype}, which reshard cannot convert; leave it out: --exclude {name} "
        f"(it is in {holding_file(catalog, name)})"
        for name, dtype in foreign_parameters(match).items()
    ]
    raise_problems(PlanError, f"{catalog.url}: cannot be converted", problems)


def foreign_parameters(match: ParameterMatch) -> dict[str, DType]:
    """The source parameters that the target gets and whose dtypes cannot be converted, with these."""
    dtypes = {source.name: source.dtype for source in distinct_sources(match.resharded)}
    dtypes |= {carried.source_name: carried.dtype for carried in match.passed_through}
    return {name: dtype for name, dtype in dtypes.items() if dtype.is_foreign}


def holding_file(catalog: CheckpointCatalog, name: str) -> str:
    """The file of the lowest rank with a source parameter."""
    return next(record.location for record in catalog.records.values() if name in record.index.entries)


def distinct_sources(moved: Iterable[ReshardedParameter]) -> tuple[SourceTensor, ...]:
    """The source parameters that are moved, each once."""
    return tuple({source.name: source for parameter in moved for source in parameter.sources}.values())


def as_it_is(source: SourceTensor, target_layouts: Mapping[int, ParameterLayout]) -> ReshardedParameter:
    """A source parameter under its own name, and unchanged."""
    whole = (whole_piece(source.shape),)
    return ReshardedParameter(source.name, source.dtype, source.shape, (source,), whole, target_layouts)


class _Sources:
    """The source parameters that target parameters are made of; `called` is what they are called there."""

    def __init__(
        self,
        catalog: CheckpointCatalog,
        held: Mapping[str, Sequence[StageShards]],
        target: Strategy | None,
        called: Mapping[str, str],
        integrated: bool,
    ) -> None:
        self._catalog = catalog
        self._held = held
        self._target = target
        self._called = called
        self._integrated = integrated
        self._known: dict[str, SourceTensor] = {}
        self.composer = Composer()

    def of(self, name: str) -> SourceTensor:
        """A parameter of the source.

        Raises:
            LayoutError: its shards do not make a whole, or nothing says how it is cut.
        """
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._cut(self._held[name]) if name in self._held else self._uncut(name)
        return known

    def _cut(self, stages: Sequence[StageShards]) -> SourceTensor:
        held = stages[0]
        entry = held.entry
        copy = source_copy(held, self._integrated)
        cut = copy.layout.shard_grid(len(entry.shape))
        shape = {cut.whole_shape(rank, shard.shape) for rank, shard in held.shards}.pop()
        for other in stages[1:]:
            check_same_whole(held, shape, other, self._integrated)
        known = known_shape(stages, self._target, self._called)
        if known is not None and known != shape:
            means = {entry.shape: ": ranks hold whole tensors", joined_shape(held): ": ranks hold slices"}
            raise LayoutError(
                f"its shards of shape {list(entry.shape)} make a whole of {list(shape)}, the strategy says "
                f"{list(known)}{means.get(known, '')}"
            )
        copies = [copy]
        if lacks_shards(copy, len(shape)):
            copies += [source_copy(other, self._integrated) for other in stages if other is not held]
        return SourceTensor(entry.name, entry.dtype, shape, tuple(copies))

    def _uncut(self, name: str) -> SourceTensor:
        """A parameter that only the target's strategy knows: usable if every holder has the same whole tensor."""
        owners = [record for record in self._catalog.records.values() if name in record.index.entries]
        first = owners[0]
        entry = first.index.entries[name]
        for record in owners[1:]:
            other = record.index.entries[name]
            same = (entry.dtype, entry.shape, entry.text) == (other.dtype, other.shape, other.text)
            if not same or first.digests.get(name) != record.digests.get(name):
                raise LayoutError(
                    f"the source's strategy does not say how it is cut, and rank_{first.rank} and rank_{record.rank} "
                    "hold different contents"
                )
        copy = SourceCopy(first.rank, whole_layout(len(entry.shape)))
        return SourceTensor(name, entry.dtype, entry.shape, (copy,))


def _moved(recipe: Recipe, sources: _Sources, target: Strategy | None) -> ReshardedParameter:
    made_of = tuple(map(sources.of, recipe.sources))
    shape = made_of[0].shape
    pieces: Pieces = (whole_piece(shape),)
    if recipe.is_reshaped:
        _check_has_elements(recipe, made_of)
        pieces, shape = sources.composer.compose(recipe, {source.name: source.shape for source in made_of})
    dtype = _dtype(recipe, made_of)
    if not is_countable(shape, dtype.itemsize):
        raise LayoutError(f"the shape of the whole tensor, {list(shape)}, is {TOO_LARGE} as {dtype}")
    layouts = _target_layouts(recipe.name, dtype, shape, target)
    # a vector that is transposed, say, is what it was
    steps = recipe.renamed if are_whole(pieces, made_of[0].shape) else recipe.steps
    return ReshardedParameter(recipe.name, dtype, shape, made_of, pieces, layouts, steps)


def _check_has_elements(recipe: Recipe, made_of: Sequence[SourceTensor]) -> None:
    for source in made_of:
        if source.dtype in (TEXT, MAP_TENSOR) or (source.dtype is INT4 and "transposed" in recipe.steps):
            raise LayoutError(f"{source.name!r} has dtype {source.dtype}, which cannot be {' or '.join(recipe.steps)}")


def _dtype(recipe: Recipe, made_of: Sequence[SourceTensor]) -> DType:
    """The element type in the target."""
    found = {source.dtype for source in made_of}
    if recipe.cast is not None and all(dtype.is_float for dtype in found):
        return dtype_from_name(FLOAT_NAMES[recipe.cast.dtype])
    if len(found) > 1:
        told = ", ".join(f"{source.name!r} {source.dtype}" for source in made_of[:8])
        advice = ", which a cast could make one" if all(dtype.is_float for dtype in found) else ""
        raise LayoutError(f"what it is made from has different dtypes ({told}){advice}")
    return found.pop()


def _target_layouts(name: str, dtype: DType, shape: Shape, target: Strategy | None) -> dict[int, ParameterLayout]:
    if target is None:
        return {0: whole_layout(len(shape))}
    layouts = {}
    for stage in target.stages_with(name):
        layout = stage.layouts[name]
        if dtype in (TEXT, MAP_TENSOR):
            check_opaque(dtype, layout)
            layout = whole_layout(len(shape), layout.device_count)
        if layout.tensor_shape not in (None, shape):
            raise LayoutError(
                f"its shape is {list(shape)}, the target's strategy says {list(layout.tensor_shape or ())} "
                f"in stage {stage.stage}"
            )
        try:
            layout.shard_grid(len(shape)).bounds(shape)
        except LayoutError as error:
            raise LayoutError(
                f"its shape {list(shape)} does not fit the target's layout in stage {stage.stage}: {error}"
            ) from error
        layouts[stage.stage] = layout
    return layouts


def _carried(catalog: CheckpointCatalog, recipe: Recipe, problems: list[str]) -> PassedThroughParameter:
    [name] = recipe.sources
    owners = [record for record in catalog.records.values() if name in record.index.entries]
    entry = owners[0].index.entries[name]
    for record in owners[1:]:
        other = record.index.entries[name]
        opaque = entry.dtype in (TEXT, MAP_TENSOR)
        if entry.dtype is not other.dtype or (entry.shape != other.shape and not opaque):
            problems.append(
                f"parameter {name!r}, which no strategy knows, is {described(entry)} on rank_{owners[0].rank}, "
                f"but {described(other)} on rank_{record.rank}: it may be cut, and nothing says how"
            )
            break
    source = SourceTensor(name, entry.dtype, entry.shape, ())
    ranks = frozenset(record.rank for record in owners)
    return PassedThroughParameter(recipe.name, name, ranks, _dtype(recipe, [source]), recipe.steps)


def _lost_boxes(moved: Sequence[ReshardedParameter]) -> Iterator[LostBox]:
    """The boxes of source parameters that are wanted, and that no file holds; each once."""
    wanted: dict[str, tuple[SourceTensor, list[TensorSlice] | None]] = {}
    for parameter in moved:
        for number, source in enumerate(parameter.sources):
            boxes = wanted.setdefault(source.name, (source, []))[1]
            if parameter.is_whole:
                wanted[source.name] = source, None
            elif boxes is not None:
                boxes.extend(piece.box for piece in parameter.pieces if piece.source == number)
    for source, boxes in wanted.values():
        for lost in lost_boxes(source.name, source.shape, source.copies):
            if boxes is None or lost.box is None or any(lost.box.intersect(box) for box in boxes):
                yield lost


def _cast_problems(
    changes: Changes, moved: Sequence[ReshardedParameter], carried: Sequence[PassedThroughParameter]
) -> Iterator[str]:
    """Casts that are about nothing that can be cast."""
    dtypes = {each.name: each.dtype for each in moved} | {each.name: each.dtype for each in carried}
    for rule in changes.cast:
        fitting = [name for name in dtypes if fnmatchcase(name, rule.parameters)]
        if fitting and not any(dtypes[name].is_float for name in fitting):
            told = listed([f"{name} ({dtypes[name]})" for name in fitting], 6)
            yield f"{rule} fits no floating-point parameter, only {told}"


def _all_names(order: Sequence[str], known: frozenset[str]) -> list[str]:
    """All names of the source: in its files, in their order, and then in its strategy only."""
    return [name for name in order if name != REDUNDANCY_MARK] + sorted(known.difference(order))


def check_nothing_lost(catalog: CheckpointCatalog, match: ParameterMatch) -> None:
    """Makes sure that every box of every parameter that is moved has a holder.

    Raises:
        CatalogError: boxes have none; lists them, and the ranks that should hold them.
    """
    problems = [f"parameter {told}" for told in map(lost_text, match.lost)]
    raise_problems(CatalogError, f"{catalog.url}: parts of it are in no usable file", problems)


def lost_text(lost: LostBox) -> str:
    """What is lost, in words."""
    what = "all of it" if lost.box is None else f"{lost.box} of the whole tensor"
    return f"{lost.name!r}: {what} has no holder; it should be on {rank_names(lost.ranks, 8)}"


def _in_absent_parts(
    catalog: CheckpointCatalog, unheld: frozenset[str], allow_missing: Sequence[str], problems: list[str]
) -> list[str]:
    """Of the parameters that are needed and in no file, those that are not excused, if files are parts: a problem."""
    if not catalog.stage_numbers:
        return []
    absent = sorted(name for name in unheld if not any(fnmatchcase(name, pattern) for pattern in allow_missing))
    if absent:
        problems.append(
            f"its files have the parts of stages {', '.join(map(str, catalog.stage_numbers))} only, and {len(absent)} "
            f"parameters of its strategy are in none of them ({listed(absent, 6)}): the parts of other stages are "
            "missing. What the result can do without is allowed with --allow-missing PATTERN"
        )
    return absent


def _check_missing(missing: Sequence[str], excused: frozenset[str], problems: list[str], *, own_stage: bool) -> None:
    lost = [name for name in missing if name not in excused]
    if lost:
        advice = "allow it with --allow-missing PATTERN if the target can do without"
        if own_stage:
            advice += ", or, if the source strategy is one stage's own, name the directory of all strategies"
        problems.extend(f"parameter {name!r} of the target's strategy is in no source file; {advice}" for name in lost)


def _build_all(
    recipes: Sequence[Recipe], sources: _Sources, target: Strategy | None, problems: list[str]
) -> tuple[ReshardedParameter, ...]:
    moved = []
    refused: dict[tuple[tuple[str, ...], str], list[Recipe]] = {}
    for recipe in recipes:
        try:
            moved.append(_moved(recipe, sources, target))
        except LayoutError as error:
            refused.setdefault((tuple(recipe.sources), str(error)), []).append(recipe)
    # what does not divide is the same for all the parts that a parameter is split into
    problems.extend(f"{_told_recipes(alike)}: {error}" for (_, error), alike in refused.items())
    return tuple(moved)


def _told_recipes(alike: Sequence[Recipe]) -> str:
    """What parameters are called that are made of the same ones."""
    if len(alike) > 1:
        return f"parameters {listed([repr(recipe.name) for recipe in alike], _MOST_PARTS_TOLD)}"
    [recipe] = alike
    named = "" if recipe.is_reshaped or recipe.name in recipe.sources else f" (the source's {recipe.sources[0]!r})"
    return f"parameter {recipe.name!r}{named}"

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

MindSpore copies unmatched and strategy-less parameters uncut under the full name, which is garbage or a guess.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial

from core.append_info import REDUNDANCY_MARK, AppendedParameter, appended_parameters
from core.checkpoint.model import TensorEntry
from core.checkpoint.records import CheckpointCatalog
from core.checkpoint.selection import listed, rank_names
from core.dtypes import MAP_TENSOR, TEXT, DType
from core.errors import CatalogError, LayoutError, PlanError
from core.held import (
    HeldParameter,
    check_opaque,
    check_same_whole,
    described,
    held_by_stages,
    is_integrated,
    known_shape,
    misplaced,
    names_in_order,
    source_copy,
    unheld_names,
    with_first,
)
from core.holders import LostBox, SourceCopy, lacks_cells, lost_boxes
from core.info_texts import InfoValue
from core.layout import ParameterLayout, whole_layout
from core.pieces import Piece, are_whole, whole_piece
from core.slices import Shape
from core.strategy.model import Strategy
from core.subnetwork import part_of_target

_MOST_PROBLEMS_TOLD = 20


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
class MovedParameter:
    """A parameter that is cut anew.

    Attributes:
        name: the parameter's name in the target.
        dtype: element type in the target.
        shape: shape of the whole tensor in the target.
        sources: the source parameters that it is made from; one as a rule.
        pieces: the boxes of them that fill it exactly once; as a rule one, all of its source as it is.
        target_layouts: target stage -> its layout there.
    """

    name: str
    dtype: DType
    shape: Shape
    sources: tuple[SourceTensor, ...]
    pieces: tuple[Piece, ...]
    target_layouts: Mapping[int, ParameterLayout]

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
class CarriedParameter:
    """A parameter that no strategy knows, copied to every rank; `holders` are the source ranks that have it."""

    name: str
    source_name: str
    holders: frozenset[int]


@dataclass(frozen=True)
class ParameterMatch:
    """What becomes of every parameter; names in the source files' order.

    Attributes:
        moved: parameters that are cut anew.
        carried: parameters that are copied unchanged to every target rank.
        dropped: names in the source's strategy that the target's lacks.
        excused: names in the target's strategy that no source file holds and that were allowed to be missing.
        integrated: the source's ranks were saved whole although the strategy cuts them.
        lost: what would be moved, but is in no file.
        elsewhere: names in the target's strategy that other stages have, which are converted by themselves.
        shared: of those that are moved and that several source stages hold, each stage's copy; the one taken is first.
        appended: what every target file gets besides, in place of the source's.
    """

    moved: tuple[MovedParameter, ...]
    carried: tuple[CarriedParameter, ...]
    dropped: tuple[str, ...]
    excused: tuple[str, ...]
    integrated: bool
    appended: tuple[AppendedParameter, ...] = ()
    lost: tuple[LostBox, ...] = ()
    elsewhere: tuple[str, ...] = ()
    shared: Mapping[str, tuple[tuple[int, SourceCopy], ...]] = field(default_factory=dict)


def match_parameters(
    catalog: CheckpointCatalog,
    source: Strategy | None,
    target: Strategy | None,
    *,
    fail_on_unmatched: bool = False,
    allow_missing: Sequence[str] = (),
    saved_whole: bool = False,
    append_info: Sequence[tuple[str, InfoValue]] = (),
    shared_parameters: str = "first",
) -> ParameterMatch:
    """Decides what becomes of every parameter.

    `allow_missing` are shell-style patterns of names that the target's strategy may hold without a source.
    `saved_whole`: contents say that the source's ranks hold whole tensors; otherwise shapes may still prove it.
    `append_info` are names and values that every target file gets. `shared_parameters` is `first` or the number of the
    stage whose copy is taken of what several hold; it need not hold all of it.

    Raises:
        CatalogError: ranks disagree about a parameter.
        PlanError: parameters are missing, unmatched where that is to fail, or do not fit the target's layout, or
            information has the name of one.
    """
    order = names_in_order(catalog)
    known = source.parameters if source else frozenset()
    wanted = target.parameters if target else None
    problems: list[str] = []
    held = held_by_stages(catalog, source, order, problems) if source else {}
    _raise_listed(CatalogError, f"{catalog.url}: its ranks do not make one checkpoint", problems)
    if shared_parameters.isdigit():
        held = with_first(int(shared_parameters), held, source, problems)
    unknown = [name for name in order if name not in held]
    problems.extend(misplaced(catalog, name) for name in unknown if name in known)
    integrated = saved_whole or is_integrated(held, target)
    builders = {name: partial(_moved, held[name], target, integrated) for name in held}
    builders |= {name: partial(_moved_without_layout, catalog, name, target) for name in unknown}
    to_move = [name for name in order if (name in held if wanted is None else name in wanted)]
    moved = _build_all(to_move, builders, problems)
    shared = {
        parameter.name: tuple((each.stage.stage, source_copy(each, integrated)) for each in held[parameter.name])
        for parameter in moved
        if len(held.get(parameter.name, ())) > 1
    }
    in_strategies = known | (wanted or frozenset())
    appended = appended_parameters(append_info, catalog, in_strategies, problems)
    not_carried = in_strategies | {each.name for each in appended} | {REDUNDANCY_MARK}
    carried = tuple(_carried(catalog, name, problems) for name in unknown if name not in not_carried)
    dropped = tuple(name for name in held if wanted is not None and name not in wanted)
    unheld = unheld_names(catalog, source, held, wanted) if source else {}
    missing = sorted((wanted or frozenset()) - set(order) | set(unheld))
    excused = tuple(name for name in missing if any(fnmatchcase(name, pattern) for pattern in allow_missing))
    lost = [LostBox(name, None, ranks) for name, ranks in unheld.items() if name not in excused]
    for parameter in moved:
        lost.extend(lost_boxes(parameter.name, parameter.shape, parameter.copies))
    needed = known if wanted is None else known & wanted
    absent = _in_absent_parts(catalog, needed - set(order), allow_missing, problems)
    missing = [name for name in missing if name not in unheld and name not in absent]
    elsewhere: tuple[str, ...] = ()
    if part_of_target(source, target, allow_missing) is not None:
        elsewhere = tuple(name for name in missing if name not in known and name not in excused)
        missing = [name for name in missing if name not in elsewhere]
    _check_missing(missing, excused, problems, own_stage=source is not None and not source.merged)
    if fail_on_unmatched:
        problems.extend(f"parameter {name!r} of the source has no place in the target's strategy" for name in dropped)
    _raise_listed(PlanError, f"{catalog.url}: cannot be converted", problems)
    return ParameterMatch(moved, carried, dropped, excused, integrated, appended, tuple(lost), elsewhere, shared)


def _moved(stages: Sequence[HeldParameter], target: Strategy | None, integrated: bool) -> MovedParameter:
    held = stages[0]
    entry = held.entry
    copy = source_copy(held, integrated)
    cut = copy.layout.cut(len(entry.shape))
    shape = {cut.whole_shape(rank, shard.shape) for rank, shard in held.shards}.pop()
    for other in stages[1:]:
        check_same_whole(held, shape, other, integrated)
    known = known_shape(stages, target)
    if known is not None and known != shape:
        raise LayoutError(
            f"its shards of shape {list(entry.shape)} make a whole of {list(shape)}, the strategy says {list(known)}"
        )
    copies = [copy]
    if lacks_cells(copy, len(shape)):
        copies += [source_copy(other, integrated) for other in stages if other is not held]
    source = SourceTensor(entry.name, entry.dtype, shape, tuple(copies))
    return _as_it_is(source, _target_layouts(entry.name, entry, shape, target))


def _as_it_is(source: SourceTensor, target_layouts: Mapping[int, ParameterLayout]) -> MovedParameter:
    return MovedParameter(
        source.name, source.dtype, source.shape, (source,), (whole_piece(source.shape),), target_layouts
    )


def _target_layouts(name: str, entry: TensorEntry, shape: Shape, target: Strategy | None) -> dict[int, ParameterLayout]:
    if target is None:
        return {0: whole_layout(len(shape))}
    layouts = {}
    for stage in target.stages_holding(name):
        layout = stage.layouts[name]
        if entry.dtype in (TEXT, MAP_TENSOR):
            check_opaque(entry, layout)
            layout = whole_layout(len(shape), layout.device_count)
        if layout.tensor_shape not in (None, shape):
            raise LayoutError(
                f"its shape is {list(shape)}, the target's strategy says {list(layout.tensor_shape or ())} "
                f"in stage {stage.stage}"
            )
        try:
            layout.cut(len(shape)).bounds(shape)
        except LayoutError as error:
            raise LayoutError(
                f"its shape {list(shape)} does not fit the target's layout in stage {stage.stage}: {error}"
            ) from error
        layouts[stage.stage] = layout
    return layouts


def _moved_without_layout(catalog: CheckpointCatalog, name: str, target: Strategy | None) -> MovedParameter:
    """A parameter that only the target's strategy knows: usable if every holder has the same whole tensor."""
    holders = [record for record in catalog.records.values() if name in record.index.entries]
    first = holders[0]
    entry = first.index.entries[name]
    for record in holders[1:]:
        other = record.index.entries[name]
        same = (entry.dtype, entry.shape, entry.text) == (other.dtype, other.shape, other.text)
        if not same or first.digests.get(name) != record.digests.get(name):
            raise LayoutError(
                f"the source's strategy does not say how it is cut, and rank_{first.rank} and rank_{record.rank} "
                "hold different contents"
            )
    layouts = _target_layouts(name, entry, entry.shape, target)
    copy = SourceCopy(first.rank, whole_layout(len(entry.shape)))
    return _as_it_is(SourceTensor(name, entry.dtype, entry.shape, (copy,)), layouts)


def _carried(catalog: CheckpointCatalog, name: str, problems: list[str]) -> CarriedParameter:
    holders = [record for record in catalog.records.values() if name in record.index.entries]
    entry = holders[0].index.entries[name]
    for record in holders[1:]:
        other = record.index.entries[name]
        opaque = entry.dtype in (TEXT, MAP_TENSOR)
        if entry.dtype is not other.dtype or (entry.shape != other.shape and not opaque):
            problems.append(
                f"parameter {name!r}, which no strategy knows, is {described(entry)} on rank_{holders[0].rank}, "
                f"but {described(other)} on rank_{record.rank}: it may be cut, and nothing says how"
            )
            break
    return CarriedParameter(name, name, frozenset(record.rank for record in holders))


def check_nothing_lost(catalog: CheckpointCatalog, match: ParameterMatch) -> None:
    """Makes sure that every box of every parameter that is moved has a holder.

    Raises:
        CatalogError: boxes have none; lists them, and the ranks that should hold them.
    """
    problems = [f"parameter {told}" for told in map(lost_text, match.lost)]
    _raise_listed(CatalogError, f"{catalog.url}: parts of it are in no usable file", problems)


def lost_text(lost: LostBox) -> str:
    """What is lost, in words."""
    what = "all of it" if lost.box is None else f"{lost.box} of the whole tensor"
    return f"{lost.name!r}: {what} has no holder; it should be on {rank_names(lost.ranks, 8)}"


def _in_absent_parts(
    catalog: CheckpointCatalog, unheld: frozenset[str], allow_missing: Sequence[str], problems: list[str]
) -> list[str]:
    """Of the parameters that are needed and in no file, those that are not excused, if files are parts: a problem."""
    if not catalog.parts:
        return []
    absent = sorted(name for name in unheld if not any(fnmatchcase(name, pattern) for pattern in allow_missing))
    if absent:
        problems.append(
            f"its files have the parts of stages {', '.join(map(str, catalog.parts))} only, and {len(absent)} "
            f"parameters of its strategy are in none of them ({listed(absent, 6)}): the parts of other stages are "
            "missing. What the result can do without is allowed with --allow-missing PATTERN"
        )
    return absent


def _check_missing(missing: Sequence[str], excused: Sequence[str], problems: list[str], *, own_stage: bool) -> None:
    lost = [name for name in missing if name not in set(excused)]
    if lost:
        advice = "allow it with --allow-missing PATTERN if the target can do without"
        if own_stage:
            advice += ", or, if the source strategy is one stage's own, name the directory of all strategies"
        problems.extend(f"parameter {name!r} of the target's strategy is in no source file; {advice}" for name in lost)


def _build_all(
    names: Sequence[str], builders: Mapping[str, Callable[[], MovedParameter]], problems: list[str]
) -> tuple[MovedParameter, ...]:
    moved = []
    for name in names:
        try:
            moved.append(builders[name]())
        except LayoutError as error:
            problems.append(f"parameter {name!r}: {error}")
    return tuple(moved)


def _raise_listed(kind: type[CatalogError] | type[PlanError], headline: str, problems: Sequence[str]) -> None:
    if not problems:
        return
    told = list(problems[:_MOST_PROBLEMS_TOLD])
    if len(problems) > len(told):
        told.append(f"and {len(problems) - len(told)} more")
    raise kind(headline + "".join(f"\n  - {problem}" for problem in told))

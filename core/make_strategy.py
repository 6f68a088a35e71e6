"""A strategy for other numbers of devices, made from one that the network was compiled to.

What the network decides is kept: which tensor axes of which parameters model parallel cuts, which parameters pipeline
stages share, which ones optimizer parallel cuts. What a job decides is changed: how many devices there are for each.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from core.checkpoint.catalog import build_catalog
from core.dtypes import DType
from core.errors import InputError, LayoutError, StrategyError
from core.layout import ParameterLayout
from core.parameters import match_parameters
from core.report import Summary
from core.saved_whole import contents_say_whole
from core.slices import Shape
from core.storage.files import kind_of
from core.storage.urls import parse_url
from core.strategy.files import read_strategy, stages_beside, write_strategy
from core.strategy.model import StageStrategy, Strategy
from core.strategy.optimizer_shards import (
    ShardWish,
    has_optimizer_shard,
    wish_like,
    with_optimizer_shard,
    without_optimizer_shard,
)
from core.strategy.rescaling import CutRule, Rescaler, parse_cut
from core.strategy.roles import Roles, device_roles
from core.strategy.staging import Staging, assign_stages, fits, owner_of, parse_place
from core.target import check_apart
from core.wording import counted

_MOST_TOLD = 12
_ASSUMED_ITEMSIZE = 4
_LARGEST = 1 << 20


@dataclass(frozen=True)
class StrategyWish:
    """The job that a strategy is made for.

    Attributes:
        data_parallel: copies of the model in each stage; context parallel is among them.
        model_parallel: devices that share each copy.
        pipeline: stages.
        optimizer_parallel: whether the copies share parameters and optimizer states.
        optimizer_threshold_bytes: smaller parameters are not shared so, where the source does not tell.
        layers: each stage's layers, `0-11,12-23`; empty: evenly.
        cuts: rules `PATTERN=AXIS` for what model parallel cuts, in place of what the source says.
        places: rules `PATTERN=first` for who holds what is of no layer.
    """

    data_parallel: int
    model_parallel: int
    pipeline: int
    optimizer_parallel: bool = False
    optimizer_threshold_bytes: int = 64 << 10
    layers: str = ""
    cuts: Sequence[str] = ()
    places: Sequence[str] = ()


@dataclass(frozen=True)
class TensorFacts:
    """What is known of a whole tensor; the dtype only if there is a checkpoint."""

    shape: Shape
    dtype: DType | None = None


class MadeStage(Summary):
    """One stage of the strategy; `layers` in words: `0-11`."""

    stage: int
    first_rank: int
    last_rank: int
    layers: str
    parameters: int


class MadeCut(Summary):
    """How many parameters are cut alike: along which tensor axes into how many pieces, the optimizer shard aside.

    Attributes:
        axes: (tensor axis, pieces); none if they are whole.
        parameters: how many of them there are, each stage's copy counted.
        optimizer_shards: on how many of these optimizer parallel cuts them further.
    """

    axes: tuple[tuple[int, int], ...]
    parameters: int
    optimizer_shards: int


class MakeReport(Summary):
    """The strategy that was made.

    Attributes:
        url: where it was written.
        data_parallel: copies of the model in each stage.
        model_parallel: devices that share each copy.
        pipeline: stages.
        ranks: all devices.
        source_data_parallel: what the source's layouts say of the source.
        source_model_parallel: likewise.
        source_pipeline: likewise.
        parameters: how many.
        stages: who holds what.
        cuts: how parameters are cut.
        unchecked: parameters of which the shape is not known, so that it could not be checked whether they divide.
        notes: what was assumed, in sentences.
    """

    url: str
    data_parallel: int
    model_parallel: int
    pipeline: int
    ranks: int
    source_data_parallel: int
    source_model_parallel: int
    source_pipeline: int
    parameters: int
    stages: tuple[MadeStage, ...]
    cuts: tuple[MadeCut, ...]
    unchecked: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Derived:
    """A derived strategy, and what is to be said of it."""

    strategy: Strategy
    roles: Roles
    staging: Staging
    unchecked: int
    notes: tuple[str, ...]


def make_strategy_file(
    like: str, target: str, wish: StrategyWish, *, checkpoint: str = "", workers: int = 8, overwrite: bool = False
) -> MakeReport:
    """Derives a strategy from the one at `like` and writes it to `target`, JSON if that ends in .json, else protobuf.

    `checkpoint` is one of the strategy `like`: its headers tell shapes and dtypes.

    Raises:
        InputError: the target is there already, the checkpoint cannot be used.
        StrategyError: the source's strategy cannot be used, or does not tell what is asked for.
        StorageError: something cannot be read or written.
    """
    location = parse_url(target)
    # inside, it would be taken for one more rank's file next time
    check_apart(parse_url(like), location)
    kind = kind_of(location)
    if kind == "directory":
        raise InputError(f"{location}: is a directory; name the file to be written")
    if not overwrite and kind is not None:
        raise InputError(f"{location}: is there already. Name another file, or pass --overwrite to replace it")
    source = read_strategy(like)
    _check_all_stages(source, like)
    facts = told_by_strategy(source)
    if checkpoint:
        facts |= _told_by_checkpoint(checkpoint, source, workers)
    derived = derive_strategy(source, wish, facts)
    write_strategy(derived.strategy, target)
    return _report(str(location), source, wish, derived)


def told_by_strategy(source: Strategy) -> dict[str, TensorFacts]:
    """The shapes that a JSON strategy tells."""
    return {
        name: TensorFacts(layout.tensor_shape)
        for stage in source.stages
        for name, layout in stage.layouts.items()
        if layout.tensor_shape is not None
    }


def derive_strategy(source: Strategy, wish: StrategyWish, facts: Mapping[str, TensorFacts]) -> Derived:
    """The strategy of a job, like that of another; `facts` are of those parameters of which they are known.

    Raises:
        StrategyError: the source does not tell what is asked for, or parameters do not divide; names all of them.
    """
    for option, number in (
        ("--data-parallel", wish.data_parallel),
        ("--model-parallel", wish.model_parallel),
        ("--pipeline", wish.pipeline),
    ):
        if not 1 <= number <= _LARGEST:
            raise StrategyError(f"{option} {number}: it has to be a number from 1 to {_LARGEST}")
    names = source.parameters
    rules = _rules_of(wish.cuts, names)
    layouts = [(name, layout) for stage in source.stages for name, layout in stage.layouts.items()]
    try:
        roles = device_roles([each for each in layouts if each[0] not in rules], source.devices_per_stage)
    except LayoutError as error:
        raise StrategyError(f"{source.origin}: {error}") from error
    rescaler = Rescaler(roles, wish.data_parallel, wish.model_parallel, bool(rules))
    rescaler.check(source.origin)
    staging = assign_stages(source, wish.pipeline, wish.layers, [parse_place(text) for text in wish.places])
    sharder = _Sharder(source, wish, facts)
    problems: dict[str, dict[str, None]] = {}
    stages = []
    for number, held in enumerate(staging.held):
        made: dict[str, ParameterLayout] = {}
        for name, like in held.items():
            layout = source.stages[like].layouts[name]
            shape = facts[name].shape if name in facts else None
            try:
                base = rescaler.rescaled(name, without_optimizer_shard(layout), shape, rules.get(name))
                if shape is not None:
                    base.cut(len(shape)).bounds(shape)
                made[name] = replace(sharder.sharded(name, layout, base), tensor_shape=shape)
            except LayoutError as error:
                problems.setdefault(str(error), {})[name] = None
        stages.append(StageStrategy(number, made))
    if problems:
        heading = (
            f"{source.origin}: cannot be made over into data parallel {wish.data_parallel} x model parallel "
            f"{wish.model_parallel}"
        )
        lines = [f"{error}: {_named([*of_error])}" for error, of_error in problems.items()]
        raise StrategyError("\n  - ".join([heading, *lines]))
    unchecked = len({name for stage in stages for name in stage.layouts} - facts.keys())
    notes = (*staging.notes, *rescaler.notes, *sharder.notes, *_unchecked_note(unchecked, len(names)))
    origin = f"a strategy like {source.origin}"
    return Derived(Strategy(tuple(stages), origin), roles, staging, unchecked, notes)


class _Sharder:
    """Decides which parameters optimizer parallel cuts, and keeps count of those that it cannot."""

    def __init__(self, source: Strategy, wish: StrategyWish, facts: Mapping[str, TensorFacts]) -> None:
        self._wish = wish
        self._facts = facts
        self._names = source.parameters
        layouts = {
            name: layout for stage in reversed(source.stages) for name, layout in stage.layouts.items()
        }  # of several the lowest stage's
        self._layouts = layouts
        self._told = any(has_optimizer_shard(layout) for stage in source.stages for layout in stage.layouts.values())
        self._whole: dict[str, None] = {}
        self._assumed = False

    def sharded(self, name: str, like: ParameterLayout, base: ParameterLayout) -> ParameterLayout:
        """The layout with its optimizer shard, if it gets one."""
        if not self._wish.optimizer_parallel:
            return base
        if self._told and without_optimizer_shard(like) == base:
            return replace(like, tensor_shape=base.tensor_shape)
        wish = self._wished(name, like)
        if wish is None:
            return base
        shape = self._facts[name].shape if name in self._facts else None
        cut = with_optimizer_shard(base, shape, wish.size)
        if cut is None:
            self._whole[name] = None
        return cut or base

    def _wished(self, name: str, like: ParameterLayout) -> ShardWish | None:
        wish = wish_like(like)
        if wish is not None:
            return wish
        owner = owner_of(name, self._names)
        of_owner = self._layouts.get(owner, like)
        if self._told and (has_optimizer_shard(of_owner) or _could_be_sharded(of_owner)):
            return wish_like(of_owner)  # the network decided, and its states follow
        facts = self._facts.get(owner) or self._facts.get(name)
        if facts is None:
            raise LayoutError(
                "whether optimizer parallel cuts a parameter depends on its shape, which this strategy does not tell. "
                "Name a checkpoint of it with --checkpoint, or a JSON strategy"
            )
        if facts.dtype is None:
            self._assumed = True
        size = facts.dtype.itemsize if facts.dtype else _ASSUMED_ITEMSIZE
        for length in facts.shape:
            size *= length
        return ShardWish() if size >= self._wish.optimizer_threshold_bytes else None

    @property
    def notes(self) -> list[str]:
        """What is to be said of it."""
        notes = []
        if self._whole:
            notes.append(
                f"optimizer parallel leaves {counted(len(self._whole), 'parameter')} as they are, as MindSpore does, "
                f"since axis 0 does not divide or there is one copy only: {', '.join([*self._whole][:4])}"
                f"{', …' if len(self._whole) > 4 else ''}"
            )
        if self._assumed:
            notes.append(
                "what optimizer parallel cuts was told by size, of 4 bytes a value since the strategy tells no dtypes; "
                "--checkpoint would tell them"
            )
        return notes


def _could_be_sharded(layout: ParameterLayout) -> bool:
    """Whether there are copies that an optimizer shard could use, so that its not being there tells something."""
    shape = layout.tensor_shape
    return with_optimizer_shard(layout, shape, -1) is not None


def _rules_of(texts: Sequence[str], names: frozenset[str]) -> dict[str, CutRule]:
    """Parameter -> the last of the rules that fit it, or the parameter that it is a state of."""
    rules: dict[str, CutRule] = {}
    for text in texts:
        rule = parse_cut(text)
        fitting = [name for name in names if fits(rule.pattern, name, names)]
        if not fitting:
            raise StrategyError(f"--cut {text}: no parameter's name fits {rule.pattern!r}")
        rules |= dict.fromkeys(fitting, rule)
    return rules


def _check_all_stages(source: Strategy, url: str) -> None:
    if source.merged:
        return
    own = source.stages[0].stage
    others = sorted(set(stages_beside(url)) - {own}) if own == 0 and kind_of(parse_url(url)) == "file" else []
    if own != 0 or others:
        raise StrategyError(
            f"{source.origin}: is the strategy of stage {own} alone, and there are other stages. Name the directory of "
            "all ranks' strategy files, or the file that 'reshard merge-strategy' makes of them"
        )


def _told_by_checkpoint(url: str, source: Strategy, workers: int) -> dict[str, TensorFacts]:
    catalog = build_catalog(url, source.ranks, digest=lambda *_: False, check_crc=False, workers=workers)
    saved_whole = contents_say_whole(catalog, source)
    match = match_parameters(catalog, source, None, saved_whole=saved_whole)
    return {moved.name: TensorFacts(moved.shape, moved.dtype) for moved in match.moved}


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
    return f"{', '.join(map(repr, names[:_MOST_TOLD]))}{more}"


def _unchecked_note(unchecked: int, count: int) -> Iterable[str]:
    if unchecked:
        which = "no parameter's shape" if unchecked == count else f"the shapes of {unchecked} of {count} parameters"
        are = "is" if unchecked == count else "are not"
        yield (
            f"{which} {are} known, so that it could not be checked whether they divide; name a checkpoint of this "
            "strategy with --checkpoint to be sure"
        )


def _report(url: str, source: Strategy, wish: StrategyWish, derived: Derived) -> MakeReport:
    strategy = derived.strategy
    counts: Counter[tuple[tuple[int, int], ...]] = Counter()
    shards: Counter[tuple[tuple[int, int], ...]] = Counter()
    for stage in strategy.stages:
        for layout in stage.layouts.values():
            axis_count = len(layout.tensor_map) if layout.tensor_shape is None else len(layout.tensor_shape)
            pieces = without_optimizer_shard(layout).cut(axis_count).pieces
            axes = tuple((axis, count) for axis, count in enumerate(pieces) if count > 1)
            counts[axes] += 1
            shards[axes] += has_optimizer_shard(layout)
    return MakeReport(
        url=url,
        data_parallel=wish.data_parallel,
        model_parallel=wish.model_parallel,
        pipeline=wish.pipeline,
        ranks=len(strategy.ranks),
        source_data_parallel=derived.roles.data_parallel,
        source_model_parallel=derived.roles.model_parallel,
        source_pipeline=len(source.stages),
        parameters=len(strategy.parameters),
        stages=tuple(
            MadeStage(
                stage=stage.stage,
                first_rank=strategy.stage_ranks(stage).start,
                last_rank=strategy.stage_ranks(stage).stop - 1,
                layers=layers,
                parameters=len(stage.layouts),
            )
            for stage, layers in zip(strategy.stages, derived.staging.layers, strict=True)
        ),
        cuts=tuple(
            MadeCut(axes=axes, parameters=counts[axes], optimizer_shards=shards[axes]) for axes in sorted(counts)
        ),
        unchecked=derived.unchecked,
        notes=derived.notes,
    )

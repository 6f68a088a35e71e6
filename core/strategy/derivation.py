"""A strategy for other numbers of devices, derived from one that the network was compiled to.

What the network decides is kept: which tensor axes of which parameters model parallel cuts, which parameters pipeline
stages share, which ones optimizer parallel cuts. What a job decides is changed: how many devices there are for each.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from reshard.core.errors import LayoutError, StrategyError, raise_problems
from reshard.core.runtime.wording import counted, listed
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.strategy.optimizer_shards import (
    has_optimizer_shard,
    replica_count,
    scaled_shard_size,
    with_optimizer_shard,
    without_optimizer_shard,
)
from reshard.core.strategy.rescaling import CutRule, Rescaler, parse_cut
from reshard.core.strategy.roles import Roles, device_roles
from reshard.core.strategy.staging import Staging, assign_stages, fits, owner_of, parse_place
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.layout import ALL_REPEATED_AXES, ParameterLayout
from reshard.core.tensor.slices import Shape

_ASSUMED_ITEMSIZE = 4
_MAX_SIZE = 1 << 20


@dataclass(frozen=True)
class TargetJob:
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


@dataclass(frozen=True)
class DerivedStrategy:
    """A derived strategy, and what is to be said of it."""

    strategy: Strategy
    roles: Roles
    staging: Staging
    unchecked: int
    notes: tuple[str, ...]


def facts_from_strategy(source: Strategy) -> dict[str, TensorFacts]:
    """The shapes that a JSON strategy tells."""
    return {
        name: TensorFacts(layout.tensor_shape)
        for stage in source.stages
        for name, layout in stage.layouts.items()
        if layout.tensor_shape is not None
    }


def derive_strategy(source: Strategy, job: TargetJob, facts: Mapping[str, TensorFacts]) -> DerivedStrategy:
    """The strategy of a job, like that of another; `facts` are of those parameters of which they are known.

    Raises:
        StrategyError: the source does not tell what is asked for, or parameters do not divide; names all of them.
    """
    _check_sizes(job)
    names = source.parameters
    rules = _rules_of(job.cuts, names)
    layouts = [(name, layout) for stage in source.stages for name, layout in stage.layouts.items()]
    try:
        roles = device_roles([each for each in layouts if each[0] not in rules], source.devices_per_stage)
    except LayoutError as error:
        raise StrategyError(f"{source.origin}: {error}") from error
    rescaler = Rescaler(roles, job.data_parallel, job.model_parallel, bool(rules))
    rescaler.check(source.origin)
    staging = assign_stages(source, job.pipeline, job.layers, [parse_place(text) for text in job.places])
    sharder = _OptimizerSharder(source, job, facts)
    stages = _derive_stages(source, staging, rescaler, sharder, rules, facts, job)
    unchecked = len({name for stage in stages for name in stage.layouts} - facts.keys())
    notes = (
        *staging.notes,
        *rescaler.notes,
        *sharder.notes,
        *_unchecked_note(unchecked, len(names), job.optimizer_parallel),
    )
    origin = f"a strategy like {source.origin}"
    return DerivedStrategy(Strategy(stages, origin), roles, staging, unchecked, notes)


def _derive_stages(
    source: Strategy,
    staging: Staging,
    rescaler: Rescaler,
    sharder: "_OptimizerSharder",
    rules: Mapping[str, CutRule],
    facts: Mapping[str, TensorFacts],
    job: TargetJob,
) -> tuple[StageStrategy, ...]:
    """The stages' layouts."""
    problems: dict[str, dict[str, None]] = {}
    stages = []
    for number, sources in enumerate(staging.sources):
        made: dict[str, ParameterLayout] = {}
        for name, like in sources.items():
            layout = source.stages[like].layouts[name]
            shape = facts[name].shape if name in facts else None
            try:
                base = rescaler.rescaled(name, without_optimizer_shard(layout), shape, rules.get(name))
                if shape is not None:
                    base.shard_grid(len(shape)).bounds(shape)
                made[name] = replace(sharder.sharded(name, layout, base), tensor_shape=shape)
            except LayoutError as error:
                problems.setdefault(str(error), {})[name] = None
        stages.append(StageStrategy(number, made))
    raise_problems(
        StrategyError,
        f"{source.origin}: cannot be converted to data parallel {job.data_parallel} x model parallel "
        f"{job.model_parallel}",
        [f"{error}: {listed([*map(repr, names)])}" for error, names in problems.items()],
    )
    return tuple(stages)


def _check_sizes(job: TargetJob) -> None:
    for option, number in (
        ("--data-parallel", job.data_parallel),
        ("--model-parallel", job.model_parallel),
        ("--pipeline", job.pipeline),
    ):
        if not 1 <= number <= _MAX_SIZE:
            raise StrategyError(f"{option} {number}: it has to be a number from 1 to {_MAX_SIZE}")


class _OptimizerSharder:
    """Decides which parameters optimizer parallel cuts, and keeps count of those that it cannot."""

    def __init__(self, source: Strategy, job: TargetJob, facts: Mapping[str, TensorFacts]) -> None:
        self._job = job
        self._facts = facts
        self._names = source.parameters
        # of several stages' the lowest one's
        self._layouts = {name: layout for stage in reversed(source.stages) for name, layout in stage.layouts.items()}
        sizes = {
            scaled_shard_size(layout)
            for stage in source.stages
            for layout in stage.layouts.values()
            if has_optimizer_shard(layout)
        }
        self._has_shards = bool(sizes)
        # a limit is one for all of a job
        self._size = max(sizes, default=ALL_REPEATED_AXES)
        self._whole: dict[str, None] = {}
        self._assumed = False
        self._all_copies: set[int] = set()

    def sharded(self, name: str, like: ParameterLayout, base: ParameterLayout) -> ParameterLayout:
        """The layout with its optimizer shard, if it gets one."""
        if not self._job.optimizer_parallel:
            return base
        if self._has_shards and without_optimizer_shard(like) == base:
            return replace(like, tensor_shape=base.tensor_shape)
        size = self._size_for(name, like)
        if size is None:
            return base
        if size == ALL_REPEATED_AXES and 0 < like.optimizer_shard_size < replica_count(base):
            self._all_copies.add(like.optimizer_shard_size)
        shape = self._facts[name].shape if name in self._facts else None
        cut = with_optimizer_shard(base, shape, size)
        if cut is None:
            self._whole[name] = None
        return cut or base

    def _size_for(self, name: str, like: ParameterLayout) -> int | None:
        """Into how many pieces an optimizer shard should cut a parameter, -1 for all copies; None: it should not."""
        if has_optimizer_shard(like):
            return self._size_like(like)
        owner = owner_of(name, self._names)
        of_owner = self._layouts.get(owner, like)
        if self._has_shards and has_optimizer_shard(of_owner):
            return self._size_like(of_owner)
        facts = self._facts.get(owner) or self._facts.get(name)
        shape = facts.shape if facts else None
        if self._has_shards and with_optimizer_shard(of_owner, shape, self._size) is not None:
            return None  # it could have been cut: the network decided, and its states follow
        if facts is None:
            raise LayoutError(
                "whether optimizer parallel cuts a parameter depends on its shape, which this strategy does not tell. "
                "Name a checkpoint of it with --checkpoint, or a JSON strategy"
            )
        if facts.dtype is None:
            self._assumed = True
        size_bytes = math.prod(facts.shape) * (facts.dtype.itemsize if facts.dtype else _ASSUMED_ITEMSIZE)
        return self._size if size_bytes >= self._job.optimizer_threshold_bytes else None

    def _size_like(self, layout: ParameterLayout) -> int:
        size = scaled_shard_size(layout)
        # a parameter that has as few copies as the limit has it all the same
        return self._size if size == ALL_REPEATED_AXES < layout.optimizer_shard_size else size

    @property
    def notes(self) -> list[str]:
        """What is to be said of it."""
        notes = []
        if self._whole:
            notes.append(
                f"optimizer parallel leaves {counted(len(self._whole), 'parameter')} as they are, as MindSpore does, "
                f"since axis 0 does not divide or there is one replica only: {listed([*self._whole], 4)}"
            )
        if self._all_copies:
            sizes = ", ".join(map(str, sorted(self._all_copies)))
            notes.append(
                f"optimizer parallel cut parameters into {sizes} pieces, as many as there were copies, and now cuts "
                "them into as many as there will be. If optimizer_weight_shard_size keeps the number, the job will not"
            )
        if self._assumed:
            notes.append(
                "what optimizer parallel cuts was told by size, of 4 bytes a value since the strategy tells no dtypes; "
                "--checkpoint would tell them"
            )
        return notes


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


def _unchecked_note(unchecked: int, count: int, optimizer_parallel: bool) -> Iterable[str]:
    if unchecked:
        which = "no parameter's shape" if unchecked == count else f"the shapes of {unchecked} of {count} parameters"
        are = "is" if unchecked == count else "are not"
        also = ", which decides what optimizer parallel cuts, too" if optimizer_parallel else ""
        yield (
            f"{which} {are} known, so that it could not be checked whether they divide{also}; name a checkpoint of "
            "this strategy with --checkpoint to be sure"
        )

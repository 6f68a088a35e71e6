"""Derives a strategy for other numbers of devices from one that the network was compiled to.

The network decides, and so this keeps: which tensor axes of which parameters model parallel shards, which parameters
pipeline stages share, which ones optimizer parallel shards. The job decides, and so this changes: the number of devices
for each kind of parallelism.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from reshard.core.errors import LayoutError, StrategyError, raise_problems
from reshard.core.runtime.records import Record
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
from reshard.core.text.options import option, spelled

_ASSUMED_ITEMSIZE = 4
_MAX_SIZE = 1 << 20


class TargetJob(Record):
    """The job that a strategy is derived for.

    Attributes:
        data_parallel: replicas of the model in each stage, context parallel included.
        model_parallel: devices that share one replica.
        pipeline: number of pipeline stages.
        optimizer_parallel: shard parameters and optimizer states over the replicas.
        optimizer_threshold_bytes: smaller parameters are not sharded over replicas, unless the source shows it.
        layers: layers of each stage, `0-11,12-23`; empty: evenly.
        cuts: rules `PATTERN=AXIS` for model parallel, which override the source.
        places: rules `PATTERN=first` for the stages of parameters that belong to no layer.
    """

    data_parallel: int
    model_parallel: int
    pipeline: int
    optimizer_parallel: bool = False
    optimizer_threshold_bytes: int = 64 << 10
    layers: str = ""
    cuts: Sequence[str] = ()
    places: Sequence[str] = ()


class TensorFacts(Record):
    """Shape of a whole tensor, and its dtype if a checkpoint is at hand."""

    shape: Shape
    dtype: DType | None = None


class DerivedStrategy(Record):
    """A derived strategy, how it came about, and notes for the user; `unchecked` counts parameters of unknown shape."""

    strategy: Strategy
    roles: Roles
    staging: Staging
    unchecked: int
    notes: tuple[str, ...]


def facts_from_strategy(source: Strategy) -> dict[str, TensorFacts]:
    """Return the tensor shapes in a JSON strategy."""
    return {
        name: TensorFacts(layout.tensor_shape)
        for stage in source.stages
        for name, layout in stage.layouts.items()
        if layout.tensor_shape is not None
    }


def derive_strategy(source: Strategy, job: TargetJob, facts: Mapping[str, TensorFacts]) -> DerivedStrategy:
    """Derive a job's strategy; `facts` are of parameters whose shapes are known. A StrategyError lists all problems."""
    _check_sizes(job)
    names = source.parameters
    rules = _rules_of(job.cuts, names)
    layouts = [(name, layout) for stage in source.stages for name, layout in stage.layouts.items()]
    try:
        roles = device_roles([each for each in layouts if each[0] not in rules], source.devices_per_stage)
    except LayoutError as error:
        raise StrategyError(f"{source.origin}: {error.marked}") from error
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
    return DerivedStrategy(Strategy(stages, origin), roles, staging, unchecked, tuple(map(spelled, notes)))


def _derive_stages(
    source: Strategy,
    staging: Staging,
    rescaler: Rescaler,
    sharder: "_OptimizerSharder",
    rules: Mapping[str, CutRule],
    facts: Mapping[str, TensorFacts],
    job: TargetJob,
) -> tuple[StageStrategy, ...]:
    """Derive the layouts of all stages, collecting the problems of all parameters."""
    problems: dict[str, dict[str, None]] = {}
    stages = []
    for number, sources in enumerate(staging.sources):
        made: dict[str, ParameterLayout] = {}
        for name, like in sources.items():
            layout = source.stages[like].layouts[name]
            shape = facts[name].shape if name in facts else None
            try:
                base = rescaler.rescaled(without_optimizer_shard(layout), shape, rules.get(name))
                if shape is not None:
                    base.shard_grid(len(shape)).bounds(shape)
                made[name] = replace(sharder.sharded(name, layout, base), tensor_shape=shape)
            except LayoutError as error:
                problems.setdefault(error.marked, {})[name] = None
        stages.append(StageStrategy(number, made))
    raise_problems(
        StrategyError,
        f"{source.origin}: cannot be converted to data parallel {job.data_parallel} x model parallel "
        f"{job.model_parallel}",
        [f"{error}: {listed([*map(repr, names)])}" for error, names in problems.items()],
    )
    return tuple(stages)


def _check_sizes(job: TargetJob) -> None:
    for name, number in (
        ("data_parallel", job.data_parallel),
        ("model_parallel", job.model_parallel),
        ("pipeline", job.pipeline),
    ):
        if not 1 <= number <= _MAX_SIZE:
            raise StrategyError(f"{option(name, number)}: it has to be a number from 1 to {_MAX_SIZE}")


class _OptimizerSharder:
    """Decides which parameters optimizer parallel shards, and records what to tell the user."""

    def __init__(self, source: Strategy, job: TargetJob, facts: Mapping[str, TensorFacts]) -> None:
        self._job = job
        self._facts = facts
        self._names = source.parameters
        # the lowest stage wins
        self._layouts = {name: layout for stage in reversed(source.stages) for name, layout in stage.layouts.items()}
        sizes = {
            scaled_shard_size(layout)
            for stage in source.stages
            for layout in stage.layouts.values()
            if has_optimizer_shard(layout)
        }
        self._has_shards = bool(sizes)
        # a job has one limit
        self._size = max(sizes, default=ALL_REPEATED_AXES)
        self._whole: dict[str, None] = {}
        self._assumed = False
        self._all_replicas: set[int] = set()

    def sharded(self, name: str, like: ParameterLayout, base: ParameterLayout) -> ParameterLayout:
        """Return the layout, with an optimizer shard if the parameter gets one."""
        if not self._job.optimizer_parallel:
            return base
        if self._has_shards and without_optimizer_shard(like) == base:
            return replace(like, tensor_shape=base.tensor_shape)
        size = self._size_for(name, like)
        if size is None:
            return base
        if size == ALL_REPEATED_AXES and 0 < like.optimizer_shard_size < replica_count(base):
            self._all_replicas.add(like.optimizer_shard_size)
        shape = self._facts[name].shape if name in self._facts else None
        cut = with_optimizer_shard(base, shape, size)
        if cut is None:
            self._whole[name] = None
        return cut or base

    def _size_for(self, name: str, like: ParameterLayout) -> int | None:
        """Return the number of optimizer shards of a parameter, -1 for one per replica; None if it is not sharded."""
        if has_optimizer_shard(like):
            return self._size_like(like)
        owner = owner_of(name, self._names)
        of_owner = self._layouts.get(owner, like)
        if self._has_shards and has_optimizer_shard(of_owner):
            return self._size_like(of_owner)
        facts = self._facts.get(owner) or self._facts.get(name)
        shape = facts.shape if facts else None
        if self._has_shards and with_optimizer_shard(of_owner, shape, self._size) is not None:
            return None  # it could have been sharded: the network decided against it, also for its states
        if facts is None:
            raise LayoutError(
                "optimizer parallel cuts a parameter, or not, by its shape, which this strategy does not have. "
                f"Name a checkpoint of it with {option('checkpoint')}, or a JSON strategy"
            )
        if facts.dtype is None:
            self._assumed = True
        size_bytes = math.prod(facts.shape) * (facts.dtype.itemsize if facts.dtype else _ASSUMED_ITEMSIZE)
        return self._size if size_bytes >= self._job.optimizer_threshold_bytes else None

    def _size_like(self, layout: ParameterLayout) -> int:
        size = scaled_shard_size(layout)
        # the limit also holds for a parameter with exactly as many replicas
        return self._size if size == ALL_REPEATED_AXES < layout.optimizer_shard_size else size

    @property
    def notes(self) -> list[str]:
        notes = []
        if self._whole:
            notes.append(
                f"optimizer parallel leaves {counted(len(self._whole), 'parameter')} as they are, as MindSpore does, "
                f"since axis 0 does not divide or there is one replica only: {listed([*self._whole], 4)}"
            )
        if self._all_replicas:
            sizes = ", ".join(map(str, sorted(self._all_replicas)))
            notes.append(
                f"optimizer parallel cut parameters into {sizes} pieces, one per replica, and now cuts "
                "them into one per new replica. If optimizer_weight_shard_size keeps the number, the job will not"
            )
        if self._assumed:
            notes.append(
                "optimizer parallel's threshold was applied assuming 4 bytes a value, since the strategy has no "
                f"dtypes; {option('checkpoint')} provides them"
            )
        return notes


def _rules_of(texts: Sequence[str], names: frozenset[str]) -> dict[str, CutRule]:
    """Map each parameter to the last rule that matches it or the parameter whose optimizer state it is."""
    rules: dict[str, CutRule] = {}
    for text in texts:
        rule = parse_cut(text)
        fitting = [name for name in names if fits(rule.pattern, name, names)]
        if not fitting:
            raise StrategyError(f"{option('cuts', [text])}: no parameter matches {rule.pattern!r}")
        rules |= dict.fromkeys(fitting, rule)
    return rules


def _unchecked_note(unchecked: int, count: int, optimizer_parallel: bool) -> Iterable[str]:
    if unchecked:
        which = "no parameter's shape" if unchecked == count else f"the shapes of {unchecked} of {count} parameters"
        are = "is" if unchecked == count else "are not"
        also = " (what optimizer parallel shards depends on it, too)" if optimizer_parallel else ""
        yield (
            f"{which} {are} known, so it was not checked whether they divide evenly{also}; name a checkpoint of "
            f"this strategy with {option('checkpoint')} to be sure"
        )

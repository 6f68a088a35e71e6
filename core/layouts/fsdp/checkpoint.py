"""Opens the ranks' files of a model: what each holds of it, from their headers alone."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from reshard.core.checkpoint.damage_policy import is_damage
from reshard.core.errors import CatalogError, InputError, StrategyError, raise_problems
from reshard.core.files.remote_index.indexing import Workers, workers_on
from reshard.core.layouts.cataloging import joined_errors
from reshard.core.layouts.fsdp.config import check_config
from reshard.core.layouts.fsdp.names import (
    LORA_NAME,
    FileKind,
    RankName,
    missing_ranks,
    rank_file_name,
    rank_names,
)
from reshard.core.layouts.fsdp.optimizer import (
    Cuts,
    OptimizerFile,
    parameter_cuts,
    read_optimizer_file,
    state_names,
)
from reshard.core.layouts.fsdp.places import SavedModel
from reshard.core.layouts.fsdp.rank_file import ModelFile, RankFile, read_model_file
from reshard.core.layouts.lost_files import MISSING, lost_text, strategy_without
from reshard.core.layouts.placed_shards import PlacedShard, ShardFile, placed_strategy
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.listing import unless_missing
from reshard.core.strategy.model import Strategy

_WORKERS = 8
_MAX_LISTED = 8


class OpenedOptimizer(Record):
    """The states of the optimizer in its ranks' files.

    Attributes:
        files: the states in each usable file.
        lost: path of a file -> why it cannot be used; the others have all states.
        problem: why states were saved, but are not known by names; empty if they are, or were not saved.
        names: of all states; those that there surely are, if they are not known by names.
        step: how many steps it says that it has done.
    """

    files: tuple[ShardFile, ...] = ()
    lost: Mapping[str, str] = {}
    problem: str = ""
    names: tuple[str, ...] = ()
    step: float | None = None


class OpenedCheckpoint(Record, dict=True):
    """The ranks' files of a model, after their headers were read.

    Attributes:
        world: number of ranks.
        models: what each usable file holds of the model.
        lost: path of a file of the model -> why it cannot be used.
        tied: second name of a tensor -> its first.
        notes: what is left out.
    """

    origin: str
    world: int
    models: tuple[ShardFile, ...]
    lost: Mapping[str, str]
    tied: Mapping[str, str]
    optimizer: OpenedOptimizer
    notes: tuple[str, ...]

    @property
    def files(self) -> tuple[ShardFile, ...]:
        """All usable files."""
        return (*self.models, *self.optimizer.files)

    @cached_property
    def strategy(self) -> Strategy:
        """The boxes of all parameters over the parts of the files."""
        return strategy_without(self.files, self.origin, self.lost)

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the optimizer's states."""
        return self.optimizer.names

    @property
    def state_problem(self) -> str:
        """Why an optimizer was saved, but is not known by names."""
        return self.optimizer.problem

    @property
    def names(self) -> list[str]:
        """The names of all parameters and of all states."""
        return [*_names(self.models), *self.optimizer.names]


def open_checkpoint(saved: SavedModel) -> OpenedCheckpoint:
    """Read the headers of all ranks' files of a model.

    Raises:
        CatalogError: files contradict their names or each other, or none can be used; lists all of it.
        CheckpointError: one file is unusable, and no other is there.
        StorageError: a transient failure of the storage.
    """
    origin = str(saved.location)
    found = rank_names(saved.names)
    world = _world(origin, found)
    check_config(saved.location, saved.names, world)
    missing = missing_ranks(found, FileKind.MODEL, world)
    with workers_on([saved.location], _WORKERS) as threads:
        models, lost = _read_models(threads, saved, found, world)
        _check_alike(origin, models)
        tied = _tied(origin, models)
        optimizer = _optimizer(threads, saved, found, world, parameter_cuts(models[0], tied))
    return OpenedCheckpoint(
        origin,
        world,
        tuple(_shard_file(model.file, _placed(model)) for model in models),
        dict.fromkeys(missing, MISSING) | lost,
        tied,
        optimizer,
        tuple(_notes(saved, found, optimizer)),
    )


def _world(origin: str, found: Mapping[str, RankName]) -> int:
    """The number of ranks that all names say."""
    if not any(name.kind is FileKind.MODEL for name in found.values()):
        raise CatalogError(
            f"{origin}: has {listed(sorted(found), _MAX_LISTED)}, but no {rank_file_name(FileKind.MODEL, 1, 0)} or the "
            "like: the model itself was not saved, or is elsewhere"
        )
    worlds = sorted({name.world for name in found.values()})
    if len(worlds) > 1:
        raise CatalogError(
            f"{origin}: has files of trainings with {' and '.join(map(str, worlds))} ranks: which ones are right? Move "
            "away those of all but one"
        )
    if beyond := sorted(name for name, parsed in found.items() if parsed.rank >= parsed.world):
        raise CatalogError(
            f"{origin}: {listed(beyond, _MAX_LISTED)}: there is no such rank among {worlds[0]}, which are numbered "
            "from 0: it was renamed, or is another training's. Move it away"
        )
    return worlds[0]


def _read_models(
    threads: Workers, saved: SavedModel, found: Mapping[str, RankName], world: int
) -> tuple[list[ModelFile], dict[str, str]]:
    """The usable files of the model, by rank, and why the others are not."""
    paths = _paths(found, FileKind.MODEL, world)

    def read(path: str) -> ModelFile | None:
        return unless_missing(lambda: read_model_file(saved.location.child(path), found[path]))

    outcomes = dict(zip(paths, threads.outcomes(read, paths), strict=True))
    models = [each for each in outcomes.values() if isinstance(each, ModelFile)]
    errors = {path: each for path, each in outcomes.items() if isinstance(each, InputError)}
    wrong = [error for error in errors.values() if not is_damage(error)]
    if wrong or not models:
        nothing = CatalogError(f"{saved.location}: its files are gone")
        raise joined_errors(str(saved.location), wrong or [*errors.values()] or [nothing], len(paths))
    lost = {path: MISSING for path, each in outcomes.items() if each is None}
    return models, lost | {path: _why(error) for path, error in errors.items()}


def _why(error: InputError) -> str:
    return f"{'is damaged' if is_damage(error) else 'cannot be read'}: {error.marked}"


def _paths(found: Mapping[str, RankName], kind: FileKind, world: int) -> list[str]:
    names = (rank_file_name(kind, world, rank) for rank in range(world))
    return [name for name in names if name in found]


def _check_alike(origin: str, models: Sequence[ModelFile]) -> None:
    """Refuse ranks that are not of one training: each has a shard of every tensor, all cut alike."""
    first = models[0]
    problems: list[str] = []
    for model in models[1:]:
        of_both = f"{first.file.path} and {model.file.path}"
        if list(first.shards) != list(model.shards):
            differing = [*(first.shards.keys() ^ model.shards.keys())]
            what = f"do not both have {listed(sorted(map(repr, differing)), _MAX_LISTED)}" if differing else ""
            problems.append(f"{of_both} {what or 'have their tensors in different orders'}")
            continue
        for name, shard in model.shards.items():
            own = first.shards[name].cut
            if shard.cut != own:
                problems.append(f"{of_both} have {name!r} as {own} and as {shard.cut}")
                break
    raise_problems(CatalogError, f"{origin}: its files are not of one checkpoint", problems)


def _tied(origin: str, models: Sequence[ModelFile]) -> dict[str, str]:
    """Second names of tensors, which are at the same bytes on all ranks -> their first names."""
    first: dict[str, str] = {}
    problems: list[str] = []
    for model in models:
        places: dict[object, str] = {}
        for name, shard in model.shards.items():
            if not shard.box.size:
                continue
            stored = shard.stored
            own = places.setdefault((stored.extent, stored.strided, shard.cut), name)
            if (known := first.setdefault(name, own)) != own:
                other = known if own == name else own
                problems.append(f"{other!r} and {name!r} are one tensor in some files, not in all")
    raise_problems(CatalogError, f"{origin}: its files are not of one checkpoint", problems)
    return {name: own for name, own in first.items() if name != own}


def _optimizer(
    threads: Workers, saved: SavedModel, found: Mapping[str, RankName], world: int, cuts: Cuts
) -> OpenedOptimizer:
    """The optimizer beside a model; nothing, if none was saved.

    Raises:
        CatalogError: ranks are of different steps.
    """
    paths = _paths(found, FileKind.OPTIMIZER, world)
    if not paths:
        return OpenedOptimizer()

    def read(path: str) -> OptimizerFile | None:
        return unless_missing(lambda: read_optimizer_file(saved.location.child(path), found[path], cuts))

    outcomes = dict(zip(paths, threads.outcomes(read, paths), strict=True))
    optimizers = [each for each in outcomes.values() if isinstance(each, OptimizerFile)]
    lost = dict.fromkeys(missing_ranks(found, FileKind.OPTIMIZER, world), MISSING)
    lost |= {path: MISSING for path, each in outcomes.items() if each is None}
    lost |= {path: _why(each) for path, each in outcomes.items() if isinstance(each, InputError)}
    _check_one_step(str(saved.location), optimizers)
    step = next((each.step for each in optimizers), None)
    files = tuple(_shard_file(each.file, each.shards) for each in optimizers)
    problem = next((each.problem for each in optimizers if each.problem), "") or _differing(files)
    if not problem and lost and not _tile(files):
        problem = lost_text(str(saved.location), lost)
    if problem:
        names = tuple(name for weight in cuts for name in state_names(weight))
        return OpenedOptimizer(problem=problem, names=names, step=step)
    return OpenedOptimizer(files, lost, "", _names(files), step)


def _differing(files: Sequence[ShardFile]) -> str:
    """Which states some ranks lack, or have in another dtype; empty if all have the same."""
    for file in files:
        if differing := _dtypes(file) ^ _dtypes(files[0]):
            names = listed(sorted(f"{name!r} in {dtype}" for name, dtype in differing), _MAX_LISTED)
            return f"{file.location}: it and {files[0].path} do not both have {names}"
    return ""


def _dtypes(file: ShardFile) -> set[tuple[str, str]]:
    return {(shard.name, shard.stored.dtype.name) for shard in file.shards}


def _tile(files: Sequence[ShardFile]) -> bool:
    """True if files hold all of what they hold parts of."""
    try:
        placed_strategy(files, "")
    except StrategyError:
        return False
    return bool(files)


def _check_one_step(origin: str, optimizers: Sequence[OptimizerFile]) -> None:
    """Refuse files of different steps, which the model's own do not show."""
    problems: list[str] = []
    for other in optimizers[1:]:
        first = optimizers[0]
        if first.step != other.step:
            problems.append(
                f"{first.file.path} is of the optimizer's step {first.step}, {other.file.path} of {other.step}"
            )
        elif first.settings != other.settings:
            problems.append(f"{first.file.path} and {other.file.path} differ in the optimizer's settings")
    raise_problems(CatalogError, f"{origin}: its files are not of one checkpoint", problems)


def _placed(model: ModelFile) -> list[PlacedShard]:
    return [PlacedShard(name, each.cut.shape, each.box, each.stored) for name, each in model.shards.items()]


def _shard_file(file: RankFile, shards: Sequence[PlacedShard]) -> ShardFile:
    return ShardFile(file.path, file.location, file.size_bytes, file.version, tuple(shards))


def _names(files: Sequence[ShardFile]) -> tuple[str, ...]:
    """The names in files, each once."""
    return tuple(dict.fromkeys(shard.name for file in files for shard in file.shards))


def _notes(saved: SavedModel, found: Mapping[str, RankName], optimizer: OpenedOptimizer) -> list[str]:
    notes = []
    if any(name.kind is FileKind.OPTIMIZER for name in found.values()):
        number = "" if optimizer.step is None else f", {optimizer.step:g}"
        notes.append(
            "left out, but for what the target has a place for: the optimizer's settings (param_groups), its count of "
            f"steps{number}"
        )
    if any(name.kind is FileKind.EXTRA for name in found.values()):
        notes.append(f"left out: {FileKind.EXTRA} files, the schedules and random states: they are never opened")
    if LORA_NAME in saved.names:
        notes.append(f"{LORA_NAME} is there: adapters keep the names that PEFT gives them, and are not merged")
    return notes

"""Opens the files of an iteration: what each holds of the whole model, from their headers alone."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from math import lcm

from msgspec.structs import replace

from reshard.core.checkpoint.damage_policy import is_damage
from reshard.core.errors import CatalogError, InputError, LayoutError, raise_problems
from reshard.core.files.remote_index.indexing import workers_on
from reshard.core.files.torch_file import read_torch_file
from reshard.core.layouts.cataloging import joined_errors
from reshard.core.layouts.lost_files import MISSING, strategy_without
from reshard.core.layouts.megatron.args import MegatronArgs, differences
from reshard.core.layouts.megatron.iterations import Iteration
from reshard.core.layouts.megatron.names import (
    MODEL_NAME,
    OPTIMIZER_NAME,
    RankPosition,
    parse_rank_folder,
    rank_folder_name,
)
from reshard.core.layouts.megatron.optimizer import (
    OptimizerState,
    distributed_states,
    has_state,
    is_distributed,
    plain_states,
    saved_parts,
    state_names,
    without_state,
)
from reshard.core.layouts.megatron.placing import PlacedTensor, placed_tensors
from reshard.core.layouts.megatron.rank_file import OpenedFile, RankFile, read_rank_file
from reshard.core.layouts.placed_shards import PlacedShard, ShardFile
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.reading import open_source
from reshard.core.strategy.model import Strategy

_WORKERS = 8
_MAX_LISTED = 8
_MAX_RANKS = 1 << 20


class StateFile(Record):
    """A file that has states of an optimizer, which may be the model's own, and the model's file."""

    file: OpenedFile
    model: OpenedFile
    states: tuple[OptimizerState, ...]


class OpenedCheckpoint(Record, dict=True):
    """The files of an iteration, after their headers were read.

    Attributes:
        args: of the training, the same in all files.
        number: the iteration in the files.
        files: what each usable file holds.
        state_files: the states of optimizers among it.
        lost: path of a file -> why it cannot be used.
        state_problem: why an optimizer was saved, but is not known by names; empty if it is, or was not saved.
        notes: what is left out.
    """

    origin: str
    args: MegatronArgs
    number: int | None
    files: tuple[ShardFile, ...]
    state_files: tuple[StateFile, ...]
    lost: Mapping[str, str]
    state_problem: str
    notes: tuple[str, ...]

    @cached_property
    def strategy(self) -> Strategy:
        """The boxes of all parameters over the parts of the files."""
        return strategy_without(self.files, self.origin, self.lost)

    def check_complete(self) -> None:
        """Raise a CatalogError, or a StrategyError, unless the usable files hold the whole model."""
        _ = self.strategy

    @cached_property
    def states(self) -> tuple[str, ...]:
        """The names of the optimizer's states, those that an optimizer without known names would have included."""
        if not self.state_problem:
            return tuple(dict.fromkeys(state.name for each in self.state_files for state in each.states))
        weights = dict.fromkeys(shard.name for file in self.files for shard in file.shards)
        return tuple(name for weight in weights for name in state_names(weight))

    @property
    def names(self) -> list[str]:
        """The names of all parameters and of all states."""
        return list(dict.fromkeys((*(shard.name for file in self.files for shard in file.shards), *self.states)))


def open_iteration(iteration: Iteration) -> OpenedCheckpoint:
    """Read the headers of all files of an iteration.

    Raises:
        CatalogError: files contradict their arguments or each other, or none can be used; lists all of it.
        CheckpointError: one file is unusable, and no other is there.
        StorageError: a transient failure of the storage.
    """
    origin = iteration.url
    paths = [f"{folder}/{MODEL_NAME}" for folder in iteration.folders]
    with workers_on([iteration.location], _WORKERS) as threads:
        read = threads.outcomes(partial(_read, iteration), paths)
        outcomes = dict(zip(paths, read, strict=True))
        ranks = {path: each for path, each in outcomes.items() if isinstance(each, RankFile)}
        errors = {path: each for path, each in outcomes.items() if isinstance(each, InputError)}
        wrong = [error for error in errors.values() if not is_damage(error)]
        if wrong or not ranks:
            raise joined_errors(origin, wrong or [*errors.values()] or [_nothing(iteration)], len(paths))
        positions = _positions(iteration, ranks)
        placed = _placed(origin, ranks, positions)
        buffers = threads.outcomes(partial(_read_buffers, iteration), [path for path in paths if path in ranks])
    lost = {path: MISSING for path, each in outcomes.items() if each is None}
    lost |= {path: f"is damaged: {error.marked}" for path, error in errors.items()}
    lost |= {f"{folder}/{MODEL_NAME}": MISSING for folder in _missing_folders(iteration, ranks)}
    states, problem = _states(ranks, placed, dict(zip(ranks, buffers, strict=True)))
    first = next(iter(ranks.values()))
    return OpenedCheckpoint(
        origin,
        first.args,
        first.iteration,
        _files(ranks, placed, states),
        tuple(states),
        lost,
        problem,
        _notes(ranks),
    )


def _nothing(iteration: Iteration) -> CatalogError:
    return CatalogError(f"{iteration.location}: no folder of a rank has {MODEL_NAME}: it was not saved completely")


def _read(iteration: Iteration, path: str) -> RankFile | None:
    return unless_missing(lambda: read_rank_file(iteration.location.child(*path.split("/")), path))


class _Buffers(Record):
    file: OpenedFile
    root: object


def _read_buffers(iteration: Iteration, path: str) -> _Buffers | None:
    """The distributed optimizer beside a rank's file; None without one."""
    folder = path.partition("/")[0]
    location = iteration.location.child(folder, OPTIMIZER_NAME)

    def read() -> _Buffers:
        with closing(open_source(location)) as file:
            return _Buffers(OpenedFile.of(f"{folder}/{OPTIMIZER_NAME}", file), read_torch_file(file).root)

    return unless_missing(read)


def _positions(iteration: Iteration, ranks: Mapping[str, RankFile]) -> dict[str, RankPosition]:
    """The place of each rank in the training, by the name of its folder; checks that all are of one training."""
    problems: list[str] = []
    first_path, first = next(iter(ranks.items()))
    args = first.args
    for path, rank in ranks.items():
        if differing := differences(args, rank.args):
            problems.append(f"{first_path} and {path} differ in {listed(differing, _MAX_LISTED)}")
        elif rank.iteration != first.iteration:
            problems.append(f"{first_path} is of iteration {first.iteration}, {path} of {rank.iteration}")
        elif len(rank.chunks) != len(first.chunks):
            problems.append(f"{first_path} has {counted(len(first.chunks), 'chunk')}, {path} {len(rank.chunks)}")
    problems += _size_problems(args, len(first.chunks))
    positions: dict[str, RankPosition] = {}
    expected = frozenset[RankPosition]() if problems else _expected(args)
    for path in () if problems else ranks:
        position = parse_rank_folder(path.partition("/")[0], args.pipeline_size, args.expert_size)
        if position is None or position not in expected:
            problems.append(f"{path}: there is no such folder with {_sizes_text(args)}")
        else:
            positions[path] = position
    raise_problems(CatalogError, f"{iteration.location}: its files are not of one checkpoint", problems)
    return positions


def _sizes_text(args: MegatronArgs) -> str:
    return (
        f"tensor_model_parallel_size {args.tensor_size}, pipeline_model_parallel_size {args.pipeline_size} and "
        f"expert_model_parallel_size {args.expert_size}"
    )


def _size_problems(args: MegatronArgs, chunks: int) -> list[str]:
    """Sizes that contradict each other, or are unknown to Megatron's own folders."""
    problems = []
    if args.tensor_size % args.expert_tensor_size and not args.experts_over_tensor:
        problems.append(
            f"expert_tensor_parallel_size {args.expert_tensor_size} does not divide tensor_model_parallel_size "
            f"{args.tensor_size}: several ranks would have one folder"
        )
    if args.tensor_size * args.expert_size * args.pipeline_size > _MAX_RANKS:
        problems.append(
            f"{args.tensor_size * args.expert_size} tensor- and expert-parallel ranks in {args.pipeline_size} stages "
            f"are more than the {_MAX_RANKS} that reshard allows"
        )
    said = args.virtual_size
    if said is None and args.layers_per_chunk:
        said = max(args.layers // (args.pipeline_size * args.layers_per_chunk), 1)
    if said not in (None, chunks):
        problems.append(f"each file has {counted(chunks, 'chunk')} of the model, its arguments say {said}")
    return problems


def _expected(args: MegatronArgs) -> frozenset[RankPosition]:
    """The ranks that have a folder: with fewer expert tensor-parallel ranks, expert ranks run over tensor ranks."""
    tensor, expert = args.tensor_size, args.expert_size
    expert_tensor = tensor if args.experts_over_tensor else args.expert_tensor_size
    pairs = {(rank % tensor, rank // expert_tensor % expert) for rank in range(lcm(tensor, expert_tensor * expert))}
    return frozenset(RankPosition(t, p, e) for t, e in pairs for p in range(args.pipeline_size))


def _missing_folders(iteration: Iteration, ranks: Mapping[str, RankFile]) -> list[str]:
    args = next(iter(ranks.values())).args
    expected = [rank_folder_name(each, args.pipeline_size, args.expert_size) for each in sorted(_expected(args))]
    there = frozenset(iteration.folders)
    return [name for name in expected if name not in there]


_Placed = Mapping[str, tuple[tuple[PlacedTensor, ...], ...]]
"""Path of a rank's file -> the tensors of each of its chunks."""


def _placed(origin: str, ranks: Mapping[str, RankFile], positions: Mapping[str, RankPosition]) -> _Placed:
    placed, errors = {}, list[InputError]()
    for path, rank in ranks.items():
        try:
            placed[path] = placed_tensors(rank, positions[path])
        except CatalogError as error:
            errors.append(error)
        except LayoutError as error:
            raise CatalogError(f"{origin}: {error.marked}, as its 'args' say") from error
    if errors:
        raise joined_errors(origin, errors, len(ranks))
    return placed


def _states(
    ranks: Mapping[str, RankFile], placed: _Placed, buffers: Mapping[str, _Buffers | InputError | None]
) -> tuple[list[StateFile], str]:
    """The states of all optimizers; or none, and why they are not known."""
    found = []
    for path, rank in ranks.items():
        beside = buffers[path]
        try:
            if isinstance(beside, InputError):
                raise beside
            if beside is not None:
                states = distributed_states(rank, placed[path], beside.root)
                found.append(StateFile(beside.file, rank.file, tuple(states)))
            elif has_state(rank):
                if is_distributed(rank):
                    raise LayoutError(f"{OPTIMIZER_NAME} is not beside it")
                found.append(StateFile(rank.file, rank.file, tuple(plain_states(rank, placed[path]))))
        except LayoutError as error:
            where = rank.file.location if beside is None or isinstance(beside, InputError) else beside.file.location
            return [], f"{where}: {error.marked}"
        except InputError as error:
            return [], error.marked
    if not found:
        return [], ""
    there = saved_parts(state for each in found for state in each.states)
    for path, rank in ranks.items():
        if lacking := without_state(placed[path], there):
            return [], f"{rank.file.location}: the optimizer's states of {lacking!r} are in no file"
    return found, ""


def _files(ranks: Mapping[str, RankFile], placed: _Placed, states: Sequence[StateFile]) -> tuple[ShardFile, ...]:
    files: dict[str, OpenedFile] = {}
    shards: dict[str, list[PlacedShard]] = {}
    for path, rank in ranks.items():
        files[path] = rank.file
        of_file = shards.setdefault(path, [])
        for tensors, chunk in zip(rank.chunks, placed[path], strict=True):
            for each in chunk:
                of_file += each.shards(tensors[each.local])
    for state_file in states:
        files[state_file.file.path] = state_file.file
        of_file = shards.setdefault(state_file.file.path, [])
        for state in state_file.states:
            of_file += [replace(shard, name=state.name) for shard in state.placed.shards(state.stored)]
    return tuple(
        ShardFile(path, file.location, file.size_bytes, file.version, tuple(shards[path]))
        for path, file in sorted(files.items())
    )


def _notes(ranks: Mapping[str, RankFile]) -> tuple[str, ...]:
    notes = []
    extra = sum(rank.extra_states for rank in ranks.values())
    if extra:
        notes.append(f"left out: {counted(extra, 'state')} of modules (_extra_state), which no weights depend on")
    keys = list(dict.fromkeys(key for rank in ranks.values() for key in rank.left_out))
    if any(has_state(rank) for rank in ranks.values()):
        keys.append("the optimizer's steps and settings")
    if keys:
        notes.append(f"left out, but for what Megatron's layouts take over: {listed(keys, _MAX_LISTED)}")
    return tuple(notes)

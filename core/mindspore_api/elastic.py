"""A last checkpoint when devices fail: the contract of MindX's `mindx_elastic.torch_exception_module`, without MindX.

A training script says once how it saves, `exception_checkpoint.set_config(save_checkpoint, (step, model))`. When the
cluster ends the job by SIGTERM or SIGINT, the ranks that must save do so, then the signal has the effect that it would
have had without this module. Of the *groups*, whose ranks hold the same slices of the model, one saved copy is enough;
after a restart `check_resumable_model` says whether each group has one.

Which ranks are faulty is read at that moment from the file that `RESHARD_FAULT_RANKS_FILE` names; without the variable
from where MindX's scheduler puts it (the ConfigMap fault-config-JOB, mounted). No file means no faults. It holds

    {"FaultRankIds": ["3", "7"]}    MindX's; without this key, no faults are known yet
    ["3", "7"]                      or the ranks alone

All ranks decide by themselves and have to agree: the file lists the faulty ranks of the whole job, the same everywhere.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from reshard.core.errors import InputError
from reshard.core.runtime.local_files import open_regular
from reshard.core.runtime.wording import listed

FAULT_RANKS_VARIABLE = "RESHARD_FAULT_RANKS_FILE"
MINDX_FAULT_RANKS_FILE = "/user/restore/fault/config/fault-npus"
MAX_REPLICAS = 5

_RANK_VARIABLES = ("RANK", "RANK_ID", "OMPI_COMM_WORLD_RANK")
_SIZE_VARIABLES = ("WORLD_SIZE", "RANK_SIZE", "OMPI_COMM_WORLD_SIZE")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_MAX_LIST_BYTES = 1 << 20  # MindX's own limit; 4096 ranks take 40 kB

_log = logging.getLogger("reshard.elastic")


class ExceptionHandler:
    """Saves a checkpoint once, on SIGTERM or SIGINT, on the ranks that must; registers the signals when created.

    It does nothing before `set_config`, and nothing in processes that are forked afterwards, such as those that load
    data: there a signal has the effect that it would have without this object. The save runs between two steps of the
    interpreter, wherever the main thread is.
    """

    def __init__(self) -> None:
        self._save_func: Callable[..., object] | None = None
        self._args: tuple[Any, ...] = ()
        self._group_info: list[list[int]] | None = None
        self._partial_save = False
        self._replicas = 1
        self._process = 0  # that configured it
        self._saving = self._saved = False
        self._previous: dict[int, Any] = {}
        self._passing_on: list[FrameType | None] = []
        try:
            self.register_signals()
        except RuntimeError as error:
            _log_safely(logging.WARNING, f"{error}. Until then no signal makes this process save")

    def register_signals(self) -> None:
        """Handle SIGTERM and SIGINT; the previous handlers are called after the save.

        A second call takes the signals back from handlers registered in between, and calls these after the save.

        Raises:
            RuntimeError: this is not the main thread, and only that one may; nothing was changed.
        """
        for number in _SIGNALS:
            try:
                previous = signal.signal(number, self._handle)
            except ValueError as error:
                raise RuntimeError(
                    "SIGTERM and SIGINT can be registered by the main thread only: import "
                    "reshard.elastic there, or call exception_checkpoint.register_signals() from it"
                ) from error
            if previous != self._handle:
                self._previous[number] = previous

    def set_config(
        self,
        save_func: Callable[..., object],
        args: Sequence[Any],
        partial_save: bool = False,
        group_info: Sequence[Sequence[int]] | None = None,
        replicas: int = 1,
    ) -> None:
        """Set how this process saves; to be called once training is ready to save.

        Args:
            save_func: saves the checkpoint of this rank when called with `args`.
            args: its arguments.
            partial_save: only `replicas` ranks of each group save, the first healthy ones, instead of all healthy ones.
                Not for optimizers that are distributed over a group: each rank holds a part that no other has.
            group_info: the data-parallel groups of the whole job, each a list of ranks. Group `rank % len(group_info)`
                is a rank's own; where that one lacks it (several pipeline stages), the one that holds it. Not needed
                for pure data parallelism, where all ranks are one group.
            replicas: 1 to 5.

        Raises:
            TypeError: an argument is of another type.
            ValueError: `replicas` is out of range, or the groups do not hold each rank of the job once.
            InputError: the environment has a wrong rank, or lacks the number of ranks.
        """
        if not callable(save_func):
            raise TypeError(f"save_func must be callable, not {save_func!r}")
        if not isinstance(args, (tuple, list)):
            raise TypeError(f"args must be a tuple of save_func's arguments, not {args!r}")
        if not isinstance(partial_save, bool):
            raise TypeError(f"partial_save must be True or False, not {partial_save!r}")
        if type(replicas) is not int:
            raise TypeError(f"replicas must be an integer, not {replicas!r}")
        if not 1 <= replicas <= MAX_REPLICAS:
            raise ValueError(f"replicas must be 1 to {MAX_REPLICAS}, not {replicas}")
        groups = None if group_info is None else _checked_groups(group_info)
        rank, size = _rank(), _world_size()
        if groups is not None:
            _check_complete(groups, rank, size)
        elif partial_save:
            _required_world_size()
        self._save_func, self._args = save_func, tuple(args)
        self._partial_save, self._group_info, self._replicas = partial_save, groups, replicas
        self._process = os.getpid()
        self._saved = False

    def check_resumable_model(self, has_file: Callable[[int], bool] | None = None) -> bool:
        """True if every group has a healthy rank, which has saved, so that the whole model can be resumed.

        Otherwise training goes back to `regular_iteration`.

        Args:
            has_file: says whether the file of a rank exists; None: it does if the rank saved.

        Raises:
            InputError: the list of faulty ranks is damaged, or the environment lacks the number of ranks.
        """
        return all(any(has_file is None or has_file(rank) for rank in ranks) for ranks in self._saving_ranks())

    def loading_rank(self, rank: int | None = None) -> int:
        """The rank whose file a rank loads after a restart: its own if it saved, else its group's first that did.

        In Megatron's naming the file is `model_optim_rng_{i}.pt`. With a distributed optimizer, the model's file is
        common, and the optimizer's is that of the rank's own place in its group.

        Args:
            rank: this process's own by default.

        Raises:
            ValueError: no group holds the rank.
            InputError: no rank of the group has saved, the list of faulty ranks is damaged, or the environment lacks
                ranks.
        """
        rank = _rank() if rank is None else rank
        for group, saving in zip(self._groups(), self._saving_ranks(), strict=True):
            if rank in group and saving:
                return rank if rank in saving else saving[0]
            if rank in group:
                raise InputError(
                    f"rank {rank}: all ranks of its group {_ranks_text(group)} are faulty: none has saved its slices. "
                    "Go back to the last regular checkpoint"
                )
        raise ValueError(f"rank {rank} is in none of the groups")

    def _get_fault_npus(self) -> list[str]:
        """The ranks whose devices are faulty now, from the file that the module describes."""
        path = os.environ.get(FAULT_RANKS_VARIABLE) or MINDX_FAULT_RANKS_FILE
        try:
            with open(open_regular(path), "rb") as file:
                data = file.read(_MAX_LIST_BYTES + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"{path}: the list of faulty ranks cannot be read: {error.strerror}") from error
        return parse_fault_ranks(data, path)

    def _groups(self) -> Sequence[Sequence[int]]:
        return [range(_required_world_size())] if self._group_info is None else self._group_info

    def _saving_ranks(self) -> list[list[int]]:
        """The ranks of each group that save, in the group's order."""
        faulty = {int(rank) for rank in self._get_fault_npus()}
        healthy = [[rank for rank in group if rank not in faulty] for group in self._groups()]
        return [ranks[: self._replicas] for ranks in healthy] if self._partial_save else healthy

    def _must_save(self) -> bool:
        rank = _rank()
        try:
            faulty = str(rank) in self._get_fault_npus()
            return not faulty and (not self._partial_save or any(rank in ranks for ranks in self._saving_ranks()))
        except InputError as error:
            # this rank may be the only healthy one: a superfluous copy costs little, a missing one the model
            _log_safely(logging.ERROR, f"rank {rank}: {error}. It saves, since the others may be unable to")
            return True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        configured = self._save_func is not None and self._process == os.getpid()
        if not configured or self._saved:
            self._pass_on(number, frame)
        elif self._saving:
            _log_safely(
                logging.WARNING, f"{name} arrived while the checkpoint is being saved, which goes on; SIGKILL ends it"
            )
        else:
            self._saving = True
            try:
                self._save(name)
            finally:
                self._saving, self._saved = False, True
            self._pass_on(number, frame)

    def _save(self, name: str) -> None:
        assert self._save_func is not None
        rank = _rank()
        if not self._must_save():
            _log_safely(logging.INFO, f"rank {rank}: {name}: need not save")
            return
        _log_safely(logging.INFO, f"rank {rank}: {name}: saving")
        try:
            self._save_func(*self._args)
        except SystemExit:  # some functions end the process after saving
            raise
        except BaseException as error:
            _log_safely(logging.ERROR, f"rank {rank}: {name}: the checkpoint could not be saved: {error!r}", error)
            _end(1)
        _log_safely(logging.INFO, f"rank {rank}: {name}: saved")

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Give the signal its previous effect; one that was ignored ends the process after a save."""
        previous = self._previous.get(number)
        # a handler registered later may call this one again, with the same frame
        if callable(previous) and frame not in self._passing_on:
            self._passing_on.append(frame)
            try:
                previous(number, frame)
            finally:
                self._passing_on.pop()
        elif previous is not signal.SIG_IGN or self._saved:
            _flush()
            # by the signal itself, so that the parent process sees it as the cause
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def regular_iteration(iteration: int, save_interval: int) -> int:
    """The iteration of the last regular checkpoint, to resume if the last exceptional one cannot be."""
    return iteration // save_interval * save_interval


def parse_fault_ranks(data: bytes, origin: str) -> list[str]:
    """Parse a file's list of faulty ranks, which may be empty; `origin` names the file in messages."""
    if len(data) > _MAX_LIST_BYTES:
        raise InputError(f"{origin}: has more than {_MAX_LIST_BYTES} bytes: not a list of faulty ranks")
    if not data.strip():
        return []
    try:
        document = json.loads(data.decode())
        ranks = document.get("FaultRankIds", []) if isinstance(document, dict) else document
        if isinstance(ranks, str):  # MindX's older schedulers put the list into a text
            ranks = json.loads(ranks) if ranks else []
    except (ValueError, RecursionError) as error:
        raise InputError(f"{origin}: the list of faulty ranks is not valid JSON: damaged") from error
    if not isinstance(ranks, list):
        raise InputError(f"{origin}: has {type(ranks).__name__} where the list of faulty ranks should be: damaged")
    return [_fault_rank(rank, origin) for rank in ranks]


def _fault_rank(value: object, origin: str) -> str:
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InputError(f"{origin}: {str(value)[:40]!r} in the list of faulty ranks is not a rank: damaged")
    return str(int(text))


def _checked_groups(group_info: object) -> list[list[int]]:
    if not isinstance(group_info, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in group_info):
        raise TypeError(f"group_info must be a list of lists of ranks, not {group_info!r}")
    ranks = [rank for group in group_info for rank in group]
    for rank in ranks:
        if type(rank) is not int:
            raise TypeError(f"group_info must hold ranks, which are integers, not {rank!r}")
        if rank < 0:
            raise ValueError(f"group_info holds rank {rank}, which is negative")
    if not group_info or not all(group_info):
        raise ValueError(f"group_info holds no group, or an empty one: {group_info!r}")
    twice = sorted(rank for rank in set(ranks) if ranks.count(rank) > 1) if len(set(ranks)) < len(ranks) else []
    if twice:
        raise ValueError(f"group_info holds ranks {_ranks_text(twice)} more than once: groups have no ranks in common")
    return [list(group) for group in group_info]


def _check_complete(groups: Iterable[Iterable[int]], rank: int, size: int | None) -> None:
    ranks = {rank for group in groups for rank in group}
    if rank not in ranks:
        raise ValueError(f"group_info has no group for rank {rank}, which is this process's")
    unlike = [] if size is None else sorted(ranks ^ set(range(size)))
    if unlike:
        raise ValueError(
            f"group_info does not hold each of the job's {size} ranks: {_ranks_text(unlike)} are missing or foreign"
        )


def _rank() -> int:
    return _number_of(_RANK_VARIABLES) or 0


def _world_size() -> int | None:
    """The number of ranks from the environment; 1 without a rank in it, None without the number alone."""
    size = _number_of(_SIZE_VARIABLES)
    rank = _number_of(_RANK_VARIABLES)
    if size is not None and not (rank or 0) < size:
        raise InputError(f"the environment says rank {rank or 0} of {size} ranks, which there cannot be")
    return 1 if size is None and rank is None else size


def _required_world_size() -> int:
    size = _world_size()
    if size is None:
        raise InputError(f"the number of ranks is unknown: set {_SIZE_VARIABLES[0]}, or give group_info")
    return size


def _number_of(variables: Sequence[str]) -> int | None:
    """The value of the first environment variable that is set."""
    for name in variables:
        text = os.environ.get(name)
        if text:
            if not (text.isascii() and text.isdigit() and len(text) <= 10):
                raise InputError(f"the environment's {name} is {text[:40]!r}, not a number")
            return int(text)
    return None


def _ranks_text(ranks: Sequence[int]) -> str:
    return listed([*map(str, ranks)])


def _log_safely(level: int, message: str, error: BaseException | None = None) -> None:
    # a signal during a write to the same stream makes that stream refuse
    with suppress(Exception):
        _log.log(level, message, exc_info=error)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _end(status: int) -> NoReturn:
    """End the process at once: the training might catch an exception."""
    _flush()
    os._exit(status)


exception_checkpoint = ExceptionHandler()
"""The handler that training scripts configure."""

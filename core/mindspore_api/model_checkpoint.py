"""MindSpore's `ModelCheckpoint`: a callback of a training that saves its parameters every few steps or seconds.

Where MindSpore was imported before it is made, it is a callback of `Model.train`. It works in any other loop:

    with ModelCheckpoint("llama", "checkpoint/rank_0", CheckpointConfig(100)) as checkpoint:
        for step in range(1, steps + 1):
            train(weights)
            checkpoint.step_end(RunContext(train_network=weights, cur_epoch_num=1, cur_step_num=step, batch_num=steps))
        checkpoint.end(RunContext(...))

The network is a mapping of names to arrays, or anything with `parameters_and_names()`, `parameters_dict()` or
`state_dict()`. Rules and names are those of MindSpore 2.10.0 (train/callback/_checkpoint.py, train/model.py).
"""

import logging
import os
import re
import stat
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from os.path import splitext
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import numpy as np

from reshard.core.files.block_writing import FileKind
from reshard.core.files.model import CheckpointFormat
from reshard.core.files.numpy_values import Value
from reshard.core.mindspore_api.arguments import given_rank, is_network
from reshard.core.mindspore_api.background import Background
from reshard.core.mindspore_api.cells import join_mindspore
from reshard.core.mindspore_api.checkpoint_config import FROM_TRAINING, CheckpointConfig, as_config
from reshard.core.mindspore_api.checkpoint_manager import CheckpointManager
from reshard.core.mindspore_api.deduplication import omitted_parameters
from reshard.core.mindspore_api.failures import reading, writing
from reshard.core.mindspore_api.layouts import strategy_of
from reshard.core.mindspore_api.paths import make_directory
from reshard.core.mindspore_api.saving import save_values, values_to_save
from reshard.core.mindspore_api.saving_process import Snapshot
from reshard.core.storage.failures import mapped_errors
from reshard.core.storage.publishing import list_names, remove_unfinished
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes

_log = logging.getLogger("reshard.mindspore")

_BREAKPOINT = "_breakpoint.ckpt"
_EXTENSIONS = (".ckpt", ".safetensors")
_ABANDONED_SECONDS = 900.0
"""What is being written on another node of the training does not stay the same for so long."""

Named = str | Callable[[Any], str]
"""A text, or a function that makes one of a training's arguments."""


class RunContext:
    """The state of a training, as callbacks get it.

    Args:
        original_args: a mapping, or an object with attributes: `train_network`, `cur_epoch_num`, `cur_step_num` and
            `batch_num`, the number of steps in an epoch.
        values: the same as keyword arguments.
    """

    def __init__(self, original_args: Any = None, **values: Any) -> None:
        given = original_args if original_args is not None else {}
        self._args = SimpleNamespace(**{**given, **values}) if isinstance(given, Mapping) else given
        self._stop_requested = False

    def original_args(self) -> Any:
        """Return the object with the state as attributes."""
        return self._args

    def request_stop(self) -> None:
        """Ask the training to stop."""
        self._stop_requested = True

    def get_stop_requested(self) -> bool:
        """True if a callback asked the training to stop."""
        return self._stop_requested


class ModelCheckpoint:
    """Saves checkpoints of a training; see `CheckpointConfig` for when, and how many are kept.

    Args:
        prefix: what names of files begin with, before `-{epoch}_{step in the epoch}`; or a function that returns the
            whole name without its extension. If there are files of the prefix, a number is added to it.
        directory: where files go; by default the current directory. Or a function that returns it.
        config: the settings; MindSpore's CheckpointConfig is taken, too.
        strategy: the job's strategy: a file, or what `build_searched_strategy` returns. For `remove_redundancy` only,
            as it says which ranks share a slice. It is read after the first step: compiling the network may write it.
        rank_id: this rank, for `remove_redundancy`; by default the environment's `RANK_ID`.

    Raises:
        ValueError: `prefix` is not text, or has a `/` in it; `directory` is blank; `rank_id` differs from `RANK_ID`.
        TypeError: `directory` is not text; `config` is not a CheckpointConfig; `remove_redundancy` lacks strategy or
            rank.
    """

    def __init__(
        self,
        prefix: Named = "CKP",
        directory: Named | None = None,
        config: CheckpointConfig | Any = None,
        *,
        strategy: str | Mapping[str, Any] | None = None,
        rank_id: int | None = None,
    ) -> None:
        join_mindspore(self, "Callback")  # `Model.train` takes no others
        if not callable(prefix) and not _is_prefix(prefix):
            raise ValueError(f"'prefix' has to be a function, or a string without '/', not {prefix!r}")
        self._config = CheckpointConfig() if config is None else as_config(config)
        self._key = self._config.key()
        self._strategy, self._rank = strategy, given_rank(rank_id)
        if self._config.remove_redundancy:
            _check_slices_known(strategy, self._rank)
        self._prefix_function = prefix if callable(prefix) else None
        self._directory_function = directory if callable(directory) else None
        self._directory = ""  # until the function is called
        if not callable(directory):
            self._directory = os.getcwd() if directory is None else _made(directory)
        self._breakpoint_prefix = self._prefix = "" if callable(prefix) else prefix
        if not (callable(prefix) or callable(directory)):
            self._prefix = free_prefix(_names_in(self._directory), prefix)
        self._info = self._config.append_dict or {}
        self._started = {name: self._info[name] for name in FROM_TRAINING if name in self._info}
        self._manager = CheckpointManager(self._config.format)
        self._background = Background()
        self._latest = ""
        self._saved_step = 0
        self._saved_at = self._last_file_at = time.time()
        self._graph_saved = False
        self._args: Any = None

    @property
    def latest_ckpt_file_name(self) -> str:
        """Path of the last file that was saved, but for breakpoints; empty before the first."""
        return self._latest

    @property
    def _get_save_checkpoint_steps(self) -> int | None:
        return self._config.save_checkpoint_steps

    @property
    def _get_last_trigger_step(self) -> int:
        return self._saved_step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._config.exception_save and self._args is not None:
            try:
                self._save_breakpoint()
            except Exception as failure:
                error.add_note(f"the checkpoint of the breakpoint could not be saved: {failure}")
                _log.exception("the checkpoint of the breakpoint could not be saved")
        self._background.wait()
        if error is None:
            self._background.raise_failures()

    def begin(self, run_context: Any) -> None:
        """Note the training's state, for a failure before its first step."""
        self._args = run_context.original_args()

    def step_begin(self, run_context: Any) -> None:
        """Note the training's state, for a failure in the step."""
        self._args = run_context.original_args()

    def step_end(self, run_context: Any) -> None:
        """Save a checkpoint if it is time to.

        Raises:
            OSError: a file cannot be written; with `async_save` this is a warning, and an exception at the end.
            TypeError, ValueError: the network or the settings do not fit.
        """
        self._args = run_context.original_args()
        self._follow_recovery()
        _ = self._omitted  # a wrong strategy is refused after the first step, not at the first save
        self._background.warn_of_failures()
        self._save_due(at_end=False)

    def end(self, run_context: Any) -> None:
        """Save the last step, wait until all files are whole, and raise what went wrong in the background."""
        self._args = run_context.original_args()
        self._save_due(at_end=True)
        self._background.wait()
        self._background.raise_failures()

    def epoch_begin(self, run_context: Any) -> None:
        """Do nothing."""

    def epoch_end(self, run_context: Any) -> None:
        """Do nothing."""

    def on_train_begin(self, run_context: Any) -> None:
        """See `begin`."""
        self.begin(run_context)

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """See `epoch_begin`."""
        self.epoch_begin(run_context)

    def on_train_epoch_end(self, run_context: Any) -> None:
        """See `epoch_end`."""
        self.epoch_end(run_context)

    def on_train_step_begin(self, run_context: Any) -> None:
        """See `step_begin`."""
        self.step_begin(run_context)

    def on_train_step_end(self, run_context: Any) -> None:
        """See `step_end`."""
        self.step_end(run_context)

    def on_train_end(self, run_context: Any) -> None:
        """See `end`."""
        self.end(run_context)

    def _follow_recovery(self) -> None:
        """Count from the step of the checkpoint that a training has been rolled back to, if it says one."""
        recovered = getattr(self._args, "last_save_ckpt_step", None)
        if recovered is not None:
            self._saved_step = recovered
            self._args.last_save_ckpt_step = None

    def _save_due(self, *, at_end: bool) -> None:
        self._name_files(at_end)
        step = self._args.cur_step_num
        if step == self._saved_step or not self._is_due(step, at_end):
            return
        self._background.wait_for_the_next()
        name = self._prefix
        if not self._prefix_function:
            name += f"-{self._args.cur_epoch_num}_{self._step_in_epoch}"
        self._saved_step = step
        file = f"{name}.{self._config.format}"
        self._save(file, self._surplus(), self._omitted, in_background=bool(self._config.async_save))

    def _name_files(self, at_end: bool) -> None:
        """Ask the functions for prefix and directory, and save the network's graph, once."""
        if at_end:
            return
        if self._prefix_function:
            self._prefix = self._prefix_function(self._args)
            if not _is_prefix(self._prefix):
                raise ValueError(f"'prefix' has to return a string without '/', not {self._prefix!r}")
        if self._directory_function:
            self._directory = _made(self._directory_function(self._args))
        if not self._graph_saved:
            self._graph_saved = True
            graph = getattr(self._args.train_network, "get_func_graph_proto", lambda: None)()
            if graph:
                location = self._location(f"{self._prefix}-graph.meta")
                with writing():
                    write_bytes(location, graph)
                location.store.restrict(location.path, stat.S_IRUSR | stat.S_IWUSR)

    def _is_due(self, step: int, at_end: bool) -> bool:
        if self._config.save_checkpoint_steps:
            return at_end or step >= self._saved_step + self._config.save_checkpoint_steps
        if not self._config.save_checkpoint_seconds:
            return False
        now = time.time()
        due = at_end or now - self._saved_at > self._config.save_checkpoint_seconds
        if due:
            self._saved_at = now
        return due

    def _surplus(self) -> list[str]:
        """Files that the next one makes superfluous; what killed saves left unfinished a while ago is removed."""
        with writing():
            self._remove_unfinished()
            self._manager.update_ckpoint_filelist(self._directory, self._prefix)
            most, minutes = self._config.keep_checkpoint_max, self._config.keep_checkpoint_per_n_minutes
            now, last_file_at = time.time(), self._last_file_at
            self._last_file_at = now
            if most:
                oldest = self._manager.oldest() if self._manager.ckpoint_num >= most else None
                return [oldest] if oldest else []
            if minutes and now - last_file_at < minutes * 60:
                return self._manager.recent_but_first(minutes, now)
            return []

    def _remove_unfinished(self) -> None:
        directory = parse_url(self._directory)
        try:
            remove_unfinished(directory, self._is_own, _ABANDONED_SECONDS)
        except OSError as error:
            warnings.warn(f"an unfinished file of a killed save was not removed: {error}", stacklevel=5)

    def _is_own(self, temporary: str) -> bool:
        """True for the temporary name of a file of this training, or of an earlier one of the same prefix."""
        name = temporary.removeprefix(".")
        if self._prefix_function:
            return name.startswith(f"{self._prefix}.{self._config.format}.")
        return re.match(rf"{re.escape(self._breakpoint_prefix)}(_\d+)?-\d", name) is not None

    def _save_breakpoint(self) -> None:
        self._background.wait()
        prefix = self._prefix
        if not (self._prefix_function or self._directory_function):
            prefix = free_prefix(_names_in(self._directory), self._breakpoint_prefix, of_breakpoints=True)
        epoch = getattr(self._args, "cur_epoch_num", 0)
        # with all slices, as in MindSpore: other ranks may be lost
        self._save(f"{prefix}-{epoch}_{self._step_in_epoch}{_BREAKPOINT}", [], (), in_background=False)

    @property
    def _step_in_epoch(self) -> int:
        step = getattr(self._args, "cur_step_num", 0)
        return int((step - 1) % self._args.batch_num + 1) if step else 0

    def _save(self, name: str, surplus: list[str], omitted: Collection[str], *, in_background: bool) -> None:
        location = self._location(name)
        values = self._values(location, omitted)
        # as MindSpore does, other files are marked as ones without redundancy removed
        mark = self._config.remove_redundancy and not name.endswith(_BREAKPOINT)
        kind = FileKind(CheckpointFormat(self._config.format), self._config.crc_check, mark, self._key)
        path = os.path.join(self._directory, name)

        def write(save: Callable[[], None]) -> None:
            with writing():
                save()
            if not name.endswith(_BREAKPOINT):
                self._latest = path
            for file in surplus:
                if file != str(location):
                    self._manager.remove_ckpoint_file(file)

        if not in_background:
            write(lambda: save_values(location, values, kind))
        elif self._config.async_save == "process":
            with writing():
                snapshot = Snapshot(location, values, kind)
            self._background.start(path, lambda: write(snapshot.save))
        else:
            copies = {each: _copied(value) for each, value in values.items()}
            self._background.start(path, lambda: write(lambda: save_values(location, copies, kind)))

    def _values(self, location: Location, omitted: Collection[str]) -> dict[str, Value]:
        """What a file is to hold: the network's parameters that no other rank saves, and what is appended."""
        network = self._args.train_network if self._config.saved_network is None else self._config.saved_network
        self._check_network(network)
        values = values_to_save(network, self._appended(), omitted)
        if not values and not omitted:
            raise ValueError(f"{location}: there is nothing to save")
        if not values and self._config.format == "ckpt":
            raise ValueError(
                f"{location}: other ranks save all slices of this one, and a .ckpt file cannot be empty: set "
                "append_info=['step_num'] or format='safetensors'"
            )
        return values

    def _appended(self) -> dict[str, Any]:
        reached = {
            "epoch_num": getattr(self._args, "cur_epoch_num", 0),
            "step_num": getattr(self._args, "cur_step_num", 0),
        }
        return self._info | {name: start + reached[name] for name, start in self._started.items()}

    @cached_property
    def _omitted(self) -> frozenset[str]:
        """Parameters that other ranks save."""
        if not self._config.remove_redundancy:
            return frozenset()
        strategy = strategy_of("strategy", self._strategy)
        assert strategy is not None
        assert self._rank is not None
        with reading():
            return omitted_parameters(strategy, self._rank)

    def _check_network(self, network: Any) -> None:
        if not is_network(network):
            raise TypeError(
                "the network to save has to be a mapping of names to arrays, or to have parameters_and_names(), "
                f"parameters_dict() or state_dict(), not {type(network)}"
            )
        sliced = bool(getattr(network, "parameter_layout_dict", None))
        if sliced and self._config.integrated_save and not self._config.remove_redundancy:
            raise ValueError("the network holds slices, which are not gathered here: set integrated_save=False")

    def _location(self, name: str) -> Location:
        with reading():
            return parse_url(self._directory).child(name)


def free_prefix(names: list[str], prefix: str, *, of_breakpoints: bool = False) -> str:
    """Return the prefix, with the next free number if there are files of it, such as `CKP_1` beside `CKP-1_1.ckpt`.

    Breakpoints' files, and all others, are numbered by themselves.
    """
    number = 0
    for name in names:
        is_breakpoint = name.endswith(_BREAKPOINT)
        if is_breakpoint != of_breakpoints or splitext(name)[1] not in _EXTENSIONS:
            continue
        rest = name[len(prefix) :]
        if not name.startswith(prefix) or rest[:1].isalpha():
            continue
        dash = rest.find("-")
        if dash == 0:
            number = max(number, 1)
        elif dash > 0 and rest[1:dash].isdigit():
            number = max(number, int(rest[1:dash]) + 1)
    return f"{prefix}_{number}" if number else prefix


def _check_slices_known(strategy: object, rank: int | None) -> None:
    """Raise TypeError if a rank cannot know which ranks share its slices."""
    if strategy is None:
        raise TypeError(
            "'remove_redundancy': which ranks share a slice is not known: give ModelCheckpoint the job's 'strategy', a "
            "file or what build_searched_strategy returns"
        )
    if rank is None:
        raise TypeError("'remove_redundancy': which rank this is, is not known: give 'rank_id', or set RANK_ID")


def _is_prefix(value: object) -> bool:
    return isinstance(value, str) and "/" not in value


def _made(directory: object) -> str:
    """The absolute path or the URL of a directory, which is made if need be."""
    if not isinstance(directory, str):
        raise TypeError(f"'directory' has to be a function or a string, not {type(directory)}")
    if not directory.strip():
        raise ValueError("'directory' is blank")
    with writing():
        location = parse_url(directory)
        if location.store.has_paths:
            with mapped_errors(location, "make the directory"):
                make_directory(location.path)
    return str(location)


def _names_in(directory: str) -> list[str]:
    with writing():
        return list_names(parse_url(directory))


def _copied(value: Value) -> Value:
    """The value as it is now: training goes on while it is written."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return [part.copy() for part in value] if isinstance(value, list) else value

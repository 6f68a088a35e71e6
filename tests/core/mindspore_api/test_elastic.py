"""The last checkpoint before the end: real training processes, real signals, and the files that are left."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from demo.make_checkpoint import make_demo
from reshard import elastic
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.mindspore_api.elastic import (
    FAULT_RANKS_VARIABLE,
    MINDX_FAULT_RANKS_FILE,
    ExceptionHandler,
    exception_checkpoint,
    parse_fault_ranks,
    regular_iteration,
)
from reshard.core.request.conversion import build_request
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import read_tree
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT

# a training script in short: `saved` names the file of a rank, `before` and `after` are lines around set_config
_TRAINING = """
import os, signal, sys, time
{before}
from reshard.elastic import exception_checkpoint

def save(directory, rank):
    with open(os.path.join(directory, f"rank_{{rank}}"), "a") as file:
        file.write("saved ")

{config}
{after}
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""
_CONFIG = "exception_checkpoint.set_config(save, (sys.argv[1], os.environ['RANK']){})"


class Job:
    """Training processes of one directory, one for each rank."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[subprocess.Popen[str]] = []

    def start(
        self, size: int, config: str = _CONFIG.format(""), *, faults: object = None, before: str = "", after: str = ""
    ) -> "Job":
        script = _TRAINING.format(config=config, before=before, after=after)
        listed = self.directory / "fault-npus"
        if faults is not None:
            listed.write_text(faults if isinstance(faults, str) else json.dumps({"FaultRankIds": faults}))
        for rank in range(size):
            shown = {"RANK": str(rank), "WORLD_SIZE": str(size), FAULT_RANKS_VARIABLE: str(listed)}
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", script, str(self.directory)],
                    env={**os.environ, "PYTHONPATH": str(PROJECT), **shown},
                    cwd=self.directory,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        return self

    def send(self, number: int) -> None:
        for process in self.processes:
            process.send_signal(number)

    def ends(self) -> tuple[list[int], str]:
        """How the processes ended, and what they said on stderr."""
        said = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in self.processes]
        return [process.returncode for process in self.processes], "".join(said)

    @property
    def saved(self) -> set[int]:
        files = list(self.directory.glob("rank_*"))
        assert all(file.read_text() == "saved " for file in files)  # once each
        return {int(file.name.removeprefix("rank_")) for file in files}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    for process in job.processes:
        process.kill()
        process.communicate()


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ExceptionHandler]:
    """One that is not registered any more when the test ends, in a job of four."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    _environment(monkeypatch, {"RANK": "0", "WORLD_SIZE": "4", FAULT_RANKS_VARIABLE: str(tmp_path / "none")})
    yield ExceptionHandler()
    for number, previous in before.items():
        signal.signal(number, previous)


def _environment(monkeypatch: pytest.MonkeyPatch, values: Mapping[str, str]) -> None:
    for name in ("RANK", "RANK_ID", "OMPI_COMM_WORLD_RANK", "WORLD_SIZE", "RANK_SIZE", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def _faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Sequence[str]) -> None:
    path = tmp_path / "faults"
    path.write_text(json.dumps({"FaultRankIds": ranks}))
    monkeypatch.setenv(FAULT_RANKS_VARIABLE, str(path))


_GROUPS = ", True, [[0, 2], [1, 3]], {}"


@pytest.mark.parametrize(
    ("number", "config", "faults", "saved"),
    [
        (signal.SIGTERM, "", None, {0, 1, 2, 3}),
        (signal.SIGINT, "", ["2"], {0, 1, 3}),
        (signal.SIGTERM, ", True", None, {0}),
        (signal.SIGTERM, ", True, None, 3", ["0"], {1, 2, 3}),
        (signal.SIGTERM, _GROUPS.format(1), ["0"], {1, 2}),
        (signal.SIGINT, _GROUPS.format(2), [3], {0, 1, 2}),
        (signal.SIGTERM, _GROUPS.format(1), ["1", "3"], {0}),
    ],
)
def test_just_the_ranks_that_must_save_and_the_signal_ends_all(
    job: Job, number: int, config: str, faults: list[str] | None, saved: set[int]
) -> None:
    job.start(4, _CONFIG.format(config), faults=faults).send(number)
    assert job.ends()[0] == [-number] * 4
    assert job.saved == saved


def test_faults_listed_after_the_start_count(job: Job) -> None:
    job.start(2, _CONFIG.format(", True"))
    (job.directory / "fault-npus").write_text('{"FaultRankIds": ["0"], "CreatTime": 1}')
    job.send(signal.SIGTERM)
    assert job.ends()[0] == [-signal.SIGTERM] * 2
    assert job.saved == {1}


def test_where_the_faults_cannot_be_read_every_rank_saves_and_says_so(job: Job) -> None:
    job.start(2, _CONFIG.format(", True"), faults='{"FaultRankIds": ').send(signal.SIGTERM)
    ended, said = job.ends()
    assert ended == [-signal.SIGTERM] * 2
    assert job.saved == {0, 1}
    assert "rank 1: " in said
    assert "fault-npus: the list of faulty ranks is not valid JSON: damaged" in said


def test_a_process_without_configuration_ends_as_before(job: Job) -> None:
    job.start(1, "").send(signal.SIGTERM)
    assert job.ends() == ([-signal.SIGTERM], "")
    assert job.saved == set()


def test_a_save_that_fails_ends_the_process_with_an_error_and_its_traceback(job: Job) -> None:
    # the loop would catch an exception
    after = "def save(): raise OSError(28, 'disk full')\nexception_checkpoint.set_config(save, ())"
    job.start(1, "", after=after).send(signal.SIGTERM)
    ended, said = job.ends()
    assert ended == [1]
    assert "rank 0: SIGTERM: the checkpoint could not be saved: OSError(28, 'disk full')" in said
    assert "Traceback" in said
    assert "in save" in said


def test_signals_that_come_during_the_save_do_not_disturb_it(job: Job) -> None:
    slow = """
def slow(directory, rank):
    print("saving", flush=True)
    sys.stdin.readline()
    save(directory, rank)
exception_checkpoint.set_config(slow, (sys.argv[1], "0"))
"""
    job.start(1, "", after=slow)
    (process,) = job.processes
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "saving\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    ended, said = job.ends()
    assert ended == [-signal.SIGTERM]
    assert job.saved == {0}
    assert "arrived while the checkpoint is being saved, which goes on" in said


@pytest.mark.parametrize(
    "before",
    ["signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", "import atexit\natexit.register(print)"],
    ids=["handled before", "not handled"],
)
def test_what_handled_the_signal_before_does_so_after_the_save(job: Job, before: str) -> None:
    job.start(1, before=before).send(signal.SIGTERM)
    assert job.ends()[0] == [7 if "SIGTERM" in before else -signal.SIGTERM]
    assert job.saved == {0}


def test_a_handler_that_lets_the_training_go_on_is_let_and_there_is_no_second_save(job: Job) -> None:
    before = "signal.signal(signal.SIGTERM, lambda *_: print('later', flush=True))"
    job.start(1, before=before)
    (process,) = job.processes
    assert process.stdout is not None
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "later\n"
    process.send_signal(signal.SIGINT)
    assert job.ends()[0] == [-signal.SIGINT]
    assert job.saved == {0}


def test_an_ignored_signal_saves_and_ends_once_there_is_something_to_save(job: Job) -> None:
    # a shell's background jobs have SIGINT ignored
    job.start(1, before="signal.signal(signal.SIGINT, signal.SIG_IGN)").send(signal.SIGINT)
    assert job.ends()[0] == [-signal.SIGINT]
    assert job.saved == {0}


def test_handlers_that_call_each_other_end_the_process_all_the_same(job: Job) -> None:
    after = """
ours = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *given: ours(*given))
exception_checkpoint.register_signals()
"""
    job.start(1, after=after).send(signal.SIGTERM)
    assert job.ends()[0] == [-signal.SIGTERM]
    assert job.saved == {0}


def test_a_save_may_end_the_process_itself(job: Job) -> None:
    after = "def last(*given):\n    save(*given)\n    sys.exit(3)\n" + _CONFIG.format("").replace("save,", "last,")
    job.start(1, "", after=after).send(signal.SIGTERM)
    assert job.ends()[0] == [3]
    assert job.saved == {0}


def test_forked_helpers_save_nothing(job: Job) -> None:
    after = """
alive, told = os.pipe()
child = os.fork()
if not child:
    os.write(told, b"!")
    signal.pause()
    os._exit(0)
os.read(alive, 1)
os.kill(child, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
"""
    job.start(1, after=after)
    assert job.saved == set()
    job.send(signal.SIGTERM)
    assert job.ends()[0] == [-signal.SIGTERM]
    assert job.saved == {0}


def test_what_the_first_healthy_rank_of_each_group_saved_is_the_whole_model_to_a_conversion(job: Job) -> None:
    demo, saved = job.directory / "demo", job.directory / "saved"
    make_demo(parse_url(str(demo)))
    copying = """
import shutil
def copy(source, target):
    shutil.copytree(source, target)
folder = f"rank_{os.environ['RANK']}"
given = (os.path.join("demo/checkpoint", folder), os.path.join("saved", folder))
exception_checkpoint.set_config(copy, given, True, [[0, 2], [1, 3], [4, 6], [5, 7]])
"""
    job.start(8, "", faults=["0", "7"], after=copying).send(signal.SIGTERM)
    assert job.ends()[0] == [-signal.SIGTERM] * 8
    assert {path.name for path in saved.iterdir()} == {"rank_1", "rank_2", "rank_4", "rank_5"}
    strategies = {"source_strategy": str(demo / "strategy"), "target_strategy": str(demo / "target_strategy")}
    options: dict[str, Any] = {**strategies, "step": "3_1200"}
    convert(build_request(source=str(demo / "checkpoint"), target=str(job.directory / "of_all"), **options))
    rescued = job.directory / "of_saved"
    convert(build_request(source=str(saved), target=str(rescued), recover=True, fault_ranks="0,7", **options))
    assert read_tree(rescued) == read_tree(job.directory / "of_all")


def test_a_handler_of_ones_own_is_made_by_its_public_name() -> None:
    assert elastic.ExceptionHandler is ExceptionHandler
    assert isinstance(elastic.exception_checkpoint, elastic.ExceptionHandler)


def test_importing_costs_little() -> None:
    heavy = "print(sorted({'numpy', 'fsspec', 'pydantic', 'prefect', 'reshard.core.checkpoint'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"import reshard.elastic, sys; {heavy}"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_the_one_that_is_there_has_nothing_to_save() -> None:
    assert isinstance(exception_checkpoint, ExceptionHandler)
    state = exception_checkpoint
    assert (state._save_func, state._args, state._group_info) == (None, (), None)
    assert (state._partial_save, state._replicas) == (False, 1)


def test_the_configuration_is_kept(handler: ExceptionHandler) -> None:
    handler.set_config(print, ["a", 1], True, ((0, 2), [1, 3]), 5)
    assert (handler._save_func, handler._args, handler._partial_save) == (print, ("a", 1), True)
    assert (handler._group_info, handler._replicas) == ([[0, 2], [1, 3]], 5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"save_func": "save"}, TypeError, "save_func must be callable, not 'save'"),
        ({"args": "model"}, TypeError, "args must be a tuple of save_func's arguments, not 'model'"),
        ({"partial_save": 1}, TypeError, "partial_save must be True or False, not 1"),
        ({"replicas": 2.0}, TypeError, "replicas must be an integer, not 2.0"),
        ({"replicas": True}, TypeError, "replicas must be an integer, not True"),
        ({"replicas": 0}, ValueError, "replicas must be 1 to 5, not 0"),
        ({"replicas": 6}, ValueError, "replicas must be 1 to 5, not 6"),
        ({"group_info": {0: [1]}}, TypeError, "group_info must be a list of lists of ranks"),
        ({"group_info": [0, 1]}, TypeError, "group_info must be a list of lists of ranks"),
        ({"group_info": [["0", 1]]}, TypeError, "group_info must hold ranks, which are integers, not '0'"),
        ({"group_info": [[-1, 1]]}, ValueError, "group_info holds rank -1, which is negative"),
        ({"group_info": []}, ValueError, "group_info holds no group, or an empty one"),
        ({"group_info": [[0, 1, 2, 3], []]}, ValueError, "group_info holds no group, or an empty one"),
        ({"group_info": [[0, 1], [1, 2, 3]]}, ValueError, "group_info holds ranks 1 more than once"),
        ({"group_info": [[1, 2]]}, ValueError, "group_info has no group for rank 0, which is this process's"),
        (
            {"group_info": [[0, 1], [2]]},
            ValueError,
            "does not hold each of the job's 4 ranks: 3 are missing or foreign",
        ),
        ({"group_info": [[0, 1], [2, 3], [4]]}, ValueError, "does not hold each of the job's 4 ranks: 4"),
    ],
)
def test_a_wrong_configuration_is_refused_and_changes_nothing(
    handler: ExceptionHandler, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {"save_func": print, "args": (), **change}
    with pytest.raises(error, match=message):
        handler.set_config(**given)
    assert handler._save_func is None


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "first", "WORLD_SIZE": "4"}, "the environment's RANK is 'first', not a number"),
        ({"RANK_ID": "4", "RANK_SIZE": "4"}, "the environment says rank 4 of 4 ranks, which there cannot be"),
        ({"RANK": "1"}, "the number of ranks is unknown: set WORLD_SIZE, or give group_info"),
    ],
)
def test_an_environment_that_does_not_tell_ranks_is_refused(
    handler: ExceptionHandler, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    _environment(monkeypatch, environment)
    with pytest.raises(InputError, match=message):
        handler.set_config(print, (), partial_save=True)


def test_a_process_without_a_rank_is_the_only_one(handler: ExceptionHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    _environment(monkeypatch, {})
    handler.set_config(print, (), partial_save=True)
    assert handler._groups() == [range(1)]
    assert handler.check_resumable_model()


@pytest.mark.parametrize(
    ("group_info", "faults", "resumable"),
    [
        (None, [], True),
        (None, ["0", "1", "2"], True),
        (None, ["0", "1", "2", "3"], False),
        ([[0, 2], [1, 3]], ["0", "1"], True),
        ([[0, 2], [1, 3]], ["1", "3"], False),
        ([[0], [1], [2], [3]], ["3"], False),
    ],
)
def test_a_model_can_be_resumed_if_every_group_has_a_healthy_rank(
    handler: ExceptionHandler,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group_info: list[list[int]] | None,
    faults: list[str],
    resumable: bool,
) -> None:
    handler.set_config(print, (), True, group_info)
    _faults(tmp_path, monkeypatch, faults)
    assert handler.check_resumable_model() is resumable
    assert not handler.check_resumable_model(has_file=lambda _: False)


def test_files_that_are_not_there_count_as_lost(handler: ExceptionHandler) -> None:
    handler.set_config(print, (), False, [[0, 2], [1, 3]])
    assert handler.check_resumable_model(has_file={2, 3}.__contains__)
    assert not handler.check_resumable_model(has_file={0, 2}.__contains__)


def test_a_rank_that_did_not_save_loads_the_file_of_the_first_healthy_one_of_its_group(
    handler: ExceptionHandler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler.set_config(print, (), False, [[0, 2], [1, 3]])
    _faults(tmp_path, monkeypatch, ["0"])
    assert [handler.loading_rank(rank) for rank in range(4)] == [2, 1, 2, 3]
    handler.set_config(print, (), True, [[0, 2], [1, 3]])
    assert [handler.loading_rank(rank) for rank in range(4)] == [2, 1, 2, 1]
    assert handler.loading_rank() == 2
    with pytest.raises(ValueError, match="rank 4 is in none of the groups"):
        handler.loading_rank(4)
    _faults(tmp_path, monkeypatch, ["0", "2"])
    with pytest.raises(InputError, match="rank 0: all ranks of its group 0, 2 are faulty"):
        handler.loading_rank(0)


def test_groups_of_several_pipeline_stages_are_found_by_who_is_in_them(
    handler: ExceptionHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    _environment(monkeypatch, {"RANK": "4", "WORLD_SIZE": "8"})
    handler.set_config(print, (), True, [[0, 2], [1, 3], [4, 6], [5, 7]])
    assert handler._must_save()
    assert handler.loading_rank(6) == 4


def test_the_iteration_to_go_back_to() -> None:
    assert [regular_iteration(iteration, 100) for iteration in (99, 100, 1234)] == [0, 100, 1200]


@pytest.mark.parametrize(
    ("data", "ranks"),
    [
        (b"", []),
        (b'{"status":"initializing"}', []),
        (b'{"FaultRankIds":["0","12"],"CreatTime":1}', ["0", "12"]),
        (b'{"FaultRankIds":"[\\"0\\", \\"12\\"]"}', ["0", "12"]),
        (b'{"FaultRankIds":""}', []),
        (b'["07", 3]', ["7", "3"]),
    ],
)
def test_lists_of_faulty_ranks(data: bytes, ranks: list[str]) -> None:
    assert parse_fault_ranks(data, "faults") == ranks


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"FaultRankIds":', "faults: the list of faulty ranks is not valid JSON: damaged"),
        (b"\xff", "faults: the list of faulty ranks is not valid JSON: damaged"),
        (b"[" * 100_000, "faults: the list of faulty ranks is not valid JSON: damaged"),
        (b'{"FaultRankIds": 3}', "faults: has int where the list of faulty ranks should be: damaged"),
        (b'["-1"]', "faults: '-1' in the list of faulty ranks is not a rank: damaged"),
        (b"[true]", "faults: 'True' in the list of faulty ranks is not a rank: damaged"),
        (b"[[1]]", "is not a rank: damaged"),
        (b" " * (2**20 + 1), "faults: has more than 1048576 bytes: not a list of faulty ranks"),
    ],
)
def test_damaged_lists_of_faulty_ranks_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        parse_fault_ranks(data, "faults")


def test_a_list_that_cannot_be_read_is_an_error(handler: ExceptionHandler, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FAULT_RANKS_VARIABLE, str(tmp_path))
    with pytest.raises(InputError, match="the list of faulty ranks cannot be read: Is a directory"):
        handler._get_fault_npus()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv(FAULT_RANKS_VARIABLE, str(tmp_path / "pipe"))
    with pytest.raises(InputError, match="the list of faulty ranks cannot be read: a pipe, not a regular file"):
        handler._get_fault_npus()


@pytest.mark.skipif(os.path.exists(MINDX_FAULT_RANKS_FILE), reason="a cluster's own list is there")
def test_without_a_list_there_are_no_faults(handler: ExceptionHandler, monkeypatch) -> None:
    monkeypatch.delenv(FAULT_RANKS_VARIABLE)
    assert handler._get_fault_npus() == []


def test_other_threads_cannot_register(caplog: pytest.LogCaptureFixture) -> None:
    before = signal.getsignal(signal.SIGTERM)
    made: list[ExceptionHandler] = []
    thread = threading.Thread(target=lambda: made.append(ExceptionHandler()))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before or signal.getsignal(signal.SIGTERM) == before
    assert "can be registered by the main thread only" in caplog.text
    assert made[0]._save_func is None

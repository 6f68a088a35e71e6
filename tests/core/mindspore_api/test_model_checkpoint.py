"""ModelCheckpoint in a loop without MindSpore; `make conformance` compares its files with those of MindSpore's."""

import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reshard import mindspore
from reshard.core.mindspore_api import background, checkpoint_manager, model_checkpoint, saving, saving_process
from reshard.core.mindspore_api.model_checkpoint import free_prefix
from reshard.core.storage import publishing
from reshard.core.storage.urls import Location
from reshard.mindspore import CheckpointConfig, ModelCheckpoint, RunContext
from tests.support.places import PROJECT

STEPS = 4


def state(network: Any, step: int) -> RunContext:
    return RunContext(train_network=network, cur_step_num=step, cur_epoch_num=(step - 1) // STEPS + 1, batch_num=STEPS)


def trained(checkpoint: ModelCheckpoint, steps: int = 6, network: dict[str, np.ndarray] | None = None) -> None:
    """Trains: each step adds 1 to the weight."""
    network = {"w": np.zeros(3, np.float32)} if network is None else network
    for step in range(1, steps + 1):
        checkpoint.step_begin(state(network, step))
        network["w"] += 1
        checkpoint.step_end(state(network, step))
    checkpoint.end(state(network, steps))


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def weight(path: Path | str) -> float:
    [value] = set(mindspore.load_checkpoint(str(path))["w"].tolist())  # type: ignore[union-attr]
    return value


def test_every_second_step_and_the_last_three_are_kept(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(2, keep_checkpoint_max=3))
    trained(checkpoint, 9)
    assert names(tmp_path) == ["net-2_2.ckpt", "net-2_4.ckpt", "net-3_1.ckpt"]
    assert [weight(tmp_path / name) for name in names(tmp_path)] == [6, 8, 9]
    assert checkpoint.latest_ckpt_file_name == str(tmp_path / "net-3_1.ckpt")


def test_by_default_it_saves_each_step_beside_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained(ModelCheckpoint(), 6)
    assert names(tmp_path) == [f"CKP-{each}.ckpt" for each in ("1_2", "1_3", "1_4", "2_1", "2_2")]


class Modules:
    """Used like a network of other frameworks."""

    def __init__(self) -> None:
        self.weight = np.ones(3, np.float32)

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"w": self.weight}


@pytest.mark.parametrize(
    "network",
    [
        Modules(),
        SimpleNamespace(parameters_and_names=lambda: [("w", np.ones(3, np.float32))]),
        {"w": np.ones(3, np.float32)},
    ],
)
def test_what_can_be_saved(tmp_path: Path, network: Any) -> None:
    checkpoint = ModelCheckpoint(directory=str(tmp_path))
    checkpoint.step_end(state(network, 1))
    assert weight(checkpoint.latest_ckpt_file_name) == 1


def test_another_network_than_the_one_trained(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(
        directory=str(tmp_path), config=CheckpointConfig(saved_network={"w": np.full(3, 5, np.float32)})
    )
    trained(checkpoint, 1)
    assert weight(tmp_path / "CKP-1_1.ckpt") == 5


def test_information_of_the_training(tmp_path: Path) -> None:
    generator = SimpleNamespace(get_state=lambda: np.arange(4, dtype=np.uint8))
    info = ["epoch_num", "step_num", {"step_num": 100, "rate": 0.5, "random": generator}]
    checkpoint = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(append_info=info))
    trained(checkpoint, 5)
    loaded = mindspore.load_checkpoint(checkpoint.latest_ckpt_file_name)
    assert {name: np.asarray(loaded[name]).tolist() for name in ("epoch_num", "step_num", "rate", "random")} == {
        "epoch_num": 2,
        "step_num": 105,
        "rate": 0.5,
        "random": [0, 1, 2, 3],
    }


def test_names_by_functions(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(
        lambda args: f"at_{args.cur_step_num}", lambda args: str(tmp_path / f"epoch_{args.cur_epoch_num}")
    )
    trained(checkpoint, 5)
    assert names(tmp_path / "epoch_1") == ["at_1.ckpt", "at_2.ckpt", "at_3.ckpt", "at_4.ckpt"]
    assert names(tmp_path / "epoch_2") == ["at_5.ckpt"]


def test_a_training_that_is_rolled_back_counts_from_the_step_it_was_rolled_back_to(tmp_path: Path) -> None:
    network = {"w": np.zeros(3, np.float32)}
    checkpoint = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(3))
    for step in range(1, 8):
        checkpoint.step_end(state(network, step))
    assert names(tmp_path) == ["net-1_3.ckpt", "net-2_2.ckpt"]
    rolled_back = state(network, 4)
    rolled_back.original_args().last_save_ckpt_step = 3
    checkpoint.step_end(rolled_back)
    assert rolled_back.original_args().last_save_ckpt_step is None
    assert checkpoint._get_last_trigger_step == 3
    checkpoint.step_end(state(network, 5))
    network["w"] += 1
    checkpoint.step_end(state(network, 6))
    assert [weight(tmp_path / name) for name in names(tmp_path)] == [0, 1]


def test_steps_that_mindspores_model_asks_for(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(4))
    assert (checkpoint._get_save_checkpoint_steps, checkpoint._get_last_trigger_step) == (4, 0)
    trained(checkpoint, 9)
    assert checkpoint._get_last_trigger_step == 9
    seconds = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(None, 60))
    assert seconds._get_save_checkpoint_steps is None


class TestOldFiles:
    def test_files_that_vanish_meanwhile_are_no_failure(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        checkpoint = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(keep_checkpoint_max=1))
        network = {"w": np.ones(3, np.float32)}
        checkpoint.step_end(state(network, 1))
        list_names = publishing.list_names

        def listed_and_gone(location: Location) -> list[str]:
            found = list_names(location)
            for name in found:
                os.remove(tmp_path / name)
            return found

        monkeypatch.setattr(checkpoint_manager, "list_names", listed_and_gone)
        checkpoint.step_end(state(network, 2))
        assert names(tmp_path) == ["net-1_2.ckpt"]

    def test_the_last_one_stays_until_the_next_is_whole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        checkpoint = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(keep_checkpoint_max=1))
        network = {"w": np.ones(3, np.float32)}
        checkpoint.step_end(state(network, 1))

        def disk_is_full(*_: Any) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(model_checkpoint, "save_values", disk_is_full)
        with pytest.raises(OSError, match="no space left"):
            checkpoint.step_end(state(network, 2))
        assert names(tmp_path) == ["net-1_1.ckpt"]
        assert checkpoint.latest_ckpt_file_name == str(tmp_path / "net-1_1.ckpt")

    def test_files_of_an_earlier_training_are_not_touched(self, tmp_path: Path) -> None:
        for _ in range(3):
            trained(ModelCheckpoint("net", str(tmp_path), CheckpointConfig(keep_checkpoint_max=1)), 3)
        assert names(tmp_path) == ["net-1_3.ckpt", "net_1-1_3.ckpt", "net_2-1_3.ckpt"]

    @pytest.mark.parametrize(
        ("found", "of_breakpoints", "expected"),
        [
            ([], False, "net"),
            (["net-1_1.ckpt"], False, "net_1"),
            (["net-1_1.safetensors"], False, "net_1"),
            (["net-1_1.ckpt", "net_4-1_1.ckpt"], False, "net_5"),
            (["network-1_1.ckpt", "other-1_1.ckpt", "net-1_1.txt", "net"], False, "net"),
            (["net-1_1_breakpoint.ckpt"], False, "net"),
            (["net-1_1.ckpt"], True, "net"),
            (["net-1_1_breakpoint.ckpt", "net_1-1_1_breakpoint.ckpt"], True, "net_2"),
        ],
    )
    def test_names_that_are_taken(self, found: list[str], of_breakpoints: bool, expected: str) -> None:
        assert free_prefix(found, "net", of_breakpoints=of_breakpoints) == expected


class TestInTheBackground:
    @pytest.fixture
    def gate(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
        """Files are written when it opens."""
        gate = threading.Event()
        save = saving.save_values

        def save_later(*arguments: Any) -> None:
            assert gate.wait(20)
            save(*arguments)

        monkeypatch.setattr(model_checkpoint, "save_values", save_later)
        yield gate
        gate.set()

    @pytest.mark.parametrize("way", [True, "thread"])
    def test_training_goes_on_meanwhile(self, tmp_path: Path, gate: threading.Event, way: bool | str) -> None:
        checkpoint = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(4, async_save=way))
        network = {"w": np.zeros(3, np.float32)}
        for step in range(1, 7):
            network["w"] += 1
            checkpoint.step_end(state(network, step))
        assert names(tmp_path) == []
        assert checkpoint.latest_ckpt_file_name == ""
        gate.set()
        checkpoint.end(state(network, 6))
        assert [weight(tmp_path / name) for name in names(tmp_path)] == [4, 6]

    def test_a_save_that_takes_too_long_is_told(
        self, tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = iter([0.0, 0.0, 10.0, 15.0])  # around the waits before either save
        monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        checkpoint = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(async_save=True))
        network = {"w": np.zeros(3, np.float32)}
        checkpoint.step_end(state(network, 1))
        gate.set()
        with pytest.warns(UserWarning, match=r"net-1_1.ckpt was still being saved .* training waited 5\.0 s"):
            checkpoint.step_end(state(network, 2))
        checkpoint.end(state(network, 2))
        assert names(tmp_path) == ["net-1_1.ckpt", "net-1_2.ckpt"]

    def test_a_failure_is_told_at_the_next_step_and_raised_at_the_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        checkpoint = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(2, 0, 1, async_save=True))
        network = {"w": np.zeros(3, np.float32)}
        checkpoint.step_end(state(network, 2))
        checkpoint._background.wait()
        with monkeypatch.context() as broken:
            broken.setattr(model_checkpoint, "save_values", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
            checkpoint.step_end(state(network, 4))
            checkpoint._background.wait()
        assert "net-1_4.ckpt was not saved" in caplog.text
        with pytest.warns(RuntimeWarning, match="net-1_4.ckpt was not saved: .*full"):
            checkpoint.step_end(state(network, 5))
        checkpoint.step_end(state(network, 6))
        with pytest.raises(OSError, match=r"1 checkpoints were not saved:\n.*net-1_4.ckpt: .*full") as caught:
            checkpoint.end(state(network, 6))
        assert caught.value.errno == 28
        assert names(tmp_path) == ["net-2_2.ckpt"]

    def test_leaving_the_block_waits_and_raises(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(model_checkpoint, "save_values", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        with (
            pytest.raises(OSError, match="1 checkpoints were not saved"),
            ModelCheckpoint("net", str(tmp_path), CheckpointConfig(async_save=True)) as checkpoint,
        ):
            checkpoint.step_end(state({"w": np.zeros(3)}, 1))


HELD = """
import os, signal
from reshard.core.mindspore_api import saving_process

write_values = saving_process.write_values

def held(location, kind, entries, contents_of):
    def held_contents(name):
        with open({fifo!r}, "w") as fifo:
            fifo.write(str(os.getpid()))
        while {forever}:
            signal.pause()
        with open({fifo!r}) as fifo:
            fifo.read()
        return contents_of(name)

    write_values(location, kind, entries, held_contents)

saving_process.write_values = held
saving_process.main()
"""
"""A saving process that tells its number once its file is begun, then waits: for ever, or for the pipe's other end."""


def writer_of(fifo: Path) -> int:
    """The number of a process that waits in the middle of its file."""
    shown = subprocess.run(["cat", fifo], capture_output=True, check=True, timeout=60)
    return int(shown.stdout)


class TestInAProcess:
    """`async_save="process"`."""

    @pytest.fixture
    def gate(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A pipe: the process writes its file when somebody opens it."""
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nread ignored < "{gate}"\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(python))
        return gate

    def checkpoint(self, directory: Path, **config: Any) -> ModelCheckpoint:
        return ModelCheckpoint("net", str(directory), CheckpointConfig(async_save="process", **config))

    def test_training_goes_on_meanwhile(self, tmp_path: Path, gate: Path) -> None:
        network = {"w": np.zeros(3, np.float32)}
        checkpoint = self.checkpoint(tmp_path / "out", save_checkpoint_steps=4)
        for step in range(1, 7):
            network["w"] += 1
            checkpoint.step_end(state(network, step))
        assert (names(tmp_path / "out"), checkpoint.latest_ckpt_file_name) == ([], "")
        gate.write_text("go\n")
        checkpoint._background.wait()
        assert weight(checkpoint.latest_ckpt_file_name) == 4

    @pytest.mark.parametrize(
        "config",
        [
            {"crc_check": True, "append_info": ["epoch_num", {"note": "text", "rate": 0.5}]},
            {"format": "safetensors", "append_info": ["epoch_num"]},
        ],
    )
    def test_the_file_is_that_of_a_save_at_once(self, tmp_path: Path, config: dict[str, Any]) -> None:
        network = {
            "transposed": np.arange(12, dtype=np.float32).reshape(3, 4).T,
            "scalar": np.array(3, np.int64),
            "none": np.zeros((0, 2), np.float32),
            "half": np.arange(5, dtype=np.float16),
        }
        with self.checkpoint(tmp_path / "process", **config) as checkpoint:
            checkpoint.step_end(state(network, 1))
        ModelCheckpoint("net", str(tmp_path / "once"), CheckpointConfig(**config)).step_end(state(network, 1))
        [saved] = (tmp_path / "process").iterdir()
        once = tmp_path / "once" / saved.name
        assert saved.read_bytes() == once.read_bytes()
        assert saved.stat().st_mode == once.stat().st_mode

    def test_an_encrypted_file(self, tmp_path: Path) -> None:
        key = b"0123456789abcdef"
        with self.checkpoint(tmp_path, enc_key=key) as checkpoint:
            checkpoint.step_end(state({"w": np.full(3, 7, np.float32)}, 1))
        loaded = mindspore.load_checkpoint(checkpoint.latest_ckpt_file_name, dec_key=key)
        assert np.asarray(loaded["w"]).tolist() == [7, 7, 7]

    def test_a_failure_is_told_at_the_next_step_and_raised_at_the_end(self, tmp_path: Path) -> None:
        network = {"w": np.zeros(3, np.float32)}
        checkpoint = self.checkpoint(tmp_path / "out", save_checkpoint_steps=2)
        (tmp_path / "out" / "net-1_4.ckpt" / "in the way").mkdir(parents=True)
        checkpoint.step_end(state(network, 4))
        checkpoint._background.wait()
        with pytest.warns(RuntimeWarning, match="net-1_4.ckpt was not saved: .*irectory"):
            checkpoint.step_end(state(network, 5))
        with pytest.raises(OSError, match=r"1 checkpoints were not saved:\n.*net-1_4.ckpt: .*irectory") as caught:
            checkpoint.end(state(network, 5))
        assert caught.value.errno == errno.EISDIR
        assert names(tmp_path / "out") == ["net-1_4.ckpt", "net-2_1.ckpt"]

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_a_killed_process_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
    ) -> None:
        monkeypatch.setattr(saving_process, "_COMMAND", f"import os; os.kill(os.getpid(), {int(number)})")
        checkpoint = self.checkpoint(tmp_path)
        checkpoint.step_end(state({"w": np.zeros(3)}, 1))
        with pytest.raises(OSError, match=f"net-1_1.ckpt: the process that was saving it ended early: {number.name}"):
            checkpoint.__exit__(None, None, None)
        assert names(tmp_path) == []

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_one_that_is_killed_while_it_writes_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
    ) -> None:
        os.mkfifo(fifo := tmp_path / "fifo")
        monkeypatch.setattr(saving_process, "_COMMAND", HELD.format(fifo=str(fifo), forever=True))
        checkpoint = self.checkpoint(tmp_path / "out")
        checkpoint.step_end(state({"w": np.zeros(3)}, 1))
        saving = writer_of(fifo)
        assert len(names(tmp_path / "out")) == 1
        os.kill(saving, number)
        with pytest.raises(OSError, match=f"ended early: {number.name}$"):
            checkpoint.__exit__(None, None, None)
        assert names(tmp_path / "out") == []

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_one_that_is_killed_as_its_file_is_created_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
    ) -> None:
        killed = (
            "import builtins, os\n"
            "from reshard.core.mindspore_api import saving_process\n"
            "create = builtins.open\n"
            "def killed(path, mode='r', *more, **options):\n"
            "    file = create(path, mode, *more, **options)\n"
            f"    if mode == 'xb': os.kill(os.getpid(), {int(number)})\n"
            "    return file\n"
            "builtins.open = killed\n"
            "saving_process.main()\n"
        )
        monkeypatch.setattr(saving_process, "_COMMAND", killed)
        checkpoint = self.checkpoint(tmp_path)
        checkpoint.step_end(state({"w": np.zeros(3)}, 1))
        with pytest.raises(OSError, match=f"ended early: {number.name}$"):
            checkpoint.__exit__(None, None, None)
        assert names(tmp_path) == []

    def test_a_file_outlives_a_training_that_is_killed(self, tmp_path: Path) -> None:
        out, fifo, done = tmp_path / "out", tmp_path / "fifo", tmp_path / "done"
        os.mkfifo(fifo)
        os.mkfifo(done)
        self.killed_training(tmp_path, HELD.format(fifo=str(fifo), forever=False) + f"open({str(done)!r}, 'w')")
        assert all(name.endswith(".tmp") for name in names(out))
        # the next training leaves alone what is still being written
        ModelCheckpoint("net", str(out), CheckpointConfig()).step_end(state({"w": np.zeros(3, np.float32)}, 2))
        assert len(names(out)) == 2
        fifo.write_text("go on")
        subprocess.run(["cat", done], check=True, timeout=60)
        assert names(out) == ["net-1_1.ckpt", "net-1_2.ckpt"]
        assert (weight(out / "net-1_1.ckpt"), weight(out / "net-1_2.ckpt")) == (7, 0)

    def test_what_a_killed_training_and_its_killed_process_left_is_removed_by_a_save_when_no_node_can_be_writing_it(
        self, tmp_path: Path
    ) -> None:
        out, fifo = tmp_path / "out", tmp_path / "fifo"
        os.mkfifo(fifo)
        saving = os.pidfd_open(self.killed_training(tmp_path, HELD.format(fifo=str(fifo), forever=True)))
        signal.pidfd_send_signal(saving, signal.SIGKILL)
        assert select.select([saving], [], [], 60) == ([saving], [], [])  # it has ended
        os.close(saving)
        [left] = names(out)
        (out / "net-1_9.ckpt").write_bytes(b"of an earlier training")
        other = ".other-1_1.ckpt.01234567.tmp"
        (out / other).write_bytes(b"of another prefix")
        checkpoint = ModelCheckpoint("net", str(out), CheckpointConfig())
        checkpoint.step_end(state({"w": np.zeros(3)}, 1))
        assert names(out) == sorted([left, other, "net-1_9.ckpt", "net_1-1_1.ckpt"]), "another node may be writing it"
        for name in (left, other):
            os.utime(out / name, (time.time() - 1000,) * 2)
        checkpoint.step_end(state({"w": np.zeros(3)}, 2))
        assert names(out) == [other, "net-1_9.ckpt", "net_1-1_1.ckpt", "net_1-1_2.ckpt"]

    def killed_training(self, directory: Path, saving: str) -> int:
        """Kill a training whose saving process is in the middle of its file; return that process's number."""
        script = (
            "import sys, numpy as np\n"
            "from reshard.core.mindspore_api import saving_process\n"
            "from reshard.mindspore import CheckpointConfig, ModelCheckpoint, RunContext\n"
            f"saving_process._COMMAND = {saving!r}\n"
            f"checkpoint = ModelCheckpoint('net', {str(directory / 'out')!r}, CheckpointConfig(async_save='process'))\n"
            "weights = {'w': np.full(3, 7, np.float32)}\n"
            "checkpoint.step_end(RunContext(train_network=weights, cur_step_num=1, cur_epoch_num=1, batch_num=4))\n"
            "sys.stdin.read()\n"
        )
        training = subprocess.Popen([sys.executable, "-c", script], cwd=PROJECT, stdin=subprocess.PIPE)
        number = writer_of(directory / "fifo")
        training.kill()
        training.communicate(timeout=60)
        return number

    def test_a_directory_in_memory_is_refused(self) -> None:
        checkpoint = ModelCheckpoint("net", "memory://training", CheckpointConfig(async_save="process"))
        with pytest.raises(ValueError, match="memory:// keeps files in the memory of this process"):
            checkpoint.step_end(state({"w": np.zeros(3)}, 1))


class TestBreakpoint:
    def fails(self, directory: Path, config: CheckpointConfig) -> None:
        def train() -> None:
            network = {"w": np.zeros(3, np.float32)}
            with ModelCheckpoint("net", str(directory), config) as checkpoint:
                for step in range(1, 10):
                    checkpoint.step_begin(state(network, step))
                    if step == 6:
                        raise KeyboardInterrupt
                    network["w"] += 1
                    checkpoint.step_end(state(network, step))

        with pytest.raises(KeyboardInterrupt):
            train()

    def fails_early(self, directory: Path, context: RunContext) -> ValueError:
        with pytest.raises(ValueError, match="bad data") as caught:
            self.begun(ModelCheckpoint("net", str(directory), CheckpointConfig(exception_save=True)), context)
        return caught.value

    def begun(self, checkpoint: ModelCheckpoint, context: RunContext) -> None:
        with checkpoint:
            checkpoint.begin(context)
            raise ValueError("bad data")

    def test_a_failure_is_saved(self, tmp_path: Path) -> None:
        config = CheckpointConfig(4, exception_save=True, append_info=["step_num"], crc_check=True)
        self.fails(tmp_path, config)
        self.fails(tmp_path, config)
        assert names(tmp_path) == [
            "net-1_4.ckpt",
            "net-2_2_breakpoint.ckpt",
            "net_1-1_4.ckpt",
            "net_1-2_2_breakpoint.ckpt",
        ]
        loaded = mindspore.load_checkpoint(str(tmp_path / "net-2_2_breakpoint.ckpt"), crc_check=True)
        assert (np.asarray(loaded["w"]).tolist(), int(np.asarray(loaded["step_num"]))) == ([5, 5, 5], 6)

    def test_it_has_to_be_asked_for(self, tmp_path: Path) -> None:
        self.fails(tmp_path, CheckpointConfig(4))
        assert names(tmp_path) == ["net-1_4.ckpt"]

    def test_before_the_first_step(self, tmp_path: Path) -> None:
        self.fails_early(tmp_path, RunContext(train_network={"w": np.ones(2)}, batch_num=STEPS))
        assert names(tmp_path) == ["net-0_0_breakpoint.ckpt"]

    def test_a_failure_that_cannot_be_saved_keeps_its_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(model_checkpoint, "save_values", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        [note] = self.fails_early(tmp_path, state({"w": np.ones(2)}, 1)).__notes__
        assert "the checkpoint of the breakpoint could not be saved" in note
        assert "full" in note


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"prefix": 5}, ValueError, "'prefix' has to be a function, or a string without '/', not 5"),
            ({"prefix": "a/b"}, ValueError, "without '/', not 'a/b'"),
            ({"directory": 5}, TypeError, "'directory' has to be a function or a string, not <class 'int'>"),
            ({"directory": " "}, ValueError, "'directory' is blank"),
            ({"config": {}}, TypeError, "'config' has to be a CheckpointConfig, not <class 'dict'>"),
        ],
    )
    def test_arguments(self, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error) as caught:
            ModelCheckpoint(**arguments)
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        ("config", "network", "error", "message"),
        [
            (
                {},
                SimpleNamespace(parameter_layout_dict={"w": []}, state_dict=dict),
                ValueError,
                "the network holds slices, which are not gathered here: set integrated_save=False",
            ),
            ({}, 5, TypeError, "the network to save has to be a mapping of names to arrays"),
            ({}, {}, ValueError, "there is nothing to save"),
            ({}, {"w": "a" * 3, 5: np.ones(2)}, TypeError, "strings for keys"),
        ],
    )
    def test_networks(
        self, tmp_path: Path, config: dict[str, Any], network: Any, error: type[Exception], message: str
    ) -> None:
        checkpoint = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(**config))
        with pytest.raises(error, match=message):
            checkpoint.step_end(state(network, 1))
        assert names(tmp_path) == []

    def test_a_function_that_returns_no_prefix(self, tmp_path: Path) -> None:
        checkpoint = ModelCheckpoint(lambda _: "a/b", str(tmp_path))
        with pytest.raises(ValueError, match="'prefix' has to return a string without '/', not 'a/b'"):
            checkpoint.step_end(state({"w": np.ones(2)}, 1))

    def test_a_directory_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match="file/net"):
            ModelCheckpoint("net", str(tmp_path / "file" / "net"))

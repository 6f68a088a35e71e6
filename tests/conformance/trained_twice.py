"""Runs in MindSpore's environment: trainings with MindSpore's ModelCheckpoint and reshard's as callbacks side by side.

Both save the same network at the same steps, so names, files that retention leaves and bytes have to be equal. Writes
a JSON list of differences.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import mindspore
import mindspore.dataset
import numpy as np
from mindspore import nn

import reshard.mindspore

_KEY = b"0123456789abcdef"
_EPOCHS, _STEPS = 3, 4


@dataclass(frozen=True)
class Case:
    """A training.

    Attributes:
        config: arguments of CheckpointConfig.
        names: arguments of ModelCheckpoint, by a function of the directory.
        seconds: how long each step takes, by a clock of our own.
        fails: the step in which the training ends by an exception; 0: none.
        runs: how often it is run into the same directories.
        in_background: whether files may come later than the step.
    """

    config: dict[str, Any]
    names: Callable[[str], dict[str, Any]] = lambda directory: {"prefix": "net", "directory": directory}
    seconds: float = 1.0
    fails: int = 0
    runs: int = 1
    in_background: bool = False


class Net(nn.Cell):  # type: ignore[misc]
    """Parameters of several dtypes, some of them not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Dense(4, 3)
        self.two = nn.Dense(3, 2)
        half = mindspore.Tensor(np.linspace(-1, 1, 6).reshape(2, 3), mindspore.bfloat16)
        self.half = mindspore.Parameter(half, name="half", requires_grad=False)
        self.count = mindspore.Parameter(mindspore.Tensor(7, mindspore.int32), name="count", requires_grad=False)

    def construct(self, x: Any) -> Any:
        """Two layers."""
        return self.two(self.one(x))


def _info() -> list[Any]:
    return ["epoch_num", "step_num", {"a": 5, "b": 0.5, "c": True, "note": "text", "t": mindspore.Tensor([1.5, 2.5])}]


def _generator() -> Any:
    generator = mindspore.Generator()
    generator.manual_seed(5)
    return generator


def _by_functions(directory: str) -> dict[str, Any]:
    return {
        "prefix": lambda state: f"at_{state.cur_step_num}",
        "directory": lambda state: f"{directory}/epoch_{state.cur_epoch_num}",
    }


CASES = {
    "defaults": Case({}),
    "every third step, two kept": Case({"save_checkpoint_steps": 3, "keep_checkpoint_max": 2}),
    "one kept": Case({"keep_checkpoint_max": 1}),
    "a CRC and information": Case({"crc_check": True, "append_info": _info()}),
    "numbers that go on": Case({"append_info": ["epoch_num", "step_num", {"epoch_num": 5, "step_num": 100}]}),
    "a generator": Case({"append_info": [{"random": _generator()}]}),
    "safetensors": Case({"format": "safetensors", "append_info": ["epoch_num", {"a": 5}]}),
    "AES-GCM": Case({"enc_key": _KEY, "save_checkpoint_steps": 5}),
    "SM4-CBC": Case({"enc_key": _KEY, "enc_mode": "SM4-CBC", "save_checkpoint_steps": 5}),
    "by seconds": Case({"save_checkpoint_steps": 0, "save_checkpoint_seconds": 100}, seconds=35),
    "by seconds, none at the end": Case({"save_checkpoint_steps": None, "save_checkpoint_seconds": 0}),
    "one in three minutes": Case({"keep_checkpoint_max": 0, "keep_checkpoint_per_n_minutes": 3}, seconds=50),
    "one in a minute, slowly": Case({"keep_checkpoint_max": 0, "keep_checkpoint_per_n_minutes": 1}, seconds=70),
    "in a thread": Case({"async_save": True, "keep_checkpoint_max": 3}, in_background=True),
    "in a process": Case({"async_save": "process", "crc_check": True}, in_background=True),
    "another network": Case({"saved_network": Net()}),
    "names by functions": Case({}, _by_functions),
    "three times": Case({"save_checkpoint_steps": 5}, runs=3),
    "a breakpoint": Case({"exception_save": True, "save_checkpoint_steps": 4}, fails=7),
    "a breakpoint with information": Case({"exception_save": True, "append_info": ["epoch_num"]}, fails=2, runs=2),
    "a failure without a breakpoint": Case({"save_checkpoint_steps": 2}, fails=7),
}


class StopError(Exception):
    """The end of a training that fails."""


@dataclass
class Clock:
    """Time as both sides see it, files' times included."""

    now: float = field(default_factory=lambda: float(int(time.time())) - 10_000)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Replace `time.time`."""
        real, time.time = time.time, lambda: self.now
        try:
            yield
        finally:
            time.time = real


class Watch(mindspore.train.Callback):  # type: ignore[misc]
    """After each step: sets the times of new files, compares the two directories, and lets time pass."""

    def __init__(self, case: Case, clock: Clock, differences: list[str]) -> None:
        self._case = case
        self._clock = clock
        self._differences = differences
        self._seen: set[Path] = set()

    def on_train_step_begin(self, run_context: Any) -> None:
        """Fail, if this is the step."""
        if run_context.original_args().cur_step_num == self._case.fails:
            raise StopError

    def on_train_step_end(self, run_context: Any) -> None:
        """Compare names."""
        for path in _files(Path()):
            if path not in self._seen and not self._case.in_background:
                self._seen.add(path)
                os.utime(path, (self._clock.now, self._clock.now))
        names = [_names(side) for side in ("theirs", "ours")]
        if names[0] != names[1] and not self._case.in_background:
            step = run_context.original_args().cur_step_num
            self._differences.append(f"after step {step}: {names[1]}, MindSpore has {names[0]}")
        self._clock.now += self._case.seconds


def _run(name: str, case: Case) -> list[str]:
    directory = Path(name.replace(" ", "_").replace(",", ""))
    directory.mkdir()
    os.chdir(directory)
    differences: list[str] = []
    clock = Clock()
    with clock.in_force():
        for _ in range(case.runs):
            _train(case, clock, differences)
    if _names("theirs") != _names("ours"):
        differences.append(f"at the end: {_names('ours')}, MindSpore has {_names('theirs')}")
    if not any(Path("theirs").rglob("net*")) and case.config.get("save_checkpoint_steps", 1) is not None:
        differences += [] if any(Path("theirs").rglob("at_*")) else ["nothing was saved"]
    for path in _files(Path("theirs")):
        ours = Path("ours", *path.parts[1:])
        if ours.is_file():
            differences += _differences(path, ours, case)
    os.chdir("..")
    return [f"training, {name}: {each}" for each in differences]


def _train(case: Case, clock: Clock, differences: list[str]) -> None:
    mindspore.set_seed(1)
    net = Net()
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    inputs = np.random.default_rng(1).random((2 * _STEPS, 4), np.float32)
    data = {"x": inputs, "y": inputs[:, :2] * 3}
    dataset = mindspore.dataset.NumpySlicesDataset(data, shuffle=False).batch(2)
    model = mindspore.train.Model(net, nn.MSELoss(), optimizer)
    theirs = _callback(mindspore.train, "theirs", case)
    ours = _callback(reshard.mindspore, "ours", case)
    watch = Watch(case, clock, differences)
    with suppress(StopError):
        model.train(_EPOCHS, dataset, callbacks=[ours, theirs, watch], dataset_sink_mode=False)
    latest = [Path(each.latest_ckpt_file_name).name for each in (theirs, ours)]
    if latest[0] != latest[1]:
        differences.append(f"the latest file is {latest[1]!r}, MindSpore's is {latest[0]!r}")


def _callback(module: ModuleType, side: str, case: Case) -> Any:
    return module.ModelCheckpoint(**case.names(side), config=module.CheckpointConfig(**case.config))


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _names(side: str) -> list[str]:
    return [str(Path(*path.parts[1:])) for path in _files(Path(side))]


def _differences(theirs: Path, ours: Path, case: Case) -> list[str]:
    """Whether both hold the same: the same bytes, or, if encrypted or .safetensors, each side loads the other's."""
    if theirs.stat().st_mode != ours.stat().st_mode:
        return [f"{ours} has the mode {ours.stat().st_mode:o}, MindSpore's {theirs.stat().st_mode:o}"]
    options: dict[str, Any] = {"format": case.config.get("format", "ckpt")}
    if "enc_key" in case.config:
        options |= {"dec_key": _KEY, "dec_mode": case.config.get("enc_mode", "AES-GCM")}
    elif options["format"] == "ckpt" or ours.suffix == ".meta":
        return [] if theirs.read_bytes() == ours.read_bytes() else [f"{ours} has other bytes"]
    by_mindspore = [
        {name: value.float().asnumpy() for name, value in mindspore.load_checkpoint(str(path), **options).items()}
        for path in (theirs, ours)
    ]
    by_reshard = [reshard.mindspore.load_checkpoint(str(path), **options) for path in (theirs, ours)]
    return [
        f"{ours}: what {reader} loads differs"
        for reader, (one, other) in (("MindSpore", by_mindspore), ("reshard", by_reshard))
        if list(one) != list(other) or not all(np.array_equal(one[name], other[name]) for name in one)
    ]


def main() -> None:
    """Run all trainings."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE, device_target="CPU")
    differences = [line for name, case in CASES.items() for line in _run(name, case)]
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    differences += _run("as a graph", Case({}))
    sys.stdout.write(f"\n{json.dumps(differences)}\n")


if __name__ == "__main__":
    main()

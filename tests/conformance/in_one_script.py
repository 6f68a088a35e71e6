"""Runs in MindSpore's environment: Cells and CheckpointConfigs that go from one side's functions to the other's.

Each of `CHECKS` is called in a directory of its own; a failed assertion ends the script.
"""

import os
import stat
import sys
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn, train

import reshard.mindspore as ours

STEPS = 4
WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


class Net(nn.Cell):  # type: ignore[misc]
    """Parameters of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Dense(3, 2)
        self.half = mindspore.Parameter(mindspore.Tensor(np.zeros(3), mindspore.bfloat16), name="half")
        self.count = mindspore.Parameter(mindspore.Tensor(0, mindspore.int32), name="count")
        self.bytes = mindspore.Parameter(mindspore.Tensor([0, 0], mindspore.int8), name="bytes")
        self.packed = mindspore.Parameter(mindspore.Tensor(np.zeros(2, np.int8), mindspore.qint4x2), name="packed")


def held(net: Net) -> dict[str, Any]:
    """The values of a network."""
    found = {}
    for parameter in net.get_parameters():
        numbers = parameter.float() if parameter.dtype == mindspore.bfloat16 else parameter
        found[parameter.name] = str(parameter.dtype), numbers.asnumpy().tolist()
    return found


def saved(directory: str, name: str = "net.ckpt") -> dict[str, Any]:
    """A file of a network whose values differ from a new one's; and the values."""
    net = Net()
    net.one.weight.set_data(mindspore.Tensor(WEIGHT))
    net.half.set_data(mindspore.Tensor([1, 2, 3], mindspore.bfloat16))
    net.count.set_data(mindspore.Tensor(7, mindspore.int32))
    net.bytes.set_data(mindspore.Tensor([5, -6], mindspore.int8))
    net.packed.set_data(mindspore.Tensor(np.array([17, 35], np.int8), mindspore.qint4x2))
    Path(directory).mkdir(exist_ok=True)
    mindspore.save_checkpoint(net, f"{directory}/{name}", append_dict={"note": "text"})
    return held(net)


def a_cell_is_filled_by_each_function() -> None:
    """As MindSpore's own functions fill it."""
    wanted = saved("parts")
    net = Net()
    assert ours.load_param_into_net(net, ours.load_checkpoint("parts/net.ckpt")) == ([], ["note"])
    assert held(net) == wanted
    net = Net()
    assert ours.load_param_into_net(net, mindspore.load_checkpoint("parts/net.ckpt")) == ([], ["note"])
    assert held(net) == wanted
    net = Net()
    assert ours.load_checkpoint("parts/net.ckpt", net)["note"] == "text"
    assert held(net) == wanted
    net = Net()
    assert ours.load_segmented_checkpoints("parts", net)["note"] == "text"
    assert held(net) == wanted
    loaded = mindspore.load_checkpoint("parts/net.ckpt", choice_func=lambda name: name != "packed")
    arrays = {
        name: np.zeros_like(value)
        for name, value in ours.load_checkpoint("parts/net.ckpt").items()
        if name in loaded and isinstance(value, np.ndarray)
    }
    ours.load_param_into_net(arrays, loaded)
    assert {name: array.tolist() for name, array in arrays.items()} == {name: wanted[name][1] for name in arrays}


def a_cell_is_filled_by_the_distributed_functions() -> None:
    """Whole parameters, from a directory of `.safetensors`, and from the only rank's `.ckpt`."""
    net = Net()
    mindspore.save_checkpoint(net, "whole.safetensors", format="safetensors")
    wanted = held(net)
    Path("whole").mkdir()
    os.rename("whole.safetensors", "whole/part0.safetensors")
    other = Net()
    other.one.weight.set_data(mindspore.Tensor(WEIGHT))
    answer = ours.load_distributed_checkpoint(other, format="safetensors", unified_safetensors_dir="whole")
    assert answer == ([], []), answer
    assert held(other) == wanted


def what_does_not_fit_is_refused_as_by_mindspore() -> None:
    """The same exceptions from both."""
    calls: list[tuple[type[Exception], dict[str, Any], dict[str, Any]]] = [
        (RuntimeError, {"one.weight": np.zeros((3, 3), np.float32)}, {}),
        (RuntimeError, {"one.weight": np.zeros((2, 3), np.int32)}, {}),
        (RuntimeError, {"one.weight": np.zeros((2, 3), np.float16)}, {"strict_load": True}),
        (TypeError, {"half": np.zeros(3, np.float32)}, {"remove_redundancy": True}),
        (TypeError, {"half": 5}, {}),
    ]
    for error, values, options in calls:
        theirs = {
            name: mindspore.Parameter(mindspore.Tensor(value), name=name) if isinstance(value, np.ndarray) else value
            for name, value in values.items()
        }
        for function, given in ((mindspore.load_param_into_net, theirs), (ours.load_param_into_net, values)):
            try:
                function(Net(), given, **options)
            except error:
                continue
            raise AssertionError(f"{function.__module__}: {given} with {options} is taken")


def a_cell_has_no_parameters_to_send_in_one_stage() -> None:
    """Neither here nor there; and a network that is no Cell is refused by both."""
    ours.sync_pipeline_shared_parameters(Net())
    for function in (mindspore.parallel.sync_pipeline_shared_parameters, ours.sync_pipeline_shared_parameters):
        try:
            function(5)
        except TypeError:
            continue
        raise AssertionError(f"{function.__module__}: 5 is taken for a network")


def a_configuration_of_either_side_goes_with_the_others_callback() -> None:
    """Files, their names and bytes are the same with the configuration of either side."""
    settings: dict[str, Any] = {
        "save_checkpoint_steps": 2,
        "keep_checkpoint_max": 2,
        "integrated_save": False,
        "append_info": ["epoch_num", {"step_num": 100, "rate": 0.5}],
        "crc_check": True,
    }
    files = {}
    for name, callback, config in (
        ("theirs", train.ModelCheckpoint, train.CheckpointConfig),
        ("their callback", train.ModelCheckpoint, ours.CheckpointConfig),
        ("our callback", ours.ModelCheckpoint, train.CheckpointConfig),
        ("ours", ours.ModelCheckpoint, ours.CheckpointConfig),
    ):
        checkpoint = callback("net", f"{os.getcwd()}/{name}", config(**settings))
        mindspore.set_seed(1)
        net = Net()
        for step in range(1, 8):
            args = {"train_network": net, "cur_epoch_num": 1, "cur_step_num": step, "batch_num": 10}
            net.count.set_data(mindspore.Tensor(step, mindspore.int32))
            checkpoint.step_end(ours.RunContext(**args))
            for path in Path(name).iterdir():
                if path.suffix == ".ckpt" and path.stat().st_mtime > 10**6:
                    os.utime(path, (step, step))
        assert checkpoint._get_save_checkpoint_steps == 2
        assert checkpoint._get_last_trigger_step == 6, checkpoint._get_last_trigger_step
        directory_mode = stat.S_IMODE(Path(name).stat().st_mode)
        content = {path.name: (path.stat().st_mode, path.read_bytes()) for path in Path(name).glob("*.ckpt")}
        files[name] = (directory_mode, content)
    assert set(files["theirs"][1]) == {"net-1_4.ckpt", "net-1_6.ckpt"}, set(files["theirs"][1])
    for name, found in files.items():
        assert found == files["theirs"], name


def a_configuration_is_still_frozen_and_ours() -> None:
    """Though it is MindSpore's class as well."""
    config = ours.CheckpointConfig(5, enc_key=b"0123456789abcdef")
    assert isinstance(config, train.CheckpointConfig)
    assert isinstance(config, ours.CheckpointConfig)
    assert (config.save_checkpoint_steps, config.append_dict, config.map_param_inc) == (5, None, False)
    assert config.get_checkpoint_policy() == train.CheckpointConfig(5).get_checkpoint_policy()
    try:
        config.format = "safetensors"  # type: ignore[misc]
    except AttributeError:
        return
    raise AssertionError("it can be changed")


CHECKS = [
    a_cell_is_filled_by_each_function,
    a_cell_is_filled_by_the_distributed_functions,
    what_does_not_fit_is_refused_as_by_mindspore,
    a_cell_has_no_parameters_to_send_in_one_stage,
    a_configuration_of_either_side_goes_with_the_others_callback,
    a_configuration_is_still_frozen_and_ours,
]


def main() -> None:
    """Run all checks."""
    here = os.getcwd()
    for check in CHECKS:
        os.mkdir(f"{here}/{check.__name__}")
        os.chdir(f"{here}/{check.__name__}")
        check()
    sys.stdout.write(f"\n{len(CHECKS)} checks\n")


if __name__ == "__main__":
    main()

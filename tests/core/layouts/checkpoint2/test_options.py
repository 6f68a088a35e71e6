"""Options of targets that are a Checkpoint 2.0, what they refuse, and the directory that they name."""

import pytest

from tests.support.requests import refusal, request


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"common": ["steps=4"]},
            "common: MindFormers knows no key 'steps' in common.json: epoch_num, step_num,",
        ),
        ({"common": ["global_step"]}, "common: 'global_step' is not KEY=VALUE"),
        ({"common": ["step_num=1", "step_num=2"]}, "common: step_num is given twice"),
        ({"common": ["step_num=true"]}, "common: step_num is a number or null in common.json, not 'true'"),
        ({"common": ["step_num=NaN"]}, "common: step_num is a number or null in common.json, not 'NaN'"),
        ({"iteration": "new"}, "iteration 'new': must be the number of an iteration, such as 40"),
        ({"format": "ckpt"}, "layout 'checkpoint2': writes .safetensors files: leave out 'format'"),
        ({"prefix": "net_"}, "prefix 'net_': the files of a Checkpoint 2.0 have fixed names: leave it out"),
        ({"write_crc": True}, "write_crc True: MindFormers does not read CRCs in a Checkpoint 2.0: leave it out"),
        (
            {"append_info": ["epoch_num=1"]},
            "append_info: a Checkpoint 2.0 keeps its training state in common.json: set values with 'common'",
        ),
        (
            {"encrypt_key": "env:KEY"},
            "encrypt_key: a Checkpoint 2.0 has .safetensors files, which MindSpore cannot encrypt",
        ),
        ({"max_shard_size": "1GB"}, "max_shard_size '1GB': only valid with layout='unified'"),
        ({"layout": "ranks", "iteration": "4"}, "iteration '4': only valid with layout='checkpoint2'"),
        ({"layout": "ranks", "common": ["step_num=4"]}, "common: only valid with layout='checkpoint2'"),
        (
            {"target": "out/iteration_00000040", "iteration": "4"},
            "iteration '4': the target is named after iteration 40: leave it out",
        ),
    ],
)
def test_refused_options(options: dict[str, object], reason: str) -> None:
    assert refusal(**{"layout": "checkpoint2"} | options).startswith(reason)


def test_an_iteration_of_another_layout_is_not_compared_with_the_targets_name() -> None:
    message = refusal(target="out/iteration_00000040", layout="dcp", iteration="4")
    assert message.startswith("iteration '4': only valid with layout='checkpoint2' or ")


@pytest.mark.parametrize(
    ("target", "iteration", "directory"),
    [
        ("out/", "4", "out/iteration_00000004"),
        ("s3://bucket/out", "40", "s3://bucket/out/iteration_00000040"),
        ("out/iteration_00000040", "40", "out/iteration_00000040"),
        ("out/iteration_00000040/", "", "out/iteration_00000040/"),
    ],
)
def test_the_directory_of_an_iteration(target: str, iteration: str, directory: str) -> None:
    asked = request(target=target, layout="checkpoint2", iteration=iteration)
    assert asked.target_directory == directory

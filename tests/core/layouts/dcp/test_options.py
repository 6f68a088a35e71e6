"""Options of DCP targets, and what they refuse."""

import pytest

from tests.support.requests import refusal


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"format": "ckpt"}, "layout 'dcp': writes .distcp files: leave out 'format'"),
        ({"format": "safetensors"}, "layout 'dcp': writes .distcp files: leave out 'format'"),
        ({"prefix": "x"}, "prefix 'x': the files of a DCP checkpoint have fixed names"),
        ({"write_crc": True}, "write_crc True: the files of a DCP checkpoint have a CRC of each tensor anyway"),
        ({"append_info": ["a=1"]}, "append_info: a DCP checkpoint holds only tensors"),
        ({"remove_redundancy": True}, "remove_redundancy True: a DCP checkpoint has every slice once"),
        ({"encrypt_key": "env:KEY"}, "encrypt_key: PyTorch has no encrypted files"),
        ({"shards": 3, "target_strategy": "s"}, "shards 3: the target strategy says how many files there are"),
        ({"shards": 3, "layout": "unified"}, "shards 3: only valid with layout='torch_dist' or layout='dcp'"),
        ({"shards": -1}, "shards -1: must be at least 0"),
    ],
)
def test_refused_options(options: dict[str, object], reason: str) -> None:
    assert refusal(**{"layout": "dcp"} | options).startswith(reason)

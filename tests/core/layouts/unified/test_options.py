"""Options of unified targets, and what they refuse."""

from typing import Any

import pytest

from tests.support.requests import refusal, request


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"target_strategy": "x.ckpt"}, "layout 'unified': its tensors are whole, so leave out 'target"),
        ({"format": "ckpt"}, "layout 'unified': writes .safetensors files: leave out 'format'"),
        ({"prefix": "net_"}, "prefix 'net_': the files of a unified target have fixed names"),
        (
            {"encrypt_key": "env:KEY"},
            "encrypt_key: a unified target has .safetensors files, which MindSpore cannot encrypt",
        ),
        ({"remove_redundancy": True}, "remove_redundancy True: a unified target holds everything once"),
        ({"max_shard_size": "0"}, "max_shard_size '0': must be at least 1 byte"),
        ({"layout": "ranks", "max_shard_size": "1GB"}, "max_shard_size '1GB': only valid with layout='unified'"),
        (
            {"layout": "ranks", "unified_naming": "mindspore"},
            "unified_naming 'mindspore': only valid with layout='",
        ),
        ({"layout": "ranks", "like": "model"}, "like 'model': only valid with layout='unified'"),
        (
            {"like": "model", "unified_naming": "mindspore"},
            "unified_naming 'mindspore': 'like' makes a Hugging Face directory: leave out one of the two",
        ),
    ],
)
def test_refused_options(options: dict[str, Any], reason: str) -> None:
    assert refusal(**{"layout": "unified"} | options).startswith(reason)


def test_a_target_is_modelled_on_the_directory_that_like_names() -> None:
    assert request(layout="unified", like="model").reference == "model"
    assert request().reference == ""


def test_a_key_is_not_answered_with_a_format_that_the_layout_lacks() -> None:
    assert "choose the format ckpt" not in refusal(layout="unified", format="safetensors", encrypt_key="env:KEY")

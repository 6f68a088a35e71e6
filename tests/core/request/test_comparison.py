"""Options of a comparison: each side by itself, and how wrong options are refused."""

import pytest

from reshard.core.errors import InputError
from reshard.core.request.comparison import build_comparison
from reshard.core.runtime.keys import EncryptionMode


def test_each_side_has_its_own_options_and_the_shared_ones() -> None:
    request = build_comparison(
        a="/a",
        b="/b",
        strategy_a="/a.ckpt",
        step_b="10_5",
        decrypt_key_b="env:KEY",
        decrypt_mode_b="SM4-CBC",
        include=["w*"],
        workers=3,
    )
    a, b = request.side("a"), request.side("b")
    assert (a.source, a.source_strategy, a.step, a.decrypt_key) == ("/a", "/a.ckpt", "", "")
    assert (b.source, b.source_strategy, b.step, b.decrypt_key) == ("/b", "", "10_5", "env:KEY")
    assert b.decrypt_mode is EncryptionMode.SM4_CBC
    assert a.include == b.include == ["w*"]
    assert a.workers == b.workers == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"a": ""}, "a '': must not be empty"),
        ({"b": "s3://user:password@bucket/x"}, "b: a URL must not carry credentials"),
        ({"strategy_a": "s3://user:password@bucket/x"}, "strategy_a: a URL must not carry credentials"),
        ({"step_b": "10_"}, "step_b '10_': must be EPOCH_STEP"),
        ({"decrypt_key_a": "secret"}, "decrypt_key_a: must be env:NAME, file:PATH or block:NAME"),
        ({"decrypt_mode_b": "AES-CBC"}, "decrypt_mode_b 'AES-CBC': needs a key"),
        ({"storage_b": "secret"}, "storage_b: must be env:NAME, file:PATH or block:NAME"),
        ({"include": [""]}, "include: a pattern is empty"),
        ({"memory_limit": "1MiB"}, "memory_limit '1MiB': must be at least 16MiB"),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_comparison(**{"a": "/a", "b": "/b"} | options)
    assert str(caught.value).startswith(message)

"""Keys of assets, which Prefect checks, and the setting; what is recorded is in tests/flows/test_assets.py."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prefect.assets import Asset

from reshard.core.errors import InputError
from reshard.core.text.secrets import scrubbed
from reshard.tasks.assets import asset_key, records_assets

PATHS = st.text(st.characters(codec=None), min_size=1).map(lambda text: f"/{text}")
"""Any text, lone surrogates too: names of files need not be UTF-8."""


def url_of(key: str) -> str:
    """What a key that is not too long was made of."""
    return re.sub(
        "(?:~[0-9A-F]{2})+",
        lambda match: bytes.fromhex(match[0].replace("~", "")).decode("utf-8", "surrogatepass"),
        key,
    )


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("/data/llama/for_inference", "file:///data/llama/for_inference"),
        ("/data/rank_{rank}/a b%.ckpt", "file:///data/rank_~7Brank~7D/a~20b~25.ckpt"),
        ("/data/模型", "file:///data/模型"),
        ("/data/~\udcff", "file:///data/~7E~ED~B3~BF"),
        ("s3://bucket/run=3/out", "s3://bucket/run=3/out"),
        ("simplecache::s3://bucket/out", "url://simplecache::s3://bucket/out"),
    ],
)
def test_keys_are_urls(url: str, key: str) -> None:
    assert asset_key(url) == key
    Asset(key=key)


@given(PATHS)
@example("/~7E")
@example("/s3://bucket")
def test_any_path_has_a_valid_key_of_its_own(path: str) -> None:
    key = asset_key(path)
    Asset(key=key)
    if "~-" not in key:
        assert url_of(key) == f"file://{scrubbed(path)}"


@given(st.text(min_size=1))
def test_any_url_has_a_valid_key(url: str) -> None:
    Asset(key=asset_key(url))
    Asset(key=asset_key(f"s3://{url}"))


@pytest.mark.parametrize("character", ["a", "{"])
def test_long_paths_differ_at_their_ends(character: str) -> None:
    paths = [f"/{character * length}" for length in range(100, 1000)] + [f"/{character * 999}{end}" for end in "bcd"]
    keys = {asset_key(path) for path in paths}
    assert len(keys) == len(paths)
    assert max(map(len, keys)) == 512
    for key in keys:
        Asset(key=key)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://user:pass@host/out", "https://…@host/out"),
        ("s3://bucket/out?X-Amz-Signature=0123abcd", "s3://bucket/out~3FX-Amz-Signature=…"),
    ],
)
def test_keys_carry_no_credentials(url: str, key: str) -> None:
    assert asset_key(url) == key


@pytest.mark.parametrize(
    ("text", "is_on"), [(None, False), ("", False), ("0", False), ("false", False), ("1", True), ("yes", True)]
)
def test_the_setting(text: str | None, is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if text is None:
        monkeypatch.delenv("RESHARD_RECORD_ASSETS", raising=False)
    else:
        monkeypatch.setenv("RESHARD_RECORD_ASSETS", text)
    assert records_assets() is is_on


def test_a_mistyped_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHARD_RECORD_ASSETS", "always")
    with pytest.raises(InputError, match="RESHARD_RECORD_ASSETS=always: is neither on nor off: set it to 1 or 0"):
        records_assets()

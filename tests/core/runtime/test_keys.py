"""Keys are said by name, looked up once, and never repeated."""

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

from reshard.core.errors import ConversionError, InputError
from reshard.core.request.conversion import build_request
from reshard.core.request.resources import key_names
from reshard.core.runtime.keys import (
    EncryptionMode,
    Key,
    KeyNames,
    keys_in_force,
    named_keys,
    needed_target_key,
    resolve_keys,
    source_key,
    target_key,
)

SECRET = "hunter2-hunter2!"
GCM, CBC, SM4 = EncryptionMode.AES_GCM, EncryptionMode.AES_CBC, EncryptionMode.SM4_CBC


def source(name: str, mode: EncryptionMode = GCM, **resolvers: Callable[[str], Any]) -> bytes:
    key = resolve_keys(KeyNames(source=name, source_mode=mode), resolvers).source
    assert key is not None
    return key.secret


def refusal(name: str, mode: EncryptionMode = GCM, **resolvers: Callable[[str], Any]) -> str:
    with pytest.raises(InputError) as caught:
        source(name, mode, **resolvers)
    error: BaseException | None = caught.value
    while error is not None:  # a traceback shows where it came from
        assert SECRET not in f"{error!r} {vars(error)}"
        error = error.__cause__ or error.__context__
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (SECRET, SECRET.encode()),
        ("schlüssel-äöu", "schlüssel-äöu".encode()),
        ("hex:" + "0aFF" * 8, b"\x0a\xff" * 8),
        ("base64:" + "AAEC" * 8, b"\x00\x01\x02" * 8),
        ("hexagonal:123456", b"hexagonal:123456"),
    ],
)
def test_what_a_key_is(text: str, secret: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEY", text)
    assert source("env:KEY") == secret
    for end in ("", "\n", "\r\n"):
        (tmp_path / "key").write_bytes(f"{text}{end}".encode())
        assert source(f"file:{tmp_path}/key") == secret
    assert source("block:key", block=lambda name: text) == secret


def test_a_block_may_take_digits_for_a_number() -> None:
    assert source("block:key", block=lambda name: 1234567890123456) == b"1234567890123456"
    assert "is not the text of a key" in refusal("block:key", block=lambda name: True)


def test_only_one_line_end_is_none_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"123456789012345\n\n")
    assert source(f"file:{tmp_path}/key") == b"123456789012345\n"


@pytest.mark.parametrize(
    ("mode", "length", "wanted"),
    [(GCM, 15, "AES takes 16, 24 or 32"), (CBC, 0, "AES takes 16, 24 or 32"), (SM4, 32, "SM4 takes 16")],
)
def test_the_wrong_length(mode: EncryptionMode, length: int, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", (SECRET * 2)[:length])
    assert refusal("env:KEY", mode) == f"env:KEY: the key has {length} bytes; {wanted}"


def test_what_cannot_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal("env:NOT_THERE") == "env:NOT_THERE: there is no such variable in the environment"
    assert refusal(f"file:{tmp_path}/no") == f"file:{tmp_path}/no: cannot be read: No such file or directory"
    assert "blocks are Prefect's" in refusal("block:key")
    (tmp_path / "binary").write_bytes(b"\xff" * 16)
    assert refusal(f"file:{tmp_path}/binary") == f"file:{tmp_path}/binary: is not text, in UTF-8"
    assert refusal("block:key", block=lambda name: {"key": SECRET}).startswith("block:key: is not the text of a key")
    for kind in ("hex", "base64"):
        monkeypatch.setenv("KEY", f"{kind}:{SECRET}")
        assert refusal("env:KEY") == f"env:KEY: its value is not {kind}"
    assert refusal(SECRET).startswith("the name of a key must be env:NAME, file:PATH or block:NAME")


def test_a_resolver_that_fails_is_not_the_users_mistake() -> None:
    def resolver(name: str) -> str:
        raise ConversionError("no server")

    with pytest.raises(ConversionError, match="no server"):
        source("block:key", block=resolver)


def test_they_are_in_force_inside_the_block_and_in_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "a" * 16)
    monkeypatch.setenv("B", "b" * 16)
    request = build_request(
        source="from", target="to", decrypt_key="env:A", decrypt_mode="AES-CBC", encrypt_key="env:B"
    )
    assert key_names(request) == KeyNames("env:A", CBC, "env:B", GCM)
    with named_keys(key_names(request)), ThreadPoolExecutor(1) as pool:
        assert source_key() == Key(b"a" * 16, CBC, "env:A")
        assert pool.submit(copy_context().run, target_key).result() == Key(b"b" * 16, GCM, "env:B")
        with keys_in_force(resolve_keys(KeyNames())):
            assert source_key() is target_key() is None
    assert source_key() is target_key() is None
    with pytest.raises(InputError, match="its key is not in force"):
        needed_target_key()


def test_the_same_names_are_looked_up_once() -> None:
    asked = []

    def resolver(name: str) -> str:
        asked.append(name)
        return SECRET

    names = KeyNames(source="block:key")
    with named_keys(names, {"block": resolver}), named_keys(names):
        assert asked == ["key"]


def test_nothing_shows_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", SECRET)
    names = KeyNames(source="env:KEY")
    keys = resolve_keys(names)
    assert SECRET not in f"{keys!r} {keys} {keys.source!r} {pickle.dumps(names)!r}"

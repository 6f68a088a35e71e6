"""Values kept under names: in the environment, in files, and where resolvers know them."""

import os
from pathlib import Path

import pytest

from reshard.core.errors import InputError
from reshard.core.request.conversion import build_request
from reshard.core.runtime.named_values import NAME_ADVICE, Resolver, value_of


@pytest.mark.parametrize("field", ["source_storage", "target_storage"])
@pytest.mark.parametrize(
    "value",
    [
        *('{"key": "k", "secret": "hunter2"}', "hunter2", "vault:hunter2", "env:", "env: hunter2"),
        *("env:hunter2-and-more", "env:2hunter2", 'env:{"key": "hunter2"}', "env:hunter2\n"),
        *("block:hunter2/and+more==", "block:Hunter2", 'block:{"key": "hunter2"}'),
    ],
)
def test_storage_options_themselves_are_refused_without_repeating_them(field: str, value: str) -> None:
    with pytest.raises(InputError) as caught:
        build_request(**{"source": "a", "target": "b", field: value})
    assert str(caught.value) == f"{field}: {NAME_ADVICE}"
    assert "hunter2" not in str(caught.value.__cause__)


@pytest.mark.parametrize("name", ["", "env:MINIO", "file:/etc/reshard/minio.json", "file:~/a b.json", "block:minio"])
def test_a_name_of_storage_options_is_taken(name: str) -> None:
    assert build_request(source="a", target="b", source_storage=name).source_storage == name


def resolve(name: str, **resolvers: Resolver) -> object:
    return value_of(name, resolvers, "must be a name")


def test_values_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "from the environment")
    (tmp_path / "secret").write_text("from a file\n")
    assert resolve("env:SECRET") == "from the environment"
    assert resolve(f"file:{tmp_path}/secret") == "from a file\n"
    assert resolve("block:x", block=lambda name: {"name": name}) == {"name": "x"}


def test_names_without_a_value(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(bytes(2**20 + 1))
    os.mkfifo(tmp_path / "pipe")

    def unknown(_: str) -> object:
        raise InputError("there is no such block")

    for name, message in {
        "hunter2": "must be a name",
        "env:hunter2-and-more": "must be a name",
        "block:hunter2/and+more": "must be a name",
        "env:NO_SUCH_VARIABLE": "env:NO_SUCH_VARIABLE: there is no such variable in the environment",
        f"file:{tmp_path}/nothing": "cannot be read: No such file or directory",
        f"file:{tmp_path}/binary": "is not text, in UTF-8",
        f"file:{tmp_path}/large": "has more than 1048576 bytes",
        f"file:{tmp_path}/pipe": "a pipe, not a regular file",
        "block:x": "block:x: there is no such block",
    }.items():
        with pytest.raises(InputError) as caught:
            resolve(name, block=unknown)
        assert message in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_blocks_need_a_resolver() -> None:
    with pytest.raises(InputError, match="block:x: blocks are Prefect's, and known only to what runs with Prefect"):
        resolve("block:x")

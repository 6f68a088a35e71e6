"""Storage options by name: which URLs they open, where they come from, and that they are repeated nowhere."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

from reshard.core.errors import ConversionError, InputError
from reshard.core.request.conversion import build_request
from reshard.core.request.resources import storages_of
from reshard.core.storage.disk import LOCAL_DISK
from reshard.core.storage.fsspec_store import FsspecStore
from reshard.core.storage.named_options import named_storages, options_for
from reshard.core.storage.urls import parse_url

SECRET = "hunter2-hunter2"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`named("A", key=…)` keeps options in a variable and returns their name."""

    def keep(name: str, **options: Any) -> str:
        monkeypatch.setenv(name, json.dumps(options))
        return f"env:{name}"

    return keep


def refusal(name: str, **resolvers: Callable[[str], Any]) -> InputError:
    with pytest.raises(InputError) as caught, named_storages([("memory://a", name)], resolvers):
        raise AssertionError("entered")
    return caught.value


def opened_with(url: str) -> object:
    """The options that a URL's filesystem was opened with."""
    store = parse_url(url).store
    assert isinstance(store, FsspecStore)
    return store.fs.storage_options


# ---- which URLs ----


def test_what_is_at_and_below_a_url_is_opened_with_its_options(named: Callable[..., str]) -> None:
    a, b = named("A", mark="a"), named("B", mark="b")
    with named_storages([("memory://runs/1", a), ("memory://runs/1.new", b), ("memory://other", "")]):
        assert opened_with("memory://runs/1") == {"mark": "a"}
        assert opened_with("memory://runs/1/rank_0/x.ckpt") == {"mark": "a"}
        assert opened_with("memory://runs/1.old/x") == {}
        assert opened_with("memory://runs/1.new/x") == {"mark": "b"}
        assert opened_with("memory://other/x") == {}
        assert opened_with("memory://elsewhere") == {}
    assert opened_with("memory://runs/1") == {}


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("memory://runs/1/", {"mark": "b"}),
        ("memory://", {"mark": "b"}),
        ("s3a://runs/1", {"key": "k", "secret": "s"}),
        ("webhdfs:///runs/1", {"host": "namenode", "user": "me"}),
    ],
)
def test_a_place_is_found_again_by_what_it_is_told_as(
    url: str, options: dict[str, Any], named: Callable[..., str]
) -> None:
    with named_storages([(url, named("A", **options))]):
        place = parse_url(url).child("x")
        assert str(place) != f"{url.rstrip('/')}/x"
        assert options_for(str(place)) == options
        assert parse_url(str(place)) == place


def test_of_a_pattern_everything_below_its_fixed_part_counts(named: Callable[..., str]) -> None:
    with named_storages([("memory://runs/1/rank_{rank}/x.ckpt", named("A", mark="a"))]):
        for url in ("memory://runs/1", "memory://runs/1/rank_{rank}/x.ckpt", "memory://runs/1/rank_3/x.ckpt"):
            assert opened_with(url) == {"mark": "a"}
        assert opened_with("memory://runs/2") == {}


def test_local_paths_have_no_options(named: Callable[..., str], tmp_path: Path) -> None:
    name = named("A", key="k")
    with named_storages([(str(tmp_path), name), (f"file://{tmp_path}/b", name)]):
        assert parse_url(str(tmp_path)).store is LOCAL_DISK
        assert parse_url(f"file://{tmp_path}/b").path == str(tmp_path / "b")


def test_each_side_of_a_request_has_its_own(named: Callable[..., str]) -> None:
    request = build_request(
        source="memory://from/run",
        source_strategy="memory://cuts/source",
        source_storage=named("A", mark="a"),
        target="memory://to/run",
        target_strategy="memory://cuts/target",
        target_storage=named("B", mark="b"),
    )
    with storages_of(request):
        found = {url: options_for(f"memory://{url}/x") for url in ("from/run", "cuts/source", "to/run", "cuts/target")}
    assert found == {
        "from/run": {"mark": "a"},
        "cuts/source": {"mark": "a"},
        "to/run": {"mark": "b"},
        "cuts/target": {"mark": "b"},
    }


def test_a_side_without_a_name_has_no_options(named: Callable[..., str]) -> None:
    request = build_request(source="memory://from", source_storage=named("A", mark="a"), target="memory://from2")
    with storages_of(request):
        assert options_for("memory://from/x") == {"mark": "a"}
        assert options_for("memory://from2/x") == {}
        with storages_of(build_request(source="memory://from", target="memory://to")):
            assert options_for("memory://from/x") == {}


@pytest.mark.parametrize("inner", ["memory://runs/1", "memory://runs/1/deep/er", "memory:///runs/1/deep"])
def test_storages_that_urls_cannot_tell_apart_are_refused(named: Callable[..., str], inner: str) -> None:
    a, b = named("A", mark="a"), named("B", mark="b")
    for name, message in ((b, "env:B"), ("", "no storage named")):
        for pairs in ([("memory://runs/1/", a), (inner, name)], [(inner, name), ("memory://runs/1/", a)]):
            with pytest.raises(InputError, match="one is inside the other") as caught, named_storages(pairs):
                raise AssertionError("entered")
            assert f"{inner} ({message})" in str(caught.value)
            assert "memory://runs/1 (env:A)" in str(caught.value)
    with named_storages([("memory://runs/1", a), (inner, a)]):
        assert options_for(inner) == {"mark": "a"}


# ---- who knows of them ----


def test_other_threads_know_them(named: Callable[..., str]) -> None:
    with named_storages([("memory://runs", named("A", mark="a"))]), ThreadPoolExecutor(1) as pool:
        assert pool.submit(copy_context().run, options_for, "memory://runs/1").result() == {"mark": "a"}


def test_what_is_in_force_is_not_resolved_anew() -> None:
    asked: list[str] = []

    def resolver(name: str) -> dict[str, str]:
        asked.append(name)
        return {"mark": "a"}

    pairs = [("memory://runs/1", "block:x"), ("memory://runs/2", "block:x")]
    with named_storages(pairs, {"block": resolver}), named_storages(pairs):
        assert options_for("memory://runs/1") == {"mark": "a"}
    assert asked == ["x"]


def test_they_are_gone_after_a_failure(named: Callable[..., str]) -> None:
    with pytest.raises(KeyError), named_storages([("memory://runs", named("A", mark="a"))]):
        raise KeyError
    assert options_for("memory://runs") == {}


# ---- where they are ----


def test_options_are_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "storage.json").write_text('{"key": "k"}')
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (str(tmp_path / "storage.json"), "~/storage.json"):
        with named_storages([("memory://a", f"file:{path}")]):
            assert options_for("memory://a") == {"key": "k"}


@pytest.mark.parametrize("value", ['{"key": "k"}', {"key": "k"}])
def test_options_come_from_who_calls(value: object) -> None:
    with named_storages([("memory://a", "block:b")], {"block": lambda _: value}):
        assert options_for("memory://a") == {"key": "k"}


def test_a_variable_that_is_not_set() -> None:
    assert str(refusal("env:NOT_THERE")) == "env:NOT_THERE: there is no such variable in the environment"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = f"file:{tmp_path}/missing.json"
    assert str(refusal(missing)) == f"{missing}: cannot be read: No such file or directory"
    assert str(refusal(f"file:{tmp_path}")) == f"file:{tmp_path}: cannot be read: Is a directory"
    os.mkfifo(tmp_path / "pipe")
    assert str(refusal(f"file:{tmp_path}/pipe")).endswith("/pipe: cannot be read: a pipe, not a regular file")
    (tmp_path / "large").write_bytes(b" " * (2**20 + 1))
    assert str(refusal(f"file:{tmp_path}/large")).endswith("/large: cannot be read: has more than 1048576 bytes")


def test_a_block_without_prefect() -> None:
    assert str(refusal("block:b")) == (
        "block:b: blocks are Prefect's, and known only to what runs with Prefect; name env: or file:"
    )


def test_a_resolver_that_finds_nothing() -> None:
    def resolver(name: str) -> str:
        raise InputError("nothing is there")

    assert str(refusal("block:b", block=resolver)) == "block:b: nothing is there"


def test_a_resolver_that_fails_in_another_way_is_not_the_users_mistake() -> None:
    def resolver(name: str) -> str:
        raise ConversionError("no server")

    with (
        pytest.raises(ConversionError, match="no server"),
        named_storages([("memory://a", "block:b")], {"block": resolver}),
    ):
        raise AssertionError("entered")


@pytest.mark.parametrize(
    "text", ["", "key=" + SECRET, f'["{SECRET}"]', f'"{SECRET}"', f'{{"key": "{SECRET}"', "null", "5"]
)
def test_what_is_no_json_object_is_named_and_never_repeated(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("A", text)
    (tmp_path / "a").write_text(text)
    for name in ("env:A", f"file:{tmp_path}/a"):
        error: BaseException | None = refusal(name)
        assert str(error).startswith(f"{name}: is not a JSON object of storage options, such as {{")
        while error is not None:  # a traceback shows where it came from
            assert SECRET not in f"{error!r} {vars(error)}"
            error = error.__cause__ or error.__context__


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xff\xfe\x00")
    assert str(refusal(f"file:{tmp_path}/a")) == f"file:{tmp_path}/a: is not text, in UTF-8"


@pytest.mark.parametrize("name", ['{"secret": "hunter2-hunter2"}', "hunter2-hunter2", "vault:hunter2-hunter2", "env:"])
def test_what_is_no_name_is_refused_and_not_repeated(name: str) -> None:
    message = str(refusal(name))
    assert message.startswith("the name of storage options must be env:NAME, file:PATH or block:NAME")
    assert SECRET not in message


def test_options_are_not_shown_with_the_context(named: Callable[..., str]) -> None:
    with named_storages([("memory://runs", named("A", key=SECRET))]):
        shown = repr(list(copy_context().items()))
    assert "env:A" in shown
    assert SECRET not in shown

"""URLs and paths: what they name, how they are printed, and what is refused."""

import os
from pathlib import Path

import pytest

from reshard.core.errors import InputError
from reshard.core.storage.urls import parse_url


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_url("a/../b/").path == str(tmp_path / "b")
    assert parse_url(".").path == str(tmp_path)


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_url("~/models").path == str(tmp_path / "models")
    assert parse_url("~").path == str(tmp_path)


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert parse_url(str(tmp_path / "link" / "x")).path == str(tmp_path / "real" / "x")
    (tmp_path / "loop").symlink_to("loop")
    assert parse_url(str(tmp_path / "loop")).name == "loop"


@pytest.mark.parametrize("url", ["/data/run 1/", "file:///data/run 1", "local:///data/run 1", "//data/run 1//"])
def test_local_paths(url: str) -> None:
    location = parse_url(url)
    assert location.store.has_paths
    assert (location.path, location.name, str(location)) == ("/data/run 1", "run 1", "/data/run 1")


@pytest.mark.parametrize("path", ["/data/a::b", "/data/a:b@c", "/data/{rank}", "/data/50%", "/data/x?y#z", "/"])
def test_names_that_look_like_syntax_are_names(path: str) -> None:
    assert parse_url(path).path == path


def test_memory_is_not_local() -> None:
    location = parse_url("memory://bucket/run/")
    assert not location.store.has_paths
    assert location.name == "run"


@pytest.mark.parametrize(
    "url",
    ["/data/run", "memory://bucket/run", "s3://bucket/run", "s3://bucket", "webhdfs://me@namenode:9870/user/me/run"],
)
def test_told_and_parsed_again_it_is_the_same_place(url: str) -> None:
    location = parse_url(url)
    again = parse_url(str(location))
    assert (again, str(again)) == (location, str(location))


def test_child_and_parent() -> None:
    for url in ("/data/run", "memory://data/run", "s3://data/run", "webhdfs://namenode/data/run"):
        location = parse_url(url)
        child = location.child("rank_0", "a.ckpt")
        assert str(child) == f"{location}/rank_0/a.ckpt"
        assert child.parent.parent == location
        assert child.store.has_paths == location.store.has_paths


def test_children_of_the_root() -> None:
    assert parse_url("/").child("a").path == "/a"
    assert str(parse_url("memory://").child("a")) == str(parse_url("memory://a"))


@pytest.mark.parametrize("url", ["", "  ", "\t\n"])
def test_nothing(url: str) -> None:
    with pytest.raises(InputError, match="an empty path or URL was given"):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:pa55word@bucket/x",
        "S3://user:pa55word@bucket/x",
        "s3://user:pa55/word@bucket/x",
        "s3://:pa55word@bucket",
        "https://user:12pa55word@host:9000/x",
        "nothing://user:pa55word@host",
        "simplecache::s3://user:pa55word@bucket/x",
        "https://host/x?a=b&X-Amz-Signature=pa55word",
        "https://account.host/x?sig=pa55word",
    ],
)
def test_credentials_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InputError, match="must not carry credentials") as caught:
        parse_url(url)
    assert "pa55" not in str(caught.value)


@pytest.mark.parametrize("url", ["memory://host:9000/mail@home", "s3://bucket/10:30@noon", "memory://a@b/c"])
def test_what_only_resembles_credentials_is_fine(url: str) -> None:
    assert not parse_url(url).store.has_paths


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("xyz://bucket/x", "unknown storage xyz://"),
        ("blockcache::s3://bucket/x", "blockcache cannot be used in a chain of URLs"),
        ("s3a::b://bucket/x", "s3a cannot be used in a chain of URLs"),
        ("hdfs://host/x", "pyarrow"),
        ("github://org/repository", "org"),  # TypeError
        ("dir://x", "cannot be opened"),  # AttributeError
        ("/data/\0", "null byte"),
    ],
)
def test_what_cannot_be_opened_is_named_with_the_reason(url: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_url(url)
    assert repr(url) in str(caught.value)
    assert message in str(caught.value)


def test_the_path_of_a_missing_directory_is_no_error(tmp_path: Path) -> None:
    location = parse_url(str(tmp_path / "not" / "there"))
    assert not os.path.exists(location.path)
    assert location.parent.name == "not"


@pytest.mark.parametrize("url", ["s3:/bucket/x", "obs:bucket/x", "file:/data", "s3:/me:hidden@bucket"])
def test_a_url_without_its_slashes_is_no_local_directory(url: str) -> None:
    scheme = url.partition(":")[0]
    with pytest.raises(InputError) as caught:
        parse_url(url)
    assert str(caught.value) == (
        f"{scheme}:…: is a path, but looks like a URL: write {scheme}://… for a URL, ./{scheme}:… for a path"
    )
    assert parse_url(f"./{url}").store.has_paths

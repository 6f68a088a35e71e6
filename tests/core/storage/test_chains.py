"""Chains of URLs: what may stand in front of `::`, and where options and names lead."""

import json
from pathlib import Path

import pytest

from reshard.core.errors import InputError, TargetError
from reshard.core.storage.chains import above_pattern, place_in_order, split_chain
from reshard.core.storage.named_options import named_storages, options_for
from reshard.core.storage.placement import check_apart
from reshard.core.storage.urls import parse_url
from tests.core.storage.test_archives import FILES, pack_zip

KEYS = {"endpoint_url": "http://127.0.0.1:9", "key": "k", "secret": "s"}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    pack_zip(tmp_path / "a.zip", FILES)
    return tmp_path / "a.zip"


def refusal(url: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_url(url)
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("filecache::s3://b/x", ("filecache", "s3://b/x")),
        ("zip://in/side::s3://b/a.zip", ("zip://in/side", "s3://b/a.zip")),
        ("zip::s3://b/a.zip", ("zip", "s3://b/a.zip")),
        ("tar://::/data/a.tar", ("tar://", "/data/a.tar")),
        ("zip://a::simplecache::s3://b/a.zip", ("zip://a", "simplecache::s3://b/a.zip")),
        ("anything::s3://b/x", ("anything", "s3://b/x")),
        # names, and no chains
        ("s3://models/a::b", ("s3://models/a::b", "")),
        ("/data/a::b", ("/data/a::b", "")),
        ("zip::/data/a.zip", ("zip::/data/a.zip", "")),
        ("s3://b/x", ("s3://b/x", "")),
        ("http://[::1]:9000/x", ("http://[::1]:9000/x", "")),
    ],
)
def test_the_first_link_is_split_off(url: str, wanted: tuple[str, str]) -> None:
    assert split_chain(url) == wanted


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("blockcache::s3://b/x", "blockcache cannot be used in a chain of URLs: use filecache::"),
        ("cached::s3://b/x", "cached cannot be used in a chain of URLs: use filecache::"),
        ("dir::s3://b/x", "dir cannot be used in a chain of URLs: give the URL of the directory itself"),
        ("dir://x::s3://b/x", "give the URL of the directory itself"),
        ("reference://::s3://b/refs.json", "whose changes would go unnoticed: give the URL of those files"),
        (
            "libarchive://x::s3://b/a.7z",
            "only archives that are not compressed can be read in parts: zip:// and tar://",
        ),
        (
            "foo::s3://b/x",
            "foo cannot be used in a chain of URLs: in front of :: may stand zip, tar, filecache, simple",
        ),
        ("s3://b/x::s3://b/y", "s3 cannot be used in a chain of URLs: in front of :: may stand"),
        ("simplecache://x::s3://b/y", "cannot be opened: write simplecache::s3://b/y"),
        ("simplecache::file:///data", "cannot be opened: files on this machine need no cache"),
        ("filecache::memory://b/x", "filecache: name the directory for its files in storage options, {"),
        ("zip://x::", "cannot be opened: zip:// is applied to another URL: write zip://PATH::URL"),
        ("zip://x", "cannot be opened: zip:// is applied to another URL: write zip://PATH::URL"),
        ("simplecache://x", "simplecache:// is applied to another URL"),
        ("zip://x::foo://y", "unknown storage foo://"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_use(url: str, reason: str) -> None:
    assert reason in refusal(url)


@pytest.mark.parametrize(
    "url",
    [
        "simplecache::https://me:hunter2@host/x",
        "zip://a::https://host/a.zip?token=hunter2",
        "zip://a::s3://hunter2@b/a",
    ],
)
def test_credentials_are_refused_in_chains_too(url: str) -> None:
    assert "must not carry credentials" in refusal(url)
    assert "hunter2" not in refusal(url)


def test_an_archive_is_indexed_once(archive: Path) -> None:
    assert parse_url(f"zip://run::{archive}").store is parse_url(f"zip://::{archive}").store


def test_options_are_those_of_the_storage_and_of_a_link_under_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = parse_url("s3://b/x")
    for number, options in enumerate(
        (
            {**KEYS, "filecache": {"cache_storage": str(tmp_path)}},
            {"s3": KEYS, "filecache": {"cache_storage": str(tmp_path)}},
            {
                "s3": {"key": "k", "secret": "s"},
                "endpoint_url": KEYS["endpoint_url"],
                "filecache": {"cache_storage": "x"},
            },
        )
    ):
        monkeypatch.setenv(f"OPTIONS{number}", json.dumps(options))
        url = f"filecache::s3://bucket{number}/x"
        with named_storages([(url, f"env:OPTIONS{number}")]):
            location = parse_url(url)
            behind, path = location.store.origin(location.path)
            assert (str(location), path) == (url, f"bucket{number}/x")
            assert behind.service.address == KEYS["endpoint_url"] != plain.store.service.address  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"filecache": {"check_files": True}},
            "check_files: no such storage option of filecache; there are cache_storage",
        ),
        ({"filecache": {"cache_storage": 1}}, "cache_storage: must be a directory's path"),
        ({"filecache": "x"}, "filecache: must be an object of options"),
        ({"filecache": {"cache_storage": "x"}, "s3": {"secrt": "x"}}, "secrt: no such storage option"),
    ],
)
def test_options_of_links_are_checked(options: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIONS", json.dumps(options))
    with pytest.raises(InputError, match=reason), named_storages([("filecache::s3://b/x", "env:OPTIONS")]):
        pass


def test_an_archive_takes_no_options(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIONS", '{"zip": {"mode": "w"}}')
    with (
        pytest.raises(InputError, match="mode: zip has no storage options"),
        named_storages([(f"zip://::{archive}", "env:OPTIONS")]),
    ):
        pass


def test_what_is_below_a_place_in_an_archive_has_its_options(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTIONS", "{}")
    monkeypatch.setenv("KEYS", json.dumps(KEYS))
    pairs = [("zip://run/::s3://b/a.zip", "env:KEYS"), (f"zip://::{archive}", "env:OPTIONS")]
    with named_storages(pairs):
        for url in ("zip://run::s3://b/a.zip", "zip://run/rank_0/x::s3://b/a.zip"):
            assert options_for(url) == KEYS
        for url in ("zip://runs::s3://b/a.zip", "zip://::s3://b/a.zip", "zip://run::s3://b/a", "s3://b/a.zip"):
            assert options_for(url) == {}


def test_a_pattern_in_an_archive_has_the_options_of_its_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", json.dumps(KEYS))
    with named_storages([("zip://run/rank_{rank}/net.ckpt::s3://b/a.zip", "env:KEYS")]):
        assert options_for("zip://run/rank_7/net.ckpt::s3://b/a.zip") == KEYS


@pytest.mark.parametrize(
    ("url", "place", "above"),
    [
        ("s3://b/run/rank_{rank}/x", "s3://b/run/rank_{rank}/x", "s3://b/run/"),
        ("s3://b/run", "s3://b/run", "s3://b/run"),
        ("filecache::s3://b/rank_{rank}", "s3://b/rank_{rank}", "filecache::s3://b/"),
        ("zip://in/{rank}::s3://b/a", "s3://b/a/::zip/in/{rank}", "zip://in/::s3://b/a"),
        ("zip://::s3://b/{rank}", "s3://b/{rank}/::zip", "zip://::s3://b/"),
    ],
)
def test_places_of_urls(url: str, place: str, above: str) -> None:
    assert (place_in_order(url), above_pattern(url)) == (place, above)


def test_a_target_must_be_apart_from_the_archive_that_the_source_is_in(archive: Path, tmp_path: Path) -> None:
    source = parse_url(f"zip://run::{archive}")
    for target in (archive, tmp_path, tmp_path.parent, archive / "x"):
        with pytest.raises(TargetError, match="lies inside|is the source itself|can be a part"):
            check_apart(source, parse_url(str(target)))
    check_apart(source, parse_url(str(tmp_path / "other")))
    cached = parse_url("simplecache::memory://run")
    with pytest.raises(TargetError, match="is the source itself|can be a part"):
        check_apart(cached, parse_url("memory://run"))

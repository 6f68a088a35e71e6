"""Storages with plain settings are looked at, listed and read without s3fs, and as s3fs would do it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from s3fs import S3FileSystem

from reshard.core.errors import CheckpointError, InputError, StorageError
from reshard.core.runtime import retry
from reshard.core.runtime.retry import RetryPolicy, counting_retries
from reshard.core.storage.file_versions import remote_version
from reshard.core.storage.filesystems import open_filesystem
from reshard.core.storage.listing import exists, file_info, kind_of, list_folder, names_in
from reshard.core.storage.object_ranges import give_up, object_ranges
from reshard.core.storage.plain_s3 import PlainS3
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location, parse_url
from tests.support.checkpoints import case, read_tree
from tests.support.s3_client import s3_client
from tests.support.s3_server import S3Server
from tests.support.s3_traffic import Fault, Kind
from tests.support.stores import BUCKET, Store, forget_connections

CONTENT = b"content"
NAMES = ("a.ckpt", "empty", "x y%20+é.ckpt", "q?x=1&y=#z;~*'()!$,:@")
LIMIT_BYTES = 1000
PASSING = (Kind.SLOW_DOWN, Kind.INTERNAL_ERROR, Kind.RESET, Kind.RESET_IN_BODY, Kind.SHORT_BODY, Kind.ANSWER_LOST)

ASKING: dict[str, Callable[[Location], Any]] = {
    "HeadObject": lambda folder: file_info(folder.child("a.ckpt")),
    "ListObjectsV2": list_folder,
    "GetObject": lambda folder: read_small_file(folder.child("a.ckpt"), LIMIT_BYTES),
}


@pytest.fixture(autouse=True)
def _quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "REQUESTS", RetryPolicy(retry.REQUESTS.attempts, 0.001))


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.upper().endswith("_PROXY") or name.endswith("CA_BUNDLE") or name.startswith(("AWS_", "FSSPEC_")):
            monkeypatch.delenv(name)


@pytest.fixture
def folder(_no_settings_of_this_machine: None, store: Store) -> Location:
    """A directory with objects and a directory, and an object beside it of nearly its name."""
    for key in (*NAMES, "rank_0/b.ckpt", "../run_2/c"):
        path = store.files(f"run/{key}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if key == "empty" else CONTENT)
    store.server.look_again()
    return parse_url(store.url("run"))


def by_s3fs(location: Location) -> Location:
    """The same place, all of it s3fs's."""
    fs, path = open_filesystem(str(location), {"use_listings_cache": False})
    assert isinstance(fs, S3FileSystem)
    give_up(fs)
    return Location(fs, path)


def has_opened_s3fs(location: Location) -> bool:
    assert isinstance(location.fs, PlainS3)
    return "s3fs" in vars(location.fs)


# ---- the same answers ----


@pytest.mark.parametrize("protocol", ["s3", "obs"])
def test_what_is_there_is_said_as_by_s3fs(folder: Location) -> None:
    for place in (folder, *map(folder.child, (*NAMES, "rank_0", "rank_0/b.ckpt"))):
        ours, theirs = file_info(place), file_info(by_s3fs(place))
        assert ours == {name: theirs[name] for name in ours}
        assert ours["type"] == "directory" or remote_version(ours) == remote_version(theirs)
    assert not has_opened_s3fs(folder)


@pytest.mark.parametrize("protocol", ["s3", "obs"])
def test_a_directory_is_listed_as_by_s3fs(folder: Location) -> None:
    for place in (folder, folder.child("rank_0"), Location(folder.fs, BUCKET)):
        ours, theirs = list_folder(place), list_folder(by_s3fs(place))
        assert ours == [{name: entry[name] for name in mine} for mine, entry in zip(ours, theirs, strict=True)]
    assert names_in(folder) == sorted((*NAMES, "rank_0"))
    assert not has_opened_s3fs(folder)


def test_small_files_are_read_whole(folder: Location) -> None:
    for name in NAMES:
        assert read_small_file(folder.child(name), LIMIT_BYTES) == (b"" if name == "empty" else CONTENT)
    with pytest.raises(CheckpointError, match=r"a\.ckpt: has more than 6 bytes"):
        read_small_file(folder.child("a.ckpt"), 6)


@pytest.mark.parametrize("name", ["nothing", "ru", "a.ckpt/b", "rank_0/b"])
def test_nothing_is_where_nothing_is(folder: Location, name: str) -> None:
    assert kind_of(folder.child(name)) is None
    for ask in (file_info, list_folder, lambda place: read_small_file(place, LIMIT_BYTES)):
        with pytest.raises(StorageError, match=rf"/run/{name}: cannot .*: no such file or directory") as caught:
            ask(folder.child(name))
        assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert not has_opened_s3fs(folder)


@pytest.mark.parametrize("ask", [exists, list_folder, *ASKING.values()])
@pytest.mark.parametrize("path", ["", "/run"])
@pytest.mark.usefixtures("store")
def test_a_bucket_that_is_not_there_is_named(ask: Callable[[Location], object], path: str) -> None:
    with pytest.raises(StorageError, match="there is no bucket 'other'"):
        ask(parse_url(f"s3://other{path}"))


def test_keys_that_obstore_would_change_are_s3fss(folder: Location) -> None:
    with pytest.raises(StorageError, match="bad request"):  # as this server answers
        kind_of(Location(folder.fs, f"{BUCKET}//run/a.ckpt"))
    assert has_opened_s3fs(folder)


# ---- failures ----


@pytest.mark.parametrize("kind", PASSING)
@pytest.mark.parametrize("operation", ASKING)
def test_a_request_that_fails_once_is_repeated_and_counted_once(
    folder: Location, store: Store, operation: str, kind: Kind
) -> None:
    wanted = ASKING[operation](folder)
    store.proxy.forget()
    store.proxy.set_faults(Fault(kind, (operation,), most=1))
    with counting_retries() as retries:
        found = ASKING[operation](folder)
    assert retries.value == 1
    assert store.proxy.counts() == {operation: 2}
    assert object_ranges(folder.fs) is not None
    if operation == "GetObject":
        assert found == wanted


@pytest.mark.parametrize("kind", [Kind.ACCESS_DENIED, Kind.EXPIRED_TOKEN, Kind.NO_SUCH_BUCKET, Kind.SLOW_DOWN])
@pytest.mark.parametrize("operation", ASKING)
def test_failures_are_explained_as_by_s3fs(folder: Location, store: Store, operation: str, kind: Kind) -> None:
    store.proxy.set_faults(Fault(kind, (operation,)))
    with pytest.raises(StorageError) as ours:
        ASKING[operation](folder)
    with pytest.raises(StorageError) as theirs:
        ASKING[operation](by_s3fs(folder))
    assert str(ours.value) == str(theirs.value)
    assert (type(ours.value), ours.value.transient) == (type(theirs.value), theirs.value.transient)


def test_an_answer_to_a_condition_that_was_not_set_is_s3fss_to_explain(folder: Location, store: Store) -> None:
    store.proxy.set_faults(Fault(Kind.CONDITION_FAILED, ("GetObject",)))
    with pytest.raises(StorageError, match="changed by somebody else meanwhile"):
        read_small_file(folder.child("a.ckpt"), LIMIT_BYTES)


# ---- what is plain ----

KEYS = {"key": "k", "secret": "s"}


@pytest.mark.parametrize(
    ("url", "options", "variables"),
    [
        ("s3://models/run", KEYS, {}),
        ("s3a://models/run", KEYS | {"token": "t", "client_kwargs": {"region_name": "eu-west-3"}}, {}),
        ("s3://models", KEYS | {"endpoint_url": "http://10.0.0.1:9000"}, {"AWS_CA_BUNDLE": "/etc/own.pem"}),
        ("s3://models/a::b", {}, {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}),
        ("obs://models/run", KEYS | {"endpoint_url": "obs.cn-north-4.myhuaweicloud.com"}, {}),
    ],
)
def test_these_settings_are_plain(
    url: str, options: dict[str, Any], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    fs, path = open_filesystem(url, options)
    by_fsspec, other_path = open_filesystem(url, options | {"use_listings_cache": False})
    assert (type(fs), path) == (PlainS3, other_path)
    assert fs.unstrip_protocol(path) == by_fsspec.unstrip_protocol(path)
    assert fs.split_path(path) == by_fsspec.split_path(path)
    ours, theirs = object_ranges(fs), object_ranges(by_fsspec)
    assert ours is not None
    assert theirs is not None
    assert ours.store("models").config == theirs.store("models").config


@pytest.mark.parametrize(
    ("url", "options", "variables"),
    [
        ("s3://models/run", {}, {}),
        ("s3://models/run", KEYS | {"endpoint_url": "http://a", "client_kwargs": {"endpoint_url": "http://b"}}, {}),
        ("s3://models/run", {"anon": True}, {}),
        ("s3://models/run", {"key": "k"}, {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}),
        ("s3://models/run", KEYS | {"config_kwargs": {"read_timeout": 5}}, {}),
        ("s3://models/run", KEYS | {"client_kwargs": {"verify": False}}, {}),
        ("s3://models/run", KEYS | {"profile": "p"}, {}),
        ("s3://models/run", KEYS | {"requester_pays": True}, {}),
        ("s3://models/run?versionId=1", KEYS, {}),
        ("s3://models.of.us/run", KEYS, {}),
        ("s3://models--usw2-az1--x-s3/run", KEYS, {}),
        ("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mine/run", KEYS, {}),
        ("s3://models/run", KEYS | {"client_kwargs": {"region_name": "cn-north-1"}}, {}),
        ("s3://models/run", KEYS | {"endpoint_url": "https://s3-accelerate.amazonaws.com"}, {}),
        ("s3://models/run", KEYS, {"AWS_PROFILE": "p"}),
        ("s3://models/run", KEYS, {"AWS_CA_BUNDLE": "/etc/own.pem"}),
        ("s3://models/run", KEYS, {"REQUESTS_CA_BUNDLE": "/etc/own.pem"}),
        ("s3://models/run", KEYS, {"AWS_USE_DUALSTACK_ENDPOINT": "true"}),
        ("s3://models/run", KEYS, {"https_proxy": "http://127.0.0.1:9"}),
        ("s3://models/run", KEYS, {"AWS_CONFIG_FILE": __file__}),
        ("s3://models/run", KEYS, {"AWS_SHARED_CREDENTIALS_FILE": __file__}),
    ],
)
def test_these_settings_are_s3fss(
    url: str, options: dict[str, Any], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    try:
        fs, _ = open_filesystem(url, options)
    except InputError:
        return  # so are errors
    assert isinstance(fs, S3FileSystem)


def test_files_and_fsspecs_configuration_make_settings_s3fss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert isinstance(open_filesystem("s3://models/run", KEYS)[0], PlainS3)
    monkeypatch.setattr("fsspec.config.conf", {"s3a": {"requester_pays": True}})
    assert isinstance(open_filesystem("s3://models/run", KEYS)[0], S3FileSystem)
    monkeypatch.setattr("fsspec.config.conf", {})
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("[default]\n")
    assert isinstance(open_filesystem("s3://models/run", KEYS)[0], S3FileSystem)


def test_another_server_is_another_filesystem(server: S3Server, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = parse_url(store.url("run"))
    assert parse_url(store.url("other")).fs is first.fs
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    assert parse_url(store.url("run")).fs is not first.fs


# ---- the whole run ----

RUN = """
import sys
from reshard.cli.main import run
code = run(sys.argv[1:])
print(*(name for name in ("s3fs", "aiobotocore", "botocore", "aiohttp") if name in sys.modules))
sys.exit(code)
"""


@pytest.mark.parametrize("named", [False, True])
def test_a_conversion_from_a_bucket_does_without_s3fs(store: Store, tmp_path: Path, named: bool) -> None:
    conversion = case(7010)
    source = store.add(conversion.directory / "src", "src")
    request = conversion.request(str(tmp_path / "out"), source=source)
    environment = os.environ | ({"MINE": json.dumps(options_of(store))} if named else {})
    if named:
        environment = {name: value for name, value in environment.items() if not name.startswith("AWS_")}
        environment["HOME"] = str(tmp_path)
    arguments = [
        *("convert", source, str(tmp_path / "out")),
        *("--source-strategy", str(request.source_strategy), "--target-strategy", str(request.target_strategy)),
        *(("--source-storage", "env:MINE") if named else ()),
    ]
    ended = subprocess.run([sys.executable, "-c", RUN, *arguments], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == ""
    assert read_tree(tmp_path / "out") == conversion.want


def options_of(store: Store) -> dict[str, str]:
    return {"endpoint_url": store.proxy.url, "key": store.server.access_key, "secret": store.server.secret_key}


# ---- what consoles leave ----


def test_markers_of_directories_are_seen_as_by_s3fs(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    forget_connections()
    client = s3_client(moto.url)
    for key, body in {
        "run/": b"",
        "run/rank_0/": b"",
        "run/a": b"a",
        "run/b": b"",
        "alone/": b"",
        "full/": b"x",
    }.items():
        client.put_object(Bucket=BUCKET, Key=key, Body=body)
    for name in ("run", "run/rank_0", "alone", "full", "run/b"):
        place = parse_url(f"s3://{BUCKET}/{name}")
        ours, theirs = (kind_of(place), list_folder(place)), (kind_of(by_s3fs(place)), list_folder(by_s3fs(place)))
        assert ours[0] == theirs[0]
        assert [entry["name"] for entry in ours[1]] == [entry["name"] for entry in theirs[1]]
        assert [entry["type"] for entry in ours[1]] == [entry["type"] for entry in theirs[1]]
        assert not has_opened_s3fs(place)

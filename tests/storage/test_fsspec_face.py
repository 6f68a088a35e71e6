"""obs:// for other programs, through plain fsspec: read, written, listed, as they would any other storage."""

import importlib
import io
import json
import os
import pickle
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import fsspec
import numpy as np
import pytest

from reshard.core.storage.fsspec_face import OBSFileSystem
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT
from tests.support.s3_traffic import Fault, Kind
from tests.support.stores import BUCKET, Store, content_of, of_operation, stored, unfinished_uploads

CONTENT = content_of(20_000_000)


@pytest.fixture
def protocol() -> str:
    return "obs"


@pytest.fixture
def fs(store: Store) -> Iterator[OBSFileSystem]:
    OBSFileSystem.clear_instance_cache()
    for path, data in {"run/a": b"0123456789", "run/sub/b": b"b", "run/sub/deep/c": b"", "other": b"x"}.items():
        store.files(path).parent.mkdir(parents=True, exist_ok=True)
        store.files(path).write_bytes(data)
    store.server.look_again()
    yield fsspec.filesystem("obs")
    OBSFileSystem.clear_instance_cache()


@pytest.fixture
def root(store: Store) -> str:
    return f"{BUCKET}/{store.prefix}"


def test_fsspec_is_told_of_obs_when_the_project_is_installed() -> None:
    entries = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"]["fsspec.specs"]
    module, _, name = entries["obs"].partition(":")
    assert getattr(importlib.import_module(module), name) is OBSFileSystem


def test_files_are_read_by_plain_fsspec(fs: OBSFileSystem, store: Store) -> None:
    with fsspec.open(store.url("run/a"), "rb") as file:
        assert (file.read(3), file.seek(-2, 2), file.read()) == (b"012", 8, b"89")
    with fsspec.open(store.url("run/a"), "rt") as text:
        assert text.read() == "0123456789"


@pytest.mark.parametrize(
    ("start", "end"),
    [(None, None), (2, 5), (None, 4), (4, None), (-3, None), (None, -3), (-4, -1), (5, 99), (7, 7), (9, 2)],
)
def test_any_part_is_read(fs: OBSFileSystem, root: str, start: int | None, end: int | None) -> None:
    assert fs.cat_file(f"{root}/run/a", start=start, end=end) == b"0123456789"[start:end]


def test_files_and_directories_are_listed(fs: OBSFileSystem, root: str) -> None:
    for path in (f"{root}/run", f"{root}/run/", f"obs://{root}/run/"):
        assert fs.ls(path, detail=False) == [f"{root}/run/a", f"{root}/run/sub"]
        assert {info["name"]: (info["type"], info["size"]) for info in fs.ls(path)} == {
            f"{root}/run/a": ("file", 10),
            f"{root}/run/sub": ("directory", 0),
        }
        assert fs.find(path) == [f"{root}/run/a", f"{root}/run/sub/b", f"{root}/run/sub/deep/c"]
        assert fs.exists(path) and fs.isdir(path) and not fs.isfile(path)  # noqa: PT018
    assert fs.find(f"{root}/run", maxdepth=1, withdirs=True) == [f"{root}/run", f"{root}/run/a", f"{root}/run/sub"]
    assert fs.find(f"{root}/run/a") == fs.ls(f"{root}/run/a", detail=False) == [f"{root}/run/a"]
    assert fs.glob(f"{root}/run/*/*") == [f"{root}/run/sub/b", f"{root}/run/sub/deep"]
    assert [path for path, _, _ in fs.walk(f"{root}/run")] == [f"{root}/run", f"{root}/run/sub", f"{root}/run/sub/deep"]
    assert fs.info(f"{root}/run/a")["name"] == f"{root}/run/a"
    assert fs.modified(f"{root}/run/a") == fs.created(f"{root}/run/a")
    assert fs.info(BUCKET)["type"] == "directory"


def test_what_is_not_there_is_not_there(fs: OBSFileSystem, root: str) -> None:
    assert not fs.exists(f"{root}/none")
    assert not fs.exists(f"{root}/ru")
    for ask in (fs.info, fs.ls, fs.cat_file, lambda path: fs.open(path, "rb").read()):
        with pytest.raises(FileNotFoundError):
            ask(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{root}/none")
    with pytest.raises(IsADirectoryError):
        fs.cat_file(f"{root}/run")


def test_a_refusal_is_not_taken_for_a_no(fs: OBSFileSystem, root: str) -> None:
    wrong = OBSFileSystem(key="own", secret="wrong", endpoint_url=os.environ["OBS_ENDPOINT"])
    with pytest.raises(OSError, match=r"credentials|access denied"):
        wrong.exists(f"{root}/run/a")


@pytest.mark.parametrize("size", [0, 10, len(CONTENT)])
def test_files_are_written(fs: OBSFileSystem, store: Store, size: int) -> None:
    data = CONTENT[:size]
    with fsspec.open(store.url("new/file.bin"), "wb") as file:
        for start in range(0, size, 3_000_000):
            file.write(data[start : start + 3_000_000])
    assert stored(store, "new/file.bin") == data
    fs.pipe(store.url("new/piped"), data)
    assert stored(store, "new/piped") == data
    with fs.open(store.url("new/file.bin"), "rb") as file:
        assert file.read() == data


def test_what_is_discarded_never_appears(fs: OBSFileSystem, store: Store) -> None:
    file = fs.open(store.url("new/file.bin"), "wb")
    file.write(CONTENT)
    file.discard()
    assert stored(store, "new/file.bin") is None
    assert not unfinished_uploads(store)

    def write_and_fail() -> None:
        with fs.transaction:
            with fs.open(store.url("new/file.bin"), "wb") as file:
                file.write(CONTENT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert stored(store, "new/file.bin") is None
    with fs.transaction, fs.open(store.url("new/file.bin"), "wb") as file:
        file.write(b"abc")
    assert stored(store, "new/file.bin") == b"abc"


def test_files_are_copied_moved_and_removed(fs: OBSFileSystem, store: Store, root: str) -> None:
    fs.copy(f"{root}/run/a", f"{root}/run/copy")
    assert stored(store, "run/copy") == b"0123456789"
    fs.mv(f"{root}/run/copy", f"{root}/run/moved")
    assert (stored(store, "run/copy"), stored(store, "run/moved")) == (None, b"0123456789")
    fs.rm(f"{root}/run/moved")
    assert stored(store, "run/moved") is None
    fs.rm(f"{root}/run", recursive=True)
    assert not fs.exists(f"{root}/run")
    assert stored(store, "other") == b"x"


def test_files_are_fetched_and_put(fs: OBSFileSystem, store: Store, root: str, tmp_path: object) -> None:
    fs.get(f"{root}/run", f"{tmp_path}/got", recursive=True)
    assert sorted(os.listdir(f"{tmp_path}/got")) == ["a", "sub"]
    fs.put(f"{tmp_path}/got", f"{root}/put", recursive=True)
    assert fs.find(f"{root}/put") == [f"{root}/put/a", f"{root}/put/sub/b", f"{root}/put/sub/deep/c"]


def test_a_file_that_is_replaced_while_it_is_read_is_noticed(fs: OBSFileSystem, store: Store, root: str) -> None:
    fs.pipe(f"{root}/big", CONTENT)
    with fs.open(f"{root}/big", "rb", block_size=2**20) as file:
        assert file.read(10) == CONTENT[:10]
        fs.pipe(f"{root}/big", CONTENT[::-1])
        file.seek(15_000_000)
        with pytest.raises(OSError, match="it changed while it was being read"):
            file.read(10)


def test_a_busy_server_is_asked_again(fs: OBSFileSystem, store: Store, root: str) -> None:
    store.proxy.set_faults(Fault(Kind.INTERNAL_ERROR, applies=lambda exchange: exchange.attempt == 1))
    assert fs.cat_file(f"{root}/run/a") == b"0123456789"
    assert fs.ls(f"{root}/run/sub/deep", detail=False) == [f"{root}/run/sub/deep/c"]
    assert [exchange.fault for exchange in of_operation(store, "GetObject")] == [Kind.INTERNAL_ERROR, None]


def test_libraries_read_and_write_through_it(fs: OBSFileSystem, store: Store, root: str) -> None:
    with fs.open(f"{root}/array.npy", "wb") as file:
        np.save(file, np.arange(10))
    with fs.open(f"{root}/array.npy", "rb") as file:
        assert np.load(file).tolist() == list(range(10))
    with fsspec.open(f"simplecache::{store.url('run/a')}") as file:
        assert file.read() == b"0123456789"
    with fs.open(f"{root}/lines", "wb") as file, io.TextIOWrapper(file) as text:
        json.dump([1], text)
    assert json.loads(fs.cat(f"{root}/lines")) == [1]


def test_it_travels_to_other_processes(fs: OBSFileSystem, root: str) -> None:
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat_file(f"{root}/run/a") == b"0123456789"
    program = f"import fsspec; assert fsspec.open('obs://{root}/run/a').open().read() == b'0123456789'"
    subprocess.run([sys.executable, "-c", program], cwd=PROJECT, timeout=PATIENCE_SECONDS, check=True)


def test_options_are_those_of_storage_options() -> None:
    with pytest.raises(ValueError, match="secrt: no such storage option"):
        OBSFileSystem(endpoint_url="obs.example.com", key="k", secrt="hunter2")
    given = {"endpoint_url": "obs.example.com", "key": "k", "secret": "s"}
    behind = OBSFileSystem(**given, use_listings_cache=False).store
    assert behind.service.address == "https://obs.example.com"


def test_buckets_are_not_listed_and_nothing_is_appended(fs: OBSFileSystem, root: str) -> None:
    with pytest.raises(NotImplementedError, match="buckets cannot be listed: name one"):
        fs.ls("")
    with pytest.raises(NotImplementedError, match="not opened as 'ab'"):
        fs.open(f"{root}/run/a", "ab")

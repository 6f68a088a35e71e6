"""Many threads and several processes share the connections to a store, and none gets another's answers."""

import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.copying import copy_file
from reshard.core.storage.listing import exists, find_files, list_folder
from reshard.core.storage.reading import open_source, read_bytes, read_small_file
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_bytes, write_file
from tests.support.patience import PATIENCE_SECONDS
from tests.support.stores import Store

PROTOCOLS = ["s3", pytest.param("obs", marks=pytest.mark.slow)]
THREADS = 32
PART = 2**16


def at_once(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """What `work` gives for each number, all of them in threads of their own that begin together."""
    together = threading.Barrier(count)

    def begin(number: int) -> Any:
        together.wait(PATIENCE_SECONDS)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def content_of(number: int) -> bytes:
    """Another for each number, of another size: some take several parts."""
    return f"{number:04} ".encode() * (500 + 1500 * number)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_threads_have_one_store(store: Store) -> None:
    first, *others = at_once(lambda number: parse_url(store.url(f"file_{number}.bin")).store)
    assert all(other is first for other in others)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_thread_gets_what_it_asked_for(store: Store) -> None:
    def work(number: int) -> tuple[bytes, list[bytes], list[str], bool]:
        folder = parse_url(store.url(f"folder_{number}"))
        file, copy = folder.child("file.bin"), folder.child("copy.bin")
        with write_file(file, UploadBuffers(PART, ahead=2)) as output:
            output.write(content_of(number))
        copy_file(file, copy)
        write_bytes(folder.child("note.txt"), str(number).encode())
        source = open_source(copy)
        whole = read_bytes(source, 0, source.size_bytes)
        pieces = source.read_many([(start, 7) for start in range(0, source.size_bytes - 7, source.size_bytes // 5)])
        names = sorted(entry.name for entry in list_folder(folder))
        remove_file(file)
        return whole, pieces, names, exists(file)

    found = at_once(work)
    for number, (whole, pieces, names, is_left) in enumerate(found):
        content = content_of(number)
        assert whole == content
        assert pieces == [content[start:][:7] for start in range(0, len(content) - 7, len(content) // 5)]
        assert (names, is_left) == (["copy.bin", "file.bin", "note.txt"], False)
    left = {location.path.rpartition(f"{store.prefix}/")[2] for location in find_files(parse_url(store.url("")))}
    assert left == {f"folder_{number}/{name}" for number in range(THREADS) for name in ("copy.bin", "note.txt")}
    assert {"UploadPart", "PutObject", "CopyObject", "GetObject", "ListObjectsV2"} <= store.proxy.counts().keys()


def read_many_of(url: str) -> list[bytes]:
    """Several ranges of a file, read at once."""
    source = open_source(parse_url(url))
    return source.read_many([(start, 5) for start in range(0, 50, 5)])


def write_parts(url: str) -> None:
    with write_file(parse_url(url), UploadBuffers(PART, ahead=2)) as output:
        output.write(bytes(3 * PART))


USES: dict[str, Callable[[str], object]] = {
    "read": read_many_of,
    "read whole": lambda url: read_small_file(parse_url(url), 2**20),
    "look": lambda url: exists(parse_url(url)),
    "list": lambda url: list_folder(parse_url(url)),
    "find": lambda url: find_files(parse_url(url)),
    "put": lambda url: write_bytes(parse_url(url), b"new"),
    "upload": write_parts,
    "copy": lambda url: copy_file(parse_url(url), parse_url(f"{url}.copy")),
    "remove": lambda url: remove_file(parse_url(url)),
}


def tell(url: str, answers: Connection, use: str) -> None:
    try:
        answers.send(USES[use](url))
    except BaseException as error:
        answers.send(f"{type(error).__name__}: {error}")
    # at once: what pytest does at the end of a process is this one's parent's business
    os._exit(0)


def answer_of_child(method: str, url: str, use: str) -> Any:
    context: Any = multiprocessing.get_context(method)
    answers, of_child = context.Pipe(duplex=False)
    child = context.Process(target=tell, args=(url, of_child, use))
    with warnings.catch_warnings():
        # newer Pythons warn of forks beside threads: here it has to end nevertheless
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    try:
        assert answers.poll(PATIENCE_SECONDS), "the child does not come to an end"
        return answers.recv()
    finally:
        child.kill()
        child.join()


@pytest.fixture
def url(store: Store, tmp_path: Path) -> str:
    """A file that was put there past all requests."""
    (tmp_path / "file.bin").write_bytes(content_of(1))
    return store.add(tmp_path / "file.bin", "file.bin")


WANTED = [content_of(1)[start:][:5] for start in range(0, 50, 5)]


def test_a_spawned_process_has_connections_of_its_own(url: str) -> None:
    assert read_many_of(url) == WANTED
    assert answer_of_child("spawn", url, "read") == WANTED
    assert read_many_of(url) == WANTED


@pytest.mark.parametrize("use", USES)
def test_a_forked_process_is_refused_what_its_parent_has_used(url: str, use: str) -> None:
    """It would wait for threads that it does not have."""
    opened = open_source(parse_url(url))
    message = answer_of_child("fork", url, use)
    assert message.startswith(f"UnusableStorageError: {url}")
    assert message.endswith("start processes by `spawn`, or open no object store before")
    assert opened.read_many([(0, 5)]) == WANTED[:1]
    USES[use](url)


def test_a_file_that_was_open_before_a_fork_is_not_read_after_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_source(parse_url(url))
    monkeypatch.setitem(USES, "read", lambda _: opened.read_many([(0, 5), (5, 5)]))
    message = answer_of_child("fork", url, "read")
    assert message.startswith(f"UnusableStorageError: {url}: cannot read 5 bytes at 0: this process was forked")


def test_a_process_that_is_forked_before_any_request_works(url: str) -> None:
    program = f"""
import multiprocessing, sys
from tests.storage.test_threads import WANTED, answer_of_child
sys.exit(answer_of_child("fork", {url!r}, "read") != WANTED)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_SECONDS)

"""Many threads and several processes share the connections to a store, and none gets another's answers."""

import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import pytest

from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.copying import copy_file
from reshard.core.storage.listing import exists, find_files, list_folder
from reshard.core.storage.reading import open_source, read_bytes
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
def test_all_threads_have_one_file_system(store: Store) -> None:
    first, *others = at_once(lambda number: parse_url(store.url(f"file_{number}.bin")).fs)
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
        names = sorted(entry["name"].rpartition("/")[2] for entry in list_folder(folder))
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


def read_many_of(url: str) -> tuple[int, list[bytes]]:
    """A file system's number, and several ranges of a file that are asked for at once."""
    location = parse_url(url)
    source = open_source(location)
    return id(location.fs), source.read_many([(start, 5) for start in range(0, 50, 5)])


def tell(url: str, answers: Connection) -> None:
    answers.send(read_many_of(url))
    # at once: what pytest does at the end of a process is this one's parent's business
    os._exit(0)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_has_connections_of_its_own(store: Store, method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {method}")
    url = store.url("file.bin")
    write_bytes(parse_url(url), content_of(1))
    _, here = read_many_of(url)
    context: Any = multiprocessing.get_context(method)
    answers, of_child = context.Pipe(duplex=False)
    child = context.Process(target=tell, args=(url, of_child))
    with warnings.catch_warnings():
        # newer Pythons warn of forks beside threads: here it has to work nevertheless
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    try:
        assert answers.poll(PATIENCE_SECONDS), "the child does not come to an end"
        _, there = answers.recv()
    finally:
        child.kill()
        child.join()
    assert there == here == [content_of(1)[start:][:5] for start in range(0, 50, 5)]
    # and this one's are as they were
    assert read_many_of(url)[1] == here

"""The benchmarks' object store: rclone finds it, what goes over its wire is counted, and it ends with its process."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import psutil
import pytest

from benchmarks import measure
from benchmarks.errors import BenchmarkError
from benchmarks.object_store import ObjectStore, object_store
from tests.support.s3_server import RCLONE


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "buckets"


@pytest.fixture(scope="module")
def store(directory: Path) -> Iterator[ObjectStore]:
    with object_store(directory) as running:
        yield running


def rclone(store: ObjectStore, *arguments: str | Path) -> str:
    return measure.run([str(RCLONE), *map(str, arguments)], store.environment).output


def test_traffic_is_counted_by_bucket_and_from_the_beginning_only(
    store: ObjectStore, directory: Path, tmp_path: Path
) -> None:
    (directory / "source" / "ckpt").mkdir(parents=True, exist_ok=True)
    (directory / "source" / "ckpt" / "a").write_bytes(bytes(10_000))
    for _ in range(2):
        store.begin(latency_seconds=0)
        rclone(store, "copyto", ":s3:source/ckpt/a", tmp_path / "a")
        rclone(store, "copyto", tmp_path / "a", ":s3:target/out/a")
        (tmp_path / "a").unlink()
        (directory / "target" / "out" / "a").unlink()
        traffic = store.traffic()
        assert (traffic.source_sent_bytes, traffic.requests["GetObject"]) == (10_000, 1)
        assert 10_000 <= traffic.received_bytes < 10_500
        assert traffic.target_sent_bytes < 1000
        assert traffic.requests["PutObject"] == 1


def test_files_put_there_and_removed_behind_its_back_are_seen(store: ObjectStore, directory: Path) -> None:
    late = directory / "target" / "late"
    late.mkdir(parents=True)
    (late / "a").write_bytes(b"a")
    store.begin(latency_seconds=0)
    assert rclone(store, "lsf", "--recursive", ":s3:target/late") == "a\n"
    (late / "a").unlink()
    late.rmdir()
    store.begin(latency_seconds=0)
    assert "late" not in rclone(store, "lsf", ":s3:target")


def test_each_request_waits_for_the_latency(store: ObjectStore) -> None:
    store.begin(latency_seconds=0.5)
    started = time.monotonic()
    rclone(store, "lsf", ":s3:target")
    assert time.monotonic() - started >= 0.5


def test_it_is_gone_when_the_block_ends(tmp_path: Path) -> None:
    with object_store(tmp_path / "buckets") as running:
        url = running.environment["AWS_ENDPOINT_URL"]
    with pytest.raises(URLError):
        build_opener(ProxyHandler({})).open(url)
    commands = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert [command for command in commands if str(tmp_path) in command] == []


def test_a_store_that_cannot_start_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BenchmarkError, match="the object store has ended"), object_store(tmp_path / "file" / "buckets"):
        pass
    assert "NotADirectoryError" in capfd.readouterr().err


def test_its_clients_read_no_settings_of_anyone(store: ObjectStore) -> None:
    names = "RCLONE_CONFIG", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "FSSPEC_CONFIG_DIR"
    assert {store.environment[name] for name in names} == {os.devnull}

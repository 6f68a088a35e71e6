"""Runs between stores that are killed or interrupted: the same command resumes them, and leaves nothing of theirs."""

import itertools
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from reshard import clean, verify
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.target.leftovers import LeftoverKind
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.families import Family
from tests.support.runs import RESHARD, start
from tests.support.s3_client import s3_client
from tests.support.s3_traffic import Exchange, Fault, Kind
from tests.support.stores import BUCKET, Store, unfinished_uploads

pytestmark = pytest.mark.slow

DONE, WRONG_INPUT, INTERRUPTED, TERMINATED = 0, 2, 130, 143
NAMES = [f"layers.{number}.weight" for number in range(6)]
SHAPE = (2048, 1024)
"""Of a parameter; there are four source ranks with 12 MiB, and two target ranks with 24 MiB, which are three parts."""
PATIENCE_SECONDS = 60


def rows(name: str, rank: int, ranks: int) -> np.ndarray:
    """A rank's part of a parameter."""
    whole = np.random.default_rng(NAMES.index(name)).random(SHAPE, np.float32)
    return np.split(whole, ranks)[rank]


@pytest.fixture
def source(store: Store) -> Store:
    """A checkpoint in the store, and both strategies."""
    for rank in range(4):
        parts = {name: rows(name, rank, 4) for name in NAMES}
        path = store.files(f"src/rank_{rank}/model.ckpt")
        path.parent.mkdir(parents=True)
        path.write_bytes(
            checkpoint_bytes(*((name, "Float32", part.shape, part.tobytes()) for name, part in parts.items()))
        )
    for short, devices in (("src", 4), ("dst", 2)):
        layouts = dict.fromkeys(NAMES, ParameterLayout((devices,), ((0,), ())))
        strategy = Strategy((StageStrategy(0, layouts),), "a test", merged=False)
        write_strategy(strategy, str(store.files(f"{short}_strategy.ckpt")))
    store.server.look_again()
    return store


def command(store: Store, *options: str) -> list[str]:
    strategies = [f"--{side}-strategy={store.url(f'{short}_strategy.ckpt')}" for side, short in SIDES]
    return [*RESHARD, "convert", store.url("src"), store.url("out"), *strategies, "--engine=direct", *options]


SIDES = (("source", "src"), ("target", "dst"))


@pytest.fixture
def begin(source: Store) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`begin(*options)`: the command in a process of its own, which does not outlive the test."""
    processes = []

    def call(*options: str) -> subprocess.Popen[str]:
        processes.append(start(command(source, *options)))
        return processes[-1]

    yield call
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


class Gate:
    """Holds up some requests, from the number-th on, until it is opened.

    Attributes:
        reached: one of them has come.
    """

    def __init__(self, wanted: Callable[[Exchange], bool], number: int = 1) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self._wanted = wanted
        self._left = itertools.count(1 - number)

    def __call__(self, exchange: Exchange) -> None:
        if self._wanted(exchange) and next(self._left) >= 0:
            self.reached.set()
            self._open.wait(PATIENCE_SECONDS)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(store: Store) -> Iterator[Callable[..., Gate]]:
    """`gate(wanted, number)`: puts a gate before the store, and waits until a request is held up there."""
    gates = []

    def put(wanted: Callable[[Exchange], bool], number: int = 1) -> Gate:
        gates.append(Gate(wanted, number))
        store.proxy.before = gates[-1]
        return gates[-1]

    yield put
    for each in gates:
        each.open()


def is_part_of(rank: int) -> Callable[[Exchange], bool]:
    return lambda exchange: exchange.call.operation == "UploadPart" and f"/out/rank_{rank}/" in exchange.call.key


def await_stored_part(store: Store, path: str) -> None:
    """Wait until the store has a part of a file that is being sent: the first may arrive after the second has begun."""
    client, key = s3_client(store.server.url), f"{store.prefix}/{path}"
    [upload] = client.list_multipart_uploads(Bucket=BUCKET, Prefix=key)["Uploads"]
    for _ in range(PATIENCE_SECONDS * 20):
        if client.list_parts(Bucket=BUCKET, Key=key, UploadId=upload["UploadId"]).get("Parts"):
            return
        time.sleep(0.05)
    raise AssertionError(f"no part of {path} arrived")


def to_the_end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and its stderr."""
    _, printed = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, printed


def check_finished(store: Store) -> None:
    """The target is as it is to be, and nothing else is left."""
    written = read_tree(store.files("out"))
    for rank, name in itertools.product(range(2), NAMES):
        want = rows(name, rank, 2)
        assert written[rank][name] == ("Float32", want.shape, want.tobytes())
    assert store.files("out/.reshard/manifest.json").exists()
    assert unfinished_uploads(store) == []
    assert list(store.files("out/.reshard/leases").glob("*")) == []


def ranks_written(store: Store) -> set[str]:
    """Rank folders of the target that something was sent to."""
    written = ("PutObject", "UploadPart", "CreateMultipartUpload", "CopyObject")
    calls = [each.call for each in store.proxy.exchanges() if each.call.operation in written]
    return {found[1] for call in calls if (found := re.search("/out/(rank_[0-9]+)/", call.key))}


@pytest.mark.parametrize("protocol", ["s3", "obs"])
def test_killed_while_it_sends_a_file(
    source: Store, begin: Callable[..., subprocess.Popen[str]], gate: Callable[..., Gate]
) -> None:
    held = gate(is_part_of(1), 2)
    process = begin("--workers=1")
    assert held.reached.wait(PATIENCE_SECONDS)
    os.killpg(process.pid, signal.SIGKILL)
    assert to_the_end(process)[0] == -signal.SIGKILL
    held.open()
    assert unfinished_uploads(source) == [f"{source.prefix}/out/rank_1/checkpoint_1.ckpt"]
    assert not source.files("out/.reshard/manifest.json").exists()
    source.proxy.forget()

    code, printed = to_the_end(begin("--workers=1"))
    assert code == DONE, printed
    assert "resuming: 1 of 2 ranks are done already" in printed
    assert "1 unfinished uploads of an earlier run were given up" in printed
    assert ranks_written(source) == {"rank_1"}
    check_finished(source)


def test_killed_and_cleaned_up(
    source: Store,
    begin: Callable[..., subprocess.Popen[str]],
    gate: Callable[..., Gate],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease._DEAD_AFTER_SECONDS", 0.4)
    held = gate(is_part_of(1), 2)
    process = begin("--workers=1")
    assert held.reached.wait(PATIENCE_SECONDS)
    await_stored_part(source, "out/rank_1/checkpoint_1.ckpt")
    os.killpg(process.pid, signal.SIGKILL)
    to_the_end(process)
    held.open()
    source.add(source.files("src/rank_0/model.ckpt"), "out/rank_0/of_another.ckpt")
    foreign = {"Bucket": BUCKET, "Key": f"{source.prefix}/out/config.json"}
    s3_client(source.server.url).create_multipart_upload(**foreign)
    found = clean(source.url("out"))
    upload = next(each for each in found.found if each.kind is LeftoverKind.UPLOAD)
    assert {each.kind for each in found.found} == {LeftoverKind.LEASE, LeftoverKind.UPLOAD, LeftoverKind.UNFINISHED}
    assert upload.url == source.url("out/rank_1/checkpoint_1.ckpt")
    assert upload.size_bytes > 0
    assert unfinished_uploads(source) != []
    assert clean(source.url("out"), remove=True).removed
    assert unfinished_uploads(source) == [foreign["Key"]]
    left = [path for path in source.files("out").rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["of_another.ckpt"]
    report = clean(source.url("out"))
    assert (report.found, len(report.kept)) == ((), 1)


@pytest.mark.parametrize("layout", ["unified", "dcp", "checkpoint2"])
def test_killed_before_the_manifest_and_cleaned_up(
    store: Store, gate: Callable[..., Gate], monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease._DEAD_AFTER_SECONDS", 0.4)
    model, target = Family("llama").hf, store.url("out")
    options = {
        "unified": ("--layout=unified", f"--like={model}", "--max-shard-size=16KB"),
        "dcp": ("--layout=dcp", "--shards=2"),
        "checkpoint2": ("--layout=checkpoint2", "--iteration=7", "--common=global_step=7"),
    }
    convert = [*RESHARD, "convert", str(model), target, *options[layout], "--engine=direct"]

    def is_manifest(exchange: Exchange) -> bool:
        return exchange.call.key.endswith("/manifest.json") and exchange.call.operation == "PutObject"

    held = gate(is_manifest)
    store.proxy.set_faults(Fault(Kind.RESET, applies=is_manifest))  # it has arrived whole, and is not carried out
    process = start(convert)
    assert held.reached.wait(PATIENCE_SECONDS)
    os.killpg(process.pid, signal.SIGKILL)
    to_the_end(process)
    held.open()
    store.proxy.exchanges()
    store.proxy.set_faults()
    assert clean(target, remove=True).removed
    assert [path for path in store.files("out").rglob("*") if path.is_file()] == []
    store.server.look_again()
    code, printed = to_the_end(start(convert))
    assert code == DONE, printed
    assert verify(target).problems == ()


def is_removal_of_identity(exchange: Exchange) -> bool:
    return exchange.call.operation.startswith("DeleteObject") and exchange.call.key.endswith("/.reshard/identity")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [((), is_part_of(0)), (("--overwrite", "--format=safetensors"), is_removal_of_identity)],
    ids=["mended", "replaced"],
)
def test_a_finished_checkpoint_stays_when_a_run_is_killed_that_mends_or_replaces_it(
    source: Store,
    begin: Callable[..., subprocess.Popen[str]],
    gate: Callable[..., Gate],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    wanted: Callable[[Exchange], bool],
) -> None:
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease._DEAD_AFTER_SECONDS", 0.4)
    code, printed = to_the_end(begin())
    assert code == DONE, printed
    files = source.files("out")
    if not options:
        (files / "rank_0/checkpoint_0.ckpt").write_bytes(b"damaged")
        source.server.look_again()
    before = set(files.glob("rank_*/*"))
    held = gate(wanted)
    process = begin(*options)
    assert held.reached.wait(PATIENCE_SECONDS)
    os.killpg(process.pid, signal.SIGKILL)
    to_the_end(process)
    held.open()
    report = clean(source.url("out"), remove=True)
    assert {each.kind for each in report.found} <= {LeftoverKind.LEASE, LeftoverKind.UPLOAD}
    assert ["was being repaired or replaced" in kept for kept in report.kept] == [True]
    assert set(files.glob("rank_*/*")) == before
    code, printed = to_the_end(begin(*options))
    assert code == DONE, printed
    assert verify(source.url("out")).problems == ()


@pytest.mark.parametrize(
    ("number", "exit_code", "word"),
    [(signal.SIGINT, INTERRUPTED, "interrupted"), (signal.SIGTERM, TERMINATED, "terminated")],
)
def test_stopped_while_it_sends_a_file(
    source: Store,
    begin: Callable[..., subprocess.Popen[str]],
    gate: Callable[..., Gate],
    number: signal.Signals,
    exit_code: int,
    word: str,
) -> None:
    held = gate(is_part_of(1), 2)
    process = begin("--workers=1")
    assert held.reached.wait(PATIENCE_SECONDS)
    os.killpg(process.pid, number)
    held.open()
    code, printed = to_the_end(process)
    *_, said, left = printed.splitlines()
    assert (code, said) == (exit_code, f"reshard: {word}; a rerun of the same command resumes where it stopped")
    assert re.match(r"reshard: left in \S+/out: .* of 2 ranks done: the same command resumes it, ", left), left
    assert "Traceback" not in printed
    assert unfinished_uploads(source) == []
    assert list(source.files("out/.reshard/leases").glob("*")) == []
    source.proxy.forget()

    code, printed = to_the_end(begin("--workers=1"))
    assert code == DONE, printed
    assert ranks_written(source) <= {"rank_1"}
    check_finished(source)


def test_a_second_run_names_the_first(
    source: Store, begin: Callable[..., subprocess.Popen[str]], gate: Callable[..., Gate]
) -> None:
    held = gate(is_part_of(1))
    first = begin()
    assert held.reached.wait(PATIENCE_SECONDS)
    code, printed = to_the_end(begin())
    assert code == WRONG_INPUT, printed
    assert re.search(rf"another run is already converting into this target: .*\(process {first.pid},", printed), printed
    held.open()
    code, printed = to_the_end(first)
    assert code == DONE, printed
    check_finished(source)


def test_two_halves_at_once(
    source: Store, begin: Callable[..., subprocess.Popen[str]], gate: Callable[..., Gate]
) -> None:
    """One of them is killed; the other finishes its share, and the first one's rerun the whole."""
    held = gate(is_part_of(0))
    first = begin("--ranks=0")
    assert held.reached.wait(PATIENCE_SECONDS)
    code, printed = to_the_end(begin("--ranks=1"))
    assert code == DONE, printed
    os.killpg(first.pid, signal.SIGKILL)
    to_the_end(first)
    held.open()
    assert unfinished_uploads(source) == [f"{source.prefix}/out/rank_0/checkpoint_0.ckpt"]
    code, printed = to_the_end(begin("--ranks=0"))
    assert code == DONE, printed
    check_finished(source)

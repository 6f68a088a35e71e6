"""Requests to the storage that fail at random: a whole and right target, or one clear error; never anything else."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from msgspec.structs import replace

from reshard.cli.main import run
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import ReshardError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.runtime import retry
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.tensor.layout import whole_layout
from reshard.core.verification.published import verify_target
from tests.endurance.flaky import PERMANENT, TRANSIENT, Faults, FlakyFileSystem
from tests.support.checkpoints import case, read_tree
from tests.support.runs import files_of

pytestmark = pytest.mark.slow

FOUR_TO_THREE = case(7009)
TARGET = "flaky://bucket/out"
COPIES = "whole.ckpt"
"""A strategy under which three ranks hold the same: one is written, the others are copies."""


@pytest.fixture(scope="module")
def filled() -> Iterator[dict[str, Any]]:
    """What the store holds in the beginning: the source, and what is to become of it."""
    fsspec.register_implementation("flaky", FlakyFileSystem)
    fs = fsspec.filesystem("flaky")
    for path in FOUR_TO_THREE.directory.rglob("*.ckpt"):
        fs.show(f"bucket/{path.relative_to(FOUR_TO_THREE.directory)}", path.read_bytes())
    strategy = read_strategy("flaky://bucket/dst_strategy.ckpt")
    [stage] = strategy.stages
    whole = {name: whole_layout(len(layout.tensor_map), 3) for name, layout in stage.layouts.items()}
    copies = replace(strategy, stages=(replace(stage, layouts=whole),))
    write_strategy(copies, f"flaky://bucket/{COPIES}")
    yield dict(fs.store)
    fs.store.clear()


@pytest.fixture(autouse=True)
def _fresh(filled: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("reshard.core.runtime.retry.WORK", retry.RetryPolicy(retry.WORK.attempts, 0.0005))
    monkeypatch.setattr("reshard.core.runtime.retry.REQUESTS", retry.RetryPolicy(retry.REQUESTS.attempts, 0.0001))
    # a run that could not give back its lease must not be waited for for long
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease.RENEWAL_SECONDS", 0.02)
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease._DEAD_AFTER_SECONDS", 0.08)
    yield
    FlakyFileSystem.faults = Faults(seed=0)


def begin_anew(filled: dict[str, Any], faults: Faults) -> None:
    """The store as it was in the beginning, with other faults."""
    FlakyFileSystem.store.clear()
    FlakyFileSystem.store.update(filled)
    FlakyFileSystem.faults = faults


def request(**options: object) -> ConversionRequest:
    defaults: dict[str, object] = {
        "source": "flaky://bucket/src",
        "target": TARGET,
        "source_strategy": "flaky://bucket/src_strategy.ckpt",
        "target_strategy": "flaky://bucket/dst_strategy.ckpt",
        "workers": 2,
    }
    return build_request(**(defaults | options))


def stored(url: str) -> dict[str, bytes]:
    """The files in rank folders, past all faults."""
    root = url.removeprefix("flaky:/")
    return {
        path.removeprefix(f"{root}/"): file.getvalue()
        for path, file in sorted(FlakyFileSystem.store.items())
        if path.startswith(f"{root}/rank_")
    }


def wanted_of(filled: dict[str, Any], **options: object) -> dict[str, bytes]:
    """What an undisturbed conversion makes."""
    begin_anew(filled, Faults(seed=0))
    assert convert(request(**options)).committed
    return stored(TARGET)


def check_outcome(error: ReshardError | None, acceptable: tuple[dict[str, bytes], ...], context: str) -> None:
    """A target that counts is one of the acceptable ones; without an error it counts, and is the first of them."""
    FlakyFileSystem.faults = Faults(seed=0)
    if error is None:
        assert stored(TARGET) == acceptable[0], f"{context}: a wrong target was committed"
    if error is None or read_manifest(parse_url(TARGET)) is not None:
        assert stored(TARGET) in acceptable, f"{context}: a half-written target counts"
        assert not verify_target(TARGET, VerifyLevel.CHECKSUM).problems, context


def attempt(conversion: ConversionRequest) -> ReshardError | None:
    """Converts; returns the error that it ended with. Others than reshard's own are raised."""
    try:
        assert convert(conversion).committed
    except ReshardError as error:
        assert str(error).strip()
        return error
    return None


class Armed:
    """A progress that lets faults strike only while ranks are worked on."""

    def __init__(self) -> None:
        self.begun = False
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        self.begun = self.begun or phase.startswith("converting")

    def advance(self, count_bytes: int) -> None:
        pass


RANK_REQUESTS = {"info", "read", "open", "upload", "close", "copy"}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("strategy", ["dst_strategy.ckpt", COPIES])
def test_transient_faults_of_ranks_are_retried(filled: dict[str, Any], strategy: str, seed: int) -> None:
    options = {"target_strategy": f"flaky://bucket/{strategy}"}
    wanted = wanted_of(filled, **options)
    armed = Armed()

    def applies(what: str, path: str) -> bool:
        return armed.begun and what in RANK_REQUESTS and "/rank_" in path and ".reshard" not in path

    # a rank is tried four times: even three faults of one rank are not too many
    faults = Faults(seed, probability=0.2, most=3, applies=applies)
    begin_anew(filled, faults)
    report = convert(request(**options), armed)
    assert report.committed, seed
    assert len(faults.struck) == 3, f"seed {seed}: too few faults for a test: {faults.struck}"
    again = [note for note in armed.notes if "trying again" in note or "one by one" in note]
    assert report.retried_requests + len(again) == 3, (armed.notes, faults.struck)
    check_outcome(None, (wanted,), f"seed {seed}")


def test_faults_of_all_kinds_anywhere(filled: dict[str, Any]) -> None:
    wanted = wanted_of(filled)
    former = wanted_of(filled, prefix="former_")
    outcomes: Counter[str] = Counter()
    for seed in range(150):
        generator = random.Random(seed)
        errors = generator.choice([TRANSIENT, PERMANENT, TRANSIENT + PERMANENT])
        faults = Faults(seed, 10 ** generator.uniform(-3.7, -1.5), errors, short_reads=generator.choice([0, 0, 0.01]))
        overwrite = generator.random() < 0.5
        begin_anew(filled, Faults(seed))
        if overwrite:
            convert(request(prefix="former_"))
        FlakyFileSystem.faults = faults
        error = attempt(request(overwrite=overwrite))
        context = f"seed {seed}, after {faults.struck}: {error or 'committed'}"
        outcomes["refused" if error else "committed in spite of faults" if faults.struck else "no faults"] += 1
        check_outcome(error, (wanted, former) if overwrite else (wanted,), context)
        assert attempt(request(overwrite=overwrite)) is None, context
        check_outcome(None, (wanted,), context)
    assert outcomes["refused"] > 20, outcomes
    assert outcomes["committed in spite of faults"] > 5, outcomes


REQUESTS = ("info", "ls", "read", "write", "open", "upload", "close", "copy", "remove")


@pytest.mark.parametrize("what", REQUESTS)
def test_a_permanent_fault_is_one_clear_error(
    filled: dict[str, Any], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy = f"flaky://bucket/{COPIES}"
    wanted = wanted_of(filled, target_strategy=strategy)
    former = wanted_of(filled, prefix="former_")
    told_by = list(request(target_strategy=strategy).model_dump(include={"source", "target"}).values())
    arguments = ["convert", *told_by, "--source-strategy", "flaky://bucket/src_strategy.ckpt"]
    arguments += ["--target-strategy", strategy, "--engine", "direct", "--overwrite"]
    refused = 0
    for seed in range(8):
        begin_anew(filled, Faults(seed))
        convert(request(prefix="former_"))
        faults = Faults(seed, (seed + 1) / 8, PERMANENT, most=1, applies=lambda name, _: name == what)
        FlakyFileSystem.faults = faults
        capsys.readouterr()
        code = run(arguments)
        shown = capsys.readouterr().err
        context = f"seed {seed}, after {faults.struck}: exit code {code}\n{shown}"
        if code:
            refused += 1
            assert code in (1, 2, 3), context
            assert "permission denied" in shown, context
            assert shown.count("reshard: error: ") == 1, context
        check_outcome(ReshardError(shown) if code else None, (wanted, former), context)
        assert run(arguments) == 0, context
        check_outcome(None, (wanted,), context)
    assert refused >= 3, f"too few faults of {what!r} for a test"


def test_short_reads_never_make_wrong_bytes(filled: dict[str, Any]) -> None:
    wanted = wanted_of(filled)
    outcomes: Counter[str] = Counter()
    for seed in range(60):
        faults = Faults(seed, short_reads=0.01)
        begin_anew(filled, faults)
        error = attempt(request())
        outcomes["refused" if error else "committed"] += bool(faults.struck)
        context = f"seed {seed}, after {faults.struck}: {error or 'committed'}"
        check_outcome(error, (wanted,), context)
        assert attempt(request()) is None, context
        check_outcome(None, (wanted,), context)
    assert outcomes["committed"] > 5, outcomes


# ---- a local file system ----


def test_local_reads_that_give_less_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(seed := 1)
    short = 0

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal short
        [buffer] = buffers
        asked = generator.randint(1, len(buffer)) if buffer else 0
        short += asked < len(buffer)
        return real(descriptor, [buffer[:asked]], offset)

    real = os.preadv
    monkeypatch.setattr(os, "preadv", preadv)
    assert convert(FOUR_TO_THREE.request(tmp_path / "out")).committed
    monkeypatch.undo()
    assert short > 10
    assert read_tree(tmp_path / "out") == FOUR_TO_THREE.want, f"seed {seed}"


LOCAL_CALLS = ("open", "preadv", "fsync", "replace", "rename", "makedirs", "listdir", "scandir", "unlink", "rmdir")


@pytest.mark.parametrize("errors", [TRANSIENT, PERMANENT], ids=["transient", "permanent"])
def test_local_calls_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errors: tuple[Callable[[], OSError], ...]
) -> None:
    target, former_target = tmp_path / "out", tmp_path / "former"
    convert(FOUR_TO_THREE.request(target, prefix="former_"))
    former = files_of(target)
    convert(FOUR_TO_THREE.request(former_target))
    wanted = files_of(former_target)
    outcomes: Counter[str] = Counter()
    for seed in range(40):
        struck: list[str] = []
        generator = random.Random(seed)
        probability = 10 ** generator.uniform(-3, -1.3)
        with monkeypatch.context() as patch:
            for name in LOCAL_CALLS:
                patch.setattr(os, name, failing(name, getattr(os, name), generator, probability, errors, struck))
            error = attempt(FOUR_TO_THREE.request(target, overwrite=True, workers=1))
        context = f"seed {seed}, after {struck}: {error or 'committed'}"
        outcomes["refused" if error else "committed in spite of faults" if struck else "no faults"] += 1
        there = target if target.exists() else target.with_name("out.reshard-replaced")
        assert files_of(there) in ((wanted, former) if error else (wanted,)), context
        assert attempt(FOUR_TO_THREE.request(target, overwrite=True)) is None, context
        assert files_of(target) == wanted, context
        convert(FOUR_TO_THREE.request(target, prefix="former_", overwrite=True))
    assert outcomes["refused"] > 5, outcomes


def test_a_local_lease_that_cannot_be_given_back_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlink(path: str | Path, **options: Any) -> None:
        if "/leases/" in str(path):
            raise PERMANENT[0]()
        real(path, **options)

    real = os.unlink
    monkeypatch.setattr(os, "unlink", unlink)
    error = attempt(FOUR_TO_THREE.request(tmp_path / "out", ranks="0"))
    assert "leases: cannot give back a lease: permission denied" in str(error)


def failing(
    name: str,
    real: Callable[..., Any],
    generator: random.Random,
    probability: float,
    errors: tuple[Callable[[], OSError], ...],
    struck: list[str],
) -> Callable[..., Any]:
    """A function of `os` that sometimes fails instead."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if generator.random() < probability:
            struck.append(f"{name} {args[0]}")
            raise generator.choice(errors)()
        return real(*args, **kwargs)

    return call

"""Source files that change while they are converted, or between a run and its rerun: refused by name."""

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, ReshardError, TargetError
from reshard.core.request.conversion import ConversionRequest
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case, read_tree
from tests.support.runs import files_of, partial, recorded_ranks

pytestmark = pytest.mark.slow

FOUR_TO_THREE = case(7009)
"""Every target rank reads every source rank."""

SOURCE_RANKS = 4

Change = Callable[[Path], None]


def rewrite(path: Path) -> None:
    """In place, to the same size: other values, the same headers."""
    data = bytearray(path.read_bytes())
    for offset in range(len(data) // 2, len(data) // 2 + 64):
        data[offset] ^= 0xFF
    path.chmod(0o600)
    path.write_bytes(data)


def replace(path: Path) -> None:
    """By rename, as a training job that saves again does; who has the old file open goes on reading that."""
    new = path.with_name("new")
    shutil.copy(path, new)
    rewrite(new)
    new.replace(path)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def append(path: Path) -> None:
    path.chmod(0o600)
    with open(path, "ab") as file:
        file.write(b"\0" * 100)


def remove(path: Path) -> None:
    path.unlink()


CHANGES: list[Change] = [rewrite, replace, truncate, append, remove]
REASONS = "changed while it was being (?:converted|read)|truncated or changed|cannot read it: no such file"


class ChangesAfter:
    """A progress that changes a file after so many blocks."""

    def __init__(self, blocks: int, change: Callable[[], None]) -> None:
        self.left = blocks
        self.change = change

    def note(self, message: str) -> None:
        pass

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        pass

    def advance(self, count_bytes: int) -> None:
        self.left -= 1
        if self.left == 0:
            self.change()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOUR_TO_THREE.directory / "src", tmp_path / "src"))


@pytest.fixture
def conversion(source: Path, tmp_path: Path) -> ConversionRequest:
    return FOUR_TO_THREE.request(tmp_path / "out", source=str(source), workers=1)


def file_of(source: Path, rank: int) -> Path:
    return source / f"rank_{rank}" / f"checkpoint_{rank}.ckpt"


def blocks_of(conversion: ConversionRequest, tmp_path: Path) -> int:
    """How often an undisturbed conversion tells of its progress: written blocks, then read-back parts, rank by rank."""
    count = ChangesAfter(0, lambda: None)
    assert convert(conversion.model_copy(update={"target": str(tmp_path / "undisturbed")}), count).committed
    return -count.left


@pytest.mark.parametrize("change", CHANGES)
def test_changed_at_any_moment(source: Path, conversion: ConversionRequest, tmp_path: Path, change: Change) -> None:
    """Until the last rank is written: then nothing is read from the source any more."""
    target = Path(conversion.target)
    blocks = blocks_of(conversion, tmp_path)
    originals = {path: path.read_bytes() for path in source.rglob("*.ckpt")}
    refused = 0
    for blocks_before in range(1, blocks + 1):
        for path, data in originals.items():
            path.unlink(missing_ok=True)
            path.write_bytes(data)
            os.utime(path, ns=(0, 0))  # clocks of file systems tick every few milliseconds
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(partial(target), ignore_errors=True)
        rank = random.Random(blocks_before).randrange(SOURCE_RANKS)
        changed = file_of(source, rank)
        written_before: set[str] = set()

        def change_it(changed: Path = changed, written: set[str] = written_before) -> None:
            written |= recorded_ranks(target)
            change(changed)

        context = f"{change.__name__} of rank_{rank} after {blocks_before} of {blocks} blocks"
        try:
            convert(conversion, ChangesAfter(blocks_before, change_it))
        except ReshardError as error:
            refused += 1
            assert str(changed) in str(error), context
            assert re.search(REASONS, str(error)), f"{context}: {error}"
            assert not target.exists(), context
            # what was done of the planned source stays right
            for name, content in files_of(partial(target)).items():
                assert content == files_of(tmp_path / "undisturbed")[name], context
        else:
            assert len(written_before) == 3, f"{context}: published, though not all was written before"
            assert read_tree(target) == FOUR_TO_THREE.want, context
    assert blocks / 2 < refused < blocks


@pytest.mark.parametrize("change", CHANGES)
def test_changed_between_planning_and_the_first_read(
    source: Path, conversion: ConversionRequest, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first block is read after that phase of the progress has begun."""
    progress = ChangesAfter(0, lambda: None)

    def begin(phase: str, total_bytes: int = 0) -> None:
        if phase.startswith("converting"):
            change(file_of(source, 1))

    monkeypatch.setattr(progress, "begin", begin)
    with pytest.raises(ReshardError, match=f"(?s)rank_1/checkpoint_1.ckpt.*({REASONS})"):
        convert(conversion, progress)
    assert not Path(conversion.target).exists()
    assert not recorded_ranks(Path(conversion.target))


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("change", [rewrite, replace])
def test_changed_between_an_interrupted_run_and_its_rerun(
    source: Path, conversion: ConversionRequest, tmp_path: Path, change: Change, overwrite: bool
) -> None:
    """What was done is of the former source: nothing of it may come into the target of the new one."""
    target = Path(conversion.target)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(conversion, ChangesAfter(blocks_of(conversion, tmp_path) // 2, interrupt))
    assert recorded_ranks(target)
    change(file_of(source, 2))
    if not overwrite:
        with pytest.raises(TargetError, match=r"or of a source that has changed since, is in .*overwrite=True"):
            convert(conversion)
        assert not target.exists()
        return
    report = convert(conversion.model_copy(update={"overwrite": True}))
    assert report.committed
    assert {rank.outcome.value for rank in report.ranks} == {"written"}
    afresh = conversion.model_copy(update={"target": str(tmp_path / "afresh")})
    convert(afresh)
    assert files_of(target) == files_of(tmp_path / "afresh") != files_of(tmp_path / "undisturbed")
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems


def test_removed_between_an_interrupted_run_and_its_rerun(source: Path, conversion: ConversionRequest) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(conversion, ChangesAfter(5, interrupt))
    remove(file_of(source, 2))
    with pytest.raises(CatalogError, match="rank_2"):
        convert(conversion)
    assert not Path(conversion.target).exists()

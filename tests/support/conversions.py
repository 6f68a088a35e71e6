"""Conversions that end early, ranks that fail on purpose, damaged files, and the outcomes in a report."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reshard.core.conversion.convert import convert
from reshard.core.conversion.dispatch import Unit
from reshard.core.conversion.executor import Threads
from reshard.core.conversion.rank_work import RankWork
from reshard.core.conversion.report import ConversionReport
from reshard.core.conversion.session import Session
from reshard.core.errors import StorageError
from reshard.core.request.conversion import ConversionRequest
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.tensor.layout import whole_layout
from tests.support.checkpoints import case


def outcomes(report: ConversionReport) -> list[str]:
    return [rank.outcome.value for rank in report.ranks]


def stop_before_commit(monkeypatch: pytest.MonkeyPatch, request: ConversionRequest) -> None:
    """Converts all ranks, and fails where the target would be committed."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "reshard.core.target.target.Target.commit", lambda *_, **__: (_ for _ in ()).throw(StorageError("stopped"))
        )
        with pytest.raises(StorageError, match="stopped"):
            convert(request)
    assert not Path(request.target).exists()


def damage(path: Path) -> None:
    """Changes the last byte of a file."""
    path.chmod(0o600)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def do_ranks(session: Session) -> None:
    """Does all ranks of a session that are left."""
    dispatch = session.dispatch()
    Threads(threading.Event()).run(session, dispatch, session.budget.workers)
    assert not dispatch.failures


def whole_copies(tmp_path: Path, ranks: int, extra: str = "") -> str:
    """A strategy file under which every one of `ranks` ranks holds all parameters of case 7009 whole."""
    strategy = read_strategy(str(case(7009).directory / "dst_strategy.ckpt"))
    [stage] = strategy.stages
    layouts = {name: whole_layout(len(layout.tensor_map), ranks) for name, layout in stage.layouts.items()}
    if extra:
        layouts[extra] = whole_layout(1, ranks)
    path = str(tmp_path / f"whole_{ranks}{extra}.ckpt")
    write_strategy(replace(strategy, stages=(replace(stage, layouts=layouts),)), path)
    return path


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], BaseException | None]) -> list[int]:
    """Makes writing a rank raise what `fails` says; returns the list of the ranks that were tried."""
    tried: list[int] = []
    make = RankWork.make

    def step(work: RankWork, unit: Unit) -> Any:
        tried.append(unit.rank)
        error = fails(unit.rank)
        if error is not None:
            raise error
        return make(work, unit)

    monkeypatch.setattr(RankWork, "make", step)
    return tried

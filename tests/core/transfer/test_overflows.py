"""What becomes of a conversion in which finite values become infinite."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard.core.conversion.rank_work as rank_work_module
from reshard.core.changes.changes import OverflowPolicy
from reshard.core.checkpoint.manifest import ShardRecord, dump_record
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import CastError, InputError
from reshard.core.layouts.manifests import parse_shard_record, read_manifest
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import build_request
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.transfer.overflows import overflow_notes
from reshard.core.transfer.writer import transform_ranks
from tests.support.buffers import Buffers
from tests.support.changed_values import (
    overflowing_plan,
)
from tests.support.checkpoints import read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.plans import make_strategy

ROWS, WHOLE = ParameterLayout((4,), ((0,), ()), True), ParameterLayout((4,), ((), ()), True)
VALUES = np.ones((8, 4), np.float32)
VALUES[0, 1], VALUES[7, 2] = 1e6, -2e6
"""Too large for float16 in the first row and in the last."""


@pytest.fixture
def paths(tmp_path: Path) -> Path:
    """One rank's `cut` and `shared`, for a target of four ranks that each have all of `shared`."""
    (tmp_path / "m.ckpt").write_bytes(
        checkpoint_bytes(*((name, "Float32", VALUES.shape, VALUES.tobytes()) for name in ("cut", "shared")))
    )
    write_strategy(make_strategy({"cut": ROWS, "shared": WHOLE}), str(tmp_path / "target.ckpt"))
    return tmp_path


def run(paths: Path, **options: object) -> ConversionReport:
    defaults: dict[str, object] = {
        "source": str(paths / "m.ckpt"),
        "target": str(paths / "out"),
        "target_strategy": str(paths / "target.ckpt"),
        "cast": ["*=float16"],
    }
    return convert(build_request(**(defaults | options)))


def test_a_rank_that_overflows_fails_with_one_message_and_nothing_is_half_written(paths: Path) -> None:
    with pytest.raises(InputError) as caught:
        run(paths, exclude=["shared"])
    message = str(caught.value)
    kept_in = f"{paths}/out.reshard-partial"
    assert message.startswith(f"2 of 4 target ranks failed ({kept_in} holds what is done)\n  rank_0: ")
    assert (
        "rank_0: parameter 'cut': 1 finite Float32 value becomes infinite as Float16; the first is at [0, 1]" in message
    )
    assert (
        "rank_3: parameter 'cut': 1 finite Float32 value becomes infinite as Float16; the first is at [7, 2]" in message
    )
    assert not (paths / "out").exists()
    kept = [path.name for path in (paths / "out.reshard-partial").rglob("*.ckpt")]
    assert sorted(kept) == ["checkpoint_1.ckpt", "checkpoint_2.ckpt"]


def test_copies_of_a_rank_that_overflows_change_nothing(paths: Path) -> None:
    with pytest.raises(InputError) as caught:
        run(paths, exclude=["cut"])
    assert str(caught.value).startswith("4 of 4 target ranks failed (")
    assert "rank_3: not written, because it is a copy of rank_0, which failed" in str(caught.value)


def test_it_is_not_tried_again(paths: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def counting(plan: ConversionPlan, ranks: Sequence[int], *args: Any, **kwargs: Any) -> tuple[ShardRecord, ...]:
        tried.append(ranks)
        return transform_ranks(plan, ranks, *args, **kwargs)

    monkeypatch.setattr(rank_work_module, "transform_ranks", counting)
    with pytest.raises(InputError, match="parameter 'shared': 2 finite Float32 values become infinite as Float16"):
        run(paths, target_strategy="", exclude=["cut"])
    assert tried == [(0,)]


def test_what_may_overflow_is_told_and_counts_once_whoever_has_it(paths: Path) -> None:
    report = run(paths, cast_overflow="allow")
    assert report.overflowed == {"cut": 2, "shared": 2}
    assert [rank.overflowed for rank in report.ranks] == [
        {"cut": 1, "shared": 2},
        {"shared": 2},
        {"shared": 2},
        {"cut": 1, "shared": 2},
    ]
    note = "cast, as allowed, although too large: 4 finite values became INFINITE (cut: 2, shared: 2)"
    assert report.notes[0] == note
    manifest = read_manifest(parse_url(str(paths / "out")))
    assert manifest is not None
    assert manifest.notes[0] == note
    with np.errstate(over="ignore"):
        wanted = VALUES.astype(np.float16)
    assert read_tree(paths / "out")[3]["shared"] == ("Float16", (8, 4), wanted.tobytes())


def test_what_stages_cut_differently_counts_once(paths: Path) -> None:
    columns = ParameterLayout((4,), ((), (0,)), True)
    write_strategy(make_strategy({"cut": ROWS}, {"cut": columns}), str(paths / "target.ckpt"))
    report = run(paths, cast_overflow="allow", exclude=["shared"])
    assert report.overflowed == {"cut": 2}
    assert [rank.overflowed.get("cut", 0) for rank in report.ranks] == [1, 0, 0, 1, 0, 1, 1, 0]


def test_ranks_that_are_done_keep_their_counts(paths: Path) -> None:
    first = run(paths, cast_overflow="allow", ranks="0")
    assert not first.committed
    assert first.overflowed == {"cut": 1, "shared": 2}
    second = run(paths, cast_overflow="allow")
    assert second.overflowed == {"cut": 2, "shared": 2}
    assert second.ranks[0].outcome.value == "resumed"
    assert second.ranks[0].overflowed == {"cut": 1, "shared": 2}
    assert run(paths, cast_overflow="allow").overflowed == {"cut": 2, "shared": 2}


def test_bfloat16_has_room_for_them(paths: Path) -> None:
    report = run(paths, cast=["*=bfloat16"])
    assert report.overflowed == {}
    assert report.committed


def test_a_record_without_overflows_is_as_it_always_was() -> None:
    record = ShardRecord(
        identity="i",
        rank=0,
        file="rank_0/f",
        size_bytes=1,
        copy_of=None,
        source_ranks=(0,),
        read_bytes=1,
        seconds=0.1,
        verified=VerifyLevel.NONE,
        heads=("h",),
        parameters=(),
    )
    assert b"overflows" not in dump_record(record)
    assert parse_shard_record(dump_record(record), "r") == record


def test_only_the_worst_are_named() -> None:
    [note] = overflow_notes({f"p{number}": number for number in range(1, 9)})
    assert note.endswith("(p8: 8, p7: 7, p6: 6, p5: 5, p4: 4, p3: 3 and 2 more)")
    assert overflow_notes({}) == ()


def transform(plan: ConversionPlan, directory: Path, block_bytes: int = 4096) -> None:
    budget = Buffers(scratch_bytes=4096, a_block_bytes=block_bytes, wide_bytes=block_bytes)
    out = parse_url(str(directory / "out"))
    for rank in plan.target_ranks:
        transform_ranks(plan, (rank,), out, identity="i", budget=budget, prefetch=1, advance=lambda _: None)


@pytest.mark.parametrize("block_bytes", [64, 4096])
def test_values_that_become_infinite_are_an_error_which_says_where(tmp_path: Path, block_bytes: int) -> None:
    plan = overflowing_plan(tmp_path, OverflowPolicy.FAIL)
    with pytest.raises(CastError) as caught:
        transform(plan, tmp_path, block_bytes)
    assert str(caught.value) == (
        "parameter 'w': 1 finite Float32 value becomes infinite as Float16; the first is at [2, 5], the largest is "
        "70000. Cast it to a dtype that holds them (bfloat16 has the range of float32), leave it as it is, or let them "
        "become infinite: cast_overflow='allow'. A conversion that has begun otherwise is replaced with overwrite=True"
    )
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_where_is_told_in_the_target_as_a_whole(tmp_path: Path) -> None:
    plan = overflowing_plan(tmp_path, OverflowPolicy.FAIL, transpose=True)
    with pytest.raises(CastError, match=r"3 finite Float32 values .* first is at \[1, 20\], the largest is -1e\+06\."):
        transform(plan, tmp_path)


@pytest.mark.parametrize("block_bytes", [64, 4096])
def test_values_that_may_become_infinite_are_counted(tmp_path: Path, block_bytes: int) -> None:
    plan = overflowing_plan(tmp_path, OverflowPolicy.ALLOW)
    budget = Buffers(scratch_bytes=4096, a_block_bytes=block_bytes, wide_bytes=block_bytes)
    out = parse_url(str(tmp_path / "out"))
    records = transform_ranks(plan, (0, 1), out, identity="i", budget=budget, prefetch=2, advance=lambda _: None)
    assert [[(each.name, each.count, each.largest) for each in record.overflows] for record in records] == [
        [("w", 1, 70000.0)],
        [("w", 2, -1e6)],
    ]

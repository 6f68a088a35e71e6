"""Casts, turned reads and parameters made of several: the files hold what numpy makes of the whole tensors."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reshard.core.checkpoint.catalog.builder import build_catalog
from reshard.core.checkpoint.model import CheckpointFormat
from reshard.core.errors import CastError
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.request.changes import Changes, OverflowPolicy, TransposeRule
from reshard.core.storage.urls import parse_url
from reshard.core.transfer import reader
from reshard.core.transfer.writer import transform_ranks
from tests.support.buffers import BUFFER_SIZES, Buffers
from tests.support.changed_values import (
    TARGET_DEVICES,
    WHOLE,
    draw_job,
    overflowing_plan,
    put_on_remote_storage,
    write_source,
)
from tests.support.checkpoints import read_rank


@pytest.mark.parametrize("remote", [False, True])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_file_holds_the_changed_shards(
    tmp_path_factory: pytest.TempPathFactory, remote: bool, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("work")
    job = draw_job(data, directory, remote)
    plan = job.plan(data.draw(st.sampled_from(list(CheckpointFormat))))
    gaps = data.draw(st.sampled_from([0, 7, 100, 10**6]))
    buffer_bytes, scratch_bytes, wide_bytes = data.draw(st.tuples(BUFFER_SIZES, BUFFER_SIZES, BUFFER_SIZES))
    prefetch, ranks = data.draw(st.tuples(st.integers(1, 3), st.sets(st.integers(0, TARGET_DEVICES - 1), min_size=1)))
    budget = Buffers(
        scratch_bytes=scratch_bytes,
        a_block_bytes=buffer_bytes,
        wide_bytes=max(wide_bytes, prefetch * buffer_bytes),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "GAP_WORTH_READING_BYTES", gaps)
        patch.setattr(reader, "REMOTE_GAP_WORTH_READING_BYTES", gaps)
        patch.setattr(reader, "MAX_REQUEST_BYTES", scratch_bytes)
        written = transform_ranks(
            plan,
            sorted(ranks),
            parse_url(str(directory / "out")),
            identity="i",
            budget=budget,
            prefetch=prefetch,
            advance=lambda _: None,
        )
    for record in written:
        found = read_rank(directory / "out", record.rank)
        assert found == job.wanted(record.rank)
        assert not record.overflows


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
        "become infinite: --cast-overflow allow. A conversion that has begun otherwise is replaced with --overwrite"
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


@pytest.mark.parametrize(("wide_bytes", "times"), [(2**18, 1), (2**16, 4), (2**15, 8)])
@pytest.mark.parametrize("prefetch", [1, 3])
@pytest.mark.parametrize("remote", [False, True])
def test_a_turned_matrix_is_read_once_for_each_wide_block(
    tmp_path: Path, wide_bytes: int, times: int, prefetch: int, remote: bool
) -> None:
    """256 KiB of which every block of the target is a strip of all rows; the parameters beside it are read once."""
    matrix = np.arange(256 * 256, dtype=np.int32).reshape(256, 256)
    tensors = dict.fromkeys(("before", "turned", "after"), ("Int32", matrix))
    write_source(tmp_path / "src", tensors, dict.fromkeys(tensors, WHOLE), 1)
    url = str(tmp_path / "src")
    if remote:
        url = put_on_remote_storage(tmp_path)
    catalog = build_catalog(url, range(1), digest=lambda *_: False, workers=1)
    changes = Changes(transpose=(TransposeRule(parameters="turned"),))
    plan = build_plan(PlanInputs(catalog, None, None, CheckpointFormat.CKPT, changes=changes))
    budget = Buffers(scratch_bytes=2**14, a_block_bytes=2**13, wide_bytes=wide_bytes)
    out = parse_url(str(tmp_path / "out"))
    [record] = transform_ranks(plan, (0,), out, identity="i", budget=budget, prefetch=prefetch, advance=lambda _: None)
    wanted = {name: ("Int32", matrix.shape, matrix.tobytes()) for name in ("before", "after")}
    assert read_rank(tmp_path / "out", 0) == wanted | {"turned": ("Int32", matrix.shape, matrix.T.tobytes())}
    # what lies between the strips of two reads is left out, and a little stands around contents
    assert 2 + 0.9 * times <= record.read_bytes / matrix.nbytes <= 1.01 * (2 + times)

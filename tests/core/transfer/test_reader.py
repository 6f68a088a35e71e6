"""Block readers: bytes that several ranks need are read once, and wide rows at once."""

from pathlib import Path

import numpy as np
import pytest

from reshard.core.checkpoint.catalog.builder import build_catalog
from reshard.core.checkpoint.model import CheckpointFormat
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import build_plan
from reshard.core.request.changes import Changes, TransposeRule
from reshard.core.storage.urls import parse_url
from reshard.core.transfer.writer import transform_ranks
from tests.support.buffers import Buffers
from tests.support.changed_values import (
    WHOLE,
    put_on_remote_storage,
    write_source,
)
from tests.support.checkpoints import read_rank


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

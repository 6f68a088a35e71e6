"""Block readers: bytes that several ranks need are read once, and wide rows at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reshard.core.transfer.reader
from reshard.core.changes.changes import Changes, TransposeRule
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.session import open_session
from reshard.core.errors import ConversionError
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.ranks.target import RankFolders
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import build_plan
from reshard.core.request.conversion import build_request
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.transfer.writer import transform_ranks
from tests.support.buffers import Buffers
from tests.support.changed_values import (
    WHOLE,
    put_on_remote_storage,
    write_source,
)
from tests.support.checkpoints import read_rank, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import RandomLayout, shard_of
from tests.support.source_directories import build_catalog


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
    plan = build_plan(PlanInputs(catalog, None, None, CheckpointFormat.CKPT, changes=changes, layout=RankFolders()))
    budget = Buffers(scratch_bytes=2**14, a_block_bytes=2**13, wide_bytes=wide_bytes)
    out = parse_url(str(tmp_path / "out"))
    [record] = transform_ranks(plan, (0,), out, identity="i", budget=budget, prefetch=prefetch, advance=lambda _: None)
    wanted = {name: ("Int32", matrix.shape, matrix.tobytes()) for name in ("before", "after")}
    assert read_rank(tmp_path / "out", 0) == wanted | {"turned": ("Int32", matrix.shape, matrix.T.tobytes())}
    # the gap between the strips of two reads is left out; a few bytes surround contents
    assert 2 + 0.9 * times <= record.read_bytes / matrix.nbytes <= 1.01 * (2 + times)


def test_wide_rows_that_ranks_share_are_taken_apart_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To each rank alone its part of a row of 512 KiB would be worth a read, and thousands of small copies."""
    shape, layout = (64, 2**17), ParameterLayout((8,), ((), (0,)), nested=True)
    content = bytes(range(256)) * (4 * 64 * 2**17 // 256)
    (tmp_path / "whole.ckpt").write_bytes(checkpoint_bytes(("a", "Int32", shape, content)))
    write_strategy(make_strategy({"a": layout}), str(tmp_path / "target.ckpt"))
    request = build_request(
        source=str(tmp_path / "whole.ckpt"),
        target=str(tmp_path / "out"),
        target_strategy=str(tmp_path / "target.ckpt"),
        workers=1,
        verify="none",
    )
    copies: list[object] = []
    deliver = reshard.core.transfer.fetches.Fetch.deliver

    def counting(fetch: Any, run: memoryview) -> None:
        copies.append(fetch)
        deliver(fetch, run)

    monkeypatch.setattr("reshard.core.transfer.fetches.Fetch.deliver", counting)
    assert convert(request).read_bytes == len(content)
    assert len(copies) == 8 * len(content) // 2**22, "one for each rank and read"


def test_only_who_needs_the_same_rows_reads_through_wide_gaps(tmp_path: Path) -> None:
    """32 ranks share the rows of one parameter; of the other those beside one another in the group need other rows."""
    devices, shape = 32, (64, 2**17)  # rows of 512 KiB, gaps between a rank's columns of 384 and 496 KiB
    tensors = {name: np.random.default_rng(1).integers(0, 2**31, shape, dtype=np.int32) for name in ("a", "b")}
    whole = checkpoint_bytes(*((name, "Int32", shape, tensor.tobytes()) for name, tensor in tensors.items()))
    (tmp_path / "whole.ckpt").write_bytes(whole)
    layouts = {
        "a": RandomLayout((devices,), ((), (0,)), ()),
        "b": RandomLayout((4, 8), ((0,), (1,)), ()),
    }
    strategy = make_strategy({name: as_layout(layout) for name, layout in layouts.items()})
    write_strategy(strategy, str(tmp_path / "target.ckpt"))
    request = build_request(
        source=str(tmp_path / "whole.ckpt"),
        target=str(tmp_path / "out"),
        target_strategy=str(tmp_path / "target.ckpt"),
        workers=4,
    )
    with open_session(request, make_plan(request)) as session:
        assert session.groups == tuple(tuple(range(first, first + 8)) for first in range(0, devices, 8))
    report = convert(request)
    # "a" is read by each of the 4 groups
    assert report.read_bytes < 5.1 * tensors["a"].nbytes
    held = read_tree(tmp_path / "out")
    for rank in range(devices):
        for name, tensor in tensors.items():
            shard = shard_of(tensor, layouts[name], rank)
            assert held[rank][name] == ("Int32", shard.shape, shard.tobytes())


def test_bytes_without_a_place_of_their_length_are_a_bug_and_shift_no_others() -> None:
    class Item:
        def __init__(self, offset: int, length: int, place: int) -> None:
            self.offset, self.length, self.destination = offset, length, memoryview(bytearray(place))

    request: Any = reshard.core.transfer.reader._Request(3, [Item(10, 4, 3), Item(14, 4, 4)], 10, 8)  # type: ignore[list-item]
    with pytest.raises(ConversionError, match="rank 3: 4 bytes at 10 have a place of 3. This is a bug in reshard"):
        reshard.core.transfer.reader._parts(request)


def test_parameters_that_are_read_alike_from_shards_of_other_shapes(tmp_path: Path) -> None:
    """Rank 0 needs the same corner of both, in files where one's rows and the other's columns are divided."""
    values = np.arange(24, dtype=np.int32).reshape(4, 6)
    tensors = {"by_rows": ("Int32", values), "by_columns": ("Int32", values + 100)}
    cuts = {"by_rows": RandomLayout((2,), ((0,), ()), ()), "by_columns": RandomLayout((2,), ((), (0,)), ())}
    write_source(tmp_path / "src", tensors, cuts, 2)
    layouts = {name: as_layout(cut) for name, cut in cuts.items()}
    corners = ParameterLayout((2, 2), ((1,), (0,)), nested=True)
    write_strategy(make_strategy(layouts), str(tmp_path / "source.ckpt"))
    write_strategy(make_strategy(dict.fromkeys(tensors, corners)), str(tmp_path / "target.ckpt"))
    convert(
        build_request(
            source=str(tmp_path / "src"),
            source_strategy=str(tmp_path / "source.ckpt"),
            target=str(tmp_path / "out"),
            target_strategy=str(tmp_path / "target.ckpt"),
            verify="none",
        )
    )
    for rank in range(4):
        row, column = divmod(rank, 2)
        corner = (slice(2 * row, 2 * row + 2), slice(3 * column, 3 * column + 3))
        wanted = {name: ("Int32", (2, 3), array[corner].tobytes()) for name, (_, array) in tensors.items()}
        assert read_rank(tmp_path / "out", rank) == wanted

"""Samples of contents that contradict a strategy."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from reshard.core.tensor.layout import ParameterLayout, whole_layout
from tests.support.diagnosed import CUT_NORM, LAYERS, SLOWER_NORM, looked_at, only, problems, shaped
from tests.support.two_stages import STAGES, put, whole, write


def test_saved_whole(tmp_path: Path) -> None:
    one = [{name: whole_layout(whole(name).ndim, 4) for name in layouts} for layouts in STAGES]
    write(tmp_path / "src", one)
    finding = only(looked_at(tmp_path), "contents")
    assert finding.found.startswith(
        "ranks hold the same contents although the strategy cuts them: 'net.embed.w' is the same on"
    )
    assert "integrated_save" in finding.means


def test_a_replica_that_differs(tmp_path: Path) -> None:
    write(tmp_path / "src", seeds={2: 0.5})
    finding = only(looked_at(tmp_path), "contents")
    assert finding.found.startswith("ranks do not hold what the strategy says they share: ")
    assert "'net.embed.w' differs on rank_0, rank_2, which should hold the same" in finding.found


def test_devices_in_another_order(tmp_path: Path) -> None:
    other = ParameterLayout((2, 2), ((1,), ()))
    write(tmp_path / "src", [{**STAGES[0], "net.l.0.wq": other}, STAGES[1]])
    finding = only(looked_at(tmp_path), "contents")
    assert "'net.l.0.wq' differs on rank_0, rank_2, which should hold the same" in finding.found
    assert "'net.l.0.wq' is the same on rank_0, rank_1, which should hold different slices" in finding.found


def test_other_sizes_of_as_many_devices(tmp_path: Path) -> None:
    write(tmp_path / "src")
    for sizes in ((1, 4), (4, 1)):
        stages = [{name: replace(lay, device_matrix=sizes) for name, lay in each.items()} for each in STAGES]
        finding = only(looked_at(tmp_path, stages), "contents")
        assert finding.found.startswith("ranks do not hold what the strategy says they share: ")
        assert "another arrangement of devices" in finding.means
        of_shapes = problems(looked_at(tmp_path, shaped(stages), "strategy.json"))
        assert of_shapes[0].found.startswith("shards of other shapes than the strategy's: 'net.embed.w' is [4, 8] on")


def test_zeros_are_no_finding(tmp_path: Path) -> None:
    write(tmp_path / "src")
    for rank in range(4):
        entries = [("net.l.0.wq", "Float32", (4, 8), bytes(128)), ("net.embed.w", "Float32", (4, 8), bytes(128))]
        put(tmp_path / "src", rank, *entries)
    assert all(finding.check == "names" for finding in looked_at(tmp_path).findings)


SLOWER = ParameterLayout((2, 2), ((1,), ()))


@pytest.mark.parametrize(
    ("saved", "strategy_says"),
    [({}, {"l.3.wq": SLOWER}), ({"l.3.norm": SLOWER_NORM}, {}), ({"l.2.norm": SLOWER_NORM}, {"l.2.norm": CUT_NORM})],
    ids=["order of devices", "cut, not whole", "order of devices of a small one"],
)
def test_one_layer_of_many(
    tmp_path: Path, saved: Mapping[str, ParameterLayout], strategy_says: Mapping[str, ParameterLayout]
) -> None:
    write(tmp_path / "src", [{**LAYERS, **saved}])
    for name, stages in (("s.ckpt", [{**LAYERS, **strategy_says}]), ("s.json", shaped([{**LAYERS, **strategy_says}]))):
        found = problems(looked_at(tmp_path, stages, name))
        assert any(repr([*saved, *strategy_says][0]) in finding.found for finding in found)


@pytest.mark.parametrize("name", ["net.l.0.wq", "net.l.0.norm"])
def test_one_parameter_was_saved_whole(tmp_path: Path, name: str) -> None:
    stages = [{**STAGES[0], "net.l.0.norm": CUT_NORM}, STAGES[1]]
    write(tmp_path / "src", [{**stages[0], name: whole_layout(whole(name).ndim, 4)}, stages[1]])
    finding = only(looked_at(tmp_path, stages), "contents")
    assert finding.found.startswith(
        f"ranks hold the same, as if it were whole, although the strategy cuts it: {name!r}"
    )
    of_shapes = problems(looked_at(tmp_path, shaped(stages), "strategy.json"))[0]
    assert of_shapes.found.startswith(
        "ranks hold the whole of what the strategy cuts, though they hold slices of others"
    )


def test_slices_that_are_the_same(tmp_path: Path) -> None:
    stages = [{**STAGES[0], "net.l.0.wo": ParameterLayout((2, 2), ((1,), (0,)))}, STAGES[1]]
    write(tmp_path / "src", stages)
    for rank in range(4):
        entries = [("net.embed.w", "Float32", (4, 8), np.arange(32, dtype=np.float32).tobytes())]
        entries += [
            (name, "Float32", shard.shape, shard.tobytes())
            for name, layout in stages[0].items()
            if name != "net.embed.w"
            for shard in [whole(name)[layout.shard_grid(whole(name).ndim).box_of(rank, whole(name).shape).as_index()]]
        ]
        put(tmp_path / "src", rank, *entries)
    # shapes prove that these are slices
    assert looked_at(tmp_path, shaped(stages), "strategy.json").fits
    assert "(experts copied of one)" in only(looked_at(tmp_path, stages), "contents").means


def test_rank_folders_swapped_among_many(tmp_path: Path) -> None:
    many = ParameterLayout((64, 2), ((0,), ()))
    write(tmp_path / "src", [{"l.0.wq": many}])
    (tmp_path / "src/rank_50").rename(tmp_path / "src/kept")
    (tmp_path / "src/rank_51").rename(tmp_path / "src/rank_50")
    (tmp_path / "src/kept").rename(tmp_path / "src/rank_51")
    finding = only(looked_at(tmp_path, [{"l.0.wq": many}]), "contents")
    assert "'l.0.wq' differs on rank_0, rank_50, which should hold the same" in finding.found
    assert "rank folders that were swapped" in finding.means

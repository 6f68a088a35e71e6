"""The picture of a plan: every byte is in it, in its place, whatever the number of ranks."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.views.picture import Feeds, _ranks_per_bin, draw_feeds, feeds_of
from reshard.core.plan.plan import ConversionPlan
from tests.support.checkpoints import ALL_CASES, Case, case

PIPELINES = case(7001)


def plan_of(conversion: Case) -> ConversionPlan:
    return make_plan(conversion.request("/nowhere/out"))


def bytes_by_rank(plan: ConversionPlan) -> np.ndarray:
    """The same from all reads, one by one."""
    carried = {parameter.name for parameter in plan.match.passed_through}
    counts = np.zeros((len(plan.target_ranks), len(plan.inputs.catalog.records)), dtype=np.int64)
    for rank in plan.target_ranks:
        for parameter in plan.rank_plan(rank).parameters:
            for read in () if parameter.name in carried else parameter.reads:
                counts[rank, read.source_rank] += read.target_box.size * parameter.dtype.itemsize
    return counts


@pytest.mark.parametrize("conversion", ALL_CASES, ids=lambda case: case.directory.name)
def test_every_read_is_in_the_picture(conversion: Case) -> None:
    plan = plan_of(conversion)
    assert np.array_equal(feeds_of(plan).counts_bytes, bytes_by_rank(plan))


def test_many_ranks_are_binned_and_nothing_is_lost() -> None:
    plan = plan_of(PIPELINES)
    single, binned = feeds_of(plan), feeds_of(plan, max_rows=5, max_columns=5)
    assert single.counts_bytes.shape == (12, 8)
    assert (binned.counts_bytes.shape, binned.ranks_per_bin) == ((4, 4), (3, 2))
    assert np.array_equal(binned.counts_bytes, single.counts_bytes.reshape(4, 3, 4, 2).sum(axis=(1, 3)))


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_few_ranks_are_drawn_with_numbers() -> None:
    feeds = Feeds(np.array([[2048, 0], [0, 3]]), range(2), range(4, 6), (1, 1))
    said = texts(draw_feeds(feeds))
    assert {"Source rank", "Target rank", "4", "5", "2.0 KiB", "3 B", "up to 2.0 KiB", "nothing"} <= set(said)


def test_thousands_of_ranks_make_a_small_picture() -> None:
    counts = np.random.default_rng(1).integers(0, 10**9, (64, 64))
    svg = draw_feeds(Feeds(counts, range(3072), range(4096), (48, 64)))
    assert len(svg) < 100_000
    assert {"Source rank, 64 to a cell", "Target rank, 48 to a cell", "512"} <= set(texts(svg))


def test_labels_of_flat_rows_do_not_touch() -> None:
    svg = ElementTree.fromstring(draw_feeds(Feeds(np.ones((16, 64)), range(16), range(64), (1, 1))))
    labels = [element for element in svg.iter("{http://www.w3.org/2000/svg}text") if element.get("class") == "end"]
    heights = [int(element.get("y", "")) for element in labels]
    assert len(heights) >= 4
    assert min(np.diff(heights)) >= 12


def test_bins_are_equal_if_that_costs_few_of_them() -> None:
    ranks = range(1024)
    plan_bins = {most: _ranks_per_bin(len(ranks), most) for most in (2000, 64, 36, 57, 1)}
    assert plan_bins == {2000: 1, 64: 16, 36: 32, 57: 18, 1: 1024}


def test_cells_tell_their_ranks_and_bytes_where_the_mouse_is() -> None:
    feeds = Feeds(np.array([[2048, 0], [0, 3]]), range(2), range(8), (1, 4))
    svg = draw_feeds(feeds, tooltips=True)
    root = ElementTree.fromstring(svg)
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [
        "Which source ranks feed which target ranks",
        "source ranks 0-3 to target rank 0: 2.0 KiB",
        "source ranks 4-7 to target rank 1: 3 B",
    ]
    [message] = root.iter("{http://www.w3.org/2000/svg}desc")
    assert message.text == (
        "A grid: 2 target ranks from top to bottom, 8 source ranks from left to right. "
        "2 of 4 cells have bytes, the most 2.0 KiB."
    )
    assert "<rect x=" not in draw_feeds(feeds)


def test_more_bytes_are_darker() -> None:
    feeds = Feeds(np.array([[1000, 999, 10, 0]]), range(1), range(4), (1, 1))
    paths = re.findall(r'<path class="level\d" fill="(#\w+)" d="([^"]+)"', draw_feeds(feeds))
    lightness = [(sum(bytes.fromhex(color[1:])), path.count("M")) for color, path in paths]
    assert [count for _, count in sorted(lightness)] == [2, 1, 1]

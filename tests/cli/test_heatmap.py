"""The picture on a terminal, at several widths, with colors and without."""

import io
import re
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from reshard.cli.heatmap import print_feeds
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.views.picture import feeds_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import case
from tests.support.plans import entry, make_catalog, make_strategy, plan_of

TRUE_COLOR: dict[str, Any] = {"force_terminal": True, "color_system": "truecolor"}


@lru_cache
def line_of(sources: int, targets: int) -> ConversionPlan:
    """A vector that is resharded."""
    length = sources * targets
    source, target = (make_strategy({"w": ParameterLayout((n,), ((0,),), nested=True)}) for n in (sources, targets))
    return plan_of(make_catalog({rank: [entry("w", (length // sources,))] for rank in range(sources)}), source, target)


def drawn(plan: ConversionPlan, width: int = 80, encoding: str = "utf-8", **settings: Any) -> list[str]:
    bytes_out = io.BytesIO()
    file = io.TextIOWrapper(bytes_out, encoding=encoding)
    print_feeds(plan, Console(file=file, width=width, **settings))
    file.flush()
    return bytes_out.getvalue().decode(encoding).splitlines()


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", line)


def test_few_ranks_have_numbers() -> None:
    assert drawn(make_plan(case(7010).request("/nowhere/out"))) == [
        "Bytes from source rank (across) to target rank (down)",
        "        0     1     2     3     4     5     6     7",
        "0 |   14K   14K   14K   14K   37K   25K   25K   25K|",
        "1 |   14K   14K   14K   14K   37K   25K   25K   25K|",
        "Parameters that no strategy knows are on every rank, and not in the picture.",
    ]


def test_more_ranks_have_shades_and_a_legend() -> None:
    lines = drawn(line_of(24, 12))
    assert lines[1].split() == [str(rank) for rank in range(0, 24, 2)]
    assert [line[:4] for line in lines[2:14]] == [f"{rank if rank % 2 == 0 else '':>2} |" for rank in range(12)]
    assert lines[2] == " 0 |████" + " " * 44 + "|"
    assert lines[3] == "   |    ████" + " " * 40 + "|"
    assert lines[15].startswith("[██] up to 48 B  [▓▓] up to 12 B  ")
    assert lines[-1].endswith("[  ] nothing  ")


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("settings", [{}, TRUE_COLOR, {"encoding": "ascii"}])
def test_a_thousand_ranks_fit(width: int, settings: dict[str, Any]) -> None:
    lines = [plain(line) for line in drawn(line_of(1024, 768), width, **settings)]
    assert all(len(line.rstrip()) <= width for line in lines)
    assert len(lines) <= 41
    assert " to a cell" in " ".join(lines[:2])


def test_every_bin_is_drawn_in_its_shade() -> None:
    plan = line_of(1024, 768)
    lines = drawn(plan)
    counts = feeds_of(plan, 32, 36).counts_bytes
    assert counts.shape == (32, 32)
    grid = [line.partition("|")[2][:-1:2] for line in lines[2:34]]
    assert [[character != " " for character in row] for row in grid] == (counts > 0).tolist()


def test_two_rows_share_a_line_where_there_are_colors() -> None:
    plan = line_of(1024, 768)
    lines = drawn(plan, **TRUE_COLOR)
    counts = feeds_of(plan, 64, 72).counts_bytes
    assert counts.shape == (64, 64)
    cells = [re.findall(r"\x1b\[38;2;([\d;]+);48;2;([\d;]+)m(▀+)", line) for line in lines[2:34]]
    nothing = "243;244;246"
    upper = [[color != nothing for color, _, run in line for _ in run] for line in cells]
    lower = [[color != nothing for _, color, run in line for _ in run] for line in cells]
    assert upper == (counts[::2] > 0).tolist()
    assert lower == (counts[1::2] > 0).tolist()


def test_an_odd_number_of_rows() -> None:
    lines = drawn(line_of(100, 33), **TRUE_COLOR)
    assert plain(lines[18]).count("▀") == feeds_of(line_of(100, 33), 64, 75).counts_bytes.shape[1]


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_without_colors_there_are_densities(variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*variable)
    lines = drawn(line_of(100, 33), force_terminal=True)
    assert not any("\x1b[38" in line or "\x1b[48" in line for line in lines)
    assert "██" in lines[2]


def test_an_encoding_without_blocks() -> None:
    lines = drawn(line_of(100, 33), encoding="ascii")
    assert "@@" in lines[2]
    assert lines[-1].endswith("[  ] nothing  ")


def test_nothing_is_drawn_where_nothing_is_cut() -> None:
    plan = plan_of(make_catalog({0: [entry("w", (0,))]}), None, None)
    assert not feeds_of(plan).counts_bytes.any()
    assert drawn(plan) == []


def test_numbers_are_short_whatever_they_are() -> None:
    from reshard.cli.heatmap import _short_size

    sizes = [0, 1023, 1024, 10188, 10190, 1023 * 1024 + 500, 1024**2, 5 * 2**40, 1023 * 2**50]
    assert [_short_size(size) for size in sizes] == [
        "0",
        "1023",
        "1.0K",
        "9.9K",
        "10K",
        "1023K",
        "1.0M",
        "5.0T",
        "1023P",
    ]
    assert all(len(_short_size(int(size))) <= 5 for size in np.geomspace(1, 2**59, 500))

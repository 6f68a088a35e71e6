"""The page of a plan: whole, well-formed, readable by itself, and never in the place of something else."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from reshard.core.conversion.planning import describe_plan
from reshard.core.conversion.report import PlanSummary
from reshard.core.conversion.views.overlap_picture import draw_overlaps
from reshard.core.conversion.views.page import plan_page, write_page
from reshard.core.conversion.views.picture import feeds_of
from reshard.core.errors import InputError
from reshard.core.plan.overlaps import overlaps_of
from reshard.core.plan.plan import ConversionPlan, build_plan
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import case
from tests.support.plans import entry, make_catalog, make_strategy, plan_of

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Elements and texts; every element is closed in its turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: Counter[str] = Counter()
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "xlink:href")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def described(number: int) -> tuple[ConversionPlan, PlanSummary]:
    return describe_plan(case(number).request("memory://nowhere"))


def test_the_page_has_the_picture_the_totals_and_every_rank() -> None:
    plan, summary = described(7001)
    page = Page(plan_page(plan, summary))
    assert {"Plan: 8 → 12 ranks", "Which source ranks feed which target ranks", "12 ranks", "8 → 12"} <= set(page.texts)
    assert {rank.file for rank in summary.ranks} <= set(page.texts)
    assert set(summary.notes) <= set(page.texts)
    assert page.tags["svg"] == 1
    # each cell that has bytes tells so
    reason = [text for text in page.texts if re.fullmatch(r"source rank \d+ to target rank \d+: .*", text)]
    assert len(reason) == np.count_nonzero(feeds_of(plan).counts_bytes)


def test_the_page_needs_nothing_else() -> None:
    plan, summary = described(7010)
    text = plan_page(plan, summary, overlaps_of(plan, plan.match.resharded[0]))
    page = Page(text)
    assert page.links == []
    assert page.tags["script"] == page.tags["link"] == page.tags["img"] == 0
    assert "url(" not in text
    assert "@import" not in text
    assert set(re.findall(r"https?://[^\"' <]+", text)) == {"http://www.w3.org/2000/svg"}
    assert page.tags["svg"] == page.tags["desc"] == 2
    assert text.count('role="img" aria-labelledby=') == 2


HOSTILE = "</title><script>alert(1)</script>&\"'"


def test_names_are_text_and_nothing_else() -> None:
    layout = ParameterLayout((2,), ((0,), ()), nested=True)
    strategy = make_strategy({HOSTILE: layout})
    plan = plan_of(make_catalog({rank: [entry(HOSTILE, (2, 4))] for rank in range(2)}), strategy, None)
    _, summary = described(7010)
    hostile = summary.model_copy(update={"source": HOSTILE, "notes": (HOSTILE,), "step": HOSTILE})
    text = plan_page(plan, hostile, overlaps_of(plan, plan.match.resharded[0]))
    page = Page(text)
    assert page.tags["script"] == 0
    assert page.texts.count(HOSTILE) == 3
    assert f"Parameter {HOSTILE}" in page.texts


@pytest.mark.parametrize(
    ("shape", "tensor_map", "axes"),
    [
        ((8,), ((0,),), "axis 0 across"),
        ((8, 4), ((), (0,)), "axis 0 down, axis 1 across"),
        ((2, 3, 8), ((), (), (0,)), "axis 0 down, axis 2 across"),
        ((8, 8, 8), ((0,), (1,), (2,)), "axis 0 down, axis 1 across, at the beginning of axis 2, cut as well"),
        ((), (), "one element"),
    ],
)
def test_a_parameter_is_drawn_by_the_axes_that_are_cut(
    shape: tuple[int, ...], tensor_map: tuple[tuple[int, ...], ...], axes: str
) -> None:
    strategy = make_strategy({"w": ParameterLayout((2, 2, 2), tensor_map, nested=True)})
    shard = tuple(length // 2 if cut else length for length, cut in zip(shape, tensor_map, strict=True))
    plan = plan_of(make_catalog({rank: [entry("w", shard)] for rank in range(8)}), strategy, strategy)
    page = Page(draw_overlaps(overlaps_of(plan, plan.match.resharded[0])))
    assert page.texts.count(axes) == 2


def test_parts_that_are_cut_along_other_axes_than_the_cells_are_all_seen() -> None:
    source = make_strategy({"w": ParameterLayout((2,), ((), (), (0,)), nested=True)})
    target = make_strategy({"w": ParameterLayout((2,), ((), (0,), ()), nested=True)})
    plan = plan_of(make_catalog({rank: [entry("w", (8, 8, 4))] for rank in range(2)}), source, target)
    svg = draw_overlaps(overlaps_of(plan, plan.match.resharded[0]))
    places = re.findall(r'class="part" (x="\S+" y="\S+") [^>]*><title>target', svg)
    assert len(places) == len(set(places)) == 4


def test_what_fills_a_target_cell_is_told_and_colored_like_its_source() -> None:
    source = make_strategy({"w": ParameterLayout((4,), ((0,),), nested=True)})
    target = make_strategy({"w": ParameterLayout((3,), ((0,),), nested=True)})
    plan = plan_of(make_catalog({rank: [entry("w", (3,))] for rank in range(4)}), source, target)
    svg = draw_overlaps(overlaps_of(plan, plan.match.resharded[0]))
    colors = re.findall(r'fill="(hsl[^"]+)"><title>([^<]+)', svg)
    [of_rank_1] = {color for color, said in colors if "source ranks 1" in said}
    taken = {said for color, said in colors if color == of_rank_1}
    assert taken == {
        "[3:6] on source ranks 1",
        "target ranks 0: [3:4], 4 B, from source rank 1&#x27;s w [3:4]",
        "target ranks 1: [4:6], 8 B, from source rank 1&#x27;s w [4:6]",
    }


def test_files_of_whole_tensors() -> None:
    request = case(7010).request("memory://nowhere", target_strategy="", layout="unified", max_shard_size="20KB")
    plan, summary = describe_plan(request)
    parameter = next(each for each in plan.match.resharded if 1 in each.target_layouts)
    texts = Page(plan_page(plan, summary, overlaps_of(plan, parameter))).texts
    assert {"Plan: 8 ranks → 5 files", "Which source ranks feed which target files", "Target files"} <= set(texts)
    assert any(text.startswith("source rank 0 to target file 1: ") for text in texts)
    assert "Target in model-00002-of-00005.safetensors" in texts


def test_what_declared_changes_do() -> None:
    changes = {"transpose": ["layers.1.*"], "cast": ["layers.1.*=bfloat16"], "exclude": ["adam_m.*"]}
    request = case(7010).request("memory://nowhere", target_strategy="", **changes)
    texts = Page(plan_page(*describe_plan(request))).texts
    assert {"Changed parameters", "transposed, cast", "Float32 → BFloat16", "[96, 8, 4] → [4, 8, 96]"} <= set(texts)
    assert {"Left out", "adam_m.layers.4.weight_4"} <= set(texts)


def test_a_page_is_replaced_by_another(tmp_path: Path) -> None:
    plan, summary = described(7010)
    page = plan_page(plan, summary)
    file = tmp_path / "plan.html"
    file.touch()
    write_page(str(file), "<!doctype html>")
    file.unlink()
    write_page(str(file), page)
    write_page(str(file), page + "<!-- newer -->")
    assert file.read_text().endswith("<!-- newer -->")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]


def test_a_page_is_not_written_where_it_would_do_harm(tmp_path: Path) -> None:
    other = tmp_path / "net.ckpt"
    other.write_bytes(b"weights")
    refused = {
        other: "is there already, and no page of a plan; delete it, or name another file",
        tmp_path / "missing" / "plan.html": f"there is no directory {tmp_path / 'missing'}; create it",
        tmp_path: "is a directory; name the file to be written",
    }
    for path, message in refused.items():
        with pytest.raises(InputError, match=re.escape(message)):
            write_page(str(path), "page")
    assert other.read_bytes() == b"weights"


def test_a_name_that_no_encoding_holds(tmp_path: Path) -> None:
    write_page(str(tmp_path / "plan.html"), "a\udc80b")
    assert (tmp_path / "plan.html").read_bytes() == b"a\\udc80b"


def test_nothing_is_drawn_where_nothing_is_cut() -> None:
    plan = build_plan(plan_of(make_catalog({0: [entry("w", (0,))]}), None, None).inputs)
    _, summary = described(7010)
    assert Page(plan_page(plan, summary)).tags["svg"] == 0

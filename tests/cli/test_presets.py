"""`reshard presets`."""

from collections.abc import Callable
from typing import Any

import pytest

from reshard.core.changes.preset import list_presets, parse_preset, preset_names, preset_text
from reshard.core.reports.plain_text import Paper, lines_of


def test_presets_are_listed(reshard: Callable[..., Any]) -> None:
    listed = reshard("presets")
    assert listed.code == 0
    rows = [line.split()[0] for line in listed.out.splitlines()]
    assert rows == ["preset", *preset_names()]
    assert [each["preset"] for each in reshard("presets", "--json").json["presets"]] == list(preset_names())


def test_a_document_is_printed(reshard: Callable[..., Any]) -> None:
    printed = reshard("presets", "qwen3")
    assert printed.out == preset_text("qwen3")
    assert parse_preset(printed.out.encode(), "printed.yaml").preset == "qwen3"


def test_a_preset_that_does_not_exist(reshard: Callable[..., Any]) -> None:
    refused = reshard("presets", "gpt")
    assert refused.code == 2
    assert "there is no preset 'gpt'" in refused.err


@pytest.mark.parametrize(("columns", "left_out"), [(80, "switches, rules"), (62, "switches, rules, names")])
def test_the_list_on_a_narrow_terminal_has_whole_names(columns: int, left_out: str) -> None:
    lines = [line for block in list_presets().blocks() for line in lines_of(block, Paper(columns, "--json"))]
    assert not [line for line in lines if "…" in line or len(line) > columns]
    assert f"no room for: {left_out};" in " ".join(lines)

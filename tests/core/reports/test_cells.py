import unicodedata

import pytest
from rich.cells import cell_len

from reshard.core.reports.cells import cell_count, shortened


@pytest.mark.parametrize(
    ("text", "width", "shorter"),
    [
        ("short", 5, "short"),
        ("0,2,4,6,8,10,12,14", 12, "0,2,4,6,…,14"),
        ("1234567890", 5, "1234567890"),
        ("model.layers.0.weight", 15, "model.…0.weight"),
        ("model.layers.10.feed_forward.w1.weight", 30, "model.layers.10…ward.w1.weight"),
        ("模型检查点文件的名称", 9, "模型…名称"),
    ],
)
def test_texts_are_shortened_and_numbers_are_not_cut(text: str, width: int, shorter: str) -> None:
    assert shortened(text, width) == shorter


def test_another_mark_may_take_the_place_of_what_is_cut_out() -> None:
    assert shortened("model.layers.0.weight", 11, "..") == "m..0.weight"


@pytest.mark.parametrize("text", ["plain", "模型检查点", "한글 모델", "e\u0301", "ﬁ ½ é", "🙂"])
def test_widths_are_those_that_rich_knows(text: str) -> None:
    assert cell_count(text) == cell_len(text)
    assert cell_count(unicodedata.normalize("NFD", text)) == cell_len(unicodedata.normalize("NFD", text))


@pytest.mark.parametrize("name", ["x" * 10**6, "模" * 10**6])
def test_a_very_long_name_is_shortened_at_once(name: str) -> None:
    shorter = shortened(name, 20)
    assert cell_count(shorter) in (19, 20)
    assert "…" in shorter

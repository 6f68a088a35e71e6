"""Suggestions of what was meant, from one place for presets, dtypes, parameters and options."""

import pytest

import reshard
from reshard.core.changes.changes import Changes, parse_cast
from reshard.core.changes.preset import read_preset
from reshard.core.errors import InputError
from reshard.core.plan.recipes import build_recipes
from reshard.core.runtime.suggestions import close_words, did_you_mean

OPTIONS = ["source", "source_strategy", "source_storage", "trust_strategy", "target_strategy", "overwrite"]


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("source_stategy", OPTIONS, "; did you mean source_strategy?"),
        ("Source-Strategy", OPTIONS, "; did you mean source_strategy?"),
        ("overwritte", OPTIONS, "; did you mean overwrite?"),
        ("qwen", ["llama", "qwen2", "qwen3"], "; did you mean qwen3 or qwen2?"),
        (
            "wq.weight",
            ["l.0.attention.wk.weight", "l.0.attention.wq.weight"],
            "; did you mean l.0.attention.wq.weight?",
        ),
        ("zzz", OPTIONS, ""),
        ("", OPTIONS, ""),
    ],
)
def test_only_words_that_may_be_meant_are_suggested(word: str, known: list[str], expected: str) -> None:
    assert did_you_mean(word, known) == expected


def test_words_much_less_similar_than_the_best_are_not_suggested() -> None:
    assert close_words("target_stategy", OPTIONS) == ["target_strategy"]


def test_a_misspelled_option_of_a_program_suggests_the_right_one() -> None:
    with pytest.raises(InputError, match=r"source_stategy: there is no such option; did you mean source_strategy\?"):
        reshard.convert("a", "b", source_stategy="s")  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"storrage: there is no such option; did you mean storage\?"):
        reshard.inspect("a", storrage="s")  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"layout 'unifed': .*; did you mean unified\?"):
        reshard.convert("a", "b", layout="unifed")  # type: ignore[arg-type]


@pytest.mark.parametrize(("word", "meant"), [("bf16", "bfloat16"), ("fp16", "float16"), ("flaot32", "float32")])
def test_a_misspelled_dtype_suggests_the_right_one(word: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"unsupported dtype '{word}'; did you mean {meant}\?"):
        parse_cast(f"*={word}")


def test_a_misspelled_preset_suggests_the_right_one() -> None:
    with pytest.raises(InputError, match=r"there is no preset 'mixtal'; did you mean mixtral\? There are baichuan"):
        read_preset("mixtal")


def test_a_pattern_that_fits_nothing_suggests_a_parameter() -> None:
    problems: list[str] = []
    build_recipes(["l.0.wq.weight", "l.0.norm"], Changes(exclude=("l.0.wq.wieght",)), problems)
    assert "(exclude) matches no parameter; did you mean l.0.wq.weight?" in problems[0]

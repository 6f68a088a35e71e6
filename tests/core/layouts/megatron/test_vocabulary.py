"""How much of a vocabulary with rows of padding becomes Hugging Face's: training tells how it was padded."""

import json
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import PlanError
from reshard.core.request.conversion import ConversionRequest, build_request
from tests.support.checkpoints import read_safetensors
from tests.support.places import FIXTURES

SOURCES = FIXTURES / "megatron"
LAYOUTS = ("legacy_tp2_pp2", "dist_tp2_pp2_optimizer")
EMBEDDING = "embedding.word_embeddings.weight"


def _request(case: str, vocabulary: int, directory: Path) -> ConversionRequest:
    """A conversion of a model that has 32 rows of vocabulary, a multiple of 2, to Hugging Face's names."""
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": vocabulary}))
    return build_request(
        source=str(SOURCES / case / "src"),
        target=str(directory / "hf"),
        layout="unified",
        preset="qwen3",
        config_json=str(directory),
        select="weights-only",
    )


@pytest.mark.parametrize("case", LAYOUTS)
def test_rows_of_padding_are_left_out(case: str, tmp_path: Path) -> None:
    report = convert(_request(case, 31, tmp_path))
    left_out = f"{EMBEDDING}: the first 31 of 32 rows are the vocabulary; rows of padding are left out"
    assert left_out in report.notes
    found = read_safetensors(tmp_path / "hf/model.safetensors")
    assert found["lm_head.weight"][1][0] == found["model.embed_tokens.weight"][1][0] == 31


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_vocabulary_without_padding_is_kept_silently(case: str, tmp_path: Path) -> None:
    report = convert(_request(case, 32, tmp_path))
    assert not [note for note in report.notes if "padding" in note]


@pytest.mark.parametrize("case", LAYOUTS)
def test_rows_that_are_no_padding_are_not_left_out(case: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as refused:
        convert(_request(case, 20, tmp_path))
    assert (
        f"{EMBEDDING!r} has 32 rows, but training pads a vocabulary of 20 (vocab_size in config.json) to 20 rows, a "
        "multiple of 2: correct vocab_size"
    ) in str(refused.value)

"""Names and shapes of a plan of 671 billion parameters are those of transformers' model."""

import math
import os
from pathlib import Path

import pytest

import reshard
from demo import make_full_size
from tests.conformance.mindspore_process import TORCH_PYTHON, TransformersJudge

MTP_LAYER = f"model.layers.{make_full_size.LAYERS}."


@pytest.mark.slow
@pytest.mark.skipif(not TORCH_PYTHON.exists(), reason="make .venv-torch/installed")
def test_the_plan_makes_what_transformers_reads(transformers: TransformersJudge, tmp_path: Path) -> None:
    make_full_size.make(tmp_path)
    wanted = transformers.ask("shapes_of", directory=os.fspath(tmp_path / "model"))
    plan = reshard.plan(
        tmp_path / "training",
        layout="unified",
        preset="deepseek3",
        config_json=tmp_path / "model",
        # transformers holds the experts of a layer in one tensor
        dialect="transformers5",
        switch=["use_interleaved_weight_layout_mlp=true"],
        select="weights-only",
    )
    made = {effect.parameter: list(effect.shape) for effect in plan.effects}
    # transformers has no layers for multi-token prediction
    assert {name: shape for name, shape in made.items() if not name.startswith(MTP_LAYER)} == wanted
    assert sum(map(math.prod, wanted.values())) == 671_026_419_200
    assert plan.parameters == len(made)

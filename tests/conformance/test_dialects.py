"""What transformers writes in either dialect of Hugging Face's names, and what reshard makes of one for the other."""

from pathlib import Path

import pytest

from reshard.core.changes.preset import read_preset
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.conformance.families import FAMILIES, Family
from tests.conformance.hugging_face import build_case
from tests.conformance.mindspore_process import TORCH_PYTHON, TransformersJudge
from tests.support.families import directory_contents

KINDS = [family for family in FAMILIES if read_preset(family.preset).dialects and family.preset != "telechat3_moe"]


@pytest.mark.slow
@pytest.mark.skipif(not TORCH_PYTHON.exists(), reason="make .venv-torch/installed")
@pytest.mark.parametrize("family", KINDS, ids=lambda family: f"{family.preset} {family.model_type}")
def test_both_are_what_transformers_writes(family: Family, transformers: TransformersJudge, tmp_path: Path) -> None:
    case = build_case(1, family, read_preset(family.preset).complete_world)
    all_sparse = {"first_k_dense_replace": 0} if "first_k_dense_replace" in case.config else {}
    hub, in_memory, made, back = (tmp_path / name for name in ("hub", "in_memory", "made", "back"))
    model = {"config": case.config | all_sparse, "dtype": case.dtype, "seed": 1}
    transformers.ask("make_model", directory=str(hub), in_memory=str(in_memory), **model)
    options = {"preset": family.preset, "layout": "unified", "allow_model": [case.config["model_type"]]}
    convert(build_request(source=str(hub), target=str(made), dialect="transformers5", **options))
    assert directory_contents(made) == directory_contents(in_memory)
    assert directory_contents(made).keys() != directory_contents(hub).keys()
    convert(build_request(source=str(in_memory), target=str(back), dialect="hub", **options))
    assert directory_contents(back) == directory_contents(hub)

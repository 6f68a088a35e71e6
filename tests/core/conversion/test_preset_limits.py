"""A config.json may be hostile: what it counts has a limit."""

import json
import shutil
from pathlib import Path

import pytest

from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, PlanError
from reshard.core.request.conversion import build_request
from tests.support.families import Family, switches_of


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({"num_hidden_layers": 2**62}, f"num_hidden_layers is {2**62}, more than 1,048,576, the limit"),
        ({"num_experts": 10**40}, f"num_experts is {10**40}, more than 1,048,576, the limit"),
        ({"num_hidden_layers": 2**20}, "by config.json the model has more than 1,048,576 parameters, the limit"),
        ({"num_hidden_layers": 2**10, "num_experts": 2**20}, "the model has more than 1,048,576 parameters, the limit"),
    ],
)
def test_a_config_that_counts_too_much(numbers: dict[str, int], problem: str, tmp_path: Path) -> None:
    family = Family("qwen3_moe")
    directory = Path(shutil.copytree(family.hf, tmp_path / "hf"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | numbers))
    request = build_request(
        source=str(directory),
        target=str(tmp_path / "out"),
        format="safetensors",
        preset="qwen3_moe",
        switch=switches_of(family, to_mf=True),
    )
    with pytest.raises((InputError, PlanError)) as error:
        make_plan(request)
    assert problem in str(error.value)

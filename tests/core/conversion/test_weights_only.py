"""Weights without the training state of MindFormers' modes and of PyTorch, whatever its names."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reshard.core.conversion.convert import convert
from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.verification.compare import compare_checkpoints
from tests.support.checkpoints import read_safetensors
from tests.support.dcp import dcp_case
from tests.support.families import Family, directory_contents, exported, switches_of

DEEPSEEK = Family("deepseek3")


def trained(directory: Path, further: dict[str, np.ndarray], family: Family = DEEPSEEK) -> str:
    """The family's weights with further tensors, as a training saves them."""
    directory.mkdir()
    save_file({**load_file(family.mf), **further}, directory / "model.safetensors", {"format": "ms"})
    return str(directory)


def routers() -> list[str]:
    return [name.removesuffix("weight") for name in load_file(DEEPSEEK.mf) if name.endswith("router.weight")]


def selected(source: str, target: Path, **options: Any) -> Any:
    return build_request(source=source, target=str(target), layout="unified", select="weights-only", **options)


def test_buffers_of_routers_are_no_weights(tmp_path: Path) -> None:
    buffers = {
        f"{router}{name}": np.zeros(4, np.float32) for router in routers() for name in ("fi_accu", "expert_load")
    }
    source = trained(tmp_path / "mf", buffers)
    options: dict[str, Any] = {"source": source, "like": str(DEEPSEEK.hf), "select": "weights-only"}
    convert(exported(DEEPSEEK, tmp_path / "out", **options))
    assert directory_contents(tmp_path / "out") == directory_contents(DEEPSEEK.hf)
    convert(selected(source, tmp_path / "plain"))
    assert read_safetensors(tmp_path / "plain/model.safetensors") == read_safetensors(DEEPSEEK.mf)


def test_float32_copies_that_an_optimizer_keeps_are_no_weights(tmp_path: Path) -> None:
    weight = np.arange(8, dtype=np.float32)
    tensors = {"norm.weight": weight.astype(ml_dtypes.bfloat16), "main_param.norm.weight": weight}
    (tmp_path / "mf").mkdir()
    save_file(tensors, tmp_path / "mf/model.safetensors", {"format": "ms"})
    convert(selected(str(tmp_path / "mf"), tmp_path / "out"))
    assert read_safetensors(tmp_path / "out/model.safetensors").keys() == {"norm.weight"}


def test_the_optimizer_of_a_dcp_is_left_out_and_counted(tmp_path: Path) -> None:
    case = dcp_case("optimizer")
    request = case.request(tmp_path / "out", layout="unified", select="weights-only")
    assert any(
        "27 by select weights-only: optimizer state (optim.state." in note for note in plan_notes(make_plan(request))
    )
    convert(request)
    found = read_safetensors(tmp_path / "out/model.safetensors")
    assert len(found) == 13
    assert found == {name: tensor for name, tensor in case.whole.items() if not name.startswith("optim.")}


@pytest.mark.parametrize("options", [{"preset": "deepseek3"}, {"select": "weights-only"}])
def test_experts_that_may_have_moved_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    """Their order is in the mapping, so that weights alone would be those of other experts."""
    names = [router.replace("router.", "expert_mapping") for router in routers()]
    source = trained(tmp_path / "mf", {name: np.arange(4, dtype=np.int32) for name in names})
    if "preset" in options:
        options = options | {"like": str(DEEPSEEK.hf), "switch": switches_of(DEEPSEEK)}
    request = build_request(source=source, target=str(tmp_path / "out"), layout="unified", **options)
    with pytest.raises(PlanError) as error:
        make_plan(request)
    assert (
        f"training may have moved experts, so that their weights are not in the order of their numbers: {names[0]!r}"
        in (str(error.value))
    )
    assert "exclude=['*.expert_mapping']" in str(error.value)
    assert make_plan(request.model_copy(update={"exclude": ["*.expert_mapping"]})).match.resharded


def test_weights_of_experts_in_another_order_are_not_the_same(tmp_path: Path) -> None:
    mapping = {"decoder.layers.1.mlp.expert_mapping": np.arange(4, dtype=np.int32)}
    a = trained(tmp_path / "a", mapping)
    b = trained(tmp_path / "b", {name: array[::-1].copy() for name, array in mapping.items()})
    found = compare_checkpoints(build_comparison(a=a, b=b, select="weights-only"))
    assert [each.name for each in found.differences] == [*mapping]


def test_the_bias_of_a_router_in_pynative_mode_is_a_weight(tmp_path: Path) -> None:
    """Graph mode has it in the router, PyNative mode in the layer."""
    switch = [*switches_of(DEEPSEEK, to_mf=True), "experts_axes=3"]
    request = build_request(
        source=str(DEEPSEEK.hf), target=str(tmp_path / "mf"), preset="deepseek3", switch=switch, layout="unified"
    )
    convert(request)
    biases = {name for name in load_file(tmp_path / "mf/model.safetensors") if "expert_bias" in name}
    assert biases == {name.replace("router.", "expert_bias") for name in routers()}
    convert(exported(DEEPSEEK, tmp_path / "out", source=str(tmp_path / "mf"), like=str(DEEPSEEK.hf)))
    assert directory_contents(tmp_path / "out") == directory_contents(DEEPSEEK.hf)


def test_what_the_network_owns_is_in_its_files_of_a_checkpoint2(tmp_path: Path) -> None:
    tensors = {"w": np.zeros(4, np.float32), "mlp.router.fi_accu": np.ones(4, np.float32)}
    optimizer = {"adam_m.w": np.zeros(4, np.float32), "main_param.w": np.ones(4, np.float32)}
    (tmp_path / "mf").mkdir()
    save_file({**tensors, **optimizer}, tmp_path / "mf/model.safetensors", {"format": "ms"})
    target = tmp_path / "iteration_00000001"
    convert(
        build_request(source=str(tmp_path / "mf"), target=str(target), layout="checkpoint2", common=["global_step=1"])
    )
    assert load_file(target / "model-0000000-0000001.safetensors").keys() == tensors.keys()
    assert load_file(target / "opt-0000000-0000001.safetensors").keys() == optimizer.keys()

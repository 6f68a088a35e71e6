"""Presets held against MindFormers' rules in numpy, both ways: whole, and from shards."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.verification.compare import compare_checkpoints
from tests.support.checkpoints import read_safetensors
from tests.support.families import Family, directory_contents
from tests.support.mindformers_rules import Arrays, deepseek3_legacy


@dataclass(frozen=True)
class Model:
    """A model of Hugging Face's: its directory's weights and configuration."""

    hf: Arrays
    config: dict[str, Any]


def of_fixture(name: str) -> Model:
    family = Family(name)
    hf: Arrays = {}
    for path in family.hf.glob("*.safetensors"):
        hf |= load_file(path)
    return Model(hf, json.loads((family.hf / "config.json").read_text()))


@dataclass(frozen=True)
class Case:
    """A preset with switches, and what numpy makes of the same model."""

    name: str
    preset: str
    model: Callable[[], Model]
    rules: Callable[[Model], Arrays]
    switch: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    """Switches that only the result would show: for the way to MindFormers."""

    def __str__(self) -> str:
        return self.name


def deepseek3_case(fixture: str, *, use_gmm: bool) -> Case:
    return Case(
        f"{fixture} use_gmm {use_gmm}",
        "deepseek3",
        lambda: of_fixture(fixture),
        lambda model: deepseek3_legacy(model.hf, model.config, use_gmm=use_gmm),
        asked=("names=legacy", f"use_gmm={str(use_gmm).lower()}"),
    )


CASES = [
    *(deepseek3_case(fixture, use_gmm=gmm) for fixture in ("deepseek3", "deepseek3_mtp") for gmm in (True, False)),
]


def written(directory: Path, arrays: Arrays, config: dict[str, Any] | None = None) -> Path:
    directory.mkdir(parents=True)
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, directory / "model.safetensors")
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_ways_as_numpy_has_it(case: Case, tmp_path: Path) -> None:
    model = case.model()
    hf = written(tmp_path / "hf", model.hf, model.config)
    mf = written(tmp_path / "mf", case.rules(model))
    options: dict[str, Any] = {"preset": case.preset, "layout": "unified", "verify": "content"}
    both = [*case.switch, *case.asked]
    convert(build_request(source=str(hf), target=str(tmp_path / "to_mf"), switch=both, **options))
    assert directory_contents(tmp_path / "to_mf") == directory_contents(mf)
    switch = list(case.switch)
    convert(build_request(source=str(mf), target=str(tmp_path / "to_hf"), like=str(hf), switch=switch, **options))
    assert directory_contents(tmp_path / "to_hf") == directory_contents(hf)
    comparison = {"a": str(mf), "b": str(hf), "preset": case.preset, "switch": switch}
    assert compare_checkpoints(build_comparison(**comparison)).same


def fused(hf: Arrays, experts: int) -> Arrays:
    """The dialect with all experts of a layer in one."""
    found = {name: array for name, array in hf.items() if ".experts." not in name}
    for prefix in {name.partition(".experts.")[0] for name in hf if ".experts." in name}:
        gate, up, down = (
            np.stack([hf[f"{prefix}.experts.{number}.{name}_proj.weight"] for number in range(experts)])
            for name in ("gate", "up", "down")
        )
        found[f"{prefix}.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        found[f"{prefix}.experts.down_proj"] = down
    return found


@pytest.mark.parametrize("case", [CASES[0], CASES[1]], ids=str)
def test_the_fused_dialect_of_experts(case: Case, tmp_path: Path) -> None:
    model = case.model()
    hf = written(tmp_path / "hf", fused(model.hf, model.config["n_routed_experts"]), model.config)
    mf = written(tmp_path / "mf", case.rules(model))
    options: dict[str, Any] = {"preset": case.preset, "layout": "unified"}
    convert(build_request(source=str(mf), target=str(tmp_path / "to_hf"), like=str(hf), **options))
    assert directory_contents(tmp_path / "to_hf") == directory_contents(hf)
    both = [*case.switch, *case.asked]
    convert(build_request(source=str(hf), target=str(tmp_path / "to_mf"), switch=both, **options))
    assert directory_contents(tmp_path / "to_mf") == directory_contents(mf)


def deepseek3_source(directory: Path, **changed: np.ndarray | None) -> Path:
    """DeepSeek-V3 with MTP under older names, some of its parameters changed, or left out."""
    model = of_fixture("deepseek3_mtp")
    arrays: dict[str, np.ndarray | None] = {**deepseek3_legacy(model.hf, model.config, use_gmm=True), **changed}
    kept = {name: array for name, array in arrays.items() if array is not None}
    return written(directory, kept, model.config)


def refusal(source: Path, kind: type[Exception] = PlanError, **options: Any) -> str:
    defaults: dict[str, Any] = {"target": "/tmp/never", "preset": "deepseek3", "layout": "unified"}
    with pytest.raises(kind) as caught:
        make_plan(build_request(source=str(source), **(defaults | options)))
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.feed_forward.routed_experts.router_dense.weight",
        "model.layers.1.feed_forward.routed_experts.ffn.w2",
        "model.layers.2.feed_forward.routed_experts.ffn.w1",
        "model.layers.0.feed_forward.w3.weight",
        "model.layers.1.attention.lq_norm.weight",
        "model.layers.2.attention.kv2l_k_pe.weight",
        "model.mtp_norms.0.weight",
    ],
)
def test_a_part_of_a_layer_that_is_missing(name: str, tmp_path: Path) -> None:
    """A directory without a reference's weights to hold it against would lack it, too."""
    assert f"parameter {name!r} is missing" in refusal(deepseek3_source(tmp_path / "mf", **{name: None}))


def test_a_layer_without_an_mlp(tmp_path: Path) -> None:
    names = [f"model.layers.0.feed_forward.w{number}.weight" for number in (1, 2, 3)]
    text = refusal(deepseek3_source(tmp_path / "mf", **dict.fromkeys(names)))
    router = "model.layers.0.feed_forward.routed_experts.router_dense.weight"
    assert f"layer 0 has none of 'model.layers.0.feed_forward.w1.weight' or {router!r}" in text


def test_a_router_of_more_rows_than_experts_is_refused(tmp_path: Path) -> None:
    """MindFormers' converters leave the further rows out; nothing is lost here unless asked for."""
    name = "model.layers.1.feed_forward.routed_experts.router_dense.weight"
    source = deepseek3_source(tmp_path / "mf", **{name: np.zeros((6, 32), np.float32)})
    assert "has shape [6, 32], by config.json it would be [4, 32]" in refusal(source)


def test_todays_names_unless_asked_for_others(tmp_path: Path) -> None:
    family = Family("deepseek3")
    options = {"preset": "deepseek3", "switch": ["use_interleaved_weight_layout_mlp=true", "mla_qkv_concat=false"]}
    report = convert(build_request(source=str(family.hf), target=str(tmp_path / "mf"), **options))
    said = "preset deepseek3: mcore names, unless asked for others, --switch names=legacy"
    assert said in report.notes
    assert read_safetensors(tmp_path / "mf/rank_0/checkpoint_0.safetensors") == read_safetensors(family.mf)


def test_names_that_a_preset_does_not_have(tmp_path: Path) -> None:
    text = refusal(Family("deepseek3").hf, InputError, switch=["names=new"])
    assert text == "--switch names=new: must be one of mcore, legacy"


def test_what_was_never_run_is_said(tmp_path: Path) -> None:
    notes = make_plan(
        build_request(source=str(deepseek3_source(tmp_path / "mf")), target=str(tmp_path / "out"), preset="deepseek3")
    ).inputs.catalog.notes
    assert any(
        "the rules of its legacy names were read in MindFormers' code, and never compared" in note for note in notes
    )


def test_moments_follow_the_rope(tmp_path: Path) -> None:
    model = of_fixture("deepseek3")
    weights = deepseek3_legacy(model.hf, model.config, use_gmm=True)
    moments = {f"adam_m.{name}": array.astype(np.float32) + 1 for name, array in weights.items()}
    source = written(tmp_path / "mf", weights | moments, model.config)
    convert(build_request(source=str(source), target=str(tmp_path / "out"), preset="deepseek3", layout="unified"))
    found = load_file(tmp_path / "out/model.safetensors")
    assert found.keys() == model.hf.keys() | {f"adam_m.{name}" for name in model.hf}
    for name, array in model.hf.items():
        assert np.array_equal(found[f"adam_m.{name}"], array.astype(np.float32) + 1)

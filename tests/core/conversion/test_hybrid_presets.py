"""Models with gated delta nets, and layers for multi-token prediction, held against their rules in numpy, both ways."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.verification.compare import compare_checkpoints
from tests.support.families import directory_contents
from tests.support.hybrid_rules import hybrid
from tests.support.mindformers_rules import Arrays

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]
CONFIG: Config = {
    "num_hidden_layers": 3, "hidden_size": 24, "vocab_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 40, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 8, "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
EXPERTS: Config = {"num_experts": 12, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 16}


def full_attention() -> Shapes:
    return {
        "self_attn.q_proj.weight": (64, 24),
        "self_attn.k_proj.weight": (16, 24),
        "self_attn.v_proj.weight": (16, 24),
        "self_attn.o_proj.weight": (24, 32),
        "self_attn.q_norm.weight": (8,),
        "self_attn.k_norm.weight": (8,),
    }


def delta_net(*, apart: bool) -> Shapes:
    projections: Shapes = {"in_proj_qkvz.weight": (80, 24), "in_proj_ba.weight": (12, 24)}
    if apart:
        projections = {"in_proj_qkv.weight": (56, 24), "in_proj_z.weight": (24, 24), "in_proj_b.weight": (6, 24),
                       "in_proj_a.weight": (6, 24)}  # fmt: skip
    others: Shapes = {"conv1d.weight": (56, 1, 4), "A_log": (6,), "dt_bias": (6,), "norm.weight": (4,),
                      "out_proj.weight": (24, 24)}  # fmt: skip
    return {f"linear_attn.{name}": shape for name, shape in (projections | others).items()}


def experts(*, fused: bool) -> Shapes:
    shapes: Shapes = {"mlp.gate.weight": (12, 24), "mlp.shared_expert_gate.weight": (1, 24)}
    shapes |= {f"mlp.shared_expert.{name}_proj.weight": (16, 24) for name in ("gate", "up")}
    shapes["mlp.shared_expert.down_proj.weight"] = (24, 16)
    if fused:
        return shapes | {"mlp.experts.gate_up_proj": (12, 16, 24), "mlp.experts.down_proj": (12, 24, 8)}
    shapes |= {f"mlp.experts.{e}.{name}_proj.weight": (8, 24) for e in range(12) for name in ("gate", "up")}
    return shapes | {f"mlp.experts.{e}.down_proj.weight": (24, 8) for e in range(12)}


def dense() -> Shapes:
    return {"mlp.gate_proj.weight": (40, 24), "mlp.up_proj.weight": (40, 24), "mlp.down_proj.weight": (24, 40)}


@dataclass(frozen=True)
class Kind:
    """A family's Hugging Face side."""

    preset: str
    model_type: str
    has_experts: bool = True
    apart: bool = False
    fused: bool = False
    mtp_fused: bool = False

    def model(self) -> tuple[Arrays, Config]:
        config = CONFIG | {"model_type": self.model_type} | (EXPERTS if self.has_experts else {})
        mlp = experts(fused=self.fused) if self.has_experts else dense()
        norms: Shapes = {"input_layernorm.weight": (24,), "post_attention_layernorm.weight": (24,)}
        layers = {
            f"model.layers.{number}": norms | mlp | (full_attention() if number == 1 else delta_net(apart=self.apart))
            for number in range(3)
        }
        of_mtp = experts(fused=self.mtp_fused) if self.has_experts else mlp
        layers["mtp.layers.0"] = norms | of_mtp | full_attention()
        shapes: Shapes = {f"{layer}.{name}": shape for layer, names in layers.items() for name, shape in names.items()}
        shapes |= {"model.embed_tokens.weight": (32, 24), "model.norm.weight": (24,), "lm_head.weight": (32, 24)}
        shapes |= {"mtp.fc.weight": (24, 48), "mtp.norm.weight": (24,)}
        shapes |= {f"mtp.pre_fc_norm_{name}.weight": (24,) for name in ("embedding", "hidden")}
        draw = np.random.default_rng(1)
        hf = {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        for name in hf:
            if name.endswith("linear_attn.norm.weight"):  # near one, where taking it away loses nothing
                hf[name] = (1 + hf[name].clip(-3, 3) / 8).astype(np.float32)
        return hf, config


@dataclass(frozen=True)
class Case:
    """A family under Megatron's names, in one way."""

    kind: Kind
    in_proj: str = "fused"
    experts: str = "sequential"
    norms: str = "separate"
    delta_nets: str = "whole"

    def __str__(self) -> str:
        dialect = f"{self.kind.fused} {self.kind.mtp_fused}"
        return f"{self.kind.preset} {self.in_proj} {self.experts} {self.norms} {self.delta_nets} {dialect}"

    @property
    def switch(self) -> list[str]:
        asked = [f"in_proj={self.in_proj}"] if self.kind.preset == "qwen3_next" else []
        return ["names=megatron", *asked, *self.spelling]

    @property
    def spelling(self) -> list[str]:
        stored = [f"megatron_delta_nets={self.delta_nets}"]
        return [f"megatron_experts={self.experts}", f"megatron_norms={self.norms}", *stored]

    def megatron(self, hf: Arrays, config: Config) -> Arrays:
        return hybrid(hf, config, self.in_proj, self.experts, self.norms, self.delta_nets)


NEXT = Kind("qwen3_next", "qwen3_next")
MOE = Kind("qwen3_5_moe", "qwen3_5_moe_text", apart=True, fused=True)  # as the hub has Qwen3.5
DENSE = Kind("qwen3_5", "qwen3_5_text", has_experts=False, apart=True)
CASES = [
    Case(NEXT),
    Case(NEXT, experts="grouped"),
    Case(NEXT, experts="transformer_engine", norms="transformer_engine"),
    Case(NEXT, experts="stacked", norms="transformer_engine", delta_nets="apart"),
    Case(NEXT, in_proj="apart"),
    Case(NEXT, in_proj="apart", experts="grouped", norms="transformer_engine"),
    Case(MOE),
    Case(MOE, experts="stacked", norms="transformer_engine"),
    Case(Kind("qwen3_5_moe", "qwen3_5_moe_text", apart=True, fused=True, mtp_fused=True)),  # Qwen3.6
    Case(Kind("qwen3_5_moe", "qwen3_5_moe_text", apart=True), experts="transformer_engine"),
    Case(DENSE),
    Case(DENSE, norms="transformer_engine", delta_nets="apart"),
]


def written(directory: Path, arrays: Arrays, config: Config | None = None) -> Path:
    directory.mkdir()
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, directory / "model.safetensors")
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def model_of(kind: Kind, *, mtp: bool = True) -> tuple[Arrays, Config]:
    hf, config = kind.model()
    return {name: array for name, array in hf.items() if mtp or not name.startswith("mtp.")}, config


@pytest.mark.parametrize("mtp", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_megatron_and_back(case: Case, mtp: bool, tmp_path: Path) -> None:
    arrays, config = model_of(case.kind, mtp=mtp)
    hf = written(tmp_path / "hf", arrays, config)
    megatron = written(tmp_path / "megatron", case.megatron(arrays, config))
    options: dict[str, Any] = {"preset": case.kind.preset, "layout": "unified", "verify": "content"}
    convert(build_request(source=str(hf), target=str(tmp_path / "there"), switch=case.switch, **options))
    assert directory_contents(tmp_path / "there") == directory_contents(megatron)
    source = {"source": str(megatron), "like": str(hf)}
    convert(build_request(target=str(tmp_path / "back"), switch=["names=megatron"], **source, **options))
    assert directory_contents(tmp_path / "back") == directory_contents(hf)
    comparison = {"a": str(megatron), "b": str(hf), "switch": ["names=megatron"], "preset": case.kind.preset}
    assert compare_checkpoints(build_comparison(**comparison)).same


def refusal(source: Path, kind: type[Exception] = PlanError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        make_plan(build_request(source=str(source), target="/tmp/never", layout="unified", **options))
    return str(caught.value)


def test_how_projections_lie_is_asked_for(tmp_path: Path) -> None:
    hf = written(tmp_path / "hf", *NEXT.model())
    text = refusal(hf, InputError, preset="qwen3_next")
    assert "a checkpoint does not show how the projections of gated delta nets, and q, k and v, are laid out" in text


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.linear_attn.A_log",
        "model.layers.1.self_attn.k_norm.weight",
        "model.layers.2.linear_attn.norm.weight",
        "mtp.layers.0.self_attn.q_proj.weight",
        "mtp.fc.weight",
        "mtp.norm.weight",
    ],
)
def test_a_part_of_a_layer_that_is_missing(name: str, tmp_path: Path) -> None:
    arrays, config = NEXT.model()
    del arrays[name]
    text = refusal(written(tmp_path / "hf", arrays, config), preset="qwen3_next", switch=["in_proj=apart"])
    assert f"parameter {name!r} is missing" in text


def test_numbers_of_heads_that_do_not_go_together(tmp_path: Path) -> None:
    arrays, config = NEXT.model()
    hf = written(tmp_path / "hf", arrays, config | {"linear_num_value_heads": 7})
    text = refusal(hf, InputError, preset="qwen3_next", switch=["in_proj=fused"])
    assert "its numbers do not go together" in text
    assert "self_attention.in_proj.weight' would have 88 rows, not 16 + 16 + 24 + 24 in 1 group" in text


def test_a_layer_beyond_those_of_the_model_is_refused(tmp_path: Path) -> None:
    """A layer for multi-token prediction has a number of its own here, and excuses none."""
    arrays, config = NEXT.model()
    further = {name.replace("layers.1.", "layers.3."): each for name, each in arrays.items() if ".layers.1." in name}
    hf = written(tmp_path / "hf", arrays | further, config)
    text = refusal(hf, preset="qwen3_next", switch=["in_proj=apart"])
    assert "is of layer 3, and config.json counts 3 layers from 0 on" in text


def test_moments_follow_but_are_not_zero_centered(tmp_path: Path) -> None:
    arrays, config = model_of(NEXT, mtp=False)
    states = {f"{prefix}{name}": each + 1 for prefix in ("adam_m.", "main_param.") for name, each in arrays.items()}
    hf = written(tmp_path / "hf", arrays | states, config)
    options: dict[str, Any] = {"preset": "qwen3_next", "layout": "unified", "switch": ["in_proj=fused"]}
    convert(build_request(source=str(hf), target=str(tmp_path / "out"), **options))
    found = directory_contents(tmp_path / "out")
    norm = arrays["model.layers.0.linear_attn.norm.weight"]
    ours = "decoder.layers.0.self_attention.out_norm.weight"
    moment = found.get(f"optimizer.state.exp_avg.{ours}") or found[f"adam_m.{ours}"]
    master = found.get(f"optimizer.state.param.{ours}") or found[f"main_param.{ours}"]
    assert moment[2] == (norm + 1).tobytes()
    assert master[2] == (norm + 1 - np.float32(1)).tobytes()

"""Presets held against MindFormers' rules in numpy, both ways: whole, and from shards."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from reshard.core.changes.preset import preset_text
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.verification.compare import compare_checkpoints
from tests.support.checkpoints import read_safetensors
from tests.support.families import Family, directory_contents
from tests.support.megatron_rules import megatron
from tests.support.mindformers_rules import (
    Arrays,
    baichuan,
    chatglm,
    deepseek3_legacy,
    glm,
    grouped,
    internlm2,
    llama_legacy,
    mixtral_experts,
    qwen2_moe,
    telechat2,
)
from tests.support.written_models import fused, written


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


def random_model(shapes: dict[str, tuple[int, ...]], config: dict[str, Any]) -> Model:
    draw = np.random.default_rng(1)
    return Model({name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}, config)


def qwen2_moe_model() -> Model:
    config = {"num_hidden_layers": 2, "hidden_size": 16, "vocab_size": 32, "num_experts": 12, "num_attention_heads": 4,
              "num_key_value_heads": 2, "moe_intermediate_size": 6, "shared_expert_intermediate_size": 10}  # fmt: skip
    of_layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (16,),
        "post_attention_layernorm.weight": (16,),
        **{f"self_attn.{name}_proj.weight": (rows, 16) for name, rows in (("q", 16), ("k", 8), ("v", 8), ("o", 16))},
        **{f"self_attn.{name}_proj.bias": (rows,) for name, rows in (("q", 16), ("k", 8), ("v", 8))},
        "mlp.gate.weight": (12, 16),
        "mlp.shared_expert_gate.weight": (1, 16),
        **{f"mlp.shared_expert.{name}_proj.weight": (10, 16) for name in ("gate", "up")},
        "mlp.shared_expert.down_proj.weight": (16, 10),
        **{f"mlp.experts.{e}.{name}_proj.weight": (6, 16) for e in range(12) for name in ("gate", "up")},
        **{f"mlp.experts.{e}.down_proj.weight": (16, 6) for e in range(12)},
    }
    shapes = {f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in of_layer.items()}
    shapes |= {"model.embed_tokens.weight": (32, 16), "model.norm.weight": (16,), "lm_head.weight": (32, 16)}
    return random_model(shapes, config)


def telechat2_model(experts: int) -> Model:
    config = {"n_layer": 2, "hidden_size": 16, "vocab_size": 32, "n_head": 4, "num_key_value_heads": 2,
              "ffn_hidden_size": 12, "num_experts": experts}  # fmt: skip
    of_layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (16,),
        "post_attention_layernorm.weight": (16,),
        **{f"self_attention.{name}.weight": (16, 16) for name in ("query", "key_value", "dense")},
        "self_attention.dense.bias": (16,),
    }
    mlp: dict[str, tuple[int, ...]] = {"gate_proj.weight": (12, 16), "up_proj.weight": (12, 16),
                                       "down_proj.weight": (16, 12), "down_proj.bias": (16,)}  # fmt: skip
    if experts:
        of_layer["mlp.router.weight"] = (experts, 16)
        numbers = range(experts)
        of_layer |= {f"mlp.local_experts.{e}.{name}": shape for e in numbers for name, shape in mlp.items()}
    else:
        of_layer |= {f"mlp.{name}": shape for name, shape in mlp.items()}
    shapes = {f"transformer.h.{layer}.{name}": shape for layer in range(2) for name, shape in of_layer.items()}
    shapes |= {"transformer.word_embeddings.weight": (32, 16), "transformer.ln_f.weight": (16,)}
    return random_model(shapes | {"lm_head.weight": (32, 16)}, config)


def chatglm_model() -> Model:
    config = {"num_layers": 2, "hidden_size": 16, "padded_vocab_size": 32, "num_attention_heads": 4, "kv_channels": 6,
              "multi_query_group_num": 2, "ffn_hidden_size": 10}  # fmt: skip
    of_layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (16,),
        "post_attention_layernorm.weight": (16,),
        "self_attention.query_key_value.weight": (48, 16),
        "self_attention.query_key_value.bias": (48,),
        "self_attention.dense.weight": (16, 24),
        "mlp.dense_h_to_4h.weight": (20, 16),
        "mlp.dense_4h_to_h.weight": (16, 10),
    }
    shapes = {f"transformer.encoder.layers.{n}.{name}": shape for n in range(2) for name, shape in of_layer.items()}
    shapes |= {"transformer.embedding.word_embeddings.weight": (32, 16), "transformer.output_layer.weight": (32, 16)}
    shapes |= {"transformer.encoder.final_layernorm.weight": (16,), "transformer.rotary_pos_emb.inv_freq": (3,)}
    return random_model(shapes, config)


DENSE = {"num_hidden_layers": 2, "hidden_size": 16, "vocab_size": 32, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 10}  # fmt: skip
LLAMA = {
    "input_layernorm.weight": (16,),
    "post_attention_layernorm.weight": (16,),
    **{f"self_attn.{name}_proj.weight": (rows, 16) for name, rows in (("q", 16), ("k", 8), ("v", 8), ("o", 16))},
    "mlp.gate_proj.weight": (10, 16),
    "mlp.up_proj.weight": (10, 16),
    "mlp.down_proj.weight": (16, 10),
}
BIASES = {f"self_attn.{name}_proj.bias": (rows,) for name, rows in (("q", 16), ("k", 8), ("v", 8), ("o", 16))}
MLP_BIASES = {f"mlp.{name}_proj.bias": (rows,) for name, rows in (("gate", 10), ("up", 10), ("down", 16))}
MODEL = {"model.embed_tokens.weight": (32, 16), "model.norm.weight": (16,), "lm_head.weight": (32, 16)}


def dense_model(
    layer: dict[str, tuple[int, ...]], model: dict[str, tuple[int, ...]] = MODEL, **fields: Any
) -> Callable[[], Model]:
    of_layers = {f"model.layers.{number}.{name}": shape for number in range(2) for name, shape in layer.items()}
    return lambda: random_model(of_layers | model, DENSE | fields)


def without(layer: dict[str, tuple[int, ...]], *names: str) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in layer.items() if not name.startswith(names)}


SEPARATE = ("self_attn.q", "self_attn.k", "self_attn.v")
GEMMA2 = {**LLAMA, "pre_feedforward_layernorm.weight": (16,), "post_feedforward_layernorm.weight": (16,)}
POST_NORMS = {**without(LLAMA, "input_layernorm"), "post_feedforward_layernorm.weight": (16,)}
INTERNLM2 = {
    "attention_norm.weight": (16,),
    "ffn_norm.weight": (16,),
    "attention.wqkv.weight": (32, 16),
    "attention.wo.weight": (16, 16),
    "feed_forward.w1.weight": (10, 16),
    "feed_forward.w3.weight": (10, 16),
    "feed_forward.w2.weight": (16, 10),
}
DENSE_MODELS: dict[str, Callable[[], Model]] = {
    "llama": dense_model(LLAMA | BIASES, attention_bias=True),
    "qwen3": dense_model(
        LLAMA | BIASES | {f"self_attn.{name}_norm.weight": (4,) for name in "qk"}, attention_bias=True
    ),
    "glm": dense_model(
        {**without(LLAMA | BIASES, "mlp.gate", "mlp.up", "self_attn.o_proj.bias"), "mlp.gate_up_proj.weight": (20, 16)},
        head_dim=4,
    ),
    "phi3": dense_model(
        {
            **without(LLAMA, *SEPARATE, "mlp.gate", "mlp.up"),
            "self_attn.qkv_proj.weight": (32, 16),
            "mlp.gate_up_proj.weight": (20, 16),
        }
    ),
    "gemma": dense_model(LLAMA, without(MODEL, "lm_head"), head_dim=4),
    "gemma2": dense_model(GEMMA2, without(MODEL, "lm_head"), head_dim=4),
    "gemma3": dense_model(
        GEMMA2 | {f"self_attn.{name}_norm.weight": (4,) for name in "qk"}, without(MODEL, "lm_head"), head_dim=4
    ),
    "olmo2": dense_model(POST_NORMS | {"self_attn.q_norm.weight": (16,), "self_attn.k_norm.weight": (8,)}),
    "exaone4": dense_model(POST_NORMS | {f"self_attn.{name}_norm.weight": (4,) for name in "qk"}),
    "hunyuan_dense": dense_model(LLAMA | {f"self_attn.{name}_layernorm.weight": (4,) for name in ("query", "key")}),
    "glm4": dense_model(
        {
            **without(LLAMA | BIASES, "mlp.gate", "mlp.up", "self_attn.o_proj.bias"),
            **{f"post_{name}_layernorm.weight": (16,) for name in ("self_attn", "mlp")},
            "mlp.gate_up_proj.weight": (20, 16),
        },
        attention_bias=True,
    ),
    "seed_oss": dense_model(without(LLAMA | BIASES, "self_attn.o_proj.bias"), attention_bias=True),
    "ernie4_5": dense_model(LLAMA | BIASES | MLP_BIASES, use_bias=True),
    "internlm": dense_model(LLAMA | BIASES, bias=True),
    "internlm2": dense_model(
        INTERNLM2, {"model.tok_embeddings.weight": (32, 16), "model.norm.weight": (16,), "output.weight": (32, 16)}
    ),
    "baichuan": dense_model(
        {**without(LLAMA, *SEPARATE), "self_attn.W_pack.weight": (48, 16)}, num_key_value_heads=None
    ),
    "pangu_embedded": dense_model(LLAMA | BIASES, bias=True),
}


AFTER_ONLY = ("olmo2", "exaone4")
"""Models with norms after attention and MLP only, which have one spelling in Megatron."""


def norms_of(preset: str) -> tuple[str, ...]:
    return ("transformer_engine",) if preset in AFTER_ONLY else ("separate", "transformer_engine")


def legacy_case(preset: str, rules: Callable[..., Arrays], **switches: bool) -> Case:
    return Case(
        f"{preset} legacy {switches}",
        preset,
        DENSE_MODELS[preset],
        lambda model: rules(model.hf, model.config, **switches),
        switch=text(**switches),
    )


def megatron_case(preset: str, norms: str = "separate") -> Case:
    def rules(model: Model) -> Arrays:
        hf = internlm2(model.hf, model.config, qkv_concat=False, to_llama=True) if preset == "internlm2" else model.hf
        return megatron(hf, model.config, norms=norms)

    return Case(
        f"{preset} megatron {norms}",
        preset,
        DENSE_MODELS[preset],
        rules,
        switch=("names=megatron",),
        asked=() if preset in AFTER_ONLY else (f"megatron_norms={norms}",),
    )


def text(**switches: bool) -> tuple[str, ...]:
    return tuple(f"{name}={str(value).lower()}" for name, value in switches.items())


def qwen2_moe_case(*, qkv_concat: bool, bias_groups: bool, use_gmm: bool, qkv_grouped: bool = True) -> Case:
    of_qkv = {"qkv_grouped": qkv_grouped, "bias_groups": bias_groups}
    switches = {"qkv_concat": qkv_concat, "use_gmm": use_gmm, **of_qkv}
    return Case(
        f"qwen2_moe {switches}",
        "qwen2_moe",
        qwen2_moe_model,
        lambda model: qwen2_moe(model.hf, model.config, **switches),
        switch=text(use_gmm=use_gmm, **(of_qkv if qkv_concat else {})),
        asked=text(qkv_concat=qkv_concat),
    )


def telechat2_case(experts: int, *, use_gmm: bool = False) -> Case:
    return Case(
        f"telechat2 {experts} experts use_gmm {use_gmm}",
        "telechat2",
        lambda: telechat2_model(experts),
        lambda model: telechat2(model.hf, model.config, use_gmm=use_gmm),
        switch=text(use_gmm=use_gmm) if experts else (),
    )


def chatglm_case(*, qkv_concat: bool, mlp_concat: bool, use_rearrange_rope: bool) -> Case:
    switches = {"qkv_concat": qkv_concat, "mlp_concat": mlp_concat, "use_rearrange_rope": use_rearrange_rope}
    return Case(
        f"chatglm {switches}",
        "chatglm",
        chatglm_model,
        lambda model: chatglm(model.hf, model.config, **switches),
        switch=text(use_rearrange_rope=use_rearrange_rope),
        asked=text(qkv_concat=qkv_concat, mlp_concat=mlp_concat),
    )


CHATGLM_AS_PHI = {"transformer.embedding.word_embeddings": "model.embed_tokens", "transformer.output_layer": "lm_head",
                  "transformer.encoder.final_layernorm": "model.norm", "transformer.encoder.layers": "model.layers",
                  "self_attention.query_key_value": "self_attn.qkv_proj", "self_attention.dense": "self_attn.o_proj",
                  "mlp.dense_h_to_4h": "mlp.gate_up_proj", "mlp.dense_4h_to_h": "mlp.down_proj"}  # fmt: skip


def chatglm_megatron_model() -> Model:
    """Without the buffer that some directories have, and that Megatron does not have."""
    model = chatglm_model()
    return Model({name: array for name, array in model.hf.items() if "inv_freq" not in name}, model.config)


def chatglm_in_megatron(model: Model) -> Arrays:
    hf: Arrays = {}
    for name, array in model.hf.items():
        for ours, theirs in CHATGLM_AS_PHI.items():
            name = name.replace(ours, theirs)
        hf[name] = array
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return megatron(hf, config)


def of_mcore(fixture: str, preset: str, *switches: str, asked: tuple[str, ...] = ()) -> Case:
    """MindFormers' side is a fixture's: another preset has the same names."""
    return Case(
        f"{preset} as {fixture}",
        preset,
        lambda: of_fixture(fixture),
        lambda _: load_file(Family(fixture).mf),
        switch=switches,
        asked=asked,
    )


def mixtral_case(*, use_gmm: bool) -> Case:
    return Case(
        f"mixtral use_gmm {use_gmm}",
        "mixtral",
        lambda: of_fixture("mixtral"),
        lambda model: mixtral_experts(model.hf, model.config, use_gmm=use_gmm),
        switch=text(use_gmm=use_gmm),
    )


INTERLEAVED = "use_interleaved_weight_layout_mlp=true"
CASES = [
    *(deepseek3_case(fixture, use_gmm=gmm) for fixture in ("deepseek3", "deepseek3_mtp") for gmm in (True, False)),
    qwen2_moe_case(qkv_concat=False, bias_groups=False, use_gmm=True),
    qwen2_moe_case(qkv_concat=True, bias_groups=True, use_gmm=False),
    qwen2_moe_case(qkv_concat=True, bias_groups=False, use_gmm=True, qkv_grouped=False),
    telechat2_case(0),
    telechat2_case(12),
    telechat2_case(3, use_gmm=True),
    chatglm_case(qkv_concat=True, mlp_concat=True, use_rearrange_rope=False),
    chatglm_case(qkv_concat=False, mlp_concat=True, use_rearrange_rope=True),
    chatglm_case(qkv_concat=False, mlp_concat=False, use_rearrange_rope=False),
    Case("chatglm megatron", "chatglm", chatglm_megatron_model, chatglm_in_megatron, switch=("names=megatron",)),
    mixtral_case(use_gmm=True),
    *(megatron_case(preset, norms) for preset in DENSE_MODELS for norms in norms_of(preset)),
    legacy_case("llama", llama_legacy, qkv_concat=False),
    legacy_case("llama", llama_legacy, qkv_concat=True, qkv_grouped=True, bias_groups=True),
    legacy_case("llama", llama_legacy, qkv_concat=True, qkv_grouped=True, bias_groups=False),
    legacy_case("glm", glm, qkv_concat=True, mlp_concat=True, use_rearrange_rope=False),
    legacy_case("glm", glm, qkv_concat=False, mlp_concat=False, use_rearrange_rope=True),
    legacy_case("internlm", llama_legacy),
    legacy_case("internlm2", internlm2, qkv_concat=True),
    legacy_case("internlm2", internlm2, qkv_concat=False),
    legacy_case("baichuan", baichuan),
    of_mcore("llama", "telechat3", asked=("names=legacy",)),
    of_mcore("qwen3", "telechat3", INTERLEAVED, "use_contiguous_weight_layout_attention=false"),
    of_mcore("deepseek3_mtp", "telechat3_moe", INTERLEAVED, asked=("mla_qkv_concat=false",)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_ways_as_numpy_has_it(case: Case, tmp_path: Path) -> None:
    model = case.model()
    hf = written(tmp_path / "hf", model.hf, model.config)
    mf = written(tmp_path / "mf", case.rules(model))
    # models of other families stand for TeleChat3, which has their names and shapes
    preset = {"preset": case.preset, "allow_model": [model.config.get("model_type", "")]}
    options: dict[str, Any] = {**preset, "layout": "unified", "verify": "content"}
    both = [*case.switch, *case.asked]
    convert(build_request(source=str(hf), target=str(tmp_path / "to_mf"), switch=both, **options))
    assert directory_contents(tmp_path / "to_mf") == directory_contents(mf)
    switch = list(case.switch)
    convert(build_request(source=str(mf), target=str(tmp_path / "to_hf"), like=str(hf), switch=switch, **options))
    assert directory_contents(tmp_path / "to_hf") == directory_contents(hf)
    comparison = {"a": str(mf), "b": str(hf), "switch": switch, **preset}
    assert compare_checkpoints(build_comparison(**comparison)).same


FUSED = [case for case in CASES if case.preset in ("qwen2_moe", "mixtral") or str(case).startswith("deepseek3 ")]


@pytest.mark.parametrize("case", FUSED, ids=str)
def test_the_fused_dialect_of_experts(case: Case, tmp_path: Path) -> None:
    model = case.model()
    hf = written(tmp_path / "hf", fused(model.hf), model.config)
    mf = written(tmp_path / "mf", case.rules(model))
    options: dict[str, Any] = {"preset": case.preset, "layout": "unified"}
    switch = list(case.switch)
    convert(build_request(source=str(mf), target=str(tmp_path / "to_hf"), like=str(hf), switch=switch, **options))
    assert directory_contents(tmp_path / "to_hf") == directory_contents(hf)
    both = [*case.switch, *case.asked]
    convert(build_request(source=str(hf), target=str(tmp_path / "to_mf"), switch=both, **options))
    assert directory_contents(tmp_path / "to_mf") == directory_contents(mf)


def test_a_buffer_that_megatron_does_not_have(tmp_path: Path) -> None:
    model = chatglm_model()
    hf = written(tmp_path / "hf", model.hf, model.config)
    options: dict[str, Any] = {"preset": "chatglm", "layout": "unified"}
    report = convert(build_request(source=str(hf), target=str(tmp_path / "out"), names="megatron", **options))
    assert directory_contents(tmp_path / "out") == directory_contents(
        written(tmp_path / "mg", chatglm_in_megatron(chatglm_megatron_model()))
    )
    said = "left out: 1 buffer *rotary_pos_emb.inv_freq, which models compute from config.json"
    assert said in report.notes
    options |= {"preset": "chatglm", "target": str(tmp_path / "ranks")}
    convert(build_request(source=str(hf), **options | {"layout": "megatron", "tensor_parallel": 2}))
    options |= {"source": str(tmp_path / "ranks"), "target": str(tmp_path / "back"), "like": str(hf)}
    with pytest.raises(PlanError, match="'transformer.rotary_pos_emb.inv_freq' is missing"):
        make_plan(build_request(**options))
    convert(build_request(allow_missing=["*.inv_freq"], **options))
    expected = {name: entry for name, entry in directory_contents(hf).items() if "inv_freq" not in name}
    assert directory_contents(tmp_path / "back") == expected


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
    said = "preset deepseek3: mcore names, unless asked for others, names='legacy'"
    assert said in report.notes
    assert read_safetensors(tmp_path / "mf/rank_0/checkpoint_0.safetensors") == read_safetensors(family.mf)


def test_names_that_a_preset_does_not_have(tmp_path: Path) -> None:
    text = refusal(Family("deepseek3").hf, InputError, switch=["names=new"])
    assert text == "switch=['names=new']: must be one of mcore, legacy, megatron, titan"


def test_what_was_never_run_is_said(tmp_path: Path) -> None:
    notes = make_plan(
        build_request(source=str(deepseek3_source(tmp_path / "mf")), target=str(tmp_path / "out"), preset="deepseek3")
    ).inputs.catalog.notes
    assert any(
        "the rules of its legacy names were read in the code of MindFormers, and never compared" in note
        for note in notes
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


def test_rows_that_cannot_be_regrouped(tmp_path: Path) -> None:
    model = DENSE_MODELS["phi3"]()
    hf = written(tmp_path / "hf", model.hf, model.config | {"num_key_value_heads": 3})
    text = refusal(hf, InputError, preset="phi3")
    assert text == (
        f"{hf}: its numbers do not go together: 'decoder.layers.{{L}}.self_attention.linear_qkv.weight' would have 40 "
        "rows, not 16 + 12 + 12 in 3 groups"
    )


def test_further_spellings_of_norms_are_read(tmp_path: Path) -> None:
    """Norms after attention and MLP, by Transformer Engine's names, show whose names these are."""
    case = megatron_case("gemma2", "transformer_engine")
    model = case.model()
    hf = written(tmp_path / "hf", model.hf, model.config)
    source = written(tmp_path / "megatron", case.rules(model))
    convert(
        build_request(source=str(source), target=str(tmp_path / "out"), preset="gemma2", like=str(hf), layout="unified")
    )
    assert directory_contents(tmp_path / "out") == directory_contents(hf)


def test_a_spelling_that_no_program_has_is_refused(tmp_path: Path) -> None:
    model = DENSE_MODELS["olmo2"]()
    hf = written(tmp_path / "hf", model.hf, model.config)
    text = refusal(hf, InputError, preset="olmo2", switch=["megatron_norms=separate"])
    assert text == "switch=['megatron_norms=separate']: megatron_norms is transformer_engine in megatron names"


@pytest.mark.parametrize("field", ["num_experts", "num_key_value_heads"])
def test_a_configuration_with_nothing_in_it(field: str, tmp_path: Path) -> None:
    model = qwen2_moe_model()
    hf = written(tmp_path / "hf", model.hf, model.config | {field: 0})
    options = {
        "preset": "qwen2_moe",
        "switch": ["use_gmm=true", "qkv_concat=true", "qkv_grouped=true", "bias_groups=true"],
    }
    text = refusal(hf, InputError, **options)
    assert "its numbers do not go together" in text
    assert "has nothing in it" in text


def adapted(model: Model, *weights: str) -> Model:
    """The model with LoRA's parameters of some weights."""
    further = {}
    for name in weights:
        rows, columns = model.hf[name].shape
        base = name.removesuffix(".weight")
        further[f"{base}.lora_A.weight"] = np.arange(4 * columns, dtype=np.float32).reshape(4, columns)
        further[f"{base}.lora_B.weight"] = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
    return Model({**model.hf, **further}, model.config)


def test_loras_parameters_are_renamed(tmp_path: Path) -> None:
    plain = of_fixture("llama")
    names = [f"model.layers.1.{name}.weight" for name in ("self_attn.q_proj", "mlp.down_proj")]
    model = adapted(plain, *names)
    hf = written(tmp_path / "hf", model.hf, model.config)
    ours = {"self_attn.q_proj": "attention.wq", "mlp.down_proj": "feed_forward.w2"}
    lora = {name: array for name, array in model.hf.items() if "lora" in name}
    for old, new in ours.items():
        lora = {name.replace(old, new): array for name, array in lora.items()}
    lora = {
        name.replace("lora_A.weight", "tk_delta_lora_a").replace("lora_B.weight", "tk_delta_lora_b"): array
        for name, array in lora.items()
    }
    mf = written(tmp_path / "mf", load_file(Family("llama").mf) | lora)
    options: dict[str, Any] = {"preset": "llama", "layout": "unified", "verify": "content"}
    convert(build_request(source=str(hf), target=str(tmp_path / "to_mf"), **options))
    assert directory_contents(tmp_path / "to_mf") == directory_contents(mf)
    convert(build_request(source=str(mf), target=str(tmp_path / "to_hf"), like=str(hf), **options))
    assert directory_contents(tmp_path / "to_hf") == directory_contents(hf)
    only = {"include": ["*lora*"], "allow_missing": ["*"], "rename": [r"re:model\.(.*)=base_model.model.model.\1"]}
    convert(build_request(source=str(mf), target=str(tmp_path / "adapter"), preset="llama", layout="unified", **only))
    expected = {f"base_model.model.{name}" for name in model.hf if "lora" in name}
    assert read_safetensors(tmp_path / "adapter/model.safetensors").keys() == expected


def test_loras_parameters_of_fused_weights_are_refused(tmp_path: Path) -> None:
    """Those of q, k and v would share one matrix, and B's rows would be in groups."""
    config = of_fixture("llama").config
    name = "model.layers.0.attention.w_qkv.tk_delta_lora_a"
    whole = tmp_path / "whole"
    options = {"preset": "llama", "layout": "unified", "switch": ["qkv_concat=true", "qkv_grouped=true"]}
    convert(build_request(source=str(Family("llama").hf), target=str(whole), **options))
    arrays = {**load_file(whole / "model.safetensors"), name: np.zeros((4, 32), np.float32)}
    text = refusal(written(tmp_path / "mf", arrays, config), preset="llama", switch=["qkv_grouped=true"])
    assert (
        f"parameter {name!r} is LoRA's, and the preset has no name for it, as where a weight is fused on one side: "
        "merge it into its weight with 'lora'" in text
    )


def test_moments_have_no_place_in_a_reference(tmp_path: Path) -> None:
    family = Family("qwen3")
    weights = load_file(family.mf)
    source = written(tmp_path / "mf", weights | {f"adam_m.{name}": array for name, array in weights.items()})
    options: dict[str, Any] = {
        "preset": "qwen3",
        "switch": [INTERLEAVED, "use_contiguous_weight_layout_attention=false"],
    }
    text = refusal(source, like=str(family.hf), **options)
    name = "model.layers.0.mlp.down_proj.weight"
    made = "made from 'adam_m.decoder.layers.0.mlp.linear_fc2.weight', is an optimizer's, which no directory"
    assert f"parameter 'adam_m.{name}', {made} of Hugging Face's has: leave such out" in text
    assert "select='weights-only', or name its config.json with 'config_json' and leave out 'like'" in text
    text = refusal(source, InputError, **options)
    assert "has none: put the model's there, or name it with 'config_json'" in text


WRONG: list[tuple[Case, dict[str, str]]] = [
    (qwen2_moe_case(qkv_concat=True, bias_groups=True, use_gmm=False), {"bias_groups": "false"}),
    (qwen2_moe_case(qkv_concat=True, bias_groups=False, use_gmm=False), {"bias_groups": "true"}),
    (qwen2_moe_case(qkv_concat=True, bias_groups=True, use_gmm=False), {"qkv_grouped": "false"}),
    (
        legacy_case("llama", llama_legacy, qkv_concat=True, qkv_grouped=True, bias_groups=True),
        {"bias_groups": "false"},
    ),
    (
        legacy_case("glm", glm, qkv_concat=False, mlp_concat=True, use_rearrange_rope=True),
        {"use_rearrange_rope": "false"},
    ),
    (chatglm_case(qkv_concat=False, mlp_concat=True, use_rearrange_rope=True), {"use_rearrange_rope": "false"}),
    (chatglm_case(qkv_concat=False, mlp_concat=True, use_rearrange_rope=False), {"use_rearrange_rope": "true"}),
]


@pytest.mark.parametrize(("case", "wrong"), WRONG, ids=str)
def test_a_wrong_switch_that_shapes_do_not_show_is_found_by_a_comparison(
    case: Case, wrong: dict[str, str], tmp_path: Path
) -> None:
    model = case.model()
    hf = written(tmp_path / "hf", model.hf, model.config)
    mf = written(tmp_path / "mf", case.rules(model))
    right = dict(each.split("=") for each in case.switch)
    comparisons = [
        build_comparison(
            a=str(mf), b=str(hf), preset=case.preset, switch=[f"{name}={value}" for name, value in given.items()]
        )
        for given in (right, right | wrong)
    ]
    assert [compare_checkpoints(each).same for each in comparisons] == [True, False]


def square_experts() -> Model:
    """Experts whose matrices are square: a transposed one has the same shape."""
    model = qwen2_moe_model()
    draw = np.random.default_rng(2)
    hf = {
        name: draw.standard_normal((16, 16), np.float32) if ".experts." in name else array
        for name, array in model.hf.items()
    }
    return Model(hf, model.config | {"moe_intermediate_size": 16})


def test_wrongly_transposed_experts_are_found(tmp_path: Path) -> None:
    """By their shapes, or if they are square by a comparison."""
    plain = {"qkv_concat": False, "qkv_grouped": False, "bias_groups": False, "use_gmm": True}
    model = qwen2_moe_model()
    source = written(tmp_path / "mf", qwen2_moe(model.hf, model.config, **plain), model.config)
    assert "by config.json it would be" in refusal(source, preset="qwen2_moe", switch=["use_gmm=false"])
    square = square_experts()
    hf = written(tmp_path / "square_hf", square.hf, square.config)
    mf = written(tmp_path / "square_mf", qwen2_moe(square.hf, square.config, **plain))
    comparisons = [
        build_comparison(a=str(mf), b=str(hf), preset="qwen2_moe", switch=[f"use_gmm={value}"])
        for value in ("true", "false")
    ]
    assert [compare_checkpoints(each).same for each in comparisons] == [True, False]


def test_switches_that_names_show_are_not_taken_otherwise(tmp_path: Path) -> None:
    case = chatglm_case(qkv_concat=False, mlp_concat=False, use_rearrange_rope=False)
    model = case.model()
    mf = written(tmp_path / "mf", case.rules(model), model.config)
    for switch in ("qkv_concat", "mlp_concat"):
        given = [*case.switch, f"{switch}=true"]
        text = refusal(mf, InputError, preset="chatglm", switch=given)
        assert text == f"switch=['{switch}=true']: the names and axes show that it is false"


def test_a_fused_weight_with_rearranged_rows_is_refused(tmp_path: Path) -> None:
    case = chatglm_case(qkv_concat=True, mlp_concat=True, use_rearrange_rope=False)
    model = case.model()
    mf = written(tmp_path / "mf", case.rules(model), model.config)
    text = refusal(mf, preset="chatglm", switch=["use_rearrange_rope=true"])
    assert "query_key_value.weight' is in no row of the preset" in text


@pytest.mark.parametrize("shards", [1, 2])
def test_weights_that_older_converters_fused(shards: int, tmp_path: Path) -> None:
    """All of q, then of k, then of v: of whole weights, or of each rank's shard; there `groups` are the shards."""
    model = of_fixture("llama")
    layers = range(model.config["num_hidden_layers"])
    arrays = dict(load_file(Family("llama").mf))
    for layer in (f"model.layers.{number}" for number in layers):
        qkv = [arrays.pop(f"{layer}.attention.w{name}.weight") for name in "qkv"]
        gate, up = (arrays.pop(f"{layer}.feed_forward.{name}.weight") for name in ("w1", "w3"))
        arrays[f"{layer}.attention.w_qkv.weight"] = grouped(qkv, shards)
        arrays[f"{layer}.feed_forward.w_gate_hidden.weight"] = grouped([gate, up], shards)
    hf, mf = written(tmp_path / "hf", model.hf, model.config), written(tmp_path / "mf", arrays)
    preset, switch = "llama", "qkv_grouped=false"
    if shards > 1:
        own = (
            preset_text("llama")
            .replace("groups: ng", f'groups: "{shards}"')
            .replace("groups: F", f'groups: "{shards}"')
        )
        (tmp_path / "own.yaml").write_text(own)
        preset, switch = str(tmp_path / "own.yaml"), "qkv_grouped=true"
    options = {"preset": preset, "switch": [switch], "layout": "unified", "like": str(hf)}
    convert(build_request(source=str(mf), target=str(tmp_path / "out"), **options))
    assert directory_contents(tmp_path / "out") == directory_contents(hf)


def test_how_fused_weights_lie_is_asked_for(tmp_path: Path) -> None:
    """Converters of MindFormers have made them in both ways, under the same names."""
    case = qwen2_moe_case(qkv_concat=True, bias_groups=True, use_gmm=False)
    model = case.model()
    mf = written(tmp_path / "mf", case.rules(model), model.config)
    text = refusal(mf, InputError, preset="qwen2_moe", switch=["use_gmm=false", "bias_groups=true"])
    assert "a checkpoint does not show how w_qkv is laid out" in text
    assert "switch=['qkv_grouped=true'] (for each group of heads its q, k and v" in text

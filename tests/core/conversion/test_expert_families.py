"""Families with experts that Megatron trains, held against its rules in numpy, both ways, in each spelling."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, LayoutError, PlanError
from reshard.core.layouts.megatron.args_writing import model_args
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.tensor.dtypes import DType, dtype_from_name
from reshard.core.verification.compare import compare_checkpoints
from tests.support.diagnosed import diagnose
from tests.support.families import directory_contents
from tests.support.megatron_files import read_models, read_rank_file
from tests.support.megatron_rules import megatron
from tests.support.mindformers_rules import Arrays
from tests.support.written_models import fused, written

Shapes = dict[str, tuple[int, ...]]

LAYERS, HIDDEN, HEADS, GROUPS, SIZE, EXPERTS, INNER, OF_EXPERT = 3, 16, 4, 2, 6, 12, 20, 10
QUERIES, KEYS = HEADS * SIZE, GROUPS * SIZE
CONFIG: dict[str, Any] = {"num_hidden_layers": LAYERS, "vocab_size": 32, "hidden_size": HIDDEN, "head_dim": SIZE,
                          "num_attention_heads": HEADS, "num_key_value_heads": GROUPS}  # fmt: skip


def matrices(place: str, names: Iterable[str], inner: int) -> Shapes:
    """The gate, the up and the down matrix of an MLP."""
    gate, up, down = (f"{place}.{name}.weight" for name in names)
    return {gate: (inner, HIDDEN), up: (inner, HIDDEN), down: (HIDDEN, inner)}


def matrices_of_experts(place: str, names: Iterable[str]) -> Shapes:
    """The matrices of each expert."""
    found: Shapes = {}
    for number in range(EXPERTS):
        found |= matrices(f"{place}.experts.{number}", names, OF_EXPERT)
    return found


def attention(queries: int, keys: int) -> Shapes:
    """What every layer has."""
    return {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (queries, HIDDEN),
        "self_attn.k_proj.weight": (keys, HIDDEN),
        "self_attn.v_proj.weight": (keys, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, queries),
    }


def norms_of(queries: int, keys: int) -> Shapes:
    """Norms of q and k."""
    return {"self_attn.q_norm.weight": (queries,), "self_attn.k_norm.weight": (keys,)}


PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
ATTENTION = attention(QUERIES, KEYS)
BIASES: Shapes = {
    "self_attn.q_proj.bias": (QUERIES,),
    "self_attn.k_proj.bias": (KEYS,),
    "self_attn.v_proj.bias": (KEYS,),
}
NORMS = norms_of(SIZE, SIZE)
SPARSE: Shapes = {"mlp.gate.weight": (EXPERTS, HIDDEN), **matrices_of_experts("mlp", PROJECTIONS)}
SHARED: Shapes = {
    "mlp.gate.e_score_correction_bias": (EXPERTS,),
    **matrices("mlp.shared_experts", PROJECTIONS, 2 * OF_EXPERT),
}
DENSE = matrices("mlp", PROJECTIONS, INNER)
OF_MTP: Shapes = {
    "enorm.weight": (HIDDEN,),
    "hnorm.weight": (HIDDEN,),
    "eh_proj.weight": (HIDDEN, 2 * HIDDEN),
    "shared_head.norm.weight": (HIDDEN,),
}


@dataclass(frozen=True)
class Model:
    """A model of Hugging Face's.

    Attributes:
        layers: shapes of the weights of each layer.
        config: config.json.
    """

    name: str
    preset: str
    layers: tuple[Shapes, ...]
    config: Mapping[str, Any]

    def __str__(self) -> str:
        return self.name

    @property
    def hf(self) -> Arrays:
        draw = np.random.default_rng(1)
        shapes: Shapes = {"model.embed_tokens.weight": (32, HIDDEN), "model.norm.weight": (HIDDEN,)}
        shapes["lm_head.weight"] = (32, HIDDEN)
        for number, layer in enumerate(self.layers):
            shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
        hf = {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        if len(self.layers) > LAYERS:
            hf[f"model.layers.{LAYERS}.embed_tokens.weight"] = hf["model.embed_tokens.weight"]
            hf[f"model.layers.{LAYERS}.shared_head.head.weight"] = hf["lm_head.weight"]
        return hf

    def directory(self, path: Path) -> Path:
        return written(path, self.hf, dict(self.config))


GLM = CONFIG | {"model_type": "glm4_moe", "intermediate_size": INNER, "n_routed_experts": EXPERTS,
                "moe_intermediate_size": OF_EXPERT, "n_shared_experts": 2, "first_k_dense_replace": 1,
                "attention_bias": True}  # fmt: skip
GLM_LAYERS = (ATTENTION | BIASES | DENSE, *[ATTENTION | BIASES | SPARSE | SHARED] * (LAYERS - 1))
GPT_OSS_LAYER: Shapes = {
    **ATTENTION,
    **BIASES,
    "self_attn.o_proj.bias": (HIDDEN,),
    "self_attn.sinks": (HEADS,),
    "mlp.router.weight": (EXPERTS, HIDDEN),
    "mlp.router.bias": (EXPERTS,),
    "mlp.experts.gate_up_proj": (EXPERTS, HIDDEN, 2 * OF_EXPERT),
    "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * OF_EXPERT),
    "mlp.experts.down_proj": (EXPERTS, OF_EXPERT, HIDDEN),
    "mlp.experts.down_proj_bias": (EXPERTS, HIDDEN),
}
MINIMAX_M2_LAYER: Shapes = {
    **ATTENTION,
    **norms_of(QUERIES, KEYS),
    "block_sparse_moe.gate.weight": (EXPERTS, HIDDEN),
    "block_sparse_moe.e_score_correction_bias": (EXPERTS,),
    **matrices_of_experts("block_sparse_moe", ("w1", "w3", "w2")),
}
LOCAL = CONFIG | {"num_local_experts": EXPERTS, "intermediate_size": OF_EXPERT}
OLMOE_LAYER = attention(HIDDEN, HIDDEN // 2) | norms_of(HIDDEN, HIDDEN // 2) | SPARSE  # heads are parts of it
HUNYUAN_LAYER: Shapes = {
    **ATTENTION,
    "self_attn.query_layernorm.weight": (SIZE,),
    "self_attn.key_layernorm.weight": (SIZE,),
    "mlp.gate.wg.weight": (EXPERTS, HIDDEN),
    **matrices("mlp.shared_mlp", PROJECTIONS, OF_EXPERT),
    **matrices_of_experts("mlp", PROJECTIONS),
}
QWEN = CONFIG | {"intermediate_size": INNER, "num_experts": EXPERTS, "moe_intermediate_size": OF_EXPERT}
SHARED_EXPERT = matrices("mlp.shared_expert", PROJECTIONS, 8) | {"mlp.shared_expert_gate.weight": (1, HIDDEN)}
ERNIE = attention(HIDDEN, HIDDEN // 2)
ERNIE_BIAS: Shapes = {"mlp.moe_statics.e_score_correction_bias": (1, EXPERTS)}
ERNIE_SPARSE = ERNIE_BIAS | matrices("mlp.shared_experts", PROJECTIONS, 2 * OF_EXPERT)
ERNIE_CONFIG = CONFIG | {"model_type": "ernie4_5_moe", "intermediate_size": INNER, "moe_num_experts": EXPERTS,
                         "moe_intermediate_size": OF_EXPERT, "head_dim": HIDDEN // HEADS}  # fmt: skip
MODELS = (
    Model("glm4_moe", "glm4_moe", GLM_LAYERS, GLM),
    Model("glm4_moe with norms and MTP", "glm4_moe",
          (*(layer | NORMS for layer in GLM_LAYERS), GLM_LAYERS[1] | NORMS | OF_MTP),
          GLM | {"use_qk_norm": True}),
    Model("gpt_oss", "gpt_oss", (GPT_OSS_LAYER,) * LAYERS, LOCAL | {"model_type": "gpt_oss"}),
    Model("minimax_m2", "minimax_m2", (MINIMAX_M2_LAYER,) * LAYERS, LOCAL | {"model_type": "minimax_m2"}),
    Model("hunyuan_moe", "hunyuan_moe", (HUNYUAN_LAYER,) * LAYERS,
          CONFIG | {"model_type": "hunyuan_v1_moe", "num_experts": EXPERTS, "intermediate_size": OF_EXPERT}),
    Model("olmoe", "olmoe", (OLMOE_LAYER,) * LAYERS,
          {**CONFIG, "model_type": "olmoe", "num_experts": EXPERTS, "intermediate_size": OF_EXPERT}),
    Model("ernie4_5_moe", "ernie4_5_moe",
          (ERNIE | DENSE, *[ERNIE | SPARSE | ERNIE_SPARSE] * 2),
          ERNIE_CONFIG | {"moe_num_shared_experts": 2}),
    Model("ernie4_5_moe without shared experts", "ernie4_5_moe", (ERNIE | SPARSE | ERNIE_BIAS,) * LAYERS,
          ERNIE_CONFIG | {"moe_num_shared_experts": 0}),
    Model("dots1", "dots1",
          tuple(layer | NORMS | {"self_attn.o_proj.bias": (HIDDEN,)} for layer in GLM_LAYERS),
          GLM | {"model_type": "dots1"}),
    Model("qwen3_moe mlp_only_layers", "qwen3_moe",
          (ATTENTION | NORMS | SPARSE, ATTENTION | NORMS | DENSE,
           ATTENTION | NORMS | SPARSE),
          QWEN | {"model_type": "qwen3_moe", "decoder_sparse_step": 1, "mlp_only_layers": [1]}),
    Model("qwen3_moe decoder_sparse_step", "qwen3_moe",
          (ATTENTION | NORMS | DENSE, ATTENTION | NORMS | SPARSE,
           ATTENTION | NORMS | DENSE),
          QWEN | {"model_type": "qwen3_moe", "decoder_sparse_step": 2, "mlp_only_layers": []}),
    Model("qwen2_moe mlp_only_layers", "qwen2_moe",
          (ATTENTION | BIASES | DENSE, *[ATTENTION | BIASES | SPARSE | SHARED_EXPERT] * 2),
          QWEN | {"model_type": "qwen2_moe", "decoder_sparse_step": 1, "mlp_only_layers": [0],
                  "shared_expert_intermediate_size": 8}),
)  # fmt: skip
MODEL = {model.name: model for model in MODELS}
WAYS = [
    (model, experts, norms)
    for model in MODELS
    for experts in ("sequential", "grouped", "transformer_engine", "stacked")
    for norms in (("fused", "transformer_engine") if experts in ("stacked", "transformer_engine") else ("separate",))
    if not (model.preset == "gpt_oss" and experts == "grouped")
]


def bytes_of(tensors: Arrays) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {name: (array.shape, array.tobytes()) for name, array in tensors.items()}


def found_in(directory: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {name: (shape, content) for name, (_, shape, content) in directory_contents(directory).items()}


def refusal(source: Path, preset: str, kind: type[Exception], *switch: str) -> str:
    with pytest.raises(kind) as caught:
        make_plan(build_request(source=str(source), target="/tmp/never", preset=preset, switch=[*switch]))
    return str(caught.value)


@pytest.mark.parametrize(("model", "experts", "norms"), WAYS, ids=str)
def test_to_megatron_and_back(model: Model, experts: str, norms: str, tmp_path: Path) -> None:
    hf = model.directory(tmp_path / "hf")
    options: dict[str, Any] = {"preset": model.preset, "layout": "unified", "verify": "content"}
    switch = ["names=megatron", f"megatron_experts={experts}", f"megatron_norms={norms}"]
    convert(build_request(source=str(hf), target=str(tmp_path / "megatron"), switch=switch, **options))
    assert found_in(tmp_path / "megatron") == bytes_of(megatron(model.hf, dict(model.config), experts, norms))
    shutil.copy(hf / "config.json", tmp_path / "megatron")
    options |= {"like": str(hf), "switch": ["names=megatron"]}
    convert(build_request(source=str(tmp_path / "megatron"), target=str(tmp_path / "back"), **options))
    assert found_in(tmp_path / "back") == bytes_of(model.hf)
    asked = {"a": str(tmp_path / "megatron"), "b": str(hf), "preset": model.preset, "switch": ["names=megatron"]}
    assert compare_checkpoints(build_comparison(**asked)).same


@pytest.mark.parametrize("model", [model for model in MODELS if model.preset != "gpt_oss"], ids=str)
def test_the_fused_dialect_of_experts(model: Model, tmp_path: Path) -> None:
    hf = written(tmp_path / "hf", fused(model.hf), dict(model.config))
    options: dict[str, Any] = {"preset": model.preset, "layout": "unified", "switch": ["names=megatron"]}
    convert(build_request(source=str(hf), target=str(tmp_path / "megatron"), **options))
    assert found_in(tmp_path / "megatron") == bytes_of(megatron(model.hf, dict(model.config)))
    options["like"] = str(hf)
    convert(build_request(source=str(tmp_path / "megatron"), target=str(tmp_path / "back"), **options))
    assert found_in(tmp_path / "back") == bytes_of(fused(model.hf))


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_loaders_find_all_of_it(model: Model, tmp_path: Path) -> None:
    """That transformers reads these names, and no others, is shown by its own models in tests/conformance."""
    for dialect, hf in (("plain", model.hf), ("fused", fused(model.hf) if model.preset != "gpt_oss" else model.hf)):
        found = diagnose(str(written(tmp_path / dialect, hf, dict(model.config))))
        assert found.loaded is not None
        assert (found.loaded.missing, found.loaded.dropped, found.loaded.mismatched) == ((), (), ())
        assert found.loaded.expected == len(hf) - len(found.loaded.speculative)


@pytest.mark.parametrize("name", ["glm4_moe", "minimax_m2", "olmoe", "ernie4_5_moe"])
def test_names_of_one_world_need_no_naming(name: str, tmp_path: Path) -> None:
    """MindFormers trains none of these, so that Megatron's names are nobody else's."""
    model = MODEL[name]
    hf = model.directory(tmp_path / "hf")
    report = convert(
        build_request(source=str(hf), target=str(tmp_path / "megatron"), layout="unified", preset=model.preset)
    )
    assert f"preset {model.preset}: Hugging Face to Megatron (megatron names" in str(report.notes)
    options = {"preset": model.preset, "layout": "unified", "like": str(hf)}
    convert(build_request(source=str(tmp_path / "megatron"), target=str(tmp_path / "back"), **options))
    assert found_in(tmp_path / "back") == bytes_of(model.hf)


def test_names_that_are_megatrons_in_each_of_its_spellings(tmp_path: Path) -> None:
    """Those that only one spelling has decide nothing here: `weight1` is MindFormers' as well."""
    model = MODEL["olmoe"]
    tensors = megatron(model.hf, dict(model.config), "grouped")
    source = written(tmp_path / "source", tensors, dict(model.config))
    convert(build_request(source=str(source), target=str(tmp_path / "hf"), layout="unified", preset="olmoe"))
    assert found_in(tmp_path / "hf") == bytes_of(model.hf)


def test_grouped_experts_with_biases_are_refused(tmp_path: Path) -> None:
    hf = MODEL["gpt_oss"].directory(tmp_path / "hf")
    text = refusal(hf, "gpt_oss", InputError, "names=megatron", "megatron_experts=grouped")
    assert text == "switch=['megatron_experts=grouped']: Megatron's grouped experts have no biases, and this model's do"


def test_an_odd_number_of_columns_cannot_alternate(tmp_path: Path) -> None:
    """By a config.json whose numbers are no integers, rows would be out of step."""
    model = MODEL["gpt_oss"]
    hf = written(tmp_path / "hf", model.hf, {**model.config, "intermediate_size": 0})
    assert "'decoder.layers.{L}.mlp.experts.weight1' would have 0 elements along axis 2" in refusal(
        hf, "gpt_oss", InputError, "names=megatron"
    )


def test_another_inner_size_is_refused(tmp_path: Path) -> None:
    """Columns would be taken apart at another place, to the right shape."""
    model = MODEL["gpt_oss"]
    hf = written(tmp_path / "hf", model.hf, {**model.config, "intermediate_size": OF_EXPERT // 2})
    text = refusal(hf, "gpt_oss", PlanError, "names=megatron")
    assert "gate_up_proj' has shape [12, 16, 20], by config.json it would be [12, 16, 10]" in text


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("glm4_moe", "model.layers.1.mlp.gate.e_score_correction_bias"),
        ("glm4_moe", "model.layers.2.mlp.shared_experts.up_proj.weight"),
        ("gpt_oss", "model.layers.2.self_attn.sinks"),
        ("gpt_oss", "model.layers.0.mlp.experts.down_proj_bias"),
        ("minimax_m2", "model.layers.0.self_attn.k_norm.weight"),
        ("minimax_m2", "model.layers.1.block_sparse_moe.e_score_correction_bias"),
        ("olmoe", "model.layers.1.mlp.experts.11.up_proj.weight"),
        ("hunyuan_moe", "model.layers.1.mlp.gate.wg.weight"),
    ],
)
def test_what_a_layer_lacks_is_named(name: str, missing: str, tmp_path: Path) -> None:
    model = MODEL[name]
    hf = {name: array for name, array in model.hf.items() if name != missing}
    source = written(tmp_path / "hf", hf, dict(model.config))
    assert f"parameter {missing!r} is missing" in refusal(source, model.preset, PlanError, "names=megatron")


def test_the_moments_of_alternating_columns_follow(tmp_path: Path) -> None:
    model = MODEL["gpt_oss"]
    name = "decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight"
    weights = megatron(model.hf, dict(model.config))
    moments = {f"optimizer.state.exp_avg.{name}": array + 1 for name, array in weights.items()}
    source = written(tmp_path / "source", weights | moments, dict(model.config))
    options = {"preset": "gpt_oss", "layout": "unified"}
    convert(build_request(source=str(source), target=str(tmp_path / "out"), **options))
    found = found_in(tmp_path / "out")
    assert name in weights
    expected = model.hf["model.layers.1.mlp.experts.gate_up_proj"] + 1
    assert found["adam_m.model.layers.1.mlp.experts.gate_up_proj"] == (expected.shape, expected.tobytes())


LAYOUTS: dict[str, dict[str, object]] = {
    "megatron": {"layout": "megatron", "tensor_parallel": 2, "pipeline_parallel": 3, "expert_parallel": 4},
    "torch_dist": {"layout": "torch_dist"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "model", [MODEL["gpt_oss"], MODEL["minimax_m2"], MODEL["olmoe"], MODEL["glm4_moe"], MODEL["hunyuan_moe"]], ids=str
)
def test_in_megatrons_own_layouts(model: Model, layout: str, tmp_path: Path) -> None:
    hf = model.directory(tmp_path / "hf")
    options: dict[str, Any] = {"preset": model.preset, "verify": "content"}
    # neither shapes nor a norm of all heads together tell how many there are: config.json does
    convert(build_request(source=str(hf), target=str(tmp_path / "out"), **options, **LAYOUTS[layout]))
    # without a preset the names stay, so that each tensor is held against the rules in numpy
    convert(build_request(source=str(tmp_path / "out"), target=str(tmp_path / "whole"), layout="unified"))
    assert found_in(tmp_path / "whole") == bytes_of(megatron(model.hf, dict(model.config)))
    options |= {"layout": "unified", "like": str(hf)}
    convert(build_request(source=str(tmp_path / "out"), target=str(tmp_path / "back"), **options))
    assert found_in(tmp_path / "back") == bytes_of(model.hf)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_that_were_given_count_for_more_than_those_of_config_json(layout: str, tmp_path: Path) -> None:
    model = MODEL["minimax_m2"]
    options: dict[str, Any] = {"preset": model.preset, "target": str(tmp_path / "out"), **LAYOUTS[layout]}
    with pytest.raises(InputError) as caught:
        make_plan(build_request(source=str(model.directory(tmp_path / "hf")), attention_heads=5, **options))
    assert (
        "attention with 5 heads cannot have matrices of 48 rows (linear_qkv) and 24 columns (linear_proj): correct "
        "'attention_heads', or num_attention_heads in config.json"
    ) in str(caught.value)


def shapes_and_dtypes(model: Model) -> tuple[Shapes, dict[str, DType]]:
    weights = megatron(model.hf, dict(model.config))
    return {name: each.shape for name, each in weights.items()}, dict.fromkeys(weights, dtype_from_name("Float32"))


def test_arguments_name_one_gated_activation() -> None:
    """A training refuses swiglu beside quick_geglu, which the source's own arguments may have."""
    shapes, dtypes = shapes_and_dtypes(MODEL["gpt_oss"])
    assert model_args(shapes, dtypes)["swiglu"] is True
    assert model_args(shapes, dtypes)["num_attention_heads"] == HEADS
    args = model_args(shapes, dtypes, given={"quick_geglu": True, "swiglu": False})
    assert (args["quick_geglu"], args["swiglu"], args["softmax_type"]) == (True, False, "learnable")


def test_norms_of_transformer_engine_alone_show_whose_layers_these_are() -> None:
    """OLMo 2 has no others that would."""
    shapes, dtypes = shapes_and_dtypes(MODEL["olmoe"])
    name = "decoder.layers.0.self_attention.linear_proj.post_layernorm.weight"
    dtype = dtype_from_name("Float32")
    assert model_args(shapes, dtypes, HEADS)["transformer_impl"] == "local"
    args = model_args(shapes | {name: (HIDDEN,)}, dtypes | {name: dtype}, HEADS)
    assert args["transformer_impl"] == "transformer_engine"


def test_a_norm_of_all_heads_together_does_not_tell_their_number() -> None:
    shapes, dtypes = shapes_and_dtypes(MODEL["minimax_m2"])
    with pytest.raises(LayoutError, match="the number of attention heads does not follow from its shapes"):
        model_args(shapes, dtypes)
    assert model_args(shapes, dtypes, HEADS)["num_query_groups"] == GROUPS


def test_what_each_rank_has_of_sinks_and_joint_norms(tmp_path: Path) -> None:
    for name, parameter, rank in (
        ("gpt_oss", "core_attention.softmax_offset", slice(HEADS // 2, HEADS)),
        ("minimax_m2", "q_layernorm.weight", slice(QUERIES // 2, QUERIES)),
        ("minimax_m2", "k_layernorm.weight", slice(KEYS // 2, KEYS)),
    ):
        model = MODEL[name]
        target = tmp_path / parameter
        options: dict[str, Any] = {"layout": "megatron", "tensor_parallel": 2, "attention_heads": HEADS}
        convert(
            build_request(
                source=str(model.directory(target / "hf")), target=str(target / "out"), preset=name, **options
            )
        )
        [models] = target.rglob("mp_rank_01/model_optim_rng.pt")
        key = f"decoder.layers.2.self_attention.{parameter}"
        whole = megatron(model.hf, dict(model.config))[key]
        own = read_models(models.parents[1])["mp_rank_01"]["model"]
        assert own[key][1:] == ((len(whole) // 2,), whole[rank].tobytes())
        softmax = getattr(read_rank_file(models)["args"], "softmax_type", None)
        assert softmax == ("learnable" if model.preset == "gpt_oss" else None)

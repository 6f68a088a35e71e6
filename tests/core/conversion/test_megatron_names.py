"""Megatron's names to and from Hugging Face's and MindFormers', by presets; layouts say whose names they are."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from reshard.core.changes.preset import read_preset
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, PlanError, ReshardError
from reshard.core.layouts.options import LayoutOptions
from reshard.core.layouts.targets import side_named
from reshard.core.layouts.unified.source import FoundUnified
from reshard.core.plan.preset_route import compile_preset
from reshard.core.plan.preset_steps import KnownNames, Settings
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.verification.compare import compare_checkpoints
from tests.core.conversion.test_family_rules import qwen2_moe_model
from tests.support.checkpoints import read_safetensors
from tests.support.families import Family, directory_contents
from tests.support.megatron_rules import megatron
from tests.support.mindformers_rules import Arrays

assert ml_dtypes.bfloat16, "imported for safetensors"

FIXTURES = Path(__file__).parents[2] / "fixtures" / "megatron"
EXPERTS = ("sequential", "grouped", "transformer_engine", "stacked")
NORMS = ("separate", "fused", "transformer_engine")
FROM = "names=megatron"
MCORE = ["use_interleaved_weight_layout_mlp=true", "use_contiguous_weight_layout_attention=false"]
MLA = "mla_qkv_concat=false"


@dataclass(frozen=True)
class Model:
    """A model of Hugging Face's, and the switches that its preset needs on the way to Megatron."""

    preset: str
    hf: Arrays
    config: dict[str, Any]
    switch: tuple[str, ...] = field(default=())

    def directory(self, path: Path) -> Path:
        path.mkdir(parents=True)
        save_file(self.hf, path / "model.safetensors", {"format": "pt"})
        (path / "config.json").write_text(json.dumps(self.config))
        return path


def of_family(name: str) -> Model:
    family = Family(name)
    hf: Arrays = {}
    for path in family.hf.glob("*.safetensors"):
        hf |= load_file(path)
    preset = family.case["preset"]
    config = json.loads((family.hf / "config.json").read_text())
    return Model(preset, hf, config, (MLA,) if preset == "deepseek3" else ())


def model_of(name: str) -> Model:
    if name != "qwen2_moe":
        return of_family(name)
    found = qwen2_moe_model()
    return Model("qwen2_moe", found.hf, found.config)


FAMILIES = ("qwen3", "qwen3_tied", "qwen3_moe", "deepseek3", "deepseek3_mtp", "llama", "qwen2", "mixtral", "qwen2_moe")
WITH_EXPERTS = {"qwen3_moe", "deepseek3", "deepseek3_mtp", "mixtral", "qwen2_moe"}
WAYS = [
    (name, experts, norms)
    for name in FAMILIES
    for experts in (EXPERTS if name in WITH_EXPERTS else EXPERTS[:1])
    for norms in (NORMS if experts in ("stacked", "transformer_engine") or name not in WITH_EXPERTS else NORMS[:1])
]


def request(source: Path, target: Path, preset: str, *switch: str, **options: Any) -> ConversionRequest:
    defaults = {"layout": "unified", "verify": "content"}
    return build_request(
        source=str(source), target=str(target), preset=preset, switch=[*switch], **(defaults | options)
    )


def refusal(asked: ConversionRequest, kind: type[ReshardError] = InputError) -> str:
    with pytest.raises(kind) as caught:
        make_plan(asked)
    return str(caught.value)


def source_of(tensors: Arrays, directory: Path, config: dict[str, Any] | None = None) -> Path:
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors")
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def bytes_of(tensors: Arrays) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {name: (array.shape, array.tobytes()) for name, array in tensors.items()}


def found_in(directory: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {name: (shape, content) for name, (_, shape, content) in directory_contents(directory).items()}


def wanted(case: str) -> Arrays:
    """Megatron's model of a case, as a reader presents it: grouped experts in their natural shapes."""
    tensors = load_file(FIXTURES / case / "want.safetensors")
    for name, array in tensors.items():
        if name.endswith("mlp.experts.weight1"):
            tensors[name] = array.reshape(4, 32, -1)
        elif name.endswith("mlp.experts.weight2"):
            tensors[name] = array.reshape(4, -1, 32)
    return tensors


@pytest.mark.parametrize(
    ("case", "hf", "preset"),
    [
        ("legacy_tp2_pp2", "legacy_tp2_pp2", "qwen3"),
        ("legacy_moe_tp2_ep2", "legacy_moe_tp2_ep2", "qwen3_moe"),
        ("legacy_moe_tp2_ep2_grouped", "legacy_moe_tp2_ep2_grouped", "qwen3_moe"),
        ("mindspeed_te_grouped_tp2_ep2", "legacy_moe_tp2_ep2", "qwen3_moe"),
    ],
)
def test_what_mindspeeds_converter_makes(case: str, hf: str, preset: str, tmp_path: Path) -> None:
    source = source_of(wanted(case), tmp_path / "source")
    like = FIXTURES / hf / "hf"
    convert(request(source, tmp_path / "out", preset, FROM, like=str(like)))
    assert directory_contents(tmp_path / "out") == directory_contents(like)


@pytest.mark.parametrize(("name", "experts", "norms"), WAYS)
def test_from_hugging_face_to_megatron_and_back(name: str, experts: str, norms: str, tmp_path: Path) -> None:
    model = model_of(name)
    hf = model.directory(tmp_path / "hf")
    spelled = (f"megatron_experts={experts}", f"megatron_norms={norms}")
    convert(request(hf, tmp_path / "megatron", model.preset, FROM, *spelled, *model.switch))
    expected = megatron(model.hf, model.config, experts, norms)
    assert found_in(tmp_path / "megatron") == bytes_of(expected)
    shutil.copy(hf / "config.json", tmp_path / "megatron")
    convert(request(tmp_path / "megatron", tmp_path / "back", model.preset, FROM, like=str(hf)))
    assert found_in(tmp_path / "back") == bytes_of(model.hf)


OF_MINDFORMERS = {
    "qwen3": MCORE,
    "qwen3_moe": MCORE[1:],
    "qwen3_moe_3d": [*MCORE[1:], "experts_axes=3"],
    "deepseek3": [MCORE[0], MLA],
    "deepseek3_mtp": [MCORE[0], MLA],
}


@pytest.mark.parametrize("name", OF_MINDFORMERS)
def test_between_megatron_and_mindformers(name: str, tmp_path: Path) -> None:
    """MindFormers' weights of the fixtures were made or confirmed by its own converters."""
    family, model = Family(name), of_family(name)
    for number, experts in enumerate(EXPERTS if "moe" in name or "deepseek" in name else EXPERTS[:1]):
        directory = tmp_path / str(number)
        tensors = megatron(model.hf, model.config, experts, NORMS[number % 3])
        source = source_of(tensors, directory / "source", model.config)
        switch = [FROM, "to=mcore", *OF_MINDFORMERS[name]]
        report = convert(request(source, directory / "mf", model.preset, *switch))
        assert f"preset {model.preset}: Megatron to MindFormers (megatron and mcore names" in str(report.notes)
        assert directory_contents(directory / "mf") == read_safetensors(family.mf)
        shutil.copy(source / "config.json", directory / "mf")
        spelled = [f"megatron_experts={experts}", f"megatron_norms={NORMS[number % 3]}"]
        back = ["names=mcore", "to=megatron", *spelled, *OF_MINDFORMERS[name][: 1 if "qwen3_moe" in name else None]]
        convert(request(directory / "mf", directory / "back", model.preset, *back))
        assert found_in(directory / "back") == bytes_of(tensors)


def test_only_what_differs_is_moved(tmp_path: Path) -> None:
    """What both tables do cancels: each parameter that lies alike is read as a whole."""
    model = of_family("qwen3_moe")
    source = source_of(megatron(model.hf, model.config, "grouped"), tmp_path / "source", model.config)
    plan = make_plan(request(source, tmp_path / "mf", "qwen3_moe", FROM, "to=mcore", *MCORE[1:], "experts_axes=3"))
    assert all(len(each.sources) == 1 for each in plan.match.resharded)
    assert {each.name for each in plan.match.resharded} == {each.sources[0].name for each in plan.match.resharded}


def test_values_are_compared_across_worlds(tmp_path: Path) -> None:
    model = of_family("qwen3_moe")
    hf = model.directory(tmp_path / "hf")
    source = source_of(megatron(model.hf, model.config), tmp_path / "source", model.config)
    mf = source_of(load_file(Family("qwen3_moe").mf), tmp_path / "mf", model.config)
    for b, switch in ((hf, [FROM]), (mf, [FROM, "to=mcore", *MCORE[1:]])):
        asked: dict[str, Any] = {"a": str(source), "b": str(b), "preset": "qwen3_moe", "switch": switch}
        report = compare_checkpoints(build_comparison(**asked))
        assert report.same, report


def test_a_layout_of_b_says_whose_names_it_has() -> None:
    case = FIXTURES / "legacy_tp2_pp2"
    asked = build_comparison(a=str(case / "hf"), b=str(case / "src"), preset="qwen3")
    report = compare_checkpoints(asked)
    assert report.same, report


@pytest.mark.parametrize("norms", NORMS)
def test_other_spellings_of_the_same_names(norms: str, tmp_path: Path) -> None:
    """As from torch_dist to folders of ranks."""
    model = of_family("deepseek3_mtp")
    source = source_of(megatron(model.hf, model.config, "stacked", norms), tmp_path / "source", model.config)
    convert(request(source, tmp_path / "out", "deepseek3", FROM, "to=megatron", "megatron_experts=grouped", MLA))
    assert found_in(tmp_path / "out") == bytes_of(megatron(model.hf, model.config, "grouped"))


def test_mla_and_mtp_of_megatron_itself(tmp_path: Path) -> None:
    tensors = wanted("legacy_mla_mtp_tp2_pp2")
    for name in list(tensors):  # DeepSeek's config.json counts shared experts in whole experts
        if "shared_experts.linear_fc1" in name:
            tensors[name] = np.concatenate([tensors[name][:8], tensors[name][12:20]])
        elif "shared_experts.linear_fc2" in name:
            tensors[name] = np.ascontiguousarray(tensors[name][:, :8])
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 2, "vocab_size": 32, "hidden_size": 32,
              "intermediate_size": 16, "n_routed_experts": 4, "moe_intermediate_size": 8, "n_shared_experts": 1,
              "num_attention_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 8,
              "qk_rope_head_dim": 4, "v_head_dim": 8}  # fmt: skip
    source = source_of(tensors, tmp_path / "source", config)
    convert(request(source, tmp_path / "hf", "deepseek3"))
    hf = load_file(tmp_path / "hf/model.safetensors")
    assert bytes_of(megatron(hf, config)) == bytes_of(tensors)
    assert hf["model.layers.1.mlp.gate.e_score_correction_bias"].dtype == np.float32
    assert np.array_equal(hf["model.layers.2.embed_tokens.weight"], hf["model.embed_tokens.weight"])


def test_biases_of_megatron_itself(tmp_path: Path) -> None:
    config = {"model_type": "qwen2", "num_hidden_layers": 4, "vocab_size": 32, "hidden_size": 32, "head_dim": 8,
              "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
    tensors = wanted("legacy_pp2_uneven_bias")
    source = source_of(tensors, tmp_path / "source", config)
    convert(request(source, tmp_path / "hf", "qwen2", FROM))
    hf = load_file(tmp_path / "hf/model.safetensors")
    assert "model.layers.3.self_attn.k_proj.bias" in hf
    assert bytes_of(megatron(hf, config)) == bytes_of(tensors)


QWEN3_TINY = {"model_type": "qwen3", "num_hidden_layers": 2, "vocab_size": 32, "hidden_size": 32, "head_dim": 4,
              "intermediate_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip


def test_the_optimizer_follows_its_weights(tmp_path: Path) -> None:
    tensors = wanted("legacy_optimizer_tp2")
    source = source_of(tensors, tmp_path / "source", QWEN3_TINY)
    report = convert(request(source, tmp_path / "mf", "qwen3", FROM, "to=mcore", *MCORE))
    assert (
        "optimizer.state.param.NAME, the optimizer's float32 copies of weights, become main_param.NAME, which "
        "MindFormers reads in PyNative mode only" in str(report.notes)
    )
    mf = load_file(tmp_path / "mf/model.safetensors")
    weights = {name for name in mf if not name.startswith(("adam_m.", "adam_v.", "main_param."))}
    assert mf.keys() == weights | {
        f"{prefix}.{name}" for prefix in ("adam_m", "adam_v", "main_param") for name in weights
    }
    name = "decoder.layers.1.mlp.linear_fc1.weight"
    moment = tensors[f"optimizer.state.exp_avg_sq.{name}"]
    assert np.array_equal(mf[f"adam_v.{name}"][0::2], moment[:16])
    assert np.array_equal(mf[f"main_param.{name}"].astype(mf[name].dtype), mf[name])
    shutil.copy(source / "config.json", tmp_path / "mf")
    convert(request(tmp_path / "mf", tmp_path / "back", "qwen3", "names=mcore", "to=megatron", *MCORE))
    assert found_in(tmp_path / "back") == bytes_of(tensors)
    convert(request(source, tmp_path / "weights", "qwen3", FROM, select="weights-only"))
    assert len(load_file(tmp_path / "weights/model.safetensors")) == 25


@pytest.mark.parametrize("layers", [1, 2])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_two_tables_one_after_the_other_are_the_way_through(
    layers: int, data: st.DataObject, tmp_path_factory: Any
) -> None:
    """Megatron to MindFormers is Megatron to Hugging Face, then to MindFormers, whatever the sizes are."""
    groups, heads, head, half = (data.draw(st.integers(1, most)) for most in (3, 3, 3, 7))
    hidden, vocabulary = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    config = {"model_type": "qwen3", "num_hidden_layers": layers, "vocab_size": vocabulary, "hidden_size": hidden,
              "head_dim": head, "intermediate_size": half, "num_attention_heads": groups * heads,
              "num_key_value_heads": groups}  # fmt: skip
    shapes = {"input_layernorm.weight": (hidden,), "pre_mlp_layernorm.weight": (hidden,),
              "self_attention.linear_qkv.weight": (groups * (heads + 2) * head, hidden),
              "self_attention.linear_proj.weight": (hidden, groups * heads * head),
              "self_attention.q_layernorm.weight": (head,), "self_attention.k_layernorm.weight": (head,),
              "mlp.linear_fc1.weight": (2 * half, hidden), "mlp.linear_fc2.weight": (hidden, half)}  # fmt: skip
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    whole = {f"decoder.layers.{n}.{name}": shape for n in range(layers) for name, shape in shapes.items()}
    whole |= {"embedding.word_embeddings.weight": (vocabulary, hidden), "decoder.final_layernorm.weight": (hidden,)}
    tensors = {name: draw.standard_normal(shape, np.float32) for name, shape in whole.items()}
    directory = Path(tmp_path_factory.mktemp("chain"))
    source = source_of(tensors, directory / "source", config)
    interleaved, contiguous = (data.draw(st.sampled_from(["true", "false"])) for _ in range(2))
    switch = [
        f"use_interleaved_weight_layout_mlp={interleaved}",
        f"use_contiguous_weight_layout_attention={contiguous}",
    ]
    convert(request(source, directory / "hf", "qwen3", FROM))
    shutil.copy(source / "config.json", directory / "hf")
    convert(request(directory / "hf", directory / "two", "qwen3", "names=mcore", *switch))
    convert(request(source, directory / "one", "qwen3", FROM, "to=mcore", *switch))
    assert directory_contents(directory / "one") == directory_contents(directory / "two")
    shutil.copy(source / "config.json", directory / "one")
    convert(request(directory / "one", directory / "back", "qwen3", "names=mcore", "to=megatron", *switch))
    assert found_in(directory / "back") == bytes_of(tensors)


def test_rows_of_padding_are_left_out(tmp_path: Path) -> None:
    model = of_family("qwen3")
    tensors = megatron(model.hf, model.config)
    padding = np.ones((16, tensors["output_layer.weight"].shape[1]), tensors["output_layer.weight"].dtype)
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        tensors[name] = np.concatenate([tensors[name], padding])
        tensors[f"optimizer.state.exp_avg.{name}"] = tensors[name].astype(np.float32)
    source = source_of(tensors, tmp_path / "source", model.config)
    report = convert(request(source, tmp_path / "hf", "qwen3", FROM))
    rows = model.config["vocab_size"]
    left_out = (
        f"embedding.word_embeddings.weight: the first {rows} of {rows + 16} rows are the vocabulary; rows of padding "
        "are left out"
    )
    assert left_out in report.notes
    found = load_file(tmp_path / "hf/model.safetensors")
    assert found.pop("adam_m.lm_head.weight").shape[0] == found.pop("adam_m.model.embed_tokens.weight").shape[0] == rows
    assert bytes_of(found) == bytes_of(model.hf)
    text = refusal(request(source_of(tensors, tmp_path / "unknown"), tmp_path / "out", "qwen3", FROM))
    assert "depends on vocab_size of config.json" in text


def test_no_padding_is_noted_where_there_is_none(tmp_path: Path) -> None:
    model = of_family("qwen3")
    source = source_of(megatron(model.hf, model.config), tmp_path / "source", model.config)
    report = convert(request(source, tmp_path / "hf", "qwen3", FROM))
    assert not [note for note in report.notes if "padding" in note]


@pytest.fixture
def padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout whose targets have 64 rows of vocabulary."""
    monkeypatch.setattr(LayoutOptions, "padded_vocabulary", lambda self, options: 64)


@pytest.mark.usefixtures("padding")
def test_a_vocabulary_is_padded_with_its_last_row(tmp_path: Path) -> None:
    model = of_family("qwen3_moe")
    hf = model.directory(tmp_path / "hf")
    convert(request(hf, tmp_path / "megatron", "qwen3_moe", FROM))
    found = load_file(tmp_path / "megatron/model.safetensors")
    expected = megatron(model.hf, model.config)
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        assert found[name].shape[0] == 64
        expected[name] = np.concatenate([expected[name], np.repeat(expected[name][-1:], 16, axis=0)])
    assert bytes_of(found) == bytes_of(expected)
    convert(request(tmp_path / "megatron", tmp_path / "back", "qwen3_moe", FROM, like=str(hf)))
    assert found_in(tmp_path / "back") == bytes_of(model.hf)


@pytest.mark.usefixtures("padding")
def test_a_padding_that_is_too_short_is_refused(tmp_path: Path) -> None:
    model = of_family("qwen3_moe")
    draw = np.zeros((96, 48), np.float32)
    larger = Model("qwen3_moe", {**model.hf, "model.embed_tokens.weight": draw, "lm_head.weight": draw},
                   {**model.config, "vocab_size": 96})  # fmt: skip
    text = refusal(request(larger.directory(tmp_path / "hf"), tmp_path / "out", "qwen3_moe", FROM), PlanError)
    assert "axis 0 of 'embedding.word_embeddings.weight' has 96 elements, which cannot become 64" in text


@pytest.fixture
def megatron_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of sources says that their names are Megatron's."""
    monkeypatch.setattr(FoundUnified, "preset_settings", {"names": "megatron"})


@pytest.fixture
def megatron_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of targets wants Megatron's names, as torch_dist spells them."""
    wants = {"names": "megatron", "megatron_experts": "stacked", "megatron_norms": "fused", "mla_qkv_concat": "false"}
    monkeypatch.setattr(side_named("unified").record, "preset_settings", wants)


@pytest.mark.usefixtures("megatron_source")
def test_a_sources_layout_says_whose_names_it_has(tmp_path: Path) -> None:
    model = of_family("qwen3")
    source = source_of(megatron(model.hf, model.config), tmp_path / "source", model.config)
    convert(request(source, tmp_path / "hf", "qwen3"))
    assert found_in(tmp_path / "hf") == bytes_of(model.hf)
    text = refusal(request(source, tmp_path / "out", "qwen3", "names=mcore"))
    assert text == "switch=['names=mcore']: the source's layout always has megatron names"
    hf = model.directory(tmp_path / "other")
    assert (
        "the source's layout has megatron names, and 'model.embed_tokens.weight' is as Hugging Face has it"
        in refusal(request(hf, tmp_path / "out", "qwen3"))
    )
    text = refusal(request(source, tmp_path / "out", "telechat2"))
    assert text == "preset telechat2 has no names of megatron: it has legacy"
    text = refusal(request(source, tmp_path / "out", "minimax"))
    assert text == "preset minimax has no names of megatron: it has Hugging Face's only"


@pytest.mark.usefixtures("megatron_target")
def test_a_targets_layout_says_which_names_it_wants(tmp_path: Path) -> None:
    for name in ("qwen3_moe", "deepseek3"):
        model = of_family(name)
        hf = model.directory(tmp_path / name / "hf")
        convert(request(hf, tmp_path / name / "out", model.preset))
        assert found_in(tmp_path / name / "out") == bytes_of(megatron(model.hf, model.config, "stacked", "fused"))
    mf = source_of(load_file(Family("qwen3").mf), tmp_path / "mf", of_family("qwen3").config)
    convert(request(mf, tmp_path / "from mf", "qwen3", *MCORE))
    qwen3 = of_family("qwen3")
    assert found_in(tmp_path / "from mf") == bytes_of(megatron(qwen3.hf, qwen3.config, norms="fused"))
    hf = tmp_path / "qwen3_moe/hf"
    text = refusal(request(hf, tmp_path / "out", "qwen3_moe", "names=mcore"))
    assert text == "names='mcore': the target's layout always has megatron names"
    text = refusal(request(hf, tmp_path / "out", "qwen3_moe", "megatron_experts=grouped"))
    assert text == "switch=['megatron_experts=grouped']: the layout always has stacked"


def test_numbers_that_the_source_says_itself(tmp_path: Path) -> None:
    preset, model = read_preset("qwen3"), of_family("qwen3")
    tensors = megatron(model.hf, model.config)
    known = KnownNames({name: array.ndim for name, array in tensors.items()})
    numbers = {name: value for name, value in model.config.items() if type(value) is int}
    said = Settings({}, None, None, "", numbers=numbers, of_source={"names": "megatron"})
    by_config = Settings({}, None, model.config, "config.json", of_source={"names": "megatron"})
    assert compile_preset(preset, known, said).steps == compile_preset(preset, known, by_config).steps
    other = {**model.config, "num_key_value_heads": 1}
    both = Settings({}, None, other, "/hf", numbers=numbers, of_source={"names": "megatron"})
    with pytest.raises(InputError) as caught:
        compile_preset(preset, known, both)
    assert str(caught.value) == (
        f"/hf: config.json has num_key_value_heads 1, and the source itself says num_key_value_heads "
        f"{numbers['num_key_value_heads']}: name the config.json of the model itself"
    )


def test_names_that_only_megatron_has_show_it(tmp_path: Path) -> None:
    model = of_family("deepseek3_mtp")
    source = source_of(megatron(model.hf, model.config), tmp_path / "source", model.config)
    convert(request(source, tmp_path / "hf", "deepseek3"))
    assert found_in(tmp_path / "hf") == bytes_of(model.hf)


def test_names_that_may_be_mindformers_are_a_question(tmp_path: Path) -> None:
    model = of_family("qwen3")
    source = source_of(megatron(model.hf, model.config), tmp_path / "source", model.config)
    assert "a checkpoint does not show how linear_" in refusal(request(source, tmp_path / "out", "qwen3"))
    llama = of_family("llama")
    source = source_of(megatron(llama.hf, llama.config), tmp_path / "llama", llama.config)
    text = refusal(request(source, tmp_path / "out", "llama"))
    assert "if Megatron wrote it, switch=['names=megatron']" in text


@pytest.mark.parametrize(
    ("switch", "problem"),
    [
        (
            ["names=megatron", "to=legacy"],
            "switch=['to=legacy']: must be one of hf, mindformers, mcore, megatron, titan",
        ),
        (["names=mcore", "to=mcore", *MCORE], "names='mcore': the source has mcore names already"),
        (["names=megatron", "use_interleaved_weight_layout_mlp=true"], ""),
    ],
)
def test_switches_that_lead_nowhere(switch: list[str], problem: str, tmp_path: Path) -> None:
    model = of_family("qwen3")
    source = source_of(megatron(model.hf, model.config), tmp_path / "source", model.config)
    asked = request(source, tmp_path / "out", "qwen3", *switch)
    if problem:
        assert refusal(asked) == problem
    else:
        assert "use_interleaved_weight_layout_mlp is false in megatron names" in refusal(asked)


def test_switches_of_hugging_faces_names(tmp_path: Path) -> None:
    hf = of_family("qwen3").directory(tmp_path / "hf")
    text = refusal(request(hf, tmp_path / "out", "qwen3", "to=hf"))
    assert text == "names='hf': the source has Hugging Face's names already"
    text = refusal(request(hf, tmp_path / "out", "qwen3", "to=mcore", "names=megatron"))
    assert "contradicts switch=['names=megatron'], since the source's names are Hugging Face's" in text


def test_wrong_sizes_are_refused_between_two_worlds(tmp_path: Path) -> None:
    """Halves of another length would divide, and give plausible bytes."""
    model = of_family("qwen3")
    config = {**model.config, "intermediate_size": model.config["intermediate_size"] // 2}
    source = source_of(megatron(model.hf, model.config), tmp_path / "source", config)
    text = refusal(request(source, tmp_path / "out", "qwen3", FROM, "to=mcore", *MCORE), PlanError)
    assert "parameter 'model.layers.0.mlp.down_proj.weight' has shape" in text


def test_experts_that_are_missing(tmp_path: Path) -> None:
    model = of_family("qwen3_moe")
    tensors = megatron(model.hf, model.config)
    del tensors["decoder.layers.1.mlp.experts.local_experts.2.linear_fc1.weight"]
    source = source_of(tensors, tmp_path / "source", model.config)
    text = refusal(request(source, tmp_path / "out", "qwen3_moe", FROM), PlanError)
    assert "'decoder.layers.1.mlp.experts.local_experts.2.linear_fc1.weight'" in text

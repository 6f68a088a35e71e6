"""LoRA adapters alone whose weights are fused on one side, held against numpy: what they do to the weights is the same.

The products that numpy adds have the terms of both sides in the same order, and zeros beside them: their bytes are the
same for any values.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reshard.core.conversion.convert import convert
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import InputError, PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import write_strategy
from reshard.core.verification.compare import compare_checkpoints
from tests.core.conversion.test_family_rules import CASES, Case
from tests.core.conversion.test_lora import chain
from tests.core.conversion.test_lora_names import (
    ALPHA,
    LIVE,
    MINDPET,
    PEFT,
    RANK,
    adapter,
    merged,
    whole,
)
from tests.support.checkpoints import read_tree
from tests.support.families import Family, directory_contents, switches_of
from tests.support.mindformers_rules import Arrays
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import RandomLayout
from tests.support.written_models import written

NAMES = "lora_names=mindpet"
BLOCKS = "lora_join=blocks"


def renamed(source: Path, target: Path, *switch: str, **options: Any) -> ConversionReport:
    """Convert an adapter alone."""
    given: dict[str, Any] = {"source": str(source), "target": str(target), "switch": [*switch], "layout": "unified"}
    return convert(build_request(verify="content", **given, **options))


def tensors_of(directory: Path) -> Arrays:
    found: Arrays = {}
    for path in directory.glob("*.safetensors"):
        found |= load_file(path)
    return found


def applied(weights: Mapping[str, np.ndarray], directory: Path, names: tuple[str, str], alpha: float) -> Arrays:
    """The weights with all products of an adapter's matrices."""
    tensors, found = tensors_of(directory), dict(weights)
    before, after = names[0].split("{}")
    modules = [name.removeprefix(before).removesuffix(after) for name in tensors if name.endswith(after)]
    assert len(tensors) == 2 * len(modules) > 0
    for module in modules:
        a, b = (tensors[name.format(module)] for name in names)
        weight = weights[f"{module}.weight"]
        added = chain(b, a) * np.float32(alpha / len(a))
        found[f"{module}.weight"] = (weight.astype(np.float32) + added).astype(weight.dtype)
    return found


def as_bytes(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[Any, ...]]:
    return {name: (each.dtype, each.shape, each.tobytes()) for name, each in arrays.items()}


OF_LAYERS_WITH_EXPERTS = "experts.", "mlp.gate.", "local_experts."
"""They are one of a stack on the other side, or it takes the experts' names to know theirs."""


def adaptable(weights: Arrays) -> Arrays:
    def is_adaptable(name: str) -> bool:
        return not any(each in name.replace("shared_experts.", "") for each in OF_LAYERS_WITH_EXPERTS)

    return {name: each for name, each in weights.items() if is_adaptable(name)}


def some(weights: Arrays) -> Arrays:
    """All in the first layer; in others only the first of several parts."""
    others = ("k_proj", "v_proj", "up_proj")
    return {name: each for name, each in weights.items() if ".0." in name or not any(map(name.__contains__, others))}


OTHERS = "megatron", "chatglm", "telechat3", "'use_gmm': True", "use_gmm True"
"""ChatGLM's modules have the same names on both sides, and TeleChat3's rules are of weights that stay as they are."""


@pytest.mark.parametrize("case", [case for case in CASES if not any(map(str(case).__contains__, OTHERS))], ids=str)
def test_there_and_back(case: Case, tmp_path: Path) -> None:
    """Matrices of several modules become blocks; back and there again they have the same A, and are the same bytes."""
    model = case.model()
    options: dict[str, Any] = {"preset": case.preset, "allow_model": [model.config.get("model_type", "")]}
    options["config_json"] = str(written(tmp_path / "hf", {}, model.config))
    adapter(tmp_path / "peft", some(adaptable(model.hf)), PEFT)
    there = [*case.switch, *case.asked, NAMES]
    report = renamed(tmp_path / "peft", tmp_path / "mf", *there, BLOCKS, **options)
    [rank] = {len(each) for name, each in tensors_of(tmp_path / "mf").items() if name.endswith("lora_a")}
    alpha = ALPHA * rank / RANK
    assert f"a training that goes on from this adapter needs lora_rank {rank}, lora_alpha {alpha:g}" in report.notes
    wanted = as_bytes(case.rules(type(model)(applied(model.hf, tmp_path / "peft", PEFT, ALPHA), model.config)))
    assert as_bytes(applied(case.rules(model), tmp_path / "mf", MINDPET, alpha)) == wanted
    renamed(tmp_path / "mf", tmp_path / "back", *case.switch, lora_alpha=alpha, **options)
    assert json.loads((tmp_path / "back/adapter_config.json").read_text())["r"] == rank
    again = case.rules(type(model)(applied(model.hf, tmp_path / "back", PEFT, alpha), model.config))
    assert as_bytes(again) == wanted
    renamed(tmp_path / "back", tmp_path / "there", *there, **options)
    assert directory_contents(tmp_path / "there") == directory_contents(tmp_path / "mf")


BRIDGE = ("{}.adapter.linear_in.weight", "{}.adapter.linear_out.weight")
"""As Megatron-Bridge has them."""


@pytest.mark.parametrize("case", [case for case in CASES if str(case).endswith("megatron separate")], ids=str)
def test_names_of_megatrons_modules(case: Case, tmp_path: Path) -> None:
    model = case.model()
    options: dict[str, Any] = {"preset": case.preset, "allow_model": [model.config.get("model_type", "")]}
    options["config_json"] = str(written(tmp_path / "hf", {}, model.config))
    rules = case.rules(model)
    source = adapter(tmp_path / "source", adaptable(rules), LIVE if case.preset < "h" else BRIDGE)
    renamed(source, tmp_path / "peft", *case.switch, lora_alpha=ALPHA, **options)
    found = case.rules(type(model)(applied(model.hf, tmp_path / "peft", PEFT, ALPHA), model.config))
    assert as_bytes(found) == as_bytes(rules | merged(adaptable(rules)))


def test_megatron_bridges_names_are_merged_like_pefts(tmp_path: Path) -> None:
    weights: Arrays = {"decoder.layers.0.mlp.linear_fc2.weight": np.ones((8, 4), np.float32)}
    base = written(tmp_path / "base", weights)
    lora = adapter(tmp_path / "lora", weights, BRIDGE)
    given: dict[str, Any] = {"source": str(base), "lora": str(lora), "lora_alpha": ALPHA, "layout": "unified"}
    convert(build_request(target=str(tmp_path / "out"), verify="content", **given))
    assert as_bytes(tensors_of(tmp_path / "out")) == as_bytes(merged(weights))


def test_matrices_of_parts_of_megatrons_weights_are_refused(tmp_path: Path) -> None:
    """Megatron-Bridge's CanonicalLoRA has one for q in what is one with k and v."""
    qkv = "decoder.layers.0.self_attention.linear_qkv"
    weights: Arrays = {f"{qkv}.weight": np.ones((8, 4), np.float32)}
    lora = adapter(tmp_path / "lora", weights, (BRIDGE[0], BRIDGE[1]))
    tensors = load_file(lora / "adapter_model.safetensors")
    part = {name.replace(".linear_", ".adapter_q.linear_"): each for name, each in tensors.items()}
    save_file(part, lora / "adapter_model.safetensors")
    base = written(tmp_path / "base", weights)
    given: dict[str, Any] = {"source": str(base), "target": str(tmp_path / "out"), "lora_alpha": ALPHA}
    with pytest.raises(InputError, match=r"adapter_q.linear_in.weight': reshard does not know what this tensor is for"):
        convert(build_request(layout="unified", lora=str(lora), **given))
    save_file(tensors | part, lora / "adapter_model.safetensors")
    with pytest.raises(InputError, match=r"adapter_q.linear_in.weight' is no matrix of a linear layer"):
        renamed(lora, tmp_path / "out", preset="qwen3", config_json=str(Family("qwen3").hf), lora_alpha=ALPHA)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe", "glm4", "deepseek3"])
def test_merging_and_converting_are_of_any_order(name: str, tmp_path: Path) -> None:
    """For the files that MindFormers' own converters wrote; both ways."""
    family = Family(name)
    preset: dict[str, Any] = {"preset": family.case["preset"], "layout": "unified", "verify": "content"}
    to_mf = switches_of(family, to_mf=True)
    rules = load_file(family.mf)
    mf = written(tmp_path / "mf", rules)
    lora = adapter(tmp_path / "lora", adaptable(rules), ("{}.lora_a", "{}.lora_b"))
    config = {"preset": preset["preset"], "config_json": str(family.hf)}
    renamed(lora, tmp_path / "peft", *switches_of(family), lora_alpha=ALPHA, **config)
    given = {"target": str(tmp_path / "one"), "lora": str(tmp_path / "peft"), "layout": "unified"}
    convert(build_request(source=str(family.hf), **given))
    export = {"source": str(mf), "like": str(family.hf), "switch": switches_of(family), **preset}
    convert(build_request(target=str(tmp_path / "other"), lora=str(lora), lora_alpha=ALPHA, **export))
    assert directory_contents(tmp_path / "one") == directory_contents(tmp_path / "other")
    renamed(tmp_path / "peft", tmp_path / "again", *to_mf, "lora_names=pynative", **config)
    assert directory_contents(tmp_path / "again") == directory_contents(lora)
    peft = adapter(tmp_path / "own", some(adaptable(whole(family))), PEFT)
    renamed(peft, tmp_path / "blocks", *to_mf, NAMES, BLOCKS, **config)
    alpha = ALPHA * next(len(each) for name, each in tensors_of(tmp_path / "blocks").items() if "lora_a" in name) / RANK
    given = {"target": str(tmp_path / "mf_one"), "lora": str(tmp_path / "blocks"), "layout": "unified"}
    convert(build_request(source=str(mf), lora_alpha=alpha, **given))
    there = {"source": str(family.hf), "switch": to_mf, "lora": str(peft), **preset}
    convert(build_request(target=str(tmp_path / "mf_other"), **there))
    assert directory_contents(tmp_path / "mf_one") == directory_contents(tmp_path / "mf_other")


QKV = ["use_contiguous_weight_layout_attention=false", "use_interleaved_weight_layout_mlp=true"]
ATTENTION = "model.layers.0.self_attn"


def of_qwen3(directory: Path, keep: Callable[[str], bool], **config: Any) -> Path:
    weights = {name: each for name, each in whole(Family("qwen3")).items() if keep(name)}
    return adapter(directory, weights, PEFT, **config)


def to_mindformers(source: Path, target: Path, *switch: str, **options: Any) -> ConversionReport:
    config = {"preset": "qwen3", "config_json": str(Family("qwen3").hf)}
    return renamed(source, target, *QKV, NAMES, *switch, **config, **options)


def refusal(source: Path, *switch: str, **options: Any) -> str:
    with pytest.raises((InputError, PlanError)) as raised:
        to_mindformers(source, source.parent / "out", *switch, **options)
    assert not (source.parent / "out").exists()
    return str(raised.value)


def test_modules_with_other_matrices_are_joined_only_as_asked_for(tmp_path: Path) -> None:
    peft = of_qwen3(tmp_path / "peft", lambda name: f"{ATTENTION}.k" in name or f"{ATTENTION}.q" in name)
    text = refusal(peft)
    assert (
        f"{ATTENTION}.k_proj.lora_A.weight' is to be dropped, and is not a copy of 'base_model.model.{ATTENTION}.q"
        in text
    )
    assert "modules that become one have to have the same A, as those that were one have" in text
    assert "with 2 times the rank: switch=['lora_join=blocks']" in text
    report = to_mindformers(peft, tmp_path / "mf", BLOCKS)
    assert (
        "matrices of several modules are blocks of one, for 1 module of the target; with zeros beside them all modules "
        "have 2 times the rank"
    ) in report.notes
    assert f"the adapter is not for '{ATTENTION}.v_proj.weight', whose rows of B are zeros" in report.notes


def test_advice_is_given_however_many_modules_there_are(tmp_path: Path) -> None:
    peft = of_qwen3(tmp_path / "peft", lambda name: f"{ATTENTION}.k" in name or f"{ATTENTION}.q" in name)
    tensors = load_file(peft / "adapter_model.safetensors")
    layers = {name.replace(".0.", f".{layer}."): each for name, each in tensors.items() for layer in range(30)}
    save_file(layers, peft / "adapter_model.safetensors")
    text = refusal(peft)
    assert "and 10 more" in text
    assert "with 2 times the rank: switch=['lora_join=blocks']" in text
    sides = {"a": str(peft), "b": str(Family("qwen3").mf), "config_json": str(Family("qwen3").hf)}
    with pytest.raises(PlanError, match=r"with 2 times the rank: switch=\['lora_join=blocks'\]"):
        compare_checkpoints(build_comparison(preset="qwen3", switch=[*QKV, NAMES], **sides))


def test_one_part_of_a_fused_weight(tmp_path: Path) -> None:
    """It keeps its A and its rank, and the rows of the others are zeros, whatever the values that these are made of."""
    peft = of_qwen3(tmp_path / "peft", lambda name: f"{ATTENTION}.v" in name)
    tensors = load_file(peft / "adapter_model.safetensors")
    [b] = [name for name in tensors if "lora_B" in name]
    tensors[b][:] = np.inf
    save_file(tensors, peft / "adapter_model.safetensors")
    to_mindformers(peft, tmp_path / "mf")
    found = load_file(tmp_path / "mf/model.safetensors")
    qkv = "decoder.layers.0.self_attention.linear_qkv.mindpet_delta_lora_"
    assert found[f"{qkv}a"].tobytes() == next(each for name, each in tensors.items() if name != b).tobytes()
    groups, head = 2, 8
    wanted = np.zeros((groups, 4 * head, RANK), np.float32)
    wanted[:, 3 * head :] = np.inf
    assert found[f"{qkv}b"].tobytes() == wanted.tobytes()
    comparison = {"a": str(peft), "b": str(tmp_path / "mf"), "preset": "qwen3", "switch": [*QKV, NAMES]}
    shutil.copy(Family("qwen3").hf / "config.json", tmp_path / "mf")
    assert compare_checkpoints(build_comparison(**comparison)).same
    found[f"{qkv}b"][0, 0] = 1
    save_file(found, tmp_path / "mf/model.safetensors")
    shutil.rmtree(tmp_path / "mf/.reshard")
    assert not compare_checkpoints(build_comparison(**comparison)).same


def test_adapters_on_ranks(tmp_path: Path) -> None:
    """B is cut by rows, and A by columns."""
    rules = load_file(Family("qwen3").mf)
    lora = adapter(tmp_path / "lora", adaptable(rules), MINDPET)
    axes = {"a": ((), (0,)), "b": ((0,), ())}
    cuts = {name: as_layout(RandomLayout((2,), axes[name[-1]], ())) for name in tensors_of(lora)}
    strategy = str(tmp_path / "strategy.ckpt")
    write_strategy(make_strategy(cuts), strategy)
    ranks = {"target": str(tmp_path / "ranks"), "target_strategy": strategy}
    assert len(convert(build_request(source=str(lora), format="safetensors", **ranks)).ranks) == 2
    config: dict[str, Any] = {"preset": "qwen3", "config_json": str(Family("qwen3").hf)}
    given: dict[str, Any] = {"source_strategy": strategy, "lora_alpha": ALPHA, **config}
    renamed(tmp_path / "ranks", tmp_path / "peft", *QKV, **given)
    renamed(lora, tmp_path / "wanted", *QKV, lora_alpha=ALPHA, **config)
    assert directory_contents(tmp_path / "peft") == directory_contents(tmp_path / "wanted")
    there = {"target": str(tmp_path / "there"), "target_strategy": strategy, "format": "safetensors"}
    convert(build_request(source=str(tmp_path / "peft"), switch=[*QKV, NAMES], verify="content", **there, **config))
    assert read_tree(tmp_path / "there") == read_tree(tmp_path / "ranks")


def test_matrices_that_do_not_go_together(tmp_path: Path) -> None:
    peft = of_qwen3(tmp_path / "peft", lambda name: "o_proj" in name)
    tensors = load_file(peft / "adapter_model.safetensors")
    name = f"base_model.model.{ATTENTION}.o_proj.lora_B.weight"
    save_file(tensors | {name: np.ones((64, 8), np.float32)}, peft / "adapter_model.safetensors")
    text = refusal(peft)
    assert (
        "'decoder.layers.0.self_attention.linear_proj' would get A of shape [4, 32] and B of [64, 8]: they must be "
        "[rank, in] and [out, rank]"
    ) in text


def test_ranks_that_differ_are_no_blocks(tmp_path: Path) -> None:
    peft = of_qwen3(tmp_path / "peft", lambda name: f"{ATTENTION}.k" in name or f"{ATTENTION}.q" in name)
    tensors = load_file(peft / "adapter_model.safetensors")
    a, b = (f"base_model.model.{ATTENTION}.k_proj.lora_{which}.weight" for which in "AB")
    tensors[a], tensors[b] = np.ones((8, 64), np.float32), np.ones((16, 8), np.float32)
    save_file(tensors, peft / "adapter_model.safetensors")
    text = refusal(peft, BLOCKS)
    assert f"'base_model.model.{ATTENTION}.k_proj.lora_A.weight' have 4, 8 elements" in text


@pytest.mark.parametrize("exclude", ["*k_proj*", "*k_proj.lora_A*", "adam_m.*k_proj.lora_A*"])
def test_matrices_that_go_together_are_not_left_out_apart(exclude: str, tmp_path: Path) -> None:
    """Without k's A, its B would get q's."""
    peft = of_qwen3(tmp_path / "peft", lambda name: f"{ATTENTION}.k" in name or f"{ATTENTION}.q" in name)
    tensors = load_file(peft / "adapter_model.safetensors")
    tensors |= {f"adam_m.{name}": each for name, each in tensors.items()}
    save_file(tensors, peft / "adapter_model.safetensors")
    text = refusal(peft, exclude=[exclude])
    name = f"{'adam_m.' if 'adam' in exclude else ''}base_model.model.{ATTENTION}.k_proj.lora_A.weight"
    assert f"'{name}' is left out, and '" in text
    assert "take them out first, without 'preset'" in text


@pytest.mark.parametrize("parts", [("q_proj", "k_proj"), ("gate_proj", "up_proj")])
def test_other_parts_in_each_layer(parts: tuple[str, str], tmp_path: Path) -> None:
    peft = of_qwen3(tmp_path / "peft", lambda name: any(f".{n}." in name and parts[n] in name for n in (0, 1)))
    report = to_mindformers(peft, tmp_path / "mf")
    assert len(tensors_of(tmp_path / "mf")) == 4
    assert any("the adapter is not for" in note for note in report.notes)
    back = {"preset": "qwen3", "config_json": str(Family("qwen3").hf), "lora_alpha": ALPHA}
    renamed(tmp_path / "mf", tmp_path / "back", *QKV, **back)
    found = tensors_of(tmp_path / "back")
    for name, each in tensors_of(peft).items():
        assert found.pop(name).tobytes() == each.tobytes()
    assert not any(each.any() for name, each in found.items() if "lora_B" in name)


def test_whole_layers_are_left_out(tmp_path: Path) -> None:
    peft = of_qwen3(tmp_path / "peft", lambda name: "q_proj" in name)
    to_mindformers(peft, tmp_path / "mf", exclude=["*layers.1.*"])
    assert {*tensors_of(tmp_path / "mf")} == {
        f"decoder.layers.0.self_attention.linear_qkv.mindpet_delta_lora_{which}" for which in "ab"
    }


def test_blocks_without_a_known_alpha(tmp_path: Path) -> None:
    peft = of_qwen3(tmp_path / "peft", lambda name: f"{ATTENTION}.k" in name or f"{ATTENTION}.q" in name)
    (peft / "adapter_config.json").unlink()
    report = to_mindformers(peft, tmp_path / "mf", BLOCKS)
    assert (
        "the source does not say what alpha is: a training that goes on from this adapter needs 2 times the lora_rank "
        "and the lora_alpha of the one before"
    ) in report.notes
    report = to_mindformers(peft, tmp_path / "given", BLOCKS, lora_alpha=ALPHA)
    assert "a training that goes on from this adapter needs lora_rank 8, lora_alpha 12" in report.notes


def test_a_directory_of_pefts_has_no_states_of_the_optimizer(tmp_path: Path) -> None:
    rules = load_file(Family("qwen3").mf)
    lora = adapter(tmp_path / "lora", {name: each for name, each in rules.items() if "linear_qkv" in name}, MINDPET)
    tensors = load_file(lora / "adapter_model.safetensors")
    tensors |= {f"adam_m.{name}": each for name, each in tensors.items()}
    save_file(tensors, lora / "adapter_model.safetensors")
    config: dict[str, Any] = {"preset": "qwen3", "config_json": str(Family("qwen3").hf), "lora_alpha": ALPHA}
    with pytest.raises(PlanError, match=r"has states of the optimizer, such as what becomes 'adam_m\..*weights-only"):
        renamed(lora, tmp_path / "out", *QKV, **config)
    renamed(lora, tmp_path / "out", *QKV, select="weights-only", **config)
    assert not any(name.startswith("adam_m.") for name in tensors_of(tmp_path / "out"))


OF_UNKNOWN_ROWS = """
preset: unknown
title: parts of one weight, whose rows the preset does not say
proof: read
names:
  mine:
    layers:
      layers.{L}: model.layers.{L}
    layer:
      - mf: both.weight
        hf: {a.weight: [], b.weight: []}
"""


def test_parts_whose_rows_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "unknown.yaml").write_text(OF_UNKNOWN_ROWS)
    weights: Arrays = {"model.layers.0.a.weight": np.ones((8, 8), np.float32)}
    peft = adapter(tmp_path / "peft", weights, PEFT)
    with pytest.raises(InputError, match=r"the rows of the others, 'model.layers.0.b.weight', are not known"):
        renamed(peft, tmp_path / "out", NAMES, preset=str(tmp_path / "unknown.yaml"))


OF_OTHER_COLUMNS = """
preset: columns
title: a weight whose columns are in another order
proof: read
names:
  mine:
    layers:
      layers.{L}: model.layers.{L}
    layer:
      - mf: o.weight
        hf: {o_proj.weight: ["8", "8"]}
        regrouped: {o_proj.weight: {parts: ["1", "1"], hf: "4", axis: 1}}
"""


@pytest.mark.parametrize(("module", "names"), [("layers.0.o", MINDPET), ("model.layers.0.o_proj", PEFT)])
def test_columns_that_move(module: str, names: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "columns.yaml").write_text(OF_OTHER_COLUMNS)
    lora = adapter(tmp_path / "lora", {f"{module}.weight": np.ones((8, 8), np.float32)}, names)
    switch = [NAMES] if names == PEFT else []
    with pytest.raises(InputError, match=rf"'{module}.weight' is (renamed and )?split and joined.* there"):
        renamed(lora, tmp_path / "out", *switch, preset=str(tmp_path / "columns.yaml"))

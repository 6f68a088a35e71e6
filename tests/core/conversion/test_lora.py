"""LoRA adapters merged on the way: held against peft's and MindFormers' results, and against numpy."""

import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard import load_rank
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, PlanError, TargetError
from reshard.core.records.plan_file import load_plan
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.strategy.files import write_strategy
from reshard.core.verification.compare import compare_checkpoints
from tests.support.checkpoints import read_safetensors, read_tree
from tests.support.families import Family, directory_contents
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import layouts, shard_of
from tests.support.safetensors_files import write_safetensors

FIXTURES = Path(__file__).parents[2] / "fixtures" / "lora"
PEFT = sorted(path.name for path in FIXTURES.iterdir() if (path / "base").exists() and path.name != "case_dora")
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none"}
M = "base_model.model.layers.0"
Tensors = dict[str, tuple[str, np.ndarray]]


def request(directory: Path, base: Path, lora: Path | str, **options: Any) -> ConversionRequest:
    asked = {"layout": "unified", "verify": "content"} | options
    return build_request(source=str(base), target=str(directory / "target"), lora=str(lora), **asked)


def bits_of(values: np.ndarray) -> tuple[str, np.ndarray]:
    tag = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[values.dtype.name]
    return tag, values.view(f"u{values.itemsize}")


def adapter(directory: Path, tensors: Tensors, **config: Any) -> Path:
    place = directory / "adapter"
    place.mkdir()
    (place / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    write_safetensors(place / "adapter_model.safetensors", tensors)
    return place


def base(directory: Path, **more: np.ndarray) -> Path:
    place = directory / "base"
    place.mkdir()
    weights = {"layers.0.q.weight": ones(8, 12), "layers.0.q.bias": ones(8), "lm_head.weight": ones(10, 12)}
    write_safetensors(place / "model.safetensors", {name: bits_of(each) for name, each in (weights | more).items()})
    return place


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, ml_dtypes.bfloat16)


def pair(name: str = f"{M}.q", a: tuple[int, int] = (4, 12), b: tuple[int, int] = (8, 4)) -> Tensors:
    return {
        f"{name}.lora_A.weight": bits_of(np.ones(a, np.float32)),
        f"{name}.lora_B.weight": bits_of(np.ones(b, np.float32)),
    }


@pytest.mark.parametrize("name", PEFT)
def test_a_merge_has_the_bytes_of_the_training_frameworks_own(tmp_path: Path, name: str) -> None:
    case = FIXTURES / name
    report = convert(request(tmp_path, case / "base", case / "adapter"))
    assert report.committed
    assert read_safetensors(tmp_path / "target" / "model.safetensors") == read_safetensors(case / "want.safetensors")
    assert any("merged into" in note and str(case / "adapter") in note for note in report.notes)
    manifest = json.loads((tmp_path / "target" / ".reshard" / "manifest.json").read_text())
    assert any("merged into" in note for note in manifest["notes"])


@pytest.mark.parametrize("more", [{"lora_alpha": 6}, {"training_config": True}])
def test_adapters_in_one_file_with_their_base(tmp_path: Path, more: dict[str, Any]) -> None:
    case = FIXTURES / "case_mf_one_file"
    if "training_config" in more:
        document = tmp_path / "finetune.yaml"
        document.write_text("model:\n  model_config:\n    pet_config: {pet_type: lora, lora_rank: 4, lora_alpha: 6}\n")
        more = {"training_config": str(document)}
    convert(request(tmp_path, case / "src", case / "src", format="safetensors", **more))
    assert read_safetensors(tmp_path / "target" / "model.safetensors") == read_safetensors(case / "want.safetensors")


def test_the_comparison_with_a_merged_model_merges_anew(tmp_path: Path) -> None:
    case = FIXTURES / "case_rank_pattern"
    sides = {"a": str(case / "base"), "b": str(case / "want.safetensors"), "lora": str(case / "adapter")}
    assert compare_checkpoints(build_comparison(**sides)).same
    assert not compare_checkpoints(build_comparison(**sides | {"lora": ""})).same
    other = adapter(tmp_path, pair("base_model.model.model.layers.0.self_attn.q_proj", (4, 16), (16, 4)))
    found = compare_checkpoints(build_comparison(**sides | {"lora": str(other)}))
    assert "model.layers.0.self_attn.q_proj.weight" in {each.name for each in found.differences}


def test_loading_merges_too() -> None:
    case = FIXTURES / "case_rslora_tied"
    found = dict(load_rank(str(case / "base"), lora=str(case / "adapter")))
    wanted = read_safetensors(case / "want.safetensors")
    assert {name: np.asarray(value).tobytes() for name, value in found.items()} == {
        name: content for name, (_, _, content) in wanted.items()
    }


def chain(b: np.ndarray, a: np.ndarray) -> np.ndarray:
    total = np.zeros((len(b), a.shape[1]), np.float32)
    for k in range(len(a)):
        term = b[:, k, None].astype(np.float64) * a[k].astype(np.float64)
        total = (term + total.astype(np.float64)).astype(np.float32)
    return total


@settings(max_examples=8)
@given(st.data())
def test_random_adapters_from_random_shardings_to_others(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("merged")
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    dtype = data.draw(st.sampled_from([ml_dtypes.bfloat16, np.float16, np.float32]))
    rank, scale = data.draw(st.sampled_from([1, 4, 16])), data.draw(st.sampled_from([0.5, 2.0]))
    shapes = {"layers.0.q": (48, 24), "layers.0.k": (24, 24), "layers.0.v": (24, 24)}
    weights = {f"{name}.weight": generator.normal(0, 0.1, shape).astype(dtype) for name, shape in shapes.items()}
    weights["norm.weight"] = generator.normal(0, 1, 24).astype(dtype)
    tensors: Tensors = {}
    wanted = dict(weights)
    for name in ("layers.0.q", "layers.0.v"):
        b, a = (generator.normal(0, 0.1, size).astype(np.float32) for size in ((shapes[name][0], rank), (rank, 24)))
        tensors |= {f"base_model.model.{name}.lora_A.weight": bits_of(a)}
        tensors |= {f"base_model.model.{name}.lora_B.weight": bits_of(b)}
        weight = weights[f"{name}.weight"]
        wanted[f"{name}.weight"] = (weight.astype(np.float32) + chain(b, a) * np.float32(scale)).astype(dtype)
    lora = adapter(directory, tensors, r=rank, lora_alpha=scale * rank)
    before = {name: data.draw(layouts(4, each.ndim)) for name, each in weights.items()}
    for number in range(4):
        place = directory / "source" / f"rank_{number}"
        place.mkdir(parents=True)
        shards = {name: np.ascontiguousarray(shard_of(each, before[name], number)) for name, each in weights.items()}
        write_safetensors(place / "net.safetensors", {name: bits_of(each) for name, each in shards.items()})
    steps: list[dict[str, Any]] = []
    if data.draw(st.booleans()):
        names = ["layers.0.q.weight", "layers.0.k.weight", "layers.0.v.weight"]
        steps.append({"join": {"parameters": names, "into": "layers.0.qkv", "parts": [2, 1, 1], "groups": 12}})
        parts = [wanted.pop(name) for name in names]
        grouped = [part.reshape(12, -1, 24) for part in parts]
        wanted["layers.0.qkv"] = np.concatenate(grouped, 1).reshape(-1, 24)
        if data.draw(st.booleans()):
            steps.append({"transpose": {"parameters": "layers.0.qkv"}})
            wanted["layers.0.qkv"] = wanted["layers.0.qkv"].T
    cast = {"cast": ["*=float32"]} if data.draw(st.booleans()) else {}
    after = {name: data.draw(layouts(4, each.ndim)) for name, each in wanted.items()}
    strategies = {}
    for side, cuts in (("source", before), ("target", after)):
        strategies[f"{side}_strategy"] = str(directory / f"{side}.ckpt")
        strategy = make_strategy({name: as_layout(cut) for name, cut in cuts.items()})
        write_strategy(strategy, strategies[f"{side}_strategy"])
    document = directory / "changes.json"
    document.write_text(json.dumps({"steps": steps}))
    more = {"layout": "ranks", "changes": str(document), "memory_limit": "64MiB", "trust_strategy": True, **cast}
    assert convert(request(directory, directory / "source", lora, **strategies, **more)).committed
    for number, held in read_tree(directory / "target").items():
        assert {*held} == {*wanted}
        for name, (_, shape, content) in held.items():
            shard = np.ascontiguousarray(shard_of(wanted[name], after[name], number))
            shard = shard.astype(np.float32) if cast else shard
            assert (shape, content) == (shard.shape, shard.tobytes()), name


def test_another_adapter_does_not_resume_the_conversion(tmp_path: Path) -> None:
    source = base(tmp_path)
    first = adapter(tmp_path, pair())
    convert(request(tmp_path, source, first))
    shutil.rmtree(first)
    second = adapter(tmp_path, pair(), lora_alpha=7)
    with pytest.raises(TargetError, match="target"):
        convert(request(tmp_path, source, second))
    assert convert(request(tmp_path, source, second, overwrite=True)).committed


def test_the_plans_file_has_the_adapter(tmp_path: Path) -> None:
    asked = request(tmp_path, base(tmp_path), adapter(tmp_path, pair(), rank_pattern={"q": 4}))
    identity = convert(asked).identity
    plan = load_plan(str(tmp_path / "target" / ".reshard" / "plan.json.gz"), identity)
    assert plan.inputs.adapter == make_plan(asked).inputs.adapter


def test_an_adapter_on_another_storage(tmp_path: Path) -> None:
    local = adapter(tmp_path, pair())
    files = fsspec.filesystem("memory")
    for path in local.iterdir():
        files.pipe(f"/adapters/one/{path.name}", path.read_bytes())
    source = base(tmp_path)
    convert(request(tmp_path / "far", source, "memory://adapters/one"))
    convert(request(tmp_path / "near", source, local))
    far, near = (read_safetensors(tmp_path / each / "target" / "model.safetensors") for each in ("far", "near"))
    assert far == near


def test_a_source_with_matrices_of_its_own_is_refused(tmp_path: Path) -> None:
    case = FIXTURES / "case_mf_one_file"
    apart = tmp_path / "apart"
    apart.mkdir()
    name, ending = "model.layers.0.attention.wq", "mindpet_delta_lora"
    matrices = {f"{name}.{ending}_a": np.ones((4, 16), np.float32), f"{name}.{ending}_b": np.ones((24, 4), np.float32)}
    moments = {f"adam_m.{each}": values for each, values in matrices.items()}
    tensors = {each: bits_of(values) for each, values in (matrices | moments).items()}
    write_safetensors(apart / "model.safetensors", tensors)
    with pytest.raises(PlanError, match="the source's files have matrices of these names themselves"):
        convert(request(tmp_path, case / "src", apart, lora_alpha=6))
    plain = tmp_path / "plain"
    plain.mkdir()
    write_safetensors(plain / "model.safetensors", {f"{name}.weight": bits_of(ones(24, 16))})
    convert(request(tmp_path, plain, apart, lora_alpha=6))
    [(_, _, content)] = read_safetensors(tmp_path / "target" / "model.safetensors").values()
    assert content == (7 * ones(24, 16)).tobytes()


def test_training_state_of_the_base_is_left_out(tmp_path: Path) -> None:
    source = base(tmp_path, **{"adam_m.layers.0.q.weight": ones(8, 12)})
    convert(request(tmp_path, source, adapter(tmp_path, pair())))
    assert "adam_m.layers.0.q.weight" not in read_safetensors(tmp_path / "target" / "model.safetensors")


def test_a_preset_renames_what_was_merged(tmp_path: Path) -> None:
    family = Family("llama")
    query = "model.layers.0.self_attn.q_proj"
    rows, columns = directory_contents(family.hf)[f"{query}.weight"][1]
    lora = adapter(tmp_path, pair(f"base_model.model.{query}", (4, columns), (rows, 4)))
    convert(request(tmp_path / "merged", family.hf, lora))
    convert(request(tmp_path / "at once", family.hf, lora, preset="llama", config_json=str(family.hf)))
    after = build_request(
        source=str(tmp_path / "merged" / "target"),
        target=str(tmp_path / "one by one"),
        layout="unified",
        preset="llama",
        config_json=str(family.hf),
    )
    convert(after)
    at_once, one_by_one = (directory_contents(tmp_path / each) for each in ("at once/target", "one by one"))
    assert at_once == one_by_one
    assert at_once != read_safetensors(family.mf)
    assert at_once.keys() == read_safetensors(family.mf).keys()


def test_what_was_merged_is_quantized_and_compared_with_it(tmp_path: Path) -> None:
    query = "model.layers.0.self_attn.q_proj"
    source = base(tmp_path, **{f"{query}.weight": ones(130, 12)})
    lora = adapter(tmp_path, pair(f"base_model.model.{query}", b=(130, 4)))
    convert(request(tmp_path, source, lora, fp8="quantize", verify="content"))
    held = read_safetensors(tmp_path / "target" / "model.safetensors")
    assert held[f"{query}.weight"][2] == np.full((130, 12), 448, ml_dtypes.float8_e4m3fn).tobytes()
    scale = np.float32(1) / (np.float32(1) / np.float32(7) * np.float32(448))
    assert held[f"{query}.weight_scale_inv"][2] == np.full(2, scale).tobytes()
    sides = {"a": str(source), "b": str(tmp_path / "target"), "lora": str(lora), "fp8": "quantize"}
    assert compare_checkpoints(build_comparison(**sides)).same


REFUSED: list[tuple[str, Tensors, dict[str, Any], str]] = [
    ("A without B", {f"{M}.q.lora_A.weight": pair()[f"{M}.q.lora_A.weight"]}, {}, "has no counterpart, the matrix B"),
    ("unknown suffix", pair() | {f"{M}.q.lora_C.weight": bits_of(ones(2))}, {}, "does not know what this tensor is"),
    ("DoRA's norms", pair() | {f"{M}.q.lora_magnitude_vector": bits_of(ones(8))}, {}, "does not know what this"),
    ("no module", pair(f"{M}.z"), {}, "changes 1 parameter that the source lacks: 'layers.0.z.weight'"),
    ("alpha 0", pair(), {"lora_alpha": 0}, "'lora_alpha' must be a number above 0, not 0"),
    ("no rank", pair(), {"r": None}, "'r' must be a whole number from 1 on, not None"),
    ("other rank", pair(), {"r": 8}, "has rank 4, and the configuration says 8 for 'layers.0.q'"),
    ("other kind", pair(), {"peft_type": "LOHA"}, "its peft_type is 'LOHA', and reshard merges 'LORA' only"),
    ("DoRA", pair(), {"use_dora": True}, "'use_dora' is true: DoRA's norms of whole rows are not supported"),
    ("biases of B", pair(), {"lora_bias": True}, "'lora_bias' is true: biases of the matrix B are not supported"),
    ("PiSSA", pair(), {"init_lora_weights": "pissa_niter_4"}, "the training began with other weights than the base's"),
    ("CorDA", pair(), {"init_lora_weights": "corda"}, "the training began with other weights than the base's"),
    ("QALoRA", pair(), {"use_qalora": True}, "'use_qalora' is True, which reshard does not support"),
    (
        "layers twice",
        pair(),
        {"layer_replication": [[0, 2]]},
        "'layer_replication' is [[0, 2]], which reshard does not",
    ),
    ("new field", pair(), {"use_future": 1}, "'use_future' is 1, which reshard does not support"),
    ("shape of W", pair(a=(4, 16)), {}, "has shape [8, 12], and the adapter is for [8, 16]"),
    ("shapes", pair(b=(8, 3)), {}, "they must be [rank, in] and [out, rank]"),
    ("not trained", pair() | {f"{M}.q.bias": bits_of(ones(8))}, {}, "says neither in 'modules_to_save' nor in 'bias'"),
    ("pattern", pair(), {"rank_pattern": {"(": 2}}, "is not a regular expression"),
    (
        "pattern's value",
        pair(),
        {"alpha_pattern": {"q": 0}},
        "'alpha_pattern' of 'q' must be a number above 0, not 0",
    ),
    ("nothing", {}, {}, "has no LoRA matrices: name an adapter with"),
    ("text for false", pair(), {"use_rslora": "false"}, "'use_rslora' must be true or false, not 'false'"),
    ("number for true", pair(), {"fan_in_fan_out": 2}, "'fan_in_fan_out' must be true or false, not 2"),
    ("no columns", pair(a=(4, 0)), {}, "they must be [rank, in] and [out, rank]"),
    (
        "experts of no bytes",
        pair(f"{M}.experts", (10**6, 0), (0, 10**6)),
        {"r": 1, "target_parameters": ["experts.gate_up_proj"]},
        "they must be [rank, in] and [out, rank]",
    ),
    (
        "very many experts",
        pair(f"{M}.experts", (20000, 1), (2, 20000)),
        {"r": 1, "target_parameters": ["experts.gate_up_proj"]},
        "has matrices of rank 1 for 20,000 experts, more than 16,384, the limit",
    ),
    (
        "head that may be tied",
        {"base_model.model.embed_tokens.weight": bits_of(ones(10, 12))} | pair(),
        {"modules_to_save": ["embed_tokens"]},
        "if the model's head is its embedding, reshard cannot tell what becomes of the head",
    ),
]


@pytest.mark.parametrize(("tensors", "config", "problem"), [each[1:] for each in REFUSED], ids=[e[0] for e in REFUSED])
def test_what_cannot_be_merged_is_refused(
    tmp_path: Path, tensors: Tensors, config: dict[str, Any], problem: str
) -> None:
    source = base(tmp_path)
    if "embed_tokens" in str(config):
        (source / "model.safetensors").unlink()
        weights = {"layers.0.q.weight": bits_of(ones(8, 12)), "embed_tokens.weight": bits_of(ones(10, 12))}
        write_safetensors(source / "model.safetensors", weights)
    with pytest.raises(InputError) as raised:
        convert(request(tmp_path, source, adapter(tmp_path, tensors, **config)))
    assert problem in str(raised.value)
    assert not (tmp_path / "target").exists()


def test_a_pattern_that_is_only_slow_for_modules_does_not_hang(tmp_path: Path) -> None:
    module = "q" * 40 + "!"
    source = base(tmp_path, **{f"{module}.weight": ones(8, 12)})
    lora = adapter(tmp_path, pair(f"base_model.model.{module}"), rank_pattern={"^(q+)+": 4})
    with pytest.raises(PlanError, match="there are too many ways to try"):
        convert(request(tmp_path, source, lora))


@pytest.mark.parametrize("shape", [(), (1,), (3, 1500, 1000), (2, 2**21)])
def test_saved_tensors_of_any_shape_replace_the_bases(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    source = base(tmp_path, **{"layers.0.z": np.zeros(shape, np.float32)})
    lora = adapter(tmp_path, pair() | {f"{M}.z": bits_of(np.asarray(values))}, modules_to_save=["layers.0"])
    convert(request(tmp_path, source, lora))
    assert read_safetensors(tmp_path / "target" / "model.safetensors")["layers.0.z"][2] == values.tobytes()


def not_a_number() -> Tensors:
    matrices = pair()
    matrices[f"{M}.q.lora_A.weight"][1][2, 5] = 0x7FC00000
    return matrices


LOST: list[tuple[str, Any, Tensors, dict[str, Any], str]] = [
    ("sums", np.float16, pair(), {"lora_alpha": 10**6}, "infinite or NaN as Float16, the first at [0, 0]"),
    ("NaN", ml_dtypes.bfloat16, not_a_number(), {}, "infinite or NaN as BFloat16, the first at [0, 5]"),
    (
        "casts",
        np.float16,
        pair("base_model.model.lm_head", b=(10, 4))
        | {f"{M}.q.weight": bits_of(np.diag(np.full(12, 1e6, np.float32))[2:10])},
        {"modules_to_save": ["q"]},
        "infinite or NaN as Float16, the first at [0, 2]",
    ),
]


@pytest.mark.parametrize(("dtype", "tensors", "config", "problem"), [e[1:] for e in LOST], ids=[e[0] for e in LOST])
def test_values_that_a_merge_loses_are_refused(
    tmp_path: Path, dtype: Any, tensors: Tensors, config: dict[str, Any], problem: str
) -> None:
    source = base(tmp_path, **{"layers.0.q.weight": np.ones((8, 12), dtype)})
    with pytest.raises(InputError) as raised:
        convert(request(tmp_path, source, adapter(tmp_path, tensors, **config)))
    assert f"parameter 'layers.0.q.weight': the adapter makes values {problem}" in str(raised.value)
    assert not (tmp_path / "target").exists()


def test_what_is_not_finite_in_the_base_stays_so(tmp_path: Path) -> None:
    weights = np.ones((8, 12), np.float16)
    weights[3, 4] = np.inf
    convert(request(tmp_path, base(tmp_path, **{"layers.0.q.weight": weights}), adapter(tmp_path, pair())))
    content = read_safetensors(tmp_path / "target" / "model.safetensors")["layers.0.q.weight"][2]
    assert np.isinf(np.frombuffer(content, np.float16)).sum() == 1


def test_a_pickled_adapter_is_refused(tmp_path: Path) -> None:
    place = adapter(tmp_path, pair())
    (place / "adapter_model.safetensors").rename(place / "adapter_model.bin")
    with pytest.raises(InputError, match="is a pickled adapter, which reshard does not read"):
        convert(request(tmp_path, base(tmp_path), place))


def test_an_integer_weight_is_refused(tmp_path: Path) -> None:
    source = base(tmp_path)
    write_safetensors(source / "model.safetensors", {"layers.0.q.weight": ("I8", np.ones((8, 12), np.int8))})
    with pytest.raises(PlanError, match="has dtype Int8, and adapters are only merged into BFloat16"):
        convert(request(tmp_path, source, adapter(tmp_path, pair())))


def test_alpha_is_never_guessed(tmp_path: Path) -> None:
    case = FIXTURES / "case_mf_one_file"
    with pytest.raises(InputError, match="alpha, on which the scale depends, is not among its tensors"):
        convert(request(tmp_path, case / "src", case / "src"))
    document = tmp_path / "finetune.yaml"
    document.write_text("model:\n  model_config:\n    pet_config: {pet_type: lora, lora_rank: 4}\n")
    with pytest.raises(InputError, match="has no lora_alpha above 0"):
        convert(request(tmp_path, case / "src", case / "src", training_config=str(document)))
    with pytest.raises(InputError, match=r"adapter_config\.json says what alpha is"):
        convert(request(tmp_path, base(tmp_path), adapter(tmp_path, pair()), lora_alpha=3))
    with pytest.raises(InputError, match="only valid with .preset. or .lora."):
        build_request(source="/src", target="/out", lora_alpha=3)
    with pytest.raises(InputError, match="only valid with .preset. or .lora."):
        build_request(source="/src", target="/out", training_config="/x.yaml")


def test_a_source_without_adapters_is_not_its_own(tmp_path: Path) -> None:
    source = base(tmp_path)
    with pytest.raises(InputError, match="base: has no LoRA matrices: name an adapter with"):
        convert(request(tmp_path, source, source, lora_alpha=2))


def test_a_directory_that_is_no_adapter(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="base: has no LoRA matrices: name an adapter with 'lora'"):
        convert(request(tmp_path, base(tmp_path), base(tmp_path / "other")))


def test_a_note_names_the_model_that_the_adapter_was_trained_with(tmp_path: Path) -> None:
    """Neither names nor shapes show that it is another one of the same size."""
    place = adapter(tmp_path, pair(), base_model_name_or_path="org/model")
    [note] = [note for note in convert(request(tmp_path, base(tmp_path), place)).notes if "merged into" in note]
    assert note.endswith("; by its configuration it was trained with 'org/model'")


def test_little_memory_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="merging .* takes 29.0 MiB at least"):
        convert(request(tmp_path, base(tmp_path), adapter(tmp_path, pair()), memory_limit="16MiB"))
    assert not (tmp_path / "target").exists()
    with pytest.raises(PlanError, match="merging .* takes 29.0 MiB at least"):
        load_rank(str(tmp_path / "base"), lora=str(tmp_path / "adapter"), memory_limit="16MiB")

"""Conversions to Megatron-Core's `torch_dist`, read back and compared with what Megatron wrote.

Megatron itself judges such targets in tests/conformance.
"""

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import convert_latest
from reshard.core.conversion.planning import describe_plan
from reshard.core.conversion.report import Outcome
from reshard.core.errors import InputError, VerificationError
from reshard.core.files.torch_file import read_torch_file
from reshard.core.files.torch_file_writing import plan_torch_file
from reshard.core.layouts.dcp.metadata import DcpMetadata, parse_dcp_metadata
from reshard.core.layouts.megatron.args_writing import namespace
from reshard.core.layouts.registry import TargetLayout
from reshard.core.records.plan_file import dump_plan, load_plan, plan_identity
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.target.documents import documents_of
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import Contents, read_safetensors
from tests.support.conversions import stop_before_commit
from tests.support.diagnosed import diagnose
from tests.support.megatron import ITERATION, megatron_case

CASES = ("dist_moe_numbered_pp2", "dist_moe_tp2_ep2", "dist_tp2_pp2_optimizer")
DENSE = megatron_case("dist_tp2_pp2_optimizer")
EXPERTS = megatron_case("dist_moe_tp2_ep2")
TRACKER = "latest_checkpointed_iteration.txt"
FILE = "model.safetensors"


def dist_request(source: Path, target: Path, **options: object) -> ConversionRequest:
    given: dict[str, object] = {"source": str(source), "target": str(target), "layout": "torch_dist", "workers": 2}
    return build_request(**given | options)


def whole(source: Path, target: Path) -> Contents:
    convert(build_request(source=str(source), target=str(target), layout="unified", verify="content"))
    return read_safetensors(target / FILE)


def metadata_of(directory: Path) -> DcpMetadata:
    return parse_dcp_metadata((directory / ".metadata").read_bytes(), str(directory))


def common_of(directory: Path) -> dict[str, Any]:
    """The dict in common.pt, the arguments as a dict of their own."""
    with closing(open_source(parse_url(str(directory / "common.pt")))) as file:
        root = plain(read_torch_file(file, inert=("args",)).root)
    assert isinstance(root, dict)
    return root


def plain(value: object) -> Any:
    if isinstance(value, PickledObject) and value.made_by == Global("argparse", "Namespace"):
        return plain(value.state)
    if isinstance(value, Pairs):
        return {key: plain(each) for key, each in value}
    return [plain(each) for each in value] if isinstance(value, list) else value


def tensors_of(metadata: DcpMetadata) -> dict[str, object]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in metadata.tensors.items()}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_stored_as_megatron_stores_it(name: str, shards: int, tmp_path: Path) -> None:
    case = megatron_case(name)
    convert(dist_request(case.source, tmp_path / "out", shards=shards, verify="content"))
    assert (tmp_path / "out" / TRACKER).read_text() == "3"
    made, saved = metadata_of(tmp_path / "out" / ITERATION), metadata_of(case.iteration)
    assert tensors_of(made) == tensors_of(saved)
    assert set(made.objects) == set(saved.objects)
    assert whole(tmp_path / "out", tmp_path / "back") == case.want
    assert verify_target(str(tmp_path / "out"), VerifyLevel.CONTENT).problems == ()


def test_training_goes_on_with_its_arguments_and_steps(tmp_path: Path) -> None:
    convert(dist_request(DENSE.source, tmp_path / "out"))
    made, saved = common_of(tmp_path / "out" / ITERATION), common_of(DENSE.iteration)
    assert made["args"].pop("use_distributed_optimizer") is True
    assert {name: made["args"][name] for name in saved["args"] if name != "use_distributed_optimizer"} == {
        name: value for name, value in saved["args"].items() if name != "use_distributed_optimizer"
    }
    for key in ("checkpoint_version", "iteration", "content_metadata", "optimizer"):
        assert made[key] == saved[key]


def test_arguments_that_megatron_does_not_load_are_left_out(tmp_path: Path) -> None:
    """torch refuses to load common.pt with a function in it, such as an activation function in files of ranks."""
    silu, kind = Global("torch.nn.functional", "silu"), Global("megatron.core.enums", "ModelType")
    shutil.copytree(DENSE.source, tmp_path / "src")
    args = {"activation_func": silu, "functions": [silu], "model_type": PickledObject(kind, (1,)), "seed": 5}
    plan = plan_torch_file({"args": namespace(args)}, (), "common")
    content = b"".join(segment for segment in plan.segments if isinstance(segment, bytes))
    (tmp_path / "src" / ITERATION / "common.pt").write_bytes(content)
    convert(dist_request(tmp_path / "src", tmp_path / "out"))
    made = common_of(tmp_path / "out" / ITERATION)
    assert args.keys() & made["args"].keys() == {"model_type", "seed"}
    groups = made["optimizer"]["optimizer"]["param_groups"]
    assert [(group["wd_mult"], group["step"]) for group in groups] == [(1.0, 3), (0.0, 3)]


@pytest.mark.parametrize(("name", "preset"), [("legacy_tp2_pp2", "qwen3"), ("legacy_moe_tp2_ep2", "qwen3_moe")])
def test_hugging_faces_weights_become_megatrons_and_back(name: str, preset: str, tmp_path: Path) -> None:
    case = megatron_case(name)
    hugging_face = case.directory / "hf"
    convert(dist_request(hugging_face, tmp_path / "out", preset=preset, verify="content"))
    assert whole(tmp_path / "out", tmp_path / "weights") == case.want
    options = {"preset": preset, "like": str(hugging_face), "verify": "content"}
    convert(build_request(source=str(tmp_path / "out"), target=str(tmp_path / "back"), layout="unified", **options))
    files = [read_safetensors(file) for file in sorted(hugging_face.glob("*.safetensors"))]
    expected = {name: each for file in files for name, each in file.items()}
    made = [read_safetensors(file) for file in sorted((tmp_path / "back").glob("*.safetensors"))]
    assert {name: each for file in made for name, each in file.items()} == expected


def test_modules_of_transformer_engine_ask_for_objects(tmp_path: Path) -> None:
    out = from_tensors(tmp_path, random_model(), attention_heads=4)
    modules = {name.partition("._extra_state")[0] for name in metadata_of(out / "release").objects}
    assert modules == {
        "decoder.final_layernorm",
        *(f"decoder.layers.self_attention.{name}" for name in ("core_attention", "linear_proj", "linear_qkv")),
        *(f"decoder.layers.mlp.{name}" for name in ("linear_fc1", "linear_fc2")),
    }


def test_files_of_ranks_become_one(tmp_path: Path) -> None:
    case = megatron_case("legacy_optimizer_tp2")
    convert(dist_request(case.source, tmp_path / "out", verify="content"))
    names = tensors_of(metadata_of(tmp_path / "out" / ITERATION))
    assert "optimizer.state.fp32_param.decoder.layers.mlp.linear_fc1.weight" in names
    state = common_of(tmp_path / "out" / ITERATION)["optimizer"]["optimizer"]["state"]
    assert state.keys() == {"common_step"}
    assert state["common_step"] > 0


def from_tensors(directory: Path, tensors: dict[str, np.ndarray[Any, Any]], **options: object) -> Path:
    """A target made of tensors alone."""
    save_file(tensors, directory / "model.safetensors")
    convert(dist_request(directory / "model.safetensors", directory / "out", verify="content", **options))
    return directory / "out"


def random_model(layers: int = 2, mlp: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """A model of 4 heads in 2 groups, dense unless the parameters of an `mlp` are given."""
    numbers = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (8,),
        "self_attention.linear_qkv.weight": (16, 8),
        "self_attention.linear_proj.weight": (8, 8),
        "pre_mlp_layernorm.weight": (8,),
        **(mlp or {"mlp.linear_fc1.weight": (12, 8), "mlp.linear_fc2.weight": (8, 6)}),
    }
    named = {f"decoder.layers.{n}.{name}": shape for n in range(layers) for name, shape in shapes.items()}
    named |= {"embedding.word_embeddings.weight": (10, 8), "decoder.final_layernorm.weight": (8,)}
    return {name: numbers.standard_normal(shape).astype(np.float32) for name, shape in named.items()}


def test_a_model_of_no_training_becomes_a_release(tmp_path: Path) -> None:
    out = from_tensors(tmp_path, random_model(), attention_heads=4)
    assert (out / TRACKER).read_text() == "release"
    common = common_of(out / "release")
    assert common["iteration"] == 0
    assert "optimizer" not in common
    args = common["args"]
    assert (args["num_layers"], args["num_attention_heads"], args["num_query_groups"]) == (2, 4, 2)
    assert (args["untie_embeddings_and_output_weights"], args["transformer_impl"]) == (False, "transformer_engine")
    assert "decoder.layers.self_attention.core_attention._extra_state/shard_1_2" in metadata_of(out / "release").objects
    assert (out / "release/metadata.json").read_text() == (
        '{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", '
        '"common_backend_version": 1}'
    )


WITH_EXPERTS = {
    "mlp.router.weight": (3, 8),
    "mlp.experts.weight1": (3, 8, 12),
    "mlp.experts.weight2": (3, 6, 8),
}


def test_experts_of_any_spelling_are_stored_alike(tmp_path: Path) -> None:
    grouped = random_model(mlp=WITH_EXPERTS)
    alone: dict[str, np.ndarray[Any, Any]] = {}
    engine: dict[str, np.ndarray[Any, Any]] = {}
    for name, values in grouped.items():
        prefix, is_grouped, number = name.rpartition("experts.weight")
        for expert in range(3) if is_grouped else ():
            matrix = np.ascontiguousarray(values[expert].T)
            alone[f"{prefix}experts.local_experts.{expert}.linear_fc{number}.weight"] = matrix
            engine[f"{prefix}experts.linear_fc{number}.weight{expert}"] = matrix
        if not is_grouped:
            alone[name] = engine[name] = values
    made = []
    for place, tensors in (("grouped", grouped), ("alone", alone), ("engine", engine)):
        (tmp_path / place).mkdir()
        out = from_tensors(tmp_path / place, tensors, attention_heads=4, transformer_impl="local")
        made.append(whole(out, tmp_path / place / "back"))
        stored = tensors_of(metadata_of(out / "release"))
        assert stored["decoder.layers.mlp.experts.experts.linear_fc1.weight"][1] == (2, 3, 12, 8)  # type: ignore[index]
    assert made[0] == made[1] == made[2]
    assert made[0] == {name: ("Float32", each.shape, each.tobytes()) for name, each in alone.items()}


@pytest.mark.parametrize(
    ("impl", "norm"),
    [("local", "mlp.linear_fc1.layer_norm_weight"), ("transformer_engine", "pre_mlp_layernorm.weight")],
)
def test_norms_before_experts_are_named_as_the_layers_want_them(impl: str, norm: str, tmp_path: Path) -> None:
    out = from_tensors(tmp_path, random_model(mlp=WITH_EXPERTS), attention_heads=4, transformer_impl=impl)
    names = tensors_of(metadata_of(out / "release"))
    assert f"decoder.layers.{norm}" in names
    assert "decoder.layers.self_attention.linear_qkv.layer_norm_weight" in names


def without(tensors: dict[str, np.ndarray[Any, Any]], part: str) -> dict[str, np.ndarray[Any, Any]]:
    return {name: each for name, each in tensors.items() if part not in name}


REFUSED = {
    "a missing layer": (
        without(random_model(3), "layers.1."),
        "there are layers up to 2, but not layer 1",
    ),
    "no embedding": (
        without(random_model(), "embedding"),
        "there is no 'embedding.word_embeddings.weight' of a Megatron model",
    ),
    "state of another shape": (
        {**random_model(), "optimizer.state.exp_avg.embedding.word_embeddings.weight": np.zeros(80, np.float32)},
        "is optimizer state of shape [80], but 'embedding.word_embeddings.weight' has [10, 8]: leave all optimizer",
    ),
    "state of nothing": (
        {**random_model(), "optimizer.state.exp_avg.a": np.zeros(8, np.float32)},
        "is optimizer state of shape [8], but its weight is not there",
    ),
    "grouped experts of one matrix": (
        {**random_model(), "decoder.layers.0.mlp.experts.weight1": np.zeros((8, 36), np.float32)},
        "has the shape [8, 36], not that of stacked experts, [experts, rows, columns]",
    ),
    "two spellings": (
        {**random_model(), "decoder.layers.0.mlp.linear_fc1.layer_norm_weight": np.zeros(8, np.float32)},
        "parameter 'decoder.layers.0.pre_mlp_layernorm.weight' is made of ",
    ),
    "a half": (
        {**random_model(), "a.linear_fc1.weight_w": np.zeros((6, 8), np.float32)},
        "parameter 'a.linear_fc1.weight_w' [6, 8] has no place in a model of Megatron's",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_model_of_megatrons_is_refused(name: str, tmp_path: Path) -> None:
    tensors, message = REFUSED[name]
    with pytest.raises(InputError) as refused:
        from_tensors(tmp_path, tensors, attention_heads=4)
    assert "cannot become a torch_dist checkpoint" in str(refused.value)
    assert message in str(refused.value)


def test_the_number_of_heads_has_to_be_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"heads does not follow from its shapes: give it, 'attention_heads'"):
        from_tensors(tmp_path, random_model())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_strategy": "s.json"}, "a torch_dist checkpoint is loaded by any number of ranks: leave it out"),
        ({"prefix": "a"}, "the files of a torch_dist checkpoint have fixed names"),
        ({"encrypt_key": "env:KEY"}, "Megatron has no encrypted files"),
        ({"write_crc": True}, "the files of a torch_dist checkpoint have a CRC of each tensor anyway"),
        ({"append_info": ["a=1"]}, "a torch_dist checkpoint keeps its training state in common.pt"),
        ({"remove_redundancy": True}, "a torch_dist checkpoint has every slice once"),
        ({"layout": "dcp", "transformer_impl": "local"}, "only valid with layout='torch_dist'"),
    ],
)
def test_options_that_do_not_go_with_it_are_refused(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        dist_request(DENSE.source, tmp_path / "out", **options)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[: len(data) // 2], "has no directory at its end: truncated"),
        (lambda data: data.replace(b"checkpoint_version", b"checkpoint_versio"), "common.pt: "),
        (lambda data: data.replace(b"X\x09\x00\x00\x00iteration", b"cos\nsystem\nX\x00\x00\x00"), "common.pt: "),
    ],
)
def test_a_damaged_common_is_refused(change: Callable[[bytes], bytes], message: str, tmp_path: Path) -> None:
    shutil.copytree(DENSE.source, tmp_path / "src")
    path = tmp_path / "src" / ITERATION / "common.pt"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError) as refused:
        convert(dist_request(tmp_path / "src", tmp_path / "out"))
    assert message in str(refused.value)


class TestRuns:
    def test_a_killed_run_is_resumed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        request = dist_request(DENSE.source, tmp_path / "out/iter_0000003", shards=3)
        stop_before_commit(monkeypatch, request)
        report = convert(request)
        assert {rank.outcome for rank in report.ranks} == {Outcome.RESUMED}
        assert whole(tmp_path / "out", tmp_path / "back") == DENSE.want

    def test_a_plan_can_be_kept(self, tmp_path: Path) -> None:
        plan, summary = describe_plan(dist_request(EXPERTS.source, tmp_path / "out", shards=2))
        assert (summary.layout, summary.format) == ("torch_dist", "distcp")
        (tmp_path / "plan").write_bytes(dump_plan(plan))
        restored = load_plan(str(tmp_path / "plan"), plan_identity(plan))
        assert documents_of(restored) == documents_of(plan)

    def test_iterations_are_written_beside_others(self, tmp_path: Path) -> None:
        convert(dist_request(DENSE.source, tmp_path / "out", iteration="7"))
        convert(dist_request(DENSE.source, tmp_path / "out"))
        assert (tmp_path / "out" / TRACKER).read_text() == "7"
        convert(dist_request(DENSE.source, tmp_path / "other/iter_0000003"))
        assert not (tmp_path / "other" / TRACKER).exists()
        convert(dist_request(EXPERTS.source, tmp_path / "out/iter_0000007", overwrite=True))
        assert whole(tmp_path / "out", tmp_path / "back") == EXPERTS.want

    def test_they_are_converted_as_they_come(self, tmp_path: Path) -> None:
        request = LatestConversionRequest(
            source=str(DENSE.source), target=str(tmp_path / "out"), layout=TargetLayout.TORCH_DIST
        )
        assert convert_latest(request).step == "3"
        assert whole(tmp_path / "out", tmp_path / "back") == DENSE.want

    def test_it_is_a_source_without_findings(self, tmp_path: Path) -> None:
        convert(dist_request(DENSE.source, tmp_path / "out", shards=2))
        assert diagnose(str(tmp_path / "out")).fits

    @pytest.mark.parametrize("name", [".metadata", "common.pt", "metadata.json", "__extra_state.distcp"])
    def test_documents_are_verified(self, name: str, tmp_path: Path) -> None:
        convert(dist_request(DENSE.source, tmp_path / "out"))
        path = tmp_path / "out" / ITERATION / name
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        [problem] = verify_target(str(tmp_path / "out"), VerifyLevel.STRUCTURE).problems
        assert f"{name}: is not the " in problem

    def test_a_wrong_place_in_the_metadata_is_noticed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two layers are swapped."""
        from reshard.core.layouts.dcp.metadata_writing import StoredPlace

        box = StoredPlace.box

        def swapped(self: StoredPlace, planned: Any) -> Any:
            index = tuple({0: 1, 1: 0}.get(number, number) for number in self.index)
            return box(StoredPlace(self.name, self.shape, index), planned)

        monkeypatch.setattr(StoredPlace, "box", swapped)
        with pytest.raises(VerificationError, match=r"\.metadata: is wrong about parameter 'decoder\.layers\.0\."):
            convert(dist_request(DENSE.source, tmp_path / "out"))

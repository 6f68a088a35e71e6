"""Conversions to Megatron's files of ranks, compared with what Megatron-Core itself wrote of the same models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import describe_plan, make_plan
from reshard.core.errors import InputError, TargetError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.layouts.megatron.model_order import order_in_model
from reshard.core.layouts.megatron.target_side import SIDE
from reshard.core.records.plan_file import dump_plan, load_plan, plan_identity
from reshard.core.request.conversion import build_request
from reshard.core.storage.urls import parse_url
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import Contents, read_safetensors, write_safetensors
from tests.support.conversions import damage, outcomes, stop_before_commit
from tests.support.families import directory_contents
from tests.support.megatron import megatron_case as distributed_case
from tests.support.megatron_files import (
    LEGACY_CASES,
    MEGATRON_FIXTURES,
    MegatronCase,
    StoredArray,
    megatron_case,
    read_models,
    read_rank_file,
)


def converted(case: MegatronCase, directory: Path, **options: object) -> Path:
    """Convert a case's whole model to files of ranks; return the directory with them."""
    source = case.write_whole(directory / "whole.safetensors")
    report = convert(
        case.request(source, directory / "out", **{"verify": "content", "select": "weights-only"} | options)
    )
    assert report.committed
    return Path(str(report.target))


@pytest.mark.parametrize("name", LEGACY_CASES)
def test_files_are_those_that_megatron_wrote(name: str, tmp_path: Path) -> None:
    case = megatron_case(name)
    written, want = read_models(converted(case, tmp_path)), read_models(case.iteration)
    assert written.keys() == want.keys()
    for folder, models in want.items():
        assert written[folder].keys() == models.keys()
        for chunk, contents in models.items():
            assert written[folder][chunk].keys() == contents.keys(), (folder, chunk)
            for key, content in contents.items():
                assert written[folder][chunk][key] == content, (folder, chunk, key)


def refused(
    case: MegatronCase, directory: Path, *, drop: str = "", change: dict[str, str] | None = None, **options: object
) -> str:
    """The refusal of a case's whole model, changed."""
    contents = {name: each for name, each in case.want.items() if name != drop}
    contents = {(change or {}).get(name, name): each for name, each in contents.items()}
    write_safetensors(directory / "whole.safetensors", contents)
    given = {"select": "weights-only"} | options
    with pytest.raises(InputError) as error:
        convert(case.request(directory / "whole.safetensors", directory / "out", **given))
    assert not (directory / "out").exists()
    return str(error.value)


DENSE, MOE, GROUPED, MLA = map(
    megatron_case, ("legacy_tp2_pp2", "legacy_moe_tp2_ep2", "legacy_moe_tp2_ep2_grouped", "legacy_mla_mtp_tp2_pp2")
)
EXPERTS = (
    "decoder.layers.0.mlp.experts.local_experts.0.linear_fc2.weight=decoder.layers.0.mlp.experts.linear_fc2.weight"
)
FC1, FC2 = "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc2.weight"


@pytest.mark.parametrize(
    ("case", "options", "reason"),
    [
        (DENSE, {"tensor_parallel": 8}, "4 attention heads cannot be divided evenly among 8 tensor-parallel ranks"),
        (DENSE, {"tensor_parallel": 4}, "2 groups of queries cannot be divided evenly among 4 tensor-parallel ranks"),
        (MLA, {"tensor_parallel": 8}, "4 attention heads cannot be divided evenly among 8 tensor-parallel ranks"),
        (DENSE, {"tensor_parallel": 3}, "4 attention heads cannot be divided evenly among 3 tensor-parallel ranks"),
        (DENSE, {"pipeline_parallel": 3}, "4 layers cannot be divided evenly among 3 stages"),
        (DENSE, {"pipeline_first_layers": 5}, "4 layers cannot be divided evenly among 2 stages, 5 of them"),
        (DENSE, {"virtual_pipeline": 4}, "stage 0 has 2 layers, which cannot be divided into 4 chunks"),
        (DENSE, {"attention_heads": 5}, "attention with 5 heads cannot have matrices of 64 rows (linear_qkv)"),
        (DENSE, {"attention_heads": 8}, "attention with 8 heads cannot have matrices of 64 rows (linear_qkv)"),
        (DENSE, {"expert_parallel": 2}, "there are no experts to divide among 2 expert-parallel ranks"),
        (MOE, {"expert_parallel": 3}, "4 experts cannot be divided evenly among 3 expert-parallel ranks"),
        (GROUPED, {"expert_parallel": 8}, "its 4 experts cannot be divided evenly among 8 expert-parallel ranks"),
        (DENSE, {"drop": FC2}, f"{FC1!r}: its shape [64, 32] does not go with that of {FC2!r}, which is not there"),
        (DENSE, {"change": {FC1: "transformer.h.0.mlp.w1"}}, "'transformer.h.0.mlp.w1' is not a parameter of Megatron"),
        (DENSE, {"change": {FC1: "decoder.layers.0.output_layer.weight"}}, "'decoder.layers.0.output_layer.weight' is"),
        (DENSE, {"drop": "embedding.word_embeddings.weight"}, "there is no 'embedding.word_embeddings.weight'"),
        (
            DENSE,
            {"exclude": ["decoder.layers.2.*"]},
            "there are layers up to 3, but not layer 2",
        ),
        (
            MOE,
            {"rename": [EXPERTS]},
            "'decoder.layers.0.mlp.experts.linear_fc2.weight' is not a parameter of Megatron-Core: name them as",
        ),
        (DENSE, {"exclude": ["*"]}, "no parameter is left"),
        (
            DENSE,
            {"pad_vocab_to": 16},
            "axis 0 of 'embedding.word_embeddings.weight' has 32 elements, which cannot become",
        ),
        (DENSE, {"pad_vocab_to": 33}, "cannot be divided evenly among 2 tensor-parallel ranks: fill up its rows with"),
        (DENSE, {"target_strategy": "s.ckpt"}, "its sharding follows from 'tensor_parallel' and the like"),
        (DENSE, {"prefix": "p"}, "the files of a Megatron checkpoint have fixed names"),
        (DENSE, {"encrypt_key": "env:K"}, "Megatron has no encrypted files"),
        (DENSE, {"write_crc": True}, "files that PyTorch saves have a CRC of each tensor anyway"),
        (DENSE, {"append_info": ["epoch=1"]}, "keeps its training state elsewhere"),
        (DENSE, {"remove_redundancy": True}, "every rank of Megatron loads a file with all of its slices"),
        (DENSE, {"format": "ckpt"}, "writes .pt files: leave out 'format'"),
        (DENSE, {"tensor_parallel": 0}, "must be at least 1"),
        (
            DENSE,
            {"expert_tensor_parallel": 4},
            "must divide 'tensor_parallel', or files of different experts would have the same name",
        ),
        (DENSE, {"pipeline_parallel": 1, "pipeline_last_layers": 2}, "only valid with several stages"),
        (DENSE, {"layout": "dcp"}, "only valid with layout='megatron'"),
    ],
)
def test_refusals(case: MegatronCase, options: dict[str, object], reason: str, tmp_path: Path) -> None:
    assert reason in refused(case, tmp_path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["megatron", "torch_dist"])
def test_a_model_does_not_become_a_tied_one(layout: str, tmp_path: Path) -> None:
    given = {"source": str(DENSE.directory / "src"), "target": str(tmp_path / "out"), "layout": layout}
    with pytest.raises(InputError) as error:
        convert(build_request(**given, iteration="3", exclude=["output_layer.weight"]))
    assert "no 'output_layer.weight', and its own arguments have untie_embeddings_and_output" in str(error.value)


def test_unknown_names_are_one_problem(tmp_path: Path) -> None:
    reason = refused(DENSE, tmp_path, change={name: f"model.{name}" for name in DENSE.want})
    assert reason.count("\n") == 1
    assert "and 31 more are not parameters of Megatron-Core: name them as Megatron does, 'preset' or 'rename'" in reason


def test_heads_have_to_be_given_if_shapes_do_not_tell(tmp_path: Path) -> None:
    case = megatron_case("legacy_pp2_uneven_bias")
    reason = refused(case, tmp_path, attention_heads=0)
    assert "number of attention heads does not follow from its shapes: give it, 'attention_heads'" in reason


def unified(source: Path, target: Path, **options: object) -> Contents:
    """The whole model that a checkpoint holds."""
    convert(build_request(source=str(source), target=str(target), layout="unified", **{"verify": "content"} | options))
    return directory_contents(target)


ROUND_TRIPS = (
    ("legacy_tp1", {"tensor_parallel": 2, "pipeline_parallel": 4}),
    ("legacy_tp2_pp2", {"tensor_parallel": 1, "pipeline_parallel": 1}),
    ("legacy_tp2_pp2", {"tensor_parallel": 2, "pipeline_parallel": 2, "virtual_pipeline": 2}),
    ("legacy_tp2_pp2_tied", {"tensor_parallel": 1, "pipeline_parallel": 4}),
    ("legacy_tp2_pp2_tied", {"tensor_parallel": 2, "pipeline_parallel": 1}),
    ("legacy_tp2_pp2_vpp2", {"tensor_parallel": 1, "pipeline_parallel": 2, "virtual_pipeline": 1}),
    ("legacy_pp2_uneven_bias", {"tensor_parallel": 2, "pipeline_parallel": 3, "pipeline_first_layers": 2}),
    ("legacy_pp2_uneven_bias", {"pipeline_parallel": 2, "pipeline_first_layers": 0, "pipeline_last_layers": 1}),
    ("legacy_moe_tp2_ep2", {"tensor_parallel": 1, "expert_parallel": 4}),
    ("legacy_moe_tp2_ep2", {"tensor_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 1}),
    ("legacy_moe_tp2_ep2_grouped", {"tensor_parallel": 2, "expert_parallel": 4, "pipeline_parallel": 2}),
    ("legacy_moe_tp2_ep2_grouped", {"tensor_parallel": 1, "expert_parallel": 1}),
    ("legacy_moe_tp2_ep2_grouped", {"expert_tensor_parallel": 1, "expert_parallel": 2}),
    ("legacy_moe_tp2_pp2_ep2_etp1", {"tensor_parallel": 2, "expert_parallel": 1, "expert_tensor_parallel": 1}),
    ("legacy_moe_tp2_pp2_ep2_etp1", {"pipeline_parallel": 1, "expert_tensor_parallel": 2}),
    ("legacy_mla_mtp_tp2_pp2", {"tensor_parallel": 4, "pipeline_parallel": 1, "expert_parallel": 2}),
    ("legacy_mla_mtp_tp2_pp2", {"tensor_parallel": 1, "pipeline_parallel": 2, "expert_parallel": 4}),
)


@pytest.mark.parametrize(("name", "options"), ROUND_TRIPS)
def test_any_sizes_hold_the_same_model(name: str, options: dict[str, object], tmp_path: Path) -> None:
    case = megatron_case(name)
    given = {"verify": "content", "attention_heads": 0} | options
    report = convert(case.request(case.directory / "src", tmp_path / "out", **given))
    assert report.target == str(tmp_path / "out" / "iter_0000003")
    assert (tmp_path / "out" / "latest_checkpointed_iteration.txt").read_text() == "3"
    assert unified(tmp_path / "out", tmp_path / "whole") == case.want


@pytest.mark.parametrize("name", ["legacy_moe_tp2_ep2", "legacy_moe_tp2_ep2_grouped", "legacy_mla_mtp_tp2_pp2"])
def test_a_second_conversion_finds_the_first_ones_files(name: str, tmp_path: Path) -> None:
    """Through other sizes and back: the files are those that Megatron-Core wrote."""
    case = megatron_case(name)
    other = {"tensor_parallel": 1, "pipeline_parallel": 1, "expert_parallel": 1, "expert_tensor_parallel": 0}
    convert(case.request(case.directory / "src", tmp_path / "one", **other))
    convert(case.request(tmp_path / "one", tmp_path / "back"))
    assert read_models(tmp_path / "back" / case.iteration.name) == read_models(case.iteration)


@pytest.mark.parametrize(
    ("name", "preset", "switches"),
    [
        ("legacy_tp2_pp2", "qwen3", []),
        ("legacy_moe_tp2_ep2", "qwen3_moe", []),
        ("legacy_moe_tp2_ep2_grouped", "qwen3_moe", ["megatron_experts=grouped"]),
    ],
)
def test_a_preset_makes_what_megatron_wrote(name: str, preset: str, switches: list[str], tmp_path: Path) -> None:
    """The Hugging Face directory is what MindSpeed-LLM's converter made of Megatron's files."""
    case = megatron_case(name)
    given = {"preset": preset, "switch": switches, "attention_heads": 0, "iteration": "3", "verify": "content"}
    convert(case.request(case.directory / "hf", tmp_path / "out", **given))
    assert read_models(tmp_path / "out" / case.iteration.name) == read_models(case.iteration)


def test_the_last_row_fills_up_a_vocabulary(tmp_path: Path) -> None:
    given = {"pad_vocab_to": 256, "tensor_parallel": 2, "pipeline_parallel": 1}
    target = converted(DENSE, tmp_path, **given)
    [first, second] = read_models(target).values()
    for key in ("embedding.word_embeddings.weight", "output_layer.weight"):
        dtype, (rows, columns), data = DENSE.want[key]
        row_bytes = len(data) // rows
        want = data + data[-row_bytes:] * (256 - rows)
        assert first["model"][key] == (dtype, (128, columns), want[: len(want) // 2])
        assert second["model"][key] == (dtype, (128, columns), want[len(want) // 2 :])
    args = read_rank_file(target / "mp_rank_00" / "model_optim_rng.pt")["args"]
    assert args.padded_vocab_size == 256


def test_an_optimizer_is_that_of_megatron(tmp_path: Path) -> None:
    case = megatron_case("legacy_optimizer_tp2")
    convert(case.request(case.directory / "src", tmp_path / "out", verify="content"))
    for rank in ("mp_rank_00", "mp_rank_01"):
        paths = (
            case.iteration / rank / "model_optim_rng.pt",
            tmp_path / "out/iter_0000003" / rank / "model_optim_rng.pt",
        )
        want, found = (read_rank_file(path) for path in paths)
        assert {key: found[key] for key in ("opt_param_scheduler", "num_floating_point_operations_so_far")} == {
            key: want[key] for key in ("opt_param_scheduler", "num_floating_point_operations_so_far")
        }
        wanted, written = want["optimizer"], found["optimizer"]
        assert contents(written["fp32_from_fp16_params"]) == contents(wanted["fp32_from_fp16_params"])
        states = wanted["optimizer"]["state"]
        assert written["optimizer"]["state"].keys() == states.keys()
        for number, state in states.items():
            made = written["optimizer"]["state"][number]
            assert made.pop("step") == np.frombuffer(state.pop("step").data, "<f4")[0]
            assert contents(made) == contents(state)
        assert [group.pop("step") for group in written["optimizer"]["param_groups"]] == [2.0, 2.0]
        assert written["optimizer"]["param_groups"] == wanted["optimizer"]["param_groups"]


def contents(tree: Any) -> Any:
    """A tree with what tensors are, whatever their storages."""
    if isinstance(tree, StoredArray):
        return tree.dtype, tree.shape, tree.data
    if isinstance(tree, dict):
        return {key: contents(value) for key, value in tree.items()}
    return [contents(value) for value in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize(
    "sizes",
    [
        {"tensor_parallel": 1},
        {"tensor_parallel": 2, "pipeline_parallel": 2},
        {"tensor_parallel": 1, "pipeline_parallel": 2},
    ],
)
@pytest.mark.parametrize("name", ["legacy_optimizer_tp2", "legacy_distrib_optim_tp2_dp2"])
def test_an_optimizer_of_any_sizes(name: str, sizes: dict[str, object], tmp_path: Path) -> None:
    case = megatron_case(name)
    convert(case.request(case.directory / "src", tmp_path / "out", **{"verify": "content"} | sizes))
    assert unified(tmp_path / "out", tmp_path / "whole") == case.want


@pytest.mark.parametrize("pipeline", [1, 2])
def test_states_are_numbered_in_the_order_of_the_model(pipeline: int, tmp_path: Path) -> None:
    """Whatever the order of a source: those of torch_dist have it by files."""
    source = distributed_case("dist_tp2_pp2_optimizer")
    options = {"layout": "megatron", "pipeline_parallel": pipeline, "verify": "content"}
    convert(build_request(source=str(source.source), target=str(tmp_path / "out"), **options))
    assert unified(tmp_path / "out", tmp_path / "whole") == source.want


OPTIMIZER = megatron_case("legacy_optimizer_tp2")


def test_float32_weights_have_no_masters(tmp_path: Path) -> None:
    options = {"cast": ["*=float32"], "verify": "content", "tensor_parallel": 1}
    report = convert(OPTIMIZER.request(OPTIMIZER.directory / "src", tmp_path / "out", **options))
    optimizer = read_rank_file(tmp_path / "out/iter_0000003/mp_rank_00/model_optim_rng.pt")["optimizer"]
    assert list(optimizer) == ["state", "param_groups"]
    assert len(optimizer["state"]) == 19
    excluded = read_manifest(parse_url(str(report.target)))
    assert excluded is not None
    assert "optimizer.state.param.output_layer.weight" in excluded.excluded


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"iteration": "0"}, "Megatron loads no optimizer of a release: give iteration='N', or leave all optimizer"),
        ({"exclude": ["optimizer.state.exp_avg.output*"]}, "'output_layer.weight' lacks exp_avg of Adam: leave all"),
        ({"exclude": ["output_layer.weight"]}, "but 'output_layer.weight' is not there: leave all optimizer state out"),
        (
            {"rename": ["optimizer.state.exp_avg.output_layer.weight=optimizer.state.sum.output_layer.weight"]},
            "of Adam",
        ),
    ],
)
def test_an_optimizer_has_to_be_complete(options: dict[str, object], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        convert(OPTIMIZER.request(OPTIMIZER.directory / "src", tmp_path / "out", **options))
    assert reason in str(error.value)


def test_an_optimizer_needs_the_settings_of_its_training(tmp_path: Path) -> None:
    source = OPTIMIZER.write_whole(tmp_path / "whole.safetensors")
    with pytest.raises(InputError, match="the source does not tell the step and the groups with and without weight"):
        convert(OPTIMIZER.request(source, tmp_path / "out", iteration="3"))


def test_iterations_and_their_tracker(tmp_path: Path) -> None:
    source = DENSE.write_whole(tmp_path / "whole.safetensors")
    tracker = tmp_path / "out" / "latest_checkpointed_iteration.txt"
    convert(DENSE.request(source, tmp_path / "out"))
    assert tracker.read_text() == "release"
    convert(DENSE.request(source, tmp_path / "out", iteration="40"))
    assert tracker.read_text() == "40"
    convert(DENSE.request(source, tmp_path / "out", iteration="7"))
    assert tracker.read_text() == "40"
    convert(DENSE.request(source, tmp_path / "alone" / "iter_0000012"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "iter_0000007",
        "iter_0000040",
        "latest_checkpointed_iteration.txt",
        "release",
    ]
    assert [path.name for path in (tmp_path / "alone").iterdir()] == ["iter_0000012"]
    assert read_rank_file(tmp_path / "alone/iter_0000012/mp_rank_00_000/model_optim_rng.pt")["iteration"] == 12
    with pytest.raises(InputError, match="iteration='7': the target is named iter_0000012: leave it out"):
        convert(DENSE.request(source, tmp_path / "alone" / "iter_0000012", iteration="7"))
    tracker.write_text("mine")
    with pytest.raises(TargetError, match="names no iteration: 'mine'. Remove it, or correct it"):
        convert(DENSE.request(source, tmp_path / "out", iteration="50"))


def test_a_killed_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = DENSE.request(DENSE.write_whole(tmp_path / "whole.safetensors"), tmp_path / "out" / "release")
    stop_before_commit(monkeypatch, request)
    assert outcomes(convert(request)) == ["resumed"] * 4
    assert outcomes(convert(request)) == ["resumed"] * 4
    assert read_models(tmp_path / "out" / "release") == read_models(DENSE.iteration)


def test_damage_is_found_and_mended(tmp_path: Path) -> None:
    request = DENSE.request(DENSE.write_whole(tmp_path / "whole.safetensors"), tmp_path / "out")
    convert(request)
    target = tmp_path / "out" / "release"
    assert verify_target(str(target), VerifyLevel.CONTENT).problems == ()
    assert verify_target(str(tmp_path / "out"), VerifyLevel.CHECKSUM).problems == ()
    damage(target / "mp_rank_01_000" / "model_optim_rng.pt")
    assert len(verify_target(str(target), VerifyLevel.CHECKSUM).problems) == 1
    report = convert(request)
    assert sorted(outcomes(report)) == ["resumed", "resumed", "resumed", "written"]
    (target / "mp_rank_07_000").mkdir()
    (target / "mp_rank_07_000" / "model_optim_rng.pt").write_bytes(b"other")
    [problem] = verify_target(str(target), VerifyLevel.STRUCTURE).problems
    assert "mp_rank_07_000/model_optim_rng.pt: does not belong to this checkpoint" in problem


def test_a_file_of_other_tensors_is_found(tmp_path: Path) -> None:
    """Of the same size: only what its pickle says is different."""
    convert(DENSE.request(DENSE.write_whole(tmp_path / "whole.safetensors"), tmp_path / "out"))
    path = tmp_path / "out" / "release" / "mp_rank_00_000" / "model_optim_rng.pt"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"linear_proj", b"linear_prox", 1))
    [problem] = verify_target(str(tmp_path / "out" / "release"), VerifyLevel.STRUCTURE).problems
    assert "mp_rank_00_000" in problem


def test_a_plan_as_a_file(tmp_path: Path) -> None:
    plan = make_plan(MOE.request(MOE.directory / "src", tmp_path / "out", expert_tensor_parallel=1))
    (tmp_path / "plan").write_bytes(dump_plan(plan))
    again = load_plan(str(tmp_path / "plan"), plan_identity(plan))
    assert again.inputs.layout == plan.inputs.layout
    assert plan_identity(again) == plan_identity(plan)
    for field, value in {"heads": -1, "common": "?", "ends": [0, "1"], "sizes": {"tensor": 0}}.items():
        document = {"megatron": plan.inputs.layout.plan_fields()["megatron"] | {field: value}}
        with pytest.raises((ValueError, KeyError)):
            SIDE.from_plan(document)


def test_a_dry_run_tells_the_files(tmp_path: Path) -> None:
    plan, summary = describe_plan(GROUPED.request(GROUPED.directory / "src", tmp_path / "out"))
    assert [plan.file_name(rank) for rank in plan.target_ranks] == [
        f"mp_rank_{tensor:02d}_{expert:03d}/model_optim_rng.pt" for expert in (0, 1) for tensor in (0, 1)
    ]
    assert summary.target_kind == "file"
    assert not (tmp_path / "out").exists()


def test_arguments_are_the_sources_own_in_other_sizes(tmp_path: Path) -> None:
    convert(MOE.request(MOE.directory / "src", tmp_path / "out", tensor_parallel=1, expert_parallel=4))
    paths = MOE.iteration / "mp_rank_00_000", tmp_path / "out" / "iter_0000003" / "mp_rank_00_003"
    source, target = (vars(read_rank_file(path / "model_optim_rng.pt")["args"]) for path in paths)
    changed = {
        name: value for name, value in target.items() if source.get(name) != value and not isinstance(value, str)
    }
    assert {name: value for name, value in changed.items() if name in source and name != "attention_backend"} == {
        "tensor_model_parallel_size": 1,
        "expert_model_parallel_size": 4,
        "expert_tensor_parallel_size": 1,
    }
    assert (target["moe_grouped_gemm"], target["moe_ffn_hidden_size"], target["moe_layer_freq"]) == (False, 8, 1)


def test_an_optimizer_of_a_distributed_checkpoint_is_read_back(tmp_path: Path) -> None:
    source = MEGATRON_FIXTURES / "dist_tp2_pp2_optimizer/src"
    options: dict[str, Any] = {"layout": "megatron", "tensor_parallel": 2, "workers": 2}
    convert(build_request(source=str(source), target=str(tmp_path / "out"), **options))
    names = list(read_rank_file(tmp_path / "out/iter_0000003/mp_rank_00/model_optim_rng.pt")["model"])
    assert names == sorted(names, key=order_in_model)
    report = convert(build_request(source=str(tmp_path / "out"), target=str(tmp_path / "whole"), layout="unified"))
    assert report.committed
    want = read_safetensors(source.parent / "want.safetensors")
    assert directory_contents(tmp_path / "whole") == want

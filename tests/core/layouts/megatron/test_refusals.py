"""What of a Megatron checkpoint cannot be trusted is refused, by name, before anything is written."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, InputError, ReshardError
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.source.opening import TargetOutline, open_source
from tests.support.checkpoints import read_safetensors
from tests.support.megatron_sources import OPTIMIZER_FILE, MegatronSource, Tree, megatron_source

QKV = "decoder.layers.0.self_attention.linear_qkv.weight"
FC1, FC2 = "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.mlp.linear_fc2.weight"
KV_DOWN = "decoder.layers.0.self_attention.linear_kv_down_proj.weight"
NORM = "decoder.layers.0.input_layernorm.weight"

Change = Callable[[MegatronSource], object]


def args(folder: str = "mp_rank_*", **fields: object) -> Change:
    return lambda source: source.change_args(folder, **fields)


def tree(change: Callable[[Tree], object], folder: str = "mp_rank_*") -> Change:
    return lambda source: source.change(change, folder)


def model(change: Callable[[dict[str, Any]], object], folder: str = "mp_rank_*") -> Change:
    return lambda source: source.change(lambda root: change(root["model"]), folder)


def renamed(old: str, new: str) -> Change:
    return model(lambda tensors: tensors.update({new: tensors.pop(old)}))


def moved(old: str, new: str) -> Change:
    return lambda source: (source.iteration / old).rename(source.iteration / new)


DENSE, MOE, LATENT = "legacy_tp2_pp2", "legacy_moe_tp2_ep2", "legacy_mla_mtp_tp2_pp2"
STACKED = "legacy_moe_tp2_ep2_grouped"
REFUSALS: dict[str, tuple[str, Change, str]] = {
    "old version": (
        DENSE,
        tree(lambda root: root.update(checkpoint_version=2.0)),
        "its checkpoint_version is 2.0, resh",
    ),
    "no version": (DENSE, tree(lambda root: root.pop("checkpoint_version")), "its checkpoint_version is None"),
    "no args": (DENSE, tree(lambda root: root.pop("args")), "has no 'args': it is not a checkpoint of Megatron"),
    "other args": (DENSE, tree(lambda root: root.update(args=3)), "its 'args' are not an argparse.Namespace"),
    "hostile args": (DENSE, args(num_layers=-1), "num_layers is -1, not a number from 1 to 65536"),
    "mixed iterations": (
        DENSE,
        tree(lambda root: root.update(iteration=4), "mp_rank_01_001"),
        "mp_rank_00_000/model_optim_rng.pt is of iteration 3, mp_rank_01_001/model_optim_rng.pt of 4",
    ),
    "iteration": (DENSE, tree(lambda root: root.update(iteration="3")), "its iteration is '3', not a number of steps"),
    "different args": (
        DENSE,
        args("mp_rank_01_000", num_layers=8),
        "mp_rank_00_000/model_optim_rng.pt and mp_rank_01_000/model_optim_rng.pt differ in num_layers (4, 8)",
    ),
    "pipeline size": (
        DENSE,
        args(pipeline_model_parallel_size=1),
        "mp_rank_00_000/model_optim_rng.pt: there is no such folder with tensor_model_parallel_size 2, pipeline_model_",
    ),
    "surplus folder": (
        DENSE,
        moved("mp_rank_01_001", "mp_rank_02_001"),
        "mp_rank_02_001/model_optim_rng.pt: there is no",
    ),
    "chunks": (
        DENSE,
        args(virtual_pipeline_model_parallel_size=2),
        "each file has 1 chunk of the model, its arguments say",
    ),
    "both chunks": (
        DENSE,
        tree(lambda root: root.update(model0=root["model"])),
        "has neither a 'model' nor a 'model0'",
    ),
    "no tensors": (DENSE, model(lambda tensors: tensors.update(x=3)), "'x' in its 'model' are not tensors"),
    "nested": (
        DENSE,
        tree(lambda root: root.update(model={"language_model": root["model"]})),
        "'language_model' in its 'model' are not tensors; reshard reads models of Megatron-Core",
    ),
    "order of chunks": (
        "mindspeed_dualpipev_pp2",
        args(schedules_method=...),
        "'decoder.final_layernorm.weight' is in chunk 1 of stage 0, by its arguments the last layers are in chunk 1 of",
    ),
    "other order of chunks": (
        "legacy_tp2_pp2_vpp2",
        args(schedules_method="dualpipev"),
        "is in chunk 1 of stage 1, by schedules_method dualpipev the last layers are in chunk 1 of stage 0",
    ),
    "layers": (DENSE, args(num_layers=8), "the layers are numbered 0, 1, by its arguments 0, 1, 2, 3"),
    "uneven layers": (DENSE, args(num_layers=5), "5 layers cannot be divided evenly among 2 stages"),
    "own placement": (
        "legacy_pp2_uneven_bias",
        args(decoder_first_pipeline_num_layers=None, account_for_embedding_in_pipeline_split=True),
        "by its arguments 0, 1, and account_for_embedding_in_pipeline_split is set, which reshard does not follow",
    ),
    "groups": (
        DENSE,
        args(num_query_groups=1, num_key_value_heads=1),
        "1 groups of queries on 2 tensor-parallel ranks",
    ),
    "unknown groups": (
        DENSE,
        args(num_query_groups=..., num_key_value_heads=..., num_attention_heads=...),
        "an unknown number of groups of queries on 2",
    ),
    "unknown name": (
        DENSE,
        renamed(NORM, "decoder.layers.0.self_attention.strange.weight"),
        "'decoder.layers.0.self_attention.strange.weight': reshard does not know how Megatron cuts it",
    ),
    "ungated": (DENSE, args(swiglu=False), "'decoder.layers.0.mlp.linear_fc1.weight' is gated, swiglu is False"),
    "stacked ungated": (
        STACKED,
        args(swiglu=False),
        "'decoder.layers.0.mlp.experts.weight1' is gated, swiglu is False",
    ),
    "no second": (DENSE, model(lambda tensors: tensors.pop(FC2)), f"there is no matrix {FC2!r} to follow it"),
    "not gated": (
        DENSE,
        model(lambda tensors: tensors.update({FC2: tensors[QKV]})),
        f"{FC1!r} is not gated, swiglu is True",
    ),
    "sizes": (
        LATENT,
        model(lambda tensors: tensors.update({FC2: tensors[KV_DOWN]}), "mp_rank_*_000"),
        f"{FC1!r} makes 16 numbers, the matrix that follows takes 32",
    ),
    "many ranks": (
        DENSE,
        args(tensor_model_parallel_size=1 << 20, expert_model_parallel_size=1 << 20),
        "1099511627776 tensor- and expert-parallel ranks in 2 stages are more than the 1048576 that reshard allows",
    ),
    "vocabulary": (
        DENSE,
        args(padded_vocab_size=64),
        "'embedding.word_embeddings.weight': has the shape [32, 32] on all ranks together, padded_vocab_size is 64",
    ),
    "true vocabulary": (DENSE, args(vocab_size=50), "has 32 rows on all ranks together, vocab_size is 50"),
    "hidden": (DENSE, args(hidden_size=64), "on all ranks together, hidden_size is 64"),
    "ffn": (DENSE, args(ffn_hidden_size=64), "on all ranks together, ffn_hidden_size is 64"),
    "ffn of experts": (
        MOE,
        args(moe_ffn_hidden_size=16),
        "local_experts.0.linear_fc2.weight': has the shape [32, 8] on all ranks together, moe_ffn_hidden_size is 16",
    ),
    "ffn of stacked experts": (STACKED, args(moe_ffn_hidden_size=16), "together, moe_ffn_hidden_size is 16"),
    "experts": (MOE, args(num_experts=8), "has the experts 0, 1, by its arguments 4"),
    "odd experts": (MOE, args(num_experts=3), "3 experts cannot be divided among 2 ranks"),
    "no experts": (MOE, args(num_experts=None), "no experts cannot be divided among 2 ranks"),
    "expert tensor": (
        MOE,
        args(expert_tensor_parallel_size=4),
        "expert_tensor_parallel_size 4 does not divide tensor_",
    ),
    "ranks of queries": (
        LATENT,
        renamed(
            "decoder.layers.0.self_attention.q_layernorm.weight", "decoder.layers.0.self_attention.x_layernorm.weight"
        ),
        "'decoder.layers.0.self_attention.linear_q_down_proj.weight': its shape [8, 32] does not suit a rank of None",
    ),
    "object in the model": (
        DENSE,
        model(lambda tensors: tensors.update(x=PickledObject(Global("os", "system"), ("echo",)))),
        "has 'os.system', which is not data and was not run",
    ),
}


@pytest.mark.parametrize(("name", "change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_what_is_refused(name: str, change: Change, message: str, tmp_path: Path) -> None:
    source = megatron_source(name).copied(tmp_path / "ck")
    change(source)
    with pytest.raises(InputError, match=re.escape(message)):
        open_source(SourceRequest(source=str(source.root)))


def test_all_problems_are_one_error(tmp_path: Path) -> None:
    source = megatron_source(DENSE).copied(tmp_path / "ck")
    source.change_args(padded_vocab_size=64, ffn_hidden_size=64)
    with pytest.raises(CatalogError, match="4 of 4 checkpoint files cannot be used") as caught:
        open_source(SourceRequest(source=str(source.root)))
    assert str(caught.value).count("ffn_hidden_size is 64") == 8


def test_replicas_that_differ_are_named(tmp_path: Path) -> None:
    source = megatron_source(DENSE).copied(tmp_path / "ck")
    exchange(source, "mp_rank_01_001", NORM, "decoder.layers.1.input_layernorm.weight")
    message = (
        r"parameter 'decoder.layers.2.input_layernorm.weight', \[0:32\]: one content in "
        r"mp_rank_00_001/model_optim_rng.pt, another in mp_rank_01_001/model_optim_rng.pt"
    )
    with pytest.raises(CatalogError, match=message):
        open_source(SourceRequest(source=str(source.root)))


def test_replicas_in_a_common_storage_are_read(tmp_path: Path) -> None:
    source = megatron_source("legacy_distrib_optim_tp2_dp2").copied(tmp_path / "ck")
    exchange(source, "mp_rank_01", NORM, "decoder.layers.1.input_layernorm.weight")
    with pytest.raises(
        CatalogError, match=r"parameter 'decoder.layers.0.input_layernorm.weight', \[0:32\]: one content"
    ):
        convert(source.request(tmp_path / "out", select="weights-only"))


def exchange(source: MegatronSource, folder: str, one: str, other: str) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors[one], tensors[other] = tensors[other], tensors[one]

    source.change(lambda root: change(root["model"]), folder)


def test_a_head_that_is_not_the_tied_embedding_is_named(tmp_path: Path) -> None:
    source = megatron_source(DENSE).copied(tmp_path / "ck")
    source.change_args(untie_embeddings_and_output_weights=False)
    with pytest.raises(CatalogError, match="parameter 'embedding.word_embeddings.weight', .*: one content in"):
        open_source(SourceRequest(source=str(source.root)))


def test_states_in_another_order_than_the_model_are_found_out(tmp_path: Path) -> None:
    source = megatron_source("legacy_optimizer_tp2").copied(tmp_path / "ck")

    def change(root: Tree) -> None:
        inner, masters = root["optimizer"]["optimizer"], root["optimizer"]["fp32_from_fp16_params"][0]
        inner["state"][2], inner["state"][3] = inner["state"][3], inner["state"][2]
        masters[2], masters[3] = masters[3], masters[2]

    source.change(change)
    check_weights_alone(source, tmp_path, "what should be the optimizer's master of .* is not its value in the model")


def test_buffers_in_another_order_than_the_model_are_found_out(tmp_path: Path) -> None:
    source = megatron_source("legacy_distrib_optim_tp2_dp2").copied(tmp_path / "ck")

    def change(root: Tree) -> None:
        [buffer] = root[0].values()
        buffer["param"], buffer["exp_avg"] = buffer["exp_avg"], buffer["param"]

    source.change(change, name=OPTIMIZER_FILE)
    check_weights_alone(
        source, tmp_path, "distrib_optim.pt: what should be the optimizer's master of 'output_layer.weight'"
    )


def check_weights_alone(source: MegatronSource, tmp_path: Path, message: str) -> None:
    """Check that the optimizer is refused, and that the weights are converted without it."""
    with pytest.raises(CatalogError, match=f"{message}.*weights-only"):
        convert(source.request(tmp_path / "out"))
    convert(source.request(tmp_path / "out", select="weights-only"))
    weights = {name: each for name, each in source.want.items() if not name.startswith("optimizer.")}
    assert read_safetensors(tmp_path / "out" / "model.safetensors") == weights


def optimizer(change: Callable[[Tree], object]) -> Change:
    return lambda source: source.change(lambda root: change(root["optimizer"]))


def buffers(change: Callable[[Tree], object]) -> Change:
    return lambda source: source.change(change, name=OPTIMIZER_FILE)


def group(number: int, **fields: object) -> Change:
    return optimizer(lambda tree: tree["optimizer"]["param_groups"][number].update(fields))


def slot(change: Callable[[Tree], object]) -> Change:
    return buffers(lambda root: [change(each) for each in root[0].values()])


PLAIN, FLAT = "legacy_optimizer_tp2", "legacy_distrib_optim_tp2_dp2"
OPTIMIZERS: dict[str, tuple[str, Change, str]] = {
    "a list": (
        PLAIN,
        lambda source: source.change(lambda root: root.update(optimizer=[root["optimizer"]] * 2)),
        "it has 2 optimizers, by its expert parallelism there are 1",
    ),
    "no masters": (
        PLAIN,
        optimizer(lambda tree: tree.pop("fp32_from_fp16_params")),
        "has no float32 master for each of",
    ),
    "groups": (PLAIN, group(0, params=[0, 1]), "groups of the optimizer are not those with and without weight decay"),
    "one group": (PLAIN, group(1, wd_mult=1.0), "groups of the optimizer are not those with and without weight decay"),
    "wd_mult": (PLAIN, group(1, wd_mult=0.5), "a group without numbers of parameters, or without wd_mult"),
    "groups of experts": (PLAIN, group(0, is_expert_parallel=True), "a group of the optimizer is of experts"),
    "numbers": (
        PLAIN,
        group(0, params=[*range(1, 11)]),
        "'embedding.word_embeddings.weight' is not float32 of its shape",
    ),
    "missing state": (
        PLAIN,
        optimizer(lambda tree: tree["optimizer"]["state"].pop(3)),
        "the optimizer's state 3 is not one",
    ),
    "surplus state": (
        PLAIN,
        optimizer(lambda tree: tree["optimizer"]["state"].update({99: {}})),
        "the optimizer has other parameters than the model",
    ),
    "other slots": (
        PLAIN,
        optimizer(lambda tree: tree["optimizer"]["state"][0].pop("exp_avg_sq")),
        "the optimizer's state 0 has exp_avg, not Adam's",
    ),
    "several buffers": (
        FLAT,
        buffers(lambda root: root.update({1: root[0]})),
        "it has the buffers [0, 1], for the chunks [0] of the model",
    ),
    "not coalesced": (FLAT, buffers(lambda root: root.pop("buckets_coalesced")), "its buffers are not coalesced"),
    "other states": (FLAT, slot(lambda buffer: buffer.pop("exp_avg")), "its buffer has param, exp_avg_sq, not Adam's"),
    "size": (
        FLAT,
        slot(lambda buffer: buffer.update(numel_unpadded=4000)),
        "its parameters need 4096 elements or more, its buffer has 4000: it has several buckets",
    ),
    "no size": (FLAT, slot(lambda buffer: buffer.pop("numel_unpadded")), "does not say how many of its elements"),
    "large size": (FLAT, slot(lambda buffer: buffer.update(numel_unpadded=9999)), "its param is not a row of 9999"),
}


@pytest.mark.parametrize(("name", "change", "message"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers_that_are_not_known_by_names(name: str, change: Change, message: str, tmp_path: Path) -> None:
    source = megatron_source(name).copied(tmp_path / "ck")
    change(source)
    check_weights_alone(source, tmp_path, re.escape(message))


def test_buckets_whose_paddings_were_dropped_are_refused(tmp_path: Path) -> None:
    source = megatron_source(FLAT).copied(tmp_path / "ck")
    source.change(lambda root: root["model"].pop("embedding.word_embeddings.weight"))
    with pytest.raises(CatalogError, match="its parameters take 4128 elements, its buffer has 4672: it has several"):
        convert(source.request(tmp_path / "out"))


def test_a_wrong_crc_is_found(tmp_path: Path) -> None:
    for name in (DENSE, FLAT):
        source = megatron_source(name).copied(tmp_path / name)
        for path in source.iteration.glob("*/model_optim_rng.pt"):
            data = bytearray(path.read_bytes())
            data[len(data) // 2 - 400] ^= 1
            path.write_bytes(data)
        with pytest.raises(InputError, match="CRC-32|one content in"):
            convert(source.request(tmp_path / "out"))


def test_the_crc_of_a_gated_matrix_is_checked_with_the_bytes_that_are_read(tmp_path: Path) -> None:
    source = megatron_source(DENSE).copied(tmp_path / "ck")
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    catalog = open_source(SourceRequest(source=str(source.root)), TargetOutline(crc_later=True)).catalog
    [record, *_] = [record for record in catalog.records.values() if name in record.index.crcs]
    path = Path(record.location)
    data = bytearray(path.read_bytes())
    data[record.index.crcs[name].extent.offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(ReshardError, match=f"{re.escape(name)}.*CRC-32"):
        convert(source.request(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_an_empty_namespace_lists_what_it_lacks(tmp_path: Path) -> None:
    source = megatron_source(DENSE).copied(tmp_path / "ck")
    source.change(lambda root: root.update(args=PickledObject(Global("argparse", "Namespace"), (), Pairs())))
    with pytest.raises(InputError, match=r"tensor_model_parallel_size is missing\n.*pipeline_model_parallel_size is m"):
        open_source(SourceRequest(source=str(source.root)))

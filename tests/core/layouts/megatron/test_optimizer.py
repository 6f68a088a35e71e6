"""Optimizers of ranks get the names of weights, in each of the forms that Megatron-Core saves; others are refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError
from reshard.core.runtime.pickled import Global
from tests.support.checkpoints import Contents, read_safetensors
from tests.support.megatron_optimizers import add_distributed_optimizer, add_plain_optimizer
from tests.support.megatron_sources import OPTIMIZER_FILE, MegatronSource, Tree, megatron_source

CHUNKS, EXPERTS, GROUPED = "legacy_tp2_pp2_vpp2", "legacy_moe_tp2_ep2", "legacy_moe_tp2_ep2_grouped"
WHOLE_EXPERTS, LATENT, TIED = "legacy_moe_tp2_pp2_ep2_etp1", "legacy_mla_mtp_tp2_pp2", "legacy_tp2_pp2_tied"
CASES = (CHUNKS, EXPERTS, GROUPED, WHOLE_EXPERTS, LATENT, TIED, "legacy_pp2_uneven_bias")
EMBEDDING = "embedding.word_embeddings.weight"


def converted(source: MegatronSource, target: Path, **options: Any) -> Contents:
    convert(source.request(target, verify="content", **options))
    return read_safetensors(target / "model.safetensors")


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_distributed_optimizer_is_read(name: str, full: bool, tmp_path: Path) -> None:
    source = megatron_source(name).copied(tmp_path / "ck")
    want = add_distributed_optimizer(source, full=full)
    assert converted(source, tmp_path / "out") == want


@pytest.mark.parametrize("name", CASES)
def test_a_plain_optimizer_is_read(name: str, tmp_path: Path) -> None:
    source = megatron_source(name).copied(tmp_path / "ck")
    want = add_plain_optimizer(source)
    assert converted(source, tmp_path / "out") == want


def test_ranks_share_what_only_one_of_them_saves(tmp_path: Path) -> None:
    source = megatron_source(EXPERTS).copied(tmp_path / "ck")
    add_distributed_optimizer(source)
    sizes = [source.file(f"mp_rank_00_00{expert}", OPTIMIZER_FILE).stat().st_size for expert in (0, 1)]
    assert sizes[0] > 2 * sizes[1]


Change = Callable[[MegatronSource], object]


def model(change: Callable[[Tree], object]) -> Change:
    return lambda source: source.change(change)


def buffers(change: Callable[[Any], object]) -> Change:
    return lambda source: source.change(change, name=OPTIMIZER_FILE)


def without_first(tree: list[Any]) -> None:
    tree[0] = None


def without_second(tree: list[Any]) -> None:
    tree[1] = None


def another_dtype(tree: Tree) -> None:
    [buffer] = tree[0].values()
    tree[0][Global("torch", "float32"), Global("torch", "float32")] = buffer


def other_chunks(tree: Tree) -> None:
    tree[0], tree[1] = tree[1], tree[0]


def exchanged(tree: Tree, slot: str) -> None:
    [buffer] = tree[0].values()
    buffer["param"], buffer[slot] = buffer[slot], buffer["param"]


def as_of_one_optimizer(tree: Tree) -> None:
    tree["optimizer"] = tree["optimizer"][0]


def in_another_order(tree: Tree) -> None:
    tree["optimizer"].reverse()


def without_flags(tree: Tree) -> None:
    for group in tree["optimizer"][1]["optimizer"]["param_groups"]:
        group["is_expert_parallel"] = False


PLAIN: dict[str, tuple[str, Change, str]] = {
    "one for experts and all else": (
        EXPERTS,
        model(as_of_one_optimizer),
        "it has 1 optimizer, by its expert parallelism there are 2",
    ),
    "experts first": (EXPERTS, model(in_another_order), "a group of the optimizer is of experts"),
    "experts' groups": (EXPERTS, model(without_flags), "a group of the optimizer is not of experts"),
}
DISTRIBUTED: dict[str, tuple[str, Change, str]] = {
    "in no file": (
        EXPERTS,
        buffers(without_first),
        f"mp_rank_00_000/model_optim_rng.pt: the optimizer's states of {EMBEDDING!r} are in no file",
    ),
    "experts": (EXPERTS, buffers(without_second), "distrib_optim.pt: its buffers are not coalesced"),
    "one buffer": (
        CHUNKS,
        buffers(lambda tree: tree.pop(1)),
        "it has the buffers [0], for the chunks [0, 1] of the model",
    ),
    "other numbers": (
        CHUNKS,
        buffers(lambda tree: tree.update({2: tree.pop(1)})),
        "it has the buffers [0, 2], for the chunks [0, 1] of the model",
    ),
    "two dtypes": (CHUNKS, buffers(another_dtype), "a chunk of the model has not one buffer of one dtype"),
    "other chunks": (CHUNKS, buffers(other_chunks), "it has several buckets"),
}


def check_weights_alone(source: MegatronSource, want: Contents, directory: Path, message: str) -> None:
    """Check that the optimizer is refused, and that the weights are converted without it."""
    with pytest.raises(CatalogError, match=f"{re.escape(message)}.*weights-only"):
        convert(source.request(directory / "out"))
    weights = {name: each for name, each in want.items() if not name.startswith("optimizer.")}
    assert converted(source, directory / "out", select="weights-only") == weights


@pytest.mark.parametrize(("name", "change", "message"), PLAIN.values(), ids=PLAIN)
def test_plain_optimizers_that_are_refused(name: str, change: Change, message: str, tmp_path: Path) -> None:
    source = megatron_source(name).copied(tmp_path / "ck")
    want = add_plain_optimizer(source)
    change(source)
    check_weights_alone(source, want, tmp_path, message)


@pytest.mark.parametrize(("name", "change", "message"), DISTRIBUTED.values(), ids=DISTRIBUTED)
def test_distributed_optimizers_that_are_refused(name: str, change: Change, message: str, tmp_path: Path) -> None:
    source = megatron_source(name).copied(tmp_path / "ck")
    want = add_distributed_optimizer(source)
    change(source)
    check_weights_alone(source, want, tmp_path, message)


def test_a_plain_optimizer_of_float32_weights_is_refused(tmp_path: Path) -> None:
    source = megatron_source(CHUNKS).copied(tmp_path / "ck")
    want = add_plain_optimizer(source, full=True)
    message = f"{EMBEDDING!r} is float32, and has no master to prove whose the states are"
    check_weights_alone(source, want, tmp_path, message)


def test_masters_of_float32_weights_are_the_weights_bit_for_bit(tmp_path: Path) -> None:
    """What would round to the same weight in half precision is another."""
    source = megatron_source("legacy_tp1").copied(tmp_path / "ck")
    want = add_distributed_optimizer(source, full=True)
    source.change(lambda tree: exchanged(tree, "exp_avg"), name=OPTIMIZER_FILE)
    message = "what should be the optimizer's master of 'output_layer.weight' is not its value in the model"
    check_weights_alone(source, want, tmp_path, message)


def test_masters_of_experts_are_compared(tmp_path: Path) -> None:
    source = megatron_source(EXPERTS).copied(tmp_path / "ck")
    want = add_distributed_optimizer(source)
    source.change(lambda tree: exchanged(tree[1], "exp_avg_sq"), name=OPTIMIZER_FILE)
    message = (
        "what should be the optimizer's master of 'decoder.layers.1.mlp.experts.local_experts.1.linear_fc2.weight'"
    )
    check_weights_alone(source, want, tmp_path, message)

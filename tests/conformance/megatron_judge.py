"""Megatron-Core in processes of its own; `answering` calls its `OPERATIONS`.

Run by the Python of Megatron's environment. It knows nothing of reshard. A random model is made on one rank. What any
other rank of any other job holds of it is what Megatron's own distributed checkpoint gives that rank; no rule of
sharding is written here.
"""

import copy
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.enums import ModelType
from megatron.core.transformer.enums import AttnBackend
from megatron_models import Model, Parallel, Training, build, on_ranks, randomize, rng_state, whole
from safetensors.torch import save_file

ITERATION = 3
TRACKER = "latest_checkpointed_iteration.txt"
METADATA = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "distrib_optim_fully_reshardable_mem_efficient": False,
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}


def make(directory: str, model: Mapping[str, Any], seed: int) -> None:
    """Makes a random model on one rank: `want.safetensors`, and `one`, from which other ranks get it.

    Of the same seed, an optimizer of another kind has the same values.
    """
    place = Path(directory)
    place.mkdir(parents=True)
    # of several buckets, Megatron saves other moments than it has
    on_ranks(Parallel(), _make, replace(Model.of(model), bucket=None), place, seed)


def save(
    one: str,
    target: str,
    model: Mapping[str, Any],
    parallel: Mapping[str, Any],
    kind: str,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Have the ranks of a job load a model, and save it as iteration 3.

    Args:
        kind: "megatron" for files of ranks, or "torch_dist".
        metadata: how Megatron shards a distributed checkpoint, as far as not as `METADATA` says.
    """
    place = Path(target)
    on_ranks(Parallel(**parallel), _save, Model.of(model), Path(one), place, kind, {**METADATA, **(metadata or {})})
    (place / TRACKER).write_text(str(ITERATION))


def check(directory: str, one: str, model: Mapping[str, Any], parallel: Mapping[str, Any], kind: str) -> list[str]:
    """What a job with these settings has other than `one` after Megatron loaded a directory with a tracker."""
    made, job = Model.of(model), Parallel(**parallel)
    answers = on_ranks(job, _check_rank, made, Path(directory), Path(one), kind)
    return [f"rank {rank}: {problem}" for rank, problems in enumerate(answers) for problem in problems]


def logits(one: str, model: Mapping[str, Any], tokens: list[list[int]], target: str) -> None:
    """Saves what the model in `one` answers, as `logits`."""
    on_ranks(Parallel(), _logits, Model.of(model), Path(one), tokens, target)


OPERATIONS: Mapping[str, Callable[..., Any]] = {"make": make, "save": save, "check": check, "logits": logits}


def _make(parallel: Parallel, model: Model, place: Path, seed: int) -> None:
    training = build(model, parallel)
    randomize(training, seed, ITERATION)
    save_file({name: tensor.contiguous() for name, tensor in whole(training).items()}, place / "want.safetensors")
    _save_distributed(training, place / "one", METADATA)


def _save(parallel: Parallel, model: Model, one: Path, target: Path, kind: str, metadata: Mapping[str, Any]) -> None:
    training = build(model, parallel)
    _load_one(training, one)
    place = target / f"iter_{ITERATION:07d}"
    if kind == "megatron":
        _save_legacy(training, place)
    else:
        _save_distributed(training, place, metadata)


def _check_rank(parallel: Parallel, model: Model, source: Path, one: Path, kind: str) -> list[str]:
    expected, found = build(model, parallel), build(model, parallel)
    _load_one(expected, one)
    randomize(found, seed=10**9 + dist.get_rank(), step=1000)
    step = (source / TRACKER).read_text().strip()
    place = source / (step if step == "release" else f"iter_{int(step):07d}")
    if kind == "megatron":
        problems = _load_legacy(found, place)
    else:
        metadata = dist_checkpointing.load_content_metadata(str(place)) or METADATA
        problems = _load_distributed(found, place, metadata)
    return problems + _differences(expected, found)


def _differences(expected: Training, found: Training) -> list[str]:
    wanted: dict[str, torch.Tensor] = dict(expected.named())
    has: dict[str, torch.Tensor] = dict(found.named())
    wanted |= {f"{slot} of {name}": tensor for slot, name, tensor in expected.moments()}
    has |= {f"{slot} of {name}": tensor for slot, name, tensor in found.moments()}
    if wanted.keys() != has.keys():
        return [f"{sorted(wanted.keys() ^ has.keys())} are in one of both"]
    problems = [
        f"{name}: other values" for name, tensor in wanted.items() if not torch.equal(_bits(tensor), _bits(has[name]))
    ]
    if expected.optimizer is not None and _steps(expected) != _steps(found):
        problems.append(f"steps {_steps(found)}, not {_steps(expected)}")
    return problems


def _steps(training: Training) -> set[float]:
    return {
        float(state["step"])
        for each in training.optimizer.chained_optimizers
        for state in each.optimizer.state.values()
        if "step" in state
    }


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _chunk_names(training: Training) -> list[str]:
    return [f"model{number}" for number in range(len(training.chunks))] if training.parallel.vpp else ["model"]


# legacy files: what training's save_checkpoint and load_checkpoint do


def _legacy_directory(training: Training, place: Path) -> Path:
    parallel = training.parallel
    name = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}"
    if parallel.pp > 1:
        name += f"_{parallel_state.get_pipeline_model_parallel_rank():03d}"
    if parallel.ep > 1:
        name += f"_{parallel_state.get_expert_model_parallel_rank():03d}"
    return place / name


def _save_legacy(training: Training, place: Path) -> None:
    directory = _legacy_directory(training, place)
    directory.mkdir(parents=True, exist_ok=True)
    if training.model.optimizer == "distributed":
        training.optimizer.save_parameter_state(str(directory / "distrib_optim.pt"))
    if parallel_state.get_expert_data_parallel_rank() != 0:
        return
    args = _args(training)
    args.activation_func, args.device = torch.nn.functional.silu, torch.device("cpu")
    state: dict[str, Any] = {"args": args, "checkpoint_version": 3.0, "iteration": ITERATION}
    for name, chunk in zip(_chunk_names(training), training.chunks, strict=True):
        state[name] = chunk.state_dict_for_save_checkpoint()
    if training.optimizer is not None:
        state["optimizer"] = training.optimizer.state_dict()
    state |= {"opt_param_scheduler": _SCHEDULER, "rng_state": rng_state(), "rerun_state_machine": {"mode": "disabled"}}
    state["num_floating_point_operations_so_far"] = 0
    torch.save(state, directory / "model_optim_rng.pt")


def _load_legacy(training: Training, place: Path) -> list[str]:
    directory = _legacy_directory(training, place)
    state = torch.load(directory / "model_optim_rng.pt", map_location="cpu", weights_only=False)
    problems = _args_problems(training, state)
    for name, chunk in zip(_chunk_names(training), training.chunks, strict=True):
        chunk.load_state_dict(state[name], strict=True)
    if training.optimizer is not None:
        training.optimizer.load_state_dict(state["optimizer"])
        if training.model.optimizer == "distributed":
            with torch.no_grad():
                training.optimizer.load_parameter_state(str(directory / "distrib_optim.pt"))
    return problems


_SAME_ARGS = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "padded_vocab_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
)


def _args_problems(training: Training, state: Mapping[str, Any]) -> list[str]:
    """What training would refuse to load after a look at the arguments."""
    mine, problems = _args(training), []
    if state.get("checkpoint_version") != 3.0:
        problems.append(f"checkpoint_version {state.get('checkpoint_version')}")
    for name in _SAME_ARGS:
        found = getattr(state["args"], name, None)
        if found != getattr(mine, name):
            problems.append(f"args.{name} is {found}, not {getattr(mine, name)}")
    return problems


# distributed checkpoints


def _save_distributed(training: Training, place: Path, metadata: Mapping[str, Any]) -> None:
    if dist.get_rank() == 0:
        place.mkdir(parents=True)
    dist.barrier()
    state = _sharded(training, metadata, is_loading=False)
    state |= {
        "args": _args(training),
        "checkpoint_version": 3.0,
        "iteration": ITERATION,
        "opt_param_scheduler": _SCHEDULER,
        "num_floating_point_operations_so_far": 0,
        "rng_state": ShardedObject(
            "rng_state",
            rng_state(),
            (training.parallel.pp, training.parallel.tp),
            (parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()),
            replica_id=parallel_state.get_data_parallel_rank(),
        ),
    }
    dist_checkpointing.save(state, str(place), content_metadata=dict(metadata))


def _load_distributed(training: Training, place: Path, metadata: Mapping[str, Any]) -> list[str]:
    """Load a checkpoint; return what Megatron does not find in it, and what it does not ask for.

    Training asks for rng_state only if its job has the same sizes, and layers of Transformer Engine for more of
    _extra_state. By default it asks for nothing else to be there, and minds nothing that is too many.
    """
    wanted = _sharded(training, metadata, is_loading=True)
    state, unasked, absent = dist_checkpointing.load(wanted, str(place), strict="return_all")
    unasked = {key for key in unasked if key != "rng_state" and not key.endswith("._extra_state")}
    if absent or unasked:
        return [f"not there: {sorted(absent)}, too many: {sorted(unasked)}"]
    _take(training, state, state.get("optimizer"))
    return []


def _load_one(training: Training, one: Path) -> None:
    wanted = _sharded(training, METADATA, is_loading=True)
    state = dist_checkpointing.load(wanted, str(one), strict="raise_unexpected")
    _take(training, state, training.optimizer and _for_each_optimizer(training, state["optimizer"]))


def _take(training: Training, state: Mapping[str, Any], optimizer: Any) -> None:
    for name, chunk in zip(_chunk_names(training), training.chunks, strict=True):
        chunk.load_state_dict(state[name], strict=True)
    if training.optimizer is not None:
        training.optimizer.load_state_dict(optimizer)


def _sharded(training: Training, metadata: Mapping[str, Any], is_loading: bool) -> dict[str, Any]:
    given = dict(metadata)
    state: dict[str, Any] = {
        name: chunk.sharded_state_dict(metadata=dict(metadata))
        for name, chunk in zip(_chunk_names(training), training.chunks, strict=True)
    }
    if training.optimizer is not None:
        state["optimizer"] = training.optimizer.sharded_state_dict(state, is_loading=is_loading, metadata=given)
    return state


def _for_each_optimizer(training: Training, state: dict[Any, Any]) -> dict[Any, Any]:
    """What one optimizer saved for those of a job whose experts have one of their own: Megatron refuses it."""
    optimizers = training.optimizer.chained_optimizers
    if len(optimizers) == 1:
        return state
    common = {key: value for key, value in state.items() if not isinstance(key, int)}
    step = common.get("optimizer", common)["param_groups"][0].get("step")
    states = {}
    for number, optimizer in enumerate(optimizers):
        states[number] = _merged(copy.deepcopy(common), state[number])
        groups = optimizer.optimizer.state_dict()["param_groups"]
        inner = states[number].get("optimizer", states[number])  # that of float32 weights is not in another
        inner["param_groups"] = [group | ({"step": step} if step else {}) for group in groups]
    return states


def _merged(some: dict[Any, Any], more: Mapping[Any, Any]) -> dict[Any, Any]:
    for key, value in more.items():
        some[key] = _merged(some[key], value) if key in some and isinstance(value, dict) else value
    return some


_SCHEDULER = {
    "max_lr": 0.01,
    "lr_warmup_steps": 0,
    "num_steps": ITERATION,
    "lr_decay_style": "cosine",
    "lr_decay_steps": 10,
    "min_lr": 0.0,
    "start_wd": 0.01,
    "end_wd": 0.01,
    "wd_incr_style": "constant",
    "wd_incr_steps": 10,
}


def _args(training: Training) -> Namespace:
    """What training's arguments say, as far as it matters to who reads a checkpoint."""
    model, parallel = training.model, training.parallel
    return Namespace(
        tensor_model_parallel_size=parallel.tp,
        pipeline_model_parallel_size=parallel.pp,
        virtual_pipeline_model_parallel_size=parallel.vpp,
        num_layers_per_virtual_pipeline_stage=_per_virtual_stage(model, parallel),
        expert_model_parallel_size=parallel.ep,
        expert_tensor_parallel_size=parallel.etp or parallel.tp,
        decoder_first_pipeline_num_layers=parallel.first,
        decoder_last_pipeline_num_layers=parallel.last,
        num_layers=model.layers,
        hidden_size=model.hidden,
        ffn_hidden_size=model.ffn,
        num_attention_heads=model.heads,
        group_query_attention=model.groups != model.heads,
        num_query_groups=model.groups,
        kv_channels=model.head_dim or model.hidden // model.heads,
        num_experts=model.experts,
        moe_ffn_hidden_size=model.moe_ffn,
        moe_grouped_gemm=model.grouped,
        moe_layer_freq=list(model.freq) if model.freq else 1,
        moe_shared_expert_intermediate_size=model.shared,
        mtp_num_layers=model.mtp,
        padded_vocab_size=model.vocab,
        make_vocab_size_divisible_by=1,
        untie_embeddings_and_output_weights=not model.tied,
        swiglu=model.gated,
        add_bias_linear=model.bias,
        add_qkv_bias=model.qkv_bias,
        qk_layernorm=model.qk_norm,
        multi_latent_attention=model.mla is not None,
        normalization="RMSNorm",
        position_embedding_type="rope",
        transformer_impl="local",
        bf16=model.dtype == "bfloat16",
        fp16=False,
        params_dtype=getattr(torch, model.dtype),
        attention_backend=AttnBackend.auto,
        model_type=ModelType.encoder_or_decoder,
        use_distributed_optimizer=model.optimizer == "distributed",
        optimizer="adam",
        world_size=parallel.world,
        data_parallel_size=parallel.dp,
        ckpt_format="torch",
        iteration=ITERATION,
    )


def _per_virtual_stage(model: Model, parallel: Parallel) -> int | None:
    return model.layers // parallel.pp // parallel.vpp if parallel.vpp else None


def _logits(parallel: Parallel, model: Model, one: Path, tokens: list[list[int]], target: str) -> None:
    training = build(model, parallel)
    _load_one(training, one)
    given = torch.tensor(tokens)
    length = given.shape[1]
    positions = torch.arange(length).expand_as(given)
    mask = torch.triu(torch.ones(1, 1, length, length, dtype=torch.bool), diagonal=1)
    [chunk] = training.chunks
    with torch.no_grad():
        save_file({"logits": chunk.eval()(given, positions, mask).contiguous()}, target)

"""Tiny models of Megatron-Core on CPU ranks, for `megatron_judge`; run by the Python of Megatron's environment.

Megatron-Core 0.16.1 wants CUDA and Transformer Engine in some places that have nothing to do with checkpoints; what
they are given here instead is in `OnCpu` and `patch`.
"""

import contextlib
import os
import queue
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"

import gloo_ranks
import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.fusions.fused_bias_geglu import quick_gelu
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.tensor_parallel import random as parallel_random
from megatron.core.transformer import MLATransformerConfig, TransformerConfig, multi_latent_attention
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import grouped_gemm_util, moe_utils
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Model:
    """What a model is, however many ranks hold it.

    Attributes:
        vocab: rows of the embedding.
        tied: the head is the embedding.
        bias: every linear layer has one; `qkv_bias`: that of attention alone.
        freq: for each layer, 1 if it has experts.
        grouped: experts are weight1 and weight2.
        optimizer: "plain", "distributed" or none.
        bucket: parameters of a bucket of the distributed optimizer; None: one bucket.
        sinks: attention has a learned sink for each head, and the activation is gpt-oss's.
        rotary: the part of a head that is rotated.
    """

    layers: int = 2
    hidden: int = 32
    heads: int = 4
    groups: int = 2
    ffn: int = 32
    head_dim: int | None = 8
    vocab: int = 32
    dtype: str = "bfloat16"
    qk_norm: bool = True
    tied: bool = False
    bias: bool = False
    qkv_bias: bool = False
    gated: bool = True
    experts: int | None = None
    moe_ffn: int | None = None
    expert_bias: bool = False
    shared: int | None = None
    freq: tuple[int, ...] | None = None
    grouped: bool = False
    mtp: int | None = None
    mla: Mapping[str, int] | None = None
    optimizer: str | None = None
    bucket: int | None = None
    top_k: int = 2
    sinks: bool = False
    rotary: float = 1.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the one that JSON describes; what it does not name has its default."""
        fields_given: dict[str, Any] = dict(given)
        if fields_given.get("freq"):
            fields_given["freq"] = tuple(fields_given["freq"])
        return cls(**fields_given)


@dataclass(frozen=True)
class Parallel:
    """How ranks hold a model: sizes of tensor, pipeline, virtual pipeline, expert, expert tensor and data parallelism.

    Attributes:
        first, last: layers of the first and of the last stage, if they are given.
    """

    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    ep: int = 1
    etp: int | None = None
    dp: int = 1
    first: int | None = None
    last: int | None = None

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Gives CPU tensors to who asks for CUDA, and names them as Megatron's optimizers want to see them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if str(given.get("device")).startswith("cuda"):
            given["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        answer = func(*args, **given)
        if func is torch.Tensor.type and len(args) == 1 and not given:
            return answer.replace("torch.", "torch.cuda.", 1)
        return answer


class _NoTracker:
    """The generators of random numbers of tensor parallel ranks: without dropout nobody asks for their numbers."""

    def is_initialized(self) -> bool:
        return True

    def fork(self, *_: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def patch() -> None:
    """Replaces what needs a GPU or grouped_gemm, and what 0.16.1 cannot do without Transformer Engine."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: "cpu"
    cuda.synchronize = lambda *_: None
    cuda.Stream = lambda *_, **__: None
    # another process would have to import all of Megatron before it could hold the results
    results: queue.Queue[Any] = queue.Queue()
    filesystem_async._get_write_results_queue = lambda: results
    filesystem_async._process_memory = lambda: 0  # which psutil would tell
    grouped_gemm_util.assert_grouped_gemm_is_available = lambda: None
    multi_latent_attention.HAVE_TE = False
    moe_utils.te_general_gemm = None
    _patch_attention()
    _patch_step()
    tracker = _NoTracker()
    parallel_random.get_cuda_rng_tracker = lambda *_, **__: tracker
    parallel_random._CUDA_RNG_STATE_TRACKER = tracker
    parallel_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


def _patch_attention() -> None:
    """MLA gives widths to attention that only Transformer Engine's takes."""
    init = DotProductAttention.__init__

    def initialize(self: Any, *args: Any, k_channels: int = 0, v_channels: int = 0, **given: Any) -> None:
        init(self, *args, **given)

    DotProductAttention.__init__ = initialize


def _patch_step() -> None:
    """Loading overwrites torch's `step`, which is in param_groups, by what the parameter's state has of it: nothing."""
    overwrite = DistributedOptimizer._set_main_param_and_optimizer_states

    def set_states(self: Any, parameter: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> None:
        group, place = self.model_param_group_index_map[parameter]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][place]]
        overwrite(self, parameter, {"step": state["step"], **tensors})

    DistributedOptimizer._set_main_param_and_optimizer_states = set_states


def on_ranks(parallel: Parallel, task: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a task comes to on each rank of a job."""
    return gloo_ranks.on_ranks(parallel.world, _in_job, parallel, task, arguments)


def _in_job(parallel: Parallel, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    patch()
    parallel_state.initialize_model_parallel(
        parallel.tp,
        parallel.pp,
        parallel.vpp,
        expert_model_parallel_size=parallel.ep,
        expert_tensor_parallel_size=parallel.etp,
        create_gloo_process_groups=True,
    )
    with OnCpu():
        return task(parallel, *arguments)


@dataclass(frozen=True)
class Training:
    """A rank's model and optimizer.

    Attributes:
        chunks: GPTModels; more than one if the pipeline is virtual.
    """

    model: Model
    parallel: Parallel
    chunks: list[Any]
    optimizer: Any

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters and buffers with their names on this rank."""
        for number, chunk in enumerate(self.chunks):
            prefix = f"{number}:" if len(self.chunks) > 1 else ""
            for name, tensor in [*chunk.named_parameters(), *chunk.named_buffers()]:
                if name.endswith(".local_tokens_per_expert"):
                    continue
                yield prefix + name, tensor

    def moments(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Slots of the optimizer's state, names and what of them this rank has."""
        if self.optimizer is None:
            return
        for name, parameter in self.named():
            for slot, tensor in self._state(parameter):
                if slot != "step":
                    yield slot, name, tensor

    def _state(self, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        for each in self.optimizer.chained_optimizers:
            if isinstance(each, DistributedOptimizer):
                if parameter in each.model_param_group_index_map:
                    yield from each._get_main_param_and_optimizer_states(parameter).items()
            else:
                main = getattr(parameter, "main_param", parameter)
                if main in each.optimizer.state:
                    if main is not parameter:
                        yield "param", main
                    yield from each.optimizer.state[main].items()


def build(model: Model, parallel: Parallel) -> Training:
    """This rank's model with any weights, and its optimizer, as Megatron-LM's training makes them."""
    chunks = []
    for stage in range(parallel.vpp or 1):
        chunk = _gpt(model, parallel, stage if parallel.vpp else None)
        chunks.append(chunk)
    if model.optimizer is None:
        dtype = getattr(torch, model.dtype)
        wrapped = [chunk if dtype == torch.float32 else Float16Module(chunk.config, chunk) for chunk in chunks]
        return Training(model, parallel, [getattr(each, "module", each) for each in wrapped], None)
    return Training(model, parallel, chunks, _optimizer(model, chunks))


def _optimizer(model: Model, chunks: list[Any]) -> Any:
    half = model.dtype == "bfloat16"
    is_distributed = model.optimizer == "distributed"
    given = DistributedDataParallelConfig(
        use_distributed_optimizer=is_distributed,
        grad_reduce_in_fp32=half,
        overlap_grad_reduce=model.bucket is not None,
        bucket_size=model.bucket,
    )
    wrapped = [
        DistributedDataParallel(
            chunk.config, given, Float16Module(chunk.config, chunk) if half else chunk, disable_bucketing=number > 0
        )
        for number, chunk in enumerate(chunks)
    ]
    settings = OptimizerConfig(
        optimizer="adam",
        lr=0.01,
        weight_decay=0.01,
        bf16=half,
        params_dtype=getattr(torch, model.dtype),
        use_distributed_optimizer=is_distributed,
    )
    optimizer = get_megatron_optimizer(settings, wrapped)
    for each in optimizer.chained_optimizers:
        for group in each.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        each.optimizer.step()
        for group in each.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
    return optimizer


def _gpt(model: Model, parallel: Parallel, stage: int | None) -> GPTModel:
    config = transformer_config(model, parallel)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=stage)
    mtp = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False, vp_stage=stage) if model.mtp else None
    return GPTModel(
        config,
        spec,
        vocab_size=model.vocab,
        max_sequence_length=64,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        share_embeddings_and_output_weights=model.tied,
        position_embedding_type="rope",
        rotary_base=10000,
        rotary_percent=model.rotary,
        mtp_block_spec=mtp,
        vp_stage=stage,
    )


def transformer_config(model: Model, parallel: Parallel) -> TransformerConfig:
    """Megatron's own description of both."""
    dtype = getattr(torch, model.dtype)
    given: dict[str, Any] = {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_query_groups": model.groups,
        "ffn_hidden_size": model.ffn,
        "kv_channels": model.head_dim,
        "normalization": "RMSNorm",
        "layernorm_epsilon": 1e-6,
        "gated_linear_unit": model.gated,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": model.bias,
        "add_qkv_bias": model.qkv_bias,
        "qk_layernorm": model.qk_norm,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
        "tensor_model_parallel_size": parallel.tp,
        "pipeline_model_parallel_size": parallel.pp,
        "virtual_pipeline_model_parallel_size": parallel.vpp,
        "expert_model_parallel_size": parallel.ep,
        "expert_tensor_parallel_size": parallel.etp,
        "num_layers_in_first_pipeline_stage": parallel.first,
        "num_layers_in_last_pipeline_stage": parallel.last,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "use_cpu_initialization": True,
        "mtp_num_layers": model.mtp,
    }
    if model.experts:
        given |= {
            "num_moe_experts": model.experts,
            "moe_ffn_hidden_size": model.moe_ffn,
            "moe_router_topk": model.top_k,
            "moe_router_enable_expert_bias": model.expert_bias,
            "moe_router_score_function": "sigmoid" if model.expert_bias else "softmax",
            "moe_router_load_balancing_type": "none",
            "moe_shared_expert_intermediate_size": model.shared,
            "moe_layer_freq": list(model.freq) if model.freq else 1,
            "moe_grouped_gemm": model.grouped,
            "moe_use_legacy_grouped_gemm": model.grouped,
            "moe_token_dispatcher_type": "allgather",
            "add_bias_linear": model.bias and not model.grouped,
        }
    if model.sinks:
        given |= {
            "softmax_type": "learnable",
            "activation_func": quick_gelu,
            "activation_func_clamp_value": 7.0,
            "glu_linear_offset": 1.0,
        }
    if model.mla is None:
        return TransformerConfig(**given)
    del given["kv_channels"]
    given |= {
        "q_lora_rank": model.mla["q"],
        "kv_lora_rank": model.mla["kv"],
        "qk_head_dim": model.mla["nope"],
        "qk_pos_emb_head_dim": model.mla["rope"],
        "v_head_dim": model.mla["v"],
        "rope_type": "rope",
        "multi_latent_attention": True,
    }
    return MLATransformerConfig(**given)


def randomize(training: Training, seed: int, step: int) -> None:
    """Gives each weight and each moment values of its own."""

    def draw(tensor: torch.Tensor, name: str) -> torch.Tensor:
        # by its name, so that other optimizers have the same
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        return torch.randn(tensor.shape, generator=generator) * 0.2

    with torch.no_grad():
        for name, tensor in training.named():
            tensor.copy_(draw(tensor, name) + ("norm" in name))
        for slot, name, tensor in training.moments():
            if slot != "param" or training.model.dtype != "float32":  # the weights themselves
                value = draw(tensor, f"{slot} {name}")
                tensor.copy_(value.square() if slot == "exp_avg_sq" else value)
        if training.optimizer is not None:
            for each in training.optimizer.chained_optimizers:
                for state in each.optimizer.state.values():
                    state["step"].fill_(step)
                if hasattr(each, "_copy_main_params_to_model_params"):
                    each._copy_main_params_to_model_params()
                if isinstance(each, DistributedOptimizer):
                    for chunk in each.model_chunks:
                        chunk.start_param_sync(force_sync=True)


def whole(training: Training) -> dict[str, torch.Tensor]:
    """What one rank holds, by the names of its state."""
    state = {name: tensor for name, tensor in training.chunks[0].state_dict().items() if tensor is not None}
    found = {name: tensor.detach().clone() for name, tensor in state.items() if not name.endswith("_extra_state")}
    named = dict(training.named())
    for slot, name, tensor in training.moments():
        found[f"optimizer.state.{slot}.{name}"] = tensor.detach().reshape(named[name].shape).clone()
    return found


def rng_state() -> list[dict[str, Any]]:
    """As training saves it."""
    return [
        {
            "random_rng_state": random.getstate(),
            "np_rng_state": np.random.get_state(),
            "torch_rng_state": torch.get_rng_state(),
            "cuda_rng_state": torch.get_rng_state(),
            "rng_tracker_states": {"model-parallel-rng": torch.get_rng_state()},
        }
    ]

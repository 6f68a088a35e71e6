"""A gated delta net by transformers, and by Megatron-Core: each answers the same random input with its own weights.

Run by the Python of torch's environment, or of Megatron-Core's; it knows nothing of reshard. Megatron-Core's layer has
Transformer Engine's around it, which no CPU runs: a plain matrix, and a norm with a zero-centered weight, stand for
these. What splits, convolves and gates is its own.
"""

import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import silu

HIDDEN, KEYS, VALUES, OF_KEY, OF_VALUE, KERNEL = 24, 2, 6, 8, 4, 4
_EPSILON = 1e-6
_HF, _OURS = "model.layers.0.linear_attn.", "decoder.layers.0.self_attention."


def make_and_answer(directory: str) -> None:
    """Makes a layer of Qwen3-Next, and saves its weights, an input and its answer."""
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    torch.manual_seed(1)
    config = Qwen3NextConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=KEYS,
        linear_num_value_heads=VALUES,
        linear_key_head_dim=OF_KEY,
        linear_value_head_dim=OF_VALUE,
        linear_conv_kernel_dim=KERNEL,
        rms_norm_eps=_EPSILON,
    )
    layer = Qwen3NextGatedDeltaNet(config, 0).float()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        given = torch.randn(1, 10, HIDDEN)
        answer = layer(given)
    weights = {f"{_HF}{name}": value.detach() for name, value in layer.named_parameters()}
    save_file(weights, f"{directory}/model.safetensors")
    save_file({"given": given, "answer": answer}, f"{directory}/answer.st")


class _Matrix(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, columns: int, rows: int, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(rows, columns))

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, None]:
        return values @ self.weight.T, None


class _ZeroCenteredNorm(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, hidden_size: int, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden_size))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (1 + self.weight) * values * torch.rsqrt(values.square().mean(-1, keepdim=True) + _EPSILON)


def differences(directory: str, *files: str) -> None:
    """Prints how much the answer of Megatron-Core's layer, with the weights of each file, differs at most."""
    import megatron.core.ssm.gated_delta_net as code

    def normalized(values: torch.Tensor) -> torch.Tensor:
        return values * torch.rsqrt(values.square().sum(-1, keepdim=True) + _EPSILON)

    def built(kind: Any, *arguments: Any, **fields: Any) -> Any:
        return kind(*arguments, **fields)

    code.HAVE_FLA, code.l2norm, code.build_module = True, normalized, built
    code.MegatronModule.__init__ = lambda self, config: torch.nn.Module.__init__(self)
    torch.cuda.current_device = lambda: "cpu"
    config = SimpleNamespace(
        sequence_parallel=False,
        hidden_size=HIDDEN,
        activation_func=silu,
        linear_conv_kernel_dim=KERNEL,
        linear_key_head_dim=OF_KEY,
        linear_value_head_dim=OF_VALUE,
        linear_num_key_heads=KEYS,
        linear_num_value_heads=VALUES,
        fp8=None,
        init_method=None,
        output_layer_init_method=None,
        params_dtype=torch.float32,
        layernorm_epsilon=_EPSILON,
        perform_initialization=False,
        deterministic_mode=True,
    )
    parts = code.GatedDeltaNetSubmodules(in_proj=_Matrix, out_norm=_ZeroCenteredNorm, out_proj=_Matrix)
    group = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1))
    layer = code.GatedDeltaNet(config, parts, layer_number=1, pg_collection=group)
    asked = load_file(f"{directory}/answer.st")
    for file in files:
        layer.load_state_dict({name.removeprefix(_OURS): value for name, value in load_file(file).items()})
        with torch.no_grad():
            answer, _ = layer(asked["given"].transpose(0, 1).contiguous(), None)
        largest = (answer.transpose(0, 1) - asked["answer"]).abs().max().item()
        sys.stdout.write(f"{largest}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    make_and_answer(sys.argv[1]) if len(sys.argv) == 2 else differences(*sys.argv[1:])

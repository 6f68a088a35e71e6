"""Which parameters of a Hugging Face directory are quantized to block-fp8, and what becomes of them.

They are those of the fp8 directories of DeepSeek and Qwen: linear layers of attention, MLPs and experts; not
embeddings, head, norms, routers, biases, nor what joins layers for multi-token prediction to the model.
"""

import re
from collections.abc import Sequence
from typing import Any

from reshard.core.errors import LayoutError
from reshard.core.plan.making import Making
from reshard.core.plan.operations import Composed, Operation
from reshard.core.tensor.dtypes import BLOCK_SCALED_NAME, DType, dtype_from_name, foreign_dtype
from reshard.core.tensor.quantized import FP8_BLOCK, Quantized
from reshard.core.tensor.segments import Pieces
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option

SCALE_ENDING = "_scale_inv"
"""After the name of a weight of 8 bits: that of its blocks' scales."""
_WEIGHT = ".weight"
_HEAD = "lm_head"
"""Loaders tie it to the embedding if it is not there, and would else expect it in 8 bits."""
_FLOAT8 = foreign_dtype(BLOCK_SCALED_NAME, 1, 1)
_SCALES = dtype_from_name("Float32")
_LINEAR = re.compile(
    r"(model\.|language_model\.)*layers\.\d+\.(.+\.)?"
    r"((?!eh_|weights_)\w+_proj(_with_mqa)?|in_proj_(qkvz?|z)|experts\.\d+\.w[123]|indexer\.(wq_b|wk))\.weight"
)


class Quantize(Operation):
    """A matrix whose blocks are quantized: its values, or with `makes_scales` their scales."""

    verb = "quantized"
    makes_scales: bool

    def apply(self, inputs: Sequence[Composed]) -> tuple[Pieces, Shape]:  # noqa: D102
        [part] = inputs
        if len(part.shape) != 2:
            raise LayoutError(
                f"{self.rule}: {part.name!r} has shape {list(part.shape)}, and only matrices are quantized: write "
                f"experts one by one, {option('dialect', 'hub')}"
            )
        return part.pieces, part.shape


def is_linear(name: str) -> bool:
    """True for the weight of a linear layer that fp8 directories have in 8 bits."""
    return _LINEAR.fullmatch(name) is not None


def quantized_makings(name: str, making: Making) -> dict[str, Making]:
    """Return what is made of a matrix that is to be quantized, by names."""
    rule = f"the quantization of {name!r}"
    return {
        name: making.made(making.name, Quantize(rule, makes_scales=False)),
        f"{name}{SCALE_ENDING}": making.made(f"{making.name}{SCALE_ENDING}", Quantize(rule, makes_scales=True)),
    }


def quantized_as(operation: Operation | None, name: str, dtype: DType, shape: Shape) -> Quantized | None:
    """Return what an operation makes of a matrix of the target's parameter `name`; None if it does not quantize.

    Raises:
        LayoutError: the matrix is not of floating-point values that can be quantized.
    """
    if not isinstance(operation, Quantize):
        return None
    if not dtype.is_float:
        raise LayoutError(f"{operation.rule}: its dtype is {dtype}, and only wider floating-point values can be")
    weight = name.removesuffix(SCALE_ENDING) if operation.makes_scales else name
    return Quantized(weight, operation.makes_scales, dtype, shape, FP8_BLOCK)


def written_as(quantized: Quantized) -> tuple[DType, Shape]:
    """Return element type and shape of what is made of a matrix."""
    return (_SCALES, quantized.scale_shape) if quantized.makes_scales else (_FLOAT8, quantized.shape)


def quantization_config(others: Sequence[str]) -> dict[str, Any]:
    """Return the `quantization_config` of config.json; `others` are the matrices that are not quantized."""
    modules = [name.removesuffix(_WEIGHT) for name in others if name.endswith(_WEIGHT)]
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "weight_block_size": [*FP8_BLOCK],
        "activation_scheme": "dynamic",
        "modules_to_not_convert": [*dict.fromkeys((*modules, _HEAD))],
    }

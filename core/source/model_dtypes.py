"""Checks the dtypes of a model directory's weights, and the scales of those of 8 bits, by its config.json."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reshard.core.changes.model_config import text_field
from reshard.core.files.model import TensorEntry
from reshard.core.runtime.wording import counted, listed
from reshard.core.source.findings import Finding, Severity, quoted_names
from reshard.core.tensor.dtypes import torch_name

DTYPES, SHAPES = "dtypes", "shapes"
"""Names of checks."""
BLOCK_FP8 = "fp8"
"""The method of quantization in which blocks of a weight of 8 bits share a scale."""
_SCALE = "_scale_inv"


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what config.json says of quantization; nothing if it says nothing."""
    found = config.get("quantization_config")
    return found if isinstance(found, dict) else {}


def is_scale(name: str, entries: Mapping[str, TensorEntry]) -> bool:
    """True for the scales of a weight of 8 bits."""
    weight = entries.get(name.removesuffix(_SCALE))
    return name.endswith(_SCALE) and weight is not None and weight.dtype.is_float8


def dtype_findings(config: Mapping[str, Any], entries: Mapping[str, TensorEntry]) -> Iterator[Finding]:
    """Compare the weights' dtypes with the one that config.json says."""
    sizes: Counter[str] = Counter()
    for entry in entries.values():
        if entry.dtype.is_float:
            sizes[torch_name(entry.dtype) or entry.dtype.name] += math.prod(entry.shape)
    said = text_field(config, "dtype") or text_field(config, "torch_dtype")
    if sizes and said and said not in sizes:
        yield Finding(
            check=DTYPES,
            severity=Severity.NOTE,
            found=f"config.json says {said}, the weights are {', '.join(sizes)}",
            means="loaders cast them to the dtype in config.json, which takes time and may lose precision",
            advice=f"cast the weights during the export, or set the dtype in config.json to {next(iter(sizes))}",
        )


def scale_findings(config: Mapping[str, Any], entries: Mapping[str, TensorEntry]) -> Iterator[Finding]:
    """Check block-fp8: every weight of 8 bits has its scales, of the right shape, and config.json says so."""
    quantization = quantization_of(config)
    scaled = {name: entry for name, entry in entries.items() if entry.dtype.is_float8 and not name.endswith(_SCALE)}
    if scaled and not quantization:
        yield Finding(
            check=DTYPES,
            found=f"{counted(len(scaled), '8-bit weight')}, but config.json has no quantization_config: "
            f"{quoted_names(list(scaled))}",
            means="loaders use the weights without their scales",
            advice="copy the quantization_config from the original model",
        )
    if quantization.get("quant_method") != BLOCK_FP8:
        return
    if not scaled:
        yield Finding(
            check=DTYPES,
            found="config.json has a quantization_config for fp8, but there are no 8-bit weights",
            means="the weights were dequantized without changing config.json: loaders look for scales",
            advice="remove quantization_config from config.json",
        )
    yield from _block_findings(entries, scaled, quantization.get("weight_block_size"))


def _block_findings(
    entries: Mapping[str, TensorEntry], scaled: Mapping[str, TensorEntry], block: object
) -> Iterator[Finding]:
    missing = [name for name in scaled if f"{name}{_SCALE}" not in entries]
    orphans = [name for name in entries if name.endswith(_SCALE) and name.removesuffix(_SCALE) not in scaled]
    for names, text in ((missing, "weights without scales"), (orphans, "scales of weights that are not 8-bit")):
        if names:
            yield Finding(
                check=DTYPES,
                found=f"{text}: {quoted_names(names)}",
                means="the weights were exported without their scales, or only some were dequantized",
                advice="export them again",
            )
    if not isinstance(block, list) or not all(type(each) is int and each > 0 for each in block):
        return
    wrong = _wrong_scales(entries, scaled, block)
    if wrong:
        yield Finding(
            check=SHAPES,
            found=f"scale shapes do not match weight_block_size {block}: {listed(wrong, separator='; ')}",
            means="the scales belong to other weights or to another block size",
            advice="export them again",
        )


def _wrong_scales(
    entries: Mapping[str, TensorEntry], scaled: Mapping[str, TensorEntry], block: Sequence[int]
) -> list[str]:
    wrong = []
    for name, entry in scaled.items():
        scale = entries.get(f"{name}{_SCALE}")
        if scale is None or len(entry.shape) != len(block):
            continue
        wanted = tuple(-(-length // size) for length, size in zip(entry.shape, block, strict=True))
        if scale.shape != wanted:
            wrong.append(f"{name + _SCALE!r} is {list(scale.shape)}, not {list(wanted)}")
    return wrong

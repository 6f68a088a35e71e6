"""Random descriptions of the models that `tiny_models` builds."""

import random
from typing import Any

_ROWS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 37)
_BUFFERS = ("float32", "bfloat16", "int64", "int32", "bool")


def describe_model(draw: random.Random, dtypes: tuple[str, ...], may_freeze: bool = True) -> dict[str, Any]:
    """Return a model whose layers have a dtype each, of these; its root is not frozen."""
    dtype = draw.choice(dtypes)
    parameters = {"embed.weight": _parameter((draw.choice(_ROWS), draw.choice(_ROWS)), dtype)}
    if draw.random() < 0.5:
        parameters["tiny"] = _parameter((draw.choice((1, 2)),), dtype)
    buffers = {}
    for number in range(draw.randint(1, 3)):
        prefix = f"layers.{number}"
        parameters |= _layer(draw, prefix, draw.choice(dtypes), may_freeze)
        if draw.random() < 0.4:
            buffers[f"{prefix}.mask"] = _buffer(draw)
    if draw.random() < 0.5:
        buffers["seen"] = _buffer(draw)
    tied = {"head.weight": "embed.weight"} if draw.random() < 0.4 else {}
    return {"parameters": parameters, "buffers": buffers, "tied": tied}


def _layer(draw: random.Random, prefix: str, dtype: str, may_freeze: bool) -> dict[str, dict[str, Any]]:
    hidden = draw.choice(_ROWS)
    shapes: dict[str, tuple[int, ...]] = {
        "attention.weight": (draw.choice(_ROWS), hidden),
        "down.weight": (hidden, draw.choice(_ROWS)),
        "norm.weight": (draw.choice(_ROWS),),
        "experts": (draw.choice(_ROWS), draw.choice((1, 2, 4)), 3),
    }
    kept = [name for name in shapes if draw.random() < 0.75] or ["down.weight"]
    return {f"{prefix}.{name}": _parameter(shapes[name], dtype, may_freeze and draw.random() < 0.15) for name in kept}


def _parameter(shape: tuple[int, ...], dtype: str, frozen: bool = False) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype, "frozen": frozen}


def _buffer(draw: random.Random) -> dict[str, Any]:
    return {"shape": draw.choice(([], [3], [2, 2])), "dtype": draw.choice(_BUFFERS)}

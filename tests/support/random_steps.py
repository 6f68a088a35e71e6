"""Random steps, and what they make of a small mixture of experts, with numpy alone."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from reshard.core.changes.changes import Changes
from tests.support.composing import join_arrays

LAYERS, EXPERTS = 2, 24
"""More than ten experts: in the order of texts 10 would follow 1."""
SHAPES = {
    **{
        f"layers.{layer}.experts.{e}.{name}": (24, 24)
        for layer in range(LAYERS)
        for e in range(EXPERTS)
        for name in "gu"
    },
    **{f"layers.{layer}.experts.{e}.d": (24, 48) for layer in range(LAYERS) for e in range(EXPERTS)},
    **{
        f"layers.{layer}.{name}": (24 * rows, 24)
        for layer in range(LAYERS)
        for name, rows in (("q", 4), ("k", 2), ("v", 2))
    },
    "mtp.0.proj": (24, 24),
    "embed": (48, 24),
    "norm": (24,),
}
"""All axes are multiples of 24, before and after the steps, and so divide by all random layouts."""
Arrays = dict[str, np.ndarray]


class Steps:
    """Steps, and the arrays that they leave."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays: Arrays = dict(arrays)
        self.document: list[dict[str, dict[str, Any]]] = []

    def add(self, kind: str, **fields: Any) -> None:
        self.document.append({kind: fields})

    def moved(self, old: str, new: str) -> None:
        self.arrays[new] = self.arrays.pop(old)

    def each(self, suffix: str) -> list[str]:
        return [name for name in self.arrays if name.startswith("layers.") and name.endswith(suffix)]


@st.composite
def random_steps(draw: st.DrawFn, wholes: Mapping[str, np.ndarray]) -> tuple[Changes, Arrays]:
    """Random steps, all of which have an inverse, and what they make of whole tensors."""
    steps = Steps(wholes)
    if draw(st.booleans()):
        steps.add("rename", parameters="mtp.{i}.{x:*}", to="layers.{N+i}.{x}")
        steps.moved("mtp.0.proj", f"layers.{LAYERS}.proj")
    if draw(st.booleans()):
        _join_attention(draw, steps)
    if draw(st.booleans()):
        _experts(draw, steps)
    if draw(st.booleans()):
        # every other row, and back
        groups = draw(st.sampled_from([2, 24]))
        steps.add("split", parameters="embed", into=["even", "odd"], groups="N*12" if groups == 24 else 2)
        steps.add("join", parameters=["odd", "even"], into="turned", groups=2)
        runs = [np.split(run, 2) for run in np.split(steps.arrays.pop("embed"), groups)]
        even, odd = (np.concatenate([run[number] for run in runs]) for number in range(2))
        steps.arrays["turned"] = join_arrays([odd, even], 0, 2)
    elif draw(st.booleans()):
        steps.add("repeat", parameters="embed", to="copies.{i}.embed", count=2)
        for number in range(2):
            steps.arrays[f"copies.{number}.embed"] = steps.arrays["embed"]
    variables = {"N": LAYERS, "E": EXPERTS}
    return Changes.model_validate({"variables": variables, "steps": steps.document}), steps.arrays


def _join_attention(draw: st.DrawFn, steps: Steps) -> None:
    groups = draw(st.sampled_from([1, 2, 12]))
    steps.add(
        "join",
        parameters=[f"layers.{{L}}.{name}" for name in "qkv"],
        into="layers.{L}.qkv",
        parts=["N", 1, 1],
        groups=groups,
    )
    for layer in range(LAYERS):
        parts = [steps.arrays.pop(f"layers.{layer}.{name}") for name in "qkv"]
        steps.arrays[f"layers.{layer}.qkv"] = join_arrays(parts, 0, groups)


def _experts(draw: st.DrawFn, steps: Steps) -> None:
    axis, groups = draw(st.integers(0, 1)), draw(st.sampled_from([1, 2, 24]))
    experts = "layers.{L}.experts.{e}."
    steps.add("join", parameters=[experts + "g", experts + "u"], into=experts + "gu", axis=axis, groups=groups)
    for gate in steps.each(".g"):
        both = [steps.arrays.pop(gate), steps.arrays.pop(gate[:-1] + "u")]
        steps.arrays[gate[:-1] + "gu"] = join_arrays(both, axis, groups)
    for name in ("gu", "d"):
        if draw(st.booleans()):
            steps.add("transpose", parameters=experts + name)
            for each in steps.each("." + name):
                steps.arrays[each] = steps.arrays[each].T
        if not draw(st.booleans()):
            continue
        stacked = f"layers.{{L}}.{name}"
        steps.add("stack", parameters=experts + name, into=stacked, count="E")
        for layer in range(LAYERS):
            members = [steps.arrays.pop(f"layers.{layer}.experts.{e}.{name}") for e in range(EXPERTS)]
            steps.arrays[f"layers.{layer}.{name}"] = np.stack(members)
        if draw(st.booleans()):
            order = tuple(draw(st.permutations(range(3))))
            steps.add("transpose", parameters=stacked, axes=order)
            for each in steps.each("." + name):
                steps.arrays[each] = steps.arrays[each].transpose(order)
        elif draw(st.booleans()):
            steps.add("merge", parameters=stacked, count="E")
            for each in steps.each("." + name):
                array = steps.arrays[each]
                steps.arrays[each] = array.reshape(-1, *array.shape[2:])

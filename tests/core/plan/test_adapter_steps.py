"""Steps of an adapter's matrices: their number does not grow with that of the layers, which steps of changes limit."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from reshard.core.plan.adapter_groups import Group, Made
from reshard.core.plan.adapter_steps import matrix_steps


def steps_of(layers: int, blocks: int) -> Sequence[Mapping[str, Any]]:
    groups = []
    for layer in range(layers):
        parts = tuple(f"layers.{layer}.{each}" for each in "qk")
        weights = tuple(f"layers.{layer}.{each}.weight" for each in "qkv")
        groups.append(Group(parts, (Made(f"layers.{layer}.qkv", weights),), {f"layers.{layer}.v.weight": 4}))
        groups.append(Group((f"layers.{layer}.o",), (Made(f"layers.{layer}.p", (f"layers.{layer}.o.weight",)),), {}))
    sources = {each: (f"{each}.A", f"{each}.B") for group in groups for each in group.sources}
    targets = {each.module: (f"{each.module}.a", f"{each.module}.b") for group in groups for each in group.targets}
    return matrix_steps(groups, sources, targets, [], blocks)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_layers_have_their_steps_in_common(blocks: int) -> None:
    assert len(steps_of(5, blocks)) == len(steps_of(1, blocks))

"""Random changes of a model's parameters, and what they make of its arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from reshard.core.changes.changes import CastRule, Changes, JoinRule, RenameRule, SplitRule, TransposeRule
from reshard.core.errors import InputError, PlanError
from reshard.core.files.model import TensorEntry
from reshard.core.plan.plan import ConversionPlan
from tests.support.composing import join_arrays, split_array
from tests.support.plans import make_catalog, plan_of

SHAPES = {"qkv": (72, 24), "gate": (24, 48), "up": (24, 48), "turned": (24, 48), "plain": (24,)}
"""All axes are multiples of 24, before and after the changes, and so divide by all random layouts."""


@st.composite
def random_changes(draw: st.DrawFn, wholes: Mapping[str, np.ndarray]) -> tuple[Changes, dict[str, np.ndarray]]:
    """Random changes, and what they make of whole tensors."""
    made = dict(wholes)
    rules: dict[str, list[object]] = {"split": [], "join": [], "transpose": [], "rename": [], "cast": []}
    groups = draw(st.sampled_from([1, 2, 4]))
    if draw(st.booleans()):
        parts = split_array(made.pop("qkv"), 0, (1, 1, 1), groups)
        made |= dict(zip(("q", "k", "v"), parts, strict=True))
        rules["split"].append(SplitRule(parameters="(q)kv", into=(r"\1", "k", "v"), groups=groups))
    if draw(st.booleans()):
        axis = draw(st.integers(0, 1))
        groups = draw(st.sampled_from([groups, made["gate"].shape[axis]]))  # rows in turn
        made["gate_up"] = join_arrays([made.pop("gate"), made.pop("up")], axis, groups)
        rules["join"].append(JoinRule(parameters=("gate", "up"), into="gate_up", axis=axis, groups=groups))
    for name in draw(st.sets(st.sampled_from(sorted({*made} - {"plain"})))):
        made[name] = made[name].T
        rules["transpose"].append(TransposeRule(parameters=name))
    if draw(st.booleans()):
        made = {f"model.{name}": array for name, array in made.items()}
        rules["rename"].append(RenameRule(pattern="(.*)", to=r"model.\1"))
    if draw(st.booleans()):
        rules["cast"].append(CastRule(parameters="*", dtype="float16"))
    return declared(**rules), made


def declared(**fields: Any) -> Changes:
    return Changes.model_validate(fields)


def changed(entries: list[TensorEntry], **rules: object) -> ConversionPlan:
    """The plan of one file to one file."""
    return plan_of(make_catalog({0: entries}), None, None, changes=declared(**rules))


def told_of(error: pytest.ExceptionInfo[InputError]) -> list[str]:
    return [line.removeprefix("  - ") for line in str(error.value).splitlines()[1:]]


def refusal(*entries: TensorEntry, **rules: object) -> list[str]:
    with pytest.raises(PlanError) as error:
        changed(list(entries), **rules)
    return told_of(error)

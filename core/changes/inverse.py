"""The inverse of declared steps: the way back from the parameters that they make to those of the source."""

from collections.abc import Callable
from typing import Any

from reshard.core.changes.changes import NO_CHANGES, Changes
from reshard.core.changes.steps import (
    AddStep,
    AnyStep,
    DivideStep,
    DropStep,
    JoinStep,
    MergeStep,
    RenameStep,
    RepeatStep,
    SplitStep,
    StackStep,
    Step,
    TransposeStep,
    UnstackStep,
)
from reshard.core.errors import InputError

Fields = dict[str, Any]


def inverted(changes: Changes) -> Changes:
    """Return the changes whose steps undo the steps of others, the last one first.

    Raises:
        InputError: a step loses something, or the changes have rules other than steps, which have no inverse.
    """
    for name in ("select", "include", "exclude", "split", "join", "transpose", "rename", "cast"):
        if getattr(changes, name) != getattr(NO_CHANGES, name):
            raise InputError(f"{name!r} of the changes has no inverse: only 'steps' can be inverted")
    document = changes.model_dump(exclude_defaults=True)
    document["steps"] = [_inverted_step(step) for step in reversed(changes.steps)]
    return Changes.model_validate(document)


def _inverted_step(step: Step) -> dict[str, Fields]:
    rule = step.rule
    invert = _INVERSES.get(type(rule))
    if invert is None:
        raise InputError(f"{rule} has no inverse")
    kind, fields = invert(rule)
    return {kind: fields | ({"optional": True} if rule.optional else {})}


def _fields(rule: AnyStep, *names: str) -> Fields:
    return {name: getattr(rule, name) for name in names}


def _swapped(kind: str, source: str, target: str, *others: str) -> Callable[[Any], tuple[str, Fields]]:
    """Invert by exchanging fields: the inverse's `parameters` and `target` are the rule's `source` and `parameters`."""
    return lambda rule: (
        kind,
        {"parameters": getattr(rule, source), target: rule.parameters, **_fields(rule, *others)},
    )


def _inverse_axes(rule: TransposeStep) -> tuple[str, Fields]:
    axes = tuple(sorted(range(len(rule.axes)), key=rule.axes.__getitem__))
    return "transpose", {"parameters": rule.parameters, "axes": axes}


_INVERSES: dict[type[Any], Callable[[Any], tuple[str, Fields]]] = {
    RenameStep: _swapped("rename", "to", "to"),
    SplitStep: _swapped("join", "into", "into", "axis", "parts", "groups"),
    JoinStep: _swapped("split", "into", "into", "axis", "parts", "groups"),
    TransposeStep: _inverse_axes,
    StackStep: _swapped("unstack", "into", "into", "count"),
    UnstackStep: _swapped("stack", "into", "into", "count"),
    MergeStep: lambda rule: ("divide", _fields(rule, "parameters", "count")),
    DivideStep: lambda rule: ("merge", _fields(rule, "parameters", "count")),
    AddStep: lambda rule: ("add", {"parameters": rule.parameters, "number": -rule.number}),
    RepeatStep: _swapped("drop", "to", "copy_of", "count"),
    DropStep: _swapped("repeat", "copy_of", "to", "count"),
}

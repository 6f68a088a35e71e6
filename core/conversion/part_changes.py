"""Checks that parts were changed alike: one set of changes, applied to all stages at once, makes what each part has.

Rules may differ between parts: a stage need not have the parameters that another stage's rule is for. What counts is
what they make of each part's parameters: each part is planned again by the others' rules, and nothing is read.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations

from msgspec.structs import replace

from reshard.core.changes.changes import NO_CHANGES, Changes
from reshard.core.changes.steps import Step
from reshard.core.errors import InputError
from reshard.core.plan.matching import match_parameters
from reshard.core.plan.model import ParameterMatch, PlanInputs
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.wording import listed

_RULES = {
    "steps": "steps",
    "state_prefixes": "prefixes of states",
    "split": "splits",
    "join": "joins",
    "transpose": "transpositions",
    "rename": "renames",
    "cast": "casts",
}
"""Fields of `Changes` that decide what is made of a selected parameter -> what they are called."""


def check_changed_alike(parts: Mapping[str, ConversionPlan]) -> None:
    """Check that one set of changes makes all parts as they are; `parts` are their plans by location.

    Raises:
        InputError: the changes of one part would make other parameters of another one; it names both.
    """
    declared = [_rules_of(plan.inputs.changes) for plan in parts.values()]
    for rules in (*declared, _united(declared)):
        if not any(_made_otherwise(plan, rules) for plan in parts.values()):
            return
    for (place, plan), (other_place, other) in permutations(parts.items(), 2):
        if names := _made_otherwise(plan, _rules_of(other.inputs.changes)):
            ours, theirs = plan.inputs.changes, other.inputs.changes
            kinds = [text for kind, text in _RULES.items() if getattr(ours, kind) != getattr(theirs, kind)]
            raise InputError(
                f"{place} and {other_place} do not go together: they were converted with different "
                f"{' and '.join(kinds)}, and those of {other_place} would make something else of parameters in "
                f"{place}: {listed(names, 6)}. Convert all stages with the same changes"
            )


def _rules_of(changes: Changes) -> Changes:
    """Return changes without their selection."""
    return NO_CHANGES.model_copy(update={kind: getattr(changes, kind) for kind in _RULES})


def _united(declared: Sequence[Changes]) -> Changes:
    """Return the rules of all changes, each once."""
    united = {kind: dict.fromkeys(rule for each in declared for rule in getattr(each, kind)) for kind in _RULES}
    return NO_CHANGES.model_copy(update={kind: tuple(rules) for kind, rules in united.items()})


def _made_otherwise(plan: ConversionPlan, rules: Changes) -> list[str]:
    """Return the names of a part's parameters that it would not have, or have in the same way, by these rules."""
    if rules == _rules_of(plan.inputs.changes):
        return []
    ours = _made(plan.match)
    try:
        theirs = _made(match_parameters(_with_rules(plan.inputs, rules)))
    except InputError:  # they cannot be applied to this part
        return sorted(ours)
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def _with_rules(inputs: PlanInputs, rules: Changes) -> PlanInputs:
    """Return a part's inputs with other rules, of which steps may fit nothing in it, and with its own selection."""
    replaced = {kind: getattr(rules, kind) for kind in _RULES} | {"steps": tuple(map(_optional, rules.steps))}
    return replace(inputs, changes=inputs.changes.model_copy(update=replaced))


def _optional(step: Step) -> Step:
    kind = next(kind for kind in Step.model_fields if getattr(step, kind) is step.rule)
    return step.model_copy(update={kind: step.rule.model_copy(update={"optional": True})})


def _made(match: ParameterMatch) -> dict[str, tuple[object, ...]]:
    """Return what each parameter is made of, and how."""
    resharded = {
        each.name: (each.dtype, each.shape, [source.name for source in each.sources], each.pieces)
        for each in match.resharded
    }
    return resharded | {each.name: (each.dtype, each.source_name) for each in match.passed_through}

"""Declared changes where one pipeline stage is converted by itself: some rules are for what other stages have.

All stages are converted with the same changes, as they would be together. So a rule that fits nothing in this stage is
no mistake if it fits a name of the target that this stage does not make.
"""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase

from reshard.core.changes.changes import CastRule, JoinRule, RenameRule, SplitRule, TransposeRule
from reshard.core.strategy.model import Strategy

NamingRule = str | SplitRule | JoinRule | TransposeRule | RenameRule | CastRule
"""A declared change that fits parameters by their names; a text is a pattern of `include` or `exclude`."""
_GROUP = re.compile(r"\\(?:\d+|g<\w+>)")
"""A group of a regular expression in a new name."""


def is_one_stage(source: Strategy | None, target: Strategy | None) -> bool:
    """True if the source's strategy is one stage's own, and the target's is of a single stage."""
    return source is not None and not source.merged and target is not None and len(target.stages) == 1


def names_of_all_stages(source: Strategy | None, target: Strategy | None) -> frozenset[str]:
    """Return the target's names if the source may have one stage's only; none if all stages are converted."""
    return target.parameters if target is not None and is_one_stage(source, target) else frozenset()


def fits_other_stages(rule: NamingRule, names: Collection[str]) -> bool:
    """True if a rule fits one of the target `names` that other stages have; their source names are unknown here."""
    if isinstance(rule, str):
        return _fits_any(rule, names)
    if isinstance(rule, CastRule | TransposeRule):
        return _fits_any(rule.parameters, names)
    if isinstance(rule, RenameRule):
        return rule.to in names if rule.name else _makes_any(rule.to, names)
    into = rule.into if isinstance(rule, SplitRule) else (rule.into,)
    return any(_makes_any(name, names) for name in into)


def _fits_any(pattern: str, names: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _makes_any(new_name: str, names: Collection[str]) -> bool:
    form = re.compile(".*".join(map(re.escape, _GROUP.split(new_name))), re.DOTALL)
    return any(form.fullmatch(name) for name in names)

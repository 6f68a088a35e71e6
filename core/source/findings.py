"""Findings: what the checks of a checkpoint and a strategy found, what it probably means, and what to do about it."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator

from reshard.core.runtime.records import Record
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import listed
from reshard.core.strategy.optimizer_shards import has_optimizer_shard, with_optimizer_shard, without_optimizer_shard
from reshard.core.tensor.layout import ALL_REPEATED_AXES, ParameterLayout
from reshard.core.text.options import option, spelled

OWN_STRATEGY = "use the strategy of the job that saved the checkpoint"
WITHOUT_OPTIMIZER_SHARDS = (
    "use a strategy without optimizer parallel: 'reshard make-strategy' of the same sizes, without "
    f"{option('optimizer_parallel', True)}"
)
WITH_OPTIMIZER_SHARDS = (
    f"{OWN_STRATEGY}; 'reshard make-strategy' with the same sizes and {option('optimizer_parallel', True)} makes one "
    "with equal shards"
)
OPTIMIZER_PARALLEL_OFF = (
    "optimizer parallel was off when the checkpoint was saved, or its shards were gathered for saving"
)


class Severity(StrEnum):
    """How bad a finding is: a problem means that checkpoint and strategy do not belong together."""

    PROBLEM = "problem"
    NOTE = "note"


Spelled = Annotated[str, AfterValidator(spelled)]
"""A text whose options are spelled for its reader."""


class Finding(Summary):
    """The result of a check.

    Attributes:
        check: subject of the check: ranks, files, stages, names, shapes or contents.
        severity: how bad it is.
        found: the fact.
        means: its probable meaning.
        advice: what to do; empty if there is nothing to do.
    """

    check: str
    severity: Severity = Severity.PROBLEM
    found: Spelled
    means: Spelled
    advice: Spelled = ""


class Cause(Record):
    """What findings of the same kind share; the fields are those of a Finding."""

    found: str
    means: str
    advice: str


def findings_by_cause(check: str, details: Mapping[Cause, Sequence[str]]) -> list[Finding]:
    """One finding per cause, which lists its details."""
    return [
        Finding(
            check=check,
            found=f"{cause.found}: {listed(texts, separator='; ')}",
            means=cause.means,
            advice=cause.advice,
        )
        for cause, texts in details.items()
    ]


def quoted_names(names: Sequence[str]) -> str:
    """Names in quotes; the first of many."""
    return listed([repr(name) for name in names])


def optimizer_shard_cause(
    layout: ParameterLayout, explains: Callable[[ParameterLayout], bool], *, was_off: Cause, was_on: Cause
) -> Cause | None:
    """The cause if a layout without the optimizer shard, or with one more, explains what ranks hold."""
    bare = without_optimizer_shard(layout)
    if has_optimizer_shard(layout) and explains(bare):
        return was_off
    sharded = with_optimizer_shard(bare, None, ALL_REPEATED_AXES)
    return was_on if sharded is not None and explains(sharded) else None

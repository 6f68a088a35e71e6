"""Which parameters a conversion takes, and what becomes of them besides being cut anew: what a user may declare.

Steps happen in one order, whatever the order they are declared in, and each sees names as the one before left them:
select, split, join, transpose, rename, cast. They are given as options, or in one YAML or JSON document, or both.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Selection(StrEnum):
    """Which of a training's parameters are taken."""

    ALL = "all"
    WEIGHTS_ONLY = "weights-only"


class OverflowPolicy(StrEnum):
    """What happens if finite values become infinite in the dtype that they are cast to."""

    FAIL = "fail"
    ALLOW = "allow"


class _Rule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class SplitRule(_Rule):
    r"""A fused parameter becomes several, along one axis.

    `parameters` is a regular expression of the whole name; `into` are the new names, with its groups (`\\1`); `parts`
    are how many shares of the axis each gets. `groups`: the axis is so many runs, each of them with all parts in turn.
    """

    parameters: str
    into: Annotated[tuple[str, ...], Field(min_length=2)]
    axis: int = 0
    parts: tuple[int, ...] = ()
    groups: Annotated[int, Field(ge=1)] = 1


class JoinRule(_Rule):
    """Several parameters become one, along one axis; the reverse of a split.

    `parameters` are regular expressions of whole names, one for each part; those with the same groups are joined under
    the name `into`. `parts` say how many shares of a run each part gives where there are several `groups`.
    """

    parameters: Annotated[tuple[str, ...], Field(min_length=2)]
    into: str
    axis: int = 0
    groups: Annotated[int, Field(ge=1)] = 1


class TransposeRule(_Rule):
    """Parameters whose axes change order: reversed, or as `axes` says (target axis i is source axis `axes[i]`)."""

    parameters: str
    axes: tuple[int, ...] = ()


class RenameRule(_Rule):
    """Other names: exactly `name`, or what the regular expression `pattern` matches as a whole, is then called `to`."""

    name: str = ""
    pattern: str = ""
    to: str


class CastRule(_Rule):
    """Another element type; of several rules for a parameter the first counts."""

    parameters: str
    dtype: str


class Changes(_Rule):
    """All that is declared; patterns without `regular expression` above are shell-style (`adam_*`)."""

    select: Selection = Selection.ALL
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    split: tuple[SplitRule, ...] = ()
    join: tuple[JoinRule, ...] = ()
    transpose: tuple[TransposeRule, ...] = ()
    rename: tuple[RenameRule, ...] = ()
    cast: tuple[CastRule, ...] = ()
    cast_overflow: OverflowPolicy = OverflowPolicy.FAIL


NO_CHANGES = Changes()

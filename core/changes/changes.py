r"""Declared changes: the selection of parameters, and their new names, shapes and dtypes.

Each kind of change sees the names that the one before left. Most have a fixed order, however they are declared: select,
split, join, transpose, rename, cast; `steps`, which follow the selection, have the order in which they are written
(see `reshard.core.changes.steps`). They are given as options, or in one YAML or JSON document, or both.

Splits and joins follow one another: each sees the results of those before it. If several transpositions, renames or
casts fit a parameter, the first counts, so that two names can be swapped. A rule that fits nothing is an error.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from reshard.core.changes.expressions import VariableName
from reshard.core.changes.rules import Axis, Count, Length, Name, Regular, Rule, Several, regular_expression, shares_of
from reshard.core.changes.steps import Step, with_variables
from reshard.core.changes.training_state import STATE_PREFIXES
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.runtime.wording import quoted

FLOAT_NAMES = {"float16": "Float16", "bfloat16": "BFloat16", "float32": "Float32", "float64": "Float64"}
"""Spelling of a dtype to cast to -> its name in `reshard.core.tensor.dtypes`."""
_USUAL_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "fp64": "float64",
    "double": "float64",
}
_EXPRESSION_PREFIX = "re:"
MAX_STEPS = 4096
"""Each looks at all names."""
Variable = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


class Selection(StrEnum):
    """The parameters of a training to convert."""

    ALL = "all"
    WEIGHTS_ONLY = "weights-only"


class Fp8(StrEnum):
    """What becomes of weights in block-fp8, whose scales end in `_scale_inv`, or what becomes block-fp8."""

    AUTO = "auto"
    KEEP = "keep"
    DEQUANTIZE = "dequantize"
    QUANTIZE = "quantize"


class OverflowPolicy(StrEnum):
    """What to do if finite values become infinite in the dtype that they are cast to."""

    FAIL = "fail"
    ALLOW = "allow"


def _dtype(name: str) -> str:
    if name.lower() not in FLOAT_NAMES:
        suggestion = did_you_mean(name, FLOAT_NAMES, _USUAL_NAMES) or f"; choose from {', '.join(FLOAT_NAMES)}"
        raise ValueError(f"unsupported dtype {name!r}{suggestion}")
    return name.lower()


def _check_new_name(pattern: str, name: str) -> None:
    """Check that the groups in a new name are groups of the pattern."""
    expression = re.compile(pattern)
    names = {number: group for group, number in expression.groupindex.items()}
    # the same groups, empty: matching the pattern itself may take long
    groups = [f"(?P<{names[number]}>)" if number in names else "()" for number in range(1, expression.groups + 1)]
    try:
        if match := re.fullmatch("".join(groups), ""):
            match.expand(name)
    except (re.error, IndexError) as error:
        raise ValueError(
            f"{quoted(name)} does not go with the regular expression {quoted(pattern)}: {error}"
        ) from error


class SplitRule(Rule):
    r"""A fused parameter becomes several, along one axis.

    `parameters` is a regular expression of the whole name; `into` are the new names, with its groups (`\\1`); `parts`
    are the shares of the axis that each gets, by default equal ones. `groups`: the axis has so many groups, each with
    all parts in turn, as the interleaved query, key and value of each head.
    """

    parameters: Regular
    into: Annotated[Several[Name], Field(min_length=2)]
    axis: Axis = 0
    parts: Several[Length] = ()
    groups: Count = 1

    @model_validator(mode="after")
    def _check(self) -> "SplitRule":
        if self.parts and len(self.parts) != len(self.into):
            raise ValueError(f"'parts' has {len(self.parts)} numbers, 'into' {len(self.into)} names")
        if len(set(self.into)) < len(self.into):
            raise ValueError("'into' has a name twice")
        for name in self.into:
            _check_new_name(self.parameters, name)
        return self

    @property
    def shares(self) -> tuple[int, ...]:
        """Shares of the axis that each part gets."""
        return shares_of(self.parts, len(self.into))

    def __str__(self) -> str:
        return f"the split of {quoted(self.parameters)}"


class JoinRule(Rule):
    r"""Several parameters become one, along one axis; the reverse of a split.

    `parameters` are regular expressions of whole names, one for each part; those with the same groups are joined under
    the name `into`, which may have them (`\\1`). `groups`: the axis gets so many groups, each with an equal share of
    every part in turn.
    """

    parameters: Annotated[Several[Regular], Field(min_length=2)]
    into: Name
    axis: Axis = 0
    groups: Count = 1

    @model_validator(mode="after")
    def _check(self) -> "JoinRule":
        if len({re.compile(pattern).groups for pattern in self.parameters}) > 1:
            raise ValueError("the regular expressions of 'parameters' have different numbers of groups")
        for pattern in self.parameters:
            _check_new_name(pattern, self.into)
        return self

    def __str__(self) -> str:
        return f"the join into {quoted(self.into)}"


class TransposeRule(Rule):
    """Parameters whose axes are reordered: reversed, or by `axes` (target axis i is source axis `axes[i]`).

    `parameters` is a shell-style pattern.
    """

    parameters: Name
    axes: Several[Axis] = ()

    @field_validator("axes")
    @classmethod
    def _check_axes(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if sorted(value) != list(range(len(value))):
            raise ValueError(f"must name each axis once, from 0 on, not {list(value)}")
        return value

    def __str__(self) -> str:
        return f"the transposition of {self.parameters!r}"


class RenameRule(Rule):
    """New names: `name`, or any name that the regular expression `pattern` matches as a whole, becomes `to`."""

    name: str = ""
    pattern: Annotated[str, AfterValidator(regular_expression)] = ""
    to: Name

    @model_validator(mode="after")
    def _check(self) -> "RenameRule":
        if bool(self.name) == bool(self.pattern):
            raise ValueError("needs either 'name' or 'pattern'")
        if self.pattern:
            _check_new_name(self.pattern, self.to)
        return self

    def new_name(self, name: str) -> str | None:
        """Return a parameter's new name; None if the rule does not fit it."""
        if self.name:
            return self.to if name == self.name else None
        match = re.fullmatch(self.pattern, name)
        return match.expand(self.to) if match else None

    def __str__(self) -> str:
        return f"the rename of {quoted(self.name or self.pattern)}"


class CastRule(Rule):
    """Another dtype for floating-point parameters; `parameters` is a shell-style pattern."""

    parameters: Name
    dtype: Annotated[str, AfterValidator(_dtype)]

    def __str__(self) -> str:
        return f"the cast of {self.parameters!r}"


class Changes(Rule):
    """All declared changes; `include` and `exclude` are shell-style patterns (`adam_*`) of the source's names.

    `variables` are the numbers that `steps` may name. The steps hold for a parameter and for its states, whose names
    are one of `state_prefixes` and its own.
    """

    select: Selection = Selection.ALL
    include: Several[Name] = ()
    exclude: Several[Name] = ()
    variables: Mapping[VariableName, Variable] = Field(default_factory=dict)
    state_prefixes: Several[Name] = STATE_PREFIXES
    steps: Annotated[Several[Step], Field(max_length=MAX_STEPS)] = ()
    split: Several[SplitRule] = ()
    join: Several[JoinRule] = ()
    transpose: Several[TransposeRule] = ()
    rename: Several[RenameRule] = ()
    cast: Several[CastRule] = ()
    cast_overflow: OverflowPolicy = OverflowPolicy.FAIL
    fp8: Fp8 = Fp8.AUTO

    @field_validator("steps", mode="before")
    @classmethod
    def _replace_variables(cls, value: Any, info: ValidationInfo) -> Any:
        # a malformed mapping of variables is reported itself
        return with_variables(value, info.data["variables"]) if "variables" in info.data else value


NO_CHANGES = Changes()


def parse_rename(text: str) -> RenameRule:
    """Parse a rename: `OLD=NEW` or `re:PATTERN=NEW`."""
    old, equals, new = text.rpartition("=")
    regular = old.startswith(_EXPRESSION_PREFIX)
    if not equals or not new or not old.removeprefix(_EXPRESSION_PREFIX) or (not regular and "=" in old):
        raise ValueError(f"{quoted(text)} must be OLD=NEW or re:PATTERN=NEW")
    if not regular:
        return RenameRule(name=old, to=new)
    pattern = regular_expression(old.removeprefix(_EXPRESSION_PREFIX))
    _check_new_name(pattern, new)
    return RenameRule(pattern=pattern, to=new)


def parse_cast(text: str) -> CastRule:
    """Parse a cast: `PATTERN=DTYPE`."""
    pattern, _, dtype = text.rpartition("=")
    if not pattern:
        raise ValueError(f"{text!r} must be PATTERN=DTYPE, such as *=bfloat16")
    return CastRule(parameters=pattern, dtype=_dtype(dtype))

"""What rules of declared changes have in common: their base model, and the types of their fields."""

import math
import re
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field

from reshard.core.runtime.wording import quoted


def regular_expression(pattern: str) -> str:
    """Check a regular expression; ValueError says what is wrong with it."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{quoted(pattern)} is not a regular expression: {error}") from error
    return pattern


Item = TypeVar("Item")
Several = Annotated[tuple[Item, ...], FailFast()]
"""Reports the first error of a list only: a document may have one for every two bytes."""
Name = Annotated[str, Field(min_length=1)]
Regular = Annotated[Name, AfterValidator(regular_expression)]
Axis = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
"""Strict: neither `true` nor a text is a number."""
MAX_COUNT = 2**20
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
"""A number of parameters or of groups, each of which costs time and memory."""
Length = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
"""Elements along an axis, or a share of them."""


def shares_of(parts: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the shares of an axis that `count` parts have, in the smallest numbers: 4 and 2 are 2 and 1."""
    divisor = math.gcd(*parts)
    return tuple(part // divisor for part in parts) or (1,) * count


class Rule(BaseModel):
    """A part of a document of changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)

"""The option of the layouts whose targets are iterations: which one is written."""

import re
from typing import Annotated

from pydantic import Field

from reshard.core.options.fields import matching, pattern_of
from reshard.core.options.validation import RequestModel

Iteration = Annotated[
    str,
    Field(json_schema_extra=pattern_of(r"^([0-9]{1,18})?$", "the number of an iteration, such as 40")),
    matching(re.compile(r"([0-9]{1,18})?", re.ASCII), "must be the number of an iteration, such as 40"),
]


class IterationOptions(RequestModel):
    """Which iteration is written."""

    iteration: Iteration = Field(
        default="",
        description="Number of the iteration to write (checkpoint2, megatron and torch_dist layouts only). Empty: the "
        "source's, or the one in TARGET's name; else Megatron's release.",
    )


def last_name(url: str) -> str:
    """Return the last name in a URL."""
    return url.rstrip("/").rpartition("/")[2]

"""What the layouts whose targets are iterations have in common: the option, and what a target's name says."""

import re
from typing import Annotated, ClassVar

from pydantic import Field

from reshard.core.errors import InputError
from reshard.core.layouts.options import LayoutOptions
from reshard.core.options.fields import matching, pattern_of
from reshard.core.options.validation import RequestModel
from reshard.core.options.written import number_as_text, text_by
from reshard.core.text.options import option

_ADVICE = "must be the number of an iteration, such as 40"
Iteration = Annotated[
    str,
    Field(json_schema_extra=pattern_of(r"^([0-9]{1,18})?$", "the number of an iteration, such as 40")),
    text_by(number_as_text, _ADVICE, "Number"),
    matching(re.compile(r"([0-9]{1,18})?", re.ASCII), _ADVICE),
]


class IterationOptions(RequestModel):
    """Which iteration is written."""

    iteration: Iteration = Field(
        default="",
        description="Number of the iteration to write (checkpoint2, megatron, torch_dist and universal layouts only). "
        "Empty: the one in TARGET's name, or the source's; otherwise a release (Megatron) or 0.",
    )


def last_name(url: str) -> str:
    """Return the last name in a URL."""
    return url.rstrip("/").rpartition("/")[2]


class IterationsLayout(LayoutOptions):
    """A target is the directory of one iteration, or that of all iterations, with a tracker.

    `numbered` says which checkpoints have the number of an iteration, for messages.
    """

    numbered: ClassVar[str] = ""

    def number_in(self, name: str) -> int | None:
        """Return the number in the name of an iteration's directory; None for other names."""
        raise NotImplementedError

    def check_for_all_steps(self, target: str) -> None:
        """Refuse a target that is named after one iteration."""
        if self.number_in(last_name(target)) is not None:
            raise ValueError(
                f"the target {last_name(target)!r} is named after one iteration: name the directory of all"
            )

    def options_of_step(self, target: str, source: str, step: str) -> dict[str, str]:
        """A step is an iteration of the same target."""
        if not step.isdigit():
            raise InputError(
                f"step {step} of {source} has no iteration number, which {self.numbered}: convert it alone, with "
                f"{option('iteration', 'N')}"
            )
        return {"iteration": step}

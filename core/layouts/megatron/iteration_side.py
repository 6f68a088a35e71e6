"""What both of Megatron-Core's layouts answer alike about their targets, which are iterations, or a release."""

from typing import ClassVar

from reshard.core.layouts.megatron.names import TRACKER, iteration_name, parse_iteration
from reshard.core.layouts.tracked_side import TrackedSide
from reshard.core.layouts.tracker import Tracker


class IterationSide(TrackedSide):
    """Targets below a directory in which Megatron's tracker names the iteration to load."""

    tracker: ClassVar[Tracker] = TRACKER

    def directory_name(self, number: int) -> str:
        """Return the name of an iteration's directory."""
        return iteration_name(number)

    def number_in(self, name: str) -> int | None:
        """Return the number of an iteration, 0 of a release; None for other names."""
        return parse_iteration(name)

"""Progress of a long command on stderr: a bar on a terminal, periodic lines elsewhere, nothing with --quiet."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reshard.cli.logs import details_above, is_quiet
from reshard.cli.output import print_lines
from reshard.core.runtime.progress import Progress, SilentProgress
from reshard.core.runtime.progress_lines import LoggedProgress, ProgressLines


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Show and log the progress of the block."""
    with _display() as display, details_above(display.note):
        yield LoggedProgress(display)


@contextmanager
def _display() -> Iterator[Progress]:
    if is_quiet():
        yield SilentProgress()
    elif not sys.stderr.isatty():
        lines = LineProgress()
        yield lines
        lines.end()
    else:
        from reshard.cli.bar import Bar

        with Bar() as bar:
            yield bar


class LineProgress(ProgressLines):
    """Prints plain lines, for logs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda message: print_lines(f"reshard: {message}", err=True), clock)

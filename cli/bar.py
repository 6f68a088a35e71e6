"""The progress bar of a terminal."""

import threading
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from reshard.core.runtime.wording import seconds_text, size_text
from reshard.core.text.printing import printable_lines
from reshard.core.text.secrets import scrubbed

_FULL_WIDTH = 80


class Bar:
    """A bar for each phase, with its bytes, rate and remaining time; removed at the end; thread-safe."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        is_narrow = console.width < _FULL_WIDTH
        # on a narrow terminal the bar shrinks, and then a percentage replaces it, so that no number is cut
        columns: tuple[ProgressColumn, ...] = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            *(() if is_narrow else (BarColumn(),)),
            _StateColumn(is_narrow),
        )
        self._display = RichProgress(*columns, console=console, transient=True)
        self._task = self._display.add_task("starting", total=None)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.stop()

    def note(self, message: str) -> None:
        """Print a message above the bar."""
        self._display.console.print(printable_lines(scrubbed(message)), markup=False, highlight=False, soft_wrap=True)

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        """Start the bar of a phase at zero of `total_bytes`, or one without an end."""
        # a new one: reset() would keep the total of the phase before
        with self._lock:
            self._display.remove_task(self._task)
            self._task = self._display.add_task(phase, total=total_bytes or None)

    def advance(self, count_bytes: int) -> None:
        """Advance the bar."""
        with self._lock:
            self._display.advance(self._task, count_bytes)


class _StateColumn(ProgressColumn):
    def __init__(self, is_narrow: bool) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._is_narrow = is_narrow

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        # retried bytes are counted twice
        if self._is_narrow:
            parts = [f"{min(100.0, task.percentage):.0f} %"]
        else:
            parts = [f"{size_text(min(task.completed, task.total))} of {size_text(task.total)}"]
        if task.speed:
            parts.append(f"{size_text(task.speed)}/s")
        if task.time_remaining:
            parts.append(f"{seconds_text(task.time_remaining)} left")
        return Text(", ".join(parts))

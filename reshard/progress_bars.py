"""Progress of the functions' work on bars that follow tqdm's protocol: tqdm's own, its notebooks', and others alike."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from reshard.core.errors import InputError
from reshard.core.runtime.progress import Progress
from reshard.core.text.printing import printable_lines
from reshard.core.text.secrets import scrubbed


class ProgressBar(Protocol):
    """A bar as tqdm makes them."""

    def update(self, n: int) -> object:
        """Advance it."""

    def reset(self, total: Any = None) -> object:
        """Start it anew, at zero of `total`."""

    def set_description(self, desc: str) -> object:
        """Write a text before it."""

    def close(self) -> object:
        """End it."""


Listener: TypeAlias = Progress | ProgressBar | Callable[..., ProgressBar] | bool
"""A listener; a bar, or what makes one, such as `tqdm`; True: a bar of tqdm's, as fits terminal or notebook."""

_LISTENER = ("note", "begin", "advance")
_BAR = ("update", "reset", "set_description", "close")


@contextmanager
def listener_of(progress: Listener | None) -> Iterator[Progress | None]:
    """Yield the listener that a caller means; a bar that is made for it is closed after the block.

    Raises:
        InputError: it is none of those; or True without tqdm.
    """
    if progress is None or progress is False:
        yield None
    elif _has(progress, _LISTENER) and not isinstance(progress, type):
        yield progress  # type: ignore[misc]  # it has the methods
    elif _has(progress, _BAR) and not isinstance(progress, type):
        yield BarProgress(progress)  # type: ignore[arg-type]
    elif progress is True or callable(progress):
        bar = (_tqdm() if progress is True else progress)(unit="B", unit_scale=True, unit_divisor=1024)
        if not _has(bar, _BAR):
            raise _refusal(progress)
        try:
            yield BarProgress(bar)
        finally:
            bar.close()
    else:
        raise _refusal(progress)


class BarProgress:
    """A listener that shows each phase, one after the other, on the same bar; thread-safe."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._lock = threading.Lock()
        self._left_bytes = 0

    def note(self, message: str) -> None:
        """Print a message above the bar, if it can."""
        write = getattr(self._bar, "write", None)
        if write is not None:
            with self._lock:
                write(printable_lines(scrubbed(message)))

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        """Start at zero of a phase; one without a total leaves the bar as the phase before filled it."""
        with self._lock:
            if total_bytes:
                self._left_bytes = total_bytes
                self._bar.reset(total=total_bytes)
            self._bar.set_description(phase)

    def advance(self, count_bytes: int) -> None:
        """Advance; bytes that are read or written again do not count twice."""
        with self._lock:
            count = min(count_bytes, self._left_bytes)
            self._left_bytes -= count
            if count:
                self._bar.update(count)


def _has(value: object, methods: tuple[str, ...]) -> bool:
    return all(callable(getattr(value, name, None)) for name in methods)


def _tqdm() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise InputError("progress=True: needs tqdm, which is not installed: pip install tqdm") from None
    return tqdm


def _refusal(progress: object) -> InputError:
    return InputError(
        f"progress={type(progress).__name__}: must be True, a bar or a class as tqdm's, or an object with the methods "
        "note(message), begin(phase, total_bytes) and advance(count_bytes)"
    )

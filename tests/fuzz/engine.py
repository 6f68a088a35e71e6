"""Feeding parsers with damaged inputs, and what counts as a failure of theirs.

Whatever comes in, a parser gives a result or refuses it with a message that names the file, soon, and without taking
much more memory than the input. Exceptions of any other kind, hangs and excessive allocations are failures.
"""

import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import FrameType
from typing import NoReturn

from tests.fuzz.mutations import damaged
from tests.fuzz.parsers import Parser

MOST_SECONDS = 2.0
"""For one input, of at most `mutations.LARGEST_BYTES`."""
MEMORY_CONSTANT_BYTES = 4 << 20
"""What any input may make a parser allocate, beyond its size times the parser's own factor."""
_MEASURE_EVERY = 16  # measuring makes Python several times slower
_MINIMIZE_SECONDS = 5.0


class HangError(BaseException):
    """An input took too long; nothing that parses may catch it."""


@dataclass(frozen=True)
class Failure:
    """An input that a parser did not survive."""

    parser: str
    what: str
    data: bytes


@dataclass
class Tally:
    """What came of the inputs so far."""

    count: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    failures: dict[str, Failure] = field(default_factory=dict)
    """By what went wrong, so that one fault is reported once."""


def run(
    parser: Parser,
    random: Random,
    *,
    seconds: float = 1e9,
    inputs: int | None = None,
    note: Callable[[bytes], object] | None = None,
) -> Tally:
    """Feeds one parser with its seeds, then with damaged ones, until one of the limits is reached.

    `note` is given each input before it is parsed, in case that this is the process's end.
    """
    tally, seeds = Tally(), list(parser.seeds())
    began = time.monotonic()
    pool = list(seeds)
    while time.monotonic() - began < seconds and (inputs is None or tally.count < inputs):
        if tally.count < len(seeds):
            data = seeds[tally.count]
        else:
            data = damaged(random, random.choice(pool), seeds, parser.structural)
        if note:
            note(data)
        accepted = _feed(parser, data, tally)
        # what is damaged and yet accepted leads to places that sound files never reach
        if accepted and len(data) < 1 << 15 and random.random() < 0.02:
            pool.append(data)
            if len(pool) > len(seeds) + 200:
                del pool[len(seeds)]
    tally.seconds = time.monotonic() - began
    return tally


def _feed(parser: Parser, data: bytes, tally: Tally) -> bool:
    tally.count += 1
    began = time.monotonic()
    what, accepted = outcome(parser, data, measured=tally.count % _MEASURE_EVERY == 0)
    tally.slowest_seconds = max(tally.slowest_seconds, time.monotonic() - began)
    tally.accepted += accepted
    if what and what not in tally.failures:
        tally.failures[what] = Failure(parser.name, what, _minimized(parser, data, what))
    return accepted


def outcome(parser: Parser, data: bytes, *, measured: bool = False) -> tuple[str, bool]:
    """What went wrong with an input, in words, or nothing; and whether it was accepted."""
    accepted = True
    try:
        with _watched(MOST_SECONDS * (5 if measured else 1)), _measured(measured) as peak:
            try:
                parser.parse(data)
            except parser.refusals as error:
                if parser.origin not in str(error):
                    return f"a message that does not name the file: {type(error).__name__} {_where(error)}", False
                accepted = False
    except HangError as error:
        return f"more than {MOST_SECONDS} s {_where(error)}", False
    except Exception as error:
        return f"{type(error).__name__} {_where(error)}", False
    if peak and peak[0] > parser.memory_factor * len(data) + MEMORY_CONSTANT_BYTES:
        return f"more memory than {parser.memory_factor} times its size and {MEMORY_CONSTANT_BYTES} bytes", False
    return "", accepted


@contextmanager
def _watched(seconds: float) -> Iterator[None]:
    """Raises a HangError in the block when it has used so many seconds of CPU, or waited for long."""

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise HangError

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, 15 * seconds))
    before = [signal.signal(number, stop) for _, number, _ in timers]
    for timer, _, limit in timers:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (timer, number, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


@contextmanager
def _measured(measured: bool) -> Iterator[list[int]]:
    """The most that was allocated inside the block, in bytes, once it has ended; nothing if it is not measured."""
    peak: list[int] = []
    if not measured:
        yield peak
        return
    tracemalloc.start()
    try:
        yield peak
    finally:
        peak.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


def _where(error: BaseException) -> str:
    """The place in this project that an error comes from, the innermost."""
    place, trace = "somewhere", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/core/" in code.co_filename or ("/tests/fuzz/" in code.co_filename and code.co_name != "stop"):
            place = f"in {code.co_filename.rpartition('/')[2]} {code.co_name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _minimized(parser: Parser, data: bytes, what: str) -> bytes:
    """A shorter input with which the same goes wrong, as far as there is time."""
    deadline = time.monotonic() + _MINIMIZE_SECONDS
    measured = "memory" in what
    step = len(data) // 2
    while step and time.monotonic() < deadline:
        place = 0
        while place < len(data) and time.monotonic() < deadline:
            shorter = data[:place] + data[place + step :]
            if outcome(parser, shorter, measured=measured)[0] == what:
                data = shorter
            else:
                place += step
        step //= 2
    return data

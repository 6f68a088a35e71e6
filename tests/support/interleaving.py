"""Two runs interleaved: a step of one before any look that the other takes at the disk."""

import sys
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any, TypeVar

_Place = TypeVar("_Place")


def interleaved(
    work: Callable[[_Place], object], step: Callable[[_Place], object], prepared: Callable[[int], _Place]
) -> int:
    """Do `work` at one prepared place after another, with `step` before its first system call, its second one, ….

    Returns how many system calls the work made.
    """
    number = 0
    while _is_done_with_step(prepared(number), work, step, number):
        number += 1
    return number


def _is_done_with_step(
    place: _Place, work: Callable[[_Place], object], step: Callable[[_Place], object], number: int
) -> bool:
    """Do the work, with the step before its system call of this number; False if it makes fewer."""
    calls = count()
    stepped = False

    def before_call(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal stepped
        if event == "c_call" and getattr(argument, "__module__", "") == "posix" and next(calls) == number:
            sys.setprofile(None)
            stepped = True
            step(place)

    former = sys.getprofile()
    sys.setprofile(before_call)
    try:
        work(place)
    finally:
        sys.setprofile(former)
    return stepped

"""Regular expressions of users, under limits of time and memory.

Python's `re` may try exponentially many ways, and a thread that does cannot be interrupted. An expression that might is
tried first in a process of its own, which the system ends at the limits; where it passes, it takes as long once more.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable

from reshard.core.errors import PlanError
from reshard.core.runtime.wording import counted, quoted, size_text

_LIMIT_SECONDS = 1
"""Processor time of all expressions together, and `_NAME_SECONDS` more for each and each name."""
_NAME_SECONDS = 25e-6
"""An expression of several wildcards takes so long for a name; most take a tenth of it."""
_LIMIT_BYTES = 2**27
"""And `_BYTES_PER_CHARACTER` more for the names and expressions themselves."""
_BYTES_PER_CHARACTER = 8
_MAX_CHOICES = 2
_MAX_NAME_LENGTH = 512
"""A name of that length takes a millisecond at most if the expression has two choices."""
_CHOICE = re.compile(r"\(\?(?::|P<)|([*+?|])")
_REPETITION = re.compile(r"\)\s*[*+?]|\{|\(\?(?!:|P<)")
"""A repeated group, a count, or syntax that may hide one, such as a comment in between."""

_TRIAL = """
import json, math, re, resource, sys, time
patterns, names, seconds, size = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + seconds), -1))
for number, pattern in enumerate(patterns):
    print(number, flush=True)
    fullmatch = re.compile(pattern).fullmatch
    for name in names:
        fullmatch(name)
"""


def is_quick(pattern: str) -> bool:
    """True if an expression takes little time for any name of a usual length, as is seen without trying it."""
    choices = sum(bool(choice) for choice in _CHOICE.findall(pattern))
    return choices <= _MAX_CHOICES and not _REPETITION.search(pattern)


def check_expressions(patterns: Iterable[str], names: Iterable[str]) -> None:
    """Check that regular expressions are matched with names, as a whole, within the limits.

    Raises:
        PlanError: one is not, or all together are not.
    """
    names = list(names)
    is_usual = max(map(len, names), default=0) <= _MAX_NAME_LENGTH
    doubtful = [pattern for pattern in patterns if not (is_usual and is_quick(pattern))]
    if not doubtful or not names:
        return
    seconds = _LIMIT_SECONDS + _NAME_SECONDS * len(names) * len(doubtful)
    limit_bytes = _LIMIT_BYTES + _BYTES_PER_CHARACTER * sum(map(len, (*names, *doubtful)))
    trial = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _TRIAL],
        input=json.dumps([doubtful, names, seconds, limit_bytes]).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if trial.returncode:
        number = int((trial.stdout.split() or [b"0"])[-1])
        last = quoted(doubtful[number])
        what = f"the first {number + 1} regular expressions, up to {last}, take" if number else ""
        raise PlanError(
            f"{what or f'the regular expression {last} takes'} more than {seconds:.1f} s, or "
            f"{size_text(limit_bytes)}, for {counted(len(names), 'name')}: there are too many ways to try. Repeat no "
            r"group that repeats something itself: write [^.]+ for the text between dots, \d+ for a number"
        )

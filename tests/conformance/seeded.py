"""Cases that are made from seeds, one after another; the files of those that fail are kept."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path


def check_seeds(seeds: Iterable[int], directory: Path, check: Callable[[int, Path], Iterable[str]]) -> list[str]:
    """Return what is not as it should be; `check` tells it of the case of a seed, whose files go to a directory."""
    problems: list[str] = []
    for seed in seeds:
        place = directory / str(seed)
        found = list(check(seed, place))
        problems += [f"again: make conformance SEED={seed}: {problem}" for problem in found]
        if not found:
            shutil.rmtree(place)
    return problems

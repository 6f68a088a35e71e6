"""What differs between the ranks that are and the ranks that were to be, in words."""

import hashlib
from collections.abc import Mapping
from typing import Any

from tests.support.checkpoints import Contents


def with_text(ranks: Mapping[int, Contents], text: Mapping[str, str]) -> dict[int, Contents]:
    """The ranks, each with text entries as a `.ckpt` file holds them."""
    entries: Contents = {name: ("str", (0,), value.encode("utf-32-le") or bytes(4)) for name, value in text.items()}
    return {rank: contents | entries for rank, contents in ranks.items()}


def without(ranks: Mapping[int, Contents], names: set[str]) -> dict[int, Contents]:
    """The ranks less some parameters."""
    return {
        rank: {name: value for name, value in contents.items() if name not in names} for rank, contents in ranks.items()
    }


def differences(whose: str, found: Mapping[int, Contents], want: Mapping[int, Contents]) -> list[str]:
    """A line for each parameter of each rank that is not as it should be: dtype, shape or raw bytes."""
    if found.keys() != want.keys():
        return [f"{whose} ranks are {sorted(found)}, not {sorted(want)}"]
    lines = []
    for rank, wanted in want.items():
        held = found[rank]
        for name in sorted(held.keys() | wanted.keys()):
            if name not in held:
                lines.append(f"{whose} rank {rank} lacks {name}")
            elif name not in wanted:
                lines.append(f"{whose} rank {rank} has {name}")
            elif held[name] != wanted[name]:
                kinds = [f"{dtype} {list(shape)}" for dtype, shape, _ in (held[name], wanted[name])]
                what = "has other bytes" if kinds[0] == kinds[1] else f"is {kinds[0]}, not {kinds[1]}"
                lines.append(f"{whose} rank {rank} {name} {what}")
    return lines


def loading_differences(
    loaded: Mapping[int, Mapping[str, Any]], want: Mapping[int, Contents], text: Mapping[str, str]
) -> list[str]:
    """A line for each rank that MindSpore does not load as it should; `loaded` is what the judge answered."""
    lines = []
    for rank in sorted(loaded.keys() | want.keys()):
        found = loaded.get(rank, {})
        wanted: dict[str, Any] = {
            name: [dtype, list(shape), hashlib.sha256(content).hexdigest()]
            for name, (dtype, shape, content) in want.get(rank, {}).items()
        }
        wanted |= text
        names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        if names:
            lines.append(f"MindSpore loads rank {rank} differently: {', '.join(names)}")
    return lines

"""Recognizes `.ckpt` files with the same headers as another one, and predicts the bytes before a parameter's contents.

The files of many ranks have the same layout, and reading all headers of each would take most of the time of cataloging
an object store. So the headers of one file are read. Others of the same size that agree with it in samples are
*assumed* to have the same headers; the proof is completed when contents are read: the bytes right before them must be
those that this module predicts.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import TypeVar

from reshard.core.errors import CatalogError
from reshard.core.files.ckpt import CRC_MARK, CRC_TRAILER_BYTES
from reshard.core.files.ckpt_writing import plan_pieces
from reshard.core.files.model import FileIndex, OutputEntry, TensorEntry
from reshard.core.runtime.frozen import frozen
from reshard.core.tensor.dtypes import MAP_TENSOR

Item = TypeVar("Item")
Head = tuple[int, bytes]
"""Its offset and its bytes; contents follow directly."""

_SAMPLES = 3
"""Samples from all over a file, and as many of names with the most numbers."""
_NUMBER = re.compile(r"\d+")


def expected_heads(entry: TensorEntry) -> tuple[Head, ...]:
    """Return the bytes before each extent of a parameter: name, dtype, shape and the piece's length."""
    if not entry.extents:
        return ()
    heads = [head for head, _ in plan_pieces(output_entry(entry))]
    return tuple((extent.offset - len(head), head) for extent, head in zip(entry.extents, heads, strict=True))


def header_mismatch(rank: int, location: str, name: str, offset: int) -> CatalogError:
    """Return the error for a parameter that is elsewhere than assumed."""
    return CatalogError(
        f"rank_{rank}: {location}: parameter {name!r} does not begin at byte {offset}, as it does in a file of the "
        "same size that was like this one in samples. It is damaged, or in another order: copy the checkpoint to a "
        "local disk, where every file's headers are read, and convert it from there"
    )


@frozen
class Template:
    """A file whose headers were read and are those of `expected_heads`.

    Attributes:
        samples: heads of some pieces, including the first and the last.
    """

    index: FileIndex
    samples: tuple[Head, ...]

    @property
    def sampled(self) -> list[tuple[int, int]]:
        """Ranges to read of another file of this size to compare it with this one."""
        trailer = self.index.size_bytes - CRC_TRAILER_BYTES
        return [*((offset, len(head)) for offset, head in self.samples), (trailer, len(CRC_MARK))]

    def fits(self, found: Sequence[bytes]) -> bool:
        """True if another file may have the same headers, given its bytes at `sampled`."""
        *heads, trailer = found
        same_heads = all(head == sample for head, (_, sample) in zip(heads, self.samples, strict=True))
        return same_heads and (trailer == CRC_MARK) == self.index.has_crc


def template_of(index: FileIndex, heads: Sequence[Head]) -> Template | None:
    """Return a file with known headers as a template; None unless they equal `expected_heads` in every byte.

    A file with texts is none: the values of texts are among the headers, and may differ.
    """
    entries = list(index.entries.values())
    last = entries[-1].extents[-1] if entries[-1].extents else None
    stop = index.size_bytes - (CRC_TRAILER_BYTES if index.has_crc else 0)
    # a text in between is noticed: its head is among those that were read
    if last is None or last.offset + last.length != stop or index.size_bytes < CRC_TRAILER_BYTES:
        return None
    try:
        expected = [expected_heads(entry) for entry in entries]
    except ValueError:  # not split into pieces as MindSpore does
        return None
    if list(chain.from_iterable(expected)) != list(heads):
        return None
    return Template(index, _samples([entry.name for entry in entries], expected))


def _samples(names: Sequence[str], heads: Sequence[Sequence[Head]]) -> tuple[Head, ...]:
    """Select the heads that distinguish files best: first, last, some in between, some of names with the most numbers.

    The experts of a layer may be a few parameters among many, and differ on each rank.
    """
    alike: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        alike.setdefault(_NUMBER.sub("0", name), []).append(place)
    most_numbers = max(len(_NUMBER.findall(name)) for name in alike)
    deepest = [places for name, places in alike.items() if len(_NUMBER.findall(name)) == most_numbers]
    kinds = _spread(deepest)
    chosen = {0, len(names) - 1, *_spread(range(len(names)))}
    chosen.update(_spread(places)[number % _SAMPLES] for number, places in enumerate(kinds))
    return tuple(heads[place][0] for place in sorted(chosen))


def _spread(items: Sequence[Item]) -> list[Item]:
    """Select some items evenly."""
    return [items[(2 * part + 1) * len(items) // (2 * _SAMPLES)] for part in range(_SAMPLES)]


def output_entry(entry: TensorEntry) -> OutputEntry:
    """Return a file's entry as one to be written to another file."""
    messages = tuple(extent.length for extent in entry.extents) if entry.dtype is MAP_TENSOR else ()
    return OutputEntry(entry.name, entry.dtype, entry.shape, entry.text, messages)

"""What stands before a parameter's contents in a `.ckpt` file that is written as MindSpore writes it.

The files of many ranks are laid out alike, and reading all headers of each is what a catalog of files on an object
store would spend its time on. So one file's headers are read. Others of the same size that agree with it in samples are
*assumed* to have the same headers, and the rest of the proof is made when contents are read: what stands right before
them has to be what this module says.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from reshard.core.checkpoint.formats.ckpt import CRC_MARK, CRC_TRAILER_BYTES
from reshard.core.checkpoint.formats.ckpt_writing import plan_pieces
from reshard.core.checkpoint.model import FileIndex, OutputEntry, TensorEntry
from reshard.core.errors import CatalogError
from reshard.core.tensor.dtypes import MAP_TENSOR

Item = TypeVar("Item")
Head = tuple[int, bytes]
"""Where it begins, and its bytes; contents follow right after."""

_SAMPLES = 3
"""From all over a file, and as many of names with most numbers."""
_NUMBER = re.compile(r"\d+")


def expected_heads(entry: TensorEntry) -> tuple[Head, ...]:
    """For each extent of a parameter what stands before it: name, dtype, shape and the piece's length."""
    if not entry.extents:
        return ()
    heads = [head for head, _ in plan_pieces(output_entry(entry))]
    return tuple((extent.offset - len(head), head) for extent, head in zip(entry.extents, heads, strict=True))


def header_mismatch(rank: int, location: str, name: str, offset: int) -> CatalogError:
    """The error that a parameter's head is not where it has to be in a file whose headers were assumed."""
    return CatalogError(
        f"rank_{rank}: {location}: parameter {name!r} does not begin at byte {offset}, as it does in a file of the "
        "same size that was like this one in samples. It is damaged, or in another order: copy the checkpoint to a "
        "local disk, where every file's headers are read, and convert it from there"
    )


@dataclass(frozen=True)
class Template:
    """A file whose headers are known, all of them those of `expected_heads`.

    Attributes:
        index: what it holds.
        samples: the heads of some pieces, the first and the last among them.
    """

    index: FileIndex
    samples: tuple[Head, ...]

    @property
    def sampled(self) -> list[tuple[int, int]]:
        """What has to be read of another file of this size to tell whether it may have the same headers."""
        return [(offset, len(head)) for offset, head in self.samples] + [self._trailer]

    def fits(self, found: Sequence[bytes]) -> bool:
        """Whether another file may have the same headers, judged by what is at `sampled` there."""
        *heads, trailer = found
        same_heads = all(head == sample for head, (_, sample) in zip(heads, self.samples, strict=True))
        return same_heads and (trailer == CRC_MARK) == self.index.has_crc

    @property
    def _trailer(self) -> tuple[int, int]:
        return self.index.size_bytes - CRC_TRAILER_BYTES, len(CRC_MARK)


def template_of(index: FileIndex, heads: Sequence[Head]) -> Template | None:
    """The template for files like one whose headers were read; None if these are not exactly its `expected_heads`.

    Files with texts are none, for what a text says stands among the headers, and may differ.
    """
    entries = list(index.entries.values())
    last = entries[-1].extents[-1] if entries[-1].extents else None
    stop = index.size_bytes - (CRC_TRAILER_BYTES if index.has_crc else 0)
    # a text in between shows, for its head is among those that were read
    if last is None or last.offset + last.length != stop or index.size_bytes < CRC_TRAILER_BYTES:
        return None
    try:
        expected = [expected_heads(entry) for entry in entries]
    except ValueError:  # not cut into pieces as MindSpore does
        return None
    if list(chain.from_iterable(expected)) != list(heads):
        return None
    return Template(index, _samples([entry.name for entry in entries], expected))


def _samples(names: Sequence[str], heads: Sequence[Sequence[Head]]) -> tuple[Head, ...]:
    """The heads that tell files apart best: the first, the last, some in between, and some of names with most numbers.

    For the experts of a layer may be a few parameters among many, and others on each rank.
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
    """Some of many, from all parts."""
    return [items[(2 * part + 1) * len(items) // (2 * _SAMPLES)] for part in range(_SAMPLES)]


def output_entry(entry: TensorEntry) -> OutputEntry:
    """An entry of a file, to be written to another one."""
    messages = tuple(extent.length for extent in entry.extents) if entry.dtype is MAP_TENSOR else ()
    return OutputEntry(entry.name, entry.dtype, entry.shape, entry.text, messages)

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
from reshard.core.files.any_format import format_of, read_index
from reshard.core.files.ckpt import CRC_MARK, CRC_TRAILER_BYTES, Head
from reshard.core.files.ckpt_writing import expected_heads
from reshard.core.files.model import CheckpointFormat, FileIndex
from reshard.core.runtime.records import Record
from reshard.core.storage.joined import JoinedFile
from reshard.core.storage.reading import SourceFile

Item = TypeVar("Item")

_SAMPLES = 3
"""Samples from all over a file, and as many of names with the most numbers."""
_NUMBER = re.compile(r"\d+")


def header_mismatch(rank: int, location: str, name: str, offset: int) -> CatalogError:
    """Return the error for a parameter that is elsewhere than assumed."""
    return CatalogError(
        f"rank_{rank}: {location}: parameter {name!r} does not begin at byte {offset}, as it does in a file of the "
        "same size that was like this one in samples. It is damaged, or in another order: copy the checkpoint to a "
        "local disk, where every file's headers are read, and convert it from there"
    )


class Template(Record):
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
        return [*((head.offset, len(head.data)) for head in self.samples), (trailer, len(CRC_MARK))]

    def fits(self, found: Sequence[bytes]) -> bool:
        """True if another file may have the same headers, given its bytes at `sampled`."""
        *heads, trailer = found
        same_heads = all(data == head.data for data, head in zip(heads, self.samples, strict=True))
        return same_heads and (trailer == CRC_MARK) == self.index.has_crc


def read_template(file: SourceFile) -> tuple[FileIndex, Template | None]:
    """Index a remote checkpoint file, and return it as a template for other files, if it is suitable."""
    if isinstance(file, JoinedFile) or format_of(file.location) is not CheckpointFormat.CKPT:
        return read_index(file), None
    heads: list[Head] = []
    index = read_index(file, heads)
    return index, template_of(index, heads)


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

"""Reads several files of one directory as one: the parts of a checkpoint file that were written one by one.

Their location has what differs in braces, as a shell would expand it: `net_0_part{0,1}.ckpt`,
`{model-0000000-0000002,opt-0000000-0000002}.safetensors`.
"""

import posixpath
import re
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate
from typing import TYPE_CHECKING

from reshard.core.storage.urls import Location

if TYPE_CHECKING:
    from reshard.core.storage.reading import SourceFile

_JOINED = re.compile(r"(?P<stem>.+_part)\{(?P<parts>[0-9]+(?:,[0-9]+)+)\}(?P<extension>\.[^.{}]+)", re.DOTALL)
_FILE_OF_KIND = r"(?:[^{},/]+-)?(?:model|opt)-[0-9]{7,}-[0-9]{7,}"
_JOINED_FILES = re.compile(
    rf"(?P<stem>)\{{(?P<parts>{_FILE_OF_KIND}(?:,{_FILE_OF_KIND})+)\}}(?P<extension>\.safetensors)", re.DOTALL
)


def joined_name(stem: str, numbers: Sequence[int], extension: str) -> str:
    """Return the joint name of the files `{stem}{number}{extension}`; `stem` ends in `_part`."""
    return f"{stem}{{{','.join(map(str, numbers))}}}{extension}"


def joined_files(names: Sequence[str]) -> str:
    """Return the joint name of files with the same extension; a single one's own."""
    if len(names) == 1:
        return names[0]
    extension = posixpath.splitext(names[0])[1]
    return f"{{{','.join(name.removesuffix(extension) for name in names)}}}{extension}"


def parts_of(location: Location) -> tuple[Location, ...]:
    """Return the files that a joint name denotes; none for any other location."""
    return tuple(location.parent.child(name) for name in _names_of(location.name))


def files_of(path: str) -> tuple[str, ...]:
    """Return the paths of the files that a path, perhaps with a joint name, denotes: at least its own."""
    folder, slash, name = path.rpartition("/")
    return tuple(f"{folder}{slash}{each}" for each in _names_of(name)) or (path,)


def _names_of(name: str) -> list[str]:
    match = _JOINED.fullmatch(name) or _JOINED_FILES.fullmatch(name)
    if match is None:
        return []
    return [f"{match['stem']}{part}{match['extension']}" for part in match["parts"].split(",")]


class JoinedFile:
    """Files read as one, in their order; thread-safe if they are.

    Attributes:
        parts: the files.
        offsets: first byte of each file in the joint one.
    """

    def __init__(self, location: Location, parts: "Sequence[SourceFile]") -> None:
        self.location = location
        self.parts = tuple(parts)
        *self.offsets, self.size_bytes = accumulate((part.size_bytes for part in parts), initial=0)
        self.version = "+".join(part.version for part in parts)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from the bytes at `offset`."""
        for number, start, length in self._pieces(offset, len(buffer)):
            self.parts[number].read_into(start, buffer[:length])
            buffer = buffer[length:]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each range (offset, length)."""
        pieces = [list(self._pieces(offset, length)) for offset, length in ranges]
        wanted: dict[int, list[tuple[int, int]]] = {}
        for number, start, length in (piece for of_range in pieces for piece in of_range):
            wanted.setdefault(number, []).append((start, length))
        found = {number: iter(self.parts[number].read_many(asked)) for number, asked in wanted.items()}
        return [b"".join(next(found[number]) for number, _, _ in of_range) for of_range in pieces]

    def close(self) -> None:
        """Close the files."""
        with ExitStack() as closing:
            for part in self.parts:
                closing.callback(part.close)

    def _pieces(self, offset: int, length: int) -> list[tuple[int, int, int]]:
        """Split a range into (part number, offset in the part, length); bytes beyond the end fall to the last part."""
        pieces = []
        for number, begin in enumerate(self.offsets):
            end = begin + self.parts[number].size_bytes if number + 1 < len(self.parts) else offset + length
            start, stop = max(offset, begin), min(offset + length, end)
            if start < stop:
                pieces.append((number, start - begin, stop - start))
        return pieces

"""Checkpoint directories of small files, on a local disk or in memory, and their catalogs."""

import json
from collections.abc import Callable
from typing import Any

import fsspec

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.files.model import TensorEntry
from reshard.core.layouts.cataloging import catalog_of
from reshard.core.layouts.ranks.checkpoint import FoundRanks
from reshard.core.layouts.source_layout import CatalogOptions
from reshard.core.layouts.survey import survey
from reshard.core.storage.reading import open_source


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field."""
    length, prefix = len(content), bytearray()
    while length > 127:
        prefix.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2]) + bytes(prefix) + bytes([length]) + content


def ckpt(*names: str, content: bytes = b"\1\2\3\4") -> bytes:
    """A `.ckpt` file of UInt8 vectors."""
    return b"".join(field(1, field(1, name.encode()) + tensor(len(content), content)) for name in names)


def tensor(length: int, content: bytes) -> bytes:
    """A TensorProto of a vector of `length` and of some or all of its content."""
    dims = b"\x08" + bytes([length & 127 | 128, length >> 7])
    return field(2, dims + field(2, b"UInt8") + field(3, content))


def safetensors(metadata: dict[str, str]) -> bytes:
    header = json.dumps({"__metadata__": metadata, "w": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\1\2"


class Source:
    """A directory being filled, under its URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._base = fsspec.url_to_fs(url)

    def add(self, *paths: str, data: bytes | None = None) -> "Source":
        for path in paths:
            place = f"{self._base}/{path}"
            self._fs.makedirs(place.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(place, ckpt("w") if data is None else data)
        return self

    def add_ranks(self, count: int, name: str = "CKP-1_2.ckpt") -> "Source":
        return self.add(*(f"rank_{rank}/{name}" for rank in range(count)))


def build_catalog(url: str, ranks: range | None, **options: Any) -> CheckpointCatalog:
    """The catalog of what is at a URL."""
    return catalog_of(survey(url, options.get("step") or ""), CatalogOptions(ranks=ranks, **options))


def found_ranks(url: str) -> FoundRanks:
    """What is found of a checkpoint of ranks."""
    found = survey(url)
    assert isinstance(found, FoundRanks)
    return found


def catalog(url: str, ranks: int | None, **options: Any) -> CheckpointCatalog:
    return build_catalog(url, None if ranks is None else range(ranks), **options)


def everything(rank: int, entry: TensorEntry) -> bool:
    return True


def rank_contents(rank: int, names: str) -> bytes:
    """Parameters whose contents tell rank and name."""
    return b"".join(ckpt(name, content=bytes([rank]) * 150 + name.encode()) for name in names)


def failing_on(rank: int, error: Exception) -> Callable[..., Any]:
    def open_or_fail(location: Any, version: str) -> Any:
        if f"rank_{rank}/" in str(location):
            raise error
        return open_source(location, version)

    return open_or_fail


def contents(data: bytes, entry: TensorEntry) -> bytes:
    if entry.text is not None:
        return entry.text.encode()
    return b"".join(data[extent.offset : extent.offset + extent.length] for extent in entry.extents)

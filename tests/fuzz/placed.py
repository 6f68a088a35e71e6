"""Directories of which one file is hostile, and what has to hold of the tensors in such a file."""

from collections.abc import Iterable
from pathlib import Path

from reshard.core.layouts.placed_shards import ShardFile
from reshard.core.storage.urls import Location, parse_url
from reshard.core.tensor.slices import TensorSlice
from tests.fuzz.checkpoints import check_place
from tests.support.places import FIXTURES


def place_beside(directory: Path, origin: str, name: str, data: bytes) -> Location:
    """A copy of a directory of the fixtures, in memory, in which the file of this name has other contents."""
    root = parse_url(f"memory:///fuzz/{origin}/{directory.relative_to(FIXTURES)}")
    for path in directory.iterdir():
        if path.is_file():
            location = root.child(path.name)
            location.store.put(location.path, data if path.name == name else path.read_bytes())
    return root


def check_shards(files: Iterable[ShardFile], name: str, data: bytes) -> None:
    """Look whether what the hostile file has is in it, and inside of the whole tensors."""
    for file in files:
        for shard in file.shards:
            assert TensorSlice.whole(shard.shape).contains(shard.box)
            assert shard.stored.shape == shard.box.shape
            if file.path == name:
                check_place(shard.stored, data)

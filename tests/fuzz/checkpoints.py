"""Checkpoint files: the walk over a `.ckpt`, local and remote, files that are compared with others, and safetensors."""

from concurrent.futures import ThreadPoolExecutor

from core.checkpoint.formats import check_crc, read_index
from core.checkpoint.indexing import Indexed, Workers, read_indexes
from core.checkpoint.model import FileIndex
from core.errors import CheckpointError, InputError
from tests.fuzz.mutations import damaged_protobuf, damaged_safetensors
from tests.fuzz.parsers import FIXTURES, Parser
from tests.support.remote_file import RemoteFile

_NAME = "hostile_file"


def _ckpt_seeds() -> list[bytes]:
    paths = [FIXTURES / "formats/plain.ckpt", FIXTURES / "formats/crc.ckpt"]
    paths += sorted(FIXTURES.glob("conversions/case_7001/src/rank_0/*.ckpt"))
    paths += sorted(FIXTURES.glob("formats/redundancy_removed/**/*.ckpt"))[:1]
    return [path.read_bytes() for path in paths]


def _safetensors_seeds() -> list[bytes]:
    paths = [FIXTURES / "formats/plain.safetensors", FIXTURES / "formats/crc.safetensors"]
    paths += sorted(FIXTURES.glob("formats/redundancy_removed/**/*.safetensors"))[:1]
    texts = (
        b'{"__metadata__":{"format":"ms","text:t":"x","w":"Int4"},"w":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}'
    )
    return [len(texts).to_bytes(8, "little") + texts + b"ab", *(path.read_bytes() for path in paths)]


def _file(data: bytes, url: str) -> RemoteFile:
    return RemoteFile([(0, data)], len(data), url)


def _checked(file: RemoteFile) -> FileIndex:
    """The index of a file, which tells only of what is there; its CRC is looked at, and may be wrong."""
    index = read_index(file)
    assert index.size_bytes == file.size_bytes
    for name, entry in index.entries.items():
        assert entry.name == name
        assert all(0 <= extent.offset <= extent.offset + extent.length <= file.size_bytes for extent in entry.extents)
        assert entry.text is not None or sum(extent.length for extent in entry.extents) == entry.size_bytes
    if index.has_crc:
        try:
            check_crc(file, index)
        except CheckpointError as error:
            assert _NAME in str(error)
    return index


def _parse_ckpt(data: bytes) -> None:
    _checked(_file(data, f"/x/{_NAME}.ckpt"))


def _parse_safetensors(data: bytes) -> None:
    _checked(_file(data, f"/x/{_NAME}.safetensors"))


def _parse_both_ways(data: bytes) -> None:
    """A remote file holds what the same file holds when it is local."""
    try:
        local = _checked(_file(data, f"/x/{_NAME}.ckpt"))
    except InputError:
        local = None
    try:
        remote = _checked(_file(data, f"memory:///x/{_NAME}.ckpt"))
    except InputError as error:
        assert _NAME in str(error)
        remote = None
    assert remote == local


_POOL = ThreadPoolExecutor(2)


def _index_among_others(data: bytes) -> None:
    """One hostile file among sound ones, of its size if that can be."""
    sound = (FIXTURES / "conversions/case_7001/src/rank_0/checkpoint_0.ckpt").read_bytes()
    data = (data + sound[len(data) :])[: len(sound)] if len(data) % 2 else data
    contents = {0: sound, 1: data, 2: sound, 3: data[::-1], 4: data}
    files = {rank: _file(each, f"memory:///x/rank_{rank}/{_NAME}.ckpt") for rank, each in contents.items()}
    found = read_indexes(files, Workers(_POOL), assume_alike=True)
    assert found.keys() == files.keys()
    assert isinstance(found[0], Indexed)
    for outcome in found.values():
        assert isinstance(outcome, Indexed) or (isinstance(outcome, InputError) and _NAME in str(outcome))


CKPT = Parser("ckpt", _ckpt_seeds, _parse_ckpt, (damaged_protobuf,), _NAME)
CKPT_REMOTE = Parser("ckpt-remote", _ckpt_seeds, _parse_both_ways, (damaged_protobuf,), _NAME)
CKPT_AMONG_OTHERS = Parser("ckpt-among-others", _ckpt_seeds, _index_among_others, (damaged_protobuf,), _NAME)
SAFETENSORS = Parser("safetensors", _safetensors_seeds, _parse_safetensors, (damaged_safetensors,), _NAME)

"""Checkpoint files: the walk over a `.ckpt`, local and remote, files that are compared with others, and safetensors."""

import json
import pickle
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from reshard.core.errors import CheckpointError, InputError
from reshard.core.files.any_format import check_crc, read_index
from reshard.core.files.encryption.cipher_blocks import MAGICS
from reshard.core.files.encryption.decrypted_source import DecryptedSource
from reshard.core.files.encryption.encrypted_output import EncryptedOutput
from reshard.core.files.map_parameters import build_map_parameter, parse_map_parameter
from reshard.core.files.model import FileIndex, OutputEntry
from reshard.core.files.remote_index.indexing import Indexed, Workers, read_indexes
from reshard.core.files.scalars import json_value, read_scalars
from reshard.core.files.torch_file import read_torch_file
from reshard.core.files.torch_file_writing import TensorPlace
from reshard.core.files.torch_views import StoredTensor
from reshard.core.files.torch_zip import read_stored_tensors
from reshard.core.layouts.dcp.metadata import parse_dcp_metadata
from reshard.core.runtime.keys import EncryptionMode, Key
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.storage.store import Buffer
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.slices import Extent
from tests.fuzz.mutations import damaged_archive, damaged_protobuf, damaged_safetensors, lying_torch_file
from tests.fuzz.parsers import Parser
from tests.support.dcp import archive, saved_tensor
from tests.support.places import FIXTURES
from tests.support.remote_file import RemoteFile
from tests.support.torch_files import tensors_of, written

_NAME = "hostile_file"


def _ckpt_seeds() -> list[bytes]:
    paths = [FIXTURES / "formats/plain.ckpt", FIXTURES / "formats/crc.ckpt"]
    paths += sorted(FIXTURES.glob("conversions/case_7001/src/rank_0/*.ckpt"))
    paths += sorted(FIXTURES.glob("formats/redundancy_removed/src_ckpt/**/*.ckpt"))[:1]
    return [path.read_bytes() for path in paths]


def _safetensors_seeds() -> list[bytes]:
    paths = [FIXTURES / "formats/plain.safetensors", FIXTURES / "formats/crc.safetensors"]
    paths += sorted(FIXTURES.glob("formats/redundancy_removed/src_safetensors/**/*.safetensors"))[:1]
    texts = (
        b'{"__metadata__":{"format":"ms","text:t":"x","w":"Int4"},"w":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}'
    )
    return [len(texts).to_bytes(8, "little") + texts + b"ab", *(path.read_bytes() for path in paths)]


def _file(data: bytes, url: str) -> RemoteFile:
    return RemoteFile([(0, data)], len(data), url)


def _checked(file: RemoteFile) -> FileIndex:
    """The index of a file, which covers only what is there; its CRC is checked, and may be wrong."""
    index = read_index(file)
    assert index.size_bytes == file.size_bytes
    for name, entry in index.entries.items():
        assert entry.name == name
        for extent in entry.extents:
            assert min(extent.offset, extent.length) >= 0
            assert extent.offset + extent.length <= file.size_bytes
        assert entry.text is not None or sum(extent.length for extent in entry.extents) == entry.size_bytes
    values = read_scalars(file, index)
    json.dumps({name: json_value(value) for name, value in values.items()}, allow_nan=False)
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
        assert isinstance(outcome, Indexed) or _NAME in str(outcome)


def _map_parameters() -> list[bytes]:
    arrays = [np.arange(4, dtype=np.int32), np.ones((4, 2), np.float32), np.zeros(4, np.int32)]
    return [build_map_parameter(arrays), build_map_parameter(arrays[:1]), b""]


def _parse_map_parameter(data: bytes) -> None:
    arrays = parse_map_parameter([data, data], _NAME)
    assert sum(array.nbytes for array in arrays) <= 2 * len(data)


_KEYS = {
    mode: Key(key.encode(), mode)
    for mode, key in {
        EncryptionMode.AES_GCM: "0123456789abcdef",
        EncryptionMode.AES_CBC: "0123456789abcdef0123456789abcdef",
        EncryptionMode.SM4_CBC: "0123456789abcdef",
    }.items()
}


class _Written(bytearray):
    """What is written of an encrypted file."""

    def write(self, buffer: Buffer) -> None:
        self.extend(buffer)


def _encrypted_seeds() -> list[bytes]:
    """MindSpore's files, files of many blocks, and an early one: of one block without a tag."""
    paths = sorted(FIXTURES.glob("formats/encrypted_*.ckpt"))
    plain = (FIXTURES / "formats/plain.ckpt").read_bytes()
    seeds = [path.read_bytes() for path in paths]
    for key in _KEYS.values():
        written = _Written()
        output = EncryptedOutput(written, key, block_bytes=400)
        output.write(plain)
        output.finish()
        seeds.append(bytes(written))
    tagged = next(seed for seed in seeds if seed.startswith(MAGICS[EncryptionMode.AES_GCM]))
    return [*seeds, tagged[:4] + tagged[20:]]


def _parse_encrypted(data: bytes) -> None:
    """The same is read from it whether it is local or remote, streamed or not, with whichever of the keys opens it."""
    for key in _KEYS.values():
        outcomes: list[tuple[bytes, FileIndex | None] | None] = []
        for url in (f"/x/{_NAME}.ckpt", f"memory:///x/{_NAME}.ckpt"):
            try:
                outcomes.append(_plain(data, url, key))
            except InputError as error:
                assert _NAME in str(error)
                outcomes.append(None)
        assert outcomes[0] == outcomes[1]


def _plain(data: bytes, url: str, key: Key) -> tuple[bytes, FileIndex | None]:
    file = _file(data, url)
    file.version = str(zlib.crc32(data))
    source = DecryptedSource(file, key)
    assert source.size_bytes <= len(data)
    [plain] = source.read_many([(0, source.size_bytes)])
    buffer = bytearray(len(plain) // 2)
    source.read_into(len(plain) // 3, memoryview(buffer))
    assert buffer == plain[len(plain) // 3 :][: len(buffer)]
    source.check_tags()
    try:
        return plain, read_index(source)
    except InputError as error:
        assert _NAME in str(error)
        return plain, None


CKPT = Parser("ckpt", _ckpt_seeds, _parse_ckpt, (damaged_protobuf,), _NAME)
CKPT_REMOTE = Parser("ckpt-remote", _ckpt_seeds, _parse_both_ways, (damaged_protobuf,), _NAME)
CKPT_AMONG_OTHERS = Parser("ckpt-among-others", _ckpt_seeds, _index_among_others, (damaged_protobuf,), _NAME)
ENCRYPTED = Parser("encrypted", _encrypted_seeds, _parse_encrypted, (), _NAME)
MAP_PARAMETER = Parser("map-parameter", _map_parameters, _parse_map_parameter, (damaged_protobuf,), _NAME)
SAFETENSORS = Parser("safetensors", _safetensors_seeds, _parse_safetensors, (damaged_safetensors,), _NAME)


def _archives() -> list[bytes]:
    """Files of one tensor each, as torch wrote them, and views."""
    seeds = []
    for name in ("case_dtypes", "case_single"):
        path = FIXTURES / "dcp" / name / "src"
        for tensor in parse_dcp_metadata((path / ".metadata").read_bytes(), name).tensors.values():
            place = tensor.chunks[0].place
            seeds.append((path / place.path).read_bytes()[place.offset :][: place.length])
    return [*seeds, saved_tensor(bytes(48), "FloatStorage", 4, (3, 2), (1, 4), 2)]


def _parse_archive(data: bytes) -> None:
    file = _file(data, f"/x/{_NAME}.distcp")
    [tensor] = read_stored_tensors(file, [Extent(0, len(data))])
    check_place(tensor, data)


def check_place(tensor: StoredTensor, data: bytes) -> None:
    """Look whether a tensor is in its file."""
    if tensor.extent is not None:
        assert tensor.extent.offset + tensor.extent.length <= len(data)
        return
    assert tensor.strided is not None
    ends = [(length - 1) * stride for length, stride in zip(tensor.shape, tensor.strided.strides, strict=True)]
    assert tensor.strided.offset + sum(ends) + tensor.dtype.itemsize <= len(data)


TORCH_ARCHIVE = Parser("torch-archive", _archives, _parse_archive, (damaged_archive,), _NAME)


def _torch_files() -> list[bytes]:
    """Files of many tensors, below dicts of every kind, and with objects that are kept as records."""
    entries = {name: (OutputEntry(name, dtype_from_name(name), (2, 3)), b"") for name in ("Float32", "UInt16")}
    entries = {name: (entry, bytes(entry.size_bytes)) for name, (entry, _) in entries.items()}
    ordered = PickledObject(Global("collections", "OrderedDict"), (), Pairs([("_metadata", 1)]), Pairs([("a", 1)]))
    namespace = PickledObject(Global("argparse", "Namespace"), (), Pairs([("made", Global("x", "Made"))]))
    root = {"args": namespace, "model": {name: TensorPlace(name) for name in entries}, "other": [ordered, b"x", 1.5]}
    objects = pickle.dumps({"args": {"names": {1, 2}, "frozen": frozenset([3])}, "bytes": b"x" * 300}, 4)
    return [written(root, entries), *_archives(), archive({"data.pkl": objects, "byteorder": b"little"})]


def _parse_torch_file(data: bytes) -> None:
    """A remote file is found to hold what the same file holds when it is local, but for headers that are not read."""
    found = read_torch_file(_file(data, f"/x/{_NAME}.pt"), inert=("args",))
    for tensor in tensors_of(found.root):
        check_place(tensor, data)
    assert repr(read_torch_file(_file(data, f"memory:///x/{_NAME}.pt"), inert=("args",))) == repr(found)


TORCH_FILE = Parser(
    "torch-file", _torch_files, _parse_torch_file, (damaged_archive, lying_torch_file), _NAME, memory_factor=200
)

"""Names in a directory that PyTorch's Distributed Checkpoint (DCP) wrote, or a library after its model.

.metadata                                                   the sharding and the places of all tensors; written last
__0_0.distcp, __{rank}_{n}.distcp                           tensors and objects; the names mean nothing
_rank0_.safetensors, NAME_rank0.bytes                       the same of hyper_parallel, which is for MindSpore
__0.metadata, .rank0_metadata                               in place of .metadata, if each rank saved for itself
shard-00001-model-00001-of-00002.safetensors                of its writer for Hugging Face, which writes no .metadata
"""

import posixpath
import re
from collections.abc import Sequence

DCP_METADATA_NAME = ".metadata"
MAX_METADATA_BYTES = 2 << 30
_SHARD = re.compile(r"shard-\d{5,}-.+-\d{5,}-of-\d{5,}\.safetensors", re.ASCII | re.DOTALL)
_OWN_METADATA = re.compile(r"__\d+\.metadata|\.rank\d+_metadata", re.ASCII)
_DATA_SUFFIX = ".distcp"
_DATA = re.compile(r"__\d{1,18}_\d{1,18}\.distcp", re.ASCII)
_NUMBERS = re.compile(r"\d+", re.ASCII)
_MAX_PATH_CHARACTERS = 1024


def data_name(number: int) -> str:
    """Return the name of a file of tensors, as torch's ranks name them."""
    return f"__{number}_0{_DATA_SUFFIX}"


def is_data_name(name: str) -> bool:
    """True for the name that torch gives a file of tensors, or `data_name` does."""
    return _DATA.fullmatch(name) is not None


def is_dcp(names: Sequence[str]) -> bool:
    """True if names are those of a DCP directory, complete or not."""
    return (
        DCP_METADATA_NAME in names
        or any(name.endswith(_DATA_SUFFIX) or _OWN_METADATA.fullmatch(name) for name in names)
        or bool(shard_names(names))
    )


def shard_names(names: Sequence[str]) -> list[str]:
    """Return the files of DCP's writer for Hugging Face, in order."""
    return sorted(name for name in names if _SHARD.fullmatch(name))


def own_metadata_names(names: Sequence[str]) -> list[str]:
    """Return the metadata that ranks wrote each for itself."""
    return sorted((name for name in names if _OWN_METADATA.fullmatch(name)), key=file_order)


def file_order(name: str) -> tuple[list[int], str]:
    """Sort key of files: by the numbers in their names."""
    return [int(number[:18]) for number in _NUMBERS.findall(name)], name


def is_inside(path: str) -> bool:
    """True if a path in metadata names a file in the directory or below."""
    return (
        0 < len(path) <= _MAX_PATH_CHARACTERS
        and not any(character in path for character in "\\\0")
        and posixpath.normpath(path) == path
        and not any(part in ("", ".", "..") for part in path.split("/"))
    )

"""One rank's files of a model and of its optimizer, as data: nothing in them is run.

model_world_size_4_rank_0.pt    OrderedDict {name: DTensor, or a plain tensor if it is a buffer}
optim_world_size_4_rank_0.pt    {"state": {number: {"step": tensor, "exp_avg": DTensor, …}}, "param_groups": […]}
"""

from collections.abc import Mapping
from contextlib import closing

from reshard.core.errors import CatalogError, CheckpointError, LayoutError
from reshard.core.files.torch_file import read_torch_file, text_fields
from reshard.core.layouts.fsdp.dtensors import KNOWN_NAMES, LocalShard, ShardReader
from reshard.core.layouts.fsdp.names import RankName
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.reading import SourceFile, open_source
from reshard.core.storage.urls import Location

_MAX_LISTED = 4
_FLAT = "flat_param"
"""Part of the names of FSDP1's flat parameters, which say nothing of what is in them."""
_SHARDED_TENSOR = "ShardedTensor"


class RankFile(Record):
    """A rank's file, after its headers were read; `path` is below the model's directory."""

    path: str
    location: str
    size_bytes: int
    version: str
    rank: int

    @classmethod
    def of(cls, name: RankName, file: SourceFile) -> "RankFile":
        """Return what is known of an open file."""
        return cls(file.location.name, str(file.location), file.size_bytes, file.version, name.rank)


class ModelFile(Record):
    """What a rank has of the model, by name, in the file's order."""

    file: RankFile
    shards: Mapping[str, LocalShard]


def read_model_file(location: Location, name: RankName) -> ModelFile:
    """Read a rank's model from its headers.

    Raises:
        CheckpointError: it is damaged, or no state dict of tensors.
        CatalogError: tensors in it are not DTensors of this rank; lists them.
        StorageError: it cannot be read.
    """
    with closing(open_source(location)) as file:
        root = read_root(file)
        opened = RankFile.of(name, file)
    items = text_fields(root)
    if items is None or not items:
        raise CheckpointError(f"{location}: is not a state dict: it must be a dict of tensors by their names")
    reader = ShardReader(name.rank, name.world)
    shards: dict[str, LocalShard] = {}
    problems: dict[str, list[str]] = {}
    for key, value in items.items():
        try:
            if _FLAT in key.split(".")[-1]:
                raise LayoutError(
                    "it is a flat parameter of FSDP1: save the state dict as SHARDED_STATE_DICT, with a device mesh"
                )
            shards[key] = reader.shard(value)
        except LayoutError as error:
            problems.setdefault(error.marked, []).append(repr(key))
    if problems:
        lines = [f"{listed(keys, _MAX_LISTED)}: {problem}" for problem, keys in problems.items()]
        raise CatalogError(f"{location}: cannot be read: {listed(lines, _MAX_LISTED, '; ')}")
    return ModelFile(opened, shards)


def read_root(file: SourceFile) -> object:
    """Read the tree of a rank's file.

    Raises:
        CheckpointError: it is damaged, or has objects that are not known.
        CatalogError: it has tensors of FSDP1 without a device mesh.
        StorageError: it cannot be read.
    """
    try:
        return read_torch_file(file, known=KNOWN_NAMES).root
    except CheckpointError as error:
        if _SHARDED_TENSOR not in str(error):
            raise
        raise CatalogError(
            f"{error.marked}. FSDP1 saves {_SHARDED_TENSOR}s if it has no device mesh: load the checkpoint in its "
            "training, and save it with torch.distributed.checkpoint, or with a device mesh"
        ) from error

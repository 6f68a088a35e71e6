"""What Megatron-Core adds to a DCP checkpoint (`torch_dist`), as its version 0.16.1 writes it.

    .metadata, __0_0.distcp, …    DCP's; also of `all_local_plans`, the ranks' plans of saving, which are not needed
    common.pt                     a pickle of all that is not sharded: arguments, iteration, schedules; not read
    metadata.json                 {"sharded_backend": "torch_dist", …}; written last

Layers that are alike are one tensor, its first axis their number: `decoder.layers.mlp.linear_fc1.weight`. The tensors
of the optimizer (`optimizer.…`, `chained_0.optimizer.…`) have layouts of their own, which depend on Megatron's options.
"""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from reshard.core.errors import CatalogError
from reshard.core.layouts.dcp.metadata import DcpMetadata
from reshard.core.runtime.metadata import load_json
from reshard.core.runtime.wording import counted, listed
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location

MEGATRON_NAMES = ("common.pt", "metadata.json")
_COMMON_NAME, _CONFIG_NAME = MEGATRON_NAMES
_MAX_CONFIG_BYTES = 1 << 16
_BACKEND = ("torch_dist", 1)
_OPTIMIZER = re.compile(r"(chained_\d+\.)?optimizer\.", re.ASCII)
_MAX_LISTED = 3


def is_megatron(names: Sequence[str]) -> bool:
    """True if a directory of DCP with these names is Megatron's, complete or not."""
    return _COMMON_NAME in names


def weights_of_megatron(directory: Location, names: Sequence[str], found: DcpMetadata) -> tuple[DcpMetadata, str]:
    """Return the metadata with the optimizer's tensors left out, and a note of what is left out.

    Raises:
        CatalogError: the checkpoint is incomplete, of another format, or has no weights.
        StorageError: the storage does not answer.
    """
    if _CONFIG_NAME not in names:
        raise CatalogError(
            f"{directory}: has Megatron's {_COMMON_NAME}, but no {_CONFIG_NAME}, which is written last: it was not "
            "saved completely"
        )
    _check_config(directory.child(_CONFIG_NAME))
    optimizer = {name: tensor for name, tensor in found.tensors.items() if _OPTIMIZER.match(name)}
    weights = {name: tensor for name, tensor in found.tensors.items() if not _OPTIMIZER.match(name)}
    if not weights:
        raise CatalogError(
            f"{directory}: has no weights, only Megatron's optimizer state, which reshard does not convert"
        )
    note = f"left out: Megatron's {_COMMON_NAME}, a pickle of arguments and schedules"
    if optimizer:
        what = f"{counted(len(optimizer), 'tensor')} of its optimizer, which only Megatron can take up"
        note += f"; {what}: {listed(list(optimizer), _MAX_LISTED)}"
    return replace(found, tensors=weights, unread=tuple(optimizer.values())), note


def _check_config(location: Location) -> None:
    try:
        document = load_json(read_small_file(location, _MAX_CONFIG_BYTES), location)
    except (ValueError, RecursionError) as error:
        raise CatalogError(f"{location}: cannot be read as JSON: {error}") from error
    fields = document if isinstance(document, dict) else {}
    backend = fields.get("sharded_backend"), fields.get("sharded_backend_version")
    if backend != _BACKEND:
        raise CatalogError(
            f"{location}: says that Megatron's sharded_backend is {backend[0]!r}, version {backend[1]!r}: reshard "
            f"reads {_BACKEND[0]}, version {_BACKEND[1]}"
        )

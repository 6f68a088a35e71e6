"""Names of weights in MXFP4: one in blocks and one of their scales, in place of the weight's own."""

from collections.abc import Mapping
from typing import TypeVar

BLOCKS, SCALES = "_blocks", "_scales"

Value = TypeVar("Value")


def packed_names(names: Mapping[str, Value]) -> dict[str, Value]:
    """Return the names that weights in MXFP4 have once they are unpacked -> what is known of their blocks."""
    stems = (name.removesuffix(SCALES) for name in names if name.endswith(SCALES))
    return {stem: names[f"{stem}{BLOCKS}"] for stem in stems if f"{stem}{BLOCKS}" in names}


def without_packed(names: Mapping[str, Value]) -> dict[str, Value]:
    """Return the names once weights in MXFP4 are unpacked, in their order."""
    unpacked = packed_names(names)
    gone = {f"{stem}{SCALES}" for stem in unpacked}
    renamed = {f"{stem}{BLOCKS}": stem for stem in unpacked}
    return {renamed.get(name, name): value for name, value in names.items() if name not in gone}

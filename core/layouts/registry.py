"""The only list of layouts: a new one is a package beside this module, and a name here for each direction that it has.

Packages are loaded when they are asked: who only wants the names, such as a request, loads none.
What can only be recognized, to be named in a refusal, is an entry of the table in `foreign`.
"""

from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reshard.core.layouts.source_layout import SourceLayout


class TargetLayout(StrEnum):
    """The files that the target is made of."""

    RANKS = "ranks"
    UNIFIED = "unified"
    CHECKPOINT2 = "checkpoint2"
    TORCH_DIST = "torch_dist"
    DCP = "dcp"
    MEGATRON = "megatron"
    UNIVERSAL = "universal"


SOURCE_NAMES: tuple[str, ...] = (
    "torch_dist",
    "dcp",
    "fsdp",
    "megatron",
    "checkpoint2",
    "unified",
    "universal",
    "deepspeed",
    "torch",
    "ranks",
)
"""What can be read, in the order in which they are asked: those that are sure by their names first."""


@cache
def source_layouts() -> tuple["SourceLayout", ...]:
    """Return what can be read, each as the module `source` of its package has it."""
    return tuple(import_module(f"reshard.core.layouts.{name}.source").SOURCE for name in SOURCE_NAMES)

"""Names in a directory of MindFormers' Checkpoint 2.0.

ROOT/latest_checkpointed_iteration.txt    the iteration to load
ROOT/iteration_00000040/                  one iteration:
    [PREFIX-]model-0000000-0000004.safetensors, [PREFIX-]opt-…    number and count of the files of a kind
    metadata.json, common.json

The number in a file's name is the writer's rank only where nothing was deduplicated.
"""

import re

from reshard.core.layouts.tracker import Tracker
from reshard.core.runtime.records import Record

TRACKER = Tracker()
METADATA_NAME = "metadata.json"
COMMON_NAME = "common.json"
COMMON_KEYS = ("epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "ckpt_status")
"""Keys in common.json that every version of MindFormers knows, in its order."""
MAX_METADATA_BYTES = 2 << 30
MAX_COMMON_BYTES = 1 << 20
UNLISTED_PARAMETERS = frozenset({"global_step"})
"""Parameters that are in files, but never in the metadata."""
MODEL, OPTIMIZER = "model", "opt"
"""Kinds of files: the network's parameters; everything else."""

_ITERATION = re.compile(r"iteration_(\d{8,18})", re.ASCII)
_FILE = re.compile(
    r"(?:(?P<prefix>.+)-)?(?P<kind>model|opt)-(?P<number>\d{7,18})-(?P<count>\d{7,18})\.safetensors", re.ASCII
)
_UNSAFE = re.compile(r"[/\\{},\0]")
"""Characters that lead out of the directory, or that names of joined files are made with."""


class TensorFileName(Record):
    """The parsed name of a file of tensors."""

    name: str
    prefix: str
    kind: str
    number: int
    count: int


def iteration_name(number: int) -> str:
    """Return the name of an iteration's directory."""
    return f"iteration_{number:08d}"


def parse_iteration(name: str) -> int | None:
    """Return the number in the name of an iteration's directory; None for any other name."""
    match = _ITERATION.fullmatch(name)
    return int(match[1]) if match else None


def tensor_file_name(kind: str, number: int, count: int, prefix: str = "") -> str:
    """Return the name of a file of tensors, one of `count` of its kind."""
    return f"{prefix}-{kind}-{number:07d}-{count:07d}.safetensors".removeprefix("-")


def parse_tensor_file(name: str) -> TensorFileName | None:
    """Parse the name of a file of tensors; None for any other name."""
    match = _FILE.fullmatch(name)
    if match is None or _UNSAFE.search(name) or name.startswith("."):
        return None
    return TensorFileName(name, match["prefix"] or "", match["kind"], int(match["number"]), int(match["count"]))

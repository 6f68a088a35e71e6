"""Names that DeepSpeed gives to files and directories.

latest                                              the tag of the newest save, written last
global_step40/                                      a tag; a training may choose another name
    mp_rank_00_model_states.pt                      stages 1 and 2
    zero_pp_rank_3_mp_rank_00_model_states.pt       stage 3, one for each rank
    bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt  one for each rank; the prefix is bf16's
"""

import re
from collections.abc import Sequence
from enum import StrEnum

from reshard.core.errors import CatalogError
from reshard.core.layouts.tracker import read_tracked
from reshard.core.runtime.records import Record
from reshard.core.storage.urls import Location

LATEST_NAME = "latest"
_TAG = re.compile(r"global_step(\d{1,18})", re.ASCII)
_RANK_FILE = re.compile(
    r"(?:(?P<prefix>[a-z0-9]+_)?zero_pp_rank_(?P<rank>0|[1-9]\d{0,8})_)?"
    r"mp_rank_(?P<tensor>\d{2,9})_(?P<kind>model|optim)_states\.pt",
    re.ASCII,
)
_PARALLEL = (
    (re.compile(r"layer_\d+-(model_\d+-)?model_states\.pt", re.ASCII), "pipeline parallelism"),
    (re.compile(r"(layer_\d+_)?expert_\d+_mp_rank_\d+_model_states\.pt", re.ASCII), "experts in files of their own"),
    (re.compile(r"expp_rank_\d+_mp_rank_\d+_optim_states\.pt", re.ASCII), "experts in files of their own"),
)
"""Names of files -> what a training has that writes them."""
_MAX_LATEST_BYTES = 1024


class FileKind(StrEnum):
    """What a file holds: the model, or a rank's part of the optimizer."""

    MODEL = "model"
    OPTIMIZER = "optim"


class RankName(Record, order=True):
    """The parsed name of a file; `rank` is -1 for the model of all ranks, and `prefix` is empty or `bf16_`."""

    rank: int
    tensor: int
    kind: FileKind
    prefix: str
    name: str


def parse_rank_name(name: str) -> RankName | None:
    """Return what the name of a file says; None if it is not one of ZeRO's."""
    match = _RANK_FILE.fullmatch(name)
    if match is None or (match["rank"] is None and match["kind"] == FileKind.OPTIMIZER):
        return None
    rank = -1 if match["rank"] is None else int(match["rank"])
    return RankName(rank, int(match["tensor"]), FileKind(match["kind"]), match["prefix"] or "", name)


def parallelism_of(names: Sequence[str]) -> str:
    """Return what a training has that writes files with other names; empty if none of these is one."""
    return next((what for pattern, what in _PARALLEL for name in names if pattern.fullmatch(name)), "")


def is_tag(names: Sequence[str]) -> bool:
    """True for the names in the directory of a tag."""
    return any(parse_rank_name(name) is not None for name in names) or bool(parallelism_of(names))


def parse_tag(name: str) -> int | None:
    """Return the step in the name of a tag's directory; None for other names."""
    match = _TAG.fullmatch(name)
    return int(match[1]) if match else None


def read_latest(root: Location) -> str | None:
    """Return the tag that is the newest, complete one; None without the file that says it.

    Raises:
        CatalogError: it is not the name of a directory.
        StorageError: it cannot be read.
    """
    location = root.child(LATEST_NAME)
    tag = read_tracked(location, "names no tag", _MAX_LATEST_BYTES)
    if tag is None:
        return None
    if not tag or "/" in tag or tag in (".", "..") or not tag.isprintable():
        raise CatalogError(f"{location}: names no tag: {tag[:40]!r}")
    return tag

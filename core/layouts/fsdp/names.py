"""Names in a training of verl's with FSDP.

latest_checkpointed_iteration.txt      the tracker: the newest step, written last
global_step_40/                        a step; without models below it, it is one itself
  actor/, critic/                      a model each
    model_world_size_4_rank_0.pt       optim_… and extra_state_… beside it, if they were saved
    fsdp_config.json                   how many ranks there are, by rank 0
    huggingface/                       the model's config.json and its tokenizer
    lora_train_meta.json               if the model is adapters
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from reshard.core.errors import CatalogError
from reshard.core.layouts.tracker import Tracker
from reshard.core.runtime.records import Record

TRACKER = Tracker(word="step", problem="names no step")
CONFIG_NAME = "fsdp_config.json"
LORA_NAME = "lora_train_meta.json"
HUGGING_FACE_NAME = "huggingface"
MODELS = ("actor", "critic")
"""Directories of the models of a step, the one that is read first."""
_RANK_FILE = re.compile(r"(model|optim|extra_state)_world_size_([1-9]\d{0,6})_rank_(0|[1-9]\d{0,6})\.pt", re.ASCII)
_STEP = re.compile(r"global_step_(0|[1-9]\d{0,17})", re.ASCII)
_MAX_RANKS = 1 << 16


class FileKind(StrEnum):
    """What a rank's file holds."""

    MODEL = "model"
    OPTIMIZER = "optim"
    EXTRA = "extra_state"


class RankName(Record):
    """The parsed name of a rank's file."""

    kind: FileKind
    world: int
    rank: int


def parse_rank_name(name: str) -> RankName | None:
    """Return what the name of a rank's file says; None for other names."""
    match = _RANK_FILE.fullmatch(name)
    return RankName(FileKind(match[1]), int(match[2]), int(match[3])) if match else None


def rank_names(names: Iterable[str]) -> dict[str, RankName]:
    """Return the names of ranks' files among names, each with what it says."""
    return {name: parsed for name in names if (parsed := parse_rank_name(name)) is not None}


def rank_file_name(kind: FileKind, world: int, rank: int) -> str:
    """Return the name of a rank's file."""
    return f"{kind}_world_size_{world}_rank_{rank}.pt"


def is_model(names: Iterable[str]) -> bool:
    """True if names are those of a model's directory, complete or not."""
    return any(parse_rank_name(name) for name in names)


def step_names(names: Sequence[str]) -> dict[int, str]:
    """Return the steps among names, ascending: number -> name."""
    found = {number: name for name in names if (number := parse_step(name)) is not None}
    return dict(sorted(found.items()))


def parse_step(name: str) -> int | None:
    """Return the number in the name of a step's directory; None for other names."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def missing_ranks(found: Mapping[str, RankName], kind: FileKind, world: int) -> list[str]:
    """Return the names of a kind that some of `world` ranks lack.

    Raises:
        CatalogError: there are too many ranks.
    """
    if world > _MAX_RANKS:
        raise CatalogError(f"{min(found)}: {world} ranks are more than the {_MAX_RANKS} that reshard allows")
    names = (rank_file_name(kind, world, rank) for rank in range(world))
    return [name for name in names if name not in found]

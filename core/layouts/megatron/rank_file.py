"""One rank's file, `model_optim_rng.pt`, as data: nothing in it is run.

    {"args": Namespace(…), "checkpoint_version": 3.0, "iteration": 3, "model": {name: tensor}, "optimizer": {…}, …}

With several chunks there are `model0`, `model1`, … in place of `model`.
"""

import re
from collections.abc import Mapping
from contextlib import closing

from reshard.core.errors import CheckpointError
from reshard.core.files.torch_file import read_torch_file, text_fields
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.megatron.args import MegatronArgs, parse_args
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.storage.reading import SourceFile, open_source
from reshard.core.storage.urls import Location

_VERSION = 3.0
_INERT = ("args", "rng_state", "rerun_state_machine", "opt_param_scheduler", "content_metadata")
_CHUNK = re.compile(r"model(\d{1,4})", re.ASCII)
_EXTRA_STATE = re.compile(r"(.*\.)?_extra_state\d*", re.ASCII | re.DOTALL)
_KNOWN = ("args", "checkpoint_version", "iteration", "optimizer")
_MAX_LISTED = 4
_MOST_ITERATIONS = 10**18

Tensors = Mapping[str, StoredTensor]
"""Name -> tensor, in the order of the file."""


class OpenedFile(Record):
    """A file of a rank, after its headers were read; `path` is below the checkpoint's directory."""

    path: str
    location: str
    size_bytes: int
    version: str

    @classmethod
    def of(cls, path: str, file: SourceFile) -> "OpenedFile":
        """Return what is known of an open file."""
        return cls(path, str(file.location), file.size_bytes, file.version)


class RankFile(Record):
    """What a rank has saved.

    Attributes:
        chunks: the tensors of each chunk of the model.
        optimizer: the optimizer's tree; None without one.
        left_out: other top-level keys.
        extra_states: how many states of modules there are that are not tensors of the model.
    """

    file: OpenedFile
    args: MegatronArgs
    iteration: int | None
    chunks: tuple[Tensors, ...]
    optimizer: object
    left_out: tuple[str, ...]
    extra_states: int


def read_rank_file(location: Location, path: str) -> RankFile:
    """Read a rank's file from its headers.

    Raises:
        CheckpointError: it is damaged, or not what Megatron-Core saves.
        CatalogError: its arguments cannot be used.
        StorageError: it cannot be read.
    """
    with closing(open_source(location)) as file:
        root = read_torch_file(file, inert=_INERT).root
        opened = OpenedFile.of(path, file)
    fields = text_fields(root)
    if fields is None or "args" not in fields:
        raise CheckpointError(f"{location}: has no 'args': it is not a checkpoint of Megatron's training")
    _check_version(fields.get("checkpoint_version"), location)
    chunks, extra_states = _chunks(fields, location)
    return RankFile(
        opened,
        parse_args(fields["args"], str(location)),
        _iteration(fields.get("iteration"), location),
        chunks,
        fields.get("optimizer"),
        tuple(key for key in fields if key not in _KNOWN and key != "model" and not _CHUNK.fullmatch(key)),
        extra_states,
    )


def _check_version(version: object, location: Location) -> None:
    if isinstance(version, bool) or not isinstance(version, int | float) or version != _VERSION:
        raise CheckpointError(
            f"{location}: its checkpoint_version is {str(version)[:20]}, reshard reads {_VERSION}: older ones order "
            "the rows of attention otherwise; load it in Megatron-LM, which reorders them, and save it again"
        )


def _iteration(value: object, location: Location) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_ITERATIONS:
        raise CheckpointError(f"{location}: its iteration is {str(value)[:20]!r}, not a number of steps")
    return value


def _chunks(fields: Mapping[str, object], location: Location) -> tuple[tuple[Tensors, ...], int]:
    """The tensors of each chunk, and the number of states that are left out."""
    numbers = sorted(int(match[1]) for match in map(_CHUNK.fullmatch, fields) if match)
    if bool(numbers) == ("model" in fields) or numbers != list(range(len(numbers))):
        raise CheckpointError(f"{location}: has neither a 'model' nor a 'model0', 'model1' and so on, or has both")
    keys = [f"model{number}" for number in numbers] or ["model"]
    chunks: list[Tensors] = []
    extra_states = 0
    for key in keys:
        tensors: dict[str, StoredTensor] = {}
        items = text_fields(fields[key])
        if items is None:
            raise CheckpointError(f"{location}: its {key!r} is not a dict of tensors with different names")
        others = []
        for name, value in items.items():
            if _EXTRA_STATE.fullmatch(name):
                extra_states += 1
            elif isinstance(value, StoredTensor):
                tensors[name] = value
            else:
                others.append(name)
        if others:
            raise CheckpointError(
                f"{location}: {listed(list(map(repr, others)), _MAX_LISTED)} in its {key!r} are not tensors; reshard "
                "reads models of Megatron-Core: load it in Megatron-LM with --use-mcore-models, and save it again"
            )
        chunks.append(tensors)
    return tuple(chunks), extra_states

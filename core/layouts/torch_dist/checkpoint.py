"""Finds Megatron-Core's `torch_dist` checkpoint at a place: DCP's metadata, and the files that Megatron adds to it."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from reshard.core.errors import CatalogError
from reshard.core.layouts.dcp.checkpoint import DcpCheckpoint, read_dcp
from reshard.core.layouts.dcp.names import DCP_METADATA_NAME, is_dcp
from reshard.core.layouts.dcp.steps import list_dcp_steps
from reshard.core.layouts.megatron.names import RELEASE, TRACKER, parse_iteration
from reshard.core.layouts.step_choice import NumberedSteps, choose_step
from reshard.core.layouts.torch_dist.names import BACKEND, COMMON_NAME, CONFIG_NAME
from reshard.core.layouts.torch_dist.unstacking import unstacked
from reshard.core.runtime.metadata import parse_json
from reshard.core.runtime.wording import listed
from reshard.core.storage.listing import names_if_directory, names_in
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location

_MAX_CONFIG_BYTES = 1 << 16
_REQUIRED = (DCP_METADATA_NAME, COMMON_NAME, CONFIG_NAME)
_LEFT_OUT = f"{COMMON_NAME}, with Megatron's arguments and schedules, is only taken into targets of Megatron"


def is_torch_dist(names: Sequence[str]) -> bool:
    """True if a directory with these names is Megatron's, complete or not."""
    return COMMON_NAME in names and is_dcp(names)


def torch_dist_in(location: Location, names: Sequence[str], step: str = "") -> DcpCheckpoint | None:
    """Return the checkpoint in a directory with these names; None if there is none.

    Args:
        location: the directory of the checkpoint, or of several steps.
        names: what is in it.
        step: number of the step to read, of several; by default the one that the tracker names, and without a tracker
            the newest that is complete.

    Raises:
        CatalogError: it is incomplete, or its files contradict each other; there is no such step.
        StrategyError: its metadata is damaged.
        StorageError: the storage does not answer.
    """
    if is_torch_dist(names):
        return read_torch_dist(location, names)
    steps = list_torch_dist_steps(location, names)
    if not steps:
        return None
    number, notes = _choose(location, steps, step)
    directory = location.child(steps[number])
    found = read_torch_dist(directory, names_in(directory))
    return replace(found, url=str(location), step=number, steps=tuple(steps), choice=(*notes, *found.choice))


def number_in(location: Location, names: Sequence[str], step: str = "") -> int | None:
    """Return the number of the iteration that `torch_dist_in` would read, by names alone; None if it has none.

    Raises:
        CatalogError: there is no such iteration, or none is complete.
        StorageError: the storage does not answer.
    """
    if is_torch_dist(names):
        return parse_iteration(location.name)
    steps = list_torch_dist_steps(location, names)
    return _choose(location, steps, step)[0] if steps else None


def list_torch_dist_steps(root: Location, names: Sequence[str]) -> Mapping[int, str]:
    """Return the steps in a directory with these names, ascending: number -> name; empty if they are not Megatron's.

    A release counts as 0.

    Raises:
        CatalogError: two have the same number.
        StorageError: the storage does not answer.
    """
    steps = {**({0: RELEASE} if RELEASE in names else {}), **list_dcp_steps(root, names)}
    for number in sorted(steps, reverse=True):
        inside = names_if_directory(root.child(steps[number]))
        if inside:
            return steps if is_torch_dist(inside) else {}
    return {}


def missing_from(names: Sequence[str]) -> list[str]:
    """Return the files that a directory with these names lacks to be complete, by its names."""
    return [name for name in _REQUIRED if name not in names]


def read_torch_dist(location: Location, names: Sequence[str]) -> DcpCheckpoint:
    """Read the metadata in a directory with these names; raises what `torch_dist_in` raises."""
    missing = missing_from(names)
    if missing:
        raise CatalogError(
            f"{location}: has Megatron's {COMMON_NAME}, but no {listed(missing)}: it was not saved completely, or not "
            "all of it was copied"
        )
    _check_config(location.child(CONFIG_NAME))
    found = read_dcp(location, names)
    return replace(found, metadata=unstacked(found.metadata), choice=(_LEFT_OUT,))


def _choose(root: Location, steps: Mapping[int, str], asked: str) -> tuple[int, tuple[str, ...]]:
    """The number of the asked step, or of the one to load, and notes on the choice."""
    return choose_step(NumberedSteps(root, steps, _incomplete, TRACKER.word), asked, TRACKER)


def _incomplete(directory: Location) -> str:
    missing = missing_from(names_if_directory(directory))
    return f"{listed(missing)} is missing" if missing else ""


def _check_config(location: Location) -> None:
    document = parse_json(read_small_file(location, _MAX_CONFIG_BYTES), location, CatalogError)
    fields = document if isinstance(document, dict) else {}
    backend = fields.get("sharded_backend"), fields.get("sharded_backend_version")
    if backend != BACKEND:
        raise CatalogError(
            f"{location}: says that Megatron's sharded_backend is {backend[0]!r}, version {backend[1]!r}: reshard "
            f"reads {BACKEND[0]}, version {BACKEND[1]}"
        )

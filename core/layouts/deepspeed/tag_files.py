"""The files of a tag, by names alone: one for each rank, all of them, and of one save."""

from collections.abc import Sequence

from reshard.core.errors import LayoutError
from reshard.core.layouts.deepspeed.names import FileKind, RankName, parallelism_of, parse_rank_name
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed

_MAX_RANKS = 1 << 20
_MAX_LISTED = 8
_SWAPPED = "offloaded_tensors"
_SAVE_WHOLE = "load it in its training, and save the model whole from there"


class TagFiles(Record):
    """The names of files, by rank; `model` has a single one in stages 1 and 2, `optimizer` none without ZeRO."""

    model: tuple[str, ...]
    optimizer: tuple[str, ...]
    is_partitioned: bool

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.model, *self.optimizer)


def tag_files(names: Sequence[str]) -> TagFiles:
    """Return the files of a tag's directory with these names.

    Raises:
        LayoutError: some are missing, or they are of a training or a save that reshard does not read.
    """
    if what := parallelism_of(names):
        raise LayoutError(f"its training has {what}, which reshard does not read: {_SAVE_WHOLE}")
    if _SWAPPED in names:
        raise LayoutError(
            f"its optimizer was offloaded to NVMe ({_SWAPPED}/), so that it is not in the files of ranks; {_SAVE_WHOLE}"
        )
    found = [parsed for name in names if (parsed := parse_rank_name(name)) is not None]
    tensors = sorted({each.tensor for each in found})
    if tensors not in ([], [0]):
        raise LayoutError(
            f"its training has tensor parallelism (mp_rank {listed([*map(str, tensors)], _MAX_LISTED)}), which reshard "
            f"does not read: {_SAVE_WHOLE}"
        )
    whole = [each for each in found if each.rank < 0]
    parts = [each for each in found if each.rank >= 0 and each.kind is FileKind.MODEL]
    optimizer = [each for each in found if each.kind is FileKind.OPTIMIZER]
    if whole and parts:
        raise LayoutError(f"{whole[0].name} is of stage 1 or 2, {parts[0].name} of stage 3: files of two saves")
    if not whole and not parts:
        raise LayoutError("it has no file of the model, mp_rank_00_model_states.pt or zero_pp_rank_0_…")
    _check_ranks(optimizer)
    _check_ranks(parts)
    alone = sorted({each.rank for each in parts} ^ {each.rank for each in optimizer}) if parts else []
    if alone:
        raise LayoutError(
            f"it has {counted(len(parts), 'file')} of the model and {counted(len(optimizer), 'file')} of the "
            "optimizer: there is one of both for each rank. Restore the other file of ranks "
            f"{listed(list(map(str, alone)), _MAX_LISTED)}"
        )
    return TagFiles(_by_rank(whole or parts), _by_rank(optimizer), is_partitioned=bool(parts))


def _check_ranks(found: Sequence[RankName]) -> None:
    """Refuse files of ranks that lack some, or that are of two saves."""
    prefixes = {each.prefix: each.name for each in found}
    if len(prefixes) > 1:
        raise LayoutError(f"{' and '.join(prefixes.values())} have different prefixes: files of two saves")
    ranks = {each.rank for each in found}
    highest = max(ranks, default=-1)
    if highest >= _MAX_RANKS:
        raise LayoutError(f"rank {highest} is more than the {_MAX_RANKS} ranks that reshard allows")
    missing = [str(rank) for rank in range(highest) if rank not in ranks]
    if missing:
        kind = f"{found[0].kind}_states.pt"
        raise LayoutError(f"the files {kind} of ranks {listed(missing, _MAX_LISTED)} are missing: restore them")


def _by_rank(found: Sequence[RankName]) -> tuple[str, ...]:
    return tuple(each.name for each in sorted(found))

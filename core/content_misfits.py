"""Whether ranks hold the same where a strategy says so, and only there, by samples of their contents.

Where they do not, other layouts are tried: what would explain it says what is wrong.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from core.checkpoint.records import CheckpointCatalog
from core.checkpoint.selection import rank_names
from core.dtypes import MAP_TENSOR, TEXT
from core.errors import LayoutError
from core.held import HeldParameter
from core.layout import ALL_REPEATED_AXES, Cut, ParameterLayout, whole_layout
from core.misfits import OWN_STRATEGY, SHARDS_OFF, WITH_SHARDS, WITHOUT_SHARDS, Misfit, Severity, listed
from core.saved_whole import beginnings, is_one_value
from core.slices import Shape
from core.strategy.optimizer_shards import has_optimizer_shard, with_optimizer_shard, without_optimizer_shard

_SAMPLED = 4
_MOST_RANKS = 64
_SAMPLED_BYTES = 1 << 16


def content_misfits(catalog: CheckpointCatalog, held: Mapping[str, Sequence[HeldParameter]]) -> list[Misfit]:
    """Whether ranks that should hold the same do, and those that should not do not, by samples of some parameters."""
    by_kind: dict[tuple[str, str, str, Severity], list[str]] = {}
    for copy, shape in _sampled(held):
        found = _content_misfit(catalog, copy, len(shape))
        if found:
            by_kind.setdefault(found[0], []).append(found[1])
    return [
        Misfit("contents", f"{found}: {listed(details, '; ')}", means, advice, severity)
        for (found, means, advice, severity), details in by_kind.items()
    ]


def _content_misfit(
    catalog: CheckpointCatalog, held: HeldParameter, axis_count: int
) -> tuple[tuple[str, str, str, Severity], str] | None:
    name, layout = held.entry.name, held.layout
    try:
        cut = layout.cut(axis_count)
    except LayoutError:
        return None
    ranks = [
        rank
        for rank in range(held.first_rank, held.first_rank + cut.device_count)
        if rank in catalog.records and name in catalog.records[rank].index.entries
    ][:_MOST_RANKS]
    entries = [catalog.records[rank].index.entries[name] for rank in ranks]
    if len(ranks) < 2 or any(entry.shape != entries[0].shape for entry in entries):
        return None
    contents = dict(zip(ranks, beginnings(catalog, ranks, name, _SAMPLED_BYTES), strict=True))
    cells = {rank: cut.cell_of(rank - held.first_rank) for rank in ranks}
    telling = [rank for rank in ranks if not is_one_value(contents[rank], held.entry.dtype.itemsize)]
    unlike = _first_pair(ranks, lambda a, b: cells[a] == cells[b] and contents[a] != contents[b])
    alike = _first_pair(telling, lambda a, b: cells[a] != cells[b] and contents[a] == contents[b])
    if unlike is None and alike is None:
        return None
    explained = _explained(layout, axis_count, held.first_rank, contents, telling)
    told = []
    if unlike:
        told.append(f"{name!r} differs on {rank_names(unlike)}, which should hold the same")
    if alike:
        told.append(f"{name!r} is the same on {rank_names(alike)}, which should hold different slices")
    return explained, "; ".join(told)


def _explained(
    layout: ParameterLayout, axis_count: int, first_rank: int, contents: Mapping[int, bytes], telling: Sequence[int]
) -> tuple[str, str, str, Severity]:
    """Which other layout would explain what ranks hold."""
    bare = without_optimizer_shard(layout)
    if _explains(whole_layout(axis_count, layout.device_count), axis_count, first_rank, contents, telling):
        return (
            "ranks hold whole tensors although the strategy cuts them",
            "the checkpoint was saved whole (integrated_save)",
            "nothing: a conversion sees it, and takes them as wholes",
            Severity.NOTE,
        )
    if has_optimizer_shard(layout) and _explains(bare, axis_count, first_rank, contents, telling):
        return (
            "the optimizer shard does not cut what ranks hold",
            SHARDS_OFF,
            WITHOUT_SHARDS,
            Severity.PROBLEM,
        )
    more = with_optimizer_shard(bare, None, ALL_REPEATED_AXES)
    if more is not None and _explains(more, axis_count, first_rank, contents, telling):
        return (
            "what should be copies differs as if optimizer parallel cut it",
            "optimizer parallel was on when the checkpoint was saved, or copies were saved at different moments",
            WITH_SHARDS,
            Severity.PROBLEM,
        )
    return (
        "ranks do not hold what the strategy says they share",
        "another arrangement of devices, files of different steps, or a damaged copy",
        f"{OWN_STRATEGY}; 'reshard convert --check-replicas' compares all copies",
        Severity.PROBLEM,
    )


def _explains(
    layout: ParameterLayout, axis_count: int, first_rank: int, contents: Mapping[int, bytes], telling: Sequence[int]
) -> bool:
    try:
        cut: Cut = layout.cut(axis_count)
    except LayoutError:
        return False
    cells = {rank: cut.cell_of(rank - first_rank) for rank in contents}
    return (
        _first_pair(list(contents), lambda a, b: cells[a] == cells[b] and contents[a] != contents[b]) is None
        and _first_pair(telling, lambda a, b: cells[a] != cells[b] and contents[a] == contents[b]) is None
        and bool(telling)
    )


def _sampled(held: Mapping[str, Sequence[HeldParameter]]) -> Iterator[tuple[HeldParameter, Shape]]:
    """Of each stage the largest parameters that are cut, and the largest that are not."""
    by_stage: dict[int, list[HeldParameter]] = {}
    for copies in held.values():
        for copy in copies:
            if copy.entry.extents and copy.entry.dtype not in (TEXT, MAP_TENSOR):
                by_stage.setdefault(copy.stage.stage, []).append(copy)
    for copies in by_stage.values():
        largest = sorted(copies, key=lambda copy: copy.entry.size_bytes, reverse=True)
        cut = [copy for copy in largest if any(copy.layout.tensor_map) or has_optimizer_shard(copy.layout)]
        whole = [copy for copy in largest if copy not in cut]
        for copy in (*cut[:_SAMPLED], *whole[: _SAMPLED // 2]):
            yield copy, copy.entry.shape


def _first_pair(ranks: Sequence[int], fits: Callable[[int, int], bool]) -> tuple[int, int] | None:
    return next(((a, b) for place, a in enumerate(ranks) for b in ranks[place + 1 :] if fits(a, b)), None)

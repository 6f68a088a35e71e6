"""Where a strategy and a checkpoint part: stages, names, shapes and contents, each looked at by itself.

Every function gives what it found, and goes on where one parameter is wrong: whoever asks wants to know of all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from core.checkpoint.records import CheckpointCatalog
from core.checkpoint.selection import rank_names
from core.dtypes import MAP_TENSOR, TEXT
from core.errors import LayoutError
from core.held import HeldParameter, described
from core.layout import ALL_REPEATED_AXES, Cut, ParameterLayout, whole_layout
from core.renaming import guess_renaming
from core.saved_whole import beginnings, is_one_value
from core.slices import Shape
from core.strategy.model import Strategy
from core.strategy.optimizer_shards import has_optimizer_shard, with_optimizer_shard, without_optimizer_shard
from core.strategy.staging import owner_of
from core.wording import counted

_MOST_NAMED = 6
_SAMPLED = 4
_MOST_RANKS = 64
_SAMPLED_BYTES = 1 << 16
_OWN_STRATEGY = "use the strategy of the job that saved the checkpoint"
_WITHOUT_SHARDS = (
    "use a strategy without optimizer parallel: 'reshard make-strategy' of the same sizes, without --optimizer-parallel"
)
_WITH_SHARDS = (
    f"{_OWN_STRATEGY}; 'reshard make-strategy' with the same sizes and --optimizer-parallel makes one that cuts alike"
)
_SHARDS_OFF = "optimizer parallel was off when the checkpoint was saved, or its shards were gathered for saving"


class Severity(StrEnum):
    """How bad it is: a problem keeps them from belonging together, a note is good to know."""

    PROBLEM = "problem"
    NOTE = "note"


@dataclass(frozen=True)
class Misfit:
    """One thing that was found.

    Attributes:
        check: what was looked at: ranks, files, stages, names, shapes, contents.
        found: what is so.
        means: what that probably means.
        advice: what to do; empty if there is nothing to do.
        severity: how bad it is.
    """

    check: str
    found: str
    means: str
    advice: str = ""
    severity: Severity = Severity.PROBLEM


def stage_misfits(catalog: CheckpointCatalog, source: Strategy) -> list[Misfit]:
    """Whether the ranks of each stage hold the parameters that its strategy gives it, or another stage's."""
    names = {stage.stage: frozenset(stage.layouts) for stage in source.stages}
    found = {stage.stage: _names_on(catalog, source.stage_ranks(stage)) & source.parameters for stage in source.stages}
    there = {stage: held for stage, held in found.items() if held}
    # what is in no file is another matter
    saved = frozenset(name for held in there.values() for name in held)
    best = {
        stage: _likest(held, {other: of_other & saved for other, of_other in names.items()}, stage)
        for stage, held in there.items()
    }
    swapped = {stage: other for stage, other in best.items() if other != stage}
    ranks = {stage.stage: source.stage_ranks(stage) for stage in source.stages}
    if swapped and sorted(best.values()) == sorted(best):
        told = [f"{_span(ranks[stage])} hold what stage {other}'s layouts name" for stage, other in swapped.items()]
        return [
            Misfit(
                "stages",
                f"stages are in another order: {'; '.join(told)}",
                "the strategy's files were merged under wrong stage numbers, or rank folders were renamed",
                "merge the files of the ranks anew with 'reshard merge-strategy', or put the rank folders in order",
            )
        ]
    misfits = []
    for stage, held in there.items():
        misplaced = sorted(held - names[stage])
        if misplaced:
            owners = sorted({other for name in misplaced for other, of_other in names.items() if name in of_other})
            lacking = sorted((names[stage] & saved) - held)
            also = f"; it lacks {_quoted(lacking)}" if lacking else ""
            misfits.append(
                Misfit(
                    "stages",
                    f"stage {stage} ({_span(ranks[stage])}) holds {_quoted(misplaced)}, which the strategy gives to "
                    f"{_stages(owners)} only{also}",
                    "layers were assigned to stages otherwise, or there were other numbers of stages or of devices in "
                    "each",
                    "use the strategy that the saving job wrote; 'reshard make-strategy --layers' makes one with other "
                    "layers in each stage",
                )
            )
    for stage, held in there.items():
        lacking = sorted((names[stage] & saved) - held)
        if lacking and not held - names[stage]:
            misfits.append(
                Misfit(
                    "stages",
                    f"stage {stage} ({_span(ranks[stage])}) lacks {_quoted(lacking)}, which other stages' ranks hold",
                    "what the strategy says is shared was saved by one stage only, or layers were assigned otherwise",
                    "nothing is lost if parameters are the same in all stages: what is there is read",
                    Severity.NOTE if all(_is_shared(name, source) for name in lacking) else Severity.PROBLEM,
                )
            )
    return misfits


def name_misfits(catalog: CheckpointCatalog, source: Strategy) -> list[Misfit]:
    """Names that only the strategy has, or only the files."""
    there = _names_on(catalog, catalog.records)
    absent = [
        name for name in dict.fromkeys(name for stage in source.stages for name in stage.layouts) if name not in there
    ]
    beside = [name for name in sorted(there) if name not in source.parameters]
    # training's state, global_step say, is no part of the network
    whole = {name for name in beside if all(prod(shape) <= 1 for shape in _shapes(catalog, name))}
    strangers = [name for name in beside if name not in whole]
    misfits = []
    renaming = guess_renaming(absent, strangers)
    if renaming is not None:
        misfits.append(
            Misfit(
                "names",
                f"{renaming.fitting} of the {counted(len(absent), 'name')} that only the strategy has are in the "
                f"files, {renaming}: {absent[0]!r}",
                "the network was wrapped in another cell when one of them was saved, or its attributes were renamed",
                "use the strategy of the job that saved the checkpoint, or save the checkpoint of the same cell",
            )
        )
        renamed = {renaming.applied(name) for name in absent}
        absent = [name for name in absent if renaming.applied(name) not in there]
        strangers = [name for name in strangers if name not in renamed]
    if absent:
        kept = len(absent) < len(source.parameters)
        states = kept and all(_is_state(name) for name in absent)
        misfits.append(
            Misfit(
                "names",
                f"in the strategy, and in no file: {_quoted(absent)}",
                "optimizer states were not saved" if states else "another network, or not all of it was saved",
                "nothing, if the target has no place for them; else --allow-missing excuses them"
                if states
                else _OWN_STRATEGY,
                Severity.NOTE if states else Severity.PROBLEM,
            )
        )
    if strangers:
        unlike = [name for name in strangers if len(_shapes(catalog, name)) > 1]
        misfits.append(
            Misfit(
                "names",
                f"in files, and not in the strategy: {_quoted(strangers)}",
                f"their shapes differ between ranks ({_quoted(unlike)}): they are cut, and nothing says how"
                if unlike
                else "another network, or parameters that no operator cuts, which every rank holds whole",
                _OWN_STRATEGY
                if unlike
                else "nothing, if they are whole: they are copied unchanged to every target rank",
                Severity.PROBLEM if unlike else Severity.NOTE,
            )
        )
    return misfits


def shape_misfits(held: Mapping[str, Sequence[HeldParameter]]) -> list[Misfit]:
    """Shards that do not fit their layouts, or the shapes that a JSON strategy tells, or another stage's."""
    by_kind: dict[tuple[str, str, str], list[str]] = {}
    for name, stages in held.items():
        for copy in stages:
            found = _shape_misfit(copy)
            if found:
                kind, detail = found
                by_kind.setdefault(kind, []).append(f"{name!r} {detail}")
        found_wholes = {whole for copy in stages if (whole := _whole_shape(copy)) is not None}
        if len(found_wholes) > 1:
            told = " and ".join(str(list(whole)) for whole in sorted(found_wholes))
            kind = (
                "shards of several stages make wholes of different shapes",
                "the strategy's stages are of different jobs, or it was saved whole",
                "use the strategy files of one job",
            )
            by_kind.setdefault(kind, []).append(f"{name!r}: {told}")
    return [
        Misfit("shapes", f"{found}: {_listed(details, '; ')}", means, advice)
        for (found, means, advice), details in by_kind.items()
    ]


def _shape_misfit(held: HeldParameter) -> tuple[tuple[str, str, str], str] | None:
    entry, layout = held.entry, held.layout
    if entry.dtype in (TEXT, MAP_TENSOR):
        return None
    axis_count = len(entry.shape)
    try:
        cut = layout.cut(axis_count)
        whole = cut.whole_shape(held.shards[0][0], entry.shape)
    except LayoutError as error:
        return (
            "shards that their layouts do not fit",
            "another network's strategy",
            _OWN_STRATEGY,
        ), f"{described(entry)}: {error}"
    told = layout.tensor_shape
    if told is None or told == whole or 0 in entry.shape:
        return None
    detail = f"is {list(entry.shape)} on rank_{held.first_rank + held.shards[0][0]}, of {list(told)} in the strategy"
    if told == entry.shape:
        return None  # saved whole: told for all of them at once
    bare = without_optimizer_shard(layout)
    if has_optimizer_shard(layout) and _makes(bare, held, told):
        return (
            "shards that the optimizer shard does not cut, though the strategy says so",
            _SHARDS_OFF,
            _WITHOUT_SHARDS,
        ), detail
    more = with_optimizer_shard(bare, None, ALL_REPEATED_AXES)
    if more is not None and _makes(more, held, told):
        return (
            "shards that are cut by optimizer parallel, of which the strategy does not tell",
            "optimizer parallel was on when the checkpoint was saved",
            _WITH_SHARDS,
        ), detail
    return (
        (
            "shards of other shapes than the strategy's",
            "another size of the network, or another number of devices",
            _OWN_STRATEGY,
        ),
        f"{detail}: it would make {list(whole)}",
    )


def _makes(layout: ParameterLayout, held: HeldParameter, shape: Shape) -> bool:
    try:
        return layout.cut(len(shape)).whole_shape(held.shards[0][0], held.entry.shape) == shape
    except LayoutError:
        return False


def _whole_shape(held: HeldParameter) -> Shape | None:
    if held.entry.dtype in (TEXT, MAP_TENSOR) or held.layout.tensor_shape is not None:
        return None
    try:
        return held.layout.cut(len(held.entry.shape)).whole_shape(held.shards[0][0], held.entry.shape)
    except LayoutError:
        return None


def content_misfits(catalog: CheckpointCatalog, held: Mapping[str, Sequence[HeldParameter]]) -> list[Misfit]:
    """Whether ranks that should hold the same do, and those that should not do not, by samples of some parameters."""
    by_kind: dict[tuple[str, str, str, Severity], list[str]] = {}
    for copy, shape in _sampled(held):
        found = _content_misfit(catalog, copy, len(shape))
        if found:
            by_kind.setdefault(found[0], []).append(found[1])
    return [
        Misfit("contents", f"{found}: {_listed(details, '; ')}", means, advice, severity)
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
            _SHARDS_OFF,
            _WITHOUT_SHARDS,
            Severity.PROBLEM,
        )
    more = with_optimizer_shard(bare, None, ALL_REPEATED_AXES)
    if more is not None and _explains(more, axis_count, first_rank, contents, telling):
        return (
            "what should be copies differs as if optimizer parallel cut it",
            "optimizer parallel was on when the checkpoint was saved, or copies were saved at different moments",
            _WITH_SHARDS,
            Severity.PROBLEM,
        )
    return (
        "ranks do not hold what the strategy says they share",
        "another arrangement of devices, files of different steps, or a damaged copy",
        f"{_OWN_STRATEGY}; 'reshard convert --check-replicas' compares all copies",
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


def _names_on(catalog: CheckpointCatalog, ranks: Iterable[int]) -> frozenset[str]:
    indexes = {id(record.index): record.index for rank in ranks if (record := catalog.records.get(rank)) is not None}
    return frozenset(name for index in indexes.values() for name in index.entries)


def _shapes(catalog: CheckpointCatalog, name: str) -> set[Shape]:
    indexes = {id(record.index): record.index for record in catalog.records.values()}
    return {index.entries[name].shape for index in indexes.values() if name in index.entries}


def _likest(names: frozenset[str], stages: Mapping[int, frozenset[str]], own: int) -> int:
    """The stage whose names are likest to some names; the own one, if none is likelier."""
    return max(
        stages, key=lambda stage: (len(names & stages[stage]) / max(1, len(names | stages[stage])), stage == own)
    )


def _is_shared(name: str, source: Strategy) -> bool:
    return len([*source.stages_holding(name)]) > 1


def _is_state(name: str) -> bool:
    return owner_of(name, frozenset()) != name


def _span(ranks: range) -> str:
    return f"rank_{ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start}-{ranks.stop - 1}"


def _stages(numbers: Sequence[int]) -> str:
    return f"stage{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _quoted(names: Sequence[str]) -> str:
    return _listed([repr(name) for name in names])


def _listed(items: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return f"{separator.join(items[:_MOST_NAMED])}{more}"

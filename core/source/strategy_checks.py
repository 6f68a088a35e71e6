"""Where a strategy and a checkpoint part: stages, names, shapes and contents, each looked at by itself.

Every function gives what it found, and goes on where one parameter is wrong: whoever asks wants to know of all.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from reshard.core.checkpoint.catalog.records import CheckpointCatalog
from reshard.core.errors import LayoutError
from reshard.core.plan.stage_shards import StageShards, described, joined_shape
from reshard.core.runtime.wording import counted
from reshard.core.source.rename_guess import guess_renaming
from reshard.core.strategy.model import Strategy
from reshard.core.strategy.optimizer_shards import has_optimizer_shard, with_optimizer_shard, without_optimizer_shard
from reshard.core.strategy.staging import owner_of
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT
from reshard.core.tensor.layout import ALL_REPEATED_AXES, ParameterLayout
from reshard.core.tensor.slices import Shape

_MOST_NAMED = 6
_MANY_LAYERS = 3
_NUMBER = re.compile(r"[0-9]+")
OWN_STRATEGY = "use the strategy of the job that saved the checkpoint"
WITHOUT_SHARDS = (
    "use a strategy without optimizer parallel: 'reshard make-strategy' of the same sizes, without --optimizer-parallel"
)
WITH_SHARDS = (
    f"{OWN_STRATEGY}; 'reshard make-strategy' with the same sizes and --optimizer-parallel makes one that cuts alike"
)
SHARDS_OFF = "optimizer parallel was off when the checkpoint was saved, or its shards were gathered for saving"


_SOME_WHOLE = (
    "ranks hold the whole of what the strategy cuts, though they hold slices of others",
    "another layout of these parameters when the checkpoint was saved",
    OWN_STRATEGY,
)


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
            also = f"; it lacks {quoted(lacking)}" if lacking else ""
            misfits.append(
                Misfit(
                    "stages",
                    f"stage {stage} ({_span(ranks[stage])}) holds {quoted(misplaced)}, which the strategy gives to "
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
                    f"stage {stage} ({_span(ranks[stage])}) lacks {quoted(lacking)}, which other stages' ranks hold",
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
        # none of a kind, adam_m say: where others of it are saved, these were lost
        saved = {_state_kind(name) for name in there}
        states = len(absent) < len(source.parameters) and all(_state_kind(name) not in {"", *saved} for name in absent)
        misfits.append(
            Misfit(
                "names",
                f"in the strategy, and in no file: {quoted(absent)}",
                "optimizer states were not saved" if states else "another network, or not all of it was saved",
                "nothing, if the target has no place for them; else --allow-missing excuses them"
                if states
                else OWN_STRATEGY,
                Severity.NOTE if states else Severity.PROBLEM,
            )
        )
    if strangers:
        unlike = [name for name in strangers if len(_shapes(catalog, name)) > 1]
        misfits.append(
            Misfit(
                "names",
                f"in files, and not in the strategy: {quoted(strangers)}",
                f"their shapes differ between ranks ({quoted(unlike)}): they are cut, and nothing says how"
                if unlike
                else "another network, or parameters that no operator cuts, which every rank holds whole",
                OWN_STRATEGY
                if unlike
                else "nothing, if they are whole: they are copied unchanged to every target rank",
                Severity.PROBLEM if unlike else Severity.NOTE,
            )
        )
    return misfits


def shape_misfits(held: Mapping[str, Sequence[StageShards]], saved_whole: bool) -> list[Misfit]:
    """Shards that do not fit their layouts, or the shapes that a JSON strategy tells, or another stage's.

    `saved_whole`: contents say that ranks hold whole tensors.
    """
    by_kind: dict[tuple[str, str, str], list[str]] = {}
    told_whole = {name: copy for name, stages in held.items() for copy in stages if _is_whole(copy)}
    if told_whole and any(_is_slice(copy) for stages in held.values() for copy in stages):
        by_kind[_SOME_WHOLE] = [f"{name!r} is {list(copy.entry.shape)}" for name, copy in told_whole.items()]
    for name, stages in held.items():
        for copy in stages:
            found = _shape_misfit(copy)
            if found:
                kind, detail = found
                by_kind.setdefault(kind, []).append(f"{name!r} {detail}")
        found_wholes = {whole for copy in stages if (whole := _whole_shape(copy)) is not None}
        if len(found_wholes) > 1 and not saved_whole:
            told = " and ".join(str(list(whole)) for whole in sorted(found_wholes))
            kind = (
                "shards of several stages make wholes of different shapes",
                "the strategy's stages are of different jobs, or it was saved whole",
                "use the strategy files of one job",
            )
            by_kind.setdefault(kind, []).append(f"{name!r}: {told}")
    return [
        Misfit("shapes", f"{found}: {listed(details, '; ')}", means, advice)
        for (found, means, advice), details in by_kind.items()
    ]


def likeness_misfits(held: Mapping[str, Sequence[StageShards]]) -> list[Misfit]:
    """Wholes that differ in shape where shards are alike, so that the strategy cuts one of them otherwise than it is.

    These are a layer's parameter and those of nearly all other layers, and a parameter and its optimizer's states.
    Which axis is cut shows in no shard, and protobuf strategies tell no shapes.
    """
    wholes = {
        name: (copies[0].entry.shape, whole)
        for name, copies in held.items()
        if (whole := _whole_shape(copies[0])) is not None
    }
    names = frozenset(wholes)
    layers: dict[tuple[str, Shape], list[str]] = {}
    pairs = []
    for name, (shard, whole) in wholes.items():
        layers.setdefault((_NUMBER.sub("", name), shard), []).append(name)
        owner = owner_of(name, names)
        if owner in wholes and wholes[owner][0] == shard and wholes[owner][1] != whole:
            pairs.append((name, owner))
    for alike in layers.values():
        [(usual, count), *_] = Counter(wholes[name][1] for name in alike).most_common(1)
        if count >= _MANY_LAYERS * (len(alike) - count):
            like = next(name for name in alike if wholes[name][1] == usual)
            pairs += [(name, like) for name in alike if wholes[name][1] != usual]
    details = [
        f"{name!r} {list(wholes[name][1])} but {like!r} {list(wholes[like][1])}, of shards {list(wholes[name][0])}"
        for name, like in pairs
    ]
    if not details:
        return []
    return [
        Misfit(
            "shapes",
            f"by the strategy, parameters that should be alike make wholes of other shapes: {listed(details, '; ')}",
            "the strategy cuts one of them along another axis, or into other pieces, than it was when it was saved",
            OWN_STRATEGY,
        )
    ]


def made_wholes(held: Mapping[str, Sequence[StageShards]]) -> str:
    """Shapes of the largest kinds of parameters that are cut, as the strategy makes them; empty if it tells shapes."""
    names = frozenset(held)
    kinds: dict[str, StageShards] = {}
    for name, (copy, *_) in held.items():
        if owner_of(name, names) == name and _whole_shape(copy) not in (None, copy.entry.shape):
            kinds.setdefault(_NUMBER.sub("", name), copy)
    largest = sorted(kinds.values(), key=lambda copy: copy.entry.size_bytes, reverse=True)[:_MOST_NAMED]
    return ", ".join(f"{copy.entry.name} {list(_whole_shape(copy) or ())}" for copy in largest)


def _shape_misfit(held: StageShards) -> tuple[tuple[str, str, str], str] | None:
    entry, layout = held.entry, held.layout
    if entry.dtype in (TEXT, MAP_TENSOR):
        return None
    axis_count = len(entry.shape)
    try:
        cut = layout.shard_grid(axis_count)
        whole = cut.whole_shape(held.shards[0][0], entry.shape)
    except LayoutError as error:
        return (
            "shards that their layouts do not fit",
            "another network's strategy",
            OWN_STRATEGY,
        ), f"{described(entry)}: {error}"
    told = layout.tensor_shape
    if told is None or told == whole or 0 in entry.shape:
        return None
    detail = f"is {list(entry.shape)} on rank_{held.first_rank + held.shards[0][0]}, of {list(told)} in the strategy"
    if told == entry.shape:
        return None  # saved whole: told for all of them together
    bare = without_optimizer_shard(layout)
    if has_optimizer_shard(layout) and _makes(bare, held, told):
        return (
            "shards that the optimizer shard does not cut, though the strategy says so",
            SHARDS_OFF,
            WITHOUT_SHARDS,
        ), detail
    more = with_optimizer_shard(bare, None, ALL_REPEATED_AXES)
    if more is not None and _makes(more, held, told):
        return (
            "shards that are cut by optimizer parallel, of which the strategy does not tell",
            "optimizer parallel was on when the checkpoint was saved",
            WITH_SHARDS,
        ), detail
    return (
        (
            "shards of other shapes than the strategy's",
            "another size of the network, or another number of devices",
            OWN_STRATEGY,
        ),
        f"{detail}: it would make {list(whole)}",
    )


def _makes(layout: ParameterLayout, held: StageShards, shape: Shape) -> bool:
    try:
        return layout.shard_grid(len(shape)).whole_shape(held.shards[0][0], held.entry.shape) == shape
    except LayoutError:
        return False


def _is_whole(held: StageShards) -> bool:
    """Whether ranks hold the whole tensor of a parameter that is cut, as far as the strategy tells shapes."""
    told = held.layout.tensor_shape
    return told == held.entry.shape and 0 not in told and joined_shape(held) not in (None, told)


def _is_slice(held: StageShards) -> bool:
    """Whether ranks hold the slices of a tensor that the strategy tells."""
    told = held.layout.tensor_shape
    return told not in (None, held.entry.shape) and joined_shape(held) == told


def _whole_shape(held: StageShards) -> Shape | None:
    if held.entry.dtype in (TEXT, MAP_TENSOR) or held.layout.tensor_shape is not None:
        return None
    return joined_shape(held)


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
    return len([*source.stages_with(name)]) > 1


def _state_kind(name: str) -> str:
    """What stands before the parameter's name in that of an optimizer's state: `adam_m.`; empty if it is none."""
    return name.removesuffix(owner_of(name, frozenset()))


def _span(ranks: range) -> str:
    return f"rank_{ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start}-{ranks.stop - 1}"


def _stages(numbers: Sequence[int]) -> str:
    return f"stage{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def quoted(names: Sequence[str]) -> str:
    """Names in quotation marks; of many the first."""
    return listed([repr(name) for name in names])


def listed(items: Sequence[str], separator: str = ", ") -> str:
    """Items one after another; of many the first, and how many there are beyond."""
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return f"{separator.join(items[:_MOST_NAMED])}{more}"

"""Jobs that change parameters as they reshard them: casts, transposes, parameters made of several."""

from dataclasses import dataclass
from pathlib import Path

import fsspec
import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from reshard.core.changes.changes import CastRule, Changes, JoinRule, OverflowPolicy, SplitRule, TransposeRule
from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.ranks.target import RankFolders
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.plan import ConversionPlan, build_plan
from tests.support.checkpoints import Contents
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import RandomLayout, layouts, shard_of
from tests.support.source_directories import build_catalog

FLOATS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
NAMES = {"float16": "Float16", "bfloat16": "BFloat16", "float32": "Float32", "float64": "Float64"}
SOURCE_DEVICES, TARGET_DEVICES = 4, 6
Tensors = dict[str, tuple[str, np.ndarray]]
"""Parameter name -> its dtype's name in files, and the whole tensor."""


def write_source(directory: Path, tensors: Tensors, cuts: dict[str, RandomLayout], ranks: int) -> None:
    for rank in range(ranks):
        path = directory / f"rank_{rank}" / "m.ckpt"
        path.parent.mkdir(parents=True)
        shards = {name: shard_of(tensor, cuts[name], rank) for name, (_, tensor) in tensors.items()}
        path.write_bytes(
            checkpoint_bytes(*((name, tensors[name][0], each.shape, each.tobytes()) for name, each in shards.items()))
        )


def floats(number: int, shape: tuple[int, ...], kind: str) -> tuple[str, np.ndarray]:
    return NAMES[kind], np.random.default_rng(number).normal(size=shape).astype(FLOATS[kind])


def cast(value: tuple[str, np.ndarray], kind: str) -> tuple[str, np.ndarray]:
    return NAMES[kind], value[1].astype(FLOATS[kind])


@st.composite
def changed(draw: st.DrawFn) -> tuple[Tensors, Changes, Tensors]:
    """Source tensors, what becomes of them, and the target tensors."""
    kinds = st.sampled_from(sorted(FLOATS))
    source: Tensors = {}
    target: Tensors = {}
    casts = []

    source["cast"], to = floats(0, (24, 24), draw(kinds)), draw(kinds)
    target["cast"] = cast(source["cast"], to)
    casts.append(CastRule(parameters="cast", dtype=to))

    source["turned"], to = floats(1, (24, 12, 24), draw(kinds)), draw(kinds)
    axes = tuple(draw(st.permutations(range(3))))
    name, value = source["turned"]
    target["turned"] = cast((name, value.transpose(axes)), to)
    casts.append(CastRule(parameters="turned", dtype=to))

    source["fused"] = floats(2, (24, 48), draw(kinds))
    name, value = source["fused"]
    axis, groups = draw(st.sampled_from([(0, 1), (0, 2), (1, 1), (1, 2), (1, 4)]))
    runs = np.split(value, groups, axis)
    for number, part in enumerate(("q", "k")):
        mine = np.concatenate([np.split(run, 2, axis)[number] for run in runs], axis)
        target[part] = (name, mine.T) if part == "k" else (name, mine)

    kind, join_axis = draw(kinds), draw(st.integers(0, 1))
    source["gate"], source["up"] = floats(3, (12, 24), kind), floats(4, (12, 24), kind)
    name, value = source["gate"]
    target["both"] = (name, np.concatenate([value, source["up"][1]], join_axis))

    source["plain"] = target["plain"] = ("Int32", np.arange(24 * 24, dtype=np.int32).reshape(24, 24))
    changes = Changes(
        split=(SplitRule(parameters="fused", into=("q", "k"), axis=axis, groups=groups),),
        join=(JoinRule(parameters=("gate", "up"), into="both", axis=join_axis),),
        transpose=(TransposeRule(parameters="turned", axes=axes), TransposeRule(parameters="k")),
        cast=tuple(casts),
    )
    return source, changes, target


@dataclass(frozen=True)
class ChangingJob:
    """A source on a storage, its whole tensors, what becomes of them, and the whole tensors that this makes."""

    url: str
    source: Tensors
    changes: Changes
    source_cuts: dict[str, RandomLayout]
    target_cuts: dict[str, RandomLayout]
    target: Tensors

    def plan(self, file_format: CheckpointFormat = CheckpointFormat.CKPT) -> ConversionPlan:
        return make_plan(self.url, self.changes, self.source_cuts, self.target_cuts, file_format)

    def wanted(self, rank: int) -> Contents:
        """What a target rank is to hold."""
        shards = {name: shard_of(each, self.target_cuts[name], rank) for name, (_, each) in self.target.items()}
        return {name: (self.target[name][0], each.shape, each.tobytes()) for name, each in shards.items()}


def draw_job(data: st.DataObject, directory: Path, remote: bool) -> ChangingJob:
    """A random one, its source written."""
    source, changes, target = data.draw(changed())
    source_cuts = {name: data.draw(layouts(SOURCE_DEVICES, each.ndim)) for name, (_, each) in source.items()}
    target_cuts = {name: data.draw(layouts(TARGET_DEVICES, each.ndim)) for name, (_, each) in target.items()}
    write_source(directory / "src", source, source_cuts, SOURCE_DEVICES)
    url = put_on_remote_storage(directory) if remote else str(directory / "src")
    return ChangingJob(url, source, changes, source_cuts, target_cuts, target)


def put_on_remote_storage(directory: Path) -> str:
    """The URL of a copy of the directory's `src`."""
    url = f"memory://{directory.name}"
    fsspec.filesystem("memory").put(str(directory / "src"), url, recursive=True)
    return url


def make_plan(
    url: str,
    changes: Changes,
    source_cuts: dict[str, RandomLayout],
    target_cuts: dict[str, RandomLayout],
    file_format: CheckpointFormat = CheckpointFormat.CKPT,
) -> ConversionPlan:
    source = make_strategy({name: as_layout(cut) for name, cut in source_cuts.items()})
    target = make_strategy({name: as_layout(cut) for name, cut in target_cuts.items()})
    catalog = build_catalog(url, source.ranks, digest=lambda *_: False, workers=1)
    return build_plan(PlanInputs(catalog, source, target, file_format, changes=changes, layout=RankFolders()))


ROWS, COLUMNS, WHOLE = (RandomLayout((2,), tensor_map, ()) for tensor_map in (((0,), ()), ((), (0,)), ((), ())))


def overflowing_plan(directory: Path, policy: OverflowPolicy, *, transpose: bool = False) -> ConversionPlan:
    """A matrix of which three values are too large for float16, in both halves of its rows."""
    matrix = np.arange(24 * 24, dtype=np.float32).reshape(24, 24)
    matrix[2, 5], matrix[20, 1], matrix[20, 2], matrix[3, 3] = 70000, -1e6, 65520, np.inf
    tensors = {"w": ("Float32", matrix), "x": ("Float32", np.ones((24, 24), np.float32))}
    write_source(directory / "src", tensors, dict.fromkeys(tensors, COLUMNS), 2)
    changes = Changes(
        cast=(CastRule(parameters="*", dtype="float16"),),
        cast_overflow=policy,
        transpose=(TransposeRule(parameters="w"),) if transpose else (),
    )
    return make_plan(str(directory / "src"), changes, dict.fromkeys(tensors, COLUMNS), dict.fromkeys(tensors, ROWS))

"""Each level of verification finds what it claims to: the conversion is broken on purpose, and each level looks at it.

`SABOTAGES` says which level is the lowest that finds a fault; higher ones find it, too. The table in
docs/explanation/verification.md says the same, and is compared with it.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError, ReshardError, VerificationError
from reshard.core.files.model import FilePlan, OutputEntry
from reshard.core.layouts.weight_maps import dump_sorted_weight_map
from reshard.core.plan import layout_classes
from reshard.core.plan.deduplication import SharedSlices, choose_keepers
from reshard.core.plan.geometry import ClassGeometry
from reshard.core.plan.matching import match_parameters
from reshard.core.plan.model import ParameterMatch, ParameterPlan, RankPlan, ReadItem
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.storage.copying import copy_file
from reshard.core.storage.urls import Location
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor import casting, layout
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Extent, TensorSlice
from reshard.core.transfer import fetches, scatter, writer
from reshard.core.transfer.file_blocks import Block, Chunk, file_blocks, planned_file
from reshard.core.transfer.read_ranges import ReadRange
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.places import PROJECT
from tests.support.records import as_record

DOCUMENT = PROJECT / "docs/explanation/verification.md"
LEVELS = tuple(VerifyLevel)
CHECKING = LEVELS[1:]
"""What a finished checkpoint can be verified with."""

# ---- a small checkpoint: two stages of four devices, to one stage of four ----

FOUR = (2, 2)
BOTH_AXES = ParameterLayout(FOUR, ((1,), (0,)), nested=True)
ROWS = ParameterLayout(FOUR, ((1,), ()), nested=True)
WHOLE = ParameterLayout(FOUR, ((), ()), nested=True)
SOURCE = Strategy(
    (
        StageStrategy(0, {"embed": ROWS, "wq": BOTH_AXES, "wk": BOTH_AXES}),
        StageStrategy(1, {"embed": ROWS, "wv": BOTH_AXES}),
    ),
    "source",
)
TARGET = Strategy((StageStrategy(0, {"embed": WHOLE, "wq": ROWS, "wk": ROWS, "wv": ROWS}),), "target")


def whole_tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    return {name: random.standard_normal((8, 8)).astype(np.float32) for name in ("embed", "wq", "wk", "wv")}


def write_source(directory: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """The checkpoint, cut by literal slices; the stages' copies of the embedding are not the same."""
    for rank in range(8):
        stage, row, column = rank // 4, rank // 2 % 2, rank % 2
        entries = []
        for name in SOURCE.stages[stage].layouts:
            shard = tensors[name][4 * row : 4 * row + 4] + (stage if name == "embed" else 0)
            shard = shard if name == "embed" else shard[:, 4 * column : 4 * column + 4]
            entries.append((name, "Float32", shard.shape, shard.tobytes()))
        entries.append(("global_step", "Int32", (), np.int32(5).tobytes()))
        folder = directory / f"rank_{rank}"
        folder.mkdir(parents=True)
        (folder / f"net{rank}.ckpt").write_bytes(checkpoint_bytes(*entries))


@dataclass(frozen=True)
class Checkpoint:
    """A source, an earlier one of the same shapes with other values, and their strategies."""

    directory: Path

    def converted(self, options: Mapping[str, object], source: str = "source") -> Path:
        """The target that is right; made once, not to be changed."""
        target = self.directory / f"{source} {options}"
        if not target.exists():
            convert(self.request(target, source=str(self.directory / source), verify="none", **options))
        return target

    def request(self, target: Path, **options: object) -> ConversionRequest:
        defaults = {
            "source": str(self.directory / "source"),
            "target": str(target),
            "source_strategy": str(self.directory / "source.ckpt"),
            "target_strategy": str(self.directory / "target.ckpt"),
        }
        return build_request(**{**defaults, **options})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    directory = tmp_path_factory.mktemp("checkpoint")
    write_source(directory / "source", whole_tensors())
    write_source(directory / "earlier", {name: tensor + 1 for name, tensor in whole_tensors().items()})
    write_strategy(SOURCE, str(directory / "source.ckpt"))
    write_strategy(TARGET, str(directory / "target.ckpt"))
    return Checkpoint(directory)


# ---- what is done to it ----

Patch = pytest.MonkeyPatch
NOBODY = None


@dataclass(frozen=True)
class Sabotage:
    """A fault, and who finds it.

    Attributes:
        what: the fault in words, as the document has it.
        found_by: the lowest level that finds it; NONE: it does not come to that; None: nobody.
        breaks: breaks the code of the conversion.
        spoils: or spoils a finished target; is given another one, of the same shape and with other values.
        damages: or damages the source, before it is converted.
        options: of the conversion.
    """

    what: str
    found_by: VerifyLevel | None
    breaks: Callable[[Patch], None] | None = None
    spoils: Callable[[Path, Path], None] | None = None
    damages: Callable[[Path], None] | None = None
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)


def _read_one_element_early(patch: Patch) -> None:
    extents_of = fetches.FetchPlanner._extents

    def early(self: Any, parameter: ParameterPlan, read_range: ReadRange) -> tuple[Extent, ...]:
        return tuple(Extent(extent.offset - 4, extent.length) for extent in extents_of(self, parameter, read_range))

    patch.setattr(fetches.FetchPlanner, "_extents", early)


def _other_ranges(patch: Patch, change: Callable[[str, ReadRange], ReadRange]) -> None:
    ranges_of = fetches.FetchPlanner._read_ranges

    def changed(self: Any, parameter: ParameterPlan, chunk: Chunk) -> tuple[ReadRange, ...]:
        return tuple(change(chunk.name, read_range) for read_range in ranges_of(self, parameter, chunk))

    patch.setattr(fetches.FetchPlanner, "_read_ranges", changed)


def _swap_source_ranks(patch: Patch) -> None:
    def swapped(_: str, read_range: ReadRange) -> ReadRange:
        return replace(read_range, source_rank=read_range.source_rank ^ 1)

    _other_ranges(patch, swapped)


def _other_stages_copy(patch: Patch) -> None:
    def other_stage(name: str, read_range: ReadRange) -> ReadRange:
        return replace(read_range, source_rank=read_range.source_rank % 4 + 4) if name == "embed" else read_range

    _other_ranges(patch, other_stage)


def _other_fetches(patch: Patch, change: Callable[[list[Any]], list[Any]]) -> None:
    fetches_of = fetches.FetchPlanner.fetches

    def changed(self: Any, blocks: Sequence[Any]) -> list[Any]:
        for block in blocks:  # what is not read has whatever stood there, which might be right by chance
            for chunk in block.chunks:
                block.buffer[chunk.position : chunk.position + chunk.size_bytes] = 0
        return change(list(fetches_of(self, blocks)))

    patch.setattr(fetches.FetchPlanner, "fetches", changed)


def _lose_a_piece(patch: Patch) -> None:
    _other_fetches(patch, lambda fetches: fetches[:-1])


def _double_a_piece(patch: Patch) -> None:
    def doubled(fetches: list[Any]) -> list[Any]:
        first, second = next(pair for pair in pairwise(fetches) if pair[0].chunk is pair[1].chunk)
        again = replace(second.read_range, source_rank=first.source_rank)
        return [replace(fetch, read_range=again) if fetch is second else fetch for fetch in fetches]

    _other_fetches(patch, doubled)


def _swap_parameters_in_reads(patch: Patch) -> None:
    swapped_name = {"wq": "wk", "wk": "wq"}
    extents_of = fetches.FetchPlanner._extents

    def swapped(self: Any, parameter: ParameterPlan, read_range: ReadRange) -> tuple[Extent, ...]:
        sources = tuple(
            replace(source, name=swapped_name.get(source.name, source.name)) for source in parameter.sources
        )
        return extents_of(self, replace(parameter, sources=sources), read_range)

    patch.setattr(fetches.FetchPlanner, "_extents", swapped)


def _flip_before_digest(patch: Patch) -> None:
    digest = writer._RankWriter.digest

    def flipped(self: Any, block: Any) -> None:
        block.buffer[block.chunks[0].position] ^= 1
        digest(self, block)

    patch.setattr(writer._RankWriter, "digest", flipped)


def _flip_after_digest(patch: Patch) -> None:
    write = writer._RankWriter.write

    def flipped(self: Any, block: Any, sums: list[int]) -> None:
        block.buffer[block.chunks[0].position] ^= 1
        write(self, block, sums)

    patch.setattr(writer._RankWriter, "write", flipped)


def _spoil_what_no_strategy_knows(patch: Patch) -> None:
    digest = writer._RankWriter.digest

    def spoiled(self: Any, block: Any) -> None:
        [chunk] = [chunk for chunk in block.chunks if chunk.name == "global_step"]
        block.buffer[chunk.position] += 1
        digest(self, block)

    patch.setattr(writer._RankWriter, "digest", spoiled)


def _truncating_cast(patch: Patch) -> None:
    def truncated(values: np.ndarray, source: object, target: object, out: np.ndarray) -> int:
        out[...] = values >> 16
        return 0

    patch.setattr(casting, "cast_into", truncated)


def _forget_to_turn(patch: Patch) -> None:
    def not_turned(values: np.ndarray, target: np.ndarray) -> None:
        target[...] = values.T

    patch.setattr(scatter, "copy_transposed", not_turned)


def _swap_rank_plans(patch: Patch) -> None:
    rank_plan = ConversionPlan.rank_plan

    def swapped(self: ConversionPlan, rank: int, **options: Any) -> RankPlan:
        return replace(rank_plan(self, rank ^ 2, **options), rank=rank, copy_of=self.copies.get(rank))

    patch.setattr(ConversionPlan, "rank_plan", swapped)


def _swap_places(patch: Patch) -> None:
    boxes = layout_classes._boxes

    def swapped(*arguments: Any) -> tuple[TensorSlice, tuple[ReadItem, ...]]:
        box, (first, second, *others) = boxes(*arguments)
        places = [(first, second.target_box), (second, first.target_box)]
        return box, (*(replace(read, target_box=place) for read, place in places), *others)

    patch.setattr(layout_classes, "_boxes", swapped)


def _plan_too_few_parts(patch: Patch) -> None:
    parts = ClassGeometry.parts
    patch.setattr(ClassGeometry, "parts", lambda self, cell: parts(self, cell)[:-1])


def _swap_parameters_in_the_match(patch: Patch) -> None:
    def swapped(*arguments: Any, **options: Any) -> ParameterMatch:
        match = match_parameters(*arguments, **options)
        sources = {parameter.name: parameter.sources for parameter in match.resharded}
        sources |= {"wq": sources["wk"], "wk": sources["wq"]}
        moved = tuple(replace(each, sources=sources[each.name]) for each in match.resharded)
        return replace(match, resharded=moved)

    patch.setattr("reshard.core.plan.plan.match_parameters", swapped)


def _forget_a_parameter(patch: Patch) -> None:
    def forgetful(*arguments: Any, **options: Any) -> ParameterMatch:
        match = match_parameters(*arguments, **options)
        return replace(match, resharded=tuple(each for each in match.resharded if each.name != "wk"))

    patch.setattr("reshard.core.plan.plan.match_parameters", forgetful)


def _keep_a_slice_nowhere(patch: Patch) -> None:
    def careless(slices: Sequence[SharedSlices], device_count: int, replicas: int) -> np.ndarray:
        kept = choose_keepers(slices, device_count, replicas)
        kept[1, slices[1].owners[0]] = False
        return kept

    patch.setattr("reshard.core.plan.layout_classes.choose_keepers", careless)


def _number_device_axes_from_the_left(patch: Patch) -> None:
    cut = layout._shard_grid

    def from_the_left(given: ParameterLayout, axis_count: int) -> layout.ShardGrid:
        last = len(given.device_matrix) - 1
        turned = tuple(tuple(last - axis for axis in axes) for axes in given.tensor_map)
        return cut(replace(given, tensor_map=turned), axis_count)

    patch.setattr(layout, "_shard_grid", from_the_left)


def _wrong_header(patch: Patch, change: Callable[[OutputEntry], OutputEntry | None]) -> None:
    def wrong(planned: ConversionPlan, rank: int, entries: tuple[OutputEntry, ...]) -> FilePlan:
        return planned_file(planned, rank, tuple(filter(None, map(change, entries))))

    patch.setattr("reshard.core.transfer.writer.planned_file", wrong)


def _wrong_dtype(patch: Patch) -> None:
    other = dtype_from_name("Int32")
    _wrong_header(patch, lambda entry: replace(entry, dtype=other) if entry.name == "wq" else entry)


def _wrong_shape(patch: Patch) -> None:
    def turned(entry: OutputEntry) -> OutputEntry:
        return replace(entry, shape=entry.shape[::-1])

    _wrong_header(patch, turned)


def _leave_out_a_parameter(patch: Patch) -> None:
    _wrong_header(patch, lambda entry: None if entry.name == "wk" else entry)


def _leave_out_the_last_block(patch: Patch) -> None:
    def all_but_the_last(self: Any, shares: object) -> Iterator[Block]:
        return iter(list(file_blocks(self._file_plan, self._entries, 128))[:-1])

    patch.setattr(writer._RankWriter, "blocks", all_but_the_last)


def _copy_another_rank(patch: Patch) -> None:
    def wrong(source: Location, target: Location) -> None:
        other = {"checkpoint_0.ckpt": "checkpoint_2.ckpt", "checkpoint_2.ckpt": "checkpoint_0.ckpt"}[source.name]
        copy_file(source.parent.parent.child(f"rank_{other[11]}", other), target)

    patch.setattr("reshard.core.conversion.rank_work.copy_file", wrong)


def _write_a_wrong_index(patch: Patch) -> None:
    def wrong(weights: Mapping[str, str], total_bytes: int, element_count: int) -> bytes:
        return _with_swapped_files(dump_sorted_weight_map(weights, total_bytes, element_count))

    patch.setattr("reshard.core.layouts.unified.index_writing.dump_sorted_weight_map", wrong)


def _with_swapped_files(index: bytes) -> bytes:
    one, other = "model-00001-of-", "model-00002-of-"
    text = index.decode().replace(one, "@").replace(other, one).replace("@", other)
    assert text.encode() != index
    return text.encode()


def _change_a_replica(source: Path) -> None:
    file = rank_file(source, 1)
    data = bytearray(file.read_bytes())
    data[data.index(read_tree(source)[1]["embed"][2])] ^= 1
    replace_file(file, bytes(data))


def rank_file(target: Path, rank: int) -> Path:
    [file] = (target / f"rank_{rank}").iterdir()
    return file


def _spoil_index(target: Path, _: Path) -> None:
    [index] = target.glob("*.index.json")
    index.write_bytes(_with_swapped_files(index.read_bytes()))


def _flip_a_byte(target: Path, _: Path) -> None:
    [wq] = [contents["wq"][2] for contents in [read_tree(target)[0]]]
    data = bytearray(rank_file(target, 0).read_bytes())
    data[data.index(wq) + 5] ^= 0x10
    replace_file(rank_file(target, 0), bytes(data))


def _flip_a_mark(target: Path, _: Path) -> None:
    file = rank_file(target, 0)
    data = file.read_bytes()
    replace_file(file, data.replace(b'"format":"ms"', b'"format":"pt"'))


def _truncate(target: Path, _: Path) -> None:
    replace_file(rank_file(target, 0), rank_file(target, 0).read_bytes()[:-1])


def _delete_a_file(target: Path, _: Path) -> None:
    rank_file(target, 1).unlink()


def _add_a_file(target: Path, _: Path) -> None:
    shutil.copy(rank_file(target, 0), target / "rank_0" / "newer_0.ckpt")


def _swap_files(target: Path, _: Path) -> None:
    one, other = rank_file(target, 0), rank_file(target, 2)
    data = one.read_bytes()
    replace_file(one, other.read_bytes())
    replace_file(other, data)


def _stale_file(target: Path, stale: Path) -> None:
    replace_file(rank_file(target, 0), rank_file(stale, 0).read_bytes())


def _stale_file_and_record(target: Path, stale: Path) -> None:
    _stale_file(target, stale)
    shutil.copy(stale / ".reshard/records/rank_0.json", target / ".reshard/records/rank_0.json")


def _shorten_manifest(target: Path, _: Path) -> None:
    file = target / ".reshard/manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["ranks"][-1]
    replace_file(file, as_record(manifest))


def replace_file(file: Path, data: bytes) -> None:
    """Other contents; checkpoint files may be read-only."""
    assert data != file.read_bytes()
    file.unlink()
    file.write_bytes(data)


NONE, STRUCTURE, CHECKSUM, CONTENT = LEVELS
WITHOUT_REPLICAS = {"include": ["wq", "wk"]}
TWO_FILES = {"target_strategy": "", "layout": "unified", "max_shard_size": "600B"}

SABOTAGES = [
    Sabotage("The planner leaves out a part of a slice", NONE, _plan_too_few_parts),
    Sabotage(
        "The index of a unified checkpoint is made with wrong files", NONE, _write_a_wrong_index, options=TWO_FILES
    ),
    Sabotage("A file is missing", STRUCTURE, spoils=_delete_a_file),
    Sabotage("A file of something else lies in a rank's folder", STRUCTURE, spoils=_add_a_file),
    Sabotage("A file is cut off", STRUCTURE, spoils=_truncate),
    Sabotage("The last block of a file was not written", STRUCTURE, _leave_out_the_last_block),
    Sabotage("A parameter was left out", STRUCTURE, _leave_out_a_parameter),
    Sabotage("A header names another dtype", STRUCTURE, _wrong_dtype),
    Sabotage("A header names another shape", STRUCTURE, _wrong_shape, options=WITHOUT_REPLICAS),
    Sabotage("The manifest lacks a rank", STRUCTURE, spoils=_shorten_manifest),
    Sabotage("A file and its record are an earlier conversion's", STRUCTURE, spoils=_stale_file_and_record),
    Sabotage("The index of a unified checkpoint was changed", STRUCTURE, spoils=_spoil_index, options=TWO_FILES),
    Sabotage("A byte changes in memory after its digest was taken", CHECKSUM, _flip_after_digest),
    Sabotage("A byte of a parameter changed after it was written", CHECKSUM, spoils=_flip_a_byte),
    Sabotage("A byte beside the parameters changed", CHECKSUM, spoils=_flip_a_mark, options={"format": "safetensors"}),
    Sabotage("A file is an earlier conversion's, with other values", CHECKSUM, spoils=_stale_file),
    Sabotage("The files of two ranks changed places", CHECKSUM, spoils=_swap_files),
    Sabotage("A copy was made of another rank's file", CHECKSUM, _copy_another_rank),
    Sabotage("A read begins one element too early", CONTENT, _read_one_element_early),
    Sabotage("The planner puts two pieces in each other's place", CONTENT, _swap_places),
    Sabotage("Reads of two source ranks are swapped", CONTENT, _swap_source_ranks),
    Sabotage("Two target ranks are written as each other, records and all", CONTENT, _swap_rank_plans),
    Sabotage("A piece is not read", CONTENT, _lose_a_piece),
    Sabotage("A piece is read twice, once in place of another", CONTENT, _double_a_piece),
    Sabotage("Another stage's copy of a shared parameter is read", CONTENT, _other_stages_copy),
    Sabotage("Two parameters of one shape are read as each other", CONTENT, _swap_parameters_in_reads),
    Sabotage("A byte changes in memory before its digest is taken", CONTENT, _flip_before_digest),
    Sabotage("What no strategy knows is copied with another value", CONTENT, _spoil_what_no_strategy_knows),
    Sabotage(
        "Redundancy is removed, and a slice is kept by no rank",
        CONTENT,
        _keep_a_slice_nowhere,
        options={"remove_redundancy": True, "replicas": 1},
    ),
    Sabotage("The planner forgets a parameter", CONTENT, _forget_a_parameter),
    Sabotage("A tensor of a unified checkpoint is read wrongly", CONTENT, _read_one_element_early, options=TWO_FILES),
    Sabotage("A cast cuts off instead of rounding", CONTENT, _truncating_cast, options={"cast": ["w*=bfloat16"]}),
    Sabotage("A transposed parameter is not turned", CONTENT, _forget_to_turn, options={"transpose": ["wq"]}),
    Sabotage(
        "The highest rank with a slice of the source has another copy than the rank that is read",
        CONTENT,
        damages=_change_a_replica,
    ),
    Sabotage("The plan takes two parameters of one shape for each other", NOBODY, _swap_parameters_in_the_match),
    Sabotage(
        "A strategy is misread (device axes counted from the left), and ranks share slices",
        CONTENT,
        _number_device_axes_from_the_left,
    ),
    Sabotage(
        "A strategy is misread in the same way, and no ranks of the source share slices",
        NOBODY,
        _number_device_axes_from_the_left,
        options=WITHOUT_REPLICAS,
    ),
]
BROKEN = [sabotage for sabotage in SABOTAGES if sabotage.breaks]
SPOILED = [sabotage for sabotage in SABOTAGES if sabotage.spoils]
DAMAGED = [sabotage for sabotage in SABOTAGES if sabotage.damages]


def finds(level: VerifyLevel, sabotage: Sabotage) -> bool:
    return sabotage.found_by is not None and LEVELS.index(sabotage.found_by) <= LEVELS.index(level)


@pytest.mark.parametrize("sabotage", BROKEN, ids=lambda sabotage: sabotage.what)
def test_broken_code(sabotage: Sabotage, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: Patch) -> None:
    right = tree(checkpoint.converted(sabotage.options))
    assert sabotage.breaks is not None
    sabotage.breaks(monkeypatch)
    for level in around(sabotage):
        error = attempt(checkpoint.request(tmp_path / level, verify=level, **sabotage.options))
        if not finds(level, sabotage):
            assert error is None, level
            assert tree(tmp_path / level) != right
        elif sabotage.found_by is NONE:
            assert isinstance(error, InputError | VerificationError)
        else:
            assert isinstance(error, VerificationError), level
            assert not (tmp_path / level).exists()


WRONG_VALUES = [sabotage for sabotage in BROKEN if sabotage.found_by is NOBODY]
WRONG_VALUES += [sabotage for sabotage in BROKEN if sabotage.found_by is CONTENT][::4]


@pytest.mark.parametrize("sabotage", WRONG_VALUES, ids=lambda sabotage: sabotage.what)
def test_a_finished_target_of_wrong_values(
    sabotage: Sabotage, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: Patch
) -> None:
    """What broken code made is found and mended by code that is right, even where both sides had shared the mistake."""
    assert sabotage.breaks is not None
    sabotage.breaks(monkeypatch)
    request = checkpoint.request(tmp_path / "out", verify="checksum", **sabotage.options)
    convert(request)
    monkeypatch.undo()
    assert not verify_target(request.target, CHECKSUM).problems
    assert verify_target(request.target, CONTENT).problems
    compared = request.model_copy(update={"verify": CONTENT})
    if attempt(compared) is not None:  # else its files were found to be of another plan, and rewritten at once
        convert(compared)
    assert tree(tmp_path / "out") == tree(checkpoint.converted(sabotage.options))


def around(sabotage: Sabotage) -> Sequence[VerifyLevel]:
    """The level that finds it, and the one below, which does not."""
    if sabotage.found_by is None:
        return LEVELS[-1:]
    place = LEVELS.index(sabotage.found_by)
    return LEVELS[max(0, place - 1) : place + 1]


def attempt(request: ConversionRequest) -> ReshardError | None:
    try:
        convert(request)
    except ReshardError as error:
        return error
    return None


def tree(target: Path) -> dict[str, bytes]:
    files = (file for file in target.rglob("*") if file.is_file() and ".reshard" not in file.parts)
    return {str(file.relative_to(target)): file.read_bytes() for file in files}


@pytest.mark.parametrize("sabotage", SPOILED, ids=lambda sabotage: sabotage.what)
def test_spoiled_files(sabotage: Sabotage, checkpoint: Checkpoint, tmp_path: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(checkpoint.converted(sabotage.options), target)
    assert sabotage.spoils is not None
    sabotage.spoils(target, checkpoint.converted(sabotage.options, "earlier"))
    for level in CHECKING:
        assert bool(verify_target(str(target), level).problems) == finds(level, sabotage), level


@pytest.mark.parametrize("sabotage", DAMAGED, ids=lambda sabotage: sabotage.what)
def test_damaged_sources(sabotage: Sabotage, checkpoint: Checkpoint, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(checkpoint.directory / "source", source)
    assert sabotage.damages is not None
    sabotage.damages(source)
    for level in around(sabotage):
        error = attempt(checkpoint.request(tmp_path / level, source=str(source), verify=level, **sabotage.options))
        assert isinstance(error, VerificationError) if finds(level, sabotage) else error is None, level


@pytest.mark.parametrize(
    "options", [{}, {"cast": ["w*=bfloat16"]}, {"transpose": ["wq"]}, TWO_FILES, WITHOUT_REPLICAS], ids=str
)
def test_nothing_is_found_where_nothing_is_wrong(
    options: Mapping[str, object], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    convert(checkpoint.request(tmp_path / "out", verify="content", **options))
    for level in CHECKING:
        assert verify_target(str(tmp_path / "out"), level).problems == ()


def test_the_document_says_the_same() -> None:
    """Its table is this one; a failure prints the table to put there."""
    assert table() in DOCUMENT.read_text(), table()


def table() -> str:
    rows = [("what is wrong", *LEVELS), ("---", *["---"] * len(LEVELS))]
    rows += [
        (sabotage.what, *("found" if finds(level, sabotage) else "-" for level in LEVELS)) for sabotage in SABOTAGES
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)

"""The types of a plan: what decides it, what becomes of each parameter, and the reads that fill a rank's shards."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from msgspec import field

from reshard.core.changes.changes import NO_CHANGES, Changes
from reshard.core.changes.info_texts import InfoValue
from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.files.model import CheckpointFormat
from reshard.core.plan.adapter import Adapter
from reshard.core.plan.appended import AppendedParameter
from reshard.core.plan.ownership import LostBox, SourceCopy
from reshard.core.plan.planned_layout import NOT_WRITTEN, PlannedLayout
from reshard.core.runtime.records import Record
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.dtypes import DType
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.quantized import Quantized
from reshard.core.tensor.segments import Piece, are_whole
from reshard.core.tensor.slices import Shape, TensorSlice
from reshard.core.tensor.value_changes import UNCHANGED, ValueChanges


class FileStage(Record):
    """The files of one kind, model or optimizer, of a target stage; the plan treats them as a stage of their own.

    Attributes:
        number: its number in the plan.
        kind: `model` or `opt`; empty if the files hold all kinds.
        stage: the pipeline stage.
        ranks: global ranks of the stage's devices.
        files: numbers of the files in the plan, one for each of `ranks`.
    """

    number: int
    kind: str
    stage: int
    ranks: range
    files: range


class PlanInputs(Record):
    """Everything that decides the target's content.

    Attributes:
        source_strategy: how the source is sharded; None: not at all, one rank.
        target_strategy: how the target will be sharded; None: not at all, one rank.
        format: kind of the target's files.
        fail_on_unmatched: fail on parameters that the target's strategy lacks, instead of dropping them.
        allow_missing: shell-style patterns of target parameters that need no source.
        integrated_save: whether every source rank holds whole tensors, whatever its strategy says; by default known
            shapes decide, else the strategy.
        shared_parameters: source of a parameter that several source stages hold: `first`, the lowest stage, or a
            stage's number, even if that stage does not hold all of it.
        replicas: copies of each slice to keep among the target's ranks; 0: every rank keeps all of its slices.
        append_info: names and values for every target file, in place of the source's.
        encryption: encryption of the target's files, MindSpore's `enc_mode`; empty: none.
        changes: selection, new names, shapes and dtypes of target parameters. The target's strategy and
            `allow_missing` use the new names.
        layout: how the target lies in its directory.
        adapter: what is merged into the source's weights, before all other changes.
    """

    catalog: CheckpointCatalog
    source_strategy: Strategy | None
    target_strategy: Strategy | None
    format: CheckpointFormat
    fail_on_unmatched: bool = False
    allow_missing: tuple[str, ...] = ()
    integrated_save: IntegratedSave = IntegratedSave.AUTO
    shared_parameters: str = "first"
    replicas: int = 0
    append_info: tuple[tuple[str, InfoValue], ...] = ()
    write_crc: bool = False
    encryption: str = ""
    changes: Changes = NO_CHANGES
    layout: PlannedLayout = NOT_WRITTEN
    adapter: Adapter | None = None

    @property
    def kept_replicas(self) -> int:
        """Copies of each slice that the target has; 0: one on every rank that owns the slice."""
        return self.layout.kept_replicas(self.replicas)

    @property
    def counts_source_files(self) -> bool:
        """True if the source's "ranks" are its files: those of whole tensors, or those that say their own boxes."""
        strategy = self.source_strategy
        return self.catalog.has_whole_tensors or (strategy is not None and strategy.lists_boxes)


class SourceTensor(Record):
    """A parameter of the source.

    Attributes:
        name: its name in the source's files.
        shape: shape of the whole tensor.
        copies: the stage to read from; if shards have no owner there, then also other stages that hold the parameter.
            Empty if the parameter is passed through.
    """

    name: str
    dtype: DType
    shape: Shape
    copies: tuple[SourceCopy, ...]


class ReshardedParameter(Record):
    """A parameter whose shards are made by the target's layouts.

    Attributes:
        name: the parameter's name in the target.
        dtype: element type in the target.
        shape: shape of the whole tensor in the target.
        sources: the source parameters that it is made from; usually one.
        pieces: boxes of the sources that fill it exactly once; usually one, the whole source.
        target_layouts: target stage -> layout there.
        steps: declared changes other than casts: `split`, `joined`, `transposed`, `renamed`.
        quantized: what is made of a matrix that is quantized; the pieces, and the layouts, are that matrix's.
    """

    name: str
    dtype: DType
    shape: Shape
    sources: tuple[SourceTensor, ...]
    pieces: tuple[Piece, ...]
    target_layouts: Mapping[int, ParameterLayout]
    steps: tuple[str, ...] = ()
    quantized: Quantized | None = None

    @property
    def read_shape(self) -> Shape:
        """Shape of what its pieces fill."""
        return self.shape if self.quantized is None else self.quantized.shape

    @property
    def is_whole(self) -> bool:
        """True if it is all of one source parameter, in the same shape."""
        return are_whole(self.pieces, self.sources[0].shape)

    @property
    def pieces_of_sources(self) -> Sequence[Sequence[Piece]]:
        """The pieces of each source parameter."""
        pieces: list[list[Piece]] = [[] for _ in self.sources]
        for piece in self.pieces:
            pieces[piece.source].append(piece)
        return pieces

    @property
    def copies(self) -> tuple[SourceCopy, ...]:
        """The copies of its first source."""
        return self.sources[0].copies

    @property
    def source_first_rank(self) -> int:
        """Global rank of the first device of the stage that its first source is read from."""
        return self.copies[0].first_rank


class PassedThroughParameter(Record):
    """A parameter that no strategy knows, copied to every rank.

    Attributes:
        name: its name in the target.
        source_name: its name in the source's files.
        owners: the source ranks that hold it.
        dtype: element type in the target.
        steps: declared changes other than casts: `renamed`.
    """

    name: str
    source_name: str
    owners: frozenset[int]
    dtype: DType
    steps: tuple[str, ...] = ()


class TargetFiles(Record):
    """The files of a target whose ranks are files.

    Attributes:
        names: paths of the files below the target; the last one gets the appended entries.
        stages: if the files are sharded by stages, the files of each stage and kind; else each is a stage.
        outside: the resharded parameters that no strategy knows.
        in_documents: the source's parameters that are in a document beside the files instead of in them.
    """

    names: tuple[str, ...] = ()
    stages: tuple[FileStage, ...] = ()
    outside: tuple[str, ...] = ()
    in_documents: tuple[str, ...] = ()


NO_FILES = TargetFiles()


class LeftOut(Record):
    """Parameters that declared changes leave out.

    Attributes:
        sources: their names in the source -> the declaration.
        names: their names in the target.
        copies: source parameters that were left out as copies of others, each with the other. That they are is still to
            be checked.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    copies: tuple[tuple[SourceTensor, SourceTensor], ...] = ()


class ParameterMatch(Record):
    """The fate of every parameter; names in the source files' order.

    Attributes:
        resharded: parameters with new shards.
        passed_through: parameters that are copied unchanged to every target rank.
        dropped: names in the source's strategy, as changed, that the target's lacks.
        missing: names in the target's strategy that no source file holds, and that may be missing or were left out.
        integrated: every source rank holds whole tensors, whatever the strategy says.
        shapes_decide: known shapes prove `integrated` or its contrary.
        lost: boxes of source parameters that the target needs and no file holds.
        elsewhere: names in the target's strategy that belong to other stages, which are converted by themselves.
        shared: the stages' copies of each resharded source parameter that several stages hold, the one to read first.
        appended: entries for every target file, in place of the source's.
        files: the files that parameters are assigned to, if the target's ranks are files.
        left_out: parameters that declared changes leave out.
        part: the stage whose part of the target this is; None if it is all of it.
    """

    resharded: tuple[ReshardedParameter, ...]
    passed_through: tuple[PassedThroughParameter, ...]
    dropped: tuple[str, ...]
    missing: tuple[str, ...]
    integrated: bool
    shapes_decide: bool = True
    appended: tuple[AppendedParameter, ...] = ()
    lost: tuple[LostBox, ...] = ()
    elsewhere: tuple[str, ...] = ()
    shared: Mapping[str, tuple[tuple[int, SourceCopy], ...]] = field(default_factory=dict)
    files: TargetFiles = NO_FILES
    left_out: LeftOut = field(default_factory=LeftOut)
    part: int | None = None

    @property
    def allowed_missing(self) -> tuple[str, ...]:
        """Names in `missing` that were not left out on purpose."""
        return tuple(name for name in self.missing if name not in self.left_out.names)

    def stage_text(self, number: int) -> str:
        """Format the name of one of the plan's stages."""
        if self.files.stages:
            stage = self.files.stages[number]
            return ", ".join(filter(None, (f"stage {stage.stage}", stage.kind)))
        return self.files.names[number] if self.files.names else f"stage {number}"

    def pipeline_stage(self, number: int) -> int:
        """Return the target's pipeline stage that one of the plan's stages belongs to."""
        return self.files.stages[number].stage if self.files.stages else number

    @property
    def beyond_strategies(self) -> tuple[str, ...]:
        """Names of target parameters that no strategy knows."""
        return tuple(passed.name for passed in self.passed_through) + self.files.outside


class ReadItem(Record):
    """A box that a target shard takes from a source shard.

    Attributes:
        source_rank: global rank of the source file.
        source_box: the box in the source shard's coordinates; perhaps stepped, as that in the target's.
        target_box: the same elements in the target shard's coordinates.
        source: index of the source parameter in the parameter plan's `sources`.
        axes: target axis i is source axis `axes[i]`, or new; None: the axes are the same.
        changes: what becomes of the values.
        shard_start: where the source shard begins in the whole tensor, if that decides what becomes of them.
    """

    source_rank: int
    source_box: TensorSlice
    target_box: TensorSlice
    source: int = 0
    axes: Shape | None = None
    changes: ValueChanges = UNCHANGED
    shard_start: Shape = ()


class ParameterPlan(Record):
    """One parameter of one target rank.

    Attributes:
        box: the target shard as a box of the whole tensor.
        reads: boxes that fill the target shard exactly once.
        sources: the source parameters that the reads refer to.
        appended: the entry to write if the parameter does not come from the source.
        quantized: what is made of the whole matrix that the reads fill, if it is quantized.
    """

    name: str
    dtype: DType
    box: TensorSlice
    reads: tuple[ReadItem, ...]
    sources: tuple[SourceTensor, ...] = ()
    appended: AppendedParameter | None = None
    quantized: Quantized | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the target shard."""
        return self.box.size * self.dtype.itemsize

    @property
    def before_quantizing(self) -> "ParameterPlan":
        """The matrix that is quantized, under the same name; itself if none is."""
        if self.quantized is None:
            return self
        whole = TensorSlice.whole(self.quantized.shape)
        return ParameterPlan(self.name, self.quantized.dtype, whole, self.reads, self.sources)


class RankPlan(Record, dict=True):
    """One target rank: its parameters in the order of its file.

    `copy_of` is the lowest rank with the same content, None if that is the rank itself.
    """

    rank: int
    parameters: tuple[ParameterPlan, ...]
    copy_of: int | None

    @property
    def size_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(parameter.size_bytes for parameter in self.parameters)

    @cached_property
    def source_ranks(self) -> tuple[int, ...]:
        """Source ranks whose files are read, in ascending order."""
        return tuple(sorted({read.source_rank for parameter in self.parameters for read in parameter.reads}))


class RankTotals(Record):
    """The size of one target rank's work.

    Attributes:
        shard_bytes: bytes of all its shards.
        needed_bytes: bytes of the source that they are made from; only read if the rank is not a copy.
        source_ranks: source ranks whose files it needs.
        copy_of: the lowest rank with the same content, if that is another one.
    """

    rank: int
    shard_bytes: int
    needed_bytes: int
    source_ranks: tuple[int, ...]
    copy_of: int | None

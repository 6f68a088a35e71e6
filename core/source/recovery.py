"""Assesses whether a damaged checkpoint can be recovered, from headers and the strategy.

A checkpoint is recoverable if, for every box of every parameter, some rank left holds it. The strategy tells which
ranks hold the same; without one, groups of ranks whose files are replicas may be given.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec.structs import replace

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.damage_policy import DamagePolicy
from reshard.core.errors import CatalogError, CheckpointError, InputError, LayoutError, StrategyError
from reshard.core.files.file_names import Step, parse_step
from reshard.core.layouts.cataloging import catalog_of, check_usable
from reshard.core.layouts.source_layout import CatalogOptions, FoundCheckpoint
from reshard.core.layouts.survey import find_self_described, survey
from reshard.core.plan.matching import match_parameters
from reshard.core.plan.model import PlanInputs
from reshard.core.plan.ownership import LostBox
from reshard.core.reports.blocks import GAP, Block, Facts, Table
from reshard.core.reports.rank_table import Column, rank_column, rank_table, ranks_column
from reshard.core.reports.report import Report
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import counted, rank_names, ranks_text
from reshard.core.source.damage import Substitute, substitutes
from reshard.core.source.gaps import mixed_steps, unsaved, unsaved_text
from reshard.core.source.match_checks import match_warnings
from reshard.core.source.opening import Source, find_strategy, open_by_strategy
from reshard.core.strategy.groups import Groups, read_groups
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option, source_option, spelled

_MAX_NEWER_STEPS = 5
_MAX_LISTED = 200


class StepState(StrEnum):
    """State of a step: complete, recoverable or lost."""

    WHOLE = "whole"
    RECOVERABLE = "recoverable"
    LOST = "lost"


class LostRank(Summary):
    """A rank without a usable file, and why it has none."""

    rank: int
    why: str


class LostSlice(Summary):
    """A slice that no rank left holds.

    Attributes:
        parameter: the parameter's name; None for everything that a group of ranks held.
        box: the slice in the whole tensor; None for all of it.
        ranks: the ranks that should hold it.
    """

    parameter: str | None
    box: str | None
    ranks: tuple[int, ...]


class StepReport(Summary):
    """Another step: its state, and what is wrong with it."""

    step: str
    state: StepState
    lost_ranks: tuple[LostRank, ...]
    lost_count: int
    message: str


class RecoveryReport(Report):
    """The damage of a checkpoint, and whether other ranks make up for it.

    Attributes:
        source: URL of the checkpoint.
        step: the step examined, if file names carry one.
        world_size: the number of ranks that it should have.
        state: whether it is whole, recoverable or lost.
        lost_ranks: ranks without a usable file.
        stand_ins: the ranks that hold the same as the lost ones.
        lost: slices that no rank left holds.
        other_steps: newer steps that not all ranks have; if this one is lost, also older ones down to a usable one.
        notes: what was chosen, in sentences.
    """

    source: str
    step: str | None
    world_size: int
    state: StepState
    lost_ranks: tuple[LostRank, ...]
    stand_ins: tuple[Substitute, ...]
    lost: tuple[LostSlice, ...]
    other_steps: tuple[StepReport, ...]
    notes: tuple[str, ...]

    @property
    def recoverable(self) -> bool:
        """True if nothing is lost."""
        return self.state is not StepState.LOST

    def blocks(self) -> Iterator[Block]:
        """Yield its content: the answer, and tables of what is lost and of what substitutes for it."""
        answers = {
            StepState.WHOLE: "WHOLE: every rank has its file",
            StepState.RECOVERABLE: "RECOVERABLE: other ranks hold all that the lost ones held; convert with "
            + spelled(option("recover", True)),
            StepState.LOST: f"NOT RECOVERABLE: {counted(len(self.lost), 'part')} no longer on any rank",
        }
        step = f", step {self.step}" if self.step else ""
        yield Facts(
            [
                ("source", f"{self.source}{step}"),
                ("ranks", f"{self.world_size}, {len(self.lost_ranks)} of them lost"),
                ("answer", answers[self.state]),
                *(("note", note) for note in self.notes),
            ]
        )
        if self.lost_ranks:
            lost_columns: list[Column[LostRank]] = [
                rank_column(lambda lost: lost.rank, "lost rank"),
                Column("why", lambda lost: lost.why),
            ]
            yield from (GAP, rank_table(lost_columns, self.lost_ranks, noun="lost rank"))
        if self.stand_ins:
            columns: list[Column[Substitute]] = [
                rank_column(lambda each: each.rank, "lost rank"),
                ranks_column("substitute", lambda each: (each.stand_in,), right=True),
                Column("slices", lambda each: each.slices, right=True),
            ]
            yield from (GAP, rank_table(columns, self.stand_ins, noun="lost rank"))
        if self.lost:
            rows = [
                (lost.parameter or "all that these ranks held", lost.box or "all of it", ranks_text(lost.ranks))
                for lost in self.lost[:_MAX_LISTED]
            ]
            headers = ("lost parameter", "box", "should be on")
            yield from (GAP, Table(headers, rows, more=len(self.lost) - _MAX_LISTED))
        if self.other_steps:
            states = [(other.step, other.state, other.message) for other in self.other_steps]
            yield from (GAP, Table(("other step", "state", "details"), states))


def assess_recovery(request: SourceRequest, group_info: Sequence[str] = ()) -> RecoveryReport:
    """Assess the damage of a checkpoint. `group_info` are URLs of files of rank groups.

    Raises:
        InputError: source, strategy or groups are wrong, or files cannot be read.
        StorageError: a storage failed.
    """
    assessor = _Assessor(request, group_info)
    report = assessor.assess(request.step)
    return report.model_copy(update={"other_steps": tuple(assessor.other_steps(report))})


class _Assessor:
    def __init__(self, request: SourceRequest, group_info: Sequence[str]) -> None:
        self._request = request.model_copy(update={"recover": True})
        self._groups = read_groups(group_info) if group_info else ()
        by_groups = bool(self._groups) and not request.source_strategy
        self._given = find_self_described(request.source, request.step) if by_groups else find_strategy(request)
        if self._given is None and not self._groups:
            survey(request.source, request.step)  # it may be that there is no source, or another library's
            raise InputError(
                f"nothing says which ranks hold the same: name {source_option('source_strategy')}, or "
                f"{option('group_info')} if there is none"
            )
        if isinstance(self._given, FoundCheckpoint):
            check_usable(self._given, _options(self._request))
        strategy = self._given.strategy if isinstance(self._given, FoundCheckpoint) else self._given
        if isinstance(strategy, Strategy) and self._groups:
            _check_consistent(strategy, self._groups)

    def assess(self, step: str) -> RecoveryReport:
        """Assess a step, or the newest if it is empty."""
        request = self._request.model_copy(update={"step": step})
        if self._given is None:
            return self._by_groups(request)
        # the metadata of each step is its own
        is_other = isinstance(self._given, FoundCheckpoint) and step != self._request.step
        return _by_strategy(open_by_strategy(request, find_strategy(request) if is_other else self._given))

    def other_steps(self, report: RecoveryReport) -> list[StepReport]:
        """Steps to use instead: newer ones, and older ones down to the first usable one."""
        chosen = None if report.step is None else parse_step(report.step)
        if chosen is None:
            return []
        found = self._given if isinstance(self._given, FoundCheckpoint) else survey(self._request.source)
        steps = found.other_steps(self._request.source_prefix, chosen)
        newer = [self._other(step) for step in steps if step > chosen][:_MAX_NEWER_STEPS]
        if report.recoverable:
            return newer
        older = []
        for step in (step for step in steps if step < chosen):
            older.append(self._other(step))
            if older[-1].state is not StepState.LOST:
                break
        return newer + older

    def _other(self, step: Step) -> StepReport:
        try:
            report = self.assess(str(step))
        except (CatalogError, CheckpointError, StrategyError) as error:
            return StepReport(step=str(step), state=StepState.LOST, lost_ranks=(), lost_count=0, message=str(error))
        return StepReport(
            step=str(step),
            state=report.state,
            lost_ranks=report.lost_ranks,
            lost_count=len(report.lost),
            message=_format_state(report),
        )

    def _by_groups(self, request: SourceRequest) -> RecoveryReport:
        ranks = range(sum(map(len, self._groups)))
        found = survey(request.source, request.step)
        catalog = catalog_of(found, replace(_options(request), ranks=ranks))
        _check_replicas_of_files(catalog, self._groups)
        stand_ins: list[Substitute] = []
        lost: list[LostSlice] = []
        for group in self._groups:
            left = [rank for rank in group if rank in catalog.records]
            if not left:
                lost.append(LostSlice(parameter=None, box=None, ranks=group))
                continue
            slices = len(catalog.records[left[0]].index.entries)
            stand_ins += [
                Substitute(rank=rank, why=catalog.lost[rank], stand_in=left[0], slices=slices)
                for rank in group
                if rank in catalog.lost
            ]
        return _report(catalog, tuple(sorted(stand_ins, key=lambda each: each.rank)), tuple(lost))


def _options(request: SourceRequest) -> CatalogOptions:
    return CatalogOptions(
        step=request.step or None,
        source_prefix=request.source_prefix or None,
        check_crc=request.check_crc,
        workers=request.worker_count,
        damage=DamagePolicy(recovers=True, faulty=request.faulty),
    )


def _by_strategy(source: Source) -> RecoveryReport:
    catalog, strategy, asked = source.catalog, source.strategy, source.integrated_save
    allowed = tuple(source.request.allow_missing)
    inputs = PlanInputs(catalog, strategy, None, catalog.format, allow_missing=allowed, integrated_save=asked)
    match = match_parameters(inputs, source.shards)
    warnings = match_warnings(source, match)
    unsaved_names = unsaved(strategy, None, match)
    unsaved_notes = [unsaved_text(unsaved_names)] if unsaved_names else []
    catalog = replace(catalog, notes=(*warnings, *mixed_steps(catalog, match), *catalog.notes, *unsaved_notes))
    return _report(catalog, substitutes(catalog, strategy, match), tuple(map(_lost_slice, match.lost)))


def _check_replicas_of_files(catalog: CheckpointCatalog, groups: Groups) -> None:
    """Refuse files of a group that lack parameters of others: they are not replicas, and only a strategy helps."""
    for group in groups:
        records = [catalog.records[rank] for rank in group if rank in catalog.records]
        for record in records:
            if record.index.redundancy_removed or set(record.index.entries) != set(records[0].index.entries):
                raise CatalogError(
                    f"{record.location}: does not hold the same parameters as the other files of its group "
                    f"({rank_names(group, 8)}): redundancy was removed. Only the strategy tells which rank holds what: "
                    f"name it with {source_option('source_strategy')}"
                )


def _report(
    catalog: CheckpointCatalog, stand_ins: tuple[Substitute, ...], lost: tuple[LostSlice, ...]
) -> RecoveryReport:
    state = StepState.RECOVERABLE if catalog.lost else StepState.WHOLE
    if lost:
        state = StepState.LOST
    return RecoveryReport(
        source=catalog.url,
        step=catalog.step,
        world_size=catalog.world_size,
        state=state,
        lost_ranks=tuple(LostRank(rank=rank, why=why) for rank, why in catalog.lost.items()),
        stand_ins=stand_ins,
        lost=lost,
        other_steps=(),
        notes=catalog.notes,
    )


def _lost_slice(lost: LostBox) -> LostSlice:
    return LostSlice(parameter=lost.name, box=None if lost.box is None else str(lost.box), ranks=lost.ranks)


def _format_state(report: RecoveryReport) -> str:
    if report.state is StepState.WHOLE:
        return "every rank has its file"
    ranks = rank_names([lost.rank for lost in report.lost_ranks], 8)
    if report.state is StepState.RECOVERABLE:
        return f"what {ranks} should hold is on other ranks as well"
    return f"no longer on any rank: {counted(len(report.lost), 'part')} of what {ranks} should hold"


def _check_consistent(strategy: Strategy, groups: Groups) -> None:
    """Refuse a strategy that gives ranks of one group different slices."""
    grouped = [rank for group in groups for rank in group]
    if len(grouped) != len(strategy.ranks) or strategy.ranks.start != 0:
        raise StrategyError(f"group info has {len(grouped)} ranks, the source strategy {len(strategy.ranks)}")
    for group in groups:
        for rank in group[1:]:
            name = _differing_parameter(strategy, group[0], rank)
            if name is not None:
                raise StrategyError(
                    f"group info says that rank_{group[0]} and rank_{rank} hold the same, but the source strategy "
                    f"gives them different slices of {name!r}"
                )


def _differing_parameter(strategy: Strategy, first: int, second: int) -> str | None:
    """A parameter of which two ranks hold different slices; None if all are the same."""
    stages = strategy.stage_of(first), strategy.stage_of(second)
    if stages[0] is not stages[1]:
        return next(iter(stages[0].layouts))
    start = strategy.stage_ranks(stages[0]).start
    for name, layout in stages[0].layouts.items():
        try:
            grid = layout.shard_grid(len(layout.tensor_map))
        except LayoutError:
            continue  # planning reports it, with the parameter's name
        if grid.cell_of(first - start) != grid.cell_of(second - start):
            return name
    return None

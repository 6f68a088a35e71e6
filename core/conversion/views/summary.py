"""What reports of conversions and of plans say: the blocks that commands, programs and notebooks show."""

from collections.abc import Iterator, Sequence

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.plan_notes import substitutes_text
from reshard.core.conversion.report import (
    ConversionReport,
    PlannedRank,
    PlanSummary,
    RankReport,
    shapes_facts,
    shapes_reservation,
    worlds_text,
)
from reshard.core.reports.blocks import GAP, Block, Facts, Line, Table
from reshard.core.reports.rank_table import (
    Column,
    amount_column,
    file_column,
    rank_column,
    rank_table,
    ranks_column,
)
from reshard.core.runtime.summary import FILE, RANK
from reshard.core.runtime.wording import counted, listed, ranks_text, seconds_text, size_text
from reshard.core.storage.hashing import HASHED_BYTES_PER_SECOND
from reshard.core.storage.publishing import no_room_text
from reshard.core.text.options import option, spelled

_MAX_NOTES = 20
_MAX_CHANGES = 16
"""Rows shown of changed parameters, and of excluded ones."""
_MAX_SOURCES = 4

_Fact = tuple[str, str]


def conversion_blocks(report: ConversionReport, engine: str) -> Iterator[Block]:
    """Yield what a conversion did, and by which engine, if that is to be said."""
    notes = [("note", note) for note in report.notes[:_MAX_NOTES]]
    yield Facts([*conversion_facts(report, engine), *recovered_facts(report), *notes])
    yield GAP
    yield _converted_ranks(report)
    for fact, advice in incomplete_texts(report):
        yield from (GAP, Line(fact), Line(advice))


def conversion_facts(report: ConversionReport, engine: str) -> list[_Fact]:
    """Return what a conversion did, but for its notes."""
    step = f", step {report.step}" if report.step else ""
    worlds = worlds_text(report)
    if len(report.ranks) < report.target_world_size:
        worlds += f"; this run: {ranks_text(rank.rank for rank in report.ranks)}"
    return [
        ("converted", f"{report.source}{step}"),
        ("to", report.target),
        ("ranks", worlds),
        ("written", _work_text(report)),
        ("verified", _verified_text(report)),
        *shapes_facts(report),
        *(report.custody.facts if report.custody else ()),
        *([("engine", engine)] if engine else []),
        *([("retried", counted(report.retried_requests, "request"))] if report.retried_requests else []),
    ]


def recovered_facts(report: ConversionReport) -> list[_Fact]:
    """Return which lost ranks were made up for, if any."""
    return [("RECOVERED", substitutes_text(report.stand_ins))] if report.stand_ins else []


def incomplete_texts(report: ConversionReport) -> list[_Fact]:
    """Return what a target lacks, and what to do about it; nothing if it is complete."""
    if report.committed:
        return []
    missing = ranks_text(report.missing_ranks)
    fact = (
        f"NOT COMPLETE: {counted(len(report.missing_ranks), report.target_kind)} of {report.target_world_size} "
        f"not yet written and verified: {missing}"
    )
    command = spelled(option("ranks", missing))
    advice = f"To complete the target, run the same command with {command}, here or on another machine"
    if report.directory:
        size = size_text(sum(rank.size_bytes for rank in report.ranks))
        advice += f"; until then, the files of this run ({size}) are in {report.directory}"
    return [(fact, f"{advice}.")]


def _work_text(report: ConversionReport) -> str:
    if not report.written_bytes:
        return f"nothing: an earlier run of the same plan wrote everything ({seconds_text(report.seconds)})"
    rate = f", {size_text(report.written_bytes / report.seconds)}/s" if report.seconds else ""
    took = f"{size_text(report.written_bytes)} in {seconds_text(report.seconds)}{rate}"
    crc = f", {size_text(report.crc_bytes)} more to check CRCs" if report.crc_bytes else ""
    sha256 = f", {size_text(report.source_files_bytes)} more for SHA-256" if report.source_files_bytes else ""
    return f"{took}; {size_text(report.read_bytes)} read{crc}{sha256}"


def _verified_text(report: ConversionReport) -> str:
    if report.verified is VerifyLevel.NONE:
        return "not at all"
    read_back = f"; {size_text(report.verified_bytes)} read back" if report.verified_bytes else ""
    if report.verified is not VerifyLevel.CONTENT:
        return f"{report.verified}{read_back}{shapes_reservation(report)}"
    values = f"the values of {counted(report.compared, 'parameter')} equal the source's"
    read = f"{read_back}, {size_text(report.compared_bytes)} of the source's"
    return f"{report.verified}: {values}{read}{shapes_reservation(report)}"


def _converted_ranks(report: ConversionReport) -> Table:
    columns: list[Column[RankReport]] = [
        rank_column(lambda row: row.rank, "rank" if report.target_kind == RANK else "number"),
        file_column(lambda row: row.rank, lambda row: row.file),
        Column("size", lambda row: size_text(row.size_bytes), right=True),
        Column("how", lambda row: row.outcome),
        amount_column("read", lambda row: row.read_bytes, size_text),
        ranks_column("source ranks", lambda row: row.source_ranks),
        amount_column("time", lambda row: row.seconds, seconds_text),
    ]
    return rank_table(columns, report.ranks, noun=report.target_kind, groups_in_files=True)


def plan_blocks(summary: PlanSummary, rate_option: str) -> Iterator[Block]:
    """Yield what a plan would read and write; `rate_option` sets the rate of the estimate, if one does."""
    yield Facts(_plan_facts(summary, rate_option))
    yield from _changes(summary)
    yield GAP
    columns: list[Column[PlannedRank]] = [
        rank_column(lambda rank: rank.rank, "number" if summary.target_kind == FILE else "rank"),
        file_column(lambda rank: rank.rank, lambda rank: rank.file),
        Column("shards", lambda rank: size_text(rank.shard_bytes), right=True),
        ranks_column("source ranks", lambda rank: rank.source_ranks),
        ranks_column("copy of", lambda rank: () if rank.copy_of is None else (rank.copy_of,), right=True),
    ]
    chosen = set(summary.chosen_ranks)
    rows = [rank for rank in summary.ranks if rank.rank in chosen or not chosen]
    yield rank_table(columns, rows, noun=summary.target_kind)


def _plan_facts(summary: PlanSummary, rate_option: str) -> list[_Fact]:
    resharded = (
        f"resharded, in {summary.layout_classes} layout class{'' if summary.layout_classes == 1 else 'es'}; "
        f"{len(summary.carried)} copied unchanged"
    )
    return [
        ("source", f"{summary.source}, step {summary.step}" if summary.step else summary.source),
        ("ranks", worlds_text(summary)),
        ("format", summary.format),
        ("parameters", f"{summary.parameters} {'made whole' if summary.is_whole else resharded}"),
        *shapes_facts(summary),
        ("to read", f"{size_text(summary.read_bytes)} of the source, plus small gaps"),
        ("to write", size_text(summary.written_bytes)),
        ("time", _time_text(summary, rate_option)),
        *([("SHA-256", _sha256_text(summary))] if summary.hashed_bytes else []),
        *([] if summary.free_bytes is None else [_room_fact(summary.needed_bytes or 0, summary.free_bytes)]),
        ("buffers", f"{size_text(summary.buffer_bytes)}, for {summary.workers} at once"),
        *([("RECOVERED", substitutes_text(summary.stand_ins))] if summary.stand_ins else []),
        *(("note", note) for note in summary.notes),
    ]


def _time_text(summary: PlanSummary, rate_option: str) -> str:
    rate = f"{size_text(summary.assumed_rate_bytes or 0)}/s"
    by = f" ({rate_option})" if rate_option else ""
    return f"about {seconds_text(summary.estimated_seconds or 0)} at {rate}{by}: {summary.traffic}"


def _sha256_text(summary: PlanSummary) -> str:
    source_bytes = summary.traffic.source_files_bytes if summary.traffic else 0
    of_source = f", and {size_text(source_bytes)} of source files" if source_bytes else ""
    seconds = (summary.hashed_bytes + source_bytes) / HASHED_BYTES_PER_SECOND
    hashed = f"{size_text(summary.hashed_bytes)} hashed while written{of_source}"
    return f"{hashed}: about {seconds_text(seconds)} of processor time"


def _room_fact(needed_bytes: int, free_bytes: int) -> _Fact:
    if needed_bytes > free_bytes:
        return ("WARNING", f"the target {no_room_text(needed_bytes, free_bytes)}; the conversion would stop at once")
    return ("room", f"{size_text(needed_bytes)} needed, {size_text(free_bytes)} free")


def _changes(summary: PlanSummary) -> Iterator[Block]:
    """Yield tables of changed and of excluded parameters."""
    if summary.effects:
        yield GAP
        yield Table(
            ("parameter", "made from", "how", "dtype", "shape"),
            [
                (
                    effect.parameter,
                    _joined(effect.sources),
                    ", ".join(effect.how),
                    _from_to(_joined(effect.source_dtypes), effect.dtype),
                    _from_to(_joined([str(list(shape)) for shape in effect.source_shapes]), str(list(effect.shape))),
                )
                for effect in summary.effects[:_MAX_CHANGES]
            ],
            optional=("made from", "shape", "dtype"),
            more=len(summary.effects) - _MAX_CHANGES,
            more_what=" changed",
        )
    if summary.excluded:
        yield GAP
        yield Table(
            ("left out", "by"),
            [(each.parameter, each.by) for each in summary.excluded[:_MAX_CHANGES]],
            more=len(summary.excluded) - _MAX_CHANGES,
            more_what=" left out",
        )


def _joined(names: Sequence[str]) -> str:
    return listed(names, _MAX_SOURCES, " + ")


def _from_to(before: str, after: str) -> str:
    return after if before == after else f"{before} -> {after}"

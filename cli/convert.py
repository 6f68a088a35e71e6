"""`reshard convert`."""

from typing import TYPE_CHECKING

import click

from reshard.cli.engine import Engine, choose_engine, convert_by, engine_option, report_document
from reshard.cli.logs import is_quiet, log_facts, log_news
from reshard.cli.options import CONVERTING, GroupedCommand, conversion_options
from reshard.cli.output import print_facts, print_json
from reshard.cli.parameters import DIRECTORY, PATH
from reshard.cli.progress import shown_progress
from reshard.cli.rank_tables import Column, amount_column, file_column, print_rank_table, rank_column, ranks_column
from reshard.cli.storages import check_output, resources_named_in
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.progress import Progress
from reshard.core.runtime.wording import counted, ranks_text, seconds_text, size_text

if TYPE_CHECKING:
    from reshard.core.conversion.report import ConversionReport, RankReport

_MAX_NOTES = 20


@click.command("convert", cls=GroupedCommand, request=ConversionRequest)
@click.argument("source", type=PATH)
@click.argument("target", type=DIRECTORY)
@conversion_options(CONVERTING)
@click.option("--dry-run", is_flag=True, help="Show the plan; write nothing.")
@engine_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(request: ConversionRequest, dry_run: bool, engine: str, as_json: bool) -> None:
    """Convert the checkpoint SOURCE to another sharding strategy, into the directory TARGET.

    SOURCE is a directory with rank_0, rank_1, …, a pattern with {rank} in it, one file, or a directory of whole tensors
    with an index. TARGET appears when all of its ranks are written and checked. The same command resumes an interrupted
    run: ranks that are done are not converted again. Paths may be URLs of any protocol that fsspec supports (s3://…).

    \b
    Examples:
      to the ranks of the target strategy:
        reshard convert ckpt out --source-strategy strategy --target-strategy new_strategy.ckpt
      to one whole file, from step 10_5, as safetensors:
        reshard convert ckpt whole --source-strategy strategy --format safetensors --step 10_5
      to whole tensors for Hugging Face's loaders, and from there to any strategy:
        reshard convert ckpt hf --source-strategy strategy --layout unified --max-shard-size 5GB
        reshard convert hf out --target-strategy new_strategy.ckpt
      files with other names, as a Prefect flow run:
        reshard convert 'ckpt_{rank}/net{rank}-10_5.ckpt' out --source-strategy strategy --engine prefect
      the same job again and again, planned first:
        reshard convert ckpt out … --print-config > job.yaml
        reshard plan --config job.yaml; reshard convert --config job.yaml
      one half on each of two machines:
        reshard convert ckpt out … --ranks 0-511        reshard convert ckpt out … --ranks 512-1023
    """
    check_output(request.target)
    if dry_run:
        with resources_named_in(request):
            _show_plan(request, as_json)
        return
    chosen = choose_engine(engine, request)
    with shown_progress() as progress:
        report = convert_by(chosen, request, progress, _convert_here)
    if as_json:
        print_json(report_document(report, chosen))
    elif not is_quiet():
        print_report(report, chosen)
    log_report(report, chosen)


def _convert_here(request: ConversionRequest, progress: Progress) -> "ConversionReport":
    from reshard.core.conversion.convert import convert

    return convert(request, progress)


def _show_plan(request: ConversionRequest, as_json: bool) -> None:
    from reshard.cli.plan import print_plan
    from reshard.core.conversion.planning import describe_plan
    from reshard.core.target.target import Target

    plan, summary = describe_plan(request)
    Target.of(request.target, plan, overwrite=request.overwrite).check_usable()
    if as_json:
        print_json(summary)
    else:
        print_plan(summary, request.chosen_ranks(plan.target_ranks))


def print_report(report: "ConversionReport", engine: Engine) -> None:
    """Print what a conversion did, and by which engine."""
    facts = [*_facts(report, engine), *_recovered(report), *(("note", note) for note in report.notes[:_MAX_NOTES])]
    print_facts(facts)
    click.echo()
    _print_ranks(report)
    for fact, advice in _incomplete(report):
        click.echo()
        click.echo(f"{fact}\n{advice}")


def log_report(report: "ConversionReport", engine: Engine) -> None:
    """Log what `print_report` prints; with --quiet, what is not as asked also goes to stderr."""
    log_facts([*_facts(report, engine), *(("note", note) for note in report.notes)])
    for name, text in _recovered(report):
        log_news(f"{name}: {text}")
    for fact, advice in _incomplete(report):
        log_news(f"{fact}. {advice}")


def _facts(report: "ConversionReport", engine: Engine) -> list[tuple[str, str]]:
    from reshard.core.conversion.report import shapes_facts, worlds_text

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
        ("engine", engine.text),
        *([("retried", counted(report.retried_requests, "request"))] if report.retried_requests else []),
    ]


def _recovered(report: "ConversionReport") -> list[tuple[str, str]]:
    from reshard.core.conversion.plan_notes import substitutes_text

    return [("RECOVERED", substitutes_text(report.stand_ins))] if report.stand_ins else []


def _incomplete(report: "ConversionReport") -> list[tuple[str, str]]:
    if report.committed:
        return []
    missing = ranks_text(report.missing_ranks)
    fact = (
        f"NOT COMPLETE: {counted(len(report.missing_ranks), report.target_kind)} of {report.target_world_size} "
        f"not yet written and verified: {missing}"
    )
    advice = (
        f"The target appears when they are: run the same command with --ranks {missing}, here or on another machine."
    )
    return [(fact, advice)]


def _work_text(report: "ConversionReport") -> str:
    if not report.written_bytes:
        return f"nothing: an earlier run of the same plan wrote all ({seconds_text(report.seconds)})"
    rate = f", {size_text(report.written_bytes / report.seconds)}/s" if report.seconds else ""
    took = f"{size_text(report.written_bytes)} in {seconds_text(report.seconds)}{rate}"
    crc = f", {size_text(report.crc_bytes)} more to check CRCs" if report.crc_bytes else ""
    return f"{took}; {size_text(report.read_bytes)} read{crc}"


def _verified_text(report: "ConversionReport") -> str:
    if report.verified is VerifyLevel.NONE:
        return "not at all"
    from reshard.core.conversion.report import shapes_reservation

    read_back = f"; {size_text(report.verified_bytes)} read back" if report.verified_bytes else ""
    if report.verified is not VerifyLevel.CONTENT:
        return f"{report.verified}{read_back}{shapes_reservation(report)}"
    values = f"the values of {counted(report.compared, 'parameter')} equal the source's"
    read = f"{read_back}, {size_text(report.compared_bytes)} of the source's"
    return f"{report.verified}: {values}{read}{shapes_reservation(report)}"


def _print_ranks(report: "ConversionReport") -> None:
    from reshard.core.runtime.summary import RANK

    columns: list[Column[RankReport]] = [
        rank_column(lambda row: row.rank, "rank" if report.target_kind == RANK else "number"),
        file_column(lambda row: row.rank, lambda row: row.file),
        Column("size", lambda row: size_text(row.size_bytes), right=True),
        Column("how", lambda row: row.outcome),
        amount_column("read", lambda row: row.read_bytes, size_text),
        ranks_column("source ranks", lambda row: row.source_ranks),
        amount_column("time", lambda row: row.seconds, seconds_text),
    ]
    print_rank_table(columns, report.ranks, noun=report.target_kind, groups_in_pipes=True)

"""`reshard convert`."""

from typing import TYPE_CHECKING

import click

from reshard.cli.engine import Engine, choose_engine, convert_by, engine_option, report_document
from reshard.cli.logs import is_quiet, log_facts, log_news
from reshard.cli.options import CONVERTING, GroupedCommand, conversion_options
from reshard.cli.output import print_blocks, print_json
from reshard.cli.parameters import DIRECTORY, PATH
from reshard.cli.plan import RATE_OPTION
from reshard.cli.progress import shown_progress
from reshard.cli.storages import check_output, resources_named_in
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.progress import Progress

if TYPE_CHECKING:
    from reshard.core.conversion.report import ConversionReport


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
    with an index. TARGET appears once all of its ranks are written and checked. To resume an interrupted run, repeat
    the command: finished ranks are kept. Paths may be URLs of any protocol that fsspec supports (s3://…).

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
        print_blocks(report.blocks(chosen.text))
    log_report(report, chosen)


def _convert_here(request: ConversionRequest, progress: Progress) -> "ConversionReport":
    from reshard.core.conversion.convert import convert

    return convert(request, progress)


def _show_plan(request: ConversionRequest, as_json: bool) -> None:
    from reshard.core.conversion.planning import describe_plan
    from reshard.core.target.target import Target

    plan, summary = describe_plan(request)
    Target.of(request.target, plan, overwrite=request.overwrite).check_usable()
    if as_json:
        print_json(summary)
    else:
        print_blocks(summary.blocks(RATE_OPTION))


def log_report(report: "ConversionReport", engine: Engine) -> None:
    """Log what the report says; with --quiet, what is not as asked also goes to stderr."""
    from reshard.core.conversion.views.summary import conversion_facts, incomplete_texts, recovered_facts

    log_facts([*conversion_facts(report, engine.text), *(("note", note) for note in report.notes)])
    for name, text in recovered_facts(report):
        log_news(f"{name}: {text}")
    for fact, advice in incomplete_texts(report):
        log_news(f"{fact}. {advice}")

"""`reshard doctor`."""

from typing import TYPE_CHECKING

import click

from reshard.cli.logs import Command
from reshard.cli.options import conversion_options
from reshard.cli.output import print_facts, print_json, print_table
from reshard.cli.parameters import PATH, STEP
from reshard.cli.storages import key_named, key_options, storage_named, storage_option
from reshard.core.errors import InputError
from reshard.core.runtime.wording import counted
from reshard.core.strategy.integrated_save import IntegratedSave

if TYPE_CHECKING:
    from reshard.core.source.diagnosis import Diagnosis
    from reshard.core.source.findings import Finding


@click.command("doctor", cls=Command)
@click.argument("source", type=PATH)
@click.option(
    "--source-strategy", metavar="URL", type=PATH, default="", help="The strategy to check: a file, or a directory."
)
@click.option(
    "--step", metavar="E_S", type=STEP, default="", help="The step to check; by default the newest that all ranks have."
)
@click.option("--source-prefix", metavar="TEXT", default="", help="The prefix of the files, if there are several.")
@conversion_options(("root", "integrated_save"))
@click.option(
    "--like",
    metavar="URL",
    type=PATH,
    default="",
    help="Compare the shapes of whole tensors with those of this model: a checkpoint of whole tensors, a Hugging Face "
    "directory, a DCP checkpoint, a Checkpoint 2.0, or a strategy in JSON.",
)
@conversion_options(("preset", "switch", "training_config", "allow_model"))
@key_options
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print all findings as JSON.")
def command(
    source: str,
    source_strategy: str,
    step: str,
    source_prefix: str,
    root: str,
    integrated_save: str,
    like: str,
    preset: str,
    switch: tuple[str, ...],
    training_config: str,
    allow_model: tuple[str, ...],
    decrypt_key: str,
    decrypt_mode: str,
    storage: str,
    as_json: bool,
) -> int:
    """Check whether a strategy belongs to the checkpoint SOURCE, and find what contradicts it; write nothing.

    Checks ranks, files, pipeline stages, the names and shapes of parameters, and samples of contents: ranks that should
    hold the same must do so, and others must not. Each finding comes with its probable meaning and with advice. Exits
    with 0 if they belong together, with 1 if not, and with 2 if one of them cannot be read.

    A shard does not show along which axis it was cut. If the strategy holds no shapes, as in protobuf files, the answer
    is CONSISTENT, whole shapes not confirmed: compare the listed shapes with the network's, or name a model that has
    them with --like, or a family with --preset, whose config.json is in the directory of --like or of SOURCE. Whole
    shapes that contradict those of other parameters are problems.

    Without a strategy, shows the checkpoint's content and the strategy that it needs, and exits with 2; or with 0 if it
    needs none: a single rank, or whole tensors. Checkpoints that reshard converted contain their own strategy.

    \b
    Examples:
      reshard doctor checkpoint
      reshard doctor checkpoint --source-strategy strategy
      reshard doctor checkpoint --source-strategy strategy --like huggingface_model --preset qwen3
      reshard doctor checkpoint --source-strategy merged.ckpt --step 10_5 --json
    """
    from reshard.core.source.diagnosis import diagnose

    if not preset and (switch or training_config or allow_model):
        raise click.UsageError("--switch, --training-config and --allow-model: only valid with --preset")
    urls = [url for url in (source, source_strategy, like) if url]
    with storage_named(storage, *urls), key_named(decrypt_key, decrypt_mode):
        diagnosis = diagnose(
            source,
            source_strategy,
            step=step,
            source_prefix=source_prefix,
            root=root,
            integrated_save=IntegratedSave(integrated_save),
            like=like,
            preset=preset,
            switches=switch,
            training_config=training_config,
            allowed_models=allow_model,
        )
    if as_json:
        print_json(diagnosis)
    else:
        _print_diagnosis(diagnosis)
    if diagnosis.fits is None:
        raise InputError(
            f"{diagnosis.source}: there is no strategy to compare the checkpoint with: name it with --source-strategy"
        )
    return 0 if diagnosis.fits else 1


def _print_diagnosis(diagnosis: "Diagnosis") -> None:
    from reshard.core.source.diagnosis import CHECKS

    print_facts((*diagnosis.facts, *_answer(diagnosis)))
    if diagnosis.strategy:
        click.echo()
        print_table(("check", "result"), [(check, _result(diagnosis, check)) for check in CHECKS])
    for finding in diagnosis.findings:
        click.echo(f"\n{finding.severity.upper()}, {finding.check}")
        print_facts(_finding_facts(finding))


def _answer(diagnosis: "Diagnosis") -> list[tuple[str, str]]:
    if diagnosis.fits is None:
        return [("answer", "NONE: there is no strategy to compare with")]
    if not diagnosis.strategy:
        return []
    if diagnosis.fits:
        return [("answer", _consistent_text(diagnosis))]
    problems = [finding for finding in diagnosis.findings if finding.severity == "problem"]
    return [("answer", f"DOES NOT FIT: {counted(len(problems), 'problem')}")]


def _consistent_text(diagnosis: "Diagnosis") -> str:
    from reshard.core.plan.whole_shapes import NOT_CONFIRMED

    if diagnosis.whole_shapes.confirmed:
        return "CONSISTENT, whole shapes confirmed: nothing contradicts that the strategy is the checkpoint's"
    return f"CONSISTENT, {NOT_CONFIRMED}: a strategy with other axes may be consistent, too"


def _result(diagnosis: "Diagnosis", check: str) -> str:
    if check in diagnosis.not_checked:
        return "not checked"
    severities = [str(finding.severity) for finding in diagnosis.findings if finding.check == check]
    counts = [
        counted(severities.count(severity), severity) for severity in ("problem", "note") if severity in severities
    ]
    return ", ".join(counts) or "ok"


def _finding_facts(finding: "Finding") -> list[tuple[str, str]]:
    advice = [("  do", finding.advice)] if finding.advice else []
    return [("  found", finding.found), ("  means", finding.means), *advice]

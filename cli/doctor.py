"""`reshard doctor`."""

from typing import TYPE_CHECKING

import click

from reshard.cli.logs import Command
from reshard.cli.options import conversion_options
from reshard.cli.output import print_report
from reshard.cli.parameters import PATH, STEP
from reshard.cli.spelling import flag
from reshard.cli.storages import key_named, key_options, storage_named, storage_option
from reshard.core.errors import InputError
from reshard.core.text.options import Option

if TYPE_CHECKING:
    from reshard.core.source.diagnosis_report import Diagnosis


@click.command("doctor", cls=Command)
@click.argument("source", type=PATH)
@click.option(
    "--source-strategy",
    "--strategy",
    metavar="URL",
    type=PATH,
    default="",
    help="The strategy to check: a file, or a directory.",
)
@conversion_options(("auto_strategy",))
@click.option(
    "--step", metavar="E_S", type=STEP, default="", help="The step to check; by default the newest that all ranks have."
)
@click.option(
    "--source-prefix", metavar="TEXT", default="", help="Prefix of the files, such as CKP_1, if there are several."
)
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
    auto_strategy: bool,
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

    Checks ranks, files, pipeline stages, names and shapes of parameters, and samples of contents, which must be equal
    on ranks that should hold the same and different on others. Each finding comes with its probable cause and advice.
    Exits with 0 if strategy and checkpoint belong together, with 1 if not, and with 2 if one of them cannot be read.

    A shard does not show which axis it was cut along. If the strategy has no shapes, like protobuf files, the answer is
    'CONSISTENT, whole shapes not confirmed': compare the listed shapes with the network's, or give a model with --like,
    or a family with --preset, whose config.json is in the directory of --like or of SOURCE. Whole shapes that
    contradict those of other parameters are problems.

    Without --source-strategy, checks the only strategy beside the checkpoint (../strategy, for example). If there is
    none, shows the checkpoint's contents and the strategy that it needs, and exits with 2, or with 0 if it needs none
    (a single rank, or whole tensors). Checkpoints that reshard converted contain their own strategy.

    For a Hugging Face directory, with config.json and weights, checks that loaders find every parameter that
    config.json asks for, in the right shape, that they read everything in the files, and that index and files agree. It
    needs no strategy. The preset is the one for its model_type, or --preset. Exits with 2 if no preset knows the
    family's names.

    \b
    Examples:
      reshard doctor checkpoint
      reshard doctor huggingface_model
      reshard doctor checkpoint --source-strategy strategy
      reshard doctor checkpoint --source-strategy strategy --like huggingface_model --preset qwen3
      reshard doctor checkpoint --source-strategy merged.ckpt --step 10_5 --json
    """
    from reshard.core.options.validation import build_options
    from reshard.core.request.source import DiagnosisRequest
    from reshard.core.source.diagnosis import diagnose

    request = build_options(
        DiagnosisRequest,
        lambda name: flag(Option(name)),
        source=source,
        source_strategy=source_strategy,
        auto_strategy=auto_strategy,
        step=step,
        source_prefix=source_prefix,
        root=root,
        integrated_save=integrated_save,
        like=like,
        preset=preset,
        switch=switch,
        training_config=training_config,
        allow_model=allow_model,
    )
    urls = [url for url in (source, source_strategy, like) if url]
    with storage_named(storage, *urls), key_named(decrypt_key, decrypt_mode):
        diagnosis = diagnose(request)
    print_report(diagnosis, as_json=as_json)
    if diagnosis.fits is None:
        raise InputError(_no_answer(diagnosis))
    return 0 if diagnosis.fits else 1


def _no_answer(diagnosis: "Diagnosis") -> str:
    if diagnosis.loaded is None:
        return f"{diagnosis.source}: there is no strategy to compare the checkpoint with: pass --source-strategy"
    unchecked = next(finding for finding in diagnosis.findings if finding.check == "config")
    return f"{diagnosis.source}: names and shapes were not checked: {unchecked.found}"

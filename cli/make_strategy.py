"""`reshard make-strategy`."""

import click

from reshard.cli.logs import Command, is_quiet
from reshard.cli.options import conversion_options
from reshard.cli.output import print_blocks, print_json
from reshard.cli.parameters import PATH
from reshard.cli.storages import check_output, key_named, key_options, storage_named, storage_option
from reshard.core.strategy.integrated_save import IntegratedSave


@click.command("make-strategy", cls=Command)
@click.argument("out", type=PATH)
@click.option(
    "--like",
    metavar="URL",
    type=PATH,
    required=True,
    help="The network's current strategy, a file or a directory; or a directory of whole tensors.",
)
@click.option(
    "--data-parallel",
    "-D",
    metavar="D",
    type=click.IntRange(min=1),
    required=True,
    help="Replicas of the model in each stage.",
)
@click.option(
    "--model-parallel",
    "-M",
    metavar="M",
    type=click.IntRange(min=1),
    required=True,
    help="Devices that share each replica.",
)
@click.option("--pipeline", "-P", metavar="P", type=click.IntRange(min=1), default=1, show_default=True, help="Stages.")
@click.option("--optimizer-parallel", is_flag=True, help="Shard weights and optimizer states among replicas (axis 0).")
@click.option(
    "--optimizer-threshold",
    metavar="KB",
    type=click.IntRange(min=0),
    default=64,
    show_default=True,
    help="With optimizer parallel, smaller parameters are not sharded; MindSpore's parallel_optimizer_threshold. Used "
    "only if the source has no optimizer parallel to follow.",
)
@click.option(
    "--layers", metavar="0-11,12-23", default="", help="Layers of each stage. Default: as in the source, or evenly."
)
@click.option(
    "--cut",
    "cuts",
    metavar="PATTERN=AXIS",
    multiple=True,
    help="The tensor axis that model parallel shards, for parameters whose names match, if the source does not "
    "determine it or has another. AXIS:data: data parallel shards it; AXIS:model,AXIS:data: both; whole: neither. May "
    "be given several times; the last match counts.",
)
@click.option(
    "--place",
    "places",
    metavar="PATTERN=first",
    multiple=True,
    help="The stages of parameters outside layers, if the source does not determine them: first, last, all, or numbers "
    "separated by commas. May be given several times.",
)
@click.option(
    "--checkpoint",
    metavar="URL",
    type=PATH,
    default="",
    help="A checkpoint of the source's strategy, or a unified one, whose headers provide shapes.",
)
@conversion_options(("integrated_save",))
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@key_options
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    out: str,
    like: str,
    data_parallel: int,
    model_parallel: int,
    pipeline: int,
    optimizer_parallel: bool,
    optimizer_threshold: int,
    layers: str,
    cuts: tuple[str, ...],
    places: tuple[str, ...],
    checkpoint: str,
    integrated_save: str,
    overwrite: bool,
    decrypt_key: str,
    decrypt_mode: str,
    storage: str,
    as_json: bool,
) -> None:
    """Make OUT, the strategy of a job of D x M x P devices, from another job's strategy, without a cluster.

    Model parallel shards the same tensor axes as in the source, over another number of devices. Layers, recognized by
    the numbers in parameters' names, are spread evenly over the stages; embeddings, head and final norm stay in the
    first stage, the last or both. Optimizer states follow their parameters. Lists shapes that do not divide, if shapes
    are known: JSON strategies contain them; for protobuf files give a --checkpoint.

    The source's layouts determine the roles of its devices: device axes that shard no parameter are data parallel
    (context parallel too), all others are model parallel (tensor and expert parallel). Ambiguous parameters are
    refused; resolve them with --cut and --place.

    If there is no strategy, --like may name a directory of whole tensors, such as Hugging Face's: --cut names the
    parameters to shard; the others stay whole.

    OUT is one merged strategy file, JSON if its name ends in .json, else protobuf.

    \b
    Examples:
      reshard make-strategy to_16.ckpt --like strategy -D 4 -M 4 --optimizer-parallel --checkpoint checkpoint
      reshard make-strategy serve_4.json --like strategy -D 1 -M 4
      reshard make-strategy out.ckpt --like strategy -D 2 -M 4 -P 4 --layers 0-6,7-14,15-22,23-29
      reshard make-strategy out.ckpt --like hf_llama -D 1 -M 8 --cut '*.[qkv]_proj.weight=0' --cut '*.o_proj*=1'
    """
    from reshard.core.conversion.make_strategy import make_strategy_file
    from reshard.core.strategy.derivation import TargetJob

    check_output(out)
    wish = TargetJob(
        data_parallel,
        model_parallel,
        pipeline,
        optimizer_parallel,
        optimizer_threshold << 10,
        layers,
        cuts,
        places,
    )
    urls = [url for url in (out, like, checkpoint) if url]
    with storage_named(storage, *urls), key_named(decrypt_key, decrypt_mode):
        report = make_strategy_file(
            like,
            out,
            wish,
            checkpoint=checkpoint,
            integrated_save=IntegratedSave(integrated_save),
            overwrite=overwrite,
        )
    if as_json:
        print_json(report)
    elif not is_quiet():
        print_blocks(report.blocks())

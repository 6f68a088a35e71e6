"""`reshard serve`."""

from itertools import chain

import click

import reshard.tasks  # noqa: F401  # before Prefect is imported: switches its telemetry off
from reshard.cli.logs import Command, print_note


@click.command("serve", cls=Command)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of concurrent runs, each in its own process; others wait.",
)
def command(limit: int) -> None:
    """Serve conversions to a Prefect server from this process, without a worker.

    The server is the one named by PREFECT_API_URL or the active profile. Its pages show the deployments convert,
    convert-expert, convert-with-approval, convert-latest, verify, compare, merge-strategy and history. Runs are started
    there, on schedules, or by `prefect deployment run`, and execute on this machine while this process runs. Ctrl-C or
    SIGTERM stops it and its runs, which resume when they are retried. Schedules, limits and automations on the server
    are kept. For several machines, or a shared server, use 'reshard deploy' and workers instead.

    \b
    Examples:
      prefect server start
      PREFECT_API_URL=http://127.0.0.1:4200/api reshard serve --limit 2
      prefect deployment run convert-checkpoint/convert --param source=/data/ckpt --param target=/data/whole
    """
    from prefect import settings

    from reshard.deployments.deploy import make_what_runs_need
    from reshard.deployments.described import configured_server, read_descriptions
    from reshard.deployments.serving import ServingRunner, register, serve_here, served_deployments

    descriptions = read_descriptions()
    with configured_server() as client:
        deployments = served_deployments(client, descriptions)
        runner = ServingRunner(limit=limit)
        needed = make_what_runs_need(client, descriptions)
        for line in chain(needed, register(client, runner, descriptions, deployments)):
            print_note(line)
        print_note(f"serving to {settings.PREFECT_API_URL.value()}, {limit} at once; Ctrl-C stops it")
    serve_here(runner, descriptions)

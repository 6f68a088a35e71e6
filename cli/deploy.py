"""`reshard deploy`."""

import click

import reshard.tasks  # noqa: F401  # before Prefect is imported: switches its telemetry off
from reshard.cli.logs import Command, is_quiet
from reshard.cli.output import print_line


@click.command("deploy", cls=Command)
@click.option(
    "--notify",
    metavar="TYPE/NAME",
    default="",
    help="A notification block on the server (slack-webhook/ops), for alerts of runs that fail, are killed, find no "
    "worker or wait for approval.",
)
def command(notify: str) -> None:
    """Create reshard's deployments, and what they need, on a Prefect server.

    The server is the one named by PREFECT_API_URL or the active profile. The command creates the deployments convert,
    convert-expert, convert-with-approval, convert-latest, verify, compare, merge-strategy and history, whose runs are
    started in the UI, on schedules, by events or by `prefect deployment run`; the work pool for workers;
    a concurrency limit that runs may share; an automation that detects killed runs, and with --notify one that sends
    alerts. Running it again, for example after an upgrade, updates the deployments and keeps your schedules, limits and
    automations.

    \b
    Examples:
      export PREFECT_API_URL=http://127.0.0.1:4200/api
      reshard deploy
      reshard deploy --notify slack-webhook/ops
      prefect worker start --pool reshard
    """
    from prefect import settings

    from reshard.deployments.deploy import deploy
    from reshard.deployments.described import configured_server, read_descriptions

    descriptions = read_descriptions()
    with configured_server() as client:
        if not is_quiet():
            print_line(f"server {settings.PREFECT_API_URL.value()}")
        for line in deploy(client, descriptions, notify):
            if not is_quiet():
                print_line(line)
    if is_quiet():
        return
    pools = sorted({described.work_pool.name for described in descriptions})
    workers = "".join(f"  prefect worker start --pool {pool}\n" for pool in pools)
    click.echo(
        "\nStart one or more workers, where reshard is installed and the checkpoints are accessible:\n"
        f"{workers}"
        "Then start runs in the UI, or with:\n"
        "  prefect deployment run convert-checkpoint/convert --param source=… --param target=…\n"
        "or on a schedule:\n"
        "  reshard schedule SOURCE TARGET --cron '0 2 * * *'"
    )

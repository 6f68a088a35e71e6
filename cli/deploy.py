"""`reshard deploy`."""

import click

from reshard.cli.output import print_line


@click.command("deploy")
def command() -> None:
    """Makes the deployments of reshard on a Prefect server, and what they need.

    The server is the one that PREFECT_API_URL or the active profile names. Made are the deployments convert,
    convert-latest, verify and merge-strategy, whose runs are started from the server's pages, on schedules, by events
    or by `prefect deployment run`; the work pool that workers take runs from; a concurrency limit that runs may share;
    and an automation that notices runs that were killed. Given again, after an upgrade say, it brings the deployments
    up to date, and leaves alone what else is there: schedules, limits and automations are yours.

    \b
    Examples:
      export PREFECT_API_URL=http://127.0.0.1:4200/api
      reshard deploy
      prefect worker start --pool reshard
    """
    from prefect import settings

    from reshard.deployments.deploy import deploy
    from reshard.deployments.described import configured_server, read_descriptions

    descriptions = read_descriptions()
    with configured_server() as client:
        print_line(f"server {settings.PREFECT_API_URL.value()}")
        for line in deploy(client, descriptions):
            print_line(line)
    pools = sorted({described.work_pool.name for described in descriptions})
    workers = "".join(f"  prefect worker start --pool {pool}\n" for pool in pools)
    click.echo(
        "\nStart a worker, or several, where reshard is installed and the checkpoints can be reached:\n"
        f"{workers}"
        "Then runs can be started from the server's pages, or so:\n"
        "  prefect deployment run convert-checkpoint/convert --param source=… --param target=…"
    )

"""`reshard metrics`."""

import threading
from contextlib import suppress

import click

from reshard.cli.logs import Command, print_note


@click.command("metrics", cls=Command)
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", default=4202, show_default=True, help="Port.")
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on, without a login; 0.0.0.0: all addresses of this machine.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Print the metrics once and exit, for example for the node exporter's textfile collector.",
)
def command(port: int, host: str, once: bool) -> None:
    """Serve metrics of a Prefect server's runs and conversions to Prometheus, until Ctrl-C or SIGTERM.

    The server is the one named by PREFECT_API_URL or the active profile. At each scrape of http://HOST:PORT/metrics,
    reads from it the runs of reshard's deployments that are due or in progress, conversions with bytes, seconds and
    retried requests, schedules and workers. The command keeps no state: it may be restarted, or moved to another
    machine. While the server does not answer, reshard_up is 0.

    \b
    Examples:
      PREFECT_API_URL=http://127.0.0.1:4200/api reshard metrics
      reshard metrics --once > /var/lib/prometheus/node-exporter/reshard.prom
    """
    import reshard.tasks  # noqa: F401  # before Prefect is imported: switches its telemetry off
    from reshard.deployments.described import configured_server, read_descriptions, server_url
    from reshard.deployments.exporter import Exporter, metrics_text, serve_metrics

    exporter = Exporter(read_descriptions(), print_note)
    if once:
        with configured_server():
            click.echo(metrics_text(exporter), nl=False)
        return
    url = server_url()
    serve_metrics(host, port, exporter)
    with suppress(KeyboardInterrupt):  # SIGTERM, too
        print_note(f"metrics of {url} at http://{host}:{port}/metrics; Ctrl-C stops")
        threading.Event().wait()

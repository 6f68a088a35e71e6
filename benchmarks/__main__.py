"""The command: `python -m benchmarks [SCENARIO…]`."""

import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from benchmarks import report, results
from benchmarks.contenders import MINDSPORE_PYTHON
from benchmarks.errors import BenchmarkError
from benchmarks.object_store import NGINX, NO_NGINX
from benchmarks.running import Plan, check_room
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.server import prefect_server

_SCENARIOS = {scenario.name: scenario for scenario in SCENARIOS}
_HELP = """Measures reshard against `cp -r`, `rclone copy`, MindSpore, verl and DeepSpeed, in the named SCENARIOs or in
all.

Prints what it found and keeps it in benchmarks/results/. As soon as there are results of all scenarios, it brings the
figures in benchmarks/README.md up to date.

\b
Scenarios:
""" + "\n".join(f"  {scenario.name:16} {scenario.title}" for scenario in SCENARIOS)


@click.command("benchmarks", help=_HELP)
@click.argument("scenarios", nargs=-1, type=click.Choice(list(_SCENARIOS)), metavar="[SCENARIO]...")
@click.option(
    "--rounds", type=click.IntRange(1), help="How often everyone runs; by default 5 times in main, 3 or 1 else."
)
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default=Path("/dev/shm"),
    show_default=True,
    help="Where the checkpoints are written, in a directory that is removed at the end; should be memory.",
)
@click.option("--mindspore/--no-mindspore", default=True, help="Leave MindSpore out.")
def command(scenarios: Sequence[str], rounds: int | None, directory: Path, mindspore: bool) -> None:
    """The command; its help is above because the scenarios are listed in it."""
    chosen = [_SCENARIOS[name] for name in dict.fromkeys(scenarios)] or list(SCENARIOS)
    left_out = [scenario for scenario in chosen if scenario.needs_store and NGINX is None]
    _say_what_is_left_out(left_out)
    plans = [_plan(scenario, rounds, mindspore=mindspore) for scenario in chosen if scenario not in left_out]
    _check_installed(plans)
    check_room(plans, directory)
    with (
        tempfile.TemporaryDirectory(prefix="reshard-benchmarks-", dir=directory) as place,
        _server(plans, Path(place)) as server,
    ):
        for plan in plans:
            click.echo(f"{plan.scenario.name}: {plan.scenario.title}")
            result = plan.run(Path(place) / plan.scenario.name, server, click.echo)
            results.save(result)
            report.show(result)
    report.publish(SCENARIOS)
    _say_what_is_left_out(left_out)


def _say_what_is_left_out(scenarios: Sequence[Scenario]) -> None:
    if scenarios:
        click.echo(f"LEFT OUT: {', '.join(scenario.name for scenario in scenarios)}: {NO_NGINX}", err=True)


def _plan(scenario: Scenario, rounds: int | None, *, mindspore: bool) -> Plan:
    contenders, once = (
        tuple(contender for contender in group if mindspore or not contender.is_mindspore)
        for group in (scenario.contenders, scenario.once)
    )
    return Plan(scenario, contenders, once, rounds or scenario.rounds)


def _check_installed(plans: Sequence[Plan]) -> None:
    if not MINDSPORE_PYTHON.exists() and any(who.is_mindspore for plan in plans for who in plan.in_round(1)):
        raise BenchmarkError("MindSpore is not installed: `make bench` does that, --no-mindspore does without")
    for plan in plans:
        for python in plan.scenario.pythons:
            if not python.exists():
                raise BenchmarkError(
                    f"scenario {plan.scenario.name!r} needs {python.parents[1].name}: `make bench` installs it"
                )


@contextmanager
def _server(plans: Sequence[Plan], place: Path) -> Iterator[Mapping[str, str]]:
    """A Prefect server, if anyone needs it."""
    needed = any(contender.needs_server for plan in plans for contender in plan.in_round(1))
    if not needed:
        yield {}
        return
    click.echo("starting a Prefect server")
    with prefect_server(place / "prefect") as environment:
        yield environment


def main() -> None:
    """Runs the command; a failure is one message and an exit code."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        command(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BenchmarkError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; its files are removed", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()

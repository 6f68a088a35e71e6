"""`reshard schedule`."""

import click
from click.core import ParameterSource

from reshard.cli.field_options import field_options
from reshard.cli.logs import is_quiet, log_facts, print_note
from reshard.cli.options import CONVERTING_LATEST, GroupedCommand
from reshard.cli.output import print_blocks, print_json, print_report
from reshard.cli.parameters import DIRECTORY, PATH
from reshard.core.request.latest import LatestConversionRequest

_MANAGING = ("show_list", "pause", "resume", "remove")
"""Options that need neither SOURCE nor TARGET."""


class _ScheduleCommand(GroupedCommand):
    """A command that makes a schedule, or does something with those that there are."""

    def work(self, ctx: click.Context) -> object:
        """Make the request of a schedule, or carry out the one option that needs none."""
        asked = {name: ctx.params.pop(name) for name in _MANAGING}
        chosen = [name for name, value in asked.items() if value]
        if chosen:
            names = [name for param in self.params if (name := str(param.name)) in ctx.params]
            typed = [name for name in names if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
            others = [name for name in (*chosen[1:], *typed) if name != "as_json"]
            if others:
                raise click.UsageError(
                    f"{self._spelled(chosen[0])} can only be combined with --json: leave out "
                    f"{', '.join(map(self._spelled, others))}",
                    ctx,
                )
            if chosen[0] == "show_list":
                _show_list(ctx.params["as_json"])
            else:
                _manage(chosen[0], asked[chosen[0]], ctx.params["as_json"])
            return 0
        for param in self.params:
            if isinstance(param, click.Argument) and not ctx.params[str(param.name)] and not ctx.params["config"]:
                raise click.MissingParameter(ctx=ctx, param=param)
        return super().work(ctx)

    def _spelled(self, name: str) -> str:
        param = next(each for each in self.params if each.name == name)
        return name.upper() if isinstance(param, click.Argument) else param.opts[0]


@click.command("schedule", cls=_ScheduleCommand, request=LatestConversionRequest)
@click.argument("source", type=PATH, required=False, metavar="SOURCE")
@click.argument("target", type=DIRECTORY, required=False, metavar="TARGET")
@field_options(CONVERTING_LATEST, LatestConversionRequest)
@click.option("--cron", metavar="EXPRESSION", default="", help="When to convert: minute, hour, day, month, weekday.")
@click.option(
    "--timezone", metavar="ZONE", default="", help="Time zone for --cron, such as Europe/Berlin.  [default: UTC]"
)
@click.option(
    "--every", metavar="INTERVAL", default="", help="How often to convert, instead of --cron: 30s, 10m, 6h, 1d."
)
@click.option(
    "--name", metavar="NAME", default="", help="Name of the schedule.  [default: the last two parts of TARGET]"
)
@click.option("--list", "show_list", is_flag=True, help="List the schedules.")
@click.option("--pause", metavar="NAME", default="", help="Switch a schedule off.")
@click.option("--resume", metavar="NAME", default="", help="Switch a schedule on again.")
@click.option("--remove", metavar="NAME", default="", help="Remove a schedule.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(request: LatestConversionRequest, cron: str, timezone: str, every: str, name: str, as_json: bool) -> None:
    """Schedule 'convert-latest' on a Prefect server, to convert the newest saved step of SOURCE into TARGET.

    The server is the one named by PREFECT_API_URL or the active profile; it needs the deployments of 'reshard deploy'
    or 'reshard serve', which keep schedules. The options are those of 'reshard convert-latest'. Paths are absolute
    paths on the workers' machines. Everything is checked before the schedule is created. Repeating the command changes
    nothing; with other options, it updates the schedule of that name; a paused schedule stays paused.

    With --dry-run, nothing is created or changed.

    \b
    Examples:
      reshard schedule /data/llama/checkpoint /data/llama/serving --cron "0 2 * * *" --timezone Europe/Berlin
      reshard schedule s3://jobs/llama s3://serving/llama --every 10m --keep-checkpoint-max 5 --name llama
      reshard schedule --list
      reshard schedule --pause llama
    """
    if bool(cron) == bool(every):
        raise click.UsageError("give either --cron or --every")
    if timezone and every:
        raise click.UsageError("--timezone applies to --cron: leave it out, or use --cron instead of --every")

    import reshard.tasks  # noqa: F401  # before Prefect is imported: switches its telemetry off
    from reshard.deployments.described import configured_server
    from reshard.deployments.job_schedules import (
        JobSchedule,
        default_name,
        find_deployment,
        put_schedule,
        scheduled_parameters,
    )
    from reshard.deployments.schedule_reports import ScheduleReport, summarize_schedule
    from reshard.deployments.timing import cron_timing, interval_timing

    timing = cron_timing(cron, timezone) if cron else interval_timing(every)
    wanted = JobSchedule(name or default_name(request.target), timing, scheduled_parameters(request))
    with configured_server() as client:
        deployment = find_deployment(client)
        done = put_schedule(client, deployment, wanted, is_named=bool(name), dry_run=request.dry_run)
    report = ScheduleReport(
        **dict(summarize_schedule(done.schedule)),
        outcome=done.outcome,
        dry_run=request.dry_run,
        is_unserved=bool(deployment.paused),
    )
    if as_json:
        print_json(report)
        return
    if not is_quiet():
        print_blocks(report.blocks())
    log_facts(report.facts)


def _show_list(as_json: bool) -> None:
    import reshard.tasks  # noqa: F401  # before Prefect is imported: switches its telemetry off
    from reshard.deployments.described import configured_server
    from reshard.deployments.job_schedules import LATEST, find_deployment
    from reshard.deployments.schedule_reports import ScheduleList, summarize_schedule
    from reshard.deployments.schedules import schedule_problems

    with configured_server() as client:
        deployment = find_deployment(client)
    problems = schedule_problems(LATEST, deployment.parameter_openapi_schema or {}, deployment.schedules)
    found = ScheduleList(schedules=tuple(map(summarize_schedule, deployment.schedules)), problems=tuple(problems))
    print_report(found, as_json=as_json)


def _manage(what: str, name: str, as_json: bool) -> None:
    import reshard.tasks  # noqa: F401  # before Prefect is imported: switches its telemetry off
    from reshard.deployments.described import configured_server
    from reshard.deployments.job_schedules import find_deployment, find_schedule, switch_schedule

    with configured_server() as client:
        deployment = find_deployment(client)
        schedule = find_schedule(deployment, name)
        if what == "remove":
            client.delete_deployment_schedule(deployment.id, schedule.id)
        else:
            switch_schedule(client, deployment, schedule, active=what == "resume")
    outcome = {"remove": "removed", "pause": "paused", "resume": "resumed"}[what]
    if as_json:
        print_json({"name": name, "outcome": outcome})
    else:
        print_note(f"schedule {name}: {outcome}")

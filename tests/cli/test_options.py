"""The options are the request's fields: neither has anything that the other lacks."""

import click
import pytest
from pydantic.fields import FieldInfo

from reshard.cli.convert import command as convert_command
from reshard.cli.convert_latest import command as latest_command
from reshard.cli.doctor import command as doctor_command
from reshard.cli.fingerprint import command as fingerprint_command
from reshard.cli.options import CONVERTING, CONVERTING_LATEST, PLANNING
from reshard.cli.plan import command as plan_command
from reshard.cli.recover import command as recover_command
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.latest import LatestConversionRequest

LOGS = {"quiet", "verbose", "log_file"}
FILES = {"config", "print_config"}
OWN = {"dry_run", "engine", "as_json", *LOGS, *FILES}


def options_of(command: click.Command) -> dict[str, click.Option]:
    return {str(each.name): each for each in command.params if isinstance(each, click.Option)}


def test_every_field_is_an_option_or_an_argument() -> None:
    options = options_of(convert_command)
    arguments = {str(each.name) for each in convert_command.params if isinstance(each, click.Argument)}
    assert options.keys() - OWN == ConversionRequest.model_fields.keys() - {"source", "target"}
    assert arguments == {"source", "target"}


def test_every_field_of_a_scheduled_conversion_is_an_option_or_an_argument() -> None:
    given = {str(each.name) for each in latest_command.params} - OWN | {"dry_run"}
    assert given == LatestConversionRequest.model_fields.keys()


EVERY_OPTION = [
    *((convert_command, name, ConversionRequest.model_fields[name]) for name in CONVERTING),
    *((latest_command, name, LatestConversionRequest.model_fields[name]) for name in CONVERTING_LATEST),
]


@pytest.mark.parametrize(("command", "name", "field"), EVERY_OPTION)
def test_an_option_is_called_and_explained_as_its_field(command: click.Command, name: str, field: FieldInfo) -> None:
    option = options_of(command)[name]
    assert option.opts == [f"--{name.replace('_', '-')}"]
    assert field.description
    assert (option.help or "").startswith(field.description)
    if not option.multiple:
        assert option.default == field.default


def test_planning_has_the_options_that_change_a_plan_or_its_cost() -> None:
    assert set(CONVERTING) - set(PLANNING) == {"dask_scheduler", "concurrency_limit"}
    own = {"rank", "param", "rate", "picture", "html", "as_json"}
    assert options_of(plan_command).keys() == {*PLANNING, *own, *LOGS, *FILES}


@pytest.mark.parametrize("command", [doctor_command, fingerprint_command, recover_command], ids=lambda each: each.name)
def test_commands_about_one_checkpoint_know_its_strategy_by_a_short_name_too(command: click.Command) -> None:
    for name in ("--source-strategy", "--strategy"):
        parsed = command.make_context("reshard", ["checkpoint", name, "there"])
        assert parsed.params["source_strategy"] == "there"

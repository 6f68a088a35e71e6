"""The options of conversions: which command has which, and how its help groups them."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import click

from reshard.cli.field_options import Function, field_options
from reshard.cli.requests import RequestCommand
from reshard.core.request.conversion import ConversionRequest, FlowOptions
from reshard.core.request.groups import GROUPS
from reshard.core.request.latest import LatestConversionRequest

if TYPE_CHECKING:
    pass

_OF_PREFECT = FlowOptions.model_fields.keys()
_ALL = tuple(name for names in GROUPS.values() for name in names)

CONVERTING = tuple(name for name in _ALL if name in ConversionRequest.model_fields)
"""Fields of a whole conversion."""
PLANNING = tuple(name for name in CONVERTING if name not in _OF_PREFECT)
"""Fields that affect a plan, or what it costs."""
CONVERTING_LATEST = tuple(name for name in _ALL if name in LatestConversionRequest.model_fields)
"""Fields of a scheduled conversion."""


def conversion_options(names: Collection[str]) -> Callable[[Function], Function]:
    """Add options for these fields of a conversion's request to a command; see `field_options`.

    The strategy of a command that has one alone is known by a short name, too.
    """
    others = {} if "target_strategy" in names else {"source_strategy": "--strategy"}
    return field_options(names, ConversionRequest, others)


class GroupedCommand(RequestCommand):
    """A command whose help shows the options of a conversion in groups, and its own options last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options into the help."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        shown = {str(option.name): option.get_help_record(ctx) for option in options}
        own = tuple(name for name in shown if name not in _ALL)
        for title, names in (*GROUPS.items(), ("Options", own)):
            records = [record for name in names if (record := shown.get(name))]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

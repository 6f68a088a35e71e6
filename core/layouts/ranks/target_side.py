"""Rank folders as targets."""

from collections.abc import Mapping
from typing import Any, ClassVar

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.layouts.options import own_options
from reshard.core.layouts.ranks.options import RanksOptions
from reshard.core.layouts.ranks.target import DEFAULT_PREFIX, RankFolders
from reshard.core.layouts.target_side import TargetSide
from reshard.core.options.fields import check_prefix
from reshard.core.plan.planned_layout import PlannedLayout


class RanksSide(TargetSide):
    """The answers about targets of rank folders."""

    record: ClassVar[type[PlannedLayout]] = RankFolders
    blank_plan_fields: ClassVar[Mapping[str, Any]] = {"prefix": DEFAULT_PREFIX}

    def choose(self, options: Any, catalog: CheckpointCatalog) -> RankFolders:
        """Return the record of the target that a request asks for."""
        return RankFolders(own_options(options, RanksOptions).prefix)

    def from_plan(self, document: Mapping[str, Any]) -> RankFolders:
        """Return the record in the JSON document of a plan that is of no other layout."""
        return RankFolders(check_prefix(document["prefix"]))


SIDE = RanksSide()

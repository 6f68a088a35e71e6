"""Shared by layouts whose target ranks are files: the order of parameters, and those that no strategy knows."""

from collections.abc import Iterable

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import PlanError
from reshard.core.plan.model import ParameterMatch, PassedThroughParameter, ReshardedParameter, SourceTensor
from reshard.core.plan.ownership import SourceCopy
from reshard.core.plan.stage_shards import names_in_order
from reshard.core.runtime.wording import rank_names
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.layout import whole_layout
from reshard.core.tensor.segments import whole_piece
from reshard.core.text.options import option


def in_source_order(catalog: CheckpointCatalog, parameters: Iterable[ReshardedParameter]) -> list[ReshardedParameter]:
    """Sort parameters by their first source's place in the source's files."""
    place = {name: number for number, name in enumerate(names_in_order(catalog))}
    return sorted(parameters, key=lambda each: min(place[source.name] for source in each.sources))


def refuse_single_stage(strategy: Strategy | None, match: ParameterMatch, form: str) -> None:
    """Refuse a target strategy of one pipeline stage, for a target that has the files of all.

    Raises:
        PlanError: the strategy is one stage's.
    """
    if strategy is not None and (strategy.ranks.start > 0 or match.part is not None):
        raise PlanError(
            f"{strategy.origin}: is the strategy of one pipeline stage, and a {form} has the files of all: "
            "name the directory of all ranks' strategies"
        )


def written_once(
    catalog: CheckpointCatalog, passed: PassedThroughParameter, why: str, problems: list[str]
) -> ReshardedParameter:
    """A parameter that no strategy knows, read from its lowest owner; a problem if other owners differ.

    `why` ends the problem's first clause: why the target cannot have several values.
    """
    owners = sorted(passed.owners)
    first = catalog.records[owners[0]]
    entry = first.index.entries[passed.source_name]
    for rank in owners[1:]:
        record = catalog.records[rank]
        other = record.index.entries[passed.source_name]
        digests = [each.digests.get(passed.source_name) for each in (first, record)]
        alike = entry.text == other.text if entry.text is not None else digests[0] == digests[1] is not None
        if not alike or (entry.dtype, entry.shape) != (other.dtype, other.shape):
            problems.append(
                f"parameter {passed.name!r}, which no strategy knows, differs between {rank_names(owners[:1])} and "
                f"{rank_names([rank])}, {why}: leave it out, "
                f"{option('exclude', [passed.source_name])}, if it is not part of the model; if it is, the source "
                "strategy lacks it"
            )
            break
    copy = SourceCopy(first.rank, whole_layout(len(entry.shape)))
    source = SourceTensor(passed.source_name, entry.dtype, entry.shape, (copy,))
    whole = (whole_piece(entry.shape),)
    return ReshardedParameter(passed.name, passed.dtype, entry.shape, (source,), whole, {}, passed.steps)

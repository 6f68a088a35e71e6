"""Parameters that some or all files of a source lack, and files of different steps."""

from collections.abc import Iterator, Sequence

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.plan.matching import distinct_sources
from reshard.core.plan.model import ParameterMatch, SourceTensor
from reshard.core.runtime.wording import listed, rank_names
from reshard.core.strategy.model import Strategy

STEP_PARAMETERS = ("global_step", "epoch_num", "step_num")
"""Parameters that MindSpore's training saves on every rank, the same on all."""
_MAX_RANKS = 4
_MAX_STEPS = 4


def scattered(catalog: CheckpointCatalog, match: ParameterMatch) -> list[SourceTensor]:
    """Parameters missing in usable files of some of their ranks, as after removing redundancy."""
    lost = frozenset(catalog.lost)
    return [source for source in distinct_sources(match.resharded) if source.copies[0].missing_ranks - lost]


def unsaved(source: Strategy | None, target: Strategy | None, match: ParameterMatch) -> list[str]:
    """Names in the source's strategy that neither files nor lost ranks held, if the target is whole tensors."""
    if source is None or target is not None:
        return []
    saved = {each.name for each in distinct_sources(match.resharded)} | {lost.name for lost in match.lost}
    return sorted(source.parameters - saved - match.left_out.sources.keys())


def unsaved_text(names: Sequence[str]) -> str:
    """A sentence that lists the `unsaved` parameters."""
    return f"in the source's strategy, but in NO file, and so not in the result: {listed(names)}"


def missing_outside_strategy(
    catalog: CheckpointCatalog, source: Strategy, match: ParameterMatch
) -> dict[str, list[int]]:
    """Parameters outside the strategy that some files of a stage lack -> the ranks of these files.

    Removing redundancy keeps such parameters: the files may have been cut off.
    """
    missing: dict[str, list[int]] = {}
    for stage in source.stages:
        present = catalog.records.keys() & set(source.stage_ranks(stage))
        for parameter in match.passed_through:
            if parameter.owners & present and present - parameter.owners:
                missing.setdefault(parameter.source_name, []).extend(sorted(present - parameter.owners))
    return missing


def mixed_steps(catalog: CheckpointCatalog, match: ParameterMatch) -> Iterator[str]:
    """Sentences: contents show that ranks were saved at different steps, whatever their files' names."""
    # excluded parameters show it too
    outside = {parameter.source_name for parameter in match.passed_through} | match.left_out.sources.keys()
    for name in STEP_PARAMETERS:
        if name not in outside:
            continue
        ranks_of: dict[str | None, list[int]] = {}
        for rank, record in catalog.records.items():
            if name in record.index.entries:
                ranks_of.setdefault(content_key(catalog, rank, name), []).append(rank)
        if len(ranks_of) > 1:
            texts = [rank_names(ranks, _MAX_RANKS) for ranks in ranks_of.values()]
            where = ", another on ".join(texts[:_MAX_STEPS])
            yield f"the source's files are of DIFFERENT STEPS, by their {name!r}: one on {where}"


def content_key(catalog: CheckpointCatalog, rank: int, name: str) -> str | None:
    """A rank's content of a parameter outside the strategy: its digest or text; None if neither was read."""
    record = catalog.records[rank]
    return record.digests.get(name) or record.index.entries[name].text

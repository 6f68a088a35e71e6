"""Facts about a checkpoint and a strategy, which a diagnosis begins with."""

from reshard.core.checkpoint.catalog import CheckpointCatalog, by_index
from reshard.core.runtime.wording import counted, listed, ranks_text
from reshard.core.source.file_checks import ranks_with_files
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import source_option, spelled

_MAX_GROUPS = 8


def checkpoint_facts(catalog: CheckpointCatalog) -> tuple[tuple[str, str], ...]:
    """Return (name, text) of a checkpoint."""
    step = f", step {catalog.step}" if catalog.step else ""
    present = ranks_with_files(catalog)
    absent = sorted(catalog.lost.keys() - set(present))
    facts = [
        ("checkpoint", f"{catalog.url}{step}: {counted(len(present), 'rank')}, {parameter_count_text(catalog)}"),
        ("holding", _groups_text(catalog)),
    ]
    if absent:
        facts.append(("no files", f"ranks {ranks_text(absent)}, which come before others"))
    return tuple(facts)


def parameter_count_text(catalog: CheckpointCatalog) -> str:
    """Format the number of parameters in all files."""
    return counted(len({name for index in catalog.indexes() for name in index.entries}), "parameter")


def _groups_text(catalog: CheckpointCatalog) -> str:
    """The groups of ranks that hold the same names, as the ranks of a stage do."""
    groups: dict[frozenset[str], list[int]] = {}
    for alike in by_index(catalog.records.values()):
        groups.setdefault(frozenset(alike[0].index.entries), []).extend(record.rank for record in alike)
    texts = [
        f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(sorted(ranks))}: {counted(len(names), 'parameter')}"
        for names, ranks in groups.items()
    ]
    return listed(texts, _MAX_GROUPS, "; ")


def needed_text(catalog: CheckpointCatalog) -> str:
    """Describe the strategy that a checkpoint needs."""
    count = catalog.world_size
    if count == 1:
        return "no strategy, if its tensors are whole, as one rank's are"
    groups = len({frozenset(index.entries) for index in catalog.indexes()})
    is_staged = count % groups == 0 and groups <= count // 2
    of_stages = f", of {counted(groups, 'stage')} it seems" if is_staged else ""
    return spelled(
        f"a strategy of {count} ranks{of_stages}: {source_option('source_strategy')}, the directory that the job's "
        "ranks wrote"
    )


def sizes_text(strategy: Strategy) -> str:
    """Format the numbers of a strategy's stages, devices and parameters."""
    own = "" if strategy.merged else f" (stage {strategy.stages[0].stage}'s own)"
    stages = f"{counted(len(strategy.stages), 'stage')} of {counted(strategy.devices_per_stage, 'device')}"
    return f"{stages}{own}, {counted(len(strategy.parameters), 'parameter')}"

"""Explains parameters that are missing on ranks which own them by the strategy, and refuses what is not explained.

Removing redundancy leaves the same number of replicas of every slice, or says so in the files. Anything else is a sign
of a wrong strategy: if each layer is on ranks of its own, those ranks are pipeline stages, and the strategy has fewer.
"""

from collections.abc import Mapping, Sequence

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.torn_files import has_uniform_replicas
from reshard.core.errors import StrategyError
from reshard.core.plan.stage_shards import StageShards
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed, ranks_text
from reshard.core.source.findings import OWN_STRATEGY, Finding
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.strategy.staging import Layer, layer_of_name, owner_of
from reshard.core.text.options import option, source_option

Shards = Mapping[str, Sequence[StageShards]]
UNEXPLAINED = "the strategy does not explain which ranks hold what: "
"""How a warning begins."""
_MAX_EXAMPLES = 3
_MIN_LAYERS = 3
"""Where every slice has one owner, two layers on different ranks may be chance."""


class _Holding(Record):
    """The layers that one group of ranks holds, and no other rank of its stage."""

    ranks: tuple[int, ...]
    layers: tuple[Layer, ...]

    def __str__(self) -> str:
        numbers = sorted({number for _, number in self.layers})
        layers = f"layer{'' if len(numbers) == 1 else 's'} {ranks_text(numbers)}"
        return f"{_alone(self.ranks)} {layers} ({self.layers[0][0]}{self.layers[0][1]})"


def absence_findings(catalog: CheckpointCatalog, strategy: Strategy, shards: Shards) -> list[Finding]:
    """A finding if parameters are missing on their ranks, and no removal of redundancy explains it."""
    scattered = [each for stages in shards.values() for each in stages if each.missing_ranks - catalog.lost.keys()]
    if not scattered or is_marked(catalog):
        return []
    groups = _pipeline_groups(strategy, shards, scattered)
    is_uniform = has_uniform_replicas(catalog.records, strategy)
    layer_count = sum(len(group.layers) for group in groups)
    if is_uniform and (layer_count < _MIN_LAYERS or not _is_in_order(groups)):
        return []
    if groups:
        return [
            Finding(
                check="stages",
                found=f"{listed([*map(str, groups)], _MAX_EXAMPLES, '; ')}; the strategy gives these layers to all of "
                "these ranks",
                means=f"the ranks seem to be those of {len(groups)} pipeline stages, and the strategy has "
                f"{counted(len(strategy.stages), 'stage')} of {counted(strategy.devices_per_stage, 'device')}",
                advice=OWN_STRATEGY,
            )
        ]
    return [
        Finding(
            check="files",
            found="parameters are missing on ranks that own them by the strategy: "
            f"{listed(_grouped(strategy, scattered), _MAX_EXAMPLES, '; ')}",
            means="the strategy is another job's, or files are incomplete: where redundancy was removed, every slice "
            "has the same number of replicas",
            advice=f"{OWN_STRATEGY}; if it is right, 'reshard recover' with {option('trust_strategy', True)} tells "
            "whether other ranks hold the same",
        )
    ]


def check_absences(catalog: CheckpointCatalog, strategy: Strategy, shards: Shards, *, trusted: bool) -> tuple[str, ...]:
    """Warn about unexplained absences if the strategy is `trusted`.

    Raises:
        StrategyError: there are some, and it is not.
    """
    findings = absence_findings(catalog, strategy, shards)
    if findings and not trusted:
        [finding] = findings
        raise StrategyError(
            f"{strategy.origin}: does not explain which ranks of {catalog.url} hold what: {finding.found}: "
            f"{finding.means}. Name the strategy of the job that saved the checkpoint; 'reshard doctor' tells more. If "
            f"the strategy is right and some of its ranks lack these, pass {source_option('trust_strategy', True)}"
        )
    return tuple(f"{UNEXPLAINED}{each.found}: {each.means}" for each in findings)


def is_marked(catalog: CheckpointCatalog) -> bool:
    """True if files say that their redundancy was removed."""
    return any(record.index.redundancy_removed for record in catalog.records.values())


def _pipeline_groups(strategy: Strategy, shards: Shards, scattered: Sequence[StageShards]) -> list[_Holding]:
    """Groups of ranks of one strategy stage that divide its layers among them; empty if they do not."""
    stages: dict[int, StageStrategy] = {each.first_rank: each.stage for each in scattered}
    for stage in stages.values():
        groups = _divided(_holders_of_layers(strategy, stage, shards))
        if groups:
            return groups
    return []


def _holders_of_layers(strategy: Strategy, stage: StageStrategy, shards: Shards) -> dict[Layer, set[frozenset[int]]]:
    """The groups of ranks that hold parameters of each layer."""
    ranks, names = frozenset(strategy.stage_ranks(stage)), frozenset(shards)
    found: dict[Layer, set[frozenset[int]]] = {}
    for name, of_stages in shards.items():
        layer = layer_of_name(owner_of(name, names))
        if layer is not None:
            holders = (ranks - each.missing_ranks for each in of_stages if each.stage is stage)
            found.setdefault(layer, set()).update(holders)
    return found


def _divided(holders: Mapping[Layer, set[frozenset[int]]]) -> list[_Holding]:
    """The layers of each group of neighboring ranks, if every layer is on one of several such groups of one size."""
    layers: dict[frozenset[int], list[Layer]] = {}
    for layer, groups in holders.items():
        for group in groups:
            layers.setdefault(group, []).append(layer)
    are_neighbors = all(max(group) - min(group) + 1 == len(group) for group in layers)
    are_apart = len(frozenset[int]().union(*layers)) == sum(map(len, layers))
    if len(layers) < 2 or len({*map(len, layers)}) > 1 or not (are_neighbors and are_apart):
        return []
    if sum(map(len, layers.values())) > len(holders):  # a layer is on several groups
        return []
    return [_Holding(tuple(sorted(group)), tuple(sorted(layers[group]))) for group in sorted(layers, key=min)]


def _is_in_order(groups: Sequence[_Holding]) -> bool:
    """True if each group's layers come after those of the groups before it."""
    layers = [layer for group in groups for layer in group.layers]
    return layers == sorted(layers)


def _grouped(strategy: Strategy, scattered: Sequence[StageShards]) -> list[str]:
    """Which ranks alone hold which parameters, those with the most parameters first."""
    names: dict[frozenset[int], list[str]] = {}
    for each in scattered:
        holders = frozenset(strategy.stage_ranks(each.stage)) - each.missing_ranks
        names.setdefault(holders, []).append(repr(each.entry.name))
    return [
        f"{_alone(sorted(holders))} {listed(held, _MAX_EXAMPLES)}"
        for holders, held in sorted(names.items(), key=lambda item: -len(item[1]))
    ]


def _alone(ranks: Sequence[int]) -> str:
    return f"rank_{ranks[0]} alone holds" if len(ranks) == 1 else f"ranks {ranks_text(ranks)} alone hold"

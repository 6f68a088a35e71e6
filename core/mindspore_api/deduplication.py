"""Which rank saves a slice that several share: MindSpore's choice, which the strategy alone decides.

No rank asks the others, so all must choose alike. Hence sizes do not count: they are known of a rank's own slices only.
"""

import os
from collections import Counter

from reshard.core.errors import LayoutError, StrategyError
from reshard.core.strategy.model import Strategy


def omitted_parameters(strategy: Strategy, rank: int) -> frozenset[str]:
    """Return the names of the parameters whose slices on `rank` are saved by another rank of its pipeline stage.

    As in MindSpore (`get_parameter_redundancy` and `remove_param_redundancy` of train/_utils.py): the slices that the
    same ranks share are dealt to them in turn, in the order of the parameters' names.

    Raises:
        StrategyError: the strategy is of another job, or contradicts itself.
    """
    _check_job(strategy, rank)
    stage = strategy.stage_of(rank)
    stage_rank = rank - strategy.stage_ranks(stage).start
    dealt: Counter[tuple[int, ...]] = Counter()
    omitted = set()
    for name, layout in sorted(stage.layouts.items()):
        try:
            grid = layout.shard_grid(len(layout.tensor_map))
        except LayoutError as error:
            raise StrategyError(f"{strategy.origin}: parameter {name!r}: {error.marked}") from error
        owners = grid.owners[grid.cell_of(stage_rank)]
        if owners[dealt[owners] % len(owners)] != stage_rank:
            omitted.add(name)
        dealt[owners] += 1
    return frozenset(omitted)


def _check_job(strategy: Strategy, rank: int) -> None:
    """Raise StrategyError if a job of this rank has another number of ranks: slices would be left to ranks it lacks."""
    ranks = strategy.ranks
    described = f"{strategy.origin}: describes ranks {ranks.start} to {ranks.stop - 1}"
    if rank not in ranks:
        raise StrategyError(f"{described}, not rank {rank}: give the strategy of this job")
    size = os.environ.get("RANK_SIZE")
    if size is None:
        return
    if not (size.isascii() and size.isdigit()):
        raise StrategyError(f"the environment's RANK_SIZE is {size!r}, not a number of ranks")
    # a stage's own strategy has only some of the job's ranks
    fits = int(size) == ranks.stop or (not strategy.merged and int(size) > ranks.stop and int(size) % len(ranks) == 0)
    if not fits:
        raise StrategyError(f"{described}, the environment's RANK_SIZE is {size}: give the strategy of this job")

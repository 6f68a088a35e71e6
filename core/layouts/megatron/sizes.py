"""The sizes of a target's parallelism, and the ranks of one pipeline stage whose files differ.

Megatron numbers the ranks of a stage twice: by tensor rank, and by expert tensor rank and then expert rank. A file is
named after the tensor and the expert rank. If experts are cut less than all else, not every pair of these occurs: the
pairs repeat after as many ranks as both numberings need, and each file has one slice of everything.
"""

import math

from reshard.core.layouts.megatron.names import MODEL_NAME, RankPosition, rank_folder_name
from reshard.core.runtime.records import Record


class ParallelSizes(Record):
    """Sizes of tensor, pipeline, virtual pipeline, expert and expert tensor parallelism; the last divides the first."""

    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    expert: int = 1
    expert_tensor: int = 1

    @property
    def ranks_per_stage(self) -> int:
        """Number of a stage's files."""
        return math.lcm(self.tensor, self.expert_tensor * self.expert)

    @property
    def ranks(self) -> int:
        """Number of all files."""
        return self.pipeline * self.ranks_per_stage

    def expert_rank(self, stage_rank: int) -> int:
        """Return the expert rank of one of a stage's files."""
        return stage_rank // self.expert_tensor % self.expert

    def path(self, stage: int, stage_rank: int) -> str:
        """Return the path of a file."""
        position = RankPosition(stage_rank % self.tensor, stage, self.expert_rank(stage_rank))
        return f"{rank_folder_name(position, self.pipeline, self.expert)}/{MODEL_NAME}"

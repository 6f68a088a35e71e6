"""Checkpoints that Megatron-Core wrote, and what its model of one rank holds after loading them."""

from pathlib import Path

from tests.support.checkpoints import Contents, read_safetensors
from tests.support.dcp import DcpCase
from tests.support.places import FIXTURES

MEGATRON_FIXTURES = FIXTURES / "megatron"
SMALL = DcpCase(MEGATRON_FIXTURES / "dist_small")
"""A few tensors that `dist_checkpointing.save` of 4 ranks wrote, without a model; see its case.json."""
ITERATION = "iter_0000003"


class MegatronCase(DcpCase):
    """A directory with an iteration and the tracker."""

    @property
    def iteration(self) -> Path:
        """The directory of the iteration."""
        return self.source / ITERATION

    @property
    def want(self) -> Contents:
        """What the model holds."""
        return read_safetensors(self.directory / "want.safetensors")

    @property
    def weights(self) -> Contents:
        """What the model holds, without the optimizer."""
        return {name: each for name, each in self.want.items() if not name.startswith("optimizer.")}


def megatron_case(name: str) -> MegatronCase:
    """One of the cases."""
    return MegatronCase(MEGATRON_FIXTURES / name)

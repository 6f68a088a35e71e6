"""Options of a target that only a DCP checkpoint knows."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from reshard.core.layouts.options import LayoutOptions
from reshard.core.layouts.registry import TargetLayout
from reshard.core.options.fields import Metavar
from reshard.core.options.validation import RequestModel

DEFAULT_SHARDS = 8
"""Default number of files of a target without a strategy."""
MAX_SHARDS = 1 << 16


class DcpOptions(RequestModel):
    """How tensors are divided among the files of a DCP target that has no strategy."""

    shards: Annotated[int, Metavar("N")] = Field(
        default=0,
        ge=0,
        le=MAX_SHARDS,
        description="Number of files among which to divide the rows of every tensor, as FSDP does (torch_dist, and dcp "
        f"without a target strategy). 0: {DEFAULT_SHARDS}.",
    )

    @field_validator("shards")
    @classmethod
    def _check_shards(cls, value: int, info: ValidationInfo) -> int:
        if value and info.data.get("target_strategy"):
            raise ValueError("the target strategy says how many files there are: leave out one of the two")
        return value


OPTIONS = LayoutOptions(
    name=TargetLayout.DCP,
    description="PyTorch's Distributed Checkpoint (.distcp files and .metadata), which any number of processes can "
    "load.",
    model=DcpOptions,
    suffix=".distcp",
    refused={
        "prefix": "the files of a DCP checkpoint have fixed names: leave it out",
        "encrypt_key": "PyTorch has no encrypted files: leave it out",
        "write_crc": "the files of a DCP checkpoint have a CRC of each tensor anyway: leave it out",
        "append_info": "a DCP checkpoint holds only tensors: leave it out",
        "remove_redundancy": "a DCP checkpoint has every slice once: leave it out",
    },
)

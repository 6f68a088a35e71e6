"""Options of a target that only DeepSpeed's universal checkpoint knows."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from reshard.core.layouts.iteration_option import IterationOptions, IterationsLayout, last_name
from reshard.core.layouts.options import own_options
from reshard.core.layouts.registry import TargetLayout
from reshard.core.layouts.universal.names import parse_tag, tag_name
from reshard.core.options.fields import Metavar
from reshard.core.text.options import option

MAX_OPTIMIZER_STEP = 1 << 24
"""Above it not every number is a float32, in which Adam counts."""


class UniversalOptions(IterationOptions):
    """Where the training of one target goes on."""

    optimizer_step: Annotated[int, Metavar("N")] = Field(
        default=0,
        ge=0,
        le=MAX_OPTIMIZER_STEP,
        title="Steps of the optimizer",
        description="Number of optimizer steps behind the converted moments, without skipped ones (universal layout "
        "only). 0: as recorded in the source.",
    )


class _Universal(IterationsLayout):
    """Steps of DeepSpeed, in directories named by tags."""

    numbered: ClassVar[str] = "universal checkpoints have"

    def directory(self, target: str, options: BaseModel) -> str:
        """Return the URL of the step's directory."""
        if not target or parse_tag(last_name(target)) is not None:
            return target
        number = own_options(options, IterationOptions).iteration
        return f"{target.rstrip('/')}/{tag_name(int(number or 0))}"

    def number_in(self, name: str) -> int | None:
        """Return the number in a tag."""
        return parse_tag(name)


OPTIONS = _Universal(
    name=TargetLayout.UNIVERSAL,
    description="DeepSpeed's universal checkpoint, which any world size and ZeRO stage can load, in "
    "TARGET/global_step40_universal with a file for each tensor, and the tracker latest_universal.",
    one_target=UniversalOptions,
    suffix=".pt",
    refused={
        "target_strategy": f"its tensors are whole, so leave out {option('target_strategy')}",
        "prefix": "the files of a universal checkpoint have fixed names: leave it out",
        "encrypt_key": "DeepSpeed has no encrypted files: leave it out",
        "write_crc": "files that PyTorch saves have a CRC of each tensor anyway: leave it out",
        "append_info": "a universal checkpoint keeps its training state elsewhere: leave it out",
        "remove_redundancy": "a universal checkpoint holds everything once: leave it out",
    },
)

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
        description="How many steps the optimizer has made whose moments are converted (universal layout only): those "
        "of the training, without skipped ones. 0: as the source says.",
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
    description="DeepSpeed's universal checkpoint, TARGET/global_step40_universal with a file for each tensor, which "
    "trainings of any world size and ZeRO stage load, and latest_universal that names it.",
    one_target=UniversalOptions,
    suffix=".pt",
    refused={
        "target_strategy": f"its tensors are whole, so leave out {option('target_strategy')}",
        "prefix": "the files of a universal checkpoint have names of their own: leave it out",
        "encrypt_key": "DeepSpeed knows no encrypted files: name no key",
        "write_crc": "files that PyTorch saves have a CRC of each tensor anyway: leave it out",
        "append_info": "a universal checkpoint has its state of training in places of its own: leave it out",
        "remove_redundancy": "a universal checkpoint has everything once: leave it out",
    },
)

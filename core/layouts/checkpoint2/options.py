"""Options of a target that only a Checkpoint 2.0 knows."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from reshard.core.layouts.checkpoint2.common_texts import parse_common_texts
from reshard.core.layouts.checkpoint2.names import iteration_name, parse_iteration
from reshard.core.layouts.iteration_option import IterationOptions, IterationsLayout, last_name
from reshard.core.layouts.options import own_options
from reshard.core.layouts.registry import TargetLayout
from reshard.core.layouts.state_numbers import Number
from reshard.core.options.fields import parsed_by
from reshard.core.options.validation import RequestModel
from reshard.core.options.written import pairs_by, text_of_setting
from reshard.core.text.options import option


def _text_of_number(name: str, value: object) -> str:
    return "null" if value is None else text_of_setting(name, value)


CommonTexts = Annotated[list[str], pairs_by(_text_of_number, str.partition, "Settings"), parsed_by(parse_common_texts)]


class CommonOptions(RequestModel):
    """What common.json says of an iteration."""

    common: CommonTexts = Field(
        default=[],
        description="KEY=VALUE (loss_scale=65536, epoch_num=null) to write into common.json, replacing the source's "
        "value (checkpoint2 layout only).",
    )

    @property
    def common_values(self) -> dict[str, Number]:
        """Values for common.json by key."""
        return parse_common_texts(self.common)


class NumberedOptions(IterationOptions):
    """Which iteration is written, compared with the target's name."""

    @field_validator("iteration")
    @classmethod
    def _check_iteration(cls, value: str, info: ValidationInfo) -> str:
        named = iteration_of(str(info.data.get("target", "")))
        if value and named is not None and named != int(value):
            raise ValueError(f"the target is named after iteration {named}: leave it out")
        return value


def iteration_of(target: str) -> int | None:
    """Return the iteration that a target is named after; None for the directory of all iterations."""
    return parse_iteration(last_name(target))


class _Checkpoint2(IterationsLayout):
    """Iterations of MindFormers."""

    numbered: ClassVar[str] = "a Checkpoint 2.0 has"

    def directory(self, target: str, options: BaseModel) -> str:
        """Return the URL of the iteration's directory."""
        if not target or iteration_of(target) is not None:
            return target
        return f"{target.rstrip('/')}/{iteration_name(int(own_options(options, IterationOptions).iteration))}"

    def number_in(self, name: str) -> int | None:
        """Return the number in the name of an iteration's directory."""
        return parse_iteration(name)


OPTIONS = _Checkpoint2(
    name=TargetLayout.CHECKPOINT2,
    description="MindFormers' Checkpoint 2.0, in TARGET/iteration_00000040 with a tracker file beside it, or in TARGET "
    "itself if it has such a name.",
    model=CommonOptions,
    one_target=NumberedOptions,
    suffix=".safetensors",
    refused={
        "prefix": "the files of a Checkpoint 2.0 have fixed names: leave it out",
        "encrypt_key": "a Checkpoint 2.0 has .safetensors files, which MindSpore cannot encrypt: leave it out",
        "write_crc": "MindFormers does not read CRCs in a Checkpoint 2.0: leave it out",
        "append_info": f"a Checkpoint 2.0 keeps its training state in common.json: set values with {option('common')}",
    },
)

"""Options of a target that only Megatron-Core's files of ranks know."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from reshard.core.layouts.iteration_option import IterationOptions, IterationsLayout, last_name
from reshard.core.layouts.megatron.names import iteration_name, parse_iteration
from reshard.core.layouts.options import own_options
from reshard.core.layouts.registry import TargetLayout
from reshard.core.options.fields import Metavar
from reshard.core.options.validation import RequestModel
from reshard.core.text.options import option, spelled

_MOST = 1 << 16

Count = Annotated[int, Metavar("N"), Field(ge=1, le=_MOST)]
CountOrNone = Annotated[int, Metavar("N"), Field(ge=0, le=1 << 40)]


class HeadsOptions(RequestModel):
    """What neither shapes nor names of a model's parameters say."""

    attention_heads: CountOrNone = Field(
        default=0,
        title="Attention heads",
        description="Number of attention heads, if neither shapes, nor the source's own arguments, nor the config.json "
        "of a preset show it (megatron and torch_dist layouts only).",
    )


class MegatronOptions(HeadsOptions):
    """How the model is divided among the ranks of a training, and what the source does not say of it."""

    tensor_parallel: Count = Field(
        default=1, description="Size of tensor parallelism (megatron layout only).", title="Tensor parallelism"
    )
    pipeline_parallel: Count = Field(
        default=1, description="Number of pipeline stages (megatron layout only).", title="Pipeline parallelism"
    )
    virtual_pipeline: Count = Field(
        default=1,
        title="Virtual pipeline",
        description="Megatron's --num-virtual-stages-per-pipeline-rank: chunks of layers per pipeline stage (megatron "
        "layout only).",
    )
    expert_parallel: Count = Field(
        default=1, description="Size of expert parallelism (megatron layout only).", title="Expert parallelism"
    )
    expert_tensor_parallel: CountOrNone = Field(
        default=0,
        title="Expert tensor parallelism",
        description="Size of tensor parallelism for experts (megatron layout only). 0: the same as for everything "
        "else.",
    )
    pipeline_first_layers: CountOrNone = Field(
        default=0,
        title="Layers of the first stage",
        description="Number of layers in the first pipeline stage, if it differs from the others (megatron layout "
        "only).",
    )
    pipeline_last_layers: CountOrNone = Field(
        default=0,
        title="Layers of the last stage",
        description="Number of layers in the last pipeline stage, if it differs from the others (megatron layout "
        "only).",
    )

    pad_vocab_to: CountOrNone = Field(
        default=0,
        title="Padded vocabulary",
        description="Pad embedding and output layer to this many rows by repeating the last one (megatron layout "
        "only). Megatron needs a multiple of --make-vocab-size-divisible-by times the size of tensor parallelism. 0: "
        "no padding.",
    )

    @field_validator("expert_tensor_parallel")
    @classmethod
    def _check_expert_tensor(cls, value: int, info: ValidationInfo) -> int:
        if value and info.data.get("tensor_parallel", value) % value:
            raise ValueError(
                spelled(
                    f"must divide {option('tensor_parallel')}, or files of different experts would have the same name"
                )
            )
        return value

    @field_validator("pipeline_first_layers", "pipeline_last_layers")
    @classmethod
    def _check_stages(cls, value: int, info: ValidationInfo) -> int:
        if value and info.data.get("pipeline_parallel", 2) < 2:
            raise ValueError(spelled(f"only valid with several stages, {option('pipeline_parallel')}"))
        return value


class MegatronIterations(IterationsLayout):
    """Iterations of Megatron; one without a number is a release."""

    numbered: ClassVar[str] = "Megatron's checkpoints have"

    def directory(self, target: str, options: BaseModel) -> str:
        """Return the URL of the iteration's directory, or of `release`."""
        if not target or parse_iteration(last_name(target)) is not None:
            return target
        number = own_options(options, IterationOptions).iteration
        return f"{target.rstrip('/')}/{iteration_name(int(number or 0))}"

    def number_in(self, name: str) -> int | None:
        """Return the number in the name of an iteration's directory."""
        return parse_iteration(name)


class _Megatron(MegatronIterations):
    """Files of ranks, whose vocabulary may have rows of padding."""

    def padded_vocabulary(self, options: BaseModel) -> int:
        """Return how many rows embedding and output layer get."""
        return own_options(options, MegatronOptions).pad_vocab_to


OPTIONS = _Megatron(
    name=TargetLayout.MEGATRON,
    description="Megatron-Core's per-rank files (--ckpt-format torch), which MindSpeed also loads, in "
    "TARGET/iter_0000040 or TARGET/release, with a tracker file.",
    model=MegatronOptions,
    one_target=IterationOptions,
    suffix=".pt",
    refused={
        "target_strategy": f"its sharding follows from {option('tensor_parallel')} and the like: leave out "
        f"{option('target_strategy')}",
        "prefix": "the files of a Megatron checkpoint have fixed names: leave it out",
        "encrypt_key": "Megatron has no encrypted files: leave it out",
        "write_crc": "files that PyTorch saves have a CRC of each tensor anyway: leave it out",
        "append_info": "a Megatron checkpoint keeps its training state elsewhere: leave it out",
        "remove_redundancy": "every rank of Megatron loads a file with all of its slices: leave it out",
    },
)

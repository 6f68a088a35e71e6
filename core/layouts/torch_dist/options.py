"""Options of a target that only Megatron-Core's `torch_dist` knows."""

from enum import StrEnum

from pydantic import Field

from reshard.core.layouts.dcp.options import DcpOptions
from reshard.core.layouts.iteration_option import IterationOptions
from reshard.core.layouts.megatron.options import HeadsOptions, MegatronIterations
from reshard.core.layouts.registry import TargetLayout
from reshard.core.text.options import option


class TransformerImpl(StrEnum):
    """The layers that a training of Megatron is built of, its `--transformer-impl`."""

    SOURCE = "source"
    TRANSFORMER_ENGINE = "transformer_engine"
    LOCAL = "local"


class TorchDistOptions(DcpOptions, HeadsOptions):
    """How the names of tensors follow from the layers that load them."""

    transformer_impl: TransformerImpl = Field(
        default=TransformerImpl.SOURCE,
        title="Transformer implementation",
        description="The --transformer-impl of the Megatron training that loads the target, which determines the names "
        "of norms in layers with experts (torch_dist layout only). source: from the source's own arguments, otherwise "
        "transformer_engine.",
    )


OPTIONS = MegatronIterations(
    name=TargetLayout.TORCH_DIST,
    description="Megatron-Core's distributed checkpoint (--ckpt-format torch_dist), which any number of ranks can "
    "load, in TARGET/iter_0000040 or TARGET/release, with a tracker file.",
    model=TorchDistOptions,
    one_target=IterationOptions,
    suffix=".distcp",
    refused={
        "target_strategy": "a torch_dist checkpoint is loaded by any number of ranks: leave it out, and choose the "
        f"number of files with {option('shards')}",
        "prefix": "the files of a torch_dist checkpoint have fixed names: leave it out",
        "encrypt_key": "Megatron has no encrypted files: leave it out",
        "write_crc": "the files of a torch_dist checkpoint have a CRC of each tensor anyway: leave it out",
        "append_info": "a torch_dist checkpoint keeps its training state in common.pt: leave it out",
        "remove_redundancy": "a torch_dist checkpoint has every slice once: leave it out",
    },
)

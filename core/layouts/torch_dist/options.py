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
        description="Megatron's --transformer-impl of the training that loads the target: layers with experts have "
        "their norms under other names (torch_dist layout only). source: as the source's own arguments say, "
        "else transformer_engine.",
    )


OPTIONS = MegatronIterations(
    name=TargetLayout.TORCH_DIST,
    description="Megatron-Core's distributed checkpoint (--ckpt-format torch_dist), which any number of its ranks can "
    "load: TARGET/iter_0000040 with .distcp files, common.pt and metadata, or TARGET/release, and a tracker.",
    model=TorchDistOptions,
    one_target=IterationOptions,
    suffix=".distcp",
    refused={
        "target_strategy": "a torch_dist checkpoint is loaded by any number of ranks: leave it out, and choose the "
        f"number of files with {option('shards')}",
        "prefix": "the files of a torch_dist checkpoint have names of their own: leave it out",
        "encrypt_key": "Megatron knows no encrypted files: name no key",
        "write_crc": "the files of a torch_dist checkpoint have a CRC of each tensor anyway: leave it out",
        "append_info": "a torch_dist checkpoint has its state of training in common.pt: leave it out",
        "remove_redundancy": "a torch_dist checkpoint has every slice once: leave it out",
    },
)

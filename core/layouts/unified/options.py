"""Options of a target that only unified checkpoints know."""

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from reshard.core.layouts.options import LayoutOptions, own_options
from reshard.core.layouts.registry import TargetLayout
from reshard.core.layouts.unified.names import UnifiedNaming
from reshard.core.options.fields import ShardSize, Url, parse_size
from reshard.core.options.validation import RequestModel
from reshard.core.text.options import option, spelled


class UnifiedOptions(RequestModel):
    """Size and names of a unified target's files, and the directory that it is modelled on."""

    like: Url = Field(
        default="",
        description="Hugging Face directory to model the target on (unified layout only). Its tokenizer and "
        "config.json are copied, the latter with the dtype that is written; if it has weights, names, shapes and "
        "dtypes must match them. Empty: the one that lies beside the source's files, if any.",
    )
    max_shard_size: ShardSize = Field(
        default="5GB",
        title="Largest shard",
        description="Maximum shard size (unified layout only): 5GB, 512MiB. A larger tensor gets a file of its own.",
    )
    unified_naming: UnifiedNaming = Field(
        default=UnifiedNaming.HUGGINGFACE,
        title="Naming",
        description="File names (unified layout only). huggingface: model-00001-of-00003.safetensors and "
        "model.safetensors.index.json. mindspore: part0.safetensors and param_name_map.json.",
    )

    @field_validator("unified_naming")
    @classmethod
    def _check_naming(cls, value: UnifiedNaming, info: ValidationInfo) -> UnifiedNaming:
        if value is UnifiedNaming.MINDSPORE and info.data.get("like"):
            raise ValueError(spelled(f"{option('like')} makes a Hugging Face directory: leave out one of the two"))
        return value

    @property
    def max_shard_bytes(self) -> int:
        """The maximum shard size in bytes."""
        return parse_size(self.max_shard_size)


class _Unified(LayoutOptions):
    """A target may be modelled on a Hugging Face directory."""

    def reference(self, options: BaseModel) -> str:
        """Return the URL of that directory."""
        return own_options(options, UnifiedOptions).like

    def modelled_on(self, options: BaseModel, url: str) -> dict[str, str]:
        """Return the option `like`, if the target is itself a Hugging Face directory."""
        own = own_options(options, UnifiedOptions)
        return {} if own.like or own.unified_naming is UnifiedNaming.MINDSPORE else {"like": url}


OPTIONS = _Unified(
    name=TargetLayout.UNIFIED,
    description="whole tensors in a few .safetensors files with an index, as Hugging Face's loaders expect.",
    model=UnifiedOptions,
    suffix=".safetensors",
    refused={
        "target_strategy": f"its tensors are whole, so leave out {option('target_strategy')}",
        "prefix": f"the files of a unified target have fixed names ({option('unified_naming')}): leave it out",
        "encrypt_key": "a unified target has .safetensors files, which MindSpore cannot encrypt: leave it out",
        "remove_redundancy": "a unified target holds everything once: leave it out",
    },
)

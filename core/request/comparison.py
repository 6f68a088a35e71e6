"""Options of a comparison of two checkpoints."""

from typing import Annotated, Literal

from pydantic import Field

from reshard.core.changes.changes import Fp8, Selection
from reshard.core.changes.option_types import (
    ALLOW_MODEL_DESCRIPTION,
    AllowedModels,
    LoraAlpha,
    Preset,
    Switches,
    WorldName,
)
from reshard.core.options.fields import (
    SIZE,
    SIZE_METAVAR,
    BandwidthLimit,
    KeyName,
    Metavar,
    Patterns,
    RequiredUrl,
    Step,
    StorageName,
    Url,
    with_key,
)
from reshard.core.options.validation import RequestModel, build_options
from reshard.core.request.source import FingerprintRequest
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.strategy.integrated_save import IntegratedSave, YesOrNo


class ComparisonRequest(RequestModel):
    """Compare two checkpoints, whatever their strategies and formats: are they the same model?"""

    a: RequiredUrl = Field(
        description="A checkpoint: a directory with rank_0, rank_1, … in it, a pattern with {rank}, or one file; or "
        "the JSON output of 'reshard fingerprint'. A path or any URL that fsspec supports, without a password."
    )
    b: RequiredUrl = Field(description="The other checkpoint, in the same forms.")
    strategy_a: Url = Field(
        default="",
        title="Strategy of A",
        description="How A is sharded: a strategy file, or a directory of the ranks' strategy files. Empty: taken from "
        "A's own records or metadata, or from the strategy beside it; otherwise A must be a single rank.",
    )
    strategy_b: Url = Field(default="", title="Strategy of B", description="How B is sharded.")
    auto_strategy: bool = Field(
        default=True,
        title="Use strategies beside the checkpoints",
        description="If no strategy is given for a side, use the one beside its checkpoint, provided that it is the "
        "only one there, is older than the checkpoint, and 'reshard doctor' finds it consistent.",
    )
    step_a: Step = Field(
        default="",
        title="Step of A",
        description="Epoch and step of A, as in its file names: 10_5. Empty: the newest that every rank has.",
    )
    step_b: Step = Field(default="", title="Step of B", description="Epoch and step of B.")
    root_a: str = Field(
        default="",
        title="Root of A",
        description="Where the tensors are in a PyTorch file that holds more: the keys of their dict, joined by dots, "
        "such as state_dict. Empty: at the top level.",
    )
    root_b: str = Field(default="", title="Root of B", description="The same in the files of B.")
    integrated_save_a: YesOrNo = Field(
        default=IntegratedSave.AUTO,
        title="Integrated save of A",
        description="yes: every rank of A holds whole tensors (integrated_save), whatever its strategy says. no: ranks "
        "hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy; fail if contents "
        "look whole and no shape is known.",
    )
    integrated_save_b: YesOrNo = Field(
        default=IntegratedSave.AUTO, title="Integrated save of B", description="The same for the ranks of B."
    )
    trust_strategy_a: bool = Field(
        default=False,
        title="Trust the strategy of A",
        description="Use A's strategy even if contents contradict it, or ranks lack parameters that they should have.",
    )
    trust_strategy_b: bool = Field(default=False, title="Trust the strategy of B", description="The same for B.")
    select: Selection = Field(
        default=Selection.ALL,
        description="weights-only: do not compare optimizer moments, gradient accumulators, loss scale and other "
        "training state.",
    )
    include: Patterns = Field(
        default=[],
        description="Patterns (model.layers.*) of parameters to compare, by the names of A or of B. Empty: all.",
    )
    exclude: Patterns = Field(default=[], description="Patterns of parameters to ignore, by the names of A or of B.")
    preset: Preset = Field(
        default="",
        description="Compare B with A after this model family's preset (qwen3; 'reshard presets' lists them): B may be "
        "A's export to Hugging Face's names, or what A was made from.",
    )
    changes: Url = Field(
        default="",
        description="Compare B with A after the changes in this file, and after the preset if one is given: B may be "
        "what was converted with it. Its selection applies to A.",
    )
    names: WorldName = Field(
        default="",
        title="Names of B",
        description="Whose names B has: hf, mindformers, megatron or titan, or another world of the preset (mcore, "
        "legacy). Empty: Hugging Face's, or MindFormers' if A has Hugging Face's.",
    )
    fp8: Fp8 = Field(
        default=Fp8.AUTO,
        title="fp8",
        description="Compare what A becomes by this option of a conversion. quantize: B may be its export to fp8.",
    )
    switch: Switches = Field(
        default=[], description="NAME=VALUE, a fact that the preset needs and the checkpoint does not show."
    )
    lora: Url = Field(
        default="",
        title="LoRA adapter",
        description="Compare what A becomes with this LoRA adapter merged, before all other changes, or after the "
        "preset's if it has the names that these make.",
    )
    lora_alpha: LoraAlpha = 0.0
    training_config: Url = Field(
        default="",
        description="The training's YAML, from which the preset's switches and the adapter's alpha are taken.",
    )
    config_json: Url = Field(
        default="",
        title="config.json",
        description="The model's config.json, or its directory, for the numbers that the preset needs. Empty: the one "
        "beside A or B.",
    )
    allow_model: AllowedModels = Field(default=[], title="Allowed models", description=ALLOW_MODEL_DESCRIPTION)
    ignore_dtype: bool = Field(
        default=False,
        description="Compare floating-point parameters of different dtypes after casting the wider dtype to the other.",
    )
    decrypt_key_a: KeyName = Field(default="", title="Decryption key of A")
    decrypt_mode_a: Annotated[EncryptionMode, with_key("decrypt_key_a")] = Field(
        default=EncryptionMode.AES_GCM, title="Decryption mode of A", description="How A is encrypted, if it is."
    )
    decrypt_key_b: KeyName = Field(default="", title="Decryption key of B")
    decrypt_mode_b: Annotated[EncryptionMode, with_key("decrypt_key_b")] = Field(
        default=EncryptionMode.AES_GCM, title="Decryption mode of B", description="How B is encrypted, if it is."
    )
    storage_a: StorageName = Field(default="", title="Storage of A")
    storage_b: StorageName = Field(default="", title="Storage of B")
    workers: Annotated[int, Metavar("N")] = Field(
        default=0, ge=0, le=1024, description="Number of threads. 0: one per core."
    )
    memory_limit: Annotated[str, SIZE, SIZE_METAVAR] = Field(
        default="2GiB",
        description="Memory for the buffers of all workers: 2GiB, 512MiB. With less memory, fewer work at once.",
    )
    bandwidth_limit: BandwidthLimit = Field(
        default="", description="Bytes per second that are received from remote storage, like rclone's bwlimit: 10M."
    )

    def side(self, letter: Literal["a", "b"]) -> FingerprintRequest:
        """Return one side's options."""
        return build_options(
            FingerprintRequest,
            source=getattr(self, letter),
            source_strategy=getattr(self, f"strategy_{letter}"),
            auto_strategy=self.auto_strategy,
            source_storage=getattr(self, f"storage_{letter}"),
            step=getattr(self, f"step_{letter}"),
            root=getattr(self, f"root_{letter}"),
            integrated_save=getattr(self, f"integrated_save_{letter}"),
            trust_strategy=getattr(self, f"trust_strategy_{letter}"),
            decrypt_key=getattr(self, f"decrypt_key_{letter}"),
            decrypt_mode=getattr(self, f"decrypt_mode_{letter}"),
            select=self.select,
            include=self.include,
            exclude=self.exclude,
            workers=self.workers,
            memory_limit=self.memory_limit,
            bandwidth_limit=self.bandwidth_limit,
        )


def build_comparison(**options: object) -> ComparisonRequest:
    """Build the request for a comparison from loose options; an InputError names each that is wrong."""
    request = build_options(ComparisonRequest, **options)
    request.side("a")  # which checks the options that both sides share
    return request

"""Options of a conversion: the one definition behind the command line, the flow's form and programs."""

import os
from enum import StrEnum
from typing import Annotated, TypeVar

from pydantic import Field, ValidationInfo, field_validator

from reshard.core.changes.changes import OverflowPolicy, Selection
from reshard.core.changes.info_texts import InfoValue, parse_info
from reshard.core.changes.option_types import ALLOW_MODEL_DESCRIPTION, Casts, InfoTexts, Preset, Renames, Switches
from reshard.core.checkpoint.target_layout import TargetLayout
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import InputError
from reshard.core.layouts.checkpoint2.common_texts import Number, parse_common_texts
from reshard.core.layouts.checkpoint2.names import iteration_name, parse_iteration
from reshard.core.layouts.checkpoint2.options import CommonTexts, Iteration
from reshard.core.layouts.dcp.options import MAX_SHARDS
from reshard.core.layouts.unified.names import UnifiedNaming
from reshard.core.options.fields import (
    SOURCE_KEY_DESCRIPTION,
    TARGET_KEY_DESCRIPTION,
    DaskScheduler,
    KeyName,
    MemoryLimit,
    Patterns,
    Prefix,
    Ranks,
    RequiredUrl,
    ShardSize,
    SharedParameters,
    Step,
    StorageName,
    Url,
    parse_ranks,
    parse_size,
    with_key,
)
from reshard.core.options.validation import RequestModel, build_options
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.strategy.integrated_save import IntegratedSave

Option = TypeVar("Option")

_NOT_OF_UNIFIED = {
    "prefix": "the files of a unified target have names of their own (--unified-naming): leave it out",
    "encrypt_key": "a unified target is .safetensors files, of which MindSpore knows no encrypted ones: name no key",
    "remove_redundancy": "a unified target has everything once: leave it out",
}
_NOT_OF_CHECKPOINT2 = {
    "prefix": "the files of a Checkpoint 2.0 have names of their own: leave it out",
    "encrypt_key": "a Checkpoint 2.0 is .safetensors files, of which MindSpore knows no encrypted ones: name no key",
    "write_crc": "MindFormers reads no CRC in a Checkpoint 2.0: leave it out",
    "append_info": "a Checkpoint 2.0 has its state of training in common.json: give values with --common",
}


_NOT_OF_DCP = {
    "prefix": "the files of a DCP checkpoint have names of their own: leave it out",
    "encrypt_key": "PyTorch knows no encrypted files: name no key",
    "write_crc": "the files of a DCP checkpoint have a CRC of each tensor anyway: leave it out",
    "append_info": "a DCP checkpoint has tensors only: leave it out",
    "remove_redundancy": "a DCP checkpoint has every slice once: leave it out",
}
DEFAULT_SHARDS = 8


class OutputFormat(StrEnum):
    """Kind of the target's files."""

    SAME = "same"
    CKPT = "ckpt"
    SAFETENSORS = "safetensors"


class UnmatchedPolicy(StrEnum):
    """What to do with parameters that the target's strategy lacks."""

    DROP = "drop"
    FAIL = "fail"


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class SourceOptions(RequestModel):
    """Options of everything that reads a checkpoint."""

    source: RequiredUrl = Field(
        description="The checkpoint: a directory with rank_0, rank_1, … in it, a pattern with {rank}, one file, a "
        "directory of whole tensors with an index, as Hugging Face's, a Checkpoint 2.0 of MindFormers, or a "
        "Distributed Checkpoint (DCP) of PyTorch. A path or any URL that fsspec knows, without a password."
    )
    source_strategy: Url = Field(
        default="",
        description="How the source is sharded: a strategy file, or a directory of the ranks' strategy files. Empty: "
        "by its own records if reshard made it, by its metadata if it is a Checkpoint 2.0 or DCP, else not at all, "
        "one rank.",
    )
    source_storage: StorageName = Field(
        default="",
        description="Credential reference for the source, its strategy and the changes: env:NAME, file:PATH or "
        "block:NAME, whose value is a JSON object of fsspec's storage options. Empty: taken from the environment.",
    )
    source_prefix: str = Field(
        default="", description="One of several runs in the source's folders: CKP or CKP_1, for example."
    )
    workers: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="Threads, for as many ranks at once, or several for one; with Dask, of all its processes "
        "together. 0: one for each core (with Dask: all that its workers have), and at least 8 if a side is on remote "
        "storage, where they mostly wait for answers.",
    )
    memory_limit: MemoryLimit = Field(
        default="2GiB", description="Memory for the buffers of all workers of a process: 2GiB, 512MiB; at least 16MiB."
    )
    check_crc: bool = Field(
        default=True,
        title="Check CRC",
        description="Check the CRC of source files that carry one, before anything is planned or written: reads them "
        "whole once more. Tensors of DCP are checked as they are read, with --engine direct.",
    )
    allow_missing: list[str] = Field(
        default=[],
        title="Allowed to be missing",
        description="Patterns (adam_*) of target parameters that the source may lack.",
    )
    decrypt_key: KeyName = Field(default="", title="Decryption key", description=SOURCE_KEY_DESCRIPTION)
    decrypt_mode: Annotated[EncryptionMode, with_key("decrypt_key")] = Field(
        default=EncryptionMode.AES_GCM, title="Decryption mode", description="How an encrypted source is encrypted."
    )
    integrated_save: IntegratedSave = Field(
        default=IntegratedSave.AUTO,
        description="yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy "
        "shards. no: ranks hold slices, even if these are equal. auto: known shapes decide, else the strategy does; "
        "if contents look whole and no shape is known, refuse.",
    )
    trust_strategy: bool = Field(
        default=False,
        description="Keep to the source's strategy although most sampled contents contradict it, or ranks lack "
        "parameters that it gives them.",
    )
    check_replicas: bool = Field(
        default=False, description="Compare all replicas of each slice in the source; fail if they differ."
    )

    @property
    def memory_limit_bytes(self) -> int:
        """The memory limit in bytes."""
        return parse_size(self.memory_limit)

    @property
    def worker_count(self) -> int:
        """Ranks, or files, that are worked on at once."""
        return self.workers or core_count()


class FileChoice(RequestModel):
    """Which of a source's files are read."""

    step: Step = Field(
        default="",
        description="Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; of a Checkpoint "
        "2.0, the iteration: 40. Empty: the newest that every rank has, or the iteration that the tracker names.",
    )
    recover: bool = Field(
        default=False,
        description="If source files are missing, truncated, fail their CRC or are named as faulty, read their slices "
        "from other ranks that hold the same, and report it.",
    )
    fault_ranks: Ranks = Field(
        default="", title="Faulty ranks", description="Source ranks (3,7) whose files to ignore; needs 'recover'."
    )


class ConversionOptions(SourceOptions):
    """Options of every conversion: of one checkpoint, or of the newest that training has saved."""

    target: RequiredUrl = Field(
        description="The directory to make, with rank_0, rank_1, … in it; it appears when all of it is complete."
    )
    target_strategy: Url = Field(
        default="",
        description="How to shard the target: a strategy file, or a directory of them. Empty: whole, one rank.",
    )
    target_storage: StorageName = Field(
        default="", description="Credential reference for the target and its strategy, in the same forms."
    )
    format: OutputFormat = Field(
        default=OutputFormat.SAME, description="Kind of the target's files; same: the source's."
    )
    layout: TargetLayout = Field(
        default=TargetLayout.RANKS,
        description="ranks: a file for each target rank. unified: whole tensors, each in one of a few .safetensors "
        "files with an index, as Hugging Face's loaders want them. checkpoint2: MindFormers' Checkpoint 2.0, "
        "TARGET/iteration_00000040 with metadata, and a tracker that names it; or TARGET itself, if that is its name. "
        "dcp: PyTorch's Distributed Checkpoint, .distcp files and .metadata, which any number of processes can load.",
    )
    shards: int = Field(
        default=0,
        ge=0,
        le=MAX_SHARDS,
        description="Number of files to divide the rows of every tensor among, as FSDP does (dcp layout without a "
        f"target strategy only). 0: {DEFAULT_SHARDS}.",
    )
    common: CommonTexts = Field(
        default=[],
        description="KEY=VALUE (loss_scale=65536, epoch_num=null) for common.json, in place of the source's value "
        "(checkpoint2 layout only).",
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
    like: Url = Field(
        default="",
        description="Hugging Face directory to model the target on (unified layout only). Its config.json, with the "
        "dtype that is written, and its tokenizer are copied; names, shapes and dtypes must match its weights, if it "
        "has any.",
    )
    select: Selection = Field(
        default=Selection.ALL,
        description="weights-only: without optimizer moments, gradient accumulators, loss scale and other training "
        "state.",
    )
    include: Patterns = Field(
        default=[], description="Patterns (model.layers.*) of source parameters to convert. Empty: all."
    )
    exclude: Patterns = Field(default=[], description="Patterns of source parameters to leave out.")
    rename: Renames = Field(
        default=[],
        description="OLD=NEW, a parameter's name and its new one; or re:PATTERN=NEW, a regular expression of whole "
        "names and what they become, with its groups (re:layers\\.(\\d+)\\.(.*)=h.\\1.\\2). The first match "
        "counts.",
    )
    cast: Casts = Field(
        default=[],
        description="PATTERN=DTYPE (*=bfloat16): floating-point parameters that get another dtype, rounded to the "
        "nearest. The first match counts.",
    )
    cast_overflow: OverflowPolicy = Field(
        default=OverflowPolicy.FAIL,
        title="Overflow",
        description="If finite values become infinite in the dtype that they are cast to: fail, or allow it and "
        "report how many do.",
    )
    transpose: Patterns = Field(
        default=[], description="Patterns of parameters whose axes are reversed. The first match counts."
    )
    changes: Url = Field(
        default="",
        description="A YAML or JSON file that declares all these changes, and splits and joins of fused parameters "
        "(qkv, gate-up) as well. Options take precedence over it.",
    )
    preset: Preset = Field(
        default="",
        description="The model's family (qwen3; reshard presets lists them), by which MindFormers' names and layouts "
        "become Hugging Face's, or the other way round, as the source's names tell; or a document of your own.",
    )
    switch: Switches = Field(
        default=[],
        description="NAME=VALUE, a fact that the preset needs and the checkpoint does not hold.",
    )
    training_config: Url = Field(default="", description="The training's YAML, from which the preset reads such facts.")
    allow_model: list[str] = Field(default=[], title="Allowed models", description=ALLOW_MODEL_DESCRIPTION)
    prefix: Prefix = Field(
        default="checkpoint_", title="File prefix", description="Target files are rank_{r}/{prefix}{r}.{format}."
    )
    verify: VerifyLevel = Field(
        default=VerifyLevel.CHECKSUM,
        title="Verification",
        description="structure: names, dtypes and shapes. checksum: also every byte, read back from the target. "
        "content: also every value of every copy, against the source's. none: no check.",
    )
    unmatched: UnmatchedPolicy = Field(
        default=UnmatchedPolicy.DROP,
        title="Unmatched parameters",
        description="Parameters of the source's strategy that the target's lacks (optimizer state, often): drop and "
        "report them, or fail.",
    )
    encrypt_key: KeyName = Field(default="", title="Encryption key", description=TARGET_KEY_DESCRIPTION)
    encrypt_mode: Annotated[EncryptionMode, with_key("encrypt_key")] = Field(
        default=EncryptionMode.AES_GCM, title="Encryption mode", description="How the target is encrypted."
    )
    write_crc: bool = Field(
        default=False,
        title="Write CRC",
        description="Give the target's files a CRC, which MindSpore checks with crc_check.",
    )
    append_info: InfoTexts = Field(
        default=[],
        title="Appended information",
        description="NAME=VALUE (epoch_num=5) for every target file, in place of the source's value of that name. A "
        "value is true or false, a number, or else text; after text: it is always text (version=text:2.0).",
    )
    remove_redundancy: bool = Field(
        default=False,
        description="Keep a slice that several target ranks share on some of them only; MindSpore loads such a "
        "checkpoint with remove_redundancy=True.",
    )
    replicas: int = Field(default=1, ge=1, description="Copies of each slice to keep when redundancy is removed.")
    shared_parameters: SharedParameters = Field(
        default="first",
        description="If several pipeline stages of the source hold a parameter, such as tied embeddings, with "
        "different contents: first, take the first stage's; a number, that stage's; fail.",
    )
    dask_scheduler: DaskScheduler = Field(
        default="",
        description="Writers of the ranks: tcp://HOST:PORT, the workers of that Dask cluster; local, processes on "
        "this machine. Empty: threads of the run's own process.",
    )
    concurrency_limit: str = Field(
        default="",
        description="Name of a global concurrency limit of Prefect: a rank starts when one of its slots is free; runs "
        "share the slots. Empty: none.",
    )

    @field_validator("encrypt_key")
    @classmethod
    def _check_encrypted_format(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("format") is OutputFormat.SAFETENSORS:
            raise ValueError("MindSpore knows no encrypted .safetensors files: choose the format ckpt, or name no key")
        return value

    @field_validator("layout")
    @classmethod
    def _check_layout(cls, value: TargetLayout, info: ValidationInfo) -> TargetLayout:
        if value is TargetLayout.UNIFIED and info.data.get("target_strategy"):
            raise ValueError("whole tensors are cut by no strategy: name no --target-strategy")
        given = info.data.get("format")
        if value is TargetLayout.DCP and given not in (OutputFormat.SAME, None):
            raise ValueError("writes .distcp files: leave out --format")
        if value is not TargetLayout.RANKS and given is OutputFormat.CKPT:
            raise ValueError("writes .safetensors files: leave out --format")
        return value

    @field_validator("shards")
    @classmethod
    def _check_shards(cls, value: int, info: ValidationInfo) -> int:
        if value and info.data.get("layout") not in (TargetLayout.DCP, None):
            raise ValueError("only valid with --layout dcp")
        if value and info.data.get("target_strategy"):
            raise ValueError("the target strategy says how many files there are: leave out one of the two")
        return value

    @field_validator("common")
    @classmethod
    def _check_of_checkpoint2(cls, value: list[str], info: ValidationInfo) -> list[str]:
        return _of_checkpoint2(value, info)

    @field_validator("max_shard_size", "unified_naming")
    @classmethod
    def _check_of_unified(cls, value: str, info: ValidationInfo) -> str:
        is_default = value == cls.model_fields[str(info.field_name)].default
        if not is_default and info.data.get("layout") not in (TargetLayout.UNIFIED, None):
            raise ValueError("only valid with --layout unified")
        return value

    @field_validator("like")
    @classmethod
    def _check_like(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("layout") not in (TargetLayout.UNIFIED, None):
            raise ValueError("only valid with --layout unified")
        if value and info.data.get("unified_naming") is UnifiedNaming.MINDSPORE:
            raise ValueError("makes a Hugging Face directory: leave out --unified-naming")
        return value

    @field_validator("switch", "training_config", "allow_model")
    @classmethod
    def _check_of_preset(cls, value: list[str] | str, info: ValidationInfo) -> list[str] | str:
        if value and not info.data.get("preset", True):
            raise ValueError("only valid with --preset")
        return value

    @field_validator("prefix", "encrypt_key", "write_crc", "append_info", "remove_redundancy")
    @classmethod
    def _check_goes_with_layout(cls, value: Option, info: ValidationInfo) -> Option:
        name = str(info.field_name)
        refused = _REFUSED.get(info.data.get("layout", TargetLayout.RANKS), {})
        if name in refused and value != cls.model_fields[name].default:
            raise ValueError(refused[name])
        return value

    @field_validator("write_crc")
    @classmethod
    def _check_no_crc_of_encrypted(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("encrypt_key"):
            raise ValueError("an encrypted file has no CRC (MindSpore): choose one of the two")
        return value

    @field_validator("replicas")
    @classmethod
    def _check_replicas(cls, value: int, info: ValidationInfo) -> int:
        if value > 1 and not info.data.get("remove_redundancy", True):
            raise ValueError("only valid with --remove-redundancy")
        return value

    @property
    def info(self) -> tuple[tuple[str, InfoValue], ...]:
        """Names and values for every target file."""
        return parse_info(self.append_info)

    @property
    def common_values(self) -> dict[str, Number]:
        """Values for common.json of a Checkpoint 2.0 by key."""
        return parse_common_texts(self.common)


class ConversionRequest(FileChoice, ConversionOptions):
    """Reshard a MindSpore checkpoint trained on M devices to run on N."""

    ranks: Ranks = Field(
        default="",
        description="Convert only these target ranks (0-3,7), or files of a unified target, counted from 0; other "
        "machines convert the rest. Empty: all.",
    )
    overwrite: bool = Field(
        default=False, description="Replace the checkpoint at the target; it stays until the new one is complete."
    )
    iteration: Iteration = Field(
        default="",
        description="Number of the iteration to write (checkpoint2 layout only). Empty: the source's, or the one in "
        "TARGET's name.",
    )

    @field_validator("iteration")
    @classmethod
    def _check_iteration(cls, value: str, info: ValidationInfo) -> str:
        named = parse_iteration(_last_name(str(info.data.get("target", ""))))
        if value and named is not None and named != int(value):
            raise ValueError(f"the target is named after iteration {named}: leave it out")
        return _of_checkpoint2(value, info)

    @property
    def target_directory(self) -> str:
        """URL of the directory with the target's files; of a Checkpoint 2.0, the iteration's, which must be known."""
        if self.layout is not TargetLayout.CHECKPOINT2 or not self.target or not self.is_tracked:
            return self.target
        return f"{self.target.rstrip('/')}/{iteration_name(int(self.iteration))}"

    @property
    def is_tracked(self) -> bool:
        """True if the target is the directory of all iterations of a Checkpoint 2.0, with a tracker."""
        is_iteration = parse_iteration(_last_name(self.target)) is not None
        return self.layout is TargetLayout.CHECKPOINT2 and not is_iteration

    @field_validator("fault_ranks")
    @classmethod
    def _check_fault_ranks(cls, value: str, info: ValidationInfo) -> str:
        if value.strip() and not info.data.get("recover"):
            raise ValueError("only valid with --recover")
        return value

    def chosen_ranks(self, all_ranks: range) -> tuple[int, ...]:
        """Return the requested target ranks; raise InputError if the target does not have one of them."""
        if not self.ranks.strip():
            return tuple(all_ranks)
        chosen = parse_ranks(self.ranks)
        unknown = [rank for rank in chosen if rank not in all_ranks]
        if unknown:
            raise InputError(
                f"--ranks {self.ranks}: the target has ranks {all_ranks.start} to {all_ranks.stop - 1}, "
                f"not {', '.join(map(str, unknown[:8]))}"
            )
        return chosen


_REFUSED = {
    TargetLayout.UNIFIED: _NOT_OF_UNIFIED,
    TargetLayout.CHECKPOINT2: _NOT_OF_CHECKPOINT2,
    TargetLayout.DCP: _NOT_OF_DCP,
}
"""Layout -> options that do not go with it, and why."""


def _of_checkpoint2(value: Option, info: ValidationInfo) -> Option:
    if value and info.data.get("layout") not in (TargetLayout.CHECKPOINT2, None):
        raise ValueError("only valid with --layout checkpoint2")
    return value


def _last_name(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]


def build_request(**options: object) -> ConversionRequest:
    """Build the request for a conversion from loose options; an InputError names each that is wrong."""
    return build_options(ConversionRequest, **options)

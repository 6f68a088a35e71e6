"""Keyword arguments of the functions in `reshard`, for editors and type checkers.

Names, defaults and meanings are those of the command line: `reshard convert --help` describes each. Requests (see
`reshard.ConversionRequest`) check the values.
"""

import os
from typing import Literal, TypedDict

from reshard.core.changes.changes import OverflowPolicy, Selection
from reshard.core.checkpoint.target_layout import TargetLayout
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.layouts.unified.names import UnifiedNaming
from reshard.core.request.changing import UnmatchedPolicy
from reshard.core.request.target import OutputFormat
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.strategy.integrated_save import IntegratedSave

PathOrUrl = str | os.PathLike[str]
"""A path, or a URL with a protocol that fsspec knows, without a password."""
Texts = list[str] | tuple[str, ...]
"""Several texts; a single one is refused."""
SelectionName = Selection | Literal["all", "weights-only"]
IntegratedSaveName = IntegratedSave | Literal["auto", "yes", "no"]
EncryptionModeName = EncryptionMode | Literal["AES-GCM", "AES-CBC", "SM4-CBC"]
VerifyLevelName = VerifyLevel | Literal["none", "structure", "checksum", "content"]


class SelectionOptions(TypedDict, total=False):
    """Which parameters of a checkpoint count.

    Attributes:
        select: `weights-only` leaves out what only training needs.
        include: shell-style patterns of parameters to take; empty: all.
        exclude: shell-style patterns of parameters to leave out.
    """

    select: SelectionName
    include: Texts
    exclude: Texts


class ResourceOptions(TypedDict, total=False):
    """What the work may use.

    Attributes:
        workers: threads; 0: one for each core, more for remote storage.
        memory_limit: for the buffers of all workers together, such as `2GiB`.
    """

    workers: int
    memory_limit: str


class SourceOptions(TypedDict, total=False):
    """How a source is read.

    Attributes:
        source_storage: name of the source's storage options: `env:NAME`, `file:PATH` or `block:NAME`.
        source_prefix: which of several runs in the source's folders.
        integrated_save: whether every rank holds whole tensors, whatever its strategy cuts.
        decrypt_key: name of the source's key: `env:NAME`, `file:PATH` or `block:NAME`.
        decrypt_mode: how the source is encrypted.
    """

    source_storage: str
    source_prefix: str
    integrated_save: IntegratedSaveName
    decrypt_key: str
    decrypt_mode: EncryptionModeName


class TrustOptions(TypedDict, total=False):
    """Whether a source's strategy stays that its files contradict.

    Attributes:
        trust_strategy: keep to the strategy although contents contradict it, or ranks lack parameters that it gives
            them.
    """

    trust_strategy: bool


class TransformOptions(SelectionOptions, SourceOptions, TrustOptions, ResourceOptions, total=False):
    """How parameters are read and changed on their way to the target.

    Attributes:
        target_storage: name of the storage options of the target and its strategy.
        rename: `OLD=NEW` or `re:PATTERN=NEW`.
        cast: `PATTERN=DTYPE`, such as `*=bfloat16`.
        cast_overflow: fail, or allow finite values to become infinite by a cast.
        transpose: shell-style patterns of parameters whose axes are reversed.
        changes: a YAML or JSON document that declares changes, splits and joins of parameters as well.
        preset: the model's family, such as `qwen3`, or a document of your own: MindFormers' names and layouts become
            Hugging Face's, or the other way round.
        switch: `NAME=VALUE`, a fact that the preset needs and the checkpoint does not hold.
        training_config: the training's YAML, from which the preset reads such facts.
        allow_model: values of `model_type` in config.json to convert although the preset does not list them.
        check_crc: check the CRC of source files that have one, as those of DCP: reads all of them whole, also for a
            plan, and in each process that loads a rank. `convert` checks DCP's as it reads them.
        unmatched: what happens to parameters that the target's strategy lacks.
        allow_missing: shell-style patterns of target parameters that the source need not have.
        append_info: `NAME=VALUE` for every target file.
        check_replicas: compare all replicas of each slice; fail if they differ.
        shared_parameters: `first`, `fail` or the number of the stage whose copy of a tied parameter is taken.
    """

    target_storage: str
    rename: Texts
    cast: Texts
    cast_overflow: OverflowPolicy | Literal["fail", "allow"]
    transpose: Texts
    changes: PathOrUrl
    preset: PathOrUrl
    switch: Texts
    training_config: PathOrUrl
    allow_model: Texts
    check_crc: bool
    unmatched: UnmatchedPolicy | Literal["drop", "fail"]
    allow_missing: Texts
    append_info: Texts
    check_replicas: bool
    shared_parameters: str


class StepOptions(TypedDict, total=False):
    """Which files of the source are read.

    Attributes:
        step: epoch and step, such as `10_5`; empty: the newest that every rank has.
        recover: take slices of lost ranks from other ranks that hold the same.
        fault_ranks: source ranks whose files are not read, such as `3,7`; needs `recover`.
    """

    step: str
    recover: bool
    fault_ranks: str


class WriteOptions(TypedDict, total=False):
    """How the target's files are written.

    Attributes:
        format: kind of the target's files.
        layout: `unified` for whole tensors in files with an index, as Hugging Face's loaders want them; `checkpoint2`
            for MindFormers' Checkpoint 2.0; `dcp` for PyTorch's Distributed Checkpoint.
        common: `KEY=VALUE` for common.json of a Checkpoint 2.0.
        like: Hugging Face directory to model a unified target on: its configuration and tokenizer are copied.
        max_shard_size: maximum shard size of a unified target, such as `5GB`.
        shards: number of files of a DCP target without a strategy; 0: 8.
        unified_naming: names of a unified target's files.
        prefix: target files are `rank_{r}/{prefix}{r}.{format}`.
        verify: how closely the target is checked before it counts.
        encrypt_key: name of the key that encrypts the target.
        encrypt_mode: how the target is encrypted.
        write_crc: give the target's files a CRC.
        remove_redundancy: write only `replicas` copies of each slice.
        replicas: how many copies of each slice stay when redundancy is removed.
    """

    format: OutputFormat | Literal["same", "ckpt", "safetensors"]
    layout: TargetLayout | Literal["ranks", "unified", "checkpoint2", "dcp"]
    common: Texts
    like: PathOrUrl
    max_shard_size: str
    shards: int
    unified_naming: UnifiedNaming | Literal["huggingface", "mindspore"]
    prefix: str
    verify: VerifyLevelName
    encrypt_key: str
    encrypt_mode: EncryptionModeName
    write_crc: bool
    remove_redundancy: bool
    replicas: int


class LoadOptions(TransformOptions, StepOptions, total=False):
    """Options of `reshard.load_rank` and `reshard.plan_load`."""


class ConvertOptions(TransformOptions, StepOptions, WriteOptions, total=False):
    """Options of `reshard.convert` and `reshard.plan`.

    Attributes:
        ranks: only these target ranks, such as `0-3,7`; empty: all.
        overwrite: replace what is at the target.
        iteration: number of a Checkpoint 2.0's iteration; empty: the source's.
    """

    ranks: str
    overwrite: bool
    iteration: str


class LatestOptions(TransformOptions, WriteOptions, total=False):
    """Options of `reshard.convert_latest`.

    Attributes:
        settle_seconds: a step is complete when none of its files has changed for so many seconds.
        patience_seconds: skip an incomplete newer step that has not changed for so many seconds.
        keep_checkpoint_max: how many conversions stay in the target; 0: all.
        keep_checkpoint_per_n_minutes: one of the conversions made within so many minutes stays; 0: all.
        dry_run: say what would be done; write, remove and wait for nothing.
    """

    settle_seconds: int
    patience_seconds: int
    keep_checkpoint_max: int
    keep_checkpoint_per_n_minutes: int
    dry_run: bool


class DoctorOptions(SourceOptions, total=False):
    """Options of `reshard.doctor`.

    Attributes:
        step: epoch and step, such as `10_5`; empty: the newest that every rank has.
    """

    step: str


class FingerprintOptions(SelectionOptions, DoctorOptions, TrustOptions, ResourceOptions, total=False):
    """Options of `reshard.fingerprint`."""


class DiffOptions(SelectionOptions, ResourceOptions, total=False):
    """Options of `reshard.diff`; those that end in `_a` and `_b` are about one of the two checkpoints.

    Attributes:
        step_a: epoch and step, such as `10_5`; empty: the newest that every rank has.
        step_b: the same for B.
        integrated_save_a: `yes` if every rank holds whole tensors, whatever its strategy cuts.
        integrated_save_b: the same for B.
        trust_strategy_a: keep to A's strategy although contents contradict it, or ranks lack parameters that it gives
            them.
        trust_strategy_b: the same for B.
        preset: compare what A becomes by a model family's preset, such as `qwen3`, or by a document of your own.
        changes: compare what A becomes by a document of changes, after a preset's.
        switch: `NAME=VALUE`, a fact that the preset needs and the checkpoint does not hold.
        training_config: the training's YAML, from which the preset reads such facts.
        allow_model: values of `model_type` in config.json to compare although the preset does not list them.
        ignore_dtype: count values as equal that are so once cast to the narrower dtype.
        decrypt_key_a: key reference: `env:NAME`, `file:PATH` or `block:NAME`.
        decrypt_key_b: the same for B.
        decrypt_mode_a: how the checkpoint is encrypted.
        decrypt_mode_b: the same for B.
        storage_a: credential reference: `env:NAME`, `file:PATH` or `block:NAME`.
        storage_b: the same for B.
    """

    step_a: str
    step_b: str
    integrated_save_a: IntegratedSaveName
    integrated_save_b: IntegratedSaveName
    trust_strategy_a: bool
    trust_strategy_b: bool
    preset: PathOrUrl
    changes: PathOrUrl
    switch: Texts
    training_config: PathOrUrl
    allow_model: Texts
    ignore_dtype: bool
    decrypt_key_a: str
    decrypt_key_b: str
    decrypt_mode_a: EncryptionModeName
    decrypt_mode_b: EncryptionModeName
    storage_a: str
    storage_b: str


class RecoverOptions(DoctorOptions, TrustOptions, total=False):
    """Options of `reshard.recover`.

    Attributes:
        workers: threads; 0: one for each core, more for remote storage.
        check_crc: check the CRC of files that have one.
        allow_missing: shell-style patterns of parameters that need not be there.
        fault_ranks: source ranks whose files are not looked at, such as `3,7`.
    """

    workers: int
    check_crc: bool
    allow_missing: Texts
    fault_ranks: str


class VerifyOptions(TypedDict, total=False):
    """Options of `reshard.verify`.

    Attributes:
        level: `structure`: names, dtypes and shapes. `checksum`: also every byte. `content`: also every value, against
            the source's.
        storage: name of the target's storage options: `env:NAME`, `file:PATH` or `block:NAME`.
        decrypt_key: name of the target's key, if it is encrypted.
        decrypt_mode: how the target is encrypted.
        source_storage: as `storage`, for the source, which the level `content` reads.
        source_decrypt_key: as `decrypt_key`, for the source.
        source_decrypt_mode: as `decrypt_mode`, for the source.
    """

    level: VerifyLevelName
    storage: str
    decrypt_key: str
    decrypt_mode: EncryptionModeName
    source_storage: str
    source_decrypt_key: str
    source_decrypt_mode: EncryptionModeName

"""Keyword arguments of the functions in `reshard`, for editors and type checkers.

Names, defaults and meanings are those of the command line. Requests (see `reshard.ConversionRequest`) check the values.
`python -m docs.write_keywords` writes this module from the fields of requests.
"""

import os
from typing import Literal, TypedDict

from reshard.core.changes.changes import OverflowPolicy, Selection
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.layouts.registry import TargetLayout
from reshard.core.layouts.torch_dist.options import TransformerImpl
from reshard.core.layouts.unified.names import UnifiedNaming
from reshard.core.request.changing import UnmatchedPolicy
from reshard.core.request.target import OutputFormat
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.strategy.integrated_save import IntegratedSave

PathOrUrl = str | os.PathLike[str]
"""A path, or a URL with a protocol that fsspec knows, without a password."""
Texts = list[str] | tuple[str, ...]
"""Several texts; a single one is refused."""
EncryptionModeName = EncryptionMode | Literal["AES-GCM", "AES-CBC", "SM4-CBC"]
IntegratedSaveName = IntegratedSave | Literal["auto", "yes", "no"]
OutputFormatName = OutputFormat | Literal["same", "ckpt", "safetensors"]
OverflowPolicyName = OverflowPolicy | Literal["fail", "allow"]
SelectionName = Selection | Literal["all", "weights-only"]
TargetLayoutName = (
    TargetLayout | Literal["ranks", "unified", "checkpoint2", "torch_dist", "dcp", "megatron", "universal"]
)
TransformerImplName = TransformerImpl | Literal["source", "transformer_engine", "local"]
UnifiedNamingName = UnifiedNaming | Literal["huggingface", "mindspore"]
UnmatchedPolicyName = UnmatchedPolicy | Literal["drop", "fail"]
VerifyLevelName = VerifyLevel | Literal["none", "structure", "checksum", "content"]


class TransformOptions(TypedDict, total=False):
    r"""How parameters are read and changed on their way to the target.

    Attributes:
        source_prefix: One of several runs in the source's folders: CKP or CKP_1, for example.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            shards. no: ranks hold slices, even if these are equal. auto: known shapes decide, else the strategy does;
            if contents look whole and no shape is known, refuse.
        unmatched: Parameters of the source's strategy that the target's lacks (optimizer state, often): drop and report
            them, or fail.
        allow_missing: Patterns (adam_*) of target parameters that the source may lack.
        shared_parameters: If several pipeline stages of the source hold a parameter, such as tied embeddings, with
            different contents: first, take the first stage's; a number, that stage's; fail.
        select: weights-only: without optimizer moments, gradient accumulators, loss scale and other training state.
        include: Patterns (model.layers.*) of source parameters to convert. Empty: all.
        exclude: Patterns of source parameters to leave out.
        rename: OLD=NEW, a parameter's name and its new one; or re:PATTERN=NEW, a regular expression of whole names and
            what they become, with its groups (re:layers\.(\d+)\.(.*)=h.\1.\2). The first match counts.
        cast: PATTERN=DTYPE (*=bfloat16): floating-point parameters that get another dtype, rounded to the nearest. The
            first match counts.
        cast_overflow: If finite values become infinite in the dtype that they are cast to: fail, or allow it and report
            how many do.
        transpose: Patterns of parameters whose axes are reversed. The first match counts.
        changes: A YAML or JSON file that declares all these changes, and splits and joins of fused parameters (qkv,
            gate-up) as well. Options take precedence over it.
        preset: The model's family (qwen3; reshard presets lists them), by which MindFormers' names and layouts become
            Hugging Face's, or the other way round, as the source's names tell; or a document of your own.
        switch: NAME=VALUE, a fact that the preset needs and the checkpoint does not hold.
        training_config: The training's YAML, from which the preset reads such facts.
        config_json: The model's config.json, or its directory, for the numbers that the preset needs. Empty: the one in
            the directory that the target is modelled on, or beside the source.
        allow_model: A model_type of config.json (kimi_k2) to convert although the preset does not list it: the model
            must have the names and layouts of the preset's family.
        append_info: NAME=VALUE (epoch_num=5) for every target file, in place of the source's value of that name. A
            value is true or false, a number, or else text; after text: it is always text (version=text:2.0).
        decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. Empty: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        check_crc: Check the CRC of source files that carry one, before anything is planned or written: reads them whole
            once more. Tensors of DCP are checked as they are converted.
        check_replicas: Compare all replicas of each slice in the source; fail if they differ.
        trust_strategy: Keep to the source's strategy although most sampled contents contradict it, or ranks lack
            parameters that it gives them.
        workers: Threads, for as many ranks at once, or several for one; with Dask, of all its processes together. 0:
            one for each core (with Dask: all that its workers have), and at least 8 if a side is on remote storage,
            where they mostly wait for answers.
        memory_limit: Memory for the buffers of all workers of a process: 2GiB, 512MiB; at least 16MiB.
        bandwidth_limit: What is sent to remote storages, and received from them, by a process in a second: 10M, 512k,
            or 1M:10M for sending and receiving, as rclone's bwlimit. Empty: no limit.
        source_storage: Credential reference for the source, its strategy and the changes: env:NAME, file:PATH or
            block:NAME, whose value is a JSON object of fsspec's storage options. Empty: taken from the environment.
        target_storage: Credential reference for the target and its strategy, in the same forms.
    """

    source_prefix: str
    integrated_save: IntegratedSaveName
    unmatched: UnmatchedPolicyName
    allow_missing: Texts
    shared_parameters: str
    select: SelectionName
    include: Texts
    exclude: Texts
    rename: Texts
    cast: Texts
    cast_overflow: OverflowPolicyName
    transpose: Texts
    changes: PathOrUrl
    preset: PathOrUrl
    switch: Texts
    training_config: PathOrUrl
    config_json: PathOrUrl
    allow_model: Texts
    append_info: Texts
    decrypt_key: str
    decrypt_mode: EncryptionModeName
    check_crc: bool
    check_replicas: bool
    trust_strategy: bool
    workers: int
    memory_limit: str
    bandwidth_limit: str
    source_storage: str
    target_storage: str


class StepOptions(TypedDict, total=False):
    """Which files of the source are read.

    Attributes:
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; of a Checkpoint 2.0, the
            iteration: 40. Empty: the newest that every rank has, or the iteration that the tracker names.
        root: Where the model's tensors are in PyTorch's files that hold more: the keys that lead to their dict, joined
            by dots, such as state_dict or model.module. Empty: at the top.
        recover: If source files are missing, truncated, fail their CRC or are named as faulty, read their slices from
            other ranks that hold the same, and report it.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.
    """

    step: str
    root: str
    recover: bool
    fault_ranks: str


class WriteOptions(TypedDict, total=False):
    """How the target's files are written.

    Attributes:
        layout: ranks: a file for each target rank. unified: whole tensors, each in one of a few .safetensors files with
            an index, as Hugging Face's loaders want them. checkpoint2: MindFormers' Checkpoint 2.0,
            TARGET/iteration_00000040 with metadata, and a tracker that names it; or TARGET itself, if that is its name.
            torch_dist: Megatron-Core's distributed checkpoint (--ckpt-format torch_dist), which any number of its ranks
            can load: TARGET/iter_0000040 with .distcp files, common.pt and metadata, or TARGET/release, and a tracker.
            dcp: PyTorch's Distributed Checkpoint, .distcp files and .metadata, which any number of processes can load.
            megatron: Megatron-Core's files of ranks (--ckpt-format torch), which MindSpeed loads as well:
            TARGET/iter_0000040/mp_rank_00/model_optim_rng.pt or TARGET/release/…, and a tracker that names it.
            universal: DeepSpeed's universal checkpoint, TARGET/global_step40_universal with a file for each tensor,
            which trainings of any world size and ZeRO stage load, and latest_universal that names it.
        attention_heads: Number of attention heads, if neither shapes nor the source's own arguments tell it (megatron
            and torch_dist layouts only).
        tensor_parallel: Size of tensor parallelism (megatron layout only).
        pipeline_parallel: Number of pipeline stages (megatron layout only).
        virtual_pipeline: Chunks of layers of each pipeline stage, as of Megatron's
            --num-virtual-stages-per-pipeline-rank (megatron layout only).
        expert_parallel: Size of expert parallelism (megatron layout only).
        expert_tensor_parallel: Size of tensor parallelism of experts (megatron layout only). 0: that of all else.
        pipeline_first_layers: Layers of the first pipeline stage, if others have more or fewer (megatron layout only).
        pipeline_last_layers: Layers of the last pipeline stage, if others have more or fewer (megatron layout only).
        pad_vocab_to: Rows of embedding and output layer, which the last one fills up (megatron layout only). Megatron
            wants a multiple of --make-vocab-size-divisible-by and the size of tensor parallelism. 0: as many as there
            are.
        shards: Number of files to divide the rows of every tensor among, as FSDP does (dcp without a target strategy,
            and torch_dist only). 0: 8.
        transformer_impl: Megatron's --transformer-impl of the training that loads the target: layers with experts have
            their norms under other names (torch_dist layout only). source: as the source's own arguments say, else
            transformer_engine.
        common: KEY=VALUE (loss_scale=65536, epoch_num=null) for common.json, in place of the source's value
            (checkpoint2 layout only).
        like: Hugging Face directory to model the target on (unified layout only). Its config.json, with the dtype that
            is written, and its tokenizer are copied; names, shapes and dtypes must match its weights, if it has any.
            Empty: the one that the source brings beside its files, if it brings one.
        max_shard_size: Maximum shard size (unified layout only): 5GB, 512MiB. A larger tensor gets a file of its own.
        unified_naming: File names (unified layout only). huggingface: model-00001-of-00003.safetensors and
            model.safetensors.index.json. mindspore: part0.safetensors and param_name_map.json.
        format: Kind of the target's files; same: the source's.
        prefix: Target files are rank_{r}/{prefix}{r}.{format}.
        write_crc: Give the target's files a CRC, which MindSpore checks with crc_check. For .safetensors files the
            source is read twice.
        encrypt_key: Encrypt the target's files and their records with the key of this reference: env:NAME, file:PATH or
            block:NAME. The key is the UTF-8 bytes of the value, unless that begins with hex: or base64:. Empty: the
            target is not encrypted.
        encrypt_mode: How the target is encrypted.
        remove_redundancy: Keep a slice that several target ranks share on some of them only; MindSpore loads such a
            checkpoint with remove_redundancy=True.
        replicas: Copies of each slice to keep when redundancy is removed.
        verify: structure: names, dtypes and shapes. checksum: also every byte, read back from the target. content: also
            every value of every copy, against the source's. none: no check.
    """

    layout: TargetLayoutName
    attention_heads: int
    tensor_parallel: int
    pipeline_parallel: int
    virtual_pipeline: int
    expert_parallel: int
    expert_tensor_parallel: int
    pipeline_first_layers: int
    pipeline_last_layers: int
    pad_vocab_to: int
    shards: int
    transformer_impl: TransformerImplName
    common: Texts
    like: PathOrUrl
    max_shard_size: str
    unified_naming: UnifiedNamingName
    format: OutputFormatName
    prefix: str
    write_crc: bool
    encrypt_key: str
    encrypt_mode: EncryptionModeName
    remove_redundancy: bool
    replicas: int
    verify: VerifyLevelName


class LoadOptions(TransformOptions, StepOptions, total=False):
    """Options of `reshard.load_rank` and `reshard.plan_load`."""


class ConvertOptions(TransformOptions, StepOptions, WriteOptions, total=False):
    """Options of `reshard.convert` and `reshard.plan`.

    Attributes:
        ranks: Convert only these target ranks (0-3,7), or files of a unified target, counted from 0; other machines
            convert the rest. Empty: all.
        iteration: Number of the iteration to write (checkpoint2, megatron, torch_dist and universal layouts only).
            Empty: the source's, or the one in TARGET's name; else Megatron's release, or 0.
        optimizer_step: How many steps the optimizer has made whose moments are converted (universal layout only): those
            of the training, without skipped ones. 0: as the source says.
        overwrite: Replace the checkpoint at the target; it stays until the new one is complete.
    """

    ranks: str
    iteration: str
    optimizer_step: int
    overwrite: bool


class LatestOptions(TransformOptions, WriteOptions, total=False):
    """Options of `reshard.convert_latest`.

    Attributes:
        dry_run: Report what would be done; write, remove and wait for nothing.
        settle_seconds: Seconds without a change to any of its files after which a step is complete.
        patience_seconds: An incomplete newer step is awaited while it keeps changing; seconds without a change after
            which it is skipped.
        keep_checkpoint_max: How many conversions of this source to keep in the target, the newest; older ones are
            removed even while somebody reads them. 0: all.
        keep_checkpoint_per_n_minutes: Of conversions that were made within so many minutes keep one, and always the
            newest. Counts only if 'keep at most' is 0. 0: keep all.
    """

    dry_run: bool
    settle_seconds: int
    patience_seconds: int
    keep_checkpoint_max: int
    keep_checkpoint_per_n_minutes: int


class DoctorOptions(TypedDict, total=False):
    """Options of `reshard.doctor`.

    Attributes:
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; of a Checkpoint 2.0, the
            iteration: 40. Empty: the newest that every rank has, or the iteration that the tracker names.
        source_prefix: One of several runs in the source's folders: CKP or CKP_1, for example.
        root: Where the model's tensors are in PyTorch's files that hold more: the keys that lead to their dict, joined
            by dots, such as state_dict or model.module. Empty: at the top.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            shards. no: ranks hold slices, even if these are equal. auto: known shapes decide, else the strategy does;
            if contents look whole and no shape is known, refuse.
        decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. Empty: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        source_storage: Credential reference for the source, its strategy and the changes: env:NAME, file:PATH or
            block:NAME, whose value is a JSON object of fsspec's storage options. Empty: taken from the environment.
    """

    step: str
    source_prefix: str
    root: str
    integrated_save: IntegratedSaveName
    decrypt_key: str
    decrypt_mode: EncryptionModeName
    source_storage: str


class FingerprintOptions(DoctorOptions, total=False):
    """Options of `reshard.fingerprint`.

    Attributes:
        select: weights-only: without optimizer moments, gradient accumulators, loss scale and other training state.
        include: Patterns (model.layers.*) of source parameters to convert. Empty: all.
        exclude: Patterns of source parameters to leave out.
        trust_strategy: Keep to the source's strategy although most sampled contents contradict it, or ranks lack
            parameters that it gives them.
        workers: Threads, for as many ranks at once, or several for one; with Dask, of all its processes together. 0:
            one for each core (with Dask: all that its workers have), and at least 8 if a side is on remote storage,
            where they mostly wait for answers.
        memory_limit: Memory for the buffers of all workers of a process: 2GiB, 512MiB; at least 16MiB.
        bandwidth_limit: What is sent to remote storages, and received from them, by a process in a second: 10M, 512k,
            or 1M:10M for sending and receiving, as rclone's bwlimit. Empty: no limit.
    """

    select: SelectionName
    include: Texts
    exclude: Texts
    trust_strategy: bool
    workers: int
    memory_limit: str
    bandwidth_limit: str


class RecoverOptions(DoctorOptions, total=False):
    """Options of `reshard.recover`.

    Attributes:
        allow_missing: Patterns (adam_*) of target parameters that the source may lack.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.
        check_crc: Check the CRC of source files that carry one, before anything is planned or written: reads them whole
            once more. Tensors of DCP are checked as they are converted.
        trust_strategy: Keep to the source's strategy although most sampled contents contradict it, or ranks lack
            parameters that it gives them.
        workers: Threads, for as many ranks at once, or several for one; with Dask, of all its processes together. 0:
            one for each core (with Dask: all that its workers have), and at least 8 if a side is on remote storage,
            where they mostly wait for answers.
    """

    allow_missing: Texts
    fault_ranks: str
    check_crc: bool
    trust_strategy: bool
    workers: int


class DiffOptions(TypedDict, total=False):
    """Options of `reshard.diff`; those that end in `_a` and `_b` are about one of the two checkpoints.

    Attributes:
        step_a: Epoch and step, as in its file names: 10_5. Empty: the newest that every rank has.
        step_b: Epoch and step of B.
        root_a: Where the tensors are in PyTorch's files that hold more: the keys that lead to their dict, joined by
            dots, such as state_dict. Empty: at the top.
        root_b: The same in the files of B.
        integrated_save_a: yes: every rank of A holds whole tensors (integrated_save), whatever its strategy shards. no:
            ranks hold slices, even if these are equal. auto: known shapes decide, else the strategy does; if contents
            look whole and no shape is known, refuse.
        integrated_save_b: The same for the ranks of B.
        trust_strategy_a: Keep to A's strategy although contents contradict it, or ranks lack parameters that it gives
            them.
        trust_strategy_b: The same for B.
        select: weights-only: do not compare optimizer moments, gradient accumulators, loss scale and other training
            state.
        include: Patterns (model.layers.*) of parameters to compare, by the names of A or of B. Empty: all.
        exclude: Patterns of parameters to ignore, by the names of A or of B.
        preset: Compare what A becomes by this model family's preset (qwen3; reshard presets lists them): B may be its
            export to Hugging Face's names, or what it was made from.
        changes: Compare what A becomes by this document of declared changes, after a preset's if there is one: B may be
            what was converted with it. Its selection holds for A.
        switch: NAME=VALUE, a fact that the preset needs and the checkpoint does not hold.
        training_config: The training's YAML, from which the preset reads such facts.
        config_json: The model's config.json, or its directory, for the numbers that the preset needs. Empty: the one
            beside A or B.
        allow_model: A model_type of config.json (kimi_k2) to convert although the preset does not list it: the model
            must have the names and layouts of the preset's family.
        ignore_dtype: Compare floating-point parameters of different dtypes after casting the wider dtype to the other.
        decrypt_key_a: Key reference for an encrypted checkpoint: env:NAME, file:PATH or block:NAME. The key is the
            UTF-8 bytes of the value, unless that begins with hex: or base64:. Empty: it is not encrypted.
        decrypt_mode_a: How A is encrypted, if it is.
        decrypt_key_b: Key reference for an encrypted checkpoint: env:NAME, file:PATH or block:NAME. The key is the
            UTF-8 bytes of the value, unless that begins with hex: or base64:. Empty: it is not encrypted.
        decrypt_mode_b: How B is encrypted, if it is.
        storage_a: Credential reference: env:NAME, file:PATH or block:NAME, whose value is a JSON object of fsspec's
            storage options. Empty: taken from the environment.
        storage_b: Credential reference: env:NAME, file:PATH or block:NAME, whose value is a JSON object of fsspec's
            storage options. Empty: taken from the environment.
        workers: Threads. 0: one for each core.
        memory_limit: Memory for the buffers of all workers: 2GiB, 512MiB. Less memory, fewer workers at once.
        bandwidth_limit: What is received from remote storages in a second: 10M, as rclone's bwlimit.
    """

    step_a: str
    step_b: str
    root_a: str
    root_b: str
    integrated_save_a: IntegratedSaveName
    integrated_save_b: IntegratedSaveName
    trust_strategy_a: bool
    trust_strategy_b: bool
    select: SelectionName
    include: Texts
    exclude: Texts
    preset: PathOrUrl
    changes: PathOrUrl
    switch: Texts
    training_config: PathOrUrl
    config_json: PathOrUrl
    allow_model: Texts
    ignore_dtype: bool
    decrypt_key_a: str
    decrypt_mode_a: EncryptionModeName
    decrypt_key_b: str
    decrypt_mode_b: EncryptionModeName
    storage_a: str
    storage_b: str
    workers: int
    memory_limit: str
    bandwidth_limit: str


class VerifyOptions(TypedDict, total=False):
    """Options of `reshard.verify`.

    Attributes:
        level: structure: files, names, dtypes and shapes. checksum: also every byte, against digests taken while
            writing, and the CRC of files that have one. content: also every value against the source, which has to be
            where it was.
        decrypt_key: Key reference for an encrypted checkpoint: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. Empty: it is not encrypted.
        decrypt_mode: How an encrypted checkpoint is encrypted.
        storage: Credential reference: env:NAME, file:PATH or block:NAME, whose value is a JSON object of fsspec's
            storage options. Empty: taken from the environment.
        source_storage: Credential reference for the source, which the level content reads, in the same forms.
        source_decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the
            UTF-8 bytes of the value, unless that begins with hex: or base64:. Empty: the source is not encrypted.
        source_decrypt_mode: How an encrypted source is encrypted.
        bandwidth_limit: What is received from remote storages in a second: 10M, as rclone's bwlimit.
    """

    level: VerifyLevelName
    decrypt_key: str
    decrypt_mode: EncryptionModeName
    storage: str
    source_storage: str
    source_decrypt_key: str
    source_decrypt_mode: EncryptionModeName
    bandwidth_limit: str

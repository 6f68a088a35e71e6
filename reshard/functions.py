"""Functions of `reshard` with all of their options, for editors, type checkers and `help`.

Each hands its arguments on to the function of its name in `reshard.calls`. `python -m docs.write_keywords` writes this
module from there and from the fields of requests.
"""

import threading
from collections.abc import Collection, Iterator, Sequence

from reshard import calls
from reshard.arguments import checked
from reshard.core.conversion.latest import LatestReport
from reshard.core.conversion.load import LoadPlan
from reshard.core.conversion.opened import Checkpoint
from reshard.core.conversion.report import ConversionReport, PlanSummary
from reshard.core.files.numpy_values import Value
from reshard.core.source.diagnosis_report import Diagnosis
from reshard.core.source.recovery import RecoveryReport
from reshard.core.verification.comparison_report import ComparisonReport
from reshard.core.verification.fingerprint_file import ModelFingerprint
from reshard.core.verification.report import VerificationReport
from reshard.core.verification.scan_report import ScanReport
from reshard.options import (
    EncryptionModeName,
    IntegratedSaveName,
    Number,
    OutputFormatName,
    OverflowPolicyName,
    PathOrUrl,
    Ranks,
    Rules,
    SelectionName,
    Settings,
    Size,
    TargetLayoutName,
    Texts,
    TransformerImplName,
    UnifiedNamingName,
    UnmatchedPolicyName,
    VerifyLevelName,
)
from reshard.progress_bars import Listener


@checked
def convert(
    source: PathOrUrl,
    target: PathOrUrl,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    auto_strategy: bool = True,
    step: Number | None = None,
    source_prefix: str | None = None,
    root: str | None = None,
    ranks: Ranks | None = None,
    integrated_save: IntegratedSaveName | bool = "auto",
    unmatched: UnmatchedPolicyName = "drop",
    allow_missing: Texts = (),
    shared_parameters: Number = "first",
    select: SelectionName = "all",
    include: Texts = (),
    exclude: Texts = (),
    rename: Rules = (),
    cast: Rules = (),
    cast_overflow: OverflowPolicyName = "fail",
    transpose: Texts = (),
    changes: PathOrUrl | None = None,
    preset: PathOrUrl | None = None,
    switch: Settings = (),
    training_config: PathOrUrl | None = None,
    config_json: PathOrUrl | None = None,
    allow_model: Texts = (),
    layout: TargetLayoutName = "ranks",
    iteration: Number | None = None,
    optimizer_step: int = 0,
    attention_heads: int = 0,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    virtual_pipeline: int = 1,
    expert_parallel: int = 1,
    expert_tensor_parallel: int = 0,
    pipeline_first_layers: int = 0,
    pipeline_last_layers: int = 0,
    pad_vocab_to: int = 0,
    shards: int = 0,
    transformer_impl: TransformerImplName = "source",
    common: Settings = (),
    like: PathOrUrl | None = None,
    max_shard_size: Size = "5GB",
    unified_naming: UnifiedNamingName = "huggingface",
    format: OutputFormatName = "same",
    prefix: str = "checkpoint_",
    append_info: Settings = (),
    write_crc: bool = False,
    encrypt_key: str | None = None,
    encrypt_mode: EncryptionModeName = "AES-GCM",
    remove_redundancy: bool = False,
    replicas: int = 1,
    decrypt_key: str | None = None,
    decrypt_mode: EncryptionModeName = "AES-GCM",
    recover: bool = False,
    fault_ranks: Ranks | None = None,
    verify: VerifyLevelName = "checksum",
    check_crc: bool = True,
    check_replicas: bool = False,
    trust_strategy: bool = False,
    overwrite: bool = False,
    workers: int = 0,
    memory_limit: Size = "2GiB",
    bandwidth_limit: str | None = None,
    source_storage: str | None = None,
    target_storage: str | None = None,
) -> ConversionReport:
    r"""Convert a checkpoint to another sharding strategy; resume what an interrupted run of the same options began.

    Args:
        source: the checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        target: the directory to make; it appears when all of it is written and checked.
        source_strategy: a strategy file, or a directory of the ranks' strategy files; None: what reshard recorded, or
            one rank with whole tensors.
        target_strategy: the same for the target; None: one rank with whole tensors.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set; the same call resumes.
        auto_strategy: Without a named strategy, use the one beside a source of several ranks (../strategy, for example)
            if it is the only one there, older than the checkpoint, and 'reshard doctor' finds it consistent.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; of a Checkpoint 2.0, the
            iteration: 40. None: the newest that every rank has, or the iteration that the tracker names.
        source_prefix: One of several runs in the source's folders: CKP or CKP_1, for example.
        root: Where the model's tensors are in PyTorch's files that hold more: the keys that lead to their dict, joined
            by dots, such as state_dict or model.module. None: at the top.
        ranks: Convert only these target ranks (0-3,7), or files of a unified target, counted from 0; other machines
            convert the rest. None: all.
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
        config_json: The model's config.json, or its directory, for the numbers that the preset needs. None: the one in
            the directory that the target is modelled on, or beside the source.
        allow_model: A model_type of config.json (kimi_k2) to convert although the preset does not list it: the model
            must have the names and layouts of the preset's family.
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
        iteration: Number of the iteration to write (checkpoint2, megatron, torch_dist and universal layouts only).
            None: the source's, or the one in TARGET's name; else Megatron's release, or 0.
        optimizer_step: How many steps the optimizer has made whose moments are converted (universal layout only): those
            of the training, without skipped ones. 0: as the source says.
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
            None: the one that the source brings beside its files, if it brings one.
        max_shard_size: Maximum shard size (unified layout only): 5GB, 512MiB. A larger tensor gets a file of its own.
        unified_naming: File names (unified layout only). huggingface: model-00001-of-00003.safetensors and
            model.safetensors.index.json. mindspore: part0.safetensors and param_name_map.json.
        format: Kind of the target's files; same: the source's.
        prefix: Target files are rank_{r}/{prefix}{r}.{format}.
        append_info: NAME=VALUE (epoch_num=5) for every target file, in place of the source's value of that name. A
            value is true or false, a number, or else text; after text: it is always text (version=text:2.0).
        write_crc: Give the target's files a CRC, which MindSpore checks with crc_check. For .safetensors files the
            source is read twice.
        encrypt_key: Encrypt the target's files and their records with the key of this reference: env:NAME, file:PATH or
            block:NAME. The key is the UTF-8 bytes of the value, unless that begins with hex: or base64:. None: the
            target is not encrypted.
        encrypt_mode: How the target is encrypted.
        remove_redundancy: Keep a slice that several target ranks share on some of them only; MindSpore loads such a
            checkpoint with remove_redundancy=True.
        replicas: Copies of each slice to keep when redundancy is removed.
        decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        recover: If source files are missing, truncated, fail their CRC or are named as faulty, read their slices from
            other ranks that hold the same, and report it.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.
        verify: structure: names, dtypes and shapes. checksum: also every byte, read back from the target. content: also
            every value of every copy, against the source's. none: no check.
        check_crc: Check the CRC of source files that carry one, before anything is planned or written: reads them whole
            once more. Tensors of DCP are checked as they are converted.
        check_replicas: Compare all replicas of each slice in the source; fail if they differ.
        trust_strategy: Keep to the source's strategy although most sampled contents contradict it, or ranks lack
            parameters that it gives them.
        overwrite: Replace the checkpoint at the target; it stays until the new one is complete.
        workers: Threads, for as many ranks at once, or several for one; with Dask, of all its processes together. 0:
            one for each core (with Dask: all that its workers have), and at least 8 if a side is on remote storage,
            where they mostly wait for answers.
        memory_limit: Memory for the buffers of all workers of a process: 2GiB, 512MiB; at least 16MiB.
        bandwidth_limit: What is sent to remote storages, and received from them, by a process in a second: 10M, 512k,
            or 1M:10M for sending and receiving, as rclone's bwlimit. None: no limit.
        source_storage: Credential reference for the source, its strategy and the changes: env:NAME, file:PATH or
            block:NAME, whose value is a JSON object of fsspec's storage options. None: taken from the environment.
        target_storage: Credential reference for the target and its strategy, in the same forms.

    Raises:
        InputError: options, or the files they name, are wrong.
        VerificationError: a written file differs from what was to be written.
        ConversionError: it failed at run time: a storage after retries, a full disk, no memory.
    """
    return calls.convert(**locals())


@checked
def convert_latest(
    source: PathOrUrl,
    target: PathOrUrl,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    auto_strategy: bool = True,
    source_prefix: str | None = None,
    integrated_save: IntegratedSaveName | bool = "auto",
    unmatched: UnmatchedPolicyName = "drop",
    allow_missing: Texts = (),
    shared_parameters: Number = "first",
    select: SelectionName = "all",
    include: Texts = (),
    exclude: Texts = (),
    rename: Rules = (),
    cast: Rules = (),
    cast_overflow: OverflowPolicyName = "fail",
    transpose: Texts = (),
    changes: PathOrUrl | None = None,
    preset: PathOrUrl | None = None,
    switch: Settings = (),
    training_config: PathOrUrl | None = None,
    config_json: PathOrUrl | None = None,
    allow_model: Texts = (),
    layout: TargetLayoutName = "ranks",
    attention_heads: int = 0,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    virtual_pipeline: int = 1,
    expert_parallel: int = 1,
    expert_tensor_parallel: int = 0,
    pipeline_first_layers: int = 0,
    pipeline_last_layers: int = 0,
    pad_vocab_to: int = 0,
    shards: int = 0,
    transformer_impl: TransformerImplName = "source",
    common: Settings = (),
    like: PathOrUrl | None = None,
    max_shard_size: Size = "5GB",
    unified_naming: UnifiedNamingName = "huggingface",
    format: OutputFormatName = "same",
    prefix: str = "checkpoint_",
    append_info: Settings = (),
    write_crc: bool = False,
    encrypt_key: str | None = None,
    encrypt_mode: EncryptionModeName = "AES-GCM",
    remove_redundancy: bool = False,
    replicas: int = 1,
    decrypt_key: str | None = None,
    decrypt_mode: EncryptionModeName = "AES-GCM",
    verify: VerifyLevelName = "checksum",
    check_crc: bool = True,
    check_replicas: bool = False,
    trust_strategy: bool = False,
    dry_run: bool = False,
    settle_seconds: int = 60,
    patience_seconds: int = 600,
    keep_checkpoint_max: int = 0,
    keep_checkpoint_per_n_minutes: int = 0,
    workers: int = 0,
    memory_limit: Size = "2GiB",
    bandwidth_limit: str | None = None,
    source_storage: str | None = None,
    target_storage: str | None = None,
) -> LatestReport:
    r"""Convert the newest step that training has saved completely to `TARGET/{step}`, unless that is done already.

    Args:
        source: where training saves: a directory, or a pattern with `{rank}`.
        target: the directory of all conversions.
        source_strategy: a strategy file, or a directory of the ranks' strategy files; None: what reshard recorded, or
            one rank with whole tensors.
        target_strategy: the same for the target; None: one rank with whole tensors.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set; the same call resumes.
        auto_strategy: Without a named strategy, use the one beside a source of several ranks (../strategy, for example)
            if it is the only one there, older than the checkpoint, and 'reshard doctor' finds it consistent.
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
        config_json: The model's config.json, or its directory, for the numbers that the preset needs. None: the one in
            the directory that the target is modelled on, or beside the source.
        allow_model: A model_type of config.json (kimi_k2) to convert although the preset does not list it: the model
            must have the names and layouts of the preset's family.
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
            None: the one that the source brings beside its files, if it brings one.
        max_shard_size: Maximum shard size (unified layout only): 5GB, 512MiB. A larger tensor gets a file of its own.
        unified_naming: File names (unified layout only). huggingface: model-00001-of-00003.safetensors and
            model.safetensors.index.json. mindspore: part0.safetensors and param_name_map.json.
        format: Kind of the target's files; same: the source's.
        prefix: Target files are rank_{r}/{prefix}{r}.{format}.
        append_info: NAME=VALUE (epoch_num=5) for every target file, in place of the source's value of that name. A
            value is true or false, a number, or else text; after text: it is always text (version=text:2.0).
        write_crc: Give the target's files a CRC, which MindSpore checks with crc_check. For .safetensors files the
            source is read twice.
        encrypt_key: Encrypt the target's files and their records with the key of this reference: env:NAME, file:PATH or
            block:NAME. The key is the UTF-8 bytes of the value, unless that begins with hex: or base64:. None: the
            target is not encrypted.
        encrypt_mode: How the target is encrypted.
        remove_redundancy: Keep a slice that several target ranks share on some of them only; MindSpore loads such a
            checkpoint with remove_redundancy=True.
        replicas: Copies of each slice to keep when redundancy is removed.
        decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        verify: structure: names, dtypes and shapes. checksum: also every byte, read back from the target. content: also
            every value of every copy, against the source's. none: no check.
        check_crc: Check the CRC of source files that carry one, before anything is planned or written: reads them whole
            once more. Tensors of DCP are checked as they are converted.
        check_replicas: Compare all replicas of each slice in the source; fail if they differ.
        trust_strategy: Keep to the source's strategy although most sampled contents contradict it, or ranks lack
            parameters that it gives them.
        dry_run: Report what would be done; write, remove and wait for nothing.
        settle_seconds: Seconds without a change to any of its files after which a step is complete.
        patience_seconds: An incomplete newer step is awaited while it keeps changing; seconds without a change after
            which it is skipped.
        keep_checkpoint_max: How many conversions of this source to keep in the target, the newest; older ones are
            removed even while somebody reads them. 0: all.
        keep_checkpoint_per_n_minutes: Of conversions that were made within so many minutes keep one, and always the
            newest. Counts only if 'keep at most' is 0. 0: keep all.
        workers: Threads, for as many ranks at once, or several for one; with Dask, of all its processes together. 0:
            one for each core (with Dask: all that its workers have), and at least 8 if a side is on remote storage,
            where they mostly wait for answers.
        memory_limit: Memory for the buffers of all workers of a process: 2GiB, 512MiB; at least 16MiB.
        bandwidth_limit: What is sent to remote storages, and received from them, by a process in a second: 10M, 512k,
            or 1M:10M for sending and receiving, as rclone's bwlimit. None: no limit.
        source_storage: Credential reference for the source, its strategy and the changes: env:NAME, file:PATH or
            block:NAME, whose value is a JSON object of fsspec's storage options. None: taken from the environment.
        target_storage: Credential reference for the target and its strategy, in the same forms.

    Raises:
        InputError: options, or the files they name, are wrong.
        VerificationError: a written file differs from what was to be written.
        ConversionError: it failed at run time.
    """
    return calls.convert_latest(**locals())


@checked
def plan(
    source: PathOrUrl,
    target: PathOrUrl | None = None,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    auto_strategy: bool = True,
    step: Number | None = None,
    source_prefix: str | None = None,
    root: str | None = None,
    ranks: Ranks | None = None,
    integrated_save: IntegratedSaveName | bool = "auto",
    unmatched: UnmatchedPolicyName = "drop",
    allow_missing: Texts = (),
    shared_parameters: Number = "first",
    select: SelectionName = "all",
    include: Texts = (),
    exclude: Texts = (),
    rename: Rules = (),
    cast: Rules = (),
    cast_overflow: OverflowPolicyName = "fail",
    transpose: Texts = (),
    changes: PathOrUrl | None = None,
    preset: PathOrUrl | None = None,
    switch: Settings = (),
    training_config: PathOrUrl | None = None,
    config_json: PathOrUrl | None = None,
    allow_model: Texts = (),
    layout: TargetLayoutName = "ranks",
    iteration: Number | None = None,
    optimizer_step: int = 0,
    attention_heads: int = 0,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    virtual_pipeline: int = 1,
    expert_parallel: int = 1,
    expert_tensor_parallel: int = 0,
    pipeline_first_layers: int = 0,
    pipeline_last_layers: int = 0,
    pad_vocab_to: int = 0,
    shards: int = 0,
    transformer_impl: TransformerImplName = "source",
    common: Settings = (),
    like: PathOrUrl | None = None,
    max_shard_size: Size = "5GB",
    unified_naming: UnifiedNamingName = "huggingface",
    format: OutputFormatName = "same",
    prefix: str = "checkpoint_",
    append_info: Settings = (),
    write_crc: bool = False,
    encrypt_key: str | None = None,
    encrypt_mode: EncryptionModeName = "AES-GCM",
    remove_redundancy: bool = False,
    replicas: int = 1,
    decrypt_key: str | None = None,
    decrypt_mode: EncryptionModeName = "AES-GCM",
    recover: bool = False,
    fault_ranks: Ranks | None = None,
    verify: VerifyLevelName = "checksum",
    check_crc: bool = True,
    check_replicas: bool = False,
    trust_strategy: bool = False,
    overwrite: bool = False,
    workers: int = 0,
    memory_limit: Size = "2GiB",
    bandwidth_limit: str | None = None,
    source_storage: str | None = None,
    target_storage: str | None = None,
) -> PlanSummary:
    r"""Return what `convert` would read and write, rank by rank, in bytes; nothing is written.

    Args:
        source: the checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        target: the directory that `convert` would make; None: anywhere.
        source_strategy: a strategy file, or a directory of the ranks' strategy files; None: what reshard recorded, or
            one rank with whole tensors.
        target_strategy: the same for the target; None: one rank with whole tensors.
        auto_strategy: Without a named strategy, use the one beside a source of several ranks (../strategy, for example)
            if it is the only one there, older than the checkpoint, and 'reshard doctor' finds it consistent.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; of a Checkpoint 2.0, the
            iteration: 40. None: the newest that every rank has, or the iteration that the tracker names.
        source_prefix: One of several runs in the source's folders: CKP or CKP_1, for example.
        root: Where the model's tensors are in PyTorch's files that hold more: the keys that lead to their dict, joined
            by dots, such as state_dict or model.module. None: at the top.
        ranks: Convert only these target ranks (0-3,7), or files of a unified target, counted from 0; other machines
            convert the rest. None: all.
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
        config_json: The model's config.json, or its directory, for the numbers that the preset needs. None: the one in
            the directory that the target is modelled on, or beside the source.
        allow_model: A model_type of config.json (kimi_k2) to convert although the preset does not list it: the model
            must have the names and layouts of the preset's family.
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
        iteration: Number of the iteration to write (checkpoint2, megatron, torch_dist and universal layouts only).
            None: the source's, or the one in TARGET's name; else Megatron's release, or 0.
        optimizer_step: How many steps the optimizer has made whose moments are converted (universal layout only): those
            of the training, without skipped ones. 0: as the source says.
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
            None: the one that the source brings beside its files, if it brings one.
        max_shard_size: Maximum shard size (unified layout only): 5GB, 512MiB. A larger tensor gets a file of its own.
        unified_naming: File names (unified layout only). huggingface: model-00001-of-00003.safetensors and
            model.safetensors.index.json. mindspore: part0.safetensors and param_name_map.json.
        format: Kind of the target's files; same: the source's.
        prefix: Target files are rank_{r}/{prefix}{r}.{format}.
        append_info: NAME=VALUE (epoch_num=5) for every target file, in place of the source's value of that name. A
            value is true or false, a number, or else text; after text: it is always text (version=text:2.0).
        write_crc: Give the target's files a CRC, which MindSpore checks with crc_check. For .safetensors files the
            source is read twice.
        encrypt_key: Encrypt the target's files and their records with the key of this reference: env:NAME, file:PATH or
            block:NAME. The key is the UTF-8 bytes of the value, unless that begins with hex: or base64:. None: the
            target is not encrypted.
        encrypt_mode: How the target is encrypted.
        remove_redundancy: Keep a slice that several target ranks share on some of them only; MindSpore loads such a
            checkpoint with remove_redundancy=True.
        replicas: Copies of each slice to keep when redundancy is removed.
        decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        recover: If source files are missing, truncated, fail their CRC or are named as faulty, read their slices from
            other ranks that hold the same, and report it.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.
        verify: structure: names, dtypes and shapes. checksum: also every byte, read back from the target. content: also
            every value of every copy, against the source's. none: no check.
        check_crc: Check the CRC of source files that carry one, before anything is planned or written: reads them whole
            once more. Tensors of DCP are checked as they are converted.
        check_replicas: Compare all replicas of each slice in the source; fail if they differ.
        trust_strategy: Keep to the source's strategy although most sampled contents contradict it, or ranks lack
            parameters that it gives them.
        overwrite: Replace the checkpoint at the target; it stays until the new one is complete.
        workers: Threads, for as many ranks at once, or several for one; with Dask, of all its processes together. 0:
            one for each core (with Dask: all that its workers have), and at least 8 if a side is on remote storage,
            where they mostly wait for answers.
        memory_limit: Memory for the buffers of all workers of a process: 2GiB, 512MiB; at least 16MiB.
        bandwidth_limit: What is sent to remote storages, and received from them, by a process in a second: 10M, 512k,
            or 1M:10M for sending and receiving, as rclone's bwlimit. None: no limit.
        source_storage: Credential reference for the source, its strategy and the changes: env:NAME, file:PATH or
            block:NAME, whose value is a JSON object of fsspec's storage options. None: taken from the environment.
        target_storage: Credential reference for the target and its strategy, in the same forms.

    Raises:
        InputError: options, or the files they name, are wrong.
        StorageError: a storage failed after retries.
    """
    return calls.plan(**locals())


@checked
def load_rank(
    source: PathOrUrl,
    rank: int = 0,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    names: Collection[str] | None = None,
    auto_strategy: bool = True,
    step: Number | None = None,
    source_prefix: str | None = None,
    root: str | None = None,
    integrated_save: IntegratedSaveName | bool = "auto",
    unmatched: UnmatchedPolicyName = "drop",
    allow_missing: Texts = (),
    shared_parameters: Number = "first",
    select: SelectionName = "all",
    include: Texts = (),
    exclude: Texts = (),
    rename: Rules = (),
    cast: Rules = (),
    cast_overflow: OverflowPolicyName = "fail",
    transpose: Texts = (),
    changes: PathOrUrl | None = None,
    preset: PathOrUrl | None = None,
    switch: Settings = (),
    training_config: PathOrUrl | None = None,
    config_json: PathOrUrl | None = None,
    allow_model: Texts = (),
    append_info: Settings = (),
    decrypt_key: str | None = None,
    decrypt_mode: EncryptionModeName = "AES-GCM",
    recover: bool = False,
    fault_ranks: Ranks | None = None,
    check_crc: bool = True,
    check_replicas: bool = False,
    trust_strategy: bool = False,
    workers: int = 0,
    memory_limit: Size = "2GiB",
    bandwidth_limit: str | None = None,
    source_storage: str | None = None,
    target_storage: str | None = None,
) -> Iterator[tuple[str, Value]]:
    r"""Yield the name and the array of each parameter of one target rank, straight from the source; nothing is written.

    Args:
        source: the checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        rank: which of the target's ranks.
        source_strategy: a strategy file, or a directory of the ranks' strategy files; None: what reshard recorded, or
            one rank with whole tensors.
        target_strategy: how the parameters are to be sharded, in the same forms; None: one rank with whole tensors.
        names: names in the target of the parameters to load; None: all.
        auto_strategy: Without a named strategy, use the one beside a source of several ranks (../strategy, for example)
            if it is the only one there, older than the checkpoint, and 'reshard doctor' finds it consistent.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; of a Checkpoint 2.0, the
            iteration: 40. None: the newest that every rank has, or the iteration that the tracker names.
        source_prefix: One of several runs in the source's folders: CKP or CKP_1, for example.
        root: Where the model's tensors are in PyTorch's files that hold more: the keys that lead to their dict, joined
            by dots, such as state_dict or model.module. None: at the top.
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
        config_json: The model's config.json, or its directory, for the numbers that the preset needs. None: the one in
            the directory that the target is modelled on, or beside the source.
        allow_model: A model_type of config.json (kimi_k2) to convert although the preset does not list it: the model
            must have the names and layouts of the preset's family.
        append_info: NAME=VALUE (epoch_num=5) for every target file, in place of the source's value of that name. A
            value is true or false, a number, or else text; after text: it is always text (version=text:2.0).
        decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        recover: If source files are missing, truncated, fail their CRC or are named as faulty, read their slices from
            other ranks that hold the same, and report it.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.
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
            or 1M:10M for sending and receiving, as rclone's bwlimit. None: no limit.
        source_storage: Credential reference for the source, its strategy and the changes: env:NAME, file:PATH or
            block:NAME, whose value is a JSON object of fsspec's storage options. None: taken from the environment.
        target_storage: Credential reference for the target and its strategy, in the same forms.

    Raises:
        InputError: options, or the files they name, are wrong; or the target has no such rank, or parameter.
        StorageError: a storage failed after retries.
    """
    return calls.load_rank(**locals())


@checked
def plan_load(
    source: PathOrUrl,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    auto_strategy: bool = True,
    step: Number | None = None,
    source_prefix: str | None = None,
    root: str | None = None,
    integrated_save: IntegratedSaveName | bool = "auto",
    unmatched: UnmatchedPolicyName = "drop",
    allow_missing: Texts = (),
    shared_parameters: Number = "first",
    select: SelectionName = "all",
    include: Texts = (),
    exclude: Texts = (),
    rename: Rules = (),
    cast: Rules = (),
    cast_overflow: OverflowPolicyName = "fail",
    transpose: Texts = (),
    changes: PathOrUrl | None = None,
    preset: PathOrUrl | None = None,
    switch: Settings = (),
    training_config: PathOrUrl | None = None,
    config_json: PathOrUrl | None = None,
    allow_model: Texts = (),
    append_info: Settings = (),
    decrypt_key: str | None = None,
    decrypt_mode: EncryptionModeName = "AES-GCM",
    recover: bool = False,
    fault_ranks: Ranks | None = None,
    check_crc: bool = True,
    check_replicas: bool = False,
    trust_strategy: bool = False,
    workers: int = 0,
    memory_limit: Size = "2GiB",
    bandwidth_limit: str | None = None,
    source_storage: str | None = None,
    target_storage: str | None = None,
) -> LoadPlan:
    r"""Look at a source once, to load any of the target's ranks from it, in any number of threads.

    With `check_crc`, files that have CRCs are read whole, those of DCP too, in each process that calls this.

    Args:
        source: the checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        source_strategy: a strategy file, or a directory of the ranks' strategy files; None: what reshard recorded, or
            one rank with whole tensors.
        target_strategy: how the parameters are to be sharded, in the same forms; None: one rank with whole tensors.
        auto_strategy: Without a named strategy, use the one beside a source of several ranks (../strategy, for example)
            if it is the only one there, older than the checkpoint, and 'reshard doctor' finds it consistent.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; of a Checkpoint 2.0, the
            iteration: 40. None: the newest that every rank has, or the iteration that the tracker names.
        source_prefix: One of several runs in the source's folders: CKP or CKP_1, for example.
        root: Where the model's tensors are in PyTorch's files that hold more: the keys that lead to their dict, joined
            by dots, such as state_dict or model.module. None: at the top.
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
        config_json: The model's config.json, or its directory, for the numbers that the preset needs. None: the one in
            the directory that the target is modelled on, or beside the source.
        allow_model: A model_type of config.json (kimi_k2) to convert although the preset does not list it: the model
            must have the names and layouts of the preset's family.
        append_info: NAME=VALUE (epoch_num=5) for every target file, in place of the source's value of that name. A
            value is true or false, a number, or else text; after text: it is always text (version=text:2.0).
        decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        recover: If source files are missing, truncated, fail their CRC or are named as faulty, read their slices from
            other ranks that hold the same, and report it.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.
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
            or 1M:10M for sending and receiving, as rclone's bwlimit. None: no limit.
        source_storage: Credential reference for the source, its strategy and the changes: env:NAME, file:PATH or
            block:NAME, whose value is a JSON object of fsspec's storage options. None: taken from the environment.
        target_storage: Credential reference for the target and its strategy, in the same forms.

    Raises:
        InputError: options, or the files they name, are wrong.
        StorageError: a storage failed after retries.
    """
    return calls.plan_load(**locals())


@checked
def open(  # noqa: A001
    source: PathOrUrl,
    *,
    strategy: PathOrUrl | None = None,
    storage: str = "",
    auto_strategy: bool = True,
    step: Number | None = None,
    root: str | None = None,
    source_prefix: str | None = None,
    integrated_save: IntegratedSaveName | bool = "auto",
    trust_strategy: bool = False,
    recover: bool = False,
    fault_ranks: Ranks | None = None,
    check_crc: bool = False,
    decrypt_key: str | None = None,
    decrypt_mode: EncryptionModeName = "AES-GCM",
    workers: int = 0,
    memory_limit: Size = "2GiB",
    bandwidth_limit: str | None = None,
) -> Checkpoint:
    """Open a checkpoint to read its tensors, or parts of them, one by one.

    Opening reads headers, and samples by which a strategy is checked.

    ::

        with reshard.open("checkpoint", strategy="strategy") as checkpoint:
            list(checkpoint)                        # the names of its tensors
            checkpoint["embedding.weight"].shape    # of the whole tensor
            checkpoint["embedding.weight"][0:10]    # reads these rows
            checkpoint.rank(3)                      # the same for what rank 3's file holds

    Args:
        source: the checkpoint, of any layout: a directory, a pattern with `{rank}`, or one file.
        strategy: how it is sharded: a strategy file, or a directory of the ranks' strategy files; None: by its own
            records or metadata, else not at all.
        storage: name of its storage options: `env:NAME`, `file:PATH` or `block:NAME`.
        auto_strategy: Without a named strategy, use the one beside a source of several ranks (../strategy, for example)
            if it is the only one there, older than the checkpoint, and 'reshard doctor' finds it consistent.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; of a Checkpoint 2.0, the
            iteration: 40. None: the newest that every rank has, or the iteration that the tracker names.
        root: Where the model's tensors are in PyTorch's files that hold more: the keys that lead to their dict, joined
            by dots, such as state_dict or model.module. None: at the top.
        source_prefix: One of several runs in the source's folders: CKP or CKP_1, for example.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            shards. no: ranks hold slices, even if these are equal. auto: known shapes decide, else the strategy does;
            if contents look whole and no shape is known, refuse.
        trust_strategy: Keep to the source's strategy although most sampled contents contradict it, or ranks lack
            parameters that it gives them.
        recover: If source files are missing, truncated, fail their CRC or are named as faulty, read their slices from
            other ranks that hold the same, and report it.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.
        check_crc: Check the CRC of files that carry one: reads them whole.
        decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        workers: Threads that read headers. 0: one for each core.
        memory_limit: Memory for the buffers of each thread that reads: 2GiB, 512MiB; arrays are not counted.
        bandwidth_limit: What is sent to remote storages, and received from them, by a process in a second: 10M, 512k,
            or 1M:10M for sending and receiving, as rclone's bwlimit. None: no limit.

    Raises:
        InputError: options are wrong, or the checkpoint cannot be used.
        StorageError: it cannot be read.
    """
    return calls.open(**locals())


@checked
def verify(
    target: PathOrUrl,
    *,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    level: VerifyLevelName = "checksum",
    decrypt_key: str | None = None,
    decrypt_mode: EncryptionModeName = "AES-GCM",
    storage: str | None = None,
    source_storage: str | None = None,
    source_decrypt_key: str | None = None,
    source_decrypt_mode: EncryptionModeName = "AES-GCM",
    bandwidth_limit: str | None = None,
) -> VerificationReport:
    """Check a converted checkpoint against its manifest; its `problems` are empty if all is right.

    Args:
        target: the directory that a conversion made.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.
        level: structure: files, names, dtypes and shapes. checksum: also every byte, against digests taken while
            writing, and the CRC of files that have one. content: also every value against the source, which has to be
            where it was.
        decrypt_key: Key reference for an encrypted checkpoint: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. None: it is not encrypted.
        decrypt_mode: How an encrypted checkpoint is encrypted.
        storage: Credential reference: env:NAME, file:PATH or block:NAME, whose value is a JSON object of fsspec's
            storage options. None: taken from the environment.
        source_storage: Credential reference for the source, which the level content reads, in the same forms.
        source_decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the
            UTF-8 bytes of the value, unless that begins with hex: or base64:. None: the source is not encrypted.
        source_decrypt_mode: How an encrypted source is encrypted.
        bandwidth_limit: What is received from remote storages in a second: 10M, as rclone's bwlimit.

    Raises:
        InputError: options are wrong, or the target has no manifest that can be read.
        StorageError: a storage failed after retries.
    """
    return calls.verify(**locals())


@checked
def diff(
    a: PathOrUrl,
    b: PathOrUrl,
    *,
    strategy_a: PathOrUrl | None = None,
    strategy_b: PathOrUrl | None = None,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    auto_strategy: bool = True,
    step_a: Number | None = None,
    step_b: Number | None = None,
    root_a: str | None = None,
    root_b: str | None = None,
    integrated_save_a: IntegratedSaveName | bool = "auto",
    integrated_save_b: IntegratedSaveName | bool = "auto",
    trust_strategy_a: bool = False,
    trust_strategy_b: bool = False,
    select: SelectionName = "all",
    include: Texts = (),
    exclude: Texts = (),
    preset: PathOrUrl | None = None,
    changes: PathOrUrl | None = None,
    switch: Settings = (),
    training_config: PathOrUrl | None = None,
    config_json: PathOrUrl | None = None,
    allow_model: Texts = (),
    ignore_dtype: bool = False,
    decrypt_key_a: str | None = None,
    decrypt_mode_a: EncryptionModeName = "AES-GCM",
    decrypt_key_b: str | None = None,
    decrypt_mode_b: EncryptionModeName = "AES-GCM",
    storage_a: str | None = None,
    storage_b: str | None = None,
    workers: int = 0,
    memory_limit: Size = "2GiB",
    bandwidth_limit: str | None = None,
) -> ComparisonReport:
    """Compare two checkpoints, whatever their strategies and formats; `same` of the report is the answer.

    Args:
        a: a checkpoint, or a JSON file of fingerprints.
        b: the other one.
        strategy_a: how A is sharded; None: what reshard recorded, or not at all.
        strategy_b: how B is sharded.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.
        auto_strategy: Without a named strategy of a side, use the one beside a checkpoint of several ranks if it is the
            only one there, older than the checkpoint, and 'reshard doctor' finds it consistent.
        step_a: Epoch and step, as in its file names: 10_5. None: the newest that every rank has.
        step_b: Epoch and step of B.
        root_a: Where the tensors are in PyTorch's files that hold more: the keys that lead to their dict, joined by
            dots, such as state_dict. None: at the top.
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
        config_json: The model's config.json, or its directory, for the numbers that the preset needs. None: the one
            beside A or B.
        allow_model: A model_type of config.json (kimi_k2) to convert although the preset does not list it: the model
            must have the names and layouts of the preset's family.
        ignore_dtype: Compare floating-point parameters of different dtypes after casting the wider dtype to the other.
        decrypt_key_a: Key reference for an encrypted checkpoint: env:NAME, file:PATH or block:NAME. The key is the
            UTF-8 bytes of the value, unless that begins with hex: or base64:. None: it is not encrypted.
        decrypt_mode_a: How A is encrypted, if it is.
        decrypt_key_b: Key reference for an encrypted checkpoint: env:NAME, file:PATH or block:NAME. The key is the
            UTF-8 bytes of the value, unless that begins with hex: or base64:. None: it is not encrypted.
        decrypt_mode_b: How B is encrypted, if it is.
        storage_a: Credential reference: env:NAME, file:PATH or block:NAME, whose value is a JSON object of fsspec's
            storage options. None: taken from the environment.
        storage_b: Credential reference: env:NAME, file:PATH or block:NAME, whose value is a JSON object of fsspec's
            storage options. None: taken from the environment.
        workers: Threads. 0: one for each core.
        memory_limit: Memory for the buffers of all workers: 2GiB, 512MiB. Less memory, fewer workers at once.
        bandwidth_limit: What is received from remote storages in a second: 10M, as rclone's bwlimit.

    Raises:
        InputError: options, or the files they name, are wrong.
        StorageError: a storage failed after retries.
    """
    return calls.diff(**locals())


@checked
def fingerprint(
    checkpoint: PathOrUrl,
    *,
    strategy: PathOrUrl | None = None,
    storage: str = "",
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    auto_strategy: bool = True,
    integrated_save: IntegratedSaveName | bool = "auto",
    trust_strategy: bool = False,
    step: Number | None = None,
    source_prefix: str | None = None,
    root: str | None = None,
    select: SelectionName = "all",
    include: Texts = (),
    exclude: Texts = (),
    decrypt_key: str | None = None,
    decrypt_mode: EncryptionModeName = "AES-GCM",
    workers: int = 0,
    memory_limit: Size = "2GiB",
    bandwidth_limit: str | None = None,
) -> ModelFingerprint:
    """Return a fingerprint of each parameter and of the model; equal models have equal ones, however they are sharded.

    Args:
        checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        strategy: how it is sharded: a strategy file, or a directory of the ranks' strategy files; None: what reshard
            recorded, or not at all.
        storage: name of its storage options: `env:NAME`, `file:PATH` or `block:NAME`.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.
        auto_strategy: Without a named strategy, use the one beside a source of several ranks (../strategy, for example)
            if it is the only one there, older than the checkpoint, and 'reshard doctor' finds it consistent.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            shards. no: ranks hold slices, even if these are equal. auto: known shapes decide, else the strategy does;
            if contents look whole and no shape is known, refuse.
        trust_strategy: Keep to the source's strategy although most sampled contents contradict it, or ranks lack
            parameters that it gives them.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; of a Checkpoint 2.0, the
            iteration: 40. None: the newest that every rank has, or the iteration that the tracker names.
        source_prefix: One of several runs in the source's folders: CKP or CKP_1, for example.
        root: Where the model's tensors are in PyTorch's files that hold more: the keys that lead to their dict, joined
            by dots, such as state_dict or model.module. None: at the top.
        select: weights-only: without optimizer moments, gradient accumulators, loss scale and other training state.
        include: Patterns (model.layers.*) of its parameters. Empty: all.
        exclude: Patterns of parameters to leave out.
        decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        workers: Threads, for as many ranks at once, or several for one; with Dask, of all its processes together. 0:
            one for each core (with Dask: all that its workers have), and at least 8 if a side is on remote storage,
            where they mostly wait for answers.
        memory_limit: Memory for the buffers of all workers of a process: 2GiB, 512MiB; at least 16MiB.
        bandwidth_limit: What is sent to remote storages, and received from them, by a process in a second: 10M, 512k,
            or 1M:10M for sending and receiving, as rclone's bwlimit. None: no limit.

    Raises:
        InputError: options, or the files they name, are wrong.
        StorageError: a storage failed after retries.
    """
    return calls.fingerprint(**locals())


@checked
def scan(
    checkpoint: PathOrUrl,
    *,
    strategy: PathOrUrl | None = None,
    storage: str = "",
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    auto_strategy: bool = True,
    integrated_save: IntegratedSaveName | bool = "auto",
    trust_strategy: bool = False,
    step: Number | None = None,
    source_prefix: str | None = None,
    root: str | None = None,
    select: SelectionName = "all",
    include: Texts = (),
    exclude: Texts = (),
    decrypt_key: str | None = None,
    decrypt_mode: EncryptionModeName = "AES-GCM",
    workers: int = 0,
    memory_limit: Size = "2GiB",
    bandwidth_limit: str | None = None,
) -> ScanReport:
    """Look for NaN and Inf in all floating-point parameters of all files; `finite` of the report is the answer.

    Args:
        checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        strategy: tells where in the whole tensors findings are; None: what reshard recorded, or not at all.
        storage: name of its storage options: `env:NAME`, `file:PATH` or `block:NAME`.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.
        auto_strategy: Without a named strategy, use the one beside a source of several ranks (../strategy, for example)
            if it is the only one there, older than the checkpoint, and 'reshard doctor' finds it consistent.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            shards. no: ranks hold slices, even if these are equal. auto: known shapes decide, else the strategy does;
            if contents look whole and no shape is known, refuse.
        trust_strategy: Keep to the source's strategy although most sampled contents contradict it, or ranks lack
            parameters that it gives them.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; of a Checkpoint 2.0, the
            iteration: 40. None: the newest that every rank has, or the iteration that the tracker names.
        source_prefix: One of several runs in the source's folders: CKP or CKP_1, for example.
        root: Where the model's tensors are in PyTorch's files that hold more: the keys that lead to their dict, joined
            by dots, such as state_dict or model.module. None: at the top.
        select: weights-only: without optimizer moments, gradient accumulators, loss scale and other training state.
        include: Patterns (model.layers.*) of its parameters. Empty: all.
        exclude: Patterns of parameters to leave out.
        decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        workers: Threads, for as many ranks at once, or several for one; with Dask, of all its processes together. 0:
            one for each core (with Dask: all that its workers have), and at least 8 if a side is on remote storage,
            where they mostly wait for answers.
        memory_limit: Memory for the buffers of all workers of a process: 2GiB, 512MiB; at least 16MiB.
        bandwidth_limit: What is sent to remote storages, and received from them, by a process in a second: 10M, 512k,
            or 1M:10M for sending and receiving, as rclone's bwlimit. None: no limit.

    Raises:
        InputError: options, or the files they name, are wrong.
        StorageError: a storage failed after retries.
    """
    return calls.scan(**locals())


@checked
def recover(
    source: PathOrUrl,
    *,
    strategy: PathOrUrl | None = None,
    group_info: Sequence[PathOrUrl] = (),
    storage: str = "",
    auto_strategy: bool = True,
    integrated_save: IntegratedSaveName | bool = "auto",
    trust_strategy: bool = False,
    step: Number | None = None,
    source_prefix: str | None = None,
    workers: int = 0,
    check_crc: bool = True,
    allow_missing: Texts = (),
    decrypt_key: str | None = None,
    decrypt_mode: EncryptionModeName = "AES-GCM",
    fault_ranks: Ranks | None = None,
) -> RecoveryReport:
    """Tell whether a damaged checkpoint can be recovered, and from which ranks; `convert(…, recover=True)` does it.

    Args:
        source: the checkpoint: a directory, or a pattern with `{rank}`.
        strategy: how it is sharded: a strategy file, or a directory of the ranks' strategy files.
        group_info: files that tell which ranks hold the same, if there is no strategy.
        storage: name of the storage options of both: `env:NAME`, `file:PATH` or `block:NAME`.
        auto_strategy: Without a named strategy, use the one beside a source of several ranks (../strategy, for example)
            if it is the only one there, older than the checkpoint, and 'reshard doctor' finds it consistent.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            shards. no: ranks hold slices, even if these are equal. auto: known shapes decide, else the strategy does;
            if contents look whole and no shape is known, refuse.
        trust_strategy: Keep to the source's strategy although most sampled contents contradict it, or ranks lack
            parameters that it gives them.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; of a Checkpoint 2.0, the
            iteration: 40. None: the newest that every rank has, or the iteration that the tracker names.
        source_prefix: One of several runs in the source's folders: CKP or CKP_1, for example.
        workers: Threads, for as many ranks at once, or several for one; with Dask, of all its processes together. 0:
            one for each core (with Dask: all that its workers have), and at least 8 if a side is on remote storage,
            where they mostly wait for answers.
        check_crc: Check the CRC of source files that carry one, before anything is planned or written: reads them whole
            once more. Tensors of DCP are checked as they are converted.
        allow_missing: Patterns (adam_*) of target parameters that the source may lack.
        decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.

    Raises:
        InputError: options, or the files they name, are wrong.
        StorageError: a storage failed after retries.
    """
    return calls.recover(**locals())


@checked
def doctor(
    source: PathOrUrl,
    *,
    strategy: PathOrUrl | None = None,
    storage: str = "",
    auto_strategy: bool = True,
    step: Number | None = None,
    source_prefix: str | None = None,
    root: str | None = None,
    integrated_save: IntegratedSaveName | bool = "auto",
    decrypt_key: str | None = None,
    decrypt_mode: EncryptionModeName = "AES-GCM",
    like: PathOrUrl | None = None,
    preset: PathOrUrl | None = None,
    switch: Settings = (),
    training_config: PathOrUrl | None = None,
    allow_model: Texts = (),
) -> Diagnosis:
    """Check that a strategy belongs to a checkpoint; `fits` is the answer, `findings` are the differences.

    Without a strategy `fits` is None. `whole_shapes` says whether more than strategy and shards shows along which axes
    tensors were sharded.

    Args:
        source: the checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        strategy: the strategy to check: a file, or a directory of the ranks' strategy files; None: what reshard
            recorded.
        storage: name of the storage options of both: `env:NAME`, `file:PATH` or `block:NAME`.
        auto_strategy: Without a named strategy, use the one beside a source of several ranks (../strategy, for example)
            if it is the only one there, older than the checkpoint, and 'reshard doctor' finds it consistent.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; of a Checkpoint 2.0, the
            iteration: 40. None: the newest that every rank has, or the iteration that the tracker names.
        source_prefix: One of several runs in the source's folders: CKP or CKP_1, for example.
        root: Where the model's tensors are in PyTorch's files that hold more: the keys that lead to their dict, joined
            by dots, such as state_dict or model.module. None: at the top.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            shards. no: ranks hold slices, even if these are equal. auto: known shapes decide, else the strategy does;
            if contents look whole and no shape is known, refuse.
        decrypt_key: Key reference for an encrypted source: env:NAME, file:PATH or block:NAME. The key is the UTF-8
            bytes of the value, unless that begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        like: Compare the shapes of whole tensors with those of this model: a checkpoint of whole tensors, a Hugging
            Face directory, a DCP checkpoint, a Checkpoint 2.0, or a strategy in JSON.
        preset: The model's family, whose names 'like' has, and whose config.json gives shapes.
        switch: NAME=VALUE, a fact that the preset needs and the checkpoint does not hold.
        training_config: The training's YAML, from which the preset reads such facts.
        allow_model: A model_type of config.json (kimi_k2) to convert although the preset does not list it: the model
            must have the names and layouts of the preset's family.

    Raises:
        InputError: options are wrong, or source or strategy cannot be read at all.
        StorageError: a storage failed after retries.
    """
    return calls.doctor(**locals())

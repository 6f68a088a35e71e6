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
from reshard.core.conversion.sign import SigningReport
from reshard.core.files.numpy_values import Value
from reshard.core.source.diagnosis_report import Diagnosis
from reshard.core.source.recovery import RecoveryReport
from reshard.core.verification.comparison_report import ComparisonReport
from reshard.core.verification.fingerprint_file import ModelFingerprint
from reshard.core.verification.report import VerificationReport
from reshard.core.verification.scan_report import ScanReport
from reshard.options import (
    DialectName,
    EncryptionModeName,
    Fp8Name,
    IntegratedSaveName,
    Number,
    OutputFormatName,
    OverflowPolicyName,
    PathOrUrl,
    Ranks,
    Rules,
    SelectionName,
    Settings,
    Sha256LevelName,
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
    fp8: Fp8Name = "auto",
    transpose: Texts = (),
    changes: PathOrUrl | None = None,
    preset: PathOrUrl | None = None,
    names: str | None = None,
    switch: Settings = (),
    dialect: DialectName = "auto",
    lora: PathOrUrl | None = None,
    lora_alpha: float = 0.0,
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
    sha256: Sha256LevelName = "none",
    check_crc: bool = True,
    check_replicas: bool = False,
    trust_strategy: bool = False,
    require_signed_by: PathOrUrl | None = None,
    overwrite: bool = False,
    sign: str | None = None,
    sign_passphrase: str | None = None,
    sign_certificate: PathOrUrl | None = None,
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
        auto_strategy: If no source strategy is given, use the one beside the source (../strategy, for example),
            provided that it is the only one there, is older than the checkpoint, and 'reshard doctor' finds it
            consistent.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; for a Checkpoint 2.0, the
            iteration: 40. None: the newest step that every rank has, or the iteration in the tracker file.
        source_prefix: Prefix of the source's files, such as CKP or CKP_1, if several runs saved into its folders.
        root: Where the model's tensors are in a PyTorch file that holds more: the keys of their dict, joined by dots,
            such as state_dict or model.module. None: at the top level.
        ranks: Convert only these target ranks (0-3,7), or files of a unified target, counted from 0; other machines
            convert the rest. None: all.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            says. no: ranks hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy;
            fail if contents look whole and no shape is known.
        unmatched: Parameters that only the source strategy has (often optimizer state): drop and report them, or fail.
        allow_missing: Patterns (adam_*) of target parameters that the source may lack.
        shared_parameters: What to do if pipeline stages of the source hold different contents for the same parameter,
            such as a tied embedding. first: take the first stage's; a number: take that stage's; fail: stop.
        select: weights-only: leave out optimizer moments, gradient accumulators, loss scale and other training state.
        include: Patterns (model.layers.*) of source parameters to convert. Empty: all.
        exclude: Patterns of source parameters to leave out.
        rename: OLD=NEW, a parameter's name and its new name; or re:PATTERN=NEW, a regular expression that matches whole
            names, and the new name, which may refer to groups (re:layers\.(\d+)\.(.*)=h.\1.\2). The first match counts.
        cast: PATTERN=DTYPE (*=bfloat16): cast the floating-point parameters that match, rounding to nearest. The first
            match counts.
        cast_overflow: If a cast makes finite values infinite: fail, or allow it and report how many.
        fp8: What to do with 8-bit weights that have a scale for each block. keep: copy both unchanged. dequantize: make
            them bfloat16. auto: dequantize with a preset, else keep. quantize: make the linear layers of a Hugging Face
            directory fp8, in blocks of 128 x 128 (unified layout only).
        transpose: Patterns of parameters to transpose (reverse their axes). The first match counts.
        changes: A YAML or JSON file with these changes, and with splits and joins of fused parameters (qkv, gate-up).
            Options take precedence over it.
        preset: The model's family (qwen3; 'reshard presets' lists them), or a preset file of your own: converts names
            and layouts of MindFormers, Megatron or torchtitan to Hugging Face's, or the other way round, depending on
            the source's names.
        names: Whose names the target gets: hf, mindformers, megatron or titan, if the preset has them, or one of its
            worlds (mcore, legacy). None: Hugging Face's, or MindFormers' if the source has Hugging Face's.
        switch: NAME=VALUE, a fact that the preset needs and the checkpoint does not show; names=WORLD says whose names
            the source has, where they do not show it.
        dialect: How the target's Hugging Face directory names experts. hub: one by one, as files on the hub.
            transformers5: all of a layer in one parameter, as transformers 5 has them in memory. auto: as the directory
            that the target is modelled on, or else hub.
        lora: A LoRA adapter to merge into the source's weights, before all other changes, or after the preset's if it
            has the names that these make: a directory of PEFT's or MindFormers', or the source itself, if its files
            have both.
        lora_alpha: Alpha of an adapter whose files do not state it. 0: take it from them or the training's YAML.
        training_config: The training's YAML, from which the preset's switches and the adapter's alpha are taken.
        config_json: The model's config.json, or its directory, with the numbers that the preset needs. None: the one in
            the directory that the target is modelled on, or beside the source.
        allow_model: A model_type (kimi_k2) to accept although the preset does not list it: the model must have the
            names and layouts of the preset's family.
        layout: ranks: one file per target rank. unified: whole tensors in a few .safetensors files with an index, as
            Hugging Face's loaders expect. checkpoint2: MindFormers' Checkpoint 2.0, in TARGET/iteration_00000040 with a
            tracker file beside it, or in TARGET itself if it has such a name. torch_dist: Megatron-Core's distributed
            checkpoint (--ckpt-format torch_dist), which any number of ranks can load, in TARGET/iter_0000040 or
            TARGET/release, with a tracker file. dcp: PyTorch's Distributed Checkpoint (.distcp files and .metadata),
            which any number of processes can load. megatron: Megatron-Core's per-rank files (--ckpt-format torch),
            which MindSpeed also loads, in TARGET/iter_0000040 or TARGET/release, with a tracker file. universal:
            DeepSpeed's universal checkpoint, which any world size and ZeRO stage can load, in
            TARGET/global_step40_universal with a file for each tensor, and the tracker latest_universal.
        iteration: Number of the iteration to write (checkpoint2, megatron, torch_dist and universal layouts only).
            None: the one in TARGET's name, or the source's; otherwise a release (Megatron) or 0.
        optimizer_step: Number of optimizer steps behind the converted moments, without skipped ones (universal layout
            only). 0: as recorded in the source.
        attention_heads: Number of attention heads, if neither shapes, nor the source's own arguments, nor the
            config.json of a preset show it (megatron and torch_dist layouts only).
        tensor_parallel: Size of tensor parallelism (megatron layout only).
        pipeline_parallel: Number of pipeline stages (megatron layout only).
        virtual_pipeline: Megatron's --num-virtual-stages-per-pipeline-rank: chunks of layers per pipeline stage
            (megatron layout only).
        expert_parallel: Size of expert parallelism (megatron layout only).
        expert_tensor_parallel: Size of tensor parallelism for experts (megatron layout only). 0: the same as for
            everything else.
        pipeline_first_layers: Number of layers in the first pipeline stage, if it differs from the others (megatron
            layout only).
        pipeline_last_layers: Number of layers in the last pipeline stage, if it differs from the others (megatron
            layout only).
        pad_vocab_to: Pad embedding and output layer to this many rows by repeating the last one (megatron layout only).
            Megatron needs a multiple of --make-vocab-size-divisible-by times the size of tensor parallelism. 0: no
            padding.
        shards: Number of files among which to divide the rows of every tensor, as FSDP does (torch_dist, and dcp
            without a target strategy). 0: 8.
        transformer_impl: The --transformer-impl of the Megatron training that loads the target, which determines the
            names of norms in layers with experts (torch_dist layout only). source: from the source's own arguments,
            otherwise transformer_engine.
        common: KEY=VALUE (loss_scale=65536, epoch_num=null) to write into common.json, replacing the source's value
            (checkpoint2 layout only).
        like: Hugging Face directory to model the target on (unified layout only). Its tokenizer and config.json are
            copied, the latter with the dtype that is written; if it has weights, names, shapes and dtypes must match
            them. None: the one that lies beside the source's files, if any.
        max_shard_size: Maximum shard size (unified layout only): 5GB, 512MiB. A larger tensor gets a file of its own.
        unified_naming: File names (unified layout only). huggingface: model-00001-of-00003.safetensors and
            model.safetensors.index.json. mindspore: part0.safetensors and param_name_map.json.
        format: Format of the target's files; same: the source's format.
        prefix: Target files are rank_{r}/{prefix}{r}.{format}.
        append_info: NAME=VALUE (epoch_num=5) to write into every target file, replacing the source's value. Values are
            true, false, a number or text; the prefix text: makes any value a text (version=text:2.0).
        write_crc: Add a CRC to the target's files, which MindSpore checks with crc_check. For .safetensors files, the
            source is read twice.
        encrypt_key: Reference to the key that encrypts the target's files and their records: env:NAME, file:PATH or
            block:NAME. The key is the value in UTF-8, unless it begins with hex: or base64:. None: the target is not
            encrypted.
        encrypt_mode: How the target is encrypted.
        remove_redundancy: Write each slice that several target ranks share on only one of them (see 'replicas');
            MindSpore loads such a checkpoint with remove_redundancy=True.
        replicas: Number of copies of each slice to keep when redundancy is removed.
        decrypt_key: Reference to the key of an encrypted source: env:NAME, file:PATH or block:NAME. The key is the
            value in UTF-8, unless it begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        recover: If source files are missing, truncated, fail their CRC or are listed as faulty, read their slices from
            other ranks that hold the same, and report it.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.
        verify: structure: names, dtypes and shapes. checksum: also every byte, read back from the target. content: also
            every value of every copy, compared with the source. none: no check.
        sha256: target: record the SHA-256 of every file of the target, taken while it is written; a signature and other
            programs (sha256sum) need it. source: also that of every source file, each of which is read whole for it.
            none: neither.
        check_crc: Before planning, check the CRC of source files that have one, which reads them completely once more.
            DCP tensors are checked while they are converted.
        check_replicas: Compare all replicas of each slice in the source; fail if they differ.
        trust_strategy: Use the source strategy even if most sampled contents contradict it, or ranks lack parameters
            that they should have.
        require_signed_by: Convert only a source that is signed by one of these public keys, or by a certificate that
            one of these CAs issued: a PEM file, or its name: env:NAME, file:PATH or block:NAME. Its model.sig must be
            valid and cover every file there; all files are read whole before anything is written. None: no signature is
            needed.
        overwrite: Replace the checkpoint at the target, which is kept until the new one is complete.
        sign: Sign the target: reference to an elliptic curve key in PEM (P-256, P-384, P-521), env:NAME, file:PATH or
            block:NAME. model.sig is written beside the files and covers each with its SHA-256; 'reshard verify' and
            model_signing check it. None: no signature.
        sign_passphrase: Reference to the passphrase of an encrypted signing key, in the same forms.
        sign_certificate: Certificates of the signing key, a PEM file with the key's own first, for those who trust a CA
            rather than the key. None: the signature names the key alone.
        workers: Number of threads; with Dask, of all its processes together. 0: one per core (with Dask: all that its
            workers have), but at least 8 if source or target is on remote storage, where threads mostly wait.
        memory_limit: Memory for the buffers of all workers of a process, at least 16MiB: 2GiB, 512MiB.
        bandwidth_limit: Bytes per second that a process sends to and receives from remote storage, like rclone's
            bwlimit: 10M, 512k, or 1M:10M for sending and receiving. None: no limit.
        source_storage: Reference to credentials for the source, its strategy and the file of changes: env:NAME,
            file:PATH or block:NAME, whose value is a JSON object of fsspec storage options. None: taken from the
            environment.
        target_storage: Reference to credentials for the target and its strategy, in the same forms.

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
    fp8: Fp8Name = "auto",
    transpose: Texts = (),
    changes: PathOrUrl | None = None,
    preset: PathOrUrl | None = None,
    names: str | None = None,
    switch: Settings = (),
    dialect: DialectName = "auto",
    lora: PathOrUrl | None = None,
    lora_alpha: float = 0.0,
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
    sha256: Sha256LevelName = "none",
    check_crc: bool = True,
    check_replicas: bool = False,
    trust_strategy: bool = False,
    require_signed_by: PathOrUrl | None = None,
    dry_run: bool = False,
    sign: str | None = None,
    sign_passphrase: str | None = None,
    sign_certificate: PathOrUrl | None = None,
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
        auto_strategy: If no source strategy is given, use the one beside the source (../strategy, for example),
            provided that it is the only one there, is older than the checkpoint, and 'reshard doctor' finds it
            consistent.
        source_prefix: Prefix of the source's files, such as CKP or CKP_1, if several runs saved into its folders.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            says. no: ranks hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy;
            fail if contents look whole and no shape is known.
        unmatched: Parameters that only the source strategy has (often optimizer state): drop and report them, or fail.
        allow_missing: Patterns (adam_*) of target parameters that the source may lack.
        shared_parameters: What to do if pipeline stages of the source hold different contents for the same parameter,
            such as a tied embedding. first: take the first stage's; a number: take that stage's; fail: stop.
        select: weights-only: leave out optimizer moments, gradient accumulators, loss scale and other training state.
        include: Patterns (model.layers.*) of source parameters to convert. Empty: all.
        exclude: Patterns of source parameters to leave out.
        rename: OLD=NEW, a parameter's name and its new name; or re:PATTERN=NEW, a regular expression that matches whole
            names, and the new name, which may refer to groups (re:layers\.(\d+)\.(.*)=h.\1.\2). The first match counts.
        cast: PATTERN=DTYPE (*=bfloat16): cast the floating-point parameters that match, rounding to nearest. The first
            match counts.
        cast_overflow: If a cast makes finite values infinite: fail, or allow it and report how many.
        fp8: What to do with 8-bit weights that have a scale for each block. keep: copy both unchanged. dequantize: make
            them bfloat16. auto: dequantize with a preset, else keep. quantize: make the linear layers of a Hugging Face
            directory fp8, in blocks of 128 x 128 (unified layout only).
        transpose: Patterns of parameters to transpose (reverse their axes). The first match counts.
        changes: A YAML or JSON file with these changes, and with splits and joins of fused parameters (qkv, gate-up).
            Options take precedence over it.
        preset: The model's family (qwen3; 'reshard presets' lists them), or a preset file of your own: converts names
            and layouts of MindFormers, Megatron or torchtitan to Hugging Face's, or the other way round, depending on
            the source's names.
        names: Whose names the target gets: hf, mindformers, megatron or titan, if the preset has them, or one of its
            worlds (mcore, legacy). None: Hugging Face's, or MindFormers' if the source has Hugging Face's.
        switch: NAME=VALUE, a fact that the preset needs and the checkpoint does not show; names=WORLD says whose names
            the source has, where they do not show it.
        dialect: How the target's Hugging Face directory names experts. hub: one by one, as files on the hub.
            transformers5: all of a layer in one parameter, as transformers 5 has them in memory. auto: as the directory
            that the target is modelled on, or else hub.
        lora: A LoRA adapter to merge into the source's weights, before all other changes, or after the preset's if it
            has the names that these make: a directory of PEFT's or MindFormers', or the source itself, if its files
            have both.
        lora_alpha: Alpha of an adapter whose files do not state it. 0: take it from them or the training's YAML.
        training_config: The training's YAML, from which the preset's switches and the adapter's alpha are taken.
        config_json: The model's config.json, or its directory, with the numbers that the preset needs. None: the one in
            the directory that the target is modelled on, or beside the source.
        allow_model: A model_type (kimi_k2) to accept although the preset does not list it: the model must have the
            names and layouts of the preset's family.
        layout: ranks: one file per target rank. unified: whole tensors in a few .safetensors files with an index, as
            Hugging Face's loaders expect. checkpoint2: MindFormers' Checkpoint 2.0, in TARGET/iteration_00000040 with a
            tracker file beside it, or in TARGET itself if it has such a name. torch_dist: Megatron-Core's distributed
            checkpoint (--ckpt-format torch_dist), which any number of ranks can load, in TARGET/iter_0000040 or
            TARGET/release, with a tracker file. dcp: PyTorch's Distributed Checkpoint (.distcp files and .metadata),
            which any number of processes can load. megatron: Megatron-Core's per-rank files (--ckpt-format torch),
            which MindSpeed also loads, in TARGET/iter_0000040 or TARGET/release, with a tracker file. universal:
            DeepSpeed's universal checkpoint, which any world size and ZeRO stage can load, in
            TARGET/global_step40_universal with a file for each tensor, and the tracker latest_universal.
        attention_heads: Number of attention heads, if neither shapes, nor the source's own arguments, nor the
            config.json of a preset show it (megatron and torch_dist layouts only).
        tensor_parallel: Size of tensor parallelism (megatron layout only).
        pipeline_parallel: Number of pipeline stages (megatron layout only).
        virtual_pipeline: Megatron's --num-virtual-stages-per-pipeline-rank: chunks of layers per pipeline stage
            (megatron layout only).
        expert_parallel: Size of expert parallelism (megatron layout only).
        expert_tensor_parallel: Size of tensor parallelism for experts (megatron layout only). 0: the same as for
            everything else.
        pipeline_first_layers: Number of layers in the first pipeline stage, if it differs from the others (megatron
            layout only).
        pipeline_last_layers: Number of layers in the last pipeline stage, if it differs from the others (megatron
            layout only).
        pad_vocab_to: Pad embedding and output layer to this many rows by repeating the last one (megatron layout only).
            Megatron needs a multiple of --make-vocab-size-divisible-by times the size of tensor parallelism. 0: no
            padding.
        shards: Number of files among which to divide the rows of every tensor, as FSDP does (torch_dist, and dcp
            without a target strategy). 0: 8.
        transformer_impl: The --transformer-impl of the Megatron training that loads the target, which determines the
            names of norms in layers with experts (torch_dist layout only). source: from the source's own arguments,
            otherwise transformer_engine.
        common: KEY=VALUE (loss_scale=65536, epoch_num=null) to write into common.json, replacing the source's value
            (checkpoint2 layout only).
        like: Hugging Face directory to model the target on (unified layout only). Its tokenizer and config.json are
            copied, the latter with the dtype that is written; if it has weights, names, shapes and dtypes must match
            them. None: the one that lies beside the source's files, if any.
        max_shard_size: Maximum shard size (unified layout only): 5GB, 512MiB. A larger tensor gets a file of its own.
        unified_naming: File names (unified layout only). huggingface: model-00001-of-00003.safetensors and
            model.safetensors.index.json. mindspore: part0.safetensors and param_name_map.json.
        format: Format of the target's files; same: the source's format.
        prefix: Target files are rank_{r}/{prefix}{r}.{format}.
        append_info: NAME=VALUE (epoch_num=5) to write into every target file, replacing the source's value. Values are
            true, false, a number or text; the prefix text: makes any value a text (version=text:2.0).
        write_crc: Add a CRC to the target's files, which MindSpore checks with crc_check. For .safetensors files, the
            source is read twice.
        encrypt_key: Reference to the key that encrypts the target's files and their records: env:NAME, file:PATH or
            block:NAME. The key is the value in UTF-8, unless it begins with hex: or base64:. None: the target is not
            encrypted.
        encrypt_mode: How the target is encrypted.
        remove_redundancy: Write each slice that several target ranks share on only one of them (see 'replicas');
            MindSpore loads such a checkpoint with remove_redundancy=True.
        replicas: Number of copies of each slice to keep when redundancy is removed.
        decrypt_key: Reference to the key of an encrypted source: env:NAME, file:PATH or block:NAME. The key is the
            value in UTF-8, unless it begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        verify: structure: names, dtypes and shapes. checksum: also every byte, read back from the target. content: also
            every value of every copy, compared with the source. none: no check.
        sha256: target: record the SHA-256 of every file of the target, taken while it is written; a signature and other
            programs (sha256sum) need it. source: also that of every source file, each of which is read whole for it.
            none: neither.
        check_crc: Before planning, check the CRC of source files that have one, which reads them completely once more.
            DCP tensors are checked while they are converted.
        check_replicas: Compare all replicas of each slice in the source; fail if they differ.
        trust_strategy: Use the source strategy even if most sampled contents contradict it, or ranks lack parameters
            that they should have.
        require_signed_by: Convert only a source that is signed by one of these public keys, or by a certificate that
            one of these CAs issued: a PEM file, or its name: env:NAME, file:PATH or block:NAME. Its model.sig must be
            valid and cover every file there; all files are read whole before anything is written. None: no signature is
            needed.
        dry_run: Report what would be done, without writing, removing or waiting.
        sign: Sign the target: reference to an elliptic curve key in PEM (P-256, P-384, P-521), env:NAME, file:PATH or
            block:NAME. model.sig is written beside the files and covers each with its SHA-256; 'reshard verify' and
            model_signing check it. None: no signature.
        sign_passphrase: Reference to the passphrase of an encrypted signing key, in the same forms.
        sign_certificate: Certificates of the signing key, a PEM file with the key's own first, for those who trust a CA
            rather than the key. None: the signature names the key alone.
        settle_seconds: A step is complete once none of its files has changed for this many seconds.
        patience_seconds: Wait for a newer, incomplete step as long as it keeps changing; skip it after this many
            seconds without a change.
        keep_checkpoint_max: Keep this many conversions of this source in the target, the newest ones; older ones are
            removed, even while somebody reads them. 0: keep all.
        keep_checkpoint_per_n_minutes: Keep one conversion per this many minutes, and always the newest. Ignored if a
            maximum number of conversions is set. 0: keep all.
        workers: Number of threads; with Dask, of all its processes together. 0: one per core (with Dask: all that its
            workers have), but at least 8 if source or target is on remote storage, where threads mostly wait.
        memory_limit: Memory for the buffers of all workers of a process, at least 16MiB: 2GiB, 512MiB.
        bandwidth_limit: Bytes per second that a process sends to and receives from remote storage, like rclone's
            bwlimit: 10M, 512k, or 1M:10M for sending and receiving. None: no limit.
        source_storage: Reference to credentials for the source, its strategy and the file of changes: env:NAME,
            file:PATH or block:NAME, whose value is a JSON object of fsspec storage options. None: taken from the
            environment.
        target_storage: Reference to credentials for the target and its strategy, in the same forms.

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
    fp8: Fp8Name = "auto",
    transpose: Texts = (),
    changes: PathOrUrl | None = None,
    preset: PathOrUrl | None = None,
    names: str | None = None,
    switch: Settings = (),
    dialect: DialectName = "auto",
    lora: PathOrUrl | None = None,
    lora_alpha: float = 0.0,
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
    sha256: Sha256LevelName = "none",
    check_crc: bool = True,
    check_replicas: bool = False,
    trust_strategy: bool = False,
    require_signed_by: PathOrUrl | None = None,
    overwrite: bool = False,
    sign: str | None = None,
    sign_passphrase: str | None = None,
    sign_certificate: PathOrUrl | None = None,
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
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.
        auto_strategy: If no source strategy is given, use the one beside the source (../strategy, for example),
            provided that it is the only one there, is older than the checkpoint, and 'reshard doctor' finds it
            consistent.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; for a Checkpoint 2.0, the
            iteration: 40. None: the newest step that every rank has, or the iteration in the tracker file.
        source_prefix: Prefix of the source's files, such as CKP or CKP_1, if several runs saved into its folders.
        root: Where the model's tensors are in a PyTorch file that holds more: the keys of their dict, joined by dots,
            such as state_dict or model.module. None: at the top level.
        ranks: Convert only these target ranks (0-3,7), or files of a unified target, counted from 0; other machines
            convert the rest. None: all.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            says. no: ranks hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy;
            fail if contents look whole and no shape is known.
        unmatched: Parameters that only the source strategy has (often optimizer state): drop and report them, or fail.
        allow_missing: Patterns (adam_*) of target parameters that the source may lack.
        shared_parameters: What to do if pipeline stages of the source hold different contents for the same parameter,
            such as a tied embedding. first: take the first stage's; a number: take that stage's; fail: stop.
        select: weights-only: leave out optimizer moments, gradient accumulators, loss scale and other training state.
        include: Patterns (model.layers.*) of source parameters to convert. Empty: all.
        exclude: Patterns of source parameters to leave out.
        rename: OLD=NEW, a parameter's name and its new name; or re:PATTERN=NEW, a regular expression that matches whole
            names, and the new name, which may refer to groups (re:layers\.(\d+)\.(.*)=h.\1.\2). The first match counts.
        cast: PATTERN=DTYPE (*=bfloat16): cast the floating-point parameters that match, rounding to nearest. The first
            match counts.
        cast_overflow: If a cast makes finite values infinite: fail, or allow it and report how many.
        fp8: What to do with 8-bit weights that have a scale for each block. keep: copy both unchanged. dequantize: make
            them bfloat16. auto: dequantize with a preset, else keep. quantize: make the linear layers of a Hugging Face
            directory fp8, in blocks of 128 x 128 (unified layout only).
        transpose: Patterns of parameters to transpose (reverse their axes). The first match counts.
        changes: A YAML or JSON file with these changes, and with splits and joins of fused parameters (qkv, gate-up).
            Options take precedence over it.
        preset: The model's family (qwen3; 'reshard presets' lists them), or a preset file of your own: converts names
            and layouts of MindFormers, Megatron or torchtitan to Hugging Face's, or the other way round, depending on
            the source's names.
        names: Whose names the target gets: hf, mindformers, megatron or titan, if the preset has them, or one of its
            worlds (mcore, legacy). None: Hugging Face's, or MindFormers' if the source has Hugging Face's.
        switch: NAME=VALUE, a fact that the preset needs and the checkpoint does not show; names=WORLD says whose names
            the source has, where they do not show it.
        dialect: How the target's Hugging Face directory names experts. hub: one by one, as files on the hub.
            transformers5: all of a layer in one parameter, as transformers 5 has them in memory. auto: as the directory
            that the target is modelled on, or else hub.
        lora: A LoRA adapter to merge into the source's weights, before all other changes, or after the preset's if it
            has the names that these make: a directory of PEFT's or MindFormers', or the source itself, if its files
            have both.
        lora_alpha: Alpha of an adapter whose files do not state it. 0: take it from them or the training's YAML.
        training_config: The training's YAML, from which the preset's switches and the adapter's alpha are taken.
        config_json: The model's config.json, or its directory, with the numbers that the preset needs. None: the one in
            the directory that the target is modelled on, or beside the source.
        allow_model: A model_type (kimi_k2) to accept although the preset does not list it: the model must have the
            names and layouts of the preset's family.
        layout: ranks: one file per target rank. unified: whole tensors in a few .safetensors files with an index, as
            Hugging Face's loaders expect. checkpoint2: MindFormers' Checkpoint 2.0, in TARGET/iteration_00000040 with a
            tracker file beside it, or in TARGET itself if it has such a name. torch_dist: Megatron-Core's distributed
            checkpoint (--ckpt-format torch_dist), which any number of ranks can load, in TARGET/iter_0000040 or
            TARGET/release, with a tracker file. dcp: PyTorch's Distributed Checkpoint (.distcp files and .metadata),
            which any number of processes can load. megatron: Megatron-Core's per-rank files (--ckpt-format torch),
            which MindSpeed also loads, in TARGET/iter_0000040 or TARGET/release, with a tracker file. universal:
            DeepSpeed's universal checkpoint, which any world size and ZeRO stage can load, in
            TARGET/global_step40_universal with a file for each tensor, and the tracker latest_universal.
        iteration: Number of the iteration to write (checkpoint2, megatron, torch_dist and universal layouts only).
            None: the one in TARGET's name, or the source's; otherwise a release (Megatron) or 0.
        optimizer_step: Number of optimizer steps behind the converted moments, without skipped ones (universal layout
            only). 0: as recorded in the source.
        attention_heads: Number of attention heads, if neither shapes, nor the source's own arguments, nor the
            config.json of a preset show it (megatron and torch_dist layouts only).
        tensor_parallel: Size of tensor parallelism (megatron layout only).
        pipeline_parallel: Number of pipeline stages (megatron layout only).
        virtual_pipeline: Megatron's --num-virtual-stages-per-pipeline-rank: chunks of layers per pipeline stage
            (megatron layout only).
        expert_parallel: Size of expert parallelism (megatron layout only).
        expert_tensor_parallel: Size of tensor parallelism for experts (megatron layout only). 0: the same as for
            everything else.
        pipeline_first_layers: Number of layers in the first pipeline stage, if it differs from the others (megatron
            layout only).
        pipeline_last_layers: Number of layers in the last pipeline stage, if it differs from the others (megatron
            layout only).
        pad_vocab_to: Pad embedding and output layer to this many rows by repeating the last one (megatron layout only).
            Megatron needs a multiple of --make-vocab-size-divisible-by times the size of tensor parallelism. 0: no
            padding.
        shards: Number of files among which to divide the rows of every tensor, as FSDP does (torch_dist, and dcp
            without a target strategy). 0: 8.
        transformer_impl: The --transformer-impl of the Megatron training that loads the target, which determines the
            names of norms in layers with experts (torch_dist layout only). source: from the source's own arguments,
            otherwise transformer_engine.
        common: KEY=VALUE (loss_scale=65536, epoch_num=null) to write into common.json, replacing the source's value
            (checkpoint2 layout only).
        like: Hugging Face directory to model the target on (unified layout only). Its tokenizer and config.json are
            copied, the latter with the dtype that is written; if it has weights, names, shapes and dtypes must match
            them. None: the one that lies beside the source's files, if any.
        max_shard_size: Maximum shard size (unified layout only): 5GB, 512MiB. A larger tensor gets a file of its own.
        unified_naming: File names (unified layout only). huggingface: model-00001-of-00003.safetensors and
            model.safetensors.index.json. mindspore: part0.safetensors and param_name_map.json.
        format: Format of the target's files; same: the source's format.
        prefix: Target files are rank_{r}/{prefix}{r}.{format}.
        append_info: NAME=VALUE (epoch_num=5) to write into every target file, replacing the source's value. Values are
            true, false, a number or text; the prefix text: makes any value a text (version=text:2.0).
        write_crc: Add a CRC to the target's files, which MindSpore checks with crc_check. For .safetensors files, the
            source is read twice.
        encrypt_key: Reference to the key that encrypts the target's files and their records: env:NAME, file:PATH or
            block:NAME. The key is the value in UTF-8, unless it begins with hex: or base64:. None: the target is not
            encrypted.
        encrypt_mode: How the target is encrypted.
        remove_redundancy: Write each slice that several target ranks share on only one of them (see 'replicas');
            MindSpore loads such a checkpoint with remove_redundancy=True.
        replicas: Number of copies of each slice to keep when redundancy is removed.
        decrypt_key: Reference to the key of an encrypted source: env:NAME, file:PATH or block:NAME. The key is the
            value in UTF-8, unless it begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        recover: If source files are missing, truncated, fail their CRC or are listed as faulty, read their slices from
            other ranks that hold the same, and report it.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.
        verify: structure: names, dtypes and shapes. checksum: also every byte, read back from the target. content: also
            every value of every copy, compared with the source. none: no check.
        sha256: target: record the SHA-256 of every file of the target, taken while it is written; a signature and other
            programs (sha256sum) need it. source: also that of every source file, each of which is read whole for it.
            none: neither.
        check_crc: Before planning, check the CRC of source files that have one, which reads them completely once more.
            DCP tensors are checked while they are converted.
        check_replicas: Compare all replicas of each slice in the source; fail if they differ.
        trust_strategy: Use the source strategy even if most sampled contents contradict it, or ranks lack parameters
            that they should have.
        require_signed_by: Convert only a source that is signed by one of these public keys, or by a certificate that
            one of these CAs issued: a PEM file, or its name: env:NAME, file:PATH or block:NAME. Its model.sig must be
            valid and cover every file there; all files are read whole before anything is written. None: no signature is
            needed.
        overwrite: Replace the checkpoint at the target, which is kept until the new one is complete.
        sign: Sign the target: reference to an elliptic curve key in PEM (P-256, P-384, P-521), env:NAME, file:PATH or
            block:NAME. model.sig is written beside the files and covers each with its SHA-256; 'reshard verify' and
            model_signing check it. None: no signature.
        sign_passphrase: Reference to the passphrase of an encrypted signing key, in the same forms.
        sign_certificate: Certificates of the signing key, a PEM file with the key's own first, for those who trust a CA
            rather than the key. None: the signature names the key alone.
        workers: Number of threads; with Dask, of all its processes together. 0: one per core (with Dask: all that its
            workers have), but at least 8 if source or target is on remote storage, where threads mostly wait.
        memory_limit: Memory for the buffers of all workers of a process, at least 16MiB: 2GiB, 512MiB.
        bandwidth_limit: Bytes per second that a process sends to and receives from remote storage, like rclone's
            bwlimit: 10M, 512k, or 1M:10M for sending and receiving. None: no limit.
        source_storage: Reference to credentials for the source, its strategy and the file of changes: env:NAME,
            file:PATH or block:NAME, whose value is a JSON object of fsspec storage options. None: taken from the
            environment.
        target_storage: Reference to credentials for the target and its strategy, in the same forms.

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
    fp8: Fp8Name = "auto",
    transpose: Texts = (),
    changes: PathOrUrl | None = None,
    preset: PathOrUrl | None = None,
    switch: Settings = (),
    dialect: DialectName = "auto",
    lora: PathOrUrl | None = None,
    lora_alpha: float = 0.0,
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
        auto_strategy: If no source strategy is given, use the one beside the source (../strategy, for example),
            provided that it is the only one there, is older than the checkpoint, and 'reshard doctor' finds it
            consistent.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; for a Checkpoint 2.0, the
            iteration: 40. None: the newest step that every rank has, or the iteration in the tracker file.
        source_prefix: Prefix of the source's files, such as CKP or CKP_1, if several runs saved into its folders.
        root: Where the model's tensors are in a PyTorch file that holds more: the keys of their dict, joined by dots,
            such as state_dict or model.module. None: at the top level.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            says. no: ranks hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy;
            fail if contents look whole and no shape is known.
        unmatched: Parameters that only the source strategy has (often optimizer state): drop and report them, or fail.
        allow_missing: Patterns (adam_*) of target parameters that the source may lack.
        shared_parameters: What to do if pipeline stages of the source hold different contents for the same parameter,
            such as a tied embedding. first: take the first stage's; a number: take that stage's; fail: stop.
        select: weights-only: leave out optimizer moments, gradient accumulators, loss scale and other training state.
        include: Patterns (model.layers.*) of source parameters to convert. Empty: all.
        exclude: Patterns of source parameters to leave out.
        rename: OLD=NEW, a parameter's name and its new name; or re:PATTERN=NEW, a regular expression that matches whole
            names, and the new name, which may refer to groups (re:layers\.(\d+)\.(.*)=h.\1.\2). The first match counts.
        cast: PATTERN=DTYPE (*=bfloat16): cast the floating-point parameters that match, rounding to nearest. The first
            match counts.
        cast_overflow: If a cast makes finite values infinite: fail, or allow it and report how many.
        fp8: What to do with 8-bit weights that have a scale for each block. keep: copy both unchanged. dequantize: make
            them bfloat16. auto: dequantize with a preset, else keep. quantize: make the linear layers of a Hugging Face
            directory fp8, in blocks of 128 x 128 (unified layout only).
        transpose: Patterns of parameters to transpose (reverse their axes). The first match counts.
        changes: A YAML or JSON file with these changes, and with splits and joins of fused parameters (qkv, gate-up).
            Options take precedence over it.
        preset: The model's family (qwen3; 'reshard presets' lists them), or a preset file of your own: converts names
            and layouts of MindFormers, Megatron or torchtitan to Hugging Face's, or the other way round, depending on
            the source's names.
        switch: NAME=VALUE, a fact that the preset needs and the checkpoint does not show; names=WORLD says whose names
            the source has, where they do not show it.
        dialect: How the target's Hugging Face directory names experts. hub: one by one, as files on the hub.
            transformers5: all of a layer in one parameter, as transformers 5 has them in memory. auto: as the directory
            that the target is modelled on, or else hub.
        lora: A LoRA adapter to merge into the source's weights, before all other changes, or after the preset's if it
            has the names that these make: a directory of PEFT's or MindFormers', or the source itself, if its files
            have both.
        lora_alpha: Alpha of an adapter whose files do not state it. 0: take it from them or the training's YAML.
        training_config: The training's YAML, from which the preset's switches and the adapter's alpha are taken.
        config_json: The model's config.json, or its directory, with the numbers that the preset needs. None: the one in
            the directory that the target is modelled on, or beside the source.
        allow_model: A model_type (kimi_k2) to accept although the preset does not list it: the model must have the
            names and layouts of the preset's family.
        append_info: NAME=VALUE (epoch_num=5) to write into every target file, replacing the source's value. Values are
            true, false, a number or text; the prefix text: makes any value a text (version=text:2.0).
        decrypt_key: Reference to the key of an encrypted source: env:NAME, file:PATH or block:NAME. The key is the
            value in UTF-8, unless it begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        recover: If source files are missing, truncated, fail their CRC or are listed as faulty, read their slices from
            other ranks that hold the same, and report it.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.
        check_crc: Before planning, check the CRC of source files that have one, which reads them completely once more.
            DCP tensors are checked while they are converted.
        check_replicas: Compare all replicas of each slice in the source; fail if they differ.
        trust_strategy: Use the source strategy even if most sampled contents contradict it, or ranks lack parameters
            that they should have.
        workers: Number of threads; with Dask, of all its processes together. 0: one per core (with Dask: all that its
            workers have), but at least 8 if source or target is on remote storage, where threads mostly wait.
        memory_limit: Memory for the buffers of all workers of a process, at least 16MiB: 2GiB, 512MiB.
        bandwidth_limit: Bytes per second that a process sends to and receives from remote storage, like rclone's
            bwlimit: 10M, 512k, or 1M:10M for sending and receiving. None: no limit.
        source_storage: Reference to credentials for the source, its strategy and the file of changes: env:NAME,
            file:PATH or block:NAME, whose value is a JSON object of fsspec storage options. None: taken from the
            environment.
        target_storage: Reference to credentials for the target and its strategy, in the same forms.

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
    fp8: Fp8Name = "auto",
    transpose: Texts = (),
    changes: PathOrUrl | None = None,
    preset: PathOrUrl | None = None,
    switch: Settings = (),
    dialect: DialectName = "auto",
    lora: PathOrUrl | None = None,
    lora_alpha: float = 0.0,
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
        auto_strategy: If no source strategy is given, use the one beside the source (../strategy, for example),
            provided that it is the only one there, is older than the checkpoint, and 'reshard doctor' finds it
            consistent.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; for a Checkpoint 2.0, the
            iteration: 40. None: the newest step that every rank has, or the iteration in the tracker file.
        source_prefix: Prefix of the source's files, such as CKP or CKP_1, if several runs saved into its folders.
        root: Where the model's tensors are in a PyTorch file that holds more: the keys of their dict, joined by dots,
            such as state_dict or model.module. None: at the top level.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            says. no: ranks hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy;
            fail if contents look whole and no shape is known.
        unmatched: Parameters that only the source strategy has (often optimizer state): drop and report them, or fail.
        allow_missing: Patterns (adam_*) of target parameters that the source may lack.
        shared_parameters: What to do if pipeline stages of the source hold different contents for the same parameter,
            such as a tied embedding. first: take the first stage's; a number: take that stage's; fail: stop.
        select: weights-only: leave out optimizer moments, gradient accumulators, loss scale and other training state.
        include: Patterns (model.layers.*) of source parameters to convert. Empty: all.
        exclude: Patterns of source parameters to leave out.
        rename: OLD=NEW, a parameter's name and its new name; or re:PATTERN=NEW, a regular expression that matches whole
            names, and the new name, which may refer to groups (re:layers\.(\d+)\.(.*)=h.\1.\2). The first match counts.
        cast: PATTERN=DTYPE (*=bfloat16): cast the floating-point parameters that match, rounding to nearest. The first
            match counts.
        cast_overflow: If a cast makes finite values infinite: fail, or allow it and report how many.
        fp8: What to do with 8-bit weights that have a scale for each block. keep: copy both unchanged. dequantize: make
            them bfloat16. auto: dequantize with a preset, else keep. quantize: make the linear layers of a Hugging Face
            directory fp8, in blocks of 128 x 128 (unified layout only).
        transpose: Patterns of parameters to transpose (reverse their axes). The first match counts.
        changes: A YAML or JSON file with these changes, and with splits and joins of fused parameters (qkv, gate-up).
            Options take precedence over it.
        preset: The model's family (qwen3; 'reshard presets' lists them), or a preset file of your own: converts names
            and layouts of MindFormers, Megatron or torchtitan to Hugging Face's, or the other way round, depending on
            the source's names.
        switch: NAME=VALUE, a fact that the preset needs and the checkpoint does not show; names=WORLD says whose names
            the source has, where they do not show it.
        dialect: How the target's Hugging Face directory names experts. hub: one by one, as files on the hub.
            transformers5: all of a layer in one parameter, as transformers 5 has them in memory. auto: as the directory
            that the target is modelled on, or else hub.
        lora: A LoRA adapter to merge into the source's weights, before all other changes, or after the preset's if it
            has the names that these make: a directory of PEFT's or MindFormers', or the source itself, if its files
            have both.
        lora_alpha: Alpha of an adapter whose files do not state it. 0: take it from them or the training's YAML.
        training_config: The training's YAML, from which the preset's switches and the adapter's alpha are taken.
        config_json: The model's config.json, or its directory, with the numbers that the preset needs. None: the one in
            the directory that the target is modelled on, or beside the source.
        allow_model: A model_type (kimi_k2) to accept although the preset does not list it: the model must have the
            names and layouts of the preset's family.
        append_info: NAME=VALUE (epoch_num=5) to write into every target file, replacing the source's value. Values are
            true, false, a number or text; the prefix text: makes any value a text (version=text:2.0).
        decrypt_key: Reference to the key of an encrypted source: env:NAME, file:PATH or block:NAME. The key is the
            value in UTF-8, unless it begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        recover: If source files are missing, truncated, fail their CRC or are listed as faulty, read their slices from
            other ranks that hold the same, and report it.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.
        check_crc: Before planning, check the CRC of source files that have one, which reads them completely once more.
            DCP tensors are checked while they are converted.
        check_replicas: Compare all replicas of each slice in the source; fail if they differ.
        trust_strategy: Use the source strategy even if most sampled contents contradict it, or ranks lack parameters
            that they should have.
        workers: Number of threads; with Dask, of all its processes together. 0: one per core (with Dask: all that its
            workers have), but at least 8 if source or target is on remote storage, where threads mostly wait.
        memory_limit: Memory for the buffers of all workers of a process, at least 16MiB: 2GiB, 512MiB.
        bandwidth_limit: Bytes per second that a process sends to and receives from remote storage, like rclone's
            bwlimit: 10M, 512k, or 1M:10M for sending and receiving. None: no limit.
        source_storage: Reference to credentials for the source, its strategy and the file of changes: env:NAME,
            file:PATH or block:NAME, whose value is a JSON object of fsspec storage options. None: taken from the
            environment.
        target_storage: Reference to credentials for the target and its strategy, in the same forms.

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
        auto_strategy: If no source strategy is given, use the one beside the source (../strategy, for example),
            provided that it is the only one there, is older than the checkpoint, and 'reshard doctor' finds it
            consistent.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; for a Checkpoint 2.0, the
            iteration: 40. None: the newest step that every rank has, or the iteration in the tracker file.
        root: Where the model's tensors are in a PyTorch file that holds more: the keys of their dict, joined by dots,
            such as state_dict or model.module. None: at the top level.
        source_prefix: Prefix of the source's files, such as CKP or CKP_1, if several runs saved into its folders.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            says. no: ranks hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy;
            fail if contents look whole and no shape is known.
        trust_strategy: Use the source strategy even if most sampled contents contradict it, or ranks lack parameters
            that they should have.
        recover: If source files are missing, truncated, fail their CRC or are listed as faulty, read their slices from
            other ranks that hold the same, and report it.
        fault_ranks: Source ranks (3,7) whose files to ignore; needs 'recover'.
        check_crc: Check the CRC of files that carry one: reads them whole.
        decrypt_key: Reference to the key of an encrypted source: env:NAME, file:PATH or block:NAME. The key is the
            value in UTF-8, unless it begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        workers: Number of threads that read headers. 0: one per core.
        memory_limit: Memory for the buffers of each thread that reads: 2GiB, 512MiB; arrays are not counted.
        bandwidth_limit: Bytes per second that a process sends to and receives from remote storage, like rclone's
            bwlimit: 10M, 512k, or 1M:10M for sending and receiving. None: no limit.

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
    provenance: bool = False,
    signed_by: PathOrUrl | None = None,
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
            writing, and the CRC of files that have one. content: also every value, compared with the source, which must
            still be in its place.
        provenance: Check the statements on provenance and values, too: that they agree with the manifest, and, where
            the source is still in its place, with its files; reads those whole whose SHA-256 was taken.
        signed_by: Check model.sig, too: that its signature is by one of these public keys, or by a certificate that one
            of these CAs issued, and covers every file as it is. A PEM file, or its name: env:NAME, file:PATH or
            block:NAME. None: a signature is only mentioned.
        decrypt_key: Reference to the key of an encrypted checkpoint: env:NAME, file:PATH or block:NAME. The key is the
            value in UTF-8, unless it begins with hex: or base64:. None: it is not encrypted.
        decrypt_mode: How an encrypted checkpoint is encrypted.
        storage: Reference to credentials: env:NAME, file:PATH or block:NAME, whose value is a JSON object of fsspec
            storage options. None: taken from the environment.
        source_storage: Reference to credentials for the source, which the level content and the check of provenance
            read, in the same forms.
        source_decrypt_key: Reference to the key of an encrypted source: env:NAME, file:PATH or block:NAME. The key is
            the value in UTF-8, unless it begins with hex: or base64:. None: the source is not encrypted.
        source_decrypt_mode: How an encrypted source is encrypted.
        bandwidth_limit: Bytes per second that are received from remote storage, like rclone's bwlimit: 10M.

    Raises:
        InputError: options are wrong, or the target has no manifest that can be read.
        StorageError: a storage failed after retries.
    """
    return calls.verify(**locals())


@checked
def sign(
    target: PathOrUrl,
    *,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    key: str | None = None,
    passphrase: str | None = None,
    certificate: PathOrUrl | None = None,
    overwrite: bool = False,
    decrypt_key: str | None = None,
    decrypt_mode: EncryptionModeName = "AES-GCM",
    storage: str | None = None,
) -> SigningReport:
    """Sign a converted checkpoint that is there already; all of its files are checked first.

    Args:
        target: the directory that a conversion made.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.
        key: Reference to an elliptic curve key in PEM (P-256, P-384, P-521): env:NAME, file:PATH or block:NAME.
        passphrase: Reference to the passphrase of an encrypted key, in the same forms.
        certificate: Certificates of the key, a PEM file with the key's own first, for those who trust a CA rather than
            the key. None: the signature names the key alone.
        overwrite: Replace a signature by another key.
        decrypt_key: Reference to the key of an encrypted checkpoint: env:NAME, file:PATH or block:NAME. The key is the
            value in UTF-8, unless it begins with hex: or base64:. None: it is not encrypted.
        decrypt_mode: How an encrypted checkpoint is encrypted.
        storage: Reference to credentials: env:NAME, file:PATH or block:NAME, whose value is a JSON object of fsspec
            storage options. None: taken from the environment.

    Raises:
        InputError: options are wrong, the target has no manifest that can be read, or another key has signed it.
        VerificationError: a file is not as it was written.
        StorageError: a storage failed after retries.
    """
    return calls.sign(**locals())


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
    names: str | None = None,
    fp8: Fp8Name = "auto",
    switch: Settings = (),
    lora: PathOrUrl | None = None,
    lora_alpha: float = 0.0,
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
        auto_strategy: If no strategy is given for a side, use the one beside its checkpoint, provided that it is the
            only one there, is older than the checkpoint, and 'reshard doctor' finds it consistent.
        step_a: Epoch and step of A, as in its file names: 10_5. None: the newest that every rank has.
        step_b: Epoch and step of B.
        root_a: Where the tensors are in a PyTorch file that holds more: the keys of their dict, joined by dots, such as
            state_dict. None: at the top level.
        root_b: The same in the files of B.
        integrated_save_a: yes: every rank of A holds whole tensors (integrated_save), whatever its strategy says. no:
            ranks hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy; fail if
            contents look whole and no shape is known.
        integrated_save_b: The same for the ranks of B.
        trust_strategy_a: Use A's strategy even if contents contradict it, or ranks lack parameters that they should
            have.
        trust_strategy_b: The same for B.
        select: weights-only: do not compare optimizer moments, gradient accumulators, loss scale and other training
            state.
        include: Patterns (model.layers.*) of parameters to compare, by the names of A or of B. Empty: all.
        exclude: Patterns of parameters to ignore, by the names of A or of B.
        preset: Compare B with A after this model family's preset (qwen3; 'reshard presets' lists them): B may be A's
            export to Hugging Face's names, or what A was made from.
        changes: Compare B with A after the changes in this file, and after the preset if one is given: B may be what
            was converted with it. Its selection applies to A.
        names: Whose names B has: hf, mindformers, megatron or titan, or another world of the preset (mcore, legacy).
            None: Hugging Face's, or MindFormers' if A has Hugging Face's.
        fp8: Compare what A becomes by this option of a conversion. quantize: B may be its export to fp8.
        switch: NAME=VALUE, a fact that the preset needs and the checkpoint does not show.
        lora: Compare what A becomes with this LoRA adapter merged, before all other changes, or after the preset's if
            it has the names that these make.
        lora_alpha: Alpha of an adapter whose files do not state it. 0: take it from them or the training's YAML.
        training_config: The training's YAML, from which the preset's switches and the adapter's alpha are taken.
        config_json: The model's config.json, or its directory, for the numbers that the preset needs. None: the one
            beside A or B.
        allow_model: A model_type (kimi_k2) to accept although the preset does not list it: the model must have the
            names and layouts of the preset's family.
        ignore_dtype: Compare floating-point parameters of different dtypes after casting the wider dtype to the other.
        decrypt_key_a: Reference to the key of an encrypted checkpoint: env:NAME, file:PATH or block:NAME. The key is
            the value in UTF-8, unless it begins with hex: or base64:. None: it is not encrypted.
        decrypt_mode_a: How A is encrypted, if it is.
        decrypt_key_b: Reference to the key of an encrypted checkpoint: env:NAME, file:PATH or block:NAME. The key is
            the value in UTF-8, unless it begins with hex: or base64:. None: it is not encrypted.
        decrypt_mode_b: How B is encrypted, if it is.
        storage_a: Reference to credentials: env:NAME, file:PATH or block:NAME, whose value is a JSON object of fsspec
            storage options. None: taken from the environment.
        storage_b: Reference to credentials: env:NAME, file:PATH or block:NAME, whose value is a JSON object of fsspec
            storage options. None: taken from the environment.
        workers: Number of threads. 0: one per core.
        memory_limit: Memory for the buffers of all workers: 2GiB, 512MiB. With less memory, fewer work at once.
        bandwidth_limit: Bytes per second that are received from remote storage, like rclone's bwlimit: 10M.

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
        auto_strategy: If no source strategy is given, use the one beside the source (../strategy, for example),
            provided that it is the only one there, is older than the checkpoint, and 'reshard doctor' finds it
            consistent.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            says. no: ranks hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy;
            fail if contents look whole and no shape is known.
        trust_strategy: Use the source strategy even if most sampled contents contradict it, or ranks lack parameters
            that they should have.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; for a Checkpoint 2.0, the
            iteration: 40. None: the newest step that every rank has, or the iteration in the tracker file.
        source_prefix: Prefix of the source's files, such as CKP or CKP_1, if several runs saved into its folders.
        root: Where the model's tensors are in a PyTorch file that holds more: the keys of their dict, joined by dots,
            such as state_dict or model.module. None: at the top level.
        select: weights-only: without optimizer moments, gradient accumulators, loss scale and other training state.
        include: Patterns (model.layers.*) of its parameters. Empty: all.
        exclude: Patterns of parameters to leave out.
        decrypt_key: Reference to the key of an encrypted source: env:NAME, file:PATH or block:NAME. The key is the
            value in UTF-8, unless it begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        workers: Number of threads; with Dask, of all its processes together. 0: one per core (with Dask: all that its
            workers have), but at least 8 if source or target is on remote storage, where threads mostly wait.
        memory_limit: Memory for the buffers of all workers of a process, at least 16MiB: 2GiB, 512MiB.
        bandwidth_limit: Bytes per second that a process sends to and receives from remote storage, like rclone's
            bwlimit: 10M, 512k, or 1M:10M for sending and receiving. None: no limit.

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
        auto_strategy: If no source strategy is given, use the one beside the source (../strategy, for example),
            provided that it is the only one there, is older than the checkpoint, and 'reshard doctor' finds it
            consistent.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            says. no: ranks hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy;
            fail if contents look whole and no shape is known.
        trust_strategy: Use the source strategy even if most sampled contents contradict it, or ranks lack parameters
            that they should have.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; for a Checkpoint 2.0, the
            iteration: 40. None: the newest step that every rank has, or the iteration in the tracker file.
        source_prefix: Prefix of the source's files, such as CKP or CKP_1, if several runs saved into its folders.
        root: Where the model's tensors are in a PyTorch file that holds more: the keys of their dict, joined by dots,
            such as state_dict or model.module. None: at the top level.
        select: weights-only: without optimizer moments, gradient accumulators, loss scale and other training state.
        include: Patterns (model.layers.*) of its parameters. Empty: all.
        exclude: Patterns of parameters to leave out.
        decrypt_key: Reference to the key of an encrypted source: env:NAME, file:PATH or block:NAME. The key is the
            value in UTF-8, unless it begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        workers: Number of threads; with Dask, of all its processes together. 0: one per core (with Dask: all that its
            workers have), but at least 8 if source or target is on remote storage, where threads mostly wait.
        memory_limit: Memory for the buffers of all workers of a process, at least 16MiB: 2GiB, 512MiB.
        bandwidth_limit: Bytes per second that a process sends to and receives from remote storage, like rclone's
            bwlimit: 10M, 512k, or 1M:10M for sending and receiving. None: no limit.

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
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
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
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.
        auto_strategy: If no source strategy is given, use the one beside the source (../strategy, for example),
            provided that it is the only one there, is older than the checkpoint, and 'reshard doctor' finds it
            consistent.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            says. no: ranks hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy;
            fail if contents look whole and no shape is known.
        trust_strategy: Use the source strategy even if most sampled contents contradict it, or ranks lack parameters
            that they should have.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; for a Checkpoint 2.0, the
            iteration: 40. None: the newest step that every rank has, or the iteration in the tracker file.
        source_prefix: Prefix of the source's files, such as CKP or CKP_1, if several runs saved into its folders.
        workers: Number of threads; with Dask, of all its processes together. 0: one per core (with Dask: all that its
            workers have), but at least 8 if source or target is on remote storage, where threads mostly wait.
        check_crc: Before planning, check the CRC of source files that have one, which reads them completely once more.
            DCP tensors are checked while they are converted.
        allow_missing: Patterns (adam_*) of target parameters that the source may lack.
        decrypt_key: Reference to the key of an encrypted source: env:NAME, file:PATH or block:NAME. The key is the
            value in UTF-8, unless it begins with hex: or base64:. None: the source is not encrypted.
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
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
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
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.
        auto_strategy: If no source strategy is given, use the one beside the source (../strategy, for example),
            provided that it is the only one there, is older than the checkpoint, and 'reshard doctor' finds it
            consistent.
        step: Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; for a Checkpoint 2.0, the
            iteration: 40. None: the newest step that every rank has, or the iteration in the tracker file.
        source_prefix: Prefix of the source's files, such as CKP or CKP_1, if several runs saved into its folders.
        root: Where the model's tensors are in a PyTorch file that holds more: the keys of their dict, joined by dots,
            such as state_dict or model.module. None: at the top level.
        integrated_save: yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy
            says. no: ranks hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy;
            fail if contents look whole and no shape is known.
        decrypt_key: Reference to the key of an encrypted source: env:NAME, file:PATH or block:NAME. The key is the
            value in UTF-8, unless it begins with hex: or base64:. None: the source is not encrypted.
        decrypt_mode: How an encrypted source is encrypted.
        like: Compare the shapes of whole tensors with those of this model: a checkpoint of whole tensors, a Hugging
            Face directory, a DCP checkpoint, a Checkpoint 2.0, or a strategy in JSON.
        preset: The model's family, if 'like' has Hugging Face's names; its config.json gives the shapes.
        switch: NAME=VALUE, a fact that the preset needs and the checkpoint does not show.
        training_config: The training's YAML, from which the preset reads such facts.
        allow_model: A model_type (kimi_k2) to accept although the preset does not list it: the model must have the
            names and layouts of the preset's family.

    Raises:
        InputError: options are wrong, or source or strategy cannot be read at all.
        StorageError: a storage failed after retries.
    """
    return calls.doctor(**locals())

"""Options of reading a checkpoint, in parts that requests are composed of.

pydantic takes fields from the last base of a class to the first.
"""

import os
from typing import Annotated

from pydantic import Field, ValidationInfo

from reshard.core.options.fields import (
    SOURCE_KEY_DESCRIPTION,
    BandwidthLimit,
    FaultyRanks,
    KeyName,
    MemoryLimit,
    Metavar,
    RequiredUrl,
    Step,
    StorageName,
    Url,
    parse_size,
    with_key,
)
from reshard.core.options.validation import RequestModel
from reshard.core.options.written import TEXTS
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.strategy.integrated_save import IntegratedSave, YesOrNo
from reshard.core.text.options import option, spelled


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def check_recovers(fault_ranks: str, info: ValidationInfo) -> str:
    """Return faulty ranks unchanged; raise ValueError if they would be ignored, without `recover`."""
    if fault_ranks.strip() and not info.data.get("recover"):
        raise ValueError(spelled(f"only valid with {option('recover', True)}"))
    return fault_ranks


class SourcePlace(RequestModel):
    """Where the source is, and how it is sharded."""

    source: RequiredUrl = Field(
        description="The checkpoint: a directory with rank_0, rank_1, … in it, a pattern with {rank}, one file, a "
        "directory of whole tensors with an index, like Hugging Face's, a MindFormers Checkpoint 2.0, or a PyTorch "
        "checkpoint: a Distributed Checkpoint (DCP), the ranks' files of Megatron, FSDP or DeepSpeed, or a state dict. "
        "A path or any URL that fsspec supports, without a password."
    )
    source_strategy: Url = Field(
        default="",
        description="How the source is sharded: a strategy file, or a directory of the ranks' strategy files. Empty: "
        "taken from the source's own records or metadata, or from the strategy beside it; a source with none of these "
        "must be a single rank.",
    )
    auto_strategy: bool = Field(
        default=True,
        title="Use the strategy beside the source",
        description="If no source strategy is given, use the one beside the source (../strategy, for example), "
        "provided that it is the only one there, is older than the checkpoint, and 'reshard doctor' finds it "
        "consistent.",
    )
    source_storage: StorageName = Field(
        default="",
        description="Reference to credentials for the source, its strategy and the file of changes: env:NAME, "
        "file:PATH or block:NAME, whose value is a JSON object of fsspec storage options. Empty: taken from the "
        "environment.",
    )
    source_prefix: str = Field(
        default="",
        description="Prefix of the source's files, such as CKP or CKP_1, if several runs saved into its folders.",
    )


class Resources(RequestModel):
    """What the work may use."""

    workers: Annotated[int, Metavar("N")] = Field(
        default=0,
        ge=0,
        le=1024,
        description="Number of threads; with Dask, of all its processes together. 0: one per core (with Dask: all that "
        "its workers have), but at least 8 if source or target is on remote storage, where threads mostly wait.",
    )
    memory_limit: MemoryLimit = Field(
        default="2GiB", description="Memory for the buffers of all workers of a process, at least 16MiB: 2GiB, 512MiB."
    )

    bandwidth_limit: BandwidthLimit = Field(
        default="",
        description="Bytes per second that a process sends to and receives from remote storage, like rclone's "
        "bwlimit: 10M, 512k, or 1M:10M for sending and receiving. Empty: no limit.",
    )

    @property
    def memory_limit_bytes(self) -> int:
        """The memory limit in bytes."""
        return parse_size(self.memory_limit)

    @property
    def worker_count(self) -> int:
        """Ranks, or files, that are worked on at once."""
        return self.workers or core_count()


class SourceChecks(RequestModel):
    """How the source is read, and what is checked of it."""

    check_crc: bool = Field(
        default=True,
        title="Check CRC",
        description="Before planning, check the CRC of source files that have one, which reads them completely once "
        "more. DCP tensors are checked while they are converted.",
    )
    allow_missing: Annotated[list[str], TEXTS, Metavar("PATTERN")] = Field(
        default=[],
        title="Allowed to be missing",
        description="Patterns (adam_*) of target parameters that the source may lack.",
    )
    decrypt_key: KeyName = Field(default="", title="Decryption key", description=SOURCE_KEY_DESCRIPTION)
    decrypt_mode: Annotated[EncryptionMode, with_key("decrypt_key")] = Field(
        default=EncryptionMode.AES_GCM, title="Decryption mode", description="How an encrypted source is encrypted."
    )
    integrated_save: YesOrNo = Field(
        default=IntegratedSave.AUTO,
        description="yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the strategy "
        "says. no: ranks hold slices, even if these are equal. auto: known shapes decide, otherwise the strategy; fail "
        "if contents look whole and no shape is known.",
    )
    trust_strategy: bool = Field(
        default=False,
        description="Use the source strategy even if most sampled contents contradict it, or ranks lack parameters "
        "that they should have.",
    )
    check_replicas: bool = Field(
        default=False, description="Compare all replicas of each slice in the source; fail if they differ."
    )


class SourceSignature(RequestModel):
    """Whose signature the source needs."""

    require_signed_by: Url = Field(
        default="",
        description="Convert only a source that is signed by one of these public keys, or by a certificate that one "
        "of these CAs issued: a PEM file, or its name: env:NAME, file:PATH or block:NAME. Its model.sig must be valid "
        "and cover every file there; all files are read whole before anything is written. Empty: no signature is "
        "needed.",
    )


class SourceOptions(SourceChecks, Resources, SourcePlace):
    """Options of everything that reads a checkpoint."""


class FileChoice(RequestModel):
    """Which of a source's files are read."""

    step: Step = Field(
        default="",
        description="Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint; for a Checkpoint "
        "2.0, the iteration: 40. Empty: the newest step that every rank has, or the iteration in the tracker file.",
    )
    root: str = Field(
        default="",
        description="Where the model's tensors are in a PyTorch file that holds more: the keys of their dict, joined "
        "by dots, such as state_dict or model.module. Empty: at the top level.",
    )
    recover: bool = Field(
        default=False,
        description="If source files are missing, truncated, fail their CRC or are listed as faulty, read their slices "
        "from other ranks that hold the same, and report it.",
    )
    fault_ranks: FaultyRanks = Field(
        default="", title="Faulty ranks", description="Source ranks (3,7) whose files to ignore; needs 'recover'."
    )

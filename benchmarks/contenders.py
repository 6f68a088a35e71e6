"""Who is measured, and how each is called."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.models import BFLOAT16, FLOAT, MEGATRON_STAGES, MEGATRON_TENSOR
from reshard.core.files.model import CheckpointFormat
from reshard.core.tensor.dtypes import DType
from tests.support.s3_server import RCLONE

_HERE = Path(__file__).parent
MINDSPORE_PYTHON = _HERE.parent / ".venv-mindspore" / "bin" / "python"
_ITERATION = "--layout", "checkpoint2", "--iteration", "1", "--common", "global_step=1"
_MEGATRON = (
    *("--layout", "megatron", "--tensor-parallel", str(MEGATRON_TENSOR)),
    *("--pipeline-parallel", str(MEGATRON_STAGES)),
)
_UNVERIFIED = "--verify", "none", "--no-check-crc"
TORCH_PYTHON = _HERE.parent / ".venv-torch" / "bin" / "python"
_TORCH_PROCESSES = 4
VERL_PYTHON = _HERE.parent / ".venv-verl" / "bin" / "python"
_TRAINING_RANKS = 8
"""Of FSDP and of ZeRO-3."""
_EXPORT_SHARDS = "--max-shard-size", "500MB"
"""Several files, as models of real size have with `save_pretrained`'s 5 GB."""
DELAY_SECONDS = 0.03
"""What is added to each request of contenders that are delayed."""
_S3_SOURCE, _S3_TARGET = "source/ckpt", "target/out"
"""Bucket and path of `Job.source` and `Job.target`."""


@dataclass(frozen=True)
class Job:
    """The files of one scenario, all below one directory.

    Attributes:
        directory: what holds them.
        first_ranks: every source rank -> the first that holds the same.
        copies_source: whether it is the source that is copied.
        export_options: how a model is exported to a Hugging Face directory; empty: it is resharded.
    """

    directory: Path
    first_ranks: Mapping[int, int]
    copies_source: bool = False
    export_options: tuple[str, ...] = ()

    @property
    def buckets(self) -> Path:
        """What an object store would serve: a directory for the source, and one for the target."""
        return self.directory / "buckets"

    def source(self, format: CheckpointFormat) -> Path:
        """The source checkpoint in one of its formats."""
        return self.buckets / "source" / format

    @property
    def iterations(self) -> Path:
        """The source checkpoint as a Checkpoint 2.0."""
        return self.buckets / "source" / "checkpoint2"

    @property
    def dcp(self) -> Path:
        """The source checkpoint as one of PyTorch's."""
        return self.buckets / "source" / "dcp"

    @property
    def megatron(self) -> Path:
        """The source checkpoint as Megatron's ranks save it."""
        return self.buckets / "source" / "megatron"

    @property
    def fsdp(self) -> Path:
        """The source checkpoint as FSDP's ranks save it."""
        return self.buckets / "source" / "fsdp"

    @property
    def zero3(self) -> Path:
        """The source checkpoint as ZeRO-3's ranks save it."""
        return self.buckets / "source" / "zero3"

    @property
    def target(self) -> Path:
        """Where the contenders write to, one after another."""
        return self.buckets / "target" / "out"

    @property
    def copied(self) -> Path:
        """The checkpoint that is copied by those who only copy."""
        return self.source(CheckpointFormat.CKPT) if self.copies_source else self.directory / "kept"

    @property
    def scratch(self) -> Path:
        """Where contenders put what they need meanwhile."""
        return self.directory / "scratch"

    @property
    def like(self) -> Path:
        """The directory with the config.json of an export."""
        return self.directory / "like"

    @property
    def adapter(self) -> Path:
        """The adapter that is merged into the checkpoint that is copied."""
        return self.directory / "adapter"

    @property
    def strategies(self) -> tuple[str, str]:
        """The strategy files of source and target."""
        return str(self.directory / "source_strategy.ckpt"), str(self.directory / "target_strategy.ckpt")


@dataclass(frozen=True)
class Contender:
    """One way of doing the job.

    Attributes:
        name: in results and progress lines.
        title: in tables.
        command: what is run.
        source_format: the format that it reads, and writes.
        needs_server: whether it needs a running Prefect server.
        is_mindspore: whether it needs MindSpore.
        converts: whether its target has to be looked at.
        counted: field of the JSON that it prints with the seconds that count; empty: those of the whole process.
        needs_store: whether source and target are buckets for it.
        delayed: whether each request that it makes of the object store waits for `DELAY_SECONDS`.
        preparation: makes a source of its own from `source_format` or from the target that `cp` copies, once and
            unmeasured.
        target_dtype: of the values that it writes.
        merges: whether it merges an adapter into them.
    """

    name: str
    title: str
    command: Callable[[Job], Sequence[str]]
    source_format: CheckpointFormat = CheckpointFormat.CKPT
    needs_server: bool = False
    is_mindspore: bool = False
    converts: bool = True
    counted: str = ""
    needs_store: bool = False
    delayed: bool = False
    preparation: Callable[[Job], Sequence[str]] | None = None
    target_dtype: DType = FLOAT
    merges: bool = False


def _reshard(*options: str) -> Callable[[Job], Sequence[str]]:
    return lambda job: _convert(job, str(job.source(CheckpointFormat.CKPT)), str(job.target), *options)


def _reshard_s3(*options: str) -> Callable[[Job], Sequence[str]]:
    direct = "--engine", "direct", *options
    return lambda job: _convert(job, f"s3://{_S3_SOURCE}", f"s3://{_S3_TARGET}", *direct)


def _from_s3(job: Job) -> Sequence[str]:
    return _convert(job, f"s3://{_S3_SOURCE}", str(job.target), "--engine", "direct", "--verify", "none")


def _to_s3(*options: str) -> Callable[[Job], Sequence[str]]:
    direct = "--engine", "direct", *options
    return lambda job: _convert(job, str(job.source(CheckpointFormat.CKPT)), f"s3://{_S3_TARGET}", *direct)


def _convert(job: Job, source: str, target: str, *options: str) -> Sequence[str]:
    source_strategy, target_strategy = job.strategies
    wanted = ["--target-strategy", target_strategy]
    if job.export_options:
        wanted = [*job.export_options, "--like", str(job.like), "--layout", "unified", *_EXPORT_SHARDS]
    return [
        str(Path(sys.executable).with_name("reshard")),
        "convert",
        source,
        target,
        *("--source-strategy", source_strategy),
        *wanted,
        "--json",
        *options,
    ]


def _reshard_safetensors(*options: str) -> Callable[[Job], Sequence[str]]:
    direct = "--engine", "direct", *options
    return lambda job: _convert(job, str(job.source(CheckpointFormat.SAFETENSORS)), str(job.target), *direct)


def _as_iteration(job: Job) -> Sequence[str]:
    source, _ = job.strategies
    options = "--target-strategy", source, *_ITERATION, "--engine", "direct", "--verify", "none"
    return _convert(job, str(job.source(CheckpointFormat.SAFETENSORS)), str(job.iterations), *options)


def _from_iteration(job: Job) -> Sequence[str]:
    _, target = job.strategies
    reshard = str(Path(sys.executable).with_name("reshard"))
    options = "--target-strategy", target, "--engine", "direct", "--json"
    return [reshard, "convert", str(job.iterations), str(job.target), *options]


def _as_dcp(job: Job) -> Sequence[str]:
    """The command that makes PyTorch's checkpoint: whole tensors are its way there."""
    source, _ = job.strategies
    whole = job.scratch / "whole"
    given = "--source-strategy", source, "--layout", "unified", "--max-shard-size", "1TB"
    reshard = str(Path(sys.executable).with_name("reshard"))
    options = "--engine", "direct", "--verify", "none", "--json"
    convert = [reshard, "convert", str(job.source(CheckpointFormat.CKPT)), str(whole), *given, *options]
    save = _torch(_TORCH_PROCESSES, "torch_dcp.py", "save", whole / "model.safetensors", job.dcp)
    return _script(convert, save, ["rm", "-r", str(job.scratch)])


def _torch(processes: int, script: str, task: str, source: Path, target: Path) -> Sequence[str]:
    run = [str(TORCH_PYTHON), "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    return [*run, str(_HERE / script), task, str(source), str(target)]


def _from_dcp(*options: str) -> Callable[[Job], Sequence[str]]:
    def command(job: Job) -> Sequence[str]:
        _, target = job.strategies
        reshard = str(Path(sys.executable).with_name("reshard"))
        given = "--target-strategy", target, "--engine", "direct", "--json", *options
        return [reshard, "convert", str(job.dcp), str(job.target), *given]

    return command


def _as_megatron(job: Job) -> Sequence[str]:
    source, _ = job.strategies
    ranks, given = str(job.source(CheckpointFormat.CKPT)), ("--source-strategy", source)
    return _plain(ranks, job.megatron, *given, *_MEGATRON, "--verify", "none")


def _from_megatron(*options: str) -> Callable[[Job], Sequence[str]]:
    def command(job: Job) -> Sequence[str]:
        like = "--like", str(job.like), "--layout", "unified", *_EXPORT_SHARDS
        return _plain(str(job.megatron), job.target, *job.export_options[:2], *like, *options)

    return command


def _to_megatron(*options: str) -> Callable[[Job], Sequence[str]]:
    return lambda job: _plain(str(job.copied), job.target, *job.export_options[:2], *_MEGATRON, *options)


def _as_torch_ranks(task: str, target: Callable[[Job], Path]) -> Callable[[Job], Sequence[str]]:
    return lambda job: _torch(_TRAINING_RANKS, "torch_ranks.py", task, job.copied, target(job))


def _from_torch_ranks(source: Callable[[Job], Path], *options: str) -> Callable[[Job], Sequence[str]]:
    unified = "--layout", "unified", *_EXPORT_SHARDS
    return lambda job: _plain(str(source(job)), job.target, "--like", str(job.like), *unified, *options)


def _verl(job: Job) -> Sequence[str]:
    merge = [str(VERL_PYTHON), "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    return _silent(*merge, "--local_dir", str(job.fsdp), "--target_dir", str(job.target))


def _deepspeed(job: Job) -> Sequence[str]:
    gather = [str(TORCH_PYTHON), "-m", "deepspeed.utils.zero_to_fp32", str(job.zero3), str(job.target)]
    return _silent(*gather, "--safe_serialization", "--max_shard_size", "500MB")


def _as_adapter(job: Job) -> Sequence[str]:
    return [sys.executable, "-m", "benchmarks.adapters", str(job.copied), str(job.adapter)]


def _merge(*options: str) -> Callable[[Job], Sequence[str]]:
    merged = "--layout", "unified", *_EXPORT_SHARDS
    return lambda job: _plain(str(job.copied), job.target, "--lora", str(job.adapter), *merged, *options)


def _peft(job: Job) -> Sequence[str]:
    paths = str(job.copied), str(job.adapter), str(job.target)
    return _silent(str(TORCH_PYTHON), str(_HERE / "peft_merge.py"), *paths)


def _silent(*command: str) -> Sequence[str]:
    """A command that prints for people, not JSON."""
    return ["sh", "-c", 'exec "$@" >&2', "sh", *command]


def _plain(source: str, target: Path, *options: str) -> Sequence[str]:
    reshard = str(Path(sys.executable).with_name("reshard"))
    return [reshard, "convert", source, str(target), "--engine", "direct", "--json", *options]


def _rclone_copy(job: Job) -> Sequence[str]:
    return _script(_download(job), _upload(job.copied))


def _by_way_of_disk(job: Job) -> Sequence[str]:
    converted = job.scratch / "converted"
    options = "--engine", "direct", "--verify", "none"
    # reshard wants all ranks to be there
    links = [
        ["cp", "-rl", f"{_downloaded(job)}/rank_{first}", f"{_downloaded(job)}/rank_{rank}"]
        for rank, first in job.first_ranks.items()
        if rank != first
    ]
    convert = _convert(job, str(_downloaded(job)), str(converted), *options)
    return _script(_download(job), *links, convert, _upload(converted))


def _download(job: Job) -> Sequence[str]:
    needed = ",".join(map(str, sorted(set(job.first_ranks.values()))))
    return [str(RCLONE), "copy", f":s3:{_S3_SOURCE}", str(_downloaded(job)), f"--include=rank_{{{needed}}}/**"]


def _downloaded(job: Job) -> Path:
    return job.scratch / "downloaded"


def _upload(checkpoint: Path) -> Sequence[str]:
    return [str(RCLONE), "copy", str(checkpoint), f":s3:{_S3_TARGET}", "--exclude=.reshard/**"]


def _script(*commands: Sequence[str]) -> Sequence[str]:
    return ["sh", "-c", " && ".join(map(shlex.join, commands))]


def _mindspore(format: CheckpointFormat, processes: int) -> Callable[[Job], Sequence[str]]:
    def command(job: Job) -> Sequence[str]:
        script = str(_HERE / "mindspore_transform.py")
        paths = str(job.source(format)), str(job.target), *job.strategies
        return [str(MINDSPORE_PYTHON), script, *paths, format.value, str(processes)]

    return command


def _plan(stages: int) -> Callable[[Job], Sequence[str]]:
    return lambda _: [sys.executable, "-m", "benchmarks.planning", str(stages)]


def _overhead(kind: str, ranks: int) -> Callable[[Job], Sequence[str]]:
    return lambda _: [sys.executable, "-m", "benchmarks.overhead", kind, str(ranks)]


CP = Contender("cp", "`cp -r`", lambda job: ["cp", "-r", str(job.copied), str(job.target)], converts=False)
NONE = Contender("none", "reshard, not verified", _reshard("--engine", "direct", "--verify", "none"))
CHECKSUM = Contender("checksum", "reshard, every byte verified", _reshard("--engine", "direct", "--verify", "checksum"))
CONTENT = Contender(
    "content", "reshard, every value compared with the source's", _reshard("--engine", "direct", "--verify", "content")
)
SHA256 = Contender(
    "sha256", "the same, with the SHA-256 of its files", _reshard("--engine", "direct", "--sha256", "target")
)
SHA256_OF_SOURCE = Contender(
    "sha256-of-source", "and of the source's files", _reshard("--engine", "direct", "--sha256", "source")
)
SAFETENSORS = Contender(
    "safetensors",
    "reshard, `.safetensors`, every byte verified",
    _reshard_safetensors(),
    CheckpointFormat.SAFETENSORS,
)
FROM_CHECKPOINT2 = Contender(
    "from-checkpoint2",
    "reshard from Checkpoint 2.0, every byte verified",
    _from_iteration,
    CheckpointFormat.SAFETENSORS,
    preparation=_as_iteration,
)
TO_CHECKPOINT2 = Contender(
    "to-checkpoint2",
    "reshard to Checkpoint 2.0, every byte verified",
    _reshard_safetensors(*_ITERATION),
    CheckpointFormat.SAFETENSORS,
    converts=False,
)
FROM_DCP_NONE = Contender(
    "from-dcp-none",
    "reshard from DCP, not verified",
    _from_dcp(*_UNVERIFIED),
    preparation=_as_dcp,
)
FROM_DCP = Contender("from-dcp", "reshard from DCP, every byte verified", _from_dcp())
TO_DCP = Contender(
    "to-dcp",
    "reshard to DCP, every byte verified",
    _reshard("--layout", "dcp", "--engine", "direct"),
    converts=False,
)
TORCH = Contender(
    "torch",
    "PyTorch, 4 processes: load, save",
    lambda job: _torch(_TORCH_PROCESSES, "torch_dcp.py", "reshard", job.dcp, job.target),
    converts=False,
)
FROM_MEGATRON_NONE = Contender(
    "from-megatron-none",
    "reshard from Megatron to Hugging Face, not verified",
    _from_megatron(*_UNVERIFIED),
    preparation=_as_megatron,
)
FROM_MEGATRON = Contender(
    "from-megatron", "reshard from Megatron to Hugging Face, every byte verified", _from_megatron()
)
TO_MEGATRON_NONE = Contender(
    "to-megatron-none",
    "reshard from Hugging Face to Megatron, not verified",
    _to_megatron("--verify", "none"),
)
TO_MEGATRON = Contender("to-megatron", "reshard from Hugging Face to Megatron, every byte verified", _to_megatron())
FROM_FSDP_NONE = Contender(
    "from-fsdp-none",
    "reshard from FSDP, not verified",
    _from_torch_ranks(lambda job: job.fsdp, *_UNVERIFIED),
    preparation=_as_torch_ranks("fsdp", lambda job: job.fsdp),
)
FROM_FSDP = Contender("from-fsdp", "reshard from FSDP, every byte verified", _from_torch_ranks(lambda job: job.fsdp))
FROM_FSDP_BFLOAT16 = Contender(
    "from-fsdp-bfloat16",
    "reshard from FSDP, cast to bfloat16, every byte verified",
    _from_torch_ranks(lambda job: job.fsdp, "--cast", "*=bfloat16"),
    target_dtype=BFLOAT16,
)
VERL = Contender("verl", "verl's `model_merger`, which writes bfloat16", _verl, target_dtype=BFLOAT16)
FROM_ZERO3_NONE = Contender(
    "from-zero3-none",
    "reshard from ZeRO-3, not verified",
    _from_torch_ranks(lambda job: job.zero3, *_UNVERIFIED),
    preparation=_as_torch_ranks("zero3", lambda job: job.zero3),
)
FROM_ZERO3 = Contender(
    "from-zero3", "reshard from ZeRO-3, every byte verified", _from_torch_ranks(lambda job: job.zero3)
)
DEEPSPEED = Contender("deepspeed", "DeepSpeed's `zero_to_fp32`", _deepspeed)
TO_BFLOAT16 = Contender(
    "to-bfloat16",
    "reshard to bfloat16, not verified",
    _reshard("--engine", "direct", "--verify", "none", "--cast", "*=bfloat16"),
    target_dtype=BFLOAT16,
)
NOT_MERGED = Contender(
    "not-merged",
    "reshard without the adapter, every byte verified",
    lambda job: _plain(str(job.copied), job.target, "--layout", "unified", *_EXPORT_SHARDS),
    target_dtype=BFLOAT16,
)
MERGE_NONE = Contender(
    "merge-none",
    "reshard, merged, not verified",
    _merge("--verify", "none"),
    preparation=_as_adapter,
    target_dtype=BFLOAT16,
    merges=True,
)
MERGE = Contender("merge", "reshard, merged, every byte verified", _merge(), target_dtype=BFLOAT16, merges=True)
PEFT = Contender("peft", "peft's `merge_and_unload`", _peft, target_dtype=BFLOAT16, merges=True)
FLOW = Contender(
    "flow",
    "reshard as a Prefect flow, every byte verified",
    _reshard("--engine", "prefect", "--verify", "checksum"),
    needs_server=True,
)
MINDSPORE_CKPT = Contender(
    "mindspore-ckpt",
    "MindSpore, `.ckpt`",
    _mindspore(CheckpointFormat.CKPT, 1),
    is_mindspore=True,
    counted="transform_seconds",
)
MINDSPORE_SAFETENSORS = Contender(
    "mindspore-safetensors",
    "MindSpore, `.safetensors`, 2 processes",
    _mindspore(CheckpointFormat.SAFETENSORS, 2),
    CheckpointFormat.SAFETENSORS,
    is_mindspore=True,
    counted="transform_seconds",
)
PLAN_FLAT = Contender("plan-1", "plan, 1 pipeline stage", _plan(1), converts=False, counted="plan_seconds")
PLAN_STAGES = Contender("plan-16", "plan, 16 pipeline stages", _plan(16), converts=False, counted="plan_seconds")
S3_COPY = Contender("s3-rclone", "`rclone copy`, down and up", _rclone_copy, converts=False, needs_store=True)
S3_NAIVE = Contender("s3-naive", "`rclone copy` down, reshard, `rclone copy` up", _by_way_of_disk, needs_store=True)
S3_NONE = Contender("s3-none", "reshard, not verified", _reshard_s3("--verify", "none"), needs_store=True)
S3_CHECKSUM = Contender(
    "s3-checksum", "reshard, every byte verified", _reshard_s3("--verify", "checksum"), needs_store=True
)
S3_LATENCY = Contender(
    "s3-latency",
    "reshard, not verified, each request 30 ms later",
    _reshard_s3("--verify", "none"),
    needs_store=True,
    delayed=True,
)
S3_LITTLE_MEMORY = Contender(
    "s3-little-memory",
    "reshard, not verified, `--memory-limit 256MiB`",
    _reshard_s3("--verify", "none", "--memory-limit", "256MiB"),
    needs_store=True,
)
S3_DOWNLOAD = Contender("s3-download", "`rclone copy`", _download, converts=False, needs_store=True)
S3_TO_DISK = Contender("s3-to-disk", "reshard, not verified", _from_s3, needs_store=True)
S3_DOWNLOAD_LATENCY = replace(
    S3_DOWNLOAD,
    name="s3-download-latency",
    title="`rclone copy`, each request 30 ms later",
    delayed=True,
)
S3_TO_DISK_LATENCY = replace(
    S3_TO_DISK,
    name="s3-to-disk-latency",
    title="reshard, not verified, each request 30 ms later",
    delayed=True,
)
S3_UPLOAD = Contender("s3-upload", "`rclone copy`", lambda job: _upload(job.copied), converts=False, needs_store=True)
S3_FROM_DISK = Contender("s3-from-disk", "reshard, not verified", _to_s3("--verify", "none"), needs_store=True)
S3_FROM_DISK_CHECKSUM = Contender(
    "s3-from-disk-checksum", "reshard, every byte verified", _to_s3("--verify", "checksum"), needs_store=True
)

OVERHEAD_RANKS = (4, 16, 100, 1000, 4096)
OVERHEAD = tuple(
    Contender(
        f"overhead-{kind}-{ranks}",
        f"{title}, {ranks} ranks",
        _overhead(kind, ranks),
        needs_server=True,
        converts=False,
        counted="flow_seconds",
    )
    for kind, title in (("threads", "threads"), ("local", "local Dask cluster"), ("cluster", "running Dask cluster"))
    for ranks in OVERHEAD_RANKS
)

CONTENDERS = {
    contender.name: contender
    for contender in (
        CP,
        NONE,
        CHECKSUM,
        CONTENT,
        SHA256,
        SHA256_OF_SOURCE,
        SAFETENSORS,
        FROM_CHECKPOINT2,
        TO_CHECKPOINT2,
        FROM_DCP_NONE,
        FROM_DCP,
        TO_DCP,
        TORCH,
        FROM_MEGATRON_NONE,
        FROM_MEGATRON,
        TO_MEGATRON_NONE,
        TO_MEGATRON,
        FROM_FSDP_NONE,
        FROM_FSDP,
        FROM_FSDP_BFLOAT16,
        VERL,
        FROM_ZERO3_NONE,
        FROM_ZERO3,
        DEEPSPEED,
        NOT_MERGED,
        MERGE_NONE,
        MERGE,
        PEFT,
        FLOW,
        MINDSPORE_CKPT,
        MINDSPORE_SAFETENSORS,
        PLAN_FLAT,
        PLAN_STAGES,
        S3_COPY,
        S3_NAIVE,
        S3_NONE,
        S3_CHECKSUM,
        S3_LATENCY,
        S3_LITTLE_MEMORY,
        S3_DOWNLOAD,
        S3_TO_DISK,
        S3_DOWNLOAD_LATENCY,
        S3_TO_DISK_LATENCY,
        S3_UPLOAD,
        S3_FROM_DISK,
        S3_FROM_DISK_CHECKSUM,
        *OVERHEAD,
    )
}

"""What is measured: each scenario is a model, who converts it, and how often."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import (
    CHECKSUM,
    CONTENT,
    CP,
    DEEPSPEED,
    FLOW,
    FROM_CHECKPOINT2,
    FROM_DCP,
    FROM_DCP_NONE,
    FROM_FSDP,
    FROM_FSDP_BFLOAT16,
    FROM_FSDP_NONE,
    FROM_MEGATRON,
    FROM_MEGATRON_NONE,
    FROM_ZERO3,
    FROM_ZERO3_NONE,
    MERGE,
    MERGE_NONE,
    MINDSPORE_CKPT,
    MINDSPORE_SAFETENSORS,
    NONE,
    NOT_MERGED,
    OVERHEAD,
    PEFT,
    PLAN_FLAT,
    PLAN_STAGES,
    S3_CHECKSUM,
    S3_COPY,
    S3_DOWNLOAD,
    S3_DOWNLOAD_LATENCY,
    S3_FROM_DISK,
    S3_FROM_DISK_CHECKSUM,
    S3_LATENCY,
    S3_LITTLE_MEMORY,
    S3_NAIVE,
    S3_NONE,
    S3_TO_DISK,
    S3_TO_DISK_LATENCY,
    S3_UPLOAD,
    SAFETENSORS,
    SHA256,
    SHA256_OF_SOURCE,
    TO_BFLOAT16,
    TO_CHECKPOINT2,
    TO_DCP,
    TO_MEGATRON,
    TO_MEGATRON_NONE,
    TORCH,
    TORCH_PYTHON,
    VERL,
    VERL_PYTHON,
    Contender,
)
from benchmarks.models import (
    Model,
    cut_by,
    experts_transformer,
    fused_transformer,
    matrices,
    megatron_transformer,
    transformer,
)

_ROWS, _COLUMNS = 0, 1
_RESHARD = (CP, NONE, CHECKSUM)
_MINDSPORE = (MINDSPORE_CKPT,)


@dataclass(frozen=True)
class Scenario:
    """One comparison.

    Attributes:
        name: what it is called on the command line.
        title: what it is, for tables.
        contenders: who takes part, in this order in tables, in a random one in each round.
        model: makes what is converted; None: nothing is.
        rounds: how often, if nobody says otherwise.
        once: who takes part in the first round only, because it takes so long.
        note: what has to be known of it, below its title.
        kept_by: who makes the target that `cp` copies.
        copies_source: `cp` copies the source, which has no replicas, so the same bytes, and needs no room beside it;
            else a target.
        pythons: those of other environments that its files and contenders need; MindSpore's, which may be left out, is
            not among them.
    """

    name: str
    title: str
    contenders: tuple[Contender, ...]
    model: Callable[[], Model] | None
    rounds: int = 3
    once: tuple[Contender, ...] = ()
    note: str = ""
    kept_by: Contender = NONE
    copies_source: bool = False
    pythons: tuple[Path, ...] = ()

    @property
    def needs_store(self) -> bool:
        """Whether source and target are in buckets."""
        return any(contender.needs_store for contender in self.contenders + self.once)


def _llama() -> Model:
    return transformer(hidden=1024, layers=8, feed_forward=2816, vocabulary=32000)


def _fused_llama() -> Model:
    return fused_transformer(hidden=2048, layers=8, feed_forward=5632, vocabulary=32000)


def _fan(source: int, target: int, axis: int) -> Callable[[], Model]:
    return lambda: matrices(16, (4096, 4096), cut_by(axis, source), cut_by(axis, target))


def _columns() -> Model:
    return matrices(32, (2048, 4096), cut_by(_COLUMNS, 8), cut_by(_COLUMNS, 4))


def _small() -> Model:
    return matrices(20_000, (32, 32), cut_by(_ROWS, 8), cut_by(_ROWS, 4))


def _tiny() -> Model:
    return matrices(1, (64, 64), cut_by(_ROWS, 1), cut_by(_ROWS, 2))


def _huge() -> Model:
    return matrices(1, (2**15, 2**15), cut_by(_ROWS, 8), cut_by(_COLUMNS, 4))


def _files(ranks: int) -> Callable[[], Model]:
    """Small files, as many of them on both sides, of which no two are alike."""
    return lambda: matrices(4, (1024, 1024), cut_by(_COLUMNS, ranks), cut_by(_ROWS, ranks))


_OBJECT_STORE = """\
The S3 server is nginx on the same machine, which does next to nothing: it sends objects by sendfile, receives them into
files, and checks no signature; "server" is the processor time that it took beside the contender. `rclone copy` has its
default settings, and finds etags that are no digests, so it checks none of what it reads."""

_BETWEEN_BUCKETS = f"""\
{_OBJECT_STORE}

`rclone copy` is given the four source ranks that hold everything, the others being their replicas, and then a target
that was converted before. Parts of an upload become one file when somebody reads it: who verifies waits for that."""

_DCP = """\
PyTorch's processes load the shards by rows, as they were saved, into shards by columns, and save those: another
conversion, of as many bytes. Starting them and importing torch is part of the time. The way to DCP
begins with MindSpore's files of 8 ranks."""

_VENDORS = """\
The vendor's command is run as it is: starting Python and importing torch is part of the time."""

_MERGED = """\
Source and target are Hugging Face directories. The size above is that of float32; `cp -r` copies half as much. Starting
Python and importing torch is part of peft's time."""

_OVERHEAD = """\
Two workers, ranks of next to no work. In the whole process are the start of Python and of a cluster, and the time until
Prefect's server has recorded all task runs."""

SCENARIOS = (
    Scenario(
        "main",
        "Llama with Adam moments, 8 → 4 ranks, optimizer parallel",
        (CP, NONE, CHECKSUM, CONTENT, FLOW, MINDSPORE_CKPT, MINDSPORE_SAFETENSORS),
        _llama,
        rounds=5,
    ),
    Scenario(
        "checkpoint2",
        "the first, as `.safetensors` and as MindFormers' Checkpoint 2.0",
        (CP, SAFETENSORS, FROM_CHECKPOINT2, TO_CHECKPOINT2),
        _llama,
        rounds=5,
    ),
    Scenario("sha256", "the first, with SHA-256", (CP, CHECKSUM, SHA256, SHA256_OF_SOURCE), _llama),
    Scenario(
        "dcp",
        "the first, as PyTorch's Distributed Checkpoint of 4 ranks",
        (CP, FROM_DCP_NONE, FROM_DCP, TO_DCP, TORCH),
        _llama,
        note=_DCP,
        pythons=(TORCH_PYTHON,),
    ),
    Scenario("columns", "32 matrices cut by columns, 8 → 4 ranks", _RESHARD, _columns, once=_MINDSPORE),
    Scenario("small", "20,000 parameters of 4 KiB, 8 → 4 ranks", _RESHARD, _small, once=_MINDSPORE),
    Scenario("huge", "one parameter, 8 ranks by rows → 4 by columns", _RESHARD, _huge, copies_source=True),
    Scenario("fan-in-rows", "64 ranks by rows → 1", _RESHARD, _fan(64, 1, _ROWS), once=_MINDSPORE),
    Scenario("fan-in-columns", "64 ranks by columns → 1", _RESHARD, _fan(64, 1, _COLUMNS), once=_MINDSPORE),
    Scenario("fan-out-rows", "1 → 64 ranks by rows", _RESHARD, _fan(1, 64, _ROWS), once=_MINDSPORE),
    Scenario("fan-out-columns", "1 → 64 ranks by columns", _RESHARD, _fan(1, 64, _COLUMNS), once=_MINDSPORE),
    Scenario(
        "export-fused",
        "weights to Hugging Face: grouped q, k, v in one, gate and up row by row, 8 ranks → 5 files",
        _RESHARD,
        _fused_llama,
    ),
    Scenario(
        "export-experts",
        "weights to Hugging Face: 64 experts stacked and transposed, 8 ranks → files of 500 MB",
        _RESHARD,
        lambda: experts_transformer(hidden=1024, layers=12, experts=64, expert_hidden=384, vocabulary=8192),
    ),
    Scenario(
        "megatron",
        "weights of a Qwen3, from Megatron's 8 ranks (4 tensor x 2 pipeline parallel) to Hugging Face, and back",
        (CP, FROM_MEGATRON_NONE, FROM_MEGATRON, TO_MEGATRON_NONE, TO_MEGATRON),
        lambda: megatron_transformer(hidden=1024, layers=24, feed_forward=2816, vocabulary=32000),
    ),
    Scenario(
        "fsdp",
        "weights of a llama, from FSDP's 8 ranks, float32, to Hugging Face",
        (CP, FROM_FSDP_NONE, FROM_FSDP, FROM_FSDP_BFLOAT16, VERL),
        _fused_llama,
        rounds=5,
        note=_VENDORS,
        pythons=(TORCH_PYTHON, VERL_PYTHON),
    ),
    Scenario(
        "zero3",
        "weights of a llama, from ZeRO-3's 8 ranks, float32, to Hugging Face",
        (CP, FROM_ZERO3_NONE, FROM_ZERO3, DEEPSPEED),
        _fused_llama,
        rounds=5,
        note=_VENDORS,
        pythons=(TORCH_PYTHON,),
    ),
    Scenario(
        "merge",
        "a LoRA adapter of rank 16 merged into a llama, bfloat16",
        (CP, NOT_MERGED, MERGE_NONE, MERGE, PEFT),
        lambda: fused_transformer(hidden=2048, layers=10, feed_forward=5632, vocabulary=32000),
        rounds=5,
        note=_MERGED,
        kept_by=TO_BFLOAT16,
        pythons=(TORCH_PYTHON,),
    ),
    Scenario(
        "large",
        "the first, 3.2 times larger",
        (NONE, CHECKSUM),
        lambda: transformer(hidden=2048, layers=8, feed_forward=5632, vocabulary=32000),
    ),
    Scenario("start", "16 KiB, 1 → 2 ranks", (NONE, CHECKSUM), _tiny, rounds=5),
    Scenario("flow-8", "small files, 8 → 8 ranks", (CHECKSUM, FLOW), _files(8)),
    Scenario("flow-64", "small files, 64 → 64 ranks", (CHECKSUM, FLOW), _files(64)),
    Scenario(
        "from-bucket",
        "the first, from a bucket on nginx to this machine's memory",
        (S3_DOWNLOAD, S3_TO_DISK),
        _llama,
        rounds=5,
        note=_OBJECT_STORE,
        copies_source=True,
    ),
    Scenario(
        "from-bucket-late",
        "the same, each request of both 30 ms later",
        (S3_DOWNLOAD_LATENCY, S3_TO_DISK_LATENCY),
        _llama,
        rounds=5,
        copies_source=True,
    ),
    Scenario(
        "to-bucket",
        "the first, from this machine's memory to a bucket on nginx",
        (S3_UPLOAD, S3_FROM_DISK, S3_FROM_DISK_CHECKSUM),
        _llama,
        rounds=5,
        note=_OBJECT_STORE,
    ),
    Scenario(
        "bucket-to-bucket",
        "the first, from bucket to bucket on nginx",
        (S3_COPY, S3_NAIVE, S3_NONE, S3_CHECKSUM, S3_LATENCY),
        _llama,
        rounds=5,
        once=(S3_LITTLE_MEMORY,),
        note=_BETWEEN_BUCKETS,
    ),
    Scenario("plan", "4096 → 3072 ranks, 2000 parameters", (PLAN_FLAT, PLAN_STAGES), None, rounds=1),
    Scenario("overhead", "what the flow adds to a rank", OVERHEAD, None, rounds=1, note=_OVERHEAD),
)

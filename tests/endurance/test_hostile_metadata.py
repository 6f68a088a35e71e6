"""Files whose metadata is made to fill the memory, read by processes whose address space the kernel limits."""

import gzip
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from reshard.core.runtime.wording import size_text
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.ckpt_writer import blob
from tests.support.places import PROJECT
from tests.support.runs import RESHARD

pytestmark = pytest.mark.slow

LIMIT_BYTES = 4 << 30
DEFAULT_BYTES = 2 << 30
"""Default memory limit of metadata."""
REFUSED_BYTES = 700 << 20
"""Peak memory of a process that refuses a file by its tokens: the unpacked file and the program."""


@dataclass(frozen=True)
class Ended:
    """How a process ended, what it wrote, and its peak of memory in use."""

    code: int
    output: str
    peak_bytes: int


def run_limited(limit_bytes: int, *command: str) -> Ended:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    launcher = [sys.executable, "-S", str(Path(__file__).with_name("limited.py")), str(limit_bytes)]
    done = subprocess.run([*launcher, *command], cwd=PROJECT, env=environment, capture_output=True, text=True)
    output, _, peak = done.stderr.rpartition("\npeak ")
    return Ended(done.returncode, done.stdout + output, int(peak))


def write_header(path: Path, header: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def empty_lists(size_bytes: int) -> bytes:
    """A JSON object of a list of empty lists: each takes three bytes, and 80 when it is parsed."""
    return b'{"a":[' + b"[]," * (size_bytes // 3) + b"[]]}"


def write_four_ranks(directory: Path, header: bytes) -> list[str]:
    for rank in range(4):
        write_header(directory / "source" / f"rank_{rank}" / "model.safetensors", header)
    layout = ParameterLayout((4,), ((0,),))
    write_strategy(Strategy((StageStrategy(0, {"a": layout}),), origin="test"), str(directory / "strategy.ckpt"))
    return ["plan", str(directory / "source"), "--source-strategy", str(directory / "strategy.ckpt")]


def test_a_header_of_99_mb_of_nested_lists_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    write_header(tmp_path / "rank_0" / "model.safetensors", empty_lists(99_000_000))
    ended = run_limited(LIMIT_BYTES, *RESHARD, "plan", str(tmp_path))
    assert ended.code == 2, ended.output
    assert f"more than the limit of {size_text(DEFAULT_BYTES)}" in ended.output
    assert "rank_0/model.safetensors: reading its metadata would take" in ended.output
    assert ended.peak_bytes < REFUSED_BYTES


def test_a_memory_limit_bounds_what_is_parsed(tmp_path: Path) -> None:
    write_header(tmp_path / "rank_0" / "model.safetensors", empty_lists(36_000_000))
    ended = run_limited(LIMIT_BYTES, *RESHARD, "plan", str(tmp_path), "--memory-limit", "1GiB")
    assert (ended.code, "more than the limit of 1.0 GiB" in ended.output) == (2, True), ended.output
    assert ended.peak_bytes < REFUSED_BYTES


def test_headers_of_four_ranks_are_parsed_one_after_another(tmp_path: Path) -> None:
    command = write_four_ranks(tmp_path, empty_lists(30_000_000))
    ended = run_limited(2 << 30, *RESHARD, *command, "--workers", "4")
    assert ended.code == 2, ended.output
    assert "is not described by dtype, shape and data_offsets: damaged" in ended.output
    assert ended.peak_bytes < 1 << 30


def hostile_plan(path: Path) -> None:
    """Some 600 KB that unpack to 97 MB of empty lists; less compressible ones would be refused by their size."""
    chance = random.Random(1)
    chunks = (b"[]," * 460 + b'"%05x",' % chance.getrandbits(20) for _ in range(70_000))
    path.write_bytes(gzip.compress(b'{"a":[' + b"".join(chunks) + b"[]]}", 9))


def test_a_plan_of_600_kb_that_unpacks_to_97_mb_of_lists_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "plan.json.gz"
    hostile_plan(path)
    assert path.stat().st_size < 700_000
    program = (
        "import sys; from reshard.core.errors import LimitError\n"
        "from reshard.core.records.plan_file import rebuild_plan\n"
        "try: rebuild_plan(sys.argv[1])\n"
        "except LimitError as error: print(error)"
    )
    ended = run_limited(LIMIT_BYTES, sys.executable, "-c", program, str(path))
    assert f"{path}: reading its metadata would take" in ended.output
    assert ended.peak_bytes < REFUSED_BYTES


def hostile_record(directory: Path) -> None:
    """A target's manifest with an unknown member, a million times."""
    members = ",".join(f'"{number:x}":0' for number in range(2_000_000))
    (directory / ".reshard").mkdir(parents=True)
    (directory / ".reshard" / "manifest.json").write_text(f"{{{members}}}")


def hostile_index(directory: Path) -> None:
    directory.mkdir()
    (directory / "model.safetensors.index.json").write_bytes(b'{"weight_map":{"a":' + empty_lists(60_000_000) + b"}}")


def hostile_strategy(directory: Path) -> None:
    directory.mkdir()
    (directory / "strategy.ckpt").write_bytes(blob(2, blob(1, b"a") + blob(2, b"\x08\0" + b"\x12\0" * 50_000_000)))


def hostile_json_strategy(directory: Path) -> None:
    directory.mkdir()
    (directory / "strategy.json").write_bytes(empty_lists(60_000_000))


@pytest.mark.parametrize(
    ("write", "command", "name"),
    [
        (hostile_record, ["verify", "."], ".reshard/manifest.json"),
        (hostile_index, ["inspect", "."], "model.safetensors.index.json"),
        (hostile_strategy, ["plan", ".", "--source-strategy"], "strategy.ckpt"),
        (hostile_json_strategy, ["plan", ".", "--source-strategy"], "strategy.json"),
    ],
)
def test_metadata_that_would_fill_the_memory_is_refused_by_its_files_name(
    tmp_path: Path, write: Callable[[Path], None], command: list[str], name: str
) -> None:
    directory = tmp_path / "place"
    write(directory)
    arguments = [str(directory) if argument == "." else argument for argument in command]
    if arguments[-1] == "--source-strategy":
        arguments.append(str(directory / name))
    ended = run_limited(LIMIT_BYTES, *RESHARD, *arguments)
    assert ended.code == 2, ended.output
    assert f"{name}: reading its metadata would take" in ended.output
    assert ended.peak_bytes < REFUSED_BYTES


def test_entries_of_a_ckpt_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank_0" / "model.ckpt"
    path.parent.mkdir()
    scalar = blob(2, blob(2, b"Int8") + blob(3, b"\0"))
    path.write_bytes(b"".join(blob(1, blob(1, b"%d" % number) + scalar) for number in range(300_000)))
    ended = run_limited(LIMIT_BYTES, *RESHARD, "plan", str(tmp_path), "--memory-limit", "16MiB")
    assert ended.code == 2, ended.output
    assert "rank_0/model.ckpt: reading its metadata would take" in ended.output
    assert ended.peak_bytes < REFUSED_BYTES


@pytest.mark.parametrize("engine", ["direct", "prefect"])
def test_a_process_that_gets_no_more_memory_says_so_and_ends_with_3(tmp_path: Path, engine: str) -> None:
    write_header(tmp_path / "source" / "rank_0" / "model.safetensors", empty_lists(30_000_000))
    command = ["convert", str(tmp_path / "source"), str(tmp_path / "out"), "--engine", engine]
    ended = run_limited((512 if engine == "direct" else 800) << 20, *RESHARD, *command)
    assert ended.code == 3, ended.output
    assert "reshard: error: out of memory: the system refused more to this process" in ended.output
    assert "Traceback" not in ended.output


def test_a_document_of_changes_with_too_many_values_is_refused_while_it_is_read(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    write_header(tmp_path / "source" / "rank_0" / "model.safetensors", header)
    changes = tmp_path / "changes.yaml"
    changes.write_text("exclude: [" + "[]," * 340_000 + "[]]")
    ended = run_limited(LIMIT_BYTES, *RESHARD, "plan", str(tmp_path / "source"), "--changes", str(changes))
    assert (ended.code, "it has more than 131072 values" in ended.output) == (2, True), ended.output
    assert ended.peak_bytes < REFUSED_BYTES

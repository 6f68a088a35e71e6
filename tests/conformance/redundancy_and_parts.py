"""Targets without redundancy, and stages converted one by one, as MindSpore reads them and writes them itself."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.conformance.mindspore_process import PYTHON, Judge
from tests.support.checkpoints import Contents, case, read_ckpt, read_rank, read_safetensors, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.joining import join_parts

WITHOUT_REDUNDANCY = (7001, 7011, 7012)
"""Conversions whose target's layouts are flat: of nested ones MindSpore misreads who shares a slice."""
_PARTS = 7010
_PROCESSES = 2
_TIMEOUT_SECONDS = 120.0


def check_redundancy_and_parts(judge: Judge, directory: Path) -> list[str]:
    """What is not as it should be."""
    problems = []
    for number in WITHOUT_REDUNDANCY:
        for replicas in (1, 2):
            found = _check_without_redundancy(judge, directory / f"{number}_{replicas}", number, replicas)
            problems += [f"case {number}, {replicas} copies: {problem}" for problem in found]
    problems += [f"loading: {problem}" for problem in _check_loading(directory / "loading")]
    return [*problems, *(f"parts: {problem}" for problem in _check_parts(judge, directory / "parts"))]


def _check_without_redundancy(judge: Judge, directory: Path, number: int, replicas: int) -> Iterator[str]:
    given = case(number).directory
    strategy = str(given / "dst_strategy.ckpt")
    convert(
        build_request(
            source=str(given / "full"),
            target=str(directory / "out"),
            target_strategy=strategy,
            format="safetensors",
            remove_redundancy=True,
            replicas=replicas,
        )
    )
    yield from _check_holders(judge, directory, strategy, replicas)
    arguments = (["out", strategy, "whole"], {"merge_with_redundancy": False})
    answer = judge.call(directory, "unified_safetensors", repr(arguments))
    if "error" in answer:
        yield f"MindSpore does not unify it: {answer}"
        return
    found: Contents = {}
    for path in (directory / "whole").glob("*.safetensors"):
        found |= read_safetensors(path)
    if found != read_rank(given / "full", 0):
        yield "MindSpore unifies it to something else"


def _check_holders(judge: Judge, directory: Path, strategy: str, replicas: int) -> Iterator[str]:
    """What `load_param_into_net` asks: which ranks of a group that shares a slice have loaded it. It demands one."""
    devices = read_strategy(strategy).devices_per_stage
    held = {rank: _loaded(judge, directory / "out", rank) for rank in read_tree(directory / "out")}
    groups = judge.call(directory, "get_parameter_redundancy", repr(([strategy], {"initial_rank": 0})))["value"]
    for staged, sharing in groups.items():
        stage, _, name = staged.rpartition("-")
        for group in sharing:
            having = [rank for rank in group if name in held[rank + int(stage or 0) * devices]]
            if len(having) != min(replicas, len(group)):
                yield f"{name} is on {having} of the ranks {group}, which share it"


def _check_loading(directory: Path) -> Iterator[str]:
    """Has processes, one a rank, load what they have of a checkpoint and get the rest from each other."""
    model = {f"w{n}": np.arange(8 * (n + 1), dtype=np.float32).reshape(8, -1) + n for n in range(5)}
    directory.mkdir()
    (directory / "shapes.json").write_text(json.dumps({name: value.shape for name, value in model.items()}))
    entries = [(name, "Float32", value.shape, value.tobytes()) for name, value in model.items()]
    (directory / "net.ckpt").write_bytes(checkpoint_bytes(*entries))
    whole = ParameterLayout((_PROCESSES,), ((), ()), nested=True)
    write_strategy(Strategy((StageStrategy(0, dict.fromkeys(model, whole)),), "test"), str(directory / "strategy.ckpt"))
    written = (("safetensors", 1), ("ckpt", 1), ("ckpt", _PROCESSES))
    targets = [directory / f"{format}_{replicas}" for format, replicas in written]
    for target, (format, replicas) in zip(targets, written, strict=True):
        convert(
            build_request(
                source=str(directory / "net.ckpt"),
                target=str(target),
                target_strategy=str(directory / "strategy.ckpt"),
                format=format,
                remove_redundancy=True,
                replicas=replicas,
            )
        )
    for results in _loaded_together(directory, targets):
        for found, (format, replicas) in zip(results, written, strict=True):
            refused = "should be in one rank" in found.get("error", "")
            if replicas > 1 and not refused:
                yield f"MindSpore takes several copies, or refuses them for another reason: {found}"
            if replicas == 1 and found != {name: value.tobytes().hex() for name, value in model.items()}:
                yield f"MindSpore loads something else of {format}: {found.get('error') or sorted(found)}"


def _loaded_together(directory: Path, checkpoints: Sequence[Path]) -> list[list[dict[str, str]]]:
    """What each rank has of each checkpoint in the end, in hex, or its error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("distributed_loading.py")
    several = [f"--worker_num={_PROCESSES}", f"--local_worker_num={_PROCESSES}", "--join=True", "--cluster_time_out=60"]
    where = [f"--master_port={port}", f"--log_dir={directory / 'log'}"]
    running = subprocess.Popen(
        [PYTHON.with_name("msrun"), *several, *where, script, directory, *checkpoints],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PATH": f"{PYTHON.parent}:{os.environ['PATH']}", "GLOG_v": "3"},
        start_new_session=True,
    )
    try:
        results = [directory / f"{rank}.json" for rank in range(_PROCESSES)]
        until = time.monotonic() + _TIMEOUT_SECONDS
        # it takes half a minute to end after its work is done
        while not all(path.exists() for path in results) and running.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        missing = [{"error": f"no answer; see {directory / 'log'}"}] * len(checkpoints)
        return [json.loads(path.read_text()) if path.exists() else missing for path in results]
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def _loaded(judge: Judge, checkpoint: Path, rank: int) -> set[str]:
    path = next((checkpoint / f"rank_{rank}").iterdir())
    options = {"format": "safetensors", "remove_redundancy": True}
    return set(judge.call(checkpoint, "load_checkpoint", repr(([str(path)], options)))["value"])


def _check_parts(judge: Judge, directory: Path) -> Iterator[str]:
    given = case(_PARTS).directory
    target_strategy = str(given / "dst_strategy.ckpt")
    stages = [directory / f"stage{stage}" for stage in (0, 1)]
    for number, stage in enumerate(stages):
        strategy = given / f"src_stages/strategy_{4 * number}.ckpt"
        convert(
            build_request(
                source=str(given / "src"),
                target=str(stage),
                source_strategy=str(strategy),
                target_strategy=target_strategy,
            )
        )
        theirs = directory / f"theirs{number}"
        theirs.mkdir()
        judge.transform(given / "src", theirs, strategy, Path(target_strategy))
        if _files(stage) != _files(theirs):
            yield f"MindSpore makes something else of stage {number}"
    join_parts([str(stage) for stage in stages], str(directory / "joined"))
    for rank, want in read_tree(given / "want").items():
        answer = judge.call(directory, "load_segmented_checkpoints", repr(([f"joined/rank_{rank}"], {})))
        found: dict[str, Any] = answer.get("value", {})
        if {name: value["$array"][2] for name, value in found.items()} != {
            name: each[2] for name, each in want.items()
        }:
            yield f"MindSpore loads something else of rank {rank}: {answer.get('error') or sorted(found)}"


def _files(checkpoint: Path) -> dict[str, Contents]:
    return {str(path.relative_to(checkpoint)): read_ckpt(path) for path in checkpoint.glob("rank_*/*")}

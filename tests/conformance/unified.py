"""Unified checkpoints: MindSpore loads, whole and cut, what reshard writes; reshard converts what MindSpore writes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.conformance.mindspore_process import Judge
from tests.support.checkpoints import Contents, case, read_ckpt, read_rank, read_tree

CASES = (7001, 7011)
"""To targets whose layouts are flat."""
_SHARD_SIZE = "10KB"


def check_unified(judge: Judge, directory: Path) -> list[str]:
    """What is not as it should be."""
    problems = []
    for number in CASES:
        here = directory / str(number)
        here.mkdir(parents=True)
        found = [*_check_loading(judge, here, number), *_check_mindspores(judge, here, number)]
        problems += [f"case {number}: {problem}" for problem in found]
    return problems


def _check_loading(judge: Judge, directory: Path, number: int) -> Iterator[str]:
    given = case(number).directory
    whole = read_rank(given / "full", 0)
    for naming in ("huggingface", "mindspore"):
        options = {"layout": "unified", "max_shard_size": _SHARD_SIZE, "unified_naming": naming}
        convert(case(number).request(directory / naming, target_strategy="", **options))
        files = sorted(path.name for path in (directory / naming).glob("*.safetensors"))
        loaded: Contents = {}
        for file in files:
            answer = judge.call(directory, "load_checkpoint", repr(([f"{naming}/{file}"], {"format": "safetensors"})))
            if "error" in answer:
                yield f"MindSpore does not load {file}: {answer}"
            loaded |= {name: array["$array"] for name, array in answer.get("value", {}).items()}
        if len(files) < 2 or loaded != whole:
            yield f"MindSpore loads something else from {files}"
    keywords: dict[str, Any] = {
        "predict_strategy": str(given / "dst_strategy.ckpt"),
        "unified_safetensors_dir": "mindspore",
        "dst_safetensors_dir": "cut",
        "format": "safetensors",
        "output_format": "ckpt",
    }
    for rank, want in case(number).want.items():
        answer = judge.call(directory, "load_distributed_checkpoint", repr(([None], keywords | {"rank_id": rank})))
        path = directory / "cut" / f"rank_{rank}" / "net.ckpt"
        if "error" in answer or not path.exists():
            yield f"MindSpore does not cut rank_{rank} from it: {answer}"
        elif read_ckpt(path) != want:
            yield f"MindSpore cuts something else for rank_{rank}"


def _check_mindspores(judge: Judge, directory: Path, number: int) -> Iterator[str]:
    given = case(number).directory
    strategy = str(given / "src_strategy.ckpt")
    source = directory / "source"
    convert(case(number).request(source, target_strategy=strategy, format="safetensors"))
    answer = judge.call(directory, "unified_safetensors", repr((["source", strategy, "whole"], {})))
    if "error" in answer:
        yield f"MindSpore does not unify: {answer}"
        return
    target = directory / "of_mindspores"
    strategy = str(given / "dst_strategy.ckpt")
    convert(build_request(source=str(directory / "whole"), target=str(target), target_strategy=strategy, format="ckpt"))
    if read_tree(target) != case(number).want:
        yield "what MindSpore unified becomes something else"

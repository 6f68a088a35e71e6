"""MindSpore in a process of its own: reads requests from stdin, a JSON object a line, and answers each by one.

Run by the Python of MindSpore's environment. It knows nothing of reshard, so that their agreement means something.
A request names one of `OPERATIONS` and its arguments; the answer has its `result`, or the `refusal`: what it raised.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore.common import np_dtype


def save(files: list[dict[str, Any]]) -> None:
    """Saves checkpoint files: `path`, `parameters` (name, dtype, shape, hex) and `text` of each."""
    for file in files:
        path = Path(file["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        parameters = [{"name": parameter["name"], "data": _tensor(parameter)} for parameter in file["parameters"]]
        mindspore.save_checkpoint(
            parameters, str(path), append_dict=file["text"] or None, format=path.suffix.removeprefix(".")
        )


def transform(source: str, target: str, source_strategy: str | None, target_strategy: str | None) -> None:
    """Converts a checkpoint."""
    mindspore.transform_checkpoints(source, target, "checkpoint_", source_strategy, target_strategy)


def merge(directory: str, path: str) -> None:
    """Merges the strategy files of a job's ranks."""
    mindspore.merge_pipeline_strategys(directory, path)


def load(directory: str) -> dict[str, dict[str, Any]]:
    """What `load_checkpoint` makes of each rank's file: text, or dtype, shape and digest by name."""
    result = {}
    for folder in Path(directory).glob("rank_*"):
        [path] = folder.iterdir()
        loaded = mindspore.load_checkpoint(str(path), format=path.suffix.removeprefix("."))
        result[folder.name.removeprefix("rank_")] = {name: _description(value) for name, value in loaded.items()}
    return result


OPERATIONS: dict[str, Callable[..., Any]] = {function.__name__: function for function in (save, transform, merge, load)}


def _tensor(parameter: dict[str, Any]) -> mindspore.Tensor:
    name = parameter["dtype"]
    dtype = np_dtype.bfloat16 if name == "BFloat16" else np.dtype(name.lower())
    array = np.frombuffer(bytes.fromhex(parameter["hex"]), dtype).reshape(parameter["shape"])
    return mindspore.Tensor(array.copy())


def _description(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return [str(value.data.dtype), list(value.shape), hashlib.sha256(value.data.get_bytes()).hexdigest()]


def main() -> None:
    """Answers until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what MindSpore and the processes that it starts print is not an answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = {"result": OPERATIONS[request.pop("operation")](**request)}
        except Exception as error:
            answer = {"refusal": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

"""MindSpore in a process of its own; `answering` calls its `OPERATIONS`.

Run by the Python of MindSpore's environment. It knows nothing of reshard, so that their agreement means something.
"""

import ast
import hashlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore
import mindspore.parallel
import mindspore.train._utils
import mindspore.train.serialization
import numpy as np
import psutil
from mindspore.common import np_dtype

# unified_safetensors waits for as long as more than half of the machine's memory is in use, by any process
psutil.virtual_memory = lambda: SimpleNamespace(percent=0.0)

_MODULES = (mindspore, mindspore.parallel, mindspore.train.serialization, mindspore.train._utils)


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


def cast(source: str, target: str, dtype: str) -> None:
    """Saves a checkpoint file's parameters in another dtype."""
    loaded = mindspore.load_checkpoint(source)
    to = getattr(mindspore, dtype)
    parameters = [{"name": name, "data": mindspore.Tensor(value).astype(to)} for name, value in loaded.items()]
    mindspore.save_checkpoint(parameters, target)


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


def call(directory: str, function: str, arguments: str) -> str:
    """What a function of MindSpore's API returns or raises in `directory`.

    Arguments (a list, a dict) and answer (a dict) are Python's literals; see `api_harness` for what is none of its own.
    """
    positional, keywords = ast.literal_eval(arguments)
    found = _function(function)
    before = os.getcwd()
    os.chdir(directory)
    try:
        decoded = [_decoded(given) for given in positional]
        value = found(*decoded, **{name: _decoded(given) for name, given in keywords.items()})
        filled = [each for each in decoded if isinstance(each, mindspore.nn.Cell)]
        return repr({"value": _described([value, *filled] if filled else value)})
    except Exception as error:
        kind = next(base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins")
        return repr({"error": kind, "message": str(error)})
    finally:
        os.chdir(before)


def configure(arguments: str, properties: list[str]) -> str:
    """What CheckpointConfig makes of its arguments (a list and a dict), or raises; all are Python's literals."""
    positional, named = ast.literal_eval(arguments)
    try:
        config = mindspore.train.CheckpointConfig(*positional, **named)
    except Exception as error:
        return repr({"error": type(error).__name__, "message": str(error)})
    kept = (config.keep_checkpoint_max or 0, config.keep_checkpoint_per_n_minutes or 0)
    found = {name: getattr(config, name) for name in properties} | {"policy": config.get_checkpoint_policy()}
    return repr({"value": {"kept": kept, "info": config.append_dict or {}, "properties": found}})


def signatures(functions: list[str]) -> dict[str, list[list[str]]]:
    """The parameters of functions of MindSpore's API: name, kind and default of each."""
    return {
        name: [
            [parameter.name, parameter.kind.name, repr(parameter.default)]
            for parameter in inspect.signature(_function(name)).parameters.values()
        ]
        for name in functions
    }


OPERATIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (save, transform, cast, merge, load, call, configure, signatures)
}


def _function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = next(getattr(module, name) for module in _MODULES if hasattr(module, name))
    return found


def _decoded(given: Any) -> Any:
    """An argument from its literal."""
    if isinstance(given, list | tuple):
        return type(given)(map(_decoded, given))
    if not isinstance(given, dict):
        return given
    if "$array" in given:
        return _array_tensor(*given["$array"])
    if "$parameter" in given:
        name, *array = given["$parameter"]
        return mindspore.Parameter(_array_tensor(*array), name=name)
    if "$network" in given:
        cell = mindspore.nn.Cell()
        for number, (name, array) in enumerate(given["$network"].items()):
            parameter = mindspore.Parameter(_array_tensor(*array["$array"]), name=name)
            cell.insert_param_to_cell(f"parameter_{number}", parameter)
        return cell
    if "$function" in given:
        return eval(given["$function"])
    if "$strategy" in given:
        return mindspore.build_searched_strategy(given["$strategy"])
    return {key: _decoded(value) for key, value in given.items()}


def _described(value: Any) -> Any:
    """A literal of what was returned."""
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, dict):
        return {key: _described(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value)(map(_described, value))
    if hasattr(value, "SerializeToString"):
        return {"$message": value.SerializeToString()}
    if isinstance(value, mindspore.nn.Cell):
        return {parameter.name: _described(parameter) for parameter in value.get_parameters()}
    if isinstance(value, mindspore.Tensor):
        return {"$array": (str(value.dtype), tuple(value.shape), value.data.get_bytes())}
    return {"$object": type(value).__name__}


def _tensor(parameter: dict[str, Any]) -> mindspore.Tensor:
    return _array_tensor(parameter["dtype"], parameter["shape"], bytes.fromhex(parameter["hex"]))


def _array_tensor(name: str, shape: Any, content: bytes) -> mindspore.Tensor:
    dtype = np_dtype.bfloat16 if name == "BFloat16" else np.dtype(name.lower())
    return mindspore.Tensor(np.frombuffer(content, dtype).reshape(shape).copy())


def _description(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return [str(value.data.dtype), list(value.shape), hashlib.sha256(value.data.get_bytes()).hexdigest()]

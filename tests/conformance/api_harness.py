"""The functions of `reshard.mindspore` against MindSpore's own: the same calls in copies of one directory.

To add cases, append `ApiCase`s to the list `CASES` of a module that `MODULES` names. A case makes files in a directory;
each side gets a copy, which is its current directory, and makes the calls there, whose paths are relative or begin with
`{here}`. Compared are what each call returns or raises (the builtin type of the exception), and afterwards all files
below the directory: names, and contents as parsed.

Arguments are literals of Python, and what these make: `array`, `parameter`, `network`, `function`, `strategy`. Where
MindSpore takes or returns a Parameter or a Tensor, reshard has a numpy array. Of a call with a network what is in that
afterwards is compared as well.

A case whose `differs` says why reshard does something else on purpose has to differ, and `ours` is the type of
exception that reshard raises, if it does. Case names are unique; `make conformance API=part-of-a-name` runs a few.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import operator
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from tests.conformance.mindspore_process import Judge
from tests.support.checkpoints import read_ckpt, read_safetensors
from tests.support.strategy_writer import read_protobuf_strategy

MODULES = ("tests.conformance.api_conversion_cases", "tests.conformance.api_loading_cases")
API = "reshard.mindspore"

_HERE = "{here}"
_ORDER = "$order"
_NUMPY_NAMES = [
    "Int8",
    "UInt8",
    "Int16",
    "UInt16",
    "Int32",
    "UInt32",
    "Int64",
    "UInt64",
    "Float16",
    "Float32",
    "Float64",
    "Bool",
]
_DTYPES = {name: np.dtype(name.lower()) for name in _NUMPY_NAMES} | {"BFloat16": np.dtype(ml_dtypes.bfloat16)}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MOST_TOLD = 200
_OPTION = re.compile(r"(^|[\s('])--[a-z]")


@dataclass(frozen=True)
class Call:
    """One call of a function."""

    function: str
    arguments: Sequence[Any] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ApiCase:
    """Some calls in a directory.

    Attributes:
        name: what it shows, in a few words.
        calls: made one after another, whatever the former came to.
        files: makes the files that they need.
        differs: why reshard does something else on purpose.
        ours: then the exception that its last call raises, by name; empty if none.
        opaque: names of files that only have to be there: encrypted ones, say.
        exchanged: each call is made in the directory that the other side made the former call in.
        agrees: whether a value that reshard returned is right, MindSpore's being the other one.
        prepared: what is done to both sides' returned values and files before they are compared.
    """

    name: str
    calls: Sequence[Call]
    files: Callable[[Path], object] = lambda directory: None
    differs: str = ""
    ours: str = ""
    opaque: frozenset[str] = frozenset()
    exchanged: bool = False
    agrees: Callable[[Any, Any], bool] = operator.eq
    prepared: "Callable[[Found], Found]" = lambda found: found


@dataclass(frozen=True)
class Found:
    """What a side's calls came to: what each returned or raised, and the files that are there afterwards, parsed."""

    outcomes: tuple[dict[str, Any], ...]
    files: dict[str, Any]


def array(values: np.ndarray) -> dict[str, Any]:
    """An argument: a Tensor for MindSpore, this array for reshard."""
    return {"$array": (_DTYPE_NAMES[values.dtype], values.shape, values.tobytes())}


def parameter(name: str, values: np.ndarray) -> dict[str, Any]:
    """An argument: a Parameter for MindSpore, this array for reshard."""
    return {"$parameter": (name, *array(values)["$array"])}


def network(**parameters: np.ndarray) -> dict[str, Any]:
    """An argument: a Cell with Parameters for MindSpore, a dict of arrays for reshard; `__` in a name is a dot."""
    return {"$network": {name.replace("__", "."): array(values) for name, values in parameters.items()}}


def function(source: str) -> dict[str, Any]:
    """An argument: a function, from its source, `lambda name: …`."""
    return {"$function": source}


def strategy(path: str) -> dict[str, Any]:
    """An argument: what each side's own `build_searched_strategy` makes of a file."""
    return {"$strategy": path}


def all_cases(only: str = "") -> list[ApiCase]:
    """The cases of all modules, or those whose names contain `only`."""
    modules = [importlib.import_module(name) for name in MODULES if importlib.util.find_spec(name)]
    return [case for module in modules for case in module.CASES if only in case.name]


def check_signatures(judge: Judge) -> list[str]:
    """Says which functions take other arguments than MindSpore's."""
    api = importlib.import_module(API)
    lines = []
    functions = [name for name in api.__all__ if inspect.isfunction(getattr(api, name))]
    for name, wanted in judge.signatures(functions).items():
        parameters = inspect.signature(getattr(api, name)).parameters.values()
        found = [[parameter.name, parameter.kind.name, repr(parameter.default)] for parameter in parameters]
        if found != wanted:
            lines.append(f"{name} takes {found}, MindSpore's {wanted}")
    return lines


def check_api_case(case: ApiCase, judge: Judge, directory: Path) -> list[str]:
    """Makes the case in `directory`, and says what is not as it should be; removes it if nothing is."""
    given = directory / "given"
    given.mkdir(parents=True)
    case.files(given)
    places = [directory / "reshard", directory / "mindspore"]
    for place in places:
        shutil.copytree(given, place, symlinks=True)
    outcomes: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for number, call in enumerate(case.calls):
        here, there = reversed(places) if case.exchanged and number % 2 else places
        outcomes[0].append(_told_anywhere(_call_reshard(here, call), here))
        outcomes[1].append(_told_anywhere(_call_mindspore(judge, there, call), there))
    found, wanted = (
        case.prepared(Found(tuple(results), _read_files(place, given, case.opaque)))
        for results, place in zip(outcomes, places, strict=True)
    )
    problems = _problems(case, found, wanted)
    if not problems:
        shutil.rmtree(directory)
    return problems


def _problems(case: ApiCase, found: Found, wanted: Found) -> list[str]:
    lines = _differences(case, found, wanted)
    lines += [
        f"the message names an option of the command: {outcome['message']}"
        for outcome in found.outcomes
        if _OPTION.search(outcome.get("message", ""))
    ]
    if not case.differs:
        return lines
    raised = found.outcomes[-1].get("error", "")
    if raised != case.ours:
        return [f"reshard raises {raised or 'nothing'}, not {case.ours or 'nothing'}: {found.outcomes[-1]!r:.300}"]
    return [] if lines else [f"is as MindSpore's, although it is said to differ: {case.differs}"]


def _differences(case: ApiCase, found: Found, wanted: Found) -> list[str]:
    lines = []
    for number, (ours, theirs) in enumerate(zip(found.outcomes, wanted.outcomes, strict=True)):
        raised = "error" in ours or "error" in theirs
        alike = ours.get("error") == theirs.get("error") if raised else case.agrees(ours["value"], theirs["value"])
        if case.calls[number].function.startswith("load_") and not raised and isinstance(ours["value"], dict):
            alike = alike and list(ours["value"]) == list(theirs["value"])
        if not alike:
            lines.append(f"call {number}: reshard {_came_to(ours)}; MindSpore {_came_to(theirs)}")
    if found.files.keys() != wanted.files.keys():
        only_ours, only_theirs = (
            sorted(one.keys() - other.keys())
            for one, other in ((found.files, wanted.files), (wanted.files, found.files))
        )
        lines.append(f"only reshard has the files {only_ours}; only MindSpore {only_theirs}")
    # of pipelines MindSpore's conversions have the strategies' order, which means nothing
    passed_over = {_ORDER} if any(call.function.startswith("transform_") for call in case.calls) else set()
    for name in sorted(found.files.keys() & wanted.files.keys()):
        lines += [f"{name}: {line}" for line in _unlike(found.files[name], wanted.files[name], passed_over)]
    return lines


def _unlike(ours: Any, theirs: Any, passed_over: set[str]) -> Iterable[str]:
    if ours == theirs:
        return
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        yield f"{ours!r:.{_MOST_TOLD}} is not {theirs!r:.{_MOST_TOLD}}"
        return
    for key in sorted((ours.keys() | theirs.keys()) - passed_over, key=str):
        one, other = ours.get(key, "nothing"), theirs.get(key, "nothing")
        if one != other:
            yield f"{key!r} is {one!r:.{_MOST_TOLD}}, MindSpore has {other!r:.{_MOST_TOLD}}"


def _came_to(outcome: Mapping[str, Any]) -> str:
    if "error" in outcome:
        return f"raises {outcome['error']}({outcome['message']!r:.{_MOST_TOLD}})"
    return f"returns {outcome['value']!r:.{_MOST_TOLD}}"


def _call_mindspore(judge: Judge, here: Path, call: Call) -> dict[str, Any]:
    arguments = (list(call.arguments), dict(call.keywords))
    return judge.call(here, call.function, repr(arguments).replace(_HERE, str(here)))


def _call_reshard(here: Path, call: Call) -> dict[str, Any]:
    function = getattr(importlib.import_module(API), call.function)
    arguments, keywords = ast.literal_eval(repr((list(call.arguments), dict(call.keywords))).replace(_HERE, str(here)))
    try:
        with chdir(here), warnings.catch_warnings(action="ignore"):
            positional = [_decoded(value) for value in arguments]
            value = function(*positional, **{name: _decoded(value) for name, value in keywords.items()})
        filled = [value for value, given in zip(positional, arguments, strict=True) if _is_network(given)]
        return {"value": _described([value, *filled] if filled else value)}
    except Exception as error:
        kind = next(base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins")
        return {"error": kind, "message": str(error)}


def _is_network(given: object) -> bool:
    return isinstance(given, dict) and "$network" in given


def _decoded(given: Any) -> Any:
    """An argument of reshard's from its literal."""
    if isinstance(given, list | tuple):
        return type(given)(map(_decoded, given))
    if not isinstance(given, dict):
        return given
    if "$array" in given or "$parameter" in given:
        dtype, shape, content = given["$array"] if "$array" in given else given["$parameter"][1:]
        return np.frombuffer(content, _DTYPES[dtype]).reshape(shape).copy()
    if "$network" in given:
        return _decoded(given["$network"])
    if "$function" in given:
        return eval(given["$function"])
    if "$strategy" in given:
        return importlib.import_module(API).build_searched_strategy(given["$strategy"])
    return {key: _decoded(value) for key, value in given.items()}


def _described(value: Any) -> Any:
    """A literal of what reshard returned; as `judge._described` makes it of MindSpore's."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, dict):
        return {key: _described(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value)(map(_described, value))
    if hasattr(value, "SerializeToString"):
        return {"$message": value.SerializeToString()}
    if isinstance(value, np.ndarray):
        return array(value)
    return {"$object": type(value).__name__}


def _told_anywhere(outcome: dict[str, Any], here: Path) -> dict[str, Any]:
    """The same, but for where the directory is."""
    localized: dict[str, Any] = ast.literal_eval(repr(outcome).replace(str(here), _HERE))
    return localized


def _read_files(directory: Path, given: Path, opaque: frozenset[str]) -> dict[str, Any]:
    """Path below the directory -> contents."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        name = str(path.relative_to(directory))
        former = given / name
        if former.is_file() and former.read_bytes() == path.read_bytes():
            found[name] = "as it was given"
        else:
            found[name] = "opaque" if path.name in opaque else _parsed(path)
    return found


def _parsed(path: Path) -> Any:
    content = path.read_bytes()
    if path.suffix == ".json":
        return json.loads(content)
    if path.suffix == ".safetensors":
        with safetensors.safe_open(path, "np") as file:
            metadata = {"format": "ms", "remove_redundancy": "False"} | (file.metadata() or {})
        return {"metadata": metadata} | read_safetensors(path)
    if path.suffix == ".ckpt" and content.startswith(b"\x0a"):
        entries = read_ckpt(path)
        # MindSpore's readers return parameters in the file's order
        return {_ORDER: list(entries)} | entries
    if content.startswith(b"\x08"):
        return read_protobuf_strategy(path)
    return content

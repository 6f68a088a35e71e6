"""Writes reshard/functions.py and reshard/options.py from the fields of requests: `python -m docs.write_keywords`.

Editors and type checkers read a module, not the functions that it could be made of at run time. So each function of
`reshard.calls` is written out here with all the options that it takes.
"""

import ast
import builtins
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import reshard
from reshard import calls
from reshard.core.options.written import Written
from reshard.core.request.changing import ChangeOptions, MatchingOptions
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.conversion import ConversionRequest, FlowOptions
from reshard.core.request.groups import GROUPS
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.request.reading import FileChoice, SourceOptions
from reshard.core.request.signing import SigningRequest
from reshard.core.request.source import (
    DIAGNOSIS_OPTIONS,
    FINGERPRINT_OPTIONS,
    OPEN_OPTIONS,
    RECOVERY_OPTIONS,
    DiagnosisRequest,
    FingerprintRequest,
    OpenRequest,
    SourceRequest,
)
from reshard.core.request.verification import VerificationRequest

FUNCTIONS = Path(reshard.__file__).with_name("functions.py")
TYPES = Path(reshard.__file__).with_name("options.py")
_WIDTH = 120
_PLACES = ("source", "target", "source_strategy", "target_strategy", "a", "b", "strategy_a", "strategy_b")
"""Fields that functions take as arguments of their own."""
_OF_ONE = (*_PLACES, "source_storage")
"""Those of functions about one checkpoint, which have shorter names there."""

_FUNCTIONS_HEAD = '''\
"""Functions of `reshard` with all of their options, for editors, type checkers and `help`.

Each hands its arguments on to the function of its name in `reshard.calls`. `python -m docs.write_keywords` writes this
module from there and from the fields of requests.
"""
'''
_TYPES_HEAD = '''\
"""Types of keyword arguments of the functions in `reshard`.

`python -m docs.write_keywords` writes this module from the fields of requests, which check the values.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

'''
_TYPES = '''
PathOrUrl = str | os.PathLike[str]
"""A path, or a URL with a protocol that fsspec knows, without a password."""
Number = int | str
"""A number, or one of the words that its option has."""
Ranks = int | str | Iterable[int]
"""Ranks: `[3, 7]`, `range(0, 512)`, `"0-511"`."""
Size = int | str
"""Bytes, `2 << 30`, or a text with a unit, `"2GiB"`."""
Texts = str | Collection[str]
"""A text, or several."""
Rules = str | Sequence[str] | Mapping[str, str]
"""Rules in their order: `{"*": "bfloat16"}`, `["*=bfloat16"]`, or a single one, `"*=bfloat16"`."""
Settings = str | Sequence[str] | Mapping[str, str | int | float | bool | None]
"""Names with their values: `{"epoch_num": 5}`, `["epoch_num=5"]`, or a single one, `"epoch_num=5"`."""
'''


@dataclass(frozen=True)
class Options:
    """The options of a function of `reshard.calls`: fields of a request."""

    function: Callable[..., object]
    request: type[BaseModel]
    names: tuple[str, ...]

    @property
    def fields(self) -> dict[str, FieldInfo]:
        """The fields by name."""
        return {name: self.request.model_fields[name] for name in self.names}


def all_options() -> list[Options]:
    """Return the options of all functions."""
    loading = {*_fields(SourceOptions, ChangeOptions, MatchingOptions, FileChoice), "target_storage"}
    loading -= {"names"}  # theirs are those of parameters to load
    converting = _in_order(_fields(ConversionRequest) - _fields(FlowOptions))
    latest = _in_order(_fields(LatestConversionRequest) - _fields(FlowOptions))
    diagnosis = (
        *DIAGNOSIS_OPTIONS,
        *(name for name in DiagnosisRequest.model_fields if name not in _fields(SourceRequest)),
    )
    return [
        Options(calls.convert, ConversionRequest, converting),
        Options(calls.convert_latest, LatestConversionRequest, latest),
        Options(calls.plan, ConversionRequest, converting),
        Options(calls.load_rank, ConversionRequest, _in_order(loading)),
        Options(calls.plan_load, ConversionRequest, _in_order(loading)),
        Options(calls.open, OpenRequest, OPEN_OPTIONS),
        Options(calls.verify, VerificationRequest, _without(_PLACES, VerificationRequest.model_fields)),
        Options(calls.sign, SigningRequest, _without(_PLACES, SigningRequest.model_fields)),
        Options(calls.diff, ComparisonRequest, _without(_PLACES, ComparisonRequest.model_fields)),
        Options(calls.fingerprint, FingerprintRequest, _without(_OF_ONE, FINGERPRINT_OPTIONS)),
        Options(calls.scan, FingerprintRequest, _without(_OF_ONE, FINGERPRINT_OPTIONS)),
        Options(calls.recover, SourceRequest, _without(_OF_ONE, RECOVERY_OPTIONS)),
        Options(calls.doctor, DiagnosisRequest, _without(_OF_ONE, diagnosis)),
    ]


def functions_text() -> str:
    """Return the module of functions."""
    functions = "".join(f"\n\n{_Function(each).text}" for each in all_options())
    return _formatted(f"{_FUNCTIONS_HEAD}{_imports()}{functions}", FUNCTIONS)


def types_text() -> str:
    """Return the module of types."""
    kinds = {kind for each in all_options() for field in each.fields.values() if (kind := _enum_of(field))}
    enums = sorted(kinds, key=lambda kind: kind.__name__)
    imports = "".join(f"from {kind.__module__} import {kind.__name__}\n" for kind in enums)
    names = "".join(f"{kind.__name__}Name = {kind.__name__} | {_literal(kind)}\n" for kind in enums)
    return _formatted(_TYPES_HEAD + imports + _TYPES + names, TYPES)


class _Function:
    """A function of `reshard.calls`, written out."""

    def __init__(self, options: Options) -> None:
        self._fields = options.fields
        [node] = ast.parse(textwrap.dedent(inspect.getsource(options.function))).body
        assert isinstance(node, ast.FunctionDef)
        self._node = node
        self._doc = inspect.getdoc(options.function) or ""

    @property
    def text(self) -> str:
        """The function with all of its options."""
        name, returns = self._node.name, ast.unparse(self._node.returns or ast.Constant(None))
        parameters = "".join(f"    {each},\n" for each in self._parameters())
        exempt = "  # noqa: A001" if hasattr(builtins, name) else ""
        return (
            f"@checked\ndef {name}({exempt}\n{parameters}) -> {returns}:\n{_docstring(self._documented())}"
            f"    return calls.{name}(**locals())\n"
        )

    def _parameters(self) -> Iterator[str]:
        arguments = self._node.args
        defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults)
        yield from map(_parameter, arguments.args, defaults)
        yield "*"
        yield from map(_parameter, arguments.kwonlyargs, arguments.kw_defaults)
        for name, field in self._fields.items():
            yield f"{name}: {_type(field)} = {_default(field)}"

    def _documented(self) -> str:
        """The docstring, with all options after the function's own arguments."""
        arguments, raises, errors = self._doc.partition("\n\nRaises:")
        described = "".join(_described(name, field) for name, field in self._fields.items())
        return f"{arguments}{described}{raises}{errors}"


def _imports() -> str:
    """All names that a signature may have: those of `reshard.calls`, and the types of options."""
    imported = [
        node for node in ast.parse(inspect.getsource(calls)).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assigned = [node for node in ast.parse(types_text()).body if isinstance(node, ast.Assign)]
    types = ", ".join(ast.unparse(node.targets[0]) for node in assigned)
    lines = [
        *map(ast.unparse, imported),
        f"from reshard.options import {types}",
        "from reshard import calls",
        "from reshard.arguments import checked",
    ]
    return "\n".join(lines)


def _formatted(module: str, path: Path) -> str:
    """A module without the imports that it does not need, formatted as all are here."""
    for command in (["check", "--quiet", "--fix", "--select=F401,I"], ["format", "--quiet"]):
        module = subprocess.run(
            [sys.executable, "-m", "ruff", *command, f"--stdin-filename={path}", "-"],
            input=module,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return module


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    value = "" if default is None else f" = {ast.unparse(default)}"
    return f"{ast.unparse(argument)}{value}"


def _described(name: str, field: FieldInfo) -> str:
    text = str(field.description)
    if field.default == "":
        text = text.replace("Empty:", "None:")
    lines = textwrap.wrap(
        f"{name}: {text}",
        _WIDTH - 4,
        initial_indent=" " * 4,
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n" + "\n".join(lines)


def _docstring(text: str) -> str:
    mark = 'r"""' if "\\" in text else '"""'
    return textwrap.indent(f'{mark}{text}\n"""\n', "    ")


def _fields(*models: type[BaseModel]) -> set[str]:
    return {name for model in models for name in model.model_fields}


def _without(names: Collection[str], others: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in others if name not in names)


def _in_order(names: Collection[str]) -> tuple[str, ...]:
    """Names of a conversion's options without arguments, in the order of the command's help."""
    return tuple(name for group in GROUPS.values() for name in group if name in names and name not in _PLACES)


def _type(field: FieldInfo) -> str:
    hint = next((each.hint for each in field.metadata if isinstance(each, Written)), "")
    kind = _enum_of(field)
    own = f"{kind.__name__}Name" if kind else getattr(field.annotation, "__name__", str(field.annotation))
    return f"{hint or own} | None" if field.default == "" else hint or own


def _default(field: FieldInfo) -> str:
    value = field.default
    if value == "":
        return "None"
    if value == []:
        return "()"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _enum_of(field: FieldInfo) -> type[StrEnum] | None:
    """The choices of a field, which may be some of an enumeration's; None for another type."""
    candidates = (field.annotation, *map(type, get_args(field.annotation)))
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, StrEnum)), None)


def _literal(values: Iterable[str]) -> str:
    return f"Literal[{', '.join(map(_quoted, values))}]"


def _quoted(value: str) -> str:
    return f'"{value}"'


def main() -> None:
    """Bring the modules up to date."""
    for path, text in ((TYPES, types_text()), (FUNCTIONS, functions_text())):
        path.write_text(text, encoding="utf-8")
        print(f"{path} is up to date")


if __name__ == "__main__":
    main()

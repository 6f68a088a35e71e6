"""Writes reshard/options.py, the functions' keywords, from the fields of requests: `python -m docs.write_keywords`.

Editors and type checkers read a module, not the classes that it could be made of at run time.
"""

import textwrap
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import reshard
from reshard.core.options.fields import URL_METAVAR, metavar_of
from reshard.core.request.changing import ChangeOptions, MatchingOptions
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.conversion import ConversionOptions, ConversionRequest, FlowOptions
from reshard.core.request.groups import GROUPS
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.request.reading import FileChoice, SourceOptions
from reshard.core.request.source import DIAGNOSIS_OPTIONS, FINGERPRINT_OPTIONS, RECOVERY_OPTIONS
from reshard.core.request.verification import VerificationRequest

MODULE = Path(reshard.__file__).with_name("options.py")
_WIDTH = 120
_ARGUMENTS = (
    *("source", "target", "source_strategy", "target_strategy"),
    *("a", "b", "strategy_a", "strategy_b"),
)
"""Fields that functions take as arguments of their own."""
_HEAD = '''\
"""Keyword arguments of the functions in `reshard`, for editors and type checkers.

Names, defaults and meanings are those of the command line. Requests (see `reshard.ConversionRequest`) check the values.
`python -m docs.write_keywords` writes this module from the fields of requests.
"""

import os
from typing import Literal, TypedDict

'''
_TYPES = '''
PathOrUrl = str | os.PathLike[str]
"""A path, or a URL with a protocol that fsspec knows, without a password."""
Texts = list[str] | tuple[str, ...]
"""Several texts; a single one is refused."""
'''


@dataclass(frozen=True)
class Keywords:
    """A class of keywords: fields of a request, and the keywords of other classes."""

    name: str
    meaning: str
    request: type[BaseModel]
    fields: tuple[str, ...] = ()
    bases: tuple[str, ...] = ("TypedDict",)


def all_keywords() -> list[Keywords]:
    """Return the classes of keywords, bases first."""
    transform = _in_order({*_fields(SourceOptions, ChangeOptions, MatchingOptions), "target_storage"})
    step = _in_order(_fields(FileChoice))
    write = _in_order(_fields(ConversionOptions) - _fields(FlowOptions) - {*transform})
    one = _in_order(_fields(ConversionRequest) - _fields(FlowOptions) - {*transform, *step, *write})
    latest = _in_order(_fields(LatestConversionRequest) - _fields(ConversionOptions))
    diff = tuple(name for name in ComparisonRequest.model_fields if name not in _ARGUMENTS)
    verify = tuple(name for name in VerificationRequest.model_fields if name not in _ARGUMENTS)
    return [
        Keywords(
            "TransformOptions",
            "How parameters are read and changed on their way to the target.",
            ConversionRequest,
            transform,
        ),
        Keywords("StepOptions", "Which files of the source are read.", ConversionRequest, step),
        Keywords("WriteOptions", "How the target's files are written.", ConversionRequest, write),
        Keywords(
            "LoadOptions",
            "Options of `reshard.load_rank` and `reshard.plan_load`.",
            ConversionRequest,
            bases=("TransformOptions", "StepOptions"),
        ),
        Keywords(
            "ConvertOptions",
            "Options of `reshard.convert` and `reshard.plan`.",
            ConversionRequest,
            one,
            bases=("TransformOptions", "StepOptions", "WriteOptions"),
        ),
        Keywords(
            "LatestOptions",
            "Options of `reshard.convert_latest`.",
            LatestConversionRequest,
            latest,
            bases=("TransformOptions", "WriteOptions"),
        ),
        Keywords("DoctorOptions", "Options of `reshard.doctor`.", ConversionRequest, _in_order(DIAGNOSIS_OPTIONS)),
        Keywords(
            "FingerprintOptions",
            "Options of `reshard.fingerprint`.",
            ConversionRequest,
            _in_order({*FINGERPRINT_OPTIONS} - {*DIAGNOSIS_OPTIONS}),
            bases=("DoctorOptions",),
        ),
        Keywords(
            "RecoverOptions",
            "Options of `reshard.recover`.",
            ConversionRequest,
            _in_order({*RECOVERY_OPTIONS} - {*DIAGNOSIS_OPTIONS}),
            bases=("DoctorOptions",),
        ),
        Keywords(
            "DiffOptions",
            "Options of `reshard.diff`; those that end in `_a` and `_b` are about one of the two checkpoints.",
            ComparisonRequest,
            diff,
        ),
        Keywords("VerifyOptions", "Options of `reshard.verify`.", VerificationRequest, verify),
    ]


def module_text() -> str:
    """Return the module."""
    classes = all_keywords()
    fields = [each.request.model_fields[name] for each in classes for name in each.fields]
    enums = sorted({kind for field in fields if (kind := _enum_of(field))}, key=lambda kind: kind.__name__)
    by_module: dict[str, list[str]] = {}
    for kind in enums:
        by_module.setdefault(kind.__module__, []).append(kind.__name__)
    imports = "".join(f"from {module} import {', '.join(names)}\n" for module, names in sorted(by_module.items()))
    names = "".join(map(_alias, enums))
    return _HEAD + imports + _TYPES + names + "".join(f"\n\n{_class(each)}" for each in classes)


def _alias(kind: type[StrEnum]) -> str:
    """The name of an enumeration's choices, in lines as the formatter breaks them."""
    line = f"{kind.__name__}Name = {kind.__name__} | {_literal(kind)}"
    if len(line) > _WIDTH:
        line = line.replace(" = ", " = (\n    ", 1) + "\n)"
    return f"{line}\n"


def _fields(*models: type[BaseModel]) -> set[str]:
    return {name for model in models for name in model.model_fields}


def _in_order(names: Collection[str]) -> tuple[str, ...]:
    """Names of a conversion's options without arguments, in the order of the command's help."""
    return tuple(name for group in GROUPS.values() for name in group if name in names and name not in _ARGUMENTS)


def _class(keywords: Keywords) -> str:
    fields = {name: keywords.request.model_fields[name] for name in keywords.fields}
    head = f"class {keywords.name}({', '.join(keywords.bases)}, total=False):\n"
    if not fields:
        return f'{head}    """{keywords.meaning}"""\n'
    attributes = "".join(_attribute(name, field) for name, field in fields.items())
    mark = 'r"""' if "\\" in attributes else '"""'
    types = "".join(f"    {name}: {_type(field)}\n" for name, field in fields.items())
    return f'{head}    {mark}{keywords.meaning}\n\n    Attributes:\n{attributes}    """\n\n{types}'


def _attribute(name: str, field: FieldInfo) -> str:
    lines = textwrap.wrap(
        f"{name}: {field.description}",
        _WIDTH,
        initial_indent=" " * 8,
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines) + "\n"


def _type(field: FieldInfo) -> str:
    kind = _enum_of(field)
    if kind is not None:
        return f"{kind.__name__}Name"
    if field.annotation == list[str]:
        return "Texts"
    if field.annotation is str:
        return "PathOrUrl" if URL_METAVAR.text in (metavar_of(field) or "") else "str"
    return str(getattr(field.annotation, "__name__", field.annotation))


def _enum_of(field: FieldInfo) -> type[StrEnum] | None:
    """The choices of a field, which may be some of an enumeration's; None for another type."""
    candidates = (field.annotation, *map(type, get_args(field.annotation)))
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, StrEnum)), None)


def _literal(values: Iterable[str]) -> str:
    return f"Literal[{', '.join(_quoted(values))}]"


def _quoted(values: Iterable[str]) -> Iterator[str]:
    for value in values:
        yield f'"{value}"'


def main() -> None:
    """Bring the module up to date."""
    MODULE.write_text(module_text(), encoding="utf-8")
    print(f"{MODULE} is up to date")


if __name__ == "__main__":
    main()

"""The public face: what `reshard` has, that its signatures agree with the requests, and what importing it loads."""

import inspect
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

import reshard
import reshard.api
import reshard.core.errors
import reshard.errors
from docs.write_keywords import MODULE, module_text
from reshard import options
from reshard.cli.main import _COMMANDS as COMMANDS
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import InputError, ReshardError
from reshard.core.request.source import FingerprintRequest, SourceRequest
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT

_LEFT_TO_FLOWS = {"dask_scheduler", "concurrency_limit"}
_LEFT_TO_COMMANDS = {"deploy", "serve", "completion"}


def test_names_are_those_of_the_modules_behind_them() -> None:
    assert set(reshard.__all__) == {"__version__", "errors", *reshard.api.__all__}
    for name in reshard.api.__all__:
        assert getattr(reshard, name) is getattr(reshard.api, name)
    assert set(reshard.__all__) <= set(dir(reshard))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = reshard.nothing


def test_every_command_is_a_function() -> None:
    functions = {name for name in reshard.__all__ if inspect.isfunction(getattr(reshard, name))}
    assert {name.replace("-", "_") for name in COMMANDS.keys() - _LEFT_TO_COMMANDS} <= functions


def test_errors_are_all_of_the_library() -> None:
    found = vars(reshard.core.errors).items()
    errors = {name for name, kind in found if inspect.isclass(kind) and issubclass(kind, ReshardError)}
    assert set(reshard.errors.__all__) == {*errors, "is_transient"}


@pytest.mark.parametrize("module", ["reshard", "reshard.errors", "reshard.elastic"])
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    assert loaded(f"import {module}") == set()


def test_only_flows_load_prefect() -> None:
    assert "prefect" not in loaded("import reshard; reshard.convert; import reshard.mindspore")
    assert "prefect" in loaded("import reshard.flows.convert_checkpoint")


def loaded(program: str) -> set[str]:
    """Which of the large modules a program loads."""
    heavy = ("numpy", "pydantic", "fsspec", "prefect", "click", "google.protobuf")
    shown = f"{program}\nimport sys; print(*(name for name in {heavy} if name in sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", shown], cwd=PROJECT, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    return set(ran.stdout.split())


@pytest.mark.parametrize(
    ("function", "request_model", "known", "left_out"),
    [
        (reshard.convert, reshard.ConversionRequest, options.ConvertOptions, _LEFT_TO_FLOWS),
        (reshard.plan, reshard.ConversionRequest, options.ConvertOptions, _LEFT_TO_FLOWS),
        (reshard.convert_latest, reshard.LatestConversionRequest, options.LatestOptions, _LEFT_TO_FLOWS),
        (reshard.diff, reshard.ComparisonRequest, options.DiffOptions, set()),
        (reshard.verify, reshard.VerificationRequest, options.VerifyOptions, set()),
        (reshard.merge_strategy, reshard.MergeRequest, None, set()),
    ],
)
def test_a_function_takes_all_fields_of_its_request(
    function: Any, request_model: type[BaseModel], known: type | None, left_out: set[str]
) -> None:
    parameters = {
        name for name, each in inspect.signature(function).parameters.items() if each.kind != each.VAR_KEYWORD
    }
    optional = set(get_type_hints(known)) if known else set()
    assert not parameters & optional
    assert (parameters - {"progress"}) | optional == set(request_model.model_fields) - left_out


@pytest.mark.parametrize(
    ("known", "request_model"),
    [
        (options.ConvertOptions, reshard.ConversionRequest),
        (options.LatestOptions, reshard.LatestConversionRequest),
        (options.LoadOptions, reshard.ConversionRequest),
        (options.FingerprintOptions, FingerprintRequest),
        (options.RecoverOptions, SourceRequest),
        (options.DoctorOptions, SourceRequest),
        (options.DiffOptions, reshard.ComparisonRequest),
        (options.VerifyOptions, reshard.VerificationRequest),
    ],
)
def test_options_have_the_types_of_their_fields(known: type, request_model: type[BaseModel]) -> None:
    for name, hint in get_type_hints(known).items():
        assert kinds_of(hint) == kinds_of(request_model.model_fields[name].annotation), name


def kinds_of(hint: Any) -> frozenset[Any]:
    """The values of a type: base types, and each choice of an enumeration as text."""
    if get_origin(hint) in (Union, UnionType):
        return frozenset().union(*map(kinds_of, get_args(hint)))
    if get_origin(hint) is Literal:
        choices = frozenset(map(str, get_args(hint)))
        # the level of a check is one of those of a conversion, of which `none` is refused
        return choices | {"none"} if choices == frozenset(VerifyLevel) - {"none"} else choices
    if get_origin(hint) in (list, tuple):
        return frozenset({list})
    if inspect.isclass(hint) and issubclass(hint, StrEnum):
        return frozenset(map(str, hint))
    # a path is given as a text
    return frozenset({str if hint in get_args(options.PathOrUrl) or get_origin(hint) else hint})


def test_keywords_are_up_to_date() -> None:
    assert MODULE.read_text(encoding="utf-8") == module_text(), "run: python -m docs.write_keywords"


def test_every_option_is_described() -> None:
    kinds = [kind for kind in vars(options).values() if hasattr(kind, "__optional_keys__")]
    described = "".join(kind.__doc__ or "" for kind in kinds)
    for name in set().union(*map(get_type_hints, kinds)):
        assert f"\n        {name}: " in described or f"\n    {name}: " in described, name


@pytest.mark.parametrize(
    "name", sorted(options.ConvertOptions.__annotations__.keys() - options.LoadOptions.__annotations__)
)
def test_loading_has_no_options_about_writing(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}: there is no such option"):
        reshard.plan_load("nowhere", **{name: ""})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reshard.convert("a", "b", formt="ckpt"), "formt: there is no such option; did you mean format?"),  # type: ignore[call-arg]
        (lambda: reshard.doctor("a", presets="qwen3"), "presets: there is no such option; did you mean preset?"),  # type: ignore[call-arg]
        (lambda: reshard.recover("a", groups=[]), "groups: there is no such option; did you mean group_info"),  # type: ignore[call-arg]
        (lambda: reshard.load_rank("a", name=["b"]), "name: there is no such option; did you mean names"),  # type: ignore[call-arg]
        (lambda: reshard.convert("a", "b", format="onnx"), "format 'onnx': "),  # type: ignore[arg-type]
        (lambda: reshard.convert("a", "b", dask_scheduler="local"), "dask_scheduler: is for flows"),  # type: ignore[call-arg]
        (lambda: reshard.convert(5, "b"), "source 5: "),  # type: ignore[arg-type]
        (lambda: reshard.convert("a", "b", include="adam_*"), "include 'adam_*': "),  # type: ignore[arg-type]
        (lambda: reshard.load_rank("a", format="ckpt"), "format: there is no such option"),  # type: ignore[call-arg]
        (lambda: reshard.load_rank("a", workers=-1), "workers -1: "),
        (lambda: reshard.diff("a", "b", step_a="newest"), "step_a 'newest': "),
        (lambda: reshard.verify("a", level="none"), "level 'none': "),
        (lambda: reshard.merge_strategy("a", "b", overwrite="often"), "overwrite 'often': "),  # type: ignore[arg-type]
        (lambda: reshard.make_strategy("a", like="b", data_parallel="x", model_parallel=1), "data_parallel 'x': "),  # type: ignore[arg-type]
        (lambda: reshard.doctor("a", integrated_save="maybe"), "integrated_save 'maybe': "),  # type: ignore[arg-type]
        (lambda: reshard.join_parts("a", "b"), "parts: must be a list"),
        (lambda: reshard.inspect("a", storage="my secret"), "storage: must be env:NAME"),
        (lambda: reshard.inspect("a", decrypt_mode="AES-CBC"), "decrypt_mode 'AES-CBC': needs a key: name it with"),
        (lambda: reshard.inspect("a", deep=True), "inspect: got an unexpected keyword argument 'deep'"),  # type: ignore[call-arg]
        (lambda: reshard.join_parts(["a"]), "join_parts: missing a required argument: 'target'"),  # type: ignore[call-arg]
    ],
)
def test_what_is_wrong_is_named(call: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_secrets_are_not_repeated() -> None:
    with pytest.raises(InputError) as caught:
        reshard.inspect("a", decrypt_key="0123456789abcdef")
    assert "0123456789abcdef" not in str(caught.value)


def test_paths_and_urls_are_taken(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^{tmp_path}/nothing: "):
        reshard.inspect(tmp_path / "nothing")
    with pytest.raises(InputError, match="^memory:///nothing: "):
        reshard.inspect("memory://nothing")

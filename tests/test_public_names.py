"""The public face: what `reshard` has, that its signatures agree with the requests, and what importing it loads."""

import inspect
import subprocess
import sys
from collections.abc import Collection, Sequence
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
from docs.write_keywords import FUNCTIONS, TYPES, all_options, functions_text, types_text
from reshard.cli.main import _COMMANDS as COMMANDS
from reshard.core.errors import InputError, ReshardError
from tests.support.checkpoints import case
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT

_LEFT_TO_FLOWS = {"dask_scheduler", "concurrency_limit"}
_LEFT_TO_COMMANDS = {"deploy", "serve", "schedule", "metrics", "completion"}


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


_PUBLIC = [name for name in reshard.api.__all__ if inspect.isfunction(getattr(reshard, name))]
_FUNCTIONS = {options.function.__name__: options for options in all_options()}


@pytest.mark.parametrize(
    ("function", "request_model", "left_out"),
    [
        (reshard.convert, reshard.ConversionRequest, _LEFT_TO_FLOWS),
        (reshard.plan, reshard.ConversionRequest, _LEFT_TO_FLOWS),
        (reshard.convert_latest, reshard.LatestConversionRequest, _LEFT_TO_FLOWS),
        (reshard.diff, reshard.ComparisonRequest, set()),
        (reshard.verify, reshard.VerificationRequest, set()),
        (reshard.merge_strategy, reshard.MergeRequest, set()),
    ],
)
def test_a_function_takes_all_fields_of_its_request(
    function: Any, request_model: type[BaseModel], left_out: set[str]
) -> None:
    parameters = set(inspect.signature(function).parameters)
    assert parameters - {"progress", "cancel"} == set(request_model.model_fields) - left_out


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_options_have_the_types_and_defaults_of_their_fields(name: str) -> None:
    hints = get_type_hints(getattr(reshard, name))
    for option, field in _FUNCTIONS[name].fields.items():
        given = inspect.signature(getattr(reshard, name)).parameters[option].default
        assert kinds_of(field.annotation) <= kinds_of(hints[option]), option
        assert (given or field.default) == field.default, option


def kinds_of(hint: Any) -> frozenset[Any]:
    """The values of a type: base types, and each choice of an enumeration as text."""
    if get_origin(hint) in (Union, UnionType):
        return frozenset().union(*map(kinds_of, get_args(hint)))
    if get_origin(hint) is Literal:
        return frozenset(map(str, get_args(hint)))
    if get_origin(hint) in (list, Collection, Sequence):
        return frozenset({list})
    if inspect.isclass(hint) and issubclass(hint, StrEnum):
        return frozenset(map(str, hint))
    return frozenset({get_origin(hint) or hint})


def test_what_is_generated_is_up_to_date() -> None:
    assert TYPES.read_text(encoding="utf-8") == types_text(), "run: python -m docs.write_keywords"
    assert FUNCTIONS.read_text(encoding="utf-8") == functions_text(), "run: python -m docs.write_keywords"


@pytest.mark.parametrize("name", _PUBLIC)
def test_every_argument_is_described(name: str) -> None:
    document = inspect.getdoc(getattr(reshard, name)) or ""
    for argument, parameter in inspect.signature(getattr(reshard, name)).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            continue
        assert f"\n    {argument}: " in document, argument
        assert f"\n    {argument}: None\n" not in document, argument


@pytest.mark.parametrize("name", _PUBLIC)
def test_strategies_are_keywords_and_who_watches_can_cancel(name: str) -> None:
    parameters = inspect.signature(getattr(reshard, name)).parameters
    for argument, parameter in parameters.items():
        assert "strategy" not in argument or parameter.kind is parameter.KEYWORD_ONLY, argument
    assert ("progress" in parameters) == ("cancel" in parameters)


@pytest.mark.parametrize("name", sorted(set(_FUNCTIONS["convert"].names) - set(_FUNCTIONS["plan_load"].names)))
def test_loading_has_no_options_about_writing(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}: there is no such option"):
        reshard.plan_load("nowhere", **{name: ""})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reshard.convert("a", "b", formt="ckpt"), "formt: there is no such option; did you mean format?"),  # type: ignore[call-arg]
        (lambda: reshard.convert("a", "b", strategy="s"), "strategy: there is no such option; did you mean source_st"),  # type: ignore[call-arg]
        (
            lambda: reshard.doctor("a", presets="qwen3"),  # type: ignore[call-arg]
            "presets: there is no such option; did you mean preset or",
        ),
        (lambda: reshard.recover("a", groups=[]), "groups: there is no such option; did you mean group_info"),  # type: ignore[call-arg]
        (lambda: reshard.load_rank("a", name=["b"]), "name: there is no such option; did you mean names"),  # type: ignore[call-arg]
        (lambda: reshard.convert("a", "b", format="onnx"), "format 'onnx': "),  # type: ignore[arg-type]
        (lambda: reshard.convert("a", "b", dask_scheduler="local"), "dask_scheduler: is for flows"),  # type: ignore[call-arg]
        (lambda: reshard.convert("a"), "convert: missing a required argument: 'target'"),  # type: ignore[call-arg]
        (lambda: reshard.convert(5, "b"), "source 5: "),  # type: ignore[arg-type]
        (lambda: reshard.convert(None, "b"), "source: is missing"),  # type: ignore[arg-type]
        (lambda: reshard.load_rank("a", format="ckpt"), "format: there is no such option"),  # type: ignore[call-arg]
        (lambda: reshard.load_rank("a", workers=-1), "workers -1: "),
        (
            lambda: reshard.load_rank("a", "strategy"),  # type: ignore[arg-type]
            "rank 'strategy': must be the number of a target rank; strategies",
        ),
        (lambda: reshard.load_rank("a", True), "rank True: must be the number of a target rank"),
        (
            lambda: reshard.load_rank("a", 0, "strategy"),  # type: ignore[call-arg]
            "load_rank: too many positional arguments: give all after 'rank' by name",
        ),
        (lambda: reshard.load_rank("a", names="w"), "names 'w': must be a list of names"),
        (lambda: reshard.diff("a", "b", step_a="newest"), "step_a 'newest': "),
        (lambda: reshard.verify("a", level="none"), "level 'none': "),
        (
            lambda: reshard.fingerprint("a", source_strategy="b"),  # type: ignore[call-arg]
            "source_strategy: there is no such option; did you mean strategy?",
        ),
        (lambda: reshard.fingerprint(5), "checkpoint 5: "),  # type: ignore[arg-type]
        (lambda: reshard.fingerprint("a", strategy="s3://key:secret@bucket/b"), "strategy: "),
        (lambda: reshard.merge_strategy("a", "b", overwrite="often"), "overwrite 'often': "),  # type: ignore[arg-type]
        (lambda: reshard.make_strategy("a", like="b", data_parallel="x", model_parallel=1), "data_parallel 'x': "),  # type: ignore[arg-type]
        (lambda: reshard.make_strategy("a", like="b", data_parallel=True, model_parallel=1), "data_parallel True: "),
        (lambda: reshard.doctor("a", integrated_save="maybe"), "integrated_save 'maybe': "),  # type: ignore[arg-type]
        (lambda: reshard.doctor("a", switch={"n": 3}), "switch {'n': 3}: only valid with 'preset'"),
        (lambda: reshard.recover("a", group_info="b"), "group_info 'b': must be a list of paths"),
        (lambda: reshard.join_parts("a", "b"), "parts 'a': must be a list of paths"),
        (lambda: reshard.join_parts([], "b"), "parts: must be a list of one or more directories"),
        (lambda: reshard.inspect("a", storage="my secret"), "storage: must be env:NAME"),
        (lambda: reshard.inspect("a", decrypt_mode="AES-CBC"), "decrypt_mode 'AES-CBC': needs a key: name it with"),
        (lambda: reshard.inspect("a", deep=True), "deep: there is no such option"),  # type: ignore[call-arg]
        (lambda: reshard.join_parts(["a"]), "join_parts: missing a required argument: 'target'"),  # type: ignore[call-arg]
    ],
)
def test_what_is_wrong_is_named(call: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("function", [reshard.fingerprint, reshard.recover, reshard.doctor])
def test_functions_about_one_checkpoint_call_its_strategy_so(function: Any, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    source = case(7009).request("unused")
    reshard.convert(source.source, whole, source_strategy=source.source_strategy, layout="unified")
    try:
        said = str(function(whole, strategy=source.source_strategy))
    except ReshardError as error:
        said = f"{error} {error.options}"
    assert "leave out 'strategy'" in said
    assert "source_strategy" not in said


def test_secrets_are_not_repeated() -> None:
    with pytest.raises(InputError) as caught:
        reshard.inspect("a", decrypt_key="0123456789abcdef")
    assert "0123456789abcdef" not in str(caught.value)


def test_paths_and_urls_are_taken(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^{tmp_path}/nothing: "):
        reshard.inspect(tmp_path / "nothing")
    with pytest.raises(InputError, match="^memory:///nothing: "):
        reshard.inspect("memory://nothing")

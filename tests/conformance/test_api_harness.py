"""The harness sees where calls of the API differ; needs no MindSpore."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from reshard.mindspore import merge_pipeline_strategys, save_checkpoint
from tests.conformance.api_harness import ApiCase, Call, all_cases, array, check_api_case
from tests.conformance.mindspore_process import Judge
from tests.support.strategy_writer import FileLayout, write_strategy_file

VALUES = np.arange(3, dtype=np.float32)


def judge(answer: Callable[[Path], Any]) -> Judge:
    """One that makes calls by `answer`, given the directory; an exception is its answer, too."""

    class Other:
        def call(self, directory: Path, function: str, arguments: str) -> dict[str, Any]:
            ast.literal_eval(arguments)
            found = answer(directory)
            if isinstance(found, Exception):
                return {"error": type(found).__name__, "message": str(found)}
            return {"value": found}

    return cast(Judge, Other())


def saved(values: np.ndarray, name: str = "a.ckpt") -> Callable[[Path], None]:
    def save(directory: Path) -> None:
        save_checkpoint({"w": values}, str(directory / name))

    return save


LOAD = ApiCase("loads", [Call("load_checkpoint", ("given.ckpt",))], saved(VALUES, "given.ckpt"))
SAVE = ApiCase("saves", [Call("save_checkpoint", ({"w": array(VALUES)}, "{here}/a.ckpt"))])


TWO = {"w": VALUES, "b": VALUES}


def saved_two(names: str, name: str = "a.ckpt") -> Callable[[Path], None]:
    return lambda directory: save_checkpoint({each: TWO[each] for each in names}, str(directory / name))


LOAD_TWO = ApiCase("loads two", [Call("load_checkpoint", ("given.ckpt",))], saved_two("wb", "given.ckpt"))
SAVE_TWO = ApiCase("saves two", [Call("save_checkpoint", ({"w": array(VALUES), "b": array(VALUES)}, "{here}/a.ckpt"))])


@pytest.mark.parametrize(
    ("case", "answer", "line"),
    [
        (LOAD_TWO, lambda _: {"w": array(VALUES), "b": array(VALUES)}, ""),
        (LOAD_TWO, lambda _: {"b": array(VALUES), "w": array(VALUES)}, "call 0: reshard returns .*; MindSpore returns"),
        (SAVE_TWO, saved_two("wb"), ""),
        (SAVE_TWO, saved_two("bw"), r"a\.ckpt: '\$order' is \['w', 'b'\], MindSpore has \['b', 'w'\]"),
        (LOAD, lambda _: {"w": array(VALUES)}, ""),
        (LOAD, lambda _: {"w": array(VALUES + 1)}, "call 0: reshard returns .*; MindSpore returns"),
        (LOAD, lambda _: ValueError("no"), r"call 0: reshard returns .*; MindSpore raises ValueError\('no'\)"),
        (SAVE, saved(VALUES), ""),
        (SAVE, saved(VALUES + 1), r"a\.ckpt: 'w' is .*, MindSpore has"),
        (SAVE, saved(VALUES, "b.ckpt"), r"only reshard has the files \['a.ckpt'\]; only MindSpore \['b.ckpt'\]"),
    ],
)
def test_what_is_compared(case: ApiCase, answer: Callable[[Path], Any], line: str, tmp_path: Path) -> None:
    lines = check_api_case(case, judge(answer), tmp_path / "case")
    assert bool(lines) == bool(line)
    assert re.search(line, "\n".join(lines))
    assert (tmp_path / "case").exists() == bool(line)


def differing(ours: str, call: Call) -> ApiCase:
    return ApiCase("differs", [call], LOAD.files, differs="for a reason", ours=ours)


@pytest.mark.parametrize(
    ("case", "answer", "lines_begin"),
    [
        (differing("", LOAD.calls[0]), ValueError("no"), []),
        (differing("ValueError", Call("load_checkpoint", ("no.ckpt",))), None, []),
        (differing("ValueError", LOAD.calls[0]), None, ["reshard raises nothing, not ValueError"]),
        (differing("", LOAD.calls[0]), {"w": array(VALUES)}, ["is as MindSpore's, although it is said to differ"]),
    ],
)
def test_what_differs_on_purpose_has_to(case: ApiCase, answer: Any, lines_begin: list[str], tmp_path: Path) -> None:
    lines = check_api_case(case, judge(lambda _: answer), tmp_path / "case")
    assert len(lines) == len(lines_begin)
    assert all(line.startswith(start) for line, start in zip(lines, lines_begin, strict=True))


def test_strategies_are_compared_by_their_fields(tmp_path: Path) -> None:
    layout = FileLayout((1,), ((),), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(1,))
    case = ApiCase(
        "merges",
        [Call("merge_pipeline_strategys", ("strategies", "merged.ckpt"))],
        lambda directory: write_strategy_file(directory / "strategies" / "a.ckpt", {0: {"w": layout}}),
    )

    def merged(directory: Path) -> None:
        merge_pipeline_strategys(str(directory / "strategies"), str(directory / "merged.ckpt"))

    def of_other_names(directory: Path) -> None:
        write_strategy_file(directory / "merged.ckpt", {0: {"0-v": layout}})

    assert check_api_case(case, judge(merged), tmp_path / "same") == []
    [line] = check_api_case(case, judge(of_other_names), tmp_path / "other")
    assert line.startswith("merged.ckpt: 'parallelLayoutItem' is")


def test_each_call_may_be_made_where_the_other_side_was(tmp_path: Path) -> None:
    case = ApiCase("exchanged", [SAVE.calls[0], Call("load_checkpoint", ("a.ckpt",))], exchanged=True)
    answers = iter([saved(VALUES + 1), lambda _: {"w": array(VALUES + 1)}])
    lines = check_api_case(case, judge(lambda directory: next(answers)(directory)), tmp_path / "case")
    assert len(lines) == 1  # the files differ; what each side loads of the other's does not
    assert lines[0].startswith("a.ckpt")


def test_cases_have_names_of_their_own() -> None:
    names = [case.name for case in all_cases()]
    assert len(names) == len(set(names))
    assert {case.name for case in all_cases("restore_")} < set(names)

"""Options in messages: marked where a message is made, spelled where it is shown."""

import ast
import copy
import pickle
import re
import subprocess
import sys
import traceback

import pytest

from reshard.core.errors import InputError, PlanError, ReshardError, StorageError, raise_problems
from reshard.core.text.options import Option, option, options_in, options_of_side, source_option, spelled, spelled_by
from tests.support.places import PROJECT

CORE = PROJECT / "core"
_FLAG = re.compile(r"(?<![-\w])--[a-z]")
_OF_OTHERS = {
    "layouts/foreign.py": "commands of other tools",
    "conversion/views/page.py": "variables of CSS",
    "storage/objects/s3.py": "the end of buckets' names",
    "layouts/megatron": "options of Megatron",
    "layouts/torch_dist": "options of Megatron",
}
"""Modules and packages with texts that only look like our options."""


def shouting(option: Option) -> str:
    return f"{option.name.upper()}{option.texts}"


@pytest.mark.parametrize(
    ("mark", "shown"),
    [
        (option("step"), "'step'"),
        (option("overwrite", True), "overwrite=True"),
        (option("workers", 4), "workers=4"),
        (option("layout", "dcp"), "layout='dcp'"),
        (option("exclude", ["a.b", "c"]), "exclude=['a.b', 'c']"),
    ],
    ids=["name", "switch", "number", "text", "texts"],  # marks differ from process to process
)
def test_a_program_reads_keyword_arguments(mark: str, shown: str) -> None:
    assert str(InputError(f"wrong: {mark}")) == f"wrong: {shown}"
    assert str(StorageError(f"wrong: {mark}")) == f"wrong: {shown}"
    assert repr(InputError(mark)) == f"InputError({shown!r})"


def test_options_are_spelled_where_an_error_is_shown_not_where_it_was_raised() -> None:
    with spelled_by(shouting):
        error = PlanError(f"leave it out: {option('exclude', ['w'])}, or {option('step')}")
        assert str(error) == "leave it out: EXCLUDE['w'], or STEP[]"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == "leave it out: exclude=['w'], or 'step'"
    with spelled_by(shouting):
        assert str(again) == "leave it out: EXCLUDE['w'], or STEP[]"


def test_a_form_asks_with_a_verb_of_its_own() -> None:
    error = PlanError(f"passed over. Compass {option('step')}, or pass {option('overwrite', True)}; do not pass by")
    assert str(error) == "passed over. Compass 'step', or pass overwrite=True; do not pass by"
    with spelled_by(shouting, verb="set"):
        assert str(error) == "passed over. Compass STEP[], or set OVERWRITE[]; do not pass by"
    assert str(error).endswith("or pass overwrite=True; do not pass by")


def test_an_error_says_which_options_would_help() -> None:
    with pytest.raises(PlanError) as caught:
        raise_problems(PlanError, "two problems", [option("exclude", ["w"]), option("recover", True)])
    assert caught.value.options == (Option("exclude", ["w"]), Option("recover", True))
    assert InputError("nothing helps").options == ()


def test_values_with_brackets_quotes_and_controls_keep_to_their_option() -> None:
    odd = '⟦overwrite⟧ "it\'s" \x1b\n\udc80'
    assert options_in(option("exclude", [odd])) == (Option("exclude", [odd]),)
    assert str(InputError(option("exclude", [odd]))).isprintable()


@pytest.mark.parametrize("name", ["⟦overwrite=true⟧", "⟦step⟧", "⟦a b⟧ ⟦w=⟧ ⟦w=[⟧ ⟦", f"⟦{'0' * 16}:step⟧"])
def test_foreign_names_that_look_like_marks_stay_as_they_are(name: str) -> None:
    assert spelled(name) == name
    assert options_in(name) == ()


def test_an_error_of_another_process_is_spelled_like_our_own() -> None:
    program = (
        "import pickle, sys; from reshard.core.conversion.batches import RanksFailedError; "
        "from reshard.core.errors import StorageError; from reshard.core.text.options import option; "
        "refused = StorageError('try ' + option('step', '1'), transient=True); "
        "sys.stdout.buffer.write(pickle.dumps([refused, RanksFailedError({3: refused})]))"
    )
    for error in pickle.loads(
        subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True).stdout
    ):
        assert error.options == (Option("step", "1"),)
        assert error.transient
        assert str(error).endswith("try step='1'")


@pytest.mark.parametrize("value", ["[" * 200_000, "1" * 5_000, '{"a":1}', "NaN", "[[1]]"])
def test_a_hostile_name_that_looks_like_a_mark_breaks_no_message(value: str) -> None:
    error = InputError(f"parameter ⟦w={value}⟧: pass {option('overwrite', True)}")
    assert str(error) == f"parameter ⟦w={value}⟧: pass overwrite=True"
    assert error.options == (Option("overwrite", True),)


@pytest.mark.parametrize("error", [InputError(option("step")), StorageError(option("step"), transient=True)])
def test_no_part_of_an_error_that_a_program_sees_shows_a_mark(error: ReshardError) -> None:
    shown = "".join(traceback.format_exception(ExceptionGroup("several", [error])))
    assert "⟦" not in f"{error} {error!r} {error.args} {shown}"
    assert error.args[0] == "'step'"
    again = pickle.loads(pickle.dumps(copy.copy(error)))
    assert (again.marked, again.args) == (error.marked, error.args)


def test_a_comparison_has_the_options_of_a_source_twice() -> None:
    assert source_option("source_strategy") == option("source_strategy")
    with options_of_side("a"):
        assert source_option("source_strategy") == option("strategy_a")
        with options_of_side("b"):
            assert source_option("step", "10_5") == option("step_b", "10_5")
        assert source_option("integrated_save") == option("integrated_save_a")
    assert source_option("decrypt_key") == option("decrypt_key")


def test_only_the_command_spells_options_as_flags() -> None:
    found = [
        f"core/{path.relative_to(CORE)}:{node.lineno}: {node.value!r}"
        for path in sorted(CORE.rglob("*.py"))
        if _OF_OTHERS.keys().isdisjoint(map(str, (path.relative_to(CORE), path.parent.relative_to(CORE))))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _FLAG.search(node.value)
    ]
    assert not found

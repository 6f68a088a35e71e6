"""How the command spells options in messages."""

import pytest

from reshard.cli.main import run
from reshard.cli.spelling import flag
from reshard.core.text.options import Option


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        (Option("source_strategy"), "--source-strategy"),
        (Option("overwrite", True), "--overwrite"),
        (Option("layout", "dcp"), "--layout dcp"),
        (Option("workers", 4), "--workers 4"),
        (Option("exclude", ["a.b", "adam_*"]), "--exclude a.b --exclude 'adam_*'"),
        (Option("exclude", ["a\nb"]), "--exclude 'a\\nb'"),
        (Option("cuts", ["*.wq=0"]), "--cut '*.wq=0'"),
        (Option("source"), "SOURCE"),
    ],
)
def test_options_are_spelled_as_they_are_typed(option: Option, shown: str) -> None:
    assert flag(option) == shown


def test_a_message_of_the_command_advises_what_can_be_typed(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "merged.json"
    target.write_text("{}")
    assert run(["merge-strategy", str(tmp_path / "ranks"), str(target)]) == 2
    assert "pass --overwrite to replace it" in capsys.readouterr().err

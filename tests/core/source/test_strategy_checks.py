"""Names in a strategy and in files, in the right stages and in others."""

from pathlib import Path

from reshard.core.tensor.layout import ParameterLayout
from tests.support.diagnosed import looked_at, only, problems
from tests.support.two_stages import ROWS, STAGES, Layouts, write


def test_stages_swapped(tmp_path: Path) -> None:
    write(tmp_path / "src")
    finding = problems(looked_at(tmp_path, STAGES[::-1]))[0]
    assert finding.check == "stages"
    assert finding.found == (
        "stages are in another order: ranks 0-3 hold the parameters of stage 1; "
        "ranks 4-7 hold the parameters of stage 0"
    )


def test_layers_in_other_stages(tmp_path: Path) -> None:
    write(tmp_path / "src")
    moved = [{**STAGES[0], "net.l.1.wq": ROWS}, {name: lay for name, lay in STAGES[1].items() if name != "net.l.1.wq"}]
    found = problems(looked_at(tmp_path, moved))
    assert found[0].found == "stage 1 (ranks 4-7) holds 'net.l.1.wq', which the strategy gives to stage 0 only"
    assert found[1].found == "stage 0 (ranks 0-3) lacks 'net.l.1.wq', which other stages' ranks hold"
    assert "assigned layers to stages in another way" in found[0].means


def test_a_shared_parameter_in_one_stage_only(tmp_path: Path) -> None:
    write(tmp_path / "src")
    tied = [STAGES[0], {**STAGES[1], "net.embed.w": ROWS}]
    assert "lacks 'net.embed.w'" in only(looked_at(tmp_path, tied), "stages", "note").found


def renamed(stages: Layouts, old: str, new: str) -> list[dict[str, ParameterLayout]]:
    return [{name.replace(old, new): layout for name, layout in layouts.items()} for layouts in stages]


def test_a_prefix(tmp_path: Path) -> None:
    write(tmp_path / "src", renamed(STAGES, "net.", "network.net."))
    finding = only(looked_at(tmp_path), "names")
    assert finding.found == (
        "8 of the 8 names that only the strategy has are in the files, all with 'network.' before them: 'net.embed.w'"
    )
    assert "wrapped in another cell" in finding.means


def test_a_component(tmp_path: Path) -> None:
    write(tmp_path / "src", renamed(STAGES, ".l.", ".layers."))
    finding = only(looked_at(tmp_path), "names")
    assert "6 of the 6 names" in finding.found
    assert "all with 'layers' in the place of 'l'" in finding.found


NORM_OF_TWO = ParameterLayout((2, 2), ((), ()))


def test_parameters_on_one_side_only(tmp_path: Path) -> None:
    write(tmp_path / "src", [{**STAGES[0], "lora.a": NORM_OF_TWO}, STAGES[1]])
    diagnosis = looked_at(tmp_path, [{**STAGES[0], "extra": ROWS, "adam_m.net.embed.w": ROWS}, STAGES[1]])
    assert [(finding.severity, finding.found) for finding in diagnosis.findings] == [
        ("problem", "in the strategy, and in no file: 'extra', 'adam_m.net.embed.w'"),
        ("note", "in files, and not in the strategy: 'lora.a'"),
    ]


def test_optimizer_states_were_not_saved(tmp_path: Path) -> None:
    write(tmp_path / "src")
    states = [{**layouts, **{f"adam_m.{name}": lay for name, lay in layouts.items()}} for layouts in STAGES]
    finding = only(looked_at(tmp_path, states), "names", "note")
    assert finding.means == "optimizer states were not saved"


def test_some_optimizer_states_were_lost(tmp_path: Path) -> None:
    states = [{**layouts, **{f"adam_m.{name}": lay for name, lay in layouts.items()}} for layouts in STAGES]
    write(tmp_path / "src", [{name: lay for name, lay in states[0].items() if name != "adam_m.net.l.0.wq"}, states[1]])
    finding = only(looked_at(tmp_path, states), "names")
    assert finding.found == "in the strategy, and in no file: 'adam_m.net.l.0.wq'"


def test_cut_and_in_no_strategy(tmp_path: Path) -> None:
    uneven = ParameterLayout((2, 2), ((0,), ()), param_split_shape=(3, 5), indices_offset=(0, 3))
    write(tmp_path / "src", [{**STAGES[0], "lora.a": uneven}, STAGES[1]])
    assert "their shapes differ between ranks ('lora.a')" in only(looked_at(tmp_path), "names").means

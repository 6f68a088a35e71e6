"""Parameters that ranks lack although the strategy gives them these: explained by proof, or refused."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from reshard.core.conversion.convert import convert
from reshard.core.conversion.load import plan_load
from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import StrategyError
from reshard.core.mindspore_api.transforming import transform_checkpoints
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.request.source import FingerprintRequest, SourceRequest
from reshard.core.source.recovery import StepState, assess_recovery
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.verification.compare import compare_checkpoints, fingerprint_checkpoint
from tests.support.checkpoints import read_tree
from tests.support.damaged import request_of, whole_model, whole_shards
from tests.support.diagnosed import looked_at, only
from tests.support.two_stages import COLUMNS, NORM, ROWS, STAGES, strategy, write

ONE_STAGE = {name: replace(lay, device_matrix=(4, 2)) for each in STAGES for name, lay in each.items()}
"""The layouts of 4-way data parallel and 2-way model parallel, by which each slice of two stages has an owner."""
LAYERS_OF_ONE_RANK = {f"l.{number}.w": ParameterLayout((2,), ((), ())) for number in range(4)}


def request_by(tmp_path: Path, layouts: Mapping[str, ParameterLayout], **options: object) -> ConversionRequest:
    path = str(tmp_path / "one_stage.ckpt")
    write_strategy(strategy([layouts]), path)
    return build_request(source=str(tmp_path / "src"), target=str(tmp_path / "out"), source_strategy=path, **options)


def recover(source: str, strategy: str, *, trusted: bool = False) -> tuple[str, ...]:
    report = assess_recovery(SourceRequest(source=source, source_strategy=strategy, trust_strategy=trusted))
    assert report.state is StepState.WHOLE
    return report.notes


def fingerprint(source: str, strategy: str, *, trusted: bool = False) -> tuple[str, ...]:
    request = FingerprintRequest(source=source, source_strategy=strategy, trust_strategy=trusted)
    return fingerprint_checkpoint(request).notes


def diff(source: str, strategy: str, *, trusted: bool = False) -> tuple[str, ...]:
    request = build_comparison(a=f"{source}/rank_0", b=source, strategy_b=strategy, trust_strategy_b=trusted)
    return compare_checkpoints(request).b.notes


def diff_by_changes(source: str, strategy: str, *, trusted: bool = False) -> tuple[str, ...]:
    changes = Path(source).with_name("changes.yaml")
    changes.write_text("cast:\n- {parameters: '*', dtype: bfloat16}\n")
    sides = {"a": source, "strategy_a": strategy, "trust_strategy_a": trusted, "b": f"{source}/rank_0"}
    return compare_checkpoints(build_comparison(**sides, changes=str(changes))).a.notes


def load(source: str, strategy: str, *, trusted: bool = False) -> tuple[str, ...]:
    return plan_load(source, strategy, trust_strategy=trusted).notes


@pytest.mark.parametrize("command", [recover, fingerprint, diff, diff_by_changes, load])
def test_every_command_refuses_two_stages_by_a_strategy_of_one(
    command: Callable[..., tuple[str, ...]], tmp_path: Path
) -> None:
    source, strategy = str(write(tmp_path / "src")), request_by(tmp_path, ONE_STAGE).source_strategy
    with pytest.raises(StrategyError, match="seem to be those of 2 pipeline stages, and the strategy has 1 stage"):
        command(source, strategy)
    notes = command(source, strategy, trusted=True)
    assert [note for note in notes if note.startswith("the strategy does not explain which ranks hold what: ")]


def test_the_functions_of_mindspore_warn_of_two_stages_by_a_strategy_of_one(tmp_path: Path) -> None:
    source, strategy = str(write(tmp_path / "src")), request_by(tmp_path, ONE_STAGE).source_strategy
    with pytest.warns(UserWarning, match="seem to be those of 2 pipeline stages, and the strategy has 1 stage"):
        transform_checkpoints(source, str(tmp_path / "out"), "net", strategy, None)


def test_two_stages_by_a_strategy_of_one_stage_are_no_removed_redundancy(tmp_path: Path) -> None:
    write(tmp_path / "src")
    with pytest.raises(StrategyError) as message:
        make_plan(request_by(tmp_path, ONE_STAGE))
    assert "ranks 0-3 alone hold layer 0 (net.l.0); ranks 4-7 alone hold layer 1 (net.l.1)" in str(message.value)
    assert "seem to be those of 2 pipeline stages, and the strategy has 1 stage of 8 devices" in str(message.value)
    finding = only(looked_at(tmp_path, [ONE_STAGE]), "stages")
    assert finding.means.startswith("the ranks seem to be those of 2 pipeline stages")


def test_stages_of_one_device_by_a_strategy_of_one_stage(tmp_path: Path) -> None:
    """Each slice has one owner, as where redundancy was removed, but the layers are in order."""
    whole = {name: ParameterLayout((1,), ((), ())) for name in LAYERS_OF_ONE_RANK}
    names = list(whole)
    write(tmp_path / "src", [{name: whole[name] for name in part} for part in (names[:2], names[2:])])
    with pytest.raises(StrategyError, match=r"rank_0 alone holds layers 0-1 \(l\.0\); rank_1 alone"):
        make_plan(request_by(tmp_path, LAYERS_OF_ONE_RANK))


def test_a_trusted_strategy_is_not_said_to_have_removed_redundancy(tmp_path: Path) -> None:
    write(tmp_path / "src")
    notes = plan_notes(make_plan(request_by(tmp_path, ONE_STAGE, trust_strategy=True)))
    assert any(note.startswith("the strategy does not explain which ranks hold what: ") for note in notes)
    assert any(note.startswith("8 ranks lack some of 8 parameters") for note in notes)
    assert not any("redundancy" in note for note in notes)


def test_ranks_that_lack_parameters_by_no_rule(tmp_path: Path) -> None:
    directory = whole_shards(tmp_path, {2: {"a"}, 5: {"b"}})
    with pytest.raises(StrategyError, match=r"missing on ranks that own them by the strategy: .* alone hold 'a'; "):
        convert(request_of(directory))
    convert(request_of(directory, trust_strategy=True))
    assert read_tree(tmp_path / "out")[0] == whole_model()


def test_removed_redundancy_is_shown_by_one_owner_of_each_slice(tmp_path: Path) -> None:
    layers = {f"l.{n}.{name}": lay for n in range(3) for name, lay in (("wq", ROWS), ("wo", COLUMNS), ("norm", NORM))}
    source = write(tmp_path / "full", [layers])
    write_strategy(strategy([layers]), str(tmp_path / "strategy.ckpt"))
    same = dict.fromkeys(("source_strategy", "target_strategy"), str(tmp_path / "strategy.ckpt"))
    convert(build_request(source=str(source), target=str(tmp_path / "removed"), remove_redundancy=True, **same))
    (tmp_path / "removed").rename(tmp_path / "src")
    notes = plan_notes(make_plan(request_by(tmp_path, layers)))
    assert any(
        "redundancy was removed from the source, judging by the contents of its files: " in note for note in notes
    )

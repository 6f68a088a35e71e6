"""Planning a conversion: sources, strategies and options that do not fit are refused before anything is written."""

import shutil
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import CatalogError, InputError, PlanError
from reshard.core.request.conversion import build_request
from tests.support.checkpoints import case, read_tree
from tests.support.ckpt_writer import CheckpointMessage
from tests.support.conversions import whole_copies
from tests.support.runs import partial

FOUR_TO_THREE = case(7009)
PIPELINES = case(7011)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_stage_of_its_own_is_converted_alone(target: Path) -> None:
    own = PIPELINES.directory / "src_stages" / "strategy_5.ckpt"
    report = convert(PIPELINES.request(target, source_strategy=str(own), target_strategy=""))
    assert "the source strategy is stage 1's own: only rank_4, rank_5, rank_6" in report.notes[0]
    assert "are NOT in the result" in report.notes[0]
    [held] = read_tree(target).values()
    [full] = read_tree(PIPELINES.directory / "full").values()
    assert {name: full[name] for name in held if name in full} == {n: c for n, c in held.items() if n in full}
    assert 0 < len(held) < len(full) + 2


def test_a_strategy_of_another_world_size(target: Path) -> None:
    with pytest.raises(CatalogError, match="4 ranks, but the source strategy has 8 ranks; missing: rank_4"):
        convert(FOUR_TO_THREE.request(target, source_strategy=str(PIPELINES.directory / "src_strategy.ckpt")))
    source = target.parent / "src"
    for rank in range(8):
        shutil.copytree(FOUR_TO_THREE.directory / "src" / f"rank_{rank % 4}", source / f"rank_{rank}")
    with pytest.raises(CatalogError, match="has 8 ranks, but the source strategy .* has 4: it is another checkpoint's"):
        convert(FOUR_TO_THREE.request(target, source=str(source)))


def test_missing_rank(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(FOUR_TO_THREE.directory / "src", source)
    shutil.rmtree(source / "rank_2")
    with pytest.raises(CatalogError, match="missing: rank_2"):
        convert(FOUR_TO_THREE.request(target, source=str(source)))
    assert not target.exists()
    assert not partial(target).exists()


def test_a_file_truncated_at_every_length(tmp_path: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(FOUR_TO_THREE.directory / "src", source)
    file = source / "rank_3" / "checkpoint_3.ckpt"
    whole = file.read_bytes()
    request = FOUR_TO_THREE.request(tmp_path / "out", source=str(source))
    make_plan(request)
    step = max(1, len(whole) // 150)
    for length in [*range(200), *range(200, len(whole), step), len(whole) - 1]:
        file.chmod(0o600)
        file.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"rank_3"):
            make_plan(request)


def test_source_that_is_not_there(target: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        convert(FOUR_TO_THREE.request(target, source="/nowhere/at/all"))
    with pytest.raises(InputError, match="nothing.ckpt"):
        convert(FOUR_TO_THREE.request(target, source_strategy="/tmp/nothing.ckpt"))


def test_strategy_that_is_none(target: Path) -> None:
    with pytest.raises(InputError, match="checkpoint"):
        convert(
            FOUR_TO_THREE.request(
                target, source_strategy=str(FOUR_TO_THREE.directory / "src" / "rank_0" / "checkpoint_0.ckpt")
            )
        )


def test_what_safetensors_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path, target: Path) -> None:
    message = CheckpointMessage()
    tensor = message.value.add(tag="table").maptensor.tensor.add(dims=[1], tensor_type="int32")
    tensor.tensor_content = b"\1\0\0\0"
    (tmp_path / "map.ckpt").write_bytes(message.SerializeToString())
    request = build_request(source=str(tmp_path / "map.ckpt"), target=str(target), format="safetensors")
    with pytest.raises(InputError, match="'table'"):
        convert(request)
    assert not partial(target).exists()
    convert(build_request(source=str(tmp_path / "map.ckpt"), target=str(target)))
    assert (target / "rank_0" / "checkpoint_0.ckpt").read_bytes() == message.SerializeToString()


def test_missing_target_parameters_are_all_listed(target: Path) -> None:
    strategy = whole_copies(target.parent, 2, extra="adam_m.new")
    with pytest.raises(PlanError, match="'adam_m.new' of the target's strategy is in no source file"):
        convert(FOUR_TO_THREE.request(target, target_strategy=strategy))
    report = convert(FOUR_TO_THREE.request(target, target_strategy=strategy, allow_missing=["adam_*"]))
    assert report.excused == ("adam_m.new",)

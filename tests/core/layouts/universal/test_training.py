"""What a universal checkpoint has of the training that its source, of DeepSpeed's, was saved by."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import describe_plan
from reshard.core.errors import CatalogError, InputError
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from tests.support.checkpoints import Contents
from tests.support.deepspeed_files import DEEPSPEED_CASES, deepspeed_case, to_whole
from tests.support.megatron_files import StoredArray, read_tree
from tests.support.places import FIXTURES
from tests.support.zero_files import Change, Tensor, Tree, ZeroTraining, random_model, write_zero

SCHEDULE = {"last_batch_iteration": 39}
MODEL = random_model(1, [{"w": (4, 3)}, {"b": (5,)}])


def universal(source: Path, directory: Path, **options: Any) -> ConversionRequest:
    return to_whole(source, directory / "out", layout="universal", **options)


def written(directory: Path) -> Path:
    """The directory of the step that was converted."""
    return directory / "out" / (directory / "out/latest_universal").read_text()


def scheduled(name: str, tree: Tree) -> None:
    """Settings and a schedule as trainings have them."""
    if "model_states" in name:
        tree |= {"lr_scheduler": SCHEDULE, "skipped_steps": 2, "global_samples": 99}
        return
    for key in ("base_optimizer_state", "optimizer_state_dict"):
        for number, group in enumerate(tree["optimizer_state_dict"].get(key, {}).get("param_groups", ())):
            group |= {"lr": 0.5, "betas": (0.9, 0.99), "weight_decay": 0.1 * number}


def made(directory: Path, change: Change, **training: Any) -> dict[str, Any]:
    """The settings that a conversion writes: those of the optimizer and those of the model."""
    write_zero(directory / "in", MODEL, ZeroTraining(**training), change)
    convert(universal(directory / "in", directory))
    tag = written(directory)
    optimizer, model = read_tree(tag / "zero/optimizer_state.pt"), read_tree(tag / "mp_rank_00_model_states.pt")
    return {"optimizer": optimizer, "model": model}


@pytest.mark.parametrize("name", DEEPSPEED_CASES)
def test_masters_and_moments_of_any_stage(name: str, tmp_path: Path) -> None:
    case = deepspeed_case(name)
    convert(universal(case.root, tmp_path, verify="content"))
    found: Contents = {}
    for path in written(tmp_path).glob("zero/*/*.pt"):
        value, name = read_tree(path), path.parent.name
        if path.stem == "step":
            assert (value.dtype, value.shape, value.data) == ("Float32", (), struct.pack("<f", 2))
            continue
        each = value["param"]
        found[name if path.stem == "fp32" else f"{path.stem}.{name}"] = each.dtype, each.shape, each.data
    for name, each in read_tree(written(tmp_path) / "mp_rank_00_model_states.pt")["module"].items():
        found[name] = each.dtype, each.shape, each.data
    assert found == {name: widened(*content) for name, content in case.want.items()}


def test_fsdp_says_its_optimizers_step(tmp_path: Path) -> None:
    convert(universal(FIXTURES / "fsdp_ranks/case_fsdp2_uneven_optim/src", tmp_path, iteration="7"))
    tag = tmp_path / "out/global_step7_universal"
    assert {read_tree(path).data for path in tag.glob("zero/*/step.pt")} == {struct.pack("<f", 2)}
    assert read_tree(tag / "zero/optimizer_state.pt")["optimizer_state_dict"]["state"] == {0: {"step": 2}}


def widened(dtype: str, shape: tuple[int, ...], data: bytes) -> tuple[str, tuple[int, ...], bytes]:
    """A tensor whose floats of 16 bits are of 32."""
    if dtype == "BFloat16":
        return "Float32", shape, (np.frombuffer(data, "<u2").astype("<u4") << 16).tobytes()
    if dtype == "Float16":
        return "Float32", shape, np.frombuffer(data, "<f2").astype("<f4").tobytes()
    return dtype, shape, data


@pytest.mark.parametrize("stage", [1, 2])
def test_settings_of_groups(stage: int, tmp_path: Path) -> None:
    found = made(tmp_path, scheduled, stage=stage)
    first = {"lr": 0.5, "betas": (0.9, 0.99), "weight_decay": 0.0}
    assert found["optimizer"]["param_groups"] == [first, first | {"weight_decay": 0.1}]
    assert found["optimizer"]["optimizer_state_dict"]["param_groups"] == [{"lr": 0.5, "betas": (0.9, 0.99)}]
    model = {key: found["model"][key] for key in ("global_steps", "lr_scheduler", "skipped_steps", "global_samples")}
    assert model == {"global_steps": 40, "lr_scheduler": SCHEDULE, "skipped_steps": 2, "global_samples": 99}
    assert "loss_scaler" not in found["optimizer"]


def test_settings_of_stage_3(tmp_path: Path) -> None:
    found = made(tmp_path, scheduled, stage=3)
    assert found["optimizer"]["optimizer_state_dict"]["state"] == {0: {"step": 40}}
    assert found["optimizer"]["param_groups"][0]["lr"] == 0.5
    assert found["model"]["lr_scheduler"] == SCHEDULE


def test_a_scale_that_changes_is_taken(tmp_path: Path) -> None:
    scaler = Global("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler")
    state = PickledObject(scaler, (), Pairs([("cur_scale", 4096.0)]))
    found = made(
        tmp_path, lambda name, tree: "optim" in name and tree["optimizer_state_dict"].update(loss_scaler=state)
    )
    assert found["optimizer"]["loss_scaler"].state == {"cur_scale": 4096.0}
    assert found["optimizer"]["dynamic_loss_scale"] is True


def test_objects_of_any_class_are_not_taken(tmp_path: Path) -> None:
    schedule = PickledObject(Global("os", "system"), ("true",))

    def change(name: str, tree: Tree) -> None:
        scheduled(name, tree)
        if "model_states" in name:
            tree |= {"lr_scheduler": {"a": [schedule]}}

    found = made(tmp_path, change)
    assert "lr_scheduler" not in found["model"]
    assert found["model"]["global_samples"] == 99


def test_settings_in_tensors_are_not_taken(tmp_path: Path) -> None:
    def change(name: str, tree: Tree) -> None:
        if "optim" in name:
            groups = tree["optimizer_state_dict"]["base_optimizer_state"]["param_groups"]
            groups[0]["lr"] = Tensor(np.asarray(0.5, np.float32), "Float32")

    assert made(tmp_path, change)["optimizer"]["param_groups"] == [{}, {}]
    _, summary = describe_plan(universal(tmp_path / "in", tmp_path, overwrite=True))
    assert "settings of the optimizer, its learning rate among them, are those that" in "\n".join(summary.notes)


def steps(*values: Any) -> Change:
    """Another step of each group."""

    def change(name: str, tree: Tree) -> None:
        if "optim" in name:
            states = tree["optimizer_state_dict"]["base_optimizer_state"]["state"]
            for state, value in zip(states.values(), values, strict=True):
                state["step"] = value

    return change


@pytest.mark.parametrize(
    "step", [38, 38.0, Tensor(np.asarray(38, np.int64), "Int64"), Tensor(np.asarray(38, np.float32), "Float32")]
)
def test_a_step_is_a_number_or_a_tensor(step: object, tmp_path: Path) -> None:
    made(tmp_path, steps(step, step))
    found = read_tree(written(tmp_path) / "zero/w/step.pt")
    assert isinstance(found, StoredArray)
    assert found.data == struct.pack("<f", 38)


def test_elastic_states_say_their_step(tmp_path: Path) -> None:
    def change(name: str, tree: Tree) -> None:
        if "optim" in name:
            tree["optimizer_state_dict"]["base_optimizer_state_step"] = 40

    with pytest.raises(InputError, match="does not say after how many steps"):
        made(tmp_path / "silent", lambda *_: None, is_elastic=True)
    made(tmp_path, change, is_elastic=True)
    assert read_tree(written(tmp_path) / "zero/w/step.pt").data == struct.pack("<f", 40)


def test_groups_of_different_steps_have_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not say after how many steps"):
        made(tmp_path, steps(38, 39))


def test_a_step_that_is_no_number_is_damage(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="its optimizer's step is not a number"):
        made(tmp_path, steps("38", "38"))

"""Universal checkpoints as sources: those of conversions, and those of DeepSpeed's own script, written by its rules."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.layouts.survey import survey
from reshard.core.request.comparison import build_comparison
from reshard.core.runtime.pickled import Global, PickledObject
from reshard.core.verification.compare import compare_checkpoints
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import Contents, case
from tests.support.deepspeed_files import DEEPSPEED_CASES, deepspeed_case, to_whole
from tests.support.families import directory_contents
from tests.support.megatron_files import read_tree
from tests.support.zero_files import Tensor, write_torch_file

TAG = "global_step40_universal"
STRATEGY = str(case(7009).directory / "dst_strategy.ckpt")


def tensor(*shape: int, start: float = 0) -> Tensor:
    return Tensor((np.arange(np.prod(shape, dtype=int)) + start).astype(np.float32).reshape(shape), "Float32")


def content(of: Tensor) -> tuple[str, tuple[int, ...], bytes]:
    return of.dtype, of.bits.shape, of.bits.tobytes()


WEIGHT, FIRST, SECOND = tensor(3, 2), tensor(3, 2, start=10), tensor(3, 2, start=20)
SEEN = Tensor(np.array([5, -1], np.int64), "Int64")
WANT: Contents = {
    "w": content(WEIGHT),
    "exp_avg.w": content(FIRST),
    "exp_avg_sq.w": content(SECOND),
    "seen": content(SEEN),
}


def size(*shape: int) -> PickledObject:
    return PickledObject(Global("torch", "Size"), (shape,))


def of_stage_2(root: Path) -> Path:
    """What DeepSpeed's script writes of ZeRO 1 and 2: dicts, and a float of each buffer."""
    trees = {
        "zero/w/fp32.pt": {"cat_dim": 0, "param": WEIGHT},
        "zero/w/exp_avg.pt": {"cat_dim": 0, "param": FIRST},
        "zero/w/exp_avg_sq.pt": {"cat_dim": 0, "param": SECOND},
        "zero/w/step.pt": Tensor(np.asarray(38, np.float32), "Float32"),
        "zero/seen/fp32.pt": {"param": tensor(2)},
        "zero/optimizer_state.pt": {"param_groups": [{"lr": 0.1}]},
        "mp_rank_00_model_states.pt": {
            "module": {"w": tensor(3, 2, start=0.5), "seen": SEEN},
            "param_shapes": [{"w": size(3, 2)}],
            "lr_scheduler": PickledObject(Global("os", "system"), ("true",)),
        },
    }
    return saved(root, trees)


def of_stage_3(root: Path, frozen: tuple[str, ...] = ()) -> Path:
    """What DeepSpeed's script writes of ZeRO 3: rows, and nothing of what is not trained."""
    state: dict[str, Any] = {
        "module": {"w": tensor(0), "seen": SEEN} | {name: tensor(0) for name in frozen},
        "param_shapes": [{"w": size(3, 2)}],
        "frozen_param_shapes": {name: size(2, 2) for name in frozen},
    }
    rows = {"fp32": WEIGHT, "exp_avg": FIRST, "exp_avg_sq": SECOND}
    trees: dict[str, Any] = {
        f"zero/w/{key}.pt": Tensor(each.bits.reshape(-1), each.dtype) for key, each in rows.items()
    }
    trees |= {f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt": state for rank in (0, 1)}
    return saved(root, trees)


def saved(root: Path, trees: dict[str, Any]) -> Path:
    for path, tree in trees.items():
        (root / TAG / path).parent.mkdir(parents=True, exist_ok=True)
        write_torch_file(root / TAG / path, tree)
    (root / "latest_universal").write_text(TAG)
    return root


def whole(source: Path, directory: Path, **options: Any) -> Contents:
    """The tensors that a conversion finds."""
    convert(to_whole(source, directory / "whole", **{"verify": "content"} | options))
    return directory_contents(directory / "whole")


@pytest.mark.parametrize("write", [of_stage_2, of_stage_3])
def test_those_of_deepspeeds_own_script(write: Callable[[Path], Path], tmp_path: Path) -> None:
    root = write(tmp_path / "in")
    assert whole(root, tmp_path) == WANT
    document = survey(str(root)).describe()
    assert (document["kind"], document["step"]) == ("universal checkpoint of DeepSpeed", 40)


def test_frozen_parameters_that_are_nowhere_are_named(tmp_path: Path) -> None:
    root = of_stage_3(tmp_path / "in", ("base.weight",))
    with pytest.raises(InputError, match=r"lists 1 parameter that no file holds: 'base\.weight'"):
        whole(root, tmp_path)
    assert whole(root, tmp_path, allow_missing=["base.*"]) == WANT


@pytest.mark.parametrize("write", [of_stage_2, of_stage_3])
def test_tied_parameters_have_both_names(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """Of ZeRO 3 the other name is an empty tensor in the model's state, and nowhere else."""
    root = write(tmp_path / "in")
    path = min((root / TAG).glob("*model_states.pt"))
    state = {"module": {"w": tensor(0), "head": tensor(0), "seen": SEEN}, "param_shapes": [{"w": size(3, 2)}]}
    write_torch_file(path, state | {"shared_params": {"head": "w"}})
    assert whole(root, tmp_path) == WANT | {"head": content(WEIGHT)}


@pytest.mark.parametrize("write", [of_stage_2, of_stage_3])
def test_parameters_whose_files_are_gone_are_named(write: Callable[[Path], Path], tmp_path: Path) -> None:
    root = write(tmp_path / "in")
    shutil.copytree(root / TAG / "zero/w", root / TAG / "zero/v")
    shutil.rmtree(root / TAG / "zero/w")
    with pytest.raises(InputError, match=r"lists 1 parameter that no file holds: 'w'"):
        whole(root, tmp_path)


@pytest.mark.parametrize(
    ("gone", "reason"),
    [
        ("fp32", "zero/w/exp_avg.pt is there, and not zero/w/fp32.pt"),
        ("exp_avg", "zero/w/exp_avg_sq.pt is there, and not zero/w/exp_avg.pt"),
        ("exp_avg_sq", "zero/w/exp_avg.pt is there, and not zero/w/exp_avg_sq.pt"),
    ],
)
def test_a_file_that_is_gone_is_named(gone: str, reason: str, tmp_path: Path) -> None:
    root = of_stage_2(tmp_path / "in")
    shutil.copytree(root / TAG / "zero/w", root / TAG / "zero/v")
    (root / TAG / "zero/w" / f"{gone}.pt").unlink()
    with pytest.raises(InputError) as error:
        whole(root, tmp_path)
    assert reason in str(error.value)


def test_a_folder_that_a_conversion_wrote_and_is_gone_is_named(tmp_path: Path) -> None:
    root = of_stage_2(tmp_path / "in")
    shutil.copytree(root / TAG / "zero/w", root / TAG / "zero/v")
    convert(to_whole(root, tmp_path / "universal", layout="universal"))
    shutil.rmtree(tmp_path / "universal" / TAG / "zero/v")
    with pytest.raises(InputError) as error:
        whole(tmp_path / "universal", tmp_path)
    assert "zero/v/fp32.pt is missing" in str(error.value)


def test_moments_of_another_parameter_are_refused(tmp_path: Path) -> None:
    root = of_stage_2(tmp_path / "in")
    write_torch_file(root / TAG / "zero/w/exp_avg.pt", {"param": tensor(2, 3)})
    with pytest.raises(InputError) as error:
        whole(root, tmp_path)
    assert "zero/w/exp_avg.pt has the shape [2, 3], zero/w/fp32.pt [3, 2]" in str(error.value)


def test_a_link_out_of_it_is_refused(tmp_path: Path) -> None:
    root = of_stage_2(tmp_path / "in")
    (root / TAG / "zero/w/fp32.pt").rename(tmp_path / "fp32.pt")
    (root / TAG / "zero/w/fp32.pt").symlink_to(tmp_path / "fp32.pt")
    with pytest.raises(InputError, match="is a link to"):
        whole(root, tmp_path)


def test_slices_of_tensor_parallelism_are_not_taken_for_tensors(tmp_path: Path) -> None:
    """A frozen parameter is in no file of its own, and the model's state has one rank's slice of it."""
    root = of_stage_2(tmp_path / "in")
    state = {
        "module": {"w": tensor(3, 1), "frozen": tensor(2), "seen": SEEN},
        "buffer_names": ["seen"],
        "param_shapes": [{"w": size(3, 1)}],
    }
    for rank in range(2):
        write_torch_file(root / TAG / f"mp_rank_0{rank}_model_states.pt", state)
    with pytest.raises(InputError, match=r"lists 1 parameter that no file holds: 'frozen'"):
        whole(root, tmp_path)
    assert whole(root, tmp_path, allow_missing=["frozen"]) == WANT


@pytest.mark.parametrize("name", DEEPSPEED_CASES)
def test_conversions_go_there_and_back(name: str, tmp_path: Path) -> None:
    source = deepspeed_case(name)
    convert(to_whole(source.root, tmp_path / "universal", layout="universal"))
    cast = {name: content for name, content in source.want.items() if content[0] in ("Float16", "BFloat16")}
    found = whole(
        tmp_path / "universal", tmp_path, cast=[f"{name}={content[0].lower()}" for name, content in cast.items()]
    )
    assert found == source.want
    assert verify_target(str(tmp_path / "universal"), VerifyLevel.CONTENT).problems == ()
    if not cast:
        compared = build_comparison(a=str(source.root), b=str(tmp_path / "universal"))
        assert compare_checkpoints(compared).same


def test_its_step_goes_on_to_another(tmp_path: Path) -> None:
    root = of_stage_2(tmp_path / "in")
    convert(to_whole(root, tmp_path / "out", layout="universal"))
    assert read_tree(tmp_path / "out" / TAG / "zero/w/step.pt").data == np.float32(38).tobytes()


def test_a_step_of_several(tmp_path: Path) -> None:
    root = of_stage_2(tmp_path / "in")
    shutil.copytree(root / TAG, root / "global_step8_universal")
    assert whole(root, tmp_path, step="8") == WANT
    assert survey(str(root), "8").describe()["other_steps"] == [40]
    with pytest.raises(InputError, match="has no step 9; it has 8, 40"):
        survey(str(root), "9")
    with pytest.raises(InputError, match="is step 40, not 8: leave out"):
        survey(str(root / TAG), "8")
    (root / "latest_universal").write_text("global_step50_universal")
    with pytest.raises(
        InputError, match="names step 50 in latest_universal, which is not there: there are 8, 40: name"
    ):
        survey(str(root))
    (root / "latest_universal").unlink()
    with pytest.raises(
        InputError, match="has no latest_universal, which names the complete one: there are 8, 40: name"
    ):
        survey(str(root))
    shutil.rmtree(root / TAG / "zero")
    with pytest.raises(InputError, match="global_step40_universal: is not a universal checkpoint: it has no zero with"):
        survey(str(root), "40")


def test_files_of_ranks_beside_come_first(tmp_path: Path) -> None:
    """DeepSpeed's script leaves its checkpoints in the directory of the training."""
    root = shutil.copytree(deepspeed_case("case_zero1_bf16").root, tmp_path / "in")
    of_stage_2(root)
    assert survey(str(root)).describe()["kind"] == "DeepSpeed checkpoint"
    assert survey(str(root / TAG)).describe()["kind"] == "universal checkpoint of DeepSpeed"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"source_strategy": STRATEGY}, "its tensors are whole, so leave out 'source_strategy'"),
        ({"source_prefix": "p"}, "whose files have fixed names: leave out 'source_prefix'"),
        ({"recover": True}, "which has everything once and so nothing to recover from: leave out recover=True"),
        ({"integrated_save": "yes"}, "which says itself what each file holds, and is never encrypted: leave out"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        whole(of_stage_2(tmp_path / "in"), tmp_path, **options)
    assert reason in str(error.value)


def test_a_file_is_a_part(tmp_path: Path) -> None:
    root = of_stage_2(tmp_path / "in")
    with pytest.raises(InputError, match=f"fp32.pt: is a part of a universal checkpoint of DeepSpeed: name .*{TAG}"):
        survey(str(root / TAG / "zero/w/fp32.pt"))
    with pytest.raises(InputError, match=f"zero/w: is a part of a universal checkpoint of DeepSpeed: name .*{TAG}"):
        survey(str(root / TAG / "zero/w"))
    with pytest.raises(InputError, match=f"name the directory that is meant, if it is one of these: .*{TAG}$"):
        survey(str(root / TAG / "zero"))


@pytest.mark.parametrize(
    ("path", "tree", "reason"),
    [
        ("zero/w/fp32.pt", {"parax": WEIGHT}, "zero/w/fp32.pt: has no tensor"),
        ("zero/w/fp32.pt", [WEIGHT], "zero/w/fp32.pt: has no tensor"),
        ("zero/w/fp32.pt", tensor(5), "'w': its shape is [3, 2], and it has 5 elements"),
        ("zero/w/fp32.pt", PickledObject(Global("os", "system"), ("true",)), "'os.system', which is not data"),
        ("mp_rank_00_model_states.pt", {"param_shapes": None}, "has no 'module': it is not DeepSpeed's file of"),
        ("mp_rank_00_model_states.pt", {"module": {}, "param_shapes": [{"w": -1}]}, "is not a shape"),
    ],
)
def test_damage_is_named(path: str, tree: object, reason: str, tmp_path: Path) -> None:
    root = of_stage_2(tmp_path / "in")
    write_torch_file(root / TAG / path, tree)
    with pytest.raises(InputError) as error:
        whole(root, tmp_path)
    assert reason in str(error.value)


def test_another_byte_of_a_tensor_is_found(tmp_path: Path) -> None:
    root = of_stage_2(tmp_path / "in")
    path = root / TAG / "zero/w/fp32.pt"
    path.write_bytes(path.read_bytes().replace(WEIGHT.bits.tobytes(), FIRST.bits.tobytes(), 1))
    with pytest.raises(InputError, match="CRC-32"):
        whole(root, tmp_path)


def test_without_tensors_it_is_refused(tmp_path: Path) -> None:
    root = of_stage_2(tmp_path / "in")
    for name in ("w", "seen"):
        shutil.rmtree(root / TAG / "zero" / name)
    with pytest.raises(InputError, match="has no tensors in zero"):
        whole(root, tmp_path)

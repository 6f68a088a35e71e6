"""What of a DeepSpeed checkpoint cannot be trusted is refused, by name, before anything is written."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import ReshardError
from reshard.core.request.source import SourceRequest
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from reshard.core.source.opening import open_source
from tests.support.deepspeed_files import made, to_whole
from tests.support.zero_files import Tensor, Tree, ZeroModel, ZeroTraining, expected, random_model, write_zero

MODEL = random_model(0, [{"a": (5, 3), "b": (4, 4)}, {"c": (7,)}])
PLACED = ZeroTraining(stage=2, ranks=2)
STAGE3 = ZeroTraining(stage=3, ranks=2)
M0, P0, P1 = "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_", "zero_pp_rank_1_mp_rank_00_"
O0, O1 = f"bf16_{P0}optim_states.pt", f"bf16_{P1}optim_states.pt"


@dataclass(frozen=True)
class Case:
    """A save that is changed: names of files afterwards, trees before they are written."""

    message: str
    training: ZeroTraining = PLACED
    tree: Callable[[Tree], object] | None = None
    files: str = ""
    names: Callable[[Path], object] = lambda tag: None


def touched(name: str) -> Callable[[Path], object]:
    return lambda tag: (tag / name).touch()


def removed(*names: str) -> Callable[[Path], object]:
    def remove(tag: Path) -> None:
        for name in names:
            (tag / name).unlink()

    return remove


def moved(old: str, new: str) -> Callable[[Path], object]:
    return lambda tag: (tag / old).rename(tag / new)


def state(tree: Tree) -> Any:
    return tree["optimizer_state_dict"]


def put(**fields: object) -> Callable[[Tree], object]:
    return lambda tree: tree.update(fields)


def put_state(**fields: object) -> Callable[[Tree], object]:
    return lambda tree: state(tree).update(fields)


def row(count: int) -> Tensor:
    return Tensor(np.arange(count, dtype=np.float32), "Float32")


def size(*lengths: object) -> PickledObject:
    return PickledObject(Global("torch", "Size"), (lengths,))


def first_master(value: object) -> Callable[[Tree], object]:
    return lambda tree: state(tree)["single_partition_of_fp32_groups"].__setitem__(0, value)


def first_flat(value: object) -> Callable[[Tree], object]:
    return lambda tree: state(tree)["fp32_flat_groups"].__setitem__(0, value)


def same_bytes(tree: Tree) -> None:
    masters = state(tree)["single_partition_of_fp32_groups"]
    masters[1] = masters[0]


NAMES = {
    "pipeline": Case(
        "its training has pipeline parallelism, which reshard does not read: load it in",
        names=touched("layer_00-model_00-model_states.pt"),
    ),
    "pipeline of one": Case("its training has pipeline parallelism", names=touched("layer_03-model_states.pt")),
    "experts": Case(
        "its training has experts in files of their own, which",
        names=touched("layer_0_expert_3_mp_rank_00_model_states.pt"),
    ),
    "experts' optimizer": Case(
        "its training has experts in files of their own", names=touched("expp_rank_0_mp_rank_00_optim_states.pt")
    ),
    "tensor parallelism": Case(
        "its training has tensor parallelism (mp_rank 0, 1), which reshard does not read: load it in its training",
        names=touched("mp_rank_01_model_states.pt"),
    ),
    "NVMe": Case(
        "its optimizer was offloaded to NVMe (offloaded_tensors/), so that it is not in the files of ranks; load",
        names=lambda tag: (tag / "offloaded_tensors").mkdir(),
    ),
    "two kinds of models": Case(
        f"{M0} is of stage 1 or 2, {P0}model_states.pt of stage 3: files of two saves",
        names=touched(f"{P0}model_states.pt"),
    ),
    "no model": Case("it has no file of the model, mp_rank_00_model_states.pt or zero_pp_rank_0_…", names=removed(M0)),
    "two prefixes": Case(
        f"{P1}optim_states.pt have different prefixes: files of two saves", names=moved(O1, f"{P1}optim_states.pt")
    ),
    "first rank": Case("the files optim_states.pt of ranks 0 are missing", names=removed(O0)),
    "ranks between": Case(
        "the files optim_states.pt of ranks 1, 2, 3 are missing", names=moved(O1, O1.replace("rank_1", "rank_4"))
    ),
    "a large rank": Case(
        "rank 999999999 is more than the 1048576 ranks that reshard allows",
        names=moved(O1, O1.replace("rank_1", "rank_999999999")),
    ),
    "last rank": Case(f"{M0} is of 2 ranks, but there are files of 1", names=removed(O1)),
    "no optimizer": Case(
        f"{M0} is of a training with ZeRO: the files …_optim_states.pt are missing", names=removed(O0, O1)
    ),
    "no model of a rank": Case(
        "it has 1 file of the model and 2 files of the optimizer: there is one of both for each rank. Restore the "
        "other file of ranks 1",
        STAGE3,
        names=removed(f"{P1}model_states.pt"),
    ),
    "stage 3's optimizer": Case(
        f"{O0} is of stage 3, but the name of the model's file is of stage 1 or 2",
        tree=put_state(zero_stage=PickledObject(Global("deepspeed.runtime.zero.config", "ZeroStageEnum"), (3,))),
        files=O0,
    ),
}
MODELS = {
    "not a model": Case(
        "has no 'module': it is not DeepSpeed's file of a model", tree=lambda tree: tree.pop("module"), files=M0
    ),
    "no module": Case("has no model in it, as with pipeline parallelism", tree=put(module=None), files=M0),
    "experts within": Case(
        "has 'ds_autoep_layers': its experts are divided among ranks", tree=put(ds_autoep_layers=[1]), files=M0
    ),
    "tensor parallel": Case(
        "its training had tensor parallelism (mp_world_size 2)", tree=put(mp_world_size=2), files=M0
    ),
    "a negative size": Case(
        "its ['mp_world_size'] is -2, not a number of 0 or more", tree=put(mp_world_size=-2), files=M0
    ),
    "a configuration with NVMe": Case(
        "its optimizer was offloaded to NVMe (offload_optimizer in ds_config)",
        tree=put(ds_config={"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}),
        files=M0,
    ),
    "world size": Case(f"{M0} is of 3 ranks, but there are files of 2", tree=put(dp_world_size=3), files=M0),
    "a million ranks": Case(
        f"{M0} is of 1000000 ranks, but there are files of 2", tree=put(dp_world_size=10**6), files=M0
    ),
    "no number": Case(
        "its ['dp_world_size'] is 'two', not a number of 0 or more", tree=put(dp_world_size="two"), files=M0
    ),
    "version": Case(f"{M0} was saved by DeepSpeed 0.18.0, {O0} by 0.19.8", tree=put(ds_version="0.18.0"), files=M0),
    "no shapes": Case(
        f"{M0} has no param_shapes, which say whose the partitions of the optimizer are",
        tree=put(param_shapes=None),
        files=M0,
    ),
    "shapes of another kind": Case("its ['param_shapes'] is not a list", tree=put(param_shapes=3), files=M0),
    "shapes that are none": Case(
        "its [\"param_shapes['a']\"] is not a shape",
        tree=lambda tree: tree["param_shapes"][0].update(a=size(True)),
        files=M0,
    ),
    "a negative length": Case(
        "is not a shape", tree=lambda tree: tree["param_shapes"][0].update(a=size(-5, 3)), files=M0
    ),
    "a shape that overflows": Case(
        "is a shape that no file can hold: damaged",
        tree=lambda tree: tree["param_shapes"][0].update(a=size(2**31, 2**31)),
        files=M0,
    ),
    "a shape of many axes": Case(
        "is a shape that no file can hold: damaged",
        tree=lambda tree: tree["param_shapes"][0].update(a=size(*[1] * 65)),
        files=M0,
    ),
    "a huge shape": Case(
        "the parameters of group 0 take 576460752303423504 elements, the parts of 2 ranks have 32",
        tree=lambda tree: tree["param_shapes"][0].update(a=size(2**59)),
        files=M0,
    ),
    "a name twice": Case(
        "its ['param_shapes'] is a list with a name twice",
        tree=lambda tree: tree["param_shapes"][1].update(a=size(5, 3)),
        files=M0,
    ),
    "another shape": Case(
        "'a' has the shape [5, 3], its group says [3, 5]",
        tree=lambda tree: tree["param_shapes"][0].update(a=size(3, 5)),
        files=M0,
    ),
    "one group more": Case(
        "its model has 3 groups of parameters, its optimizer has 2",
        tree=lambda tree: tree["param_shapes"].append({}),
        files=M0,
    ),
    "names of buffers": Case("its ['buffer_names'] is not a list of names", tree=put(buffer_names=[1]), files=M0),
    "tied names": Case("its ['shared_params'] is not a dict of names", tree=put(shared_params={"x": 1}), files=M0),
    "tied to nothing": Case(
        "'x' is listed in mp_rank_00_model_states.pt, and not in it", tree=put(shared_params={"x": "y"}), files=M0
    ),
    "a frozen shape": Case(
        "'f' has the shape [2], listed is [3]",
        tree=lambda tree: tree.update(frozen_param_shapes={"f": size(3)}, module=tree["module"] | {"f": row(2)}),
        files=M0,
    ),
    "a frozen name": Case(
        "'f' is listed in mp_rank_00_model_states.pt, and not in it",
        tree=put(frozen_param_shapes={"f": size(3)}),
        files=M0,
    ),
    "no fragments": Case(
        "its ['frozen_param_fragments'] is without tensors: f", tree=put(frozen_param_fragments={"f": 3}), files=M0
    ),
}
OPTIMIZERS = {
    "not an optimizer": Case(
        "has no 'optimizer_state_dict': it is not DeepSpeed's file of an optimizer",
        tree=lambda tree: tree.pop("optimizer_state_dict"),
        files=O1,
    ),
    "not a dict": Case(
        "its ['optimizer_state_dict'] is not a dict of different names", tree=put(optimizer_state_dict=3), files=O1
    ),
    "no masters": Case(
        "has neither 'single_partition_of_fp32_groups' nor 'fp32_flat_groups', or has both",
        tree=lambda tree: state(tree).pop("single_partition_of_fp32_groups"),
        files=O1,
    ),
    "version of a rank": Case(
        f"{M0} was saved by DeepSpeed 0.19.8, {O1} by an unknown version",
        tree=lambda tree: [tree.pop("ds_version"), state(tree).pop("ds_version")],
        files=O1,
    ),
    "partitions": Case(
        f"{O1} is of groups divided among 2, 4 ranks, but there are files of 2",
        tree=put_state(partition_count=[2, 4]),
        files=O1,
    ),
    "no partitions": Case(
        "its ['optimizer_state_dict']['partition_count'] is None, not a number of 0 or more",
        tree=put_state(partition_count=None),
        files=O1,
    ),
    "stage of a rank": Case(f"{O0} and {O1} differ in zero_stage: 2, 1", tree=put_state(zero_stage=1), files=O1),
    "unknown stage": Case(
        "its ['optimizer_state_dict']['zero_stage'] is not 1, 2 or 3", tree=put_state(zero_stage=4), files=O1
    ),
    "step of a rank": Case(
        f"{O0} and {O1} differ in the optimizer's step",
        tree=lambda tree: state(tree)["base_optimizer_state"]["state"][0].update(step=row(1)),
        files=O1,
    ),
    "groups of a rank": Case(
        f"{O0} and {O1} differ in groups: 2, 3",
        tree=lambda tree: [
            state(tree)["single_partition_of_fp32_groups"].append(row(2)),
            state(tree).update(
                base_optimizer_state=None, group_paddings=None, param_alignment_paddings=None, param_slice_mappings=None
            ),
        ],
        files=O1,
    ),
    "groups of experts": Case(
        "its ['optimizer_state_dict']['ds_zero_partition_groups'] is that some parameters",
        tree=put_state(ds_zero_partition_groups=[1]),
        files=O1,
    ),
    "masters that are none": Case(
        "['single_partition_of_fp32_groups'] is not a list of rows of elements", tree=first_master(3), files=O1
    ),
    "masters of two axes": Case(
        "is not a list of rows of elements",
        tree=first_master(Tensor(np.zeros((4, 4), np.float32), "Float32")),
        files=O1,
    ),
    "masters of integers": Case(
        "is of Int32, not of floating-point numbers",
        tree=first_master(Tensor(np.zeros(16, np.int32), "Int32")),
        files=O1,
    ),
    "masters of another dtype": Case(
        f"{O0} and {O1} differ in dtypes",
        tree=first_master(Tensor(np.zeros(15, np.uint16), "BFloat16")),
        files=O1,
    ),
    "short masters": Case(
        f"{O1} has 14 elements of group 0, by the shapes of its parameters there are 15 to 16 on rank 1",
        tree=first_master(row(14)),
        files=O1,
    ),
    "long masters": Case(
        "the parts of group 0 have 80 elements, its parameters 31: the group_paddings in its files do not",
        tree=first_master(row(40)),
        files=O0,
    ),
    "paddings": Case(
        "the parts of group 0 have 32 elements, its parameters 31: the group_paddings",
        tree=lambda tree: state(tree)["group_paddings"].__setitem__(0, 5),
        files=O1,
    ),
    "number of paddings": Case(
        "['group_paddings'] is of 1 groups, but there are 2", tree=put_state(group_paddings=[0]), files=O1
    ),
    "a negative padding": Case(
        "['group_paddings'] is -1, not a number of 0 or more", tree=put_state(group_paddings=[-1, 0]), files=O1
    ),
    "alignments": Case(
        "ranks differ in the param_alignment_paddings of group 0",
        tree=put_state(param_alignment_paddings=[[1, 0], [0]]),
        files=O1,
    ),
    "number of alignments": Case(
        "group 0 has 1 padding of parameters (param_alignment_paddings), and 2 parameters",
        tree=put_state(param_alignment_paddings=[[0], [0]]),
        files="*optim*",
    ),
    "a large alignment": Case(
        "the parameters of group 0 take 1000000000000000031 elements",
        tree=put_state(param_alignment_paddings=[[10**18, 0], [0]]),
        files="*optim*",
    ),
    "alignments that are none": Case(
        "['param_alignment_paddings'] is not a list of lists", tree=put_state(param_alignment_paddings=[3, 4]), files=O1
    ),
    "places": Case(
        "['param_slice_mappings'] is not of addresses of fragments",
        tree=put_state(param_slice_mappings=[{"a": 3}, {}]),
        files=O1,
    ),
    "the same bytes": Case(
        "the masters of group 0 and the masters of group 1 are the same bytes: damaged", tree=same_bytes, files=O1
    ),
    "states that are none": Case(
        "['base_optimizer_state']['state'] is not a dict of different numbers",
        tree=lambda tree: state(tree)["base_optimizer_state"].update(state=3),
        files=O1,
    ),
    "numbers of states": Case(
        "['param_groups'] is of 1 flat groups, but there are 2",
        tree=lambda tree: state(tree)["base_optimizer_state"]["param_groups"].pop(),
        files=O1,
    ),
    "an object": Case(
        "has 'os.system', which is not data and was not run",
        tree=put_state(loss_scaler=PickledObject(Global("os", "system"), ("true",))),
        files=O1,
    ),
}
STAGE3_CASES = {
    "versions": Case(
        f"{P0}model_states.pt and {P1}model_states.pt differ in ds_version: 0.19.8, 0.19.7",
        tree=put(ds_version="0.19.7"),
        files=f"{P1}model*",
    ),
    "steps": Case("model_states.pt differ in global_steps: 40, 41", tree=put(global_steps=41), files=f"{P1}model*"),
    "shapes of a rank": Case("model_states.pt differ in param_shapes", tree=put(param_shapes=[]), files=f"{P1}model*"),
    "frozen of a rank": Case(
        "model_states.pt differ in frozen_param_shapes",
        tree=put(frozen_param_shapes={"f": size(3)}),
        files=f"{P1}model*",
    ),
    "stage": Case(
        f"{O1} is of stage 2, but the names of the model's files are of stage 3", tree=put_state(zero_stage=2), files=O1
    ),
    "lengths": Case(
        f"the flat groups of {O0} and of {O1} have different lengths, in stage 3 all", tree=first_flat(row(3)), files=O1
    ),
    "too short": Case(
        "'b' does not fit: the flat groups have 12 elements on each rank", tree=first_flat(row(8)), files="*optim*"
    ),
    "too long": Case(
        "the flat groups have 24 elements on each rank, its parameters take 20",
        tree=lambda tree: state(tree).update(
            fp32_flat_groups=[*state(tree)["fp32_flat_groups"], row(4)], optimizer_state_dict=None
        ),
        files="*optim*",
    ),
    "unknown name": Case(
        "'x' is empty in zero_pp_rank_0_mp_rank_00_model_states.pt, and in no group of parameters",
        tree=lambda tree: tree["module"].update(x=row(0)),
        files="*model*",
    ),
    "frozen parts": Case(
        "'f', [5], has [2] in zero_pp_rank_0_mp_rank_00_model_states.pt, not 3 elements",
        tree=put(frozen_param_shapes={"f": size(5)}, frozen_param_fragments={"f": row(2)}),
        files="*model*",
    ),
    "no frozen parts": Case(
        "'f', [5], has nothing in zero_pp_rank_0", tree=put(frozen_param_shapes={"f": size(5)}), files="*model*"
    ),
}
CASES = {
    **NAMES,
    **MODELS,
    **OPTIMIZERS,
    **{f"stage 3: {name}": Case(case.message, STAGE3, case.tree, case.files) for name, case in STAGE3_CASES.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    changed = []

    def change(file: str, tree: Tree) -> None:
        if case.tree is not None and Path(file).match(case.files):
            case.tree(tree)
            changed.append(file)

    case.names(write_zero(tmp_path / "ck", MODEL, case.training, change))
    assert bool(changed) == bool(case.tree)
    with pytest.raises(ReshardError, match=re.escape(case.message)):
        convert(to_whole(tmp_path / "ck", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def refused(tmp_path: Path, message: str, **options: object) -> None:
    with pytest.raises(ReshardError, match=message):
        convert(to_whole(tmp_path / "ck", tmp_path / "out", **options))
    assert not (tmp_path / "out").exists()


def saved_twice(tmp_path: Path, training: ZeroTraining) -> tuple[Path, Path]:
    """Two saves of one step: the second one's values are others."""
    other = random_model(1, [{name: each.shape for name, each in group.items()} for group in MODEL.groups])
    return write_zero(tmp_path / "ck", MODEL, training), write_zero(tmp_path / "other", other, training)


@pytest.mark.parametrize("name", [O0, O1, M0])
def test_a_file_of_another_save_is_found_by_its_values(name: str, tmp_path: Path) -> None:
    tag, other = saved_twice(tmp_path, PLACED)
    shutil.copy(other / name, tag / name)
    refused(
        tmp_path, r"its master of '\w' is not what mp_rank_00_model_states.pt has of it: the two are of different sa"
    )


def test_a_damaged_master_is_not_taken_for_that_of_another_save(tmp_path: Path) -> None:
    path = write_zero(tmp_path / "ck", MODEL, PLACED) / O0
    value = next(iter(MODEL.masters.values())).tobytes()[:4]
    path.write_bytes(path.read_bytes().replace(value, b"\0\0\0\0", 1))
    refused(tmp_path, f"{O0}: parameter .* have the CRC-32 .*: damaged")


def test_two_ranks_with_the_same_bytes_are_found(tmp_path: Path) -> None:
    trees: dict[str, Tree] = {}

    def as_first(file: str, tree: Tree) -> None:
        trees[file] = tree
        if file == O1:
            tree |= trees[O0]

    for stage in (2, 3):
        model = random_model(0, [{"a": (8, 8)}])
        write_zero(tmp_path / str(stage) / "ck", model, ZeroTraining(stage=stage), as_first)
        message = f"{O1}: is the same as {O0}, byte for byte, though they are of two ranks"
        refused(tmp_path / str(stage), message)


def test_files_that_changed_names_are_found(tmp_path: Path) -> None:
    tag = write_zero(tmp_path / "ck", random_model(0, [{"a": (8, 8)}]), STAGE3)
    first, second = (tag / O0).read_bytes(), (tag / O1).read_bytes()
    message = f"{O1}: was saved as {O0}, by the name inside: it was renamed, or copied over another file. Restore"
    (tag / O1).write_bytes(first)
    refused(tmp_path, message)
    (tag / O1).unlink()
    os.link(tag / O0, tag / O1)
    refused(tmp_path, message)
    (tag / O0).unlink()
    (tag / O0).write_bytes(second)
    refused(tmp_path, message)


@pytest.mark.parametrize("stage", [2, 3])
def test_ranks_whose_parts_are_of_one_value_may_be_alike(stage: int, tmp_path: Path) -> None:
    ones = np.ones((4, 4), np.float32)
    model = ZeroModel([{"norm": ones}], {"exp_avg": {"norm": 0 * ones}, "exp_avg_sq": {"norm": 0 * ones}})
    training = ZeroTraining(stage=stage)
    write_zero(tmp_path / "ck", model, training)
    convert(to_whole(tmp_path / "ck", tmp_path / "out"))
    assert made(tmp_path / "out") == expected(model, training)


def in_another_order(file: str, tree: Tree) -> None:
    if file == M0:
        shapes = tree["param_shapes"][0]
        tree["param_shapes"][0] = {name: shapes[name] for name in reversed(shapes)}


def test_another_order_of_parameters_is_found_by_places_and_values(tmp_path: Path) -> None:
    write_zero(tmp_path / "ck", MODEL, PLACED, in_another_order)
    refused(
        tmp_path,
        rf"its master of '\w' is not what {M0} has of it, and .*{O0} says other places of parameters "
        r"\(param_slice_mappings\) than param_shapes: so the order of its parameters is not known\. Load it in its",
    )


def test_another_order_of_parameters_is_found_by_values_alone(tmp_path: Path) -> None:
    write_zero(tmp_path / "ck", MODEL, ZeroTraining(says_places=False), in_another_order)
    refused(tmp_path, r"has of it, and .* does not say where parameters are \(param_slice_mappings\): so the order of")


def test_values_prove_the_order_where_places_are_wrong(tmp_path: Path) -> None:
    """Round robin orders parameters anew, and its places of them are in the order from before."""

    def change(file: str, tree: Tree) -> None:
        if "optim" in file:
            fragments = state(tree)["param_slice_mappings"][0]
            fragments["a"], fragments["b"] = fragments.pop("b", None), fragments.pop("a", None)
            state(tree)["param_slice_mappings"][0] = {name: each for name, each in fragments.items() if each}

    write_zero(tmp_path / "ck", MODEL, PLACED, change)
    convert(to_whole(tmp_path / "ck", tmp_path / "out"))
    assert made(tmp_path / "out") == expected(MODEL, PLACED)


def odd_state(**states: object) -> Callable[[str, Tree], None]:
    def change(file: str, tree: Tree) -> None:
        if "optim" in file:
            for each in state(tree)["base_optimizer_state"]["state"].values():
                for key, value in states.items():
                    each[key] = row(value) if isinstance(value, int) else value
                each.pop("exp_avg", None)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            odd_state(exp_avg_sq_row=3),
            "the optimizer has 'exp_avg_sq_row', which reshard does not know to be of single",
        ),
        (odd_state(exp_avg_sq=3), r"'exp_avg_sq' of group 0 has the shape \[3\], its masters \[16\]"),
    ],
)
def test_states_that_are_not_known_are_left_out_on_request_only(
    change: Callable[[str, Tree], None], message: str, tmp_path: Path
) -> None:
    write_zero(tmp_path / "ck", MODEL, PLACED, change)
    refused(tmp_path, message + r".*; 3 parameters have no names: .*weights-only")
    report = convert(to_whole(tmp_path / "ck", tmp_path / "out", select="weights-only"))
    assert made(tmp_path / "out") == expected(ZeroModel(MODEL.groups), PLACED)
    assert any("left out: the optimizer's states, which have no names" in note for note in report.notes)


def test_states_of_some_ranks_or_groups_are_not_known(tmp_path: Path) -> None:
    def of_rank(file: str, tree: Tree) -> None:
        if file == O1:
            del state(tree)["base_optimizer_state"]["state"][0]["exp_avg"]

    def of_group(file: str, tree: Tree) -> None:
        if "optim" in file:
            del state(tree)["base_optimizer_state"]["state"][1]

    def of_dtype(file: str, tree: Tree) -> None:
        if file == O1:
            bits = np.zeros(16, np.uint16)
            state(tree)["base_optimizer_state"]["state"][0]["exp_avg"] = Tensor(bits, "BFloat16")

    write_zero(tmp_path / "3" / "ck", MODEL, PLACED, of_dtype)
    refused(tmp_path / "3", "'exp_avg' of group 0 is BFloat16, on rank 0 Float32; 3 parameters have no names")
    write_zero(tmp_path / "1" / "ck", MODEL, PLACED, of_rank)
    refused(tmp_path / "1", r"states of group 0 are 'exp_avg_sq', on rank 0 'exp_avg', 'exp_avg_sq'; 3 parameters")
    write_zero(tmp_path / "2" / "ck", MODEL, PLACED, of_group)
    refused(tmp_path / "2", "the optimizer has no states of group 1; 3 parameters have no names")


def test_the_state_of_a_client_may_be_anything(tmp_path: Path) -> None:
    def change(file: str, tree: Tree) -> None:
        if "model" in file:
            tree["trainer"] = {"args": PickledObject(Global("my.module", "Arguments"), (3,), Pairs([("x", 1)]))}
            tree["lr_scheduler"] = PickledObject(Global("my.module", "Schedule"), ())

    write_zero(tmp_path / "ck", MODEL, PLACED, change)
    report = convert(to_whole(tmp_path / "ck", tmp_path / "out"))
    assert made(tmp_path / "out") == expected(MODEL, PLACED)
    [note] = [note for note in report.notes if note.startswith("left out, but for")]
    assert "lr_scheduler" in note
    assert "trainer" in note


def test_buffers_that_differ_among_ranks_are_noted(tmp_path: Path) -> None:
    def change(file: str, tree: Tree) -> None:
        if "model" in file:
            tree["buffer_names"] = ["mean"]
            tree["module"]["mean"] = Tensor(np.full(3, float("rank_1" in file), np.float32), "Float32")

    write_zero(tmp_path / "ck", MODEL, STAGE3, change)
    opened = open_source(SourceRequest(source=str(tmp_path / "ck")))
    assert "buffers that ranks have of their own, those of rank 0 are taken: mean" in opened.catalog.notes


def test_a_training_without_zero_has_its_weights_alone(tmp_path: Path) -> None:
    def change(file: str, tree: Tree) -> None:
        tree.update(param_shapes=None, shared_params=None, optimizer={"state": {}})

    tag = write_zero(tmp_path / "ck", MODEL, PLACED, change)
    removed(O0, O1)(tag)
    report = convert(to_whole(tmp_path / "ck", tmp_path / "out"))
    weights = made(tmp_path / "out")
    assert weights.keys() == {"a", "b", "c"}
    assert {dtype for dtype, _, _ in weights.values()} == {"BFloat16"}
    assert any("optimizer" in note for note in report.notes)

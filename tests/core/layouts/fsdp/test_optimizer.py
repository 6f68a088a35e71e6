"""Which states of an optimizer are whose: by numbers in the model's order, by names, or not known."""

import zipfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, InputError
from reshard.core.layouts.survey import survey
from reshard.core.runtime.pickled import Global, PersistentId, PickledObject
from tests.support.checkpoints import Contents, read_safetensors
from tests.support.fsdp import FsdpCase, fsdp_case, objects_in
from tests.support.megatron_sources import Tree, write_archive


def refusal(case: FsdpCase, target: Path, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        convert(case.request(target, **options))
    return str(caught.value).replace(str(case.root), "ROOT")


def weights(want: Contents) -> Contents:
    return {name: each for name, each in want.items() if not name.startswith("exp_avg")}


@pytest.fixture
def case(tmp_path: Path) -> FsdpCase:
    return fsdp_case("fsdp2_uneven_optim").copied(tmp_path / "ck")


@pytest.fixture
def tp(tmp_path: Path) -> FsdpCase:
    return fsdp_case("tp_fsdp2").copied(tmp_path / "ck")


def of_state(number: int, change: Callable[[Tree], object]) -> Callable[[Tree], object]:
    return lambda tree: change(tree["state"][number])


UNKNOWN: dict[str, tuple[Callable[[Tree], object], str]] = {
    "several groups": (
        lambda tree: tree.update(param_groups=[{"params": [0, 1]}, {"params": [*range(2, 26)]}]),
        "it has 2 groups of parameters, and does not say which are in which",
    ),
    "no groups": (lambda tree: tree.update(param_groups=[]), "it has 0 groups of parameters"),
    "fewer numbers": (
        lambda tree: tree["param_groups"][0]["params"].pop(),
        "it numbers 25 parameters, but not the 26 of the model from 0 on",
    ),
    "numbers in another order": (
        lambda tree: tree["param_groups"][0]["params"].reverse(),
        "it numbers 26 parameters, but not the 26 of the model from 0 on",
    ),
    "a number that is text": (lambda tree: tree["param_groups"][0]["params"].append("x"), "it numbers 27 parameters"),
    "numbers that are none": (
        lambda tree: tree["param_groups"][0].update(params=[None]),
        "it has a group without numbers of parameters",
    ),
    "a state of no parameter": (
        lambda tree: tree["state"].update({99: tree["state"].pop(3)}),
        "it has a state '99' of no parameter, or two of one",
    ),
    "another optimizer": (
        of_state(3, lambda state: state.update(momentum_buffer=state.pop("exp_avg"))),
        "the state of 'model.layers.0.self_attn.k_proj.weight' has exp_avg_sq, momentum_buffer, step, not Adam's",
    ),
    "a flat moment": (
        of_state(3, lambda state: state.update(exp_avg=state["step"])),
        "k_proj.weight' is a plain tensor: FSDP1 saves flat pieces that have no names",
    ),
    "moments of another parameter": (
        of_state(3, lambda state: state.clear()),
        "has nothing, not Adam's",
    ),
    "exchanged parameters": (
        lambda tree: tree["state"].update({1: tree["state"][2], 2: tree["state"][1]}),
        "the exp_avg of 'model.embed_tokens.weight' is Float32 [16, 16] as (Shard(0)) on [3], its parameter is",
    ),
    "no states": (lambda tree: tree.update(state=7), "it has no states and groups of parameters"),
    "a number as a moment": (
        of_state(3, lambda state: state.update(exp_avg=7)),
        "the exp_avg of 'model.layers.0.self_attn.k_proj.weight': it is not a tensor, but 'int'",
    ),
    "another engine's": (
        lambda tree: [tree.pop(key) for key in list(tree)] and tree.update(x=1),
        "it has 'x', which is no state of a parameter",
    ),
}


@pytest.mark.parametrize(("change", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_optimizer_that_is_not_known_by_names(
    change: Callable[[Tree], object], message: str, case: FsdpCase, tmp_path: Path
) -> None:
    case.change(change, kind="optim")
    found = refusal(case, tmp_path / "out")
    assert message in found
    assert "Convert without them: select='weights-only'" in found
    report = convert(case.request(tmp_path / "out", select="weights-only"))
    assert read_safetensors(tmp_path / "out/model.safetensors") == weights(case.want)
    assert any(
        note.startswith("left out: the optimizer's states, which are not known by names") for note in report.notes
    )


def test_parameters_without_a_number_are_not_guessed(case: FsdpCase, tmp_path: Path) -> None:
    """A frozen one that the optimizer does not number would shift all others."""

    def change(tree: Tree) -> None:
        states, group = tree["state"], tree["param_groups"][0]
        frozen = next(number for number in group["params"] if number not in states)
        tree["state"] = {number - (number > frozen): state for number, state in states.items()}
        group["params"].pop()

    case.change(change, kind="optim")
    assert "it numbers 25 parameters, but not the 26" in refusal(case, tmp_path / "out")


def test_a_rank_that_lacks_a_state(case: FsdpCase, tmp_path: Path) -> None:
    case.change(lambda tree: tree["state"].pop(1), rank=2, kind="optim")
    message = refusal(case, tmp_path / "out")
    assert "ROOT/optim_world_size_3_rank_2.pt: it and optim_world_size_3_rank_0.pt do not both have" in message


def test_a_rank_with_a_state_in_another_dtype(case: FsdpCase, tmp_path: Path) -> None:
    def change(tree: Tree) -> None:
        for each in objects_in(tree["state"][1]["exp_avg"]):
            match each.arguments:
                case (PersistentId((word, Global("torch", "FloatStorage"), key, place, int(count))), *others):
                    storage = (word, Global("torch", "IntStorage"), key, place, count)
                    each.arguments = (PersistentId(storage), *others)
                case (Global("torch.distributed.tensor", "DTensor") as kind, Global("torch", "float32"), *others):
                    each.arguments = (kind, Global("torch", "int32"), *others)
                case (function, kind, (own, Global("torch", "float32"), *others), state):
                    each.arguments = (function, kind, (own, Global("torch", "int32"), *others), state)

    case.change(change, rank=2, kind="optim")
    message = refusal(case, tmp_path / "out")
    assert "do not both have 'exp_avg.model.embed_tokens.weight' in Float32" in message
    assert "'exp_avg.model.embed_tokens.weight' in Int32" in message


def test_ranks_of_two_steps(case: FsdpCase, tmp_path: Path) -> None:
    """The model's own files do not show it."""
    case.change(lambda tree: [state.update(step=4) for state in tree["state"].values()], rank=1, kind="optim")
    message = "optim_world_size_3_rank_0.pt is of the optimizer's step 2.0, optim_world_size_3_rank_1.pt of 4"
    assert message in refusal(case, tmp_path / "out")
    assert message in refusal(case, tmp_path / "out", select="weights-only")


def test_ranks_of_two_learning_rates(case: FsdpCase, tmp_path: Path) -> None:
    case.change(lambda tree: tree["param_groups"][0].update(lr=0.125), rank=2, kind="optim")
    assert "and optim_world_size_3_rank_2.pt differ in the optimizer's settings" in refusal(case, tmp_path / "out")


def by_names(tree: Tree) -> None:
    names = [*fsdp_names()]
    tree["state"] = {names[number]: state for number, state in tree["state"].items()}
    tree["param_groups"][0]["params"] = [names[number] for number in tree["param_groups"][0]["params"]]


def flattened(tree: Tree) -> None:
    names = [*fsdp_names()]
    found = {
        f"state.{names[number]}.{slot}": value
        for number, state in tree["state"].items()
        for slot, value in state.items()
    }
    tree.clear()
    tree.update(found | {f"param_groups.{name}.lr": 0.01 for name in names})


def fsdp_names() -> list[str]:
    """The parameters of the case, in their order."""
    opened = survey(str(fsdp_case("fsdp2_uneven_optim").root)).opened  # type: ignore[attr-defined]
    return [shard.name for shard in opened.models[0].shards if shard.name != "counted"]


@pytest.mark.parametrize("change", [by_names, flattened])
def test_states_by_names(change: Callable[[Tree], object], case: FsdpCase, tmp_path: Path) -> None:
    case.change(change, kind="optim")
    convert(case.request(tmp_path / "out"))
    assert read_safetensors(tmp_path / "out/model.safetensors") == case.want


def test_states_of_names_that_the_model_lacks(case: FsdpCase, tmp_path: Path) -> None:
    def change(tree: Tree) -> None:
        by_names(tree)
        tree["param_groups"][0]["params"][0] = "other"

    case.change(change, kind="optim")
    assert "it has 'other', which the model does not have" in refusal(case, tmp_path / "out")


def test_a_third_moment_is_read_too(case: FsdpCase, tmp_path: Path) -> None:
    """Adam with amsgrad."""
    case.change(
        lambda tree: [state.update(max_exp_avg_sq=state["exp_avg_sq"]) for state in tree["state"].values()],
        kind="optim",
    )
    assert "the bytes of 'exp_avg_sq.tiny'" in refusal(case, tmp_path / "out")


def test_a_missing_file_of_the_optimizer(tp: FsdpCase, tmp_path: Path) -> None:
    tp.file(2, "optim").unlink()
    assert "files cannot be used: optim_world_size_4_rank_2.pt is missing" in refusal(tp, tmp_path / "out")
    convert(tp.request(tmp_path / "out", select="weights-only"))
    assert read_safetensors(tmp_path / "out/model.safetensors") == weights(tp.want)


def test_a_damaged_file_of_the_optimizer(tp: FsdpCase, tmp_path: Path) -> None:
    tp.file(2, "optim").write_bytes(b"")
    assert "optim_world_size_4_rank_2.pt is damaged: " in refusal(tp, tmp_path / "out")


def test_objects_of_unknown_classes_are_named(tp: FsdpCase, tmp_path: Path) -> None:
    odd = PickledObject(Global("bitsandbytes.optim", "State8bit"), ())
    tp.change(lambda tree: tree["state"][0].update(exp_avg=odd), kind="optim")
    message = refusal(tp, tmp_path / "out")
    assert "'bitsandbytes.optim.State8bit', which is not data and was not run" in message


def test_a_step_that_is_a_number(tp: FsdpCase, tmp_path: Path) -> None:
    tp.change(lambda tree: [state.update(step=7) for state in tree["state"].values()], kind="optim")
    assert (
        "left out, but for what the target has a place for: the optimizer's settings (param_groups), its count of "
        "steps, 7"
    ) in convert(tp.request(tmp_path / "out")).notes


def replicated_optimizer(case: FsdpCase) -> None:
    """Give the ranks of HSDP an optimizer, whose moments are the weights."""
    for rank in range(4):
        path = case.root / f"optim_world_size_4_rank_{rank}.pt"
        with zipfile.ZipFile(case.file(rank)) as archive:
            contents = {name: archive.read(name) for name in archive.namelist()}
        again = {f"{name}000": data for name, data in contents.items() if "/data/" in name}
        write_archive(path, contents | again)

    def change(tree: Tree) -> None:
        states = {
            number: {"step": 1, "exp_avg": value, "exp_avg_sq": with_own_storages(value)}
            for number, value in enumerate(tree.values())
        }
        tree.clear()
        tree.update(state=states, param_groups=[{"lr": 0.1, "params": list(states)}])

    case.change(change, kind="optim")


def with_own_storages(value: PickledObject) -> PickledObject:
    copied = deepcopy(value)
    for each in objects_in(copied):
        match each.arguments:
            case (PersistentId((word, kind, key, *rest)), *others):
                each.arguments = (PersistentId((word, kind, f"{key}000", *rest)), *others)
    return copied


def test_a_lost_replica_of_the_optimizer(tmp_path: Path) -> None:
    case = fsdp_case("hsdp_2x2").copied(tmp_path / "ck")
    replicated_optimizer(case)
    case.file(3, "optim").unlink()
    message = refusal(case, tmp_path / "out")
    assert "optim_world_size_4_rank_3.pt is missing. What they hold is in other files as well: recover=True" in message
    convert(case.request(tmp_path / "weights", select="weights-only"))
    assert read_safetensors(tmp_path / "weights/model.safetensors") == case.want
    convert(case.request(tmp_path / "out", recover=True))
    found = read_safetensors(tmp_path / "out/model.safetensors")
    assert found == case.want | {
        f"{slot}.{name}": each for name, each in case.want.items() for slot in ("exp_avg", "exp_avg_sq")
    }
    case.file(1, "optim").unlink()
    assert "1.pt is missing; optim_world_size_4_rank_3.pt is missing; 28 parameters have no names" in (
        refusal(case, tmp_path / "again", recover=True)
    )


def test_a_number_of_a_storage_that_is_too_short(tp: FsdpCase, tmp_path: Path) -> None:
    def change(tree: Tree) -> None:
        step = tree["state"][0]["step"]
        storage = step.arguments[0]
        assert isinstance(storage, PersistentId)
        step.arguments = (storage, 5, *step.arguments[2:])

    tp.change(change, kind="optim")
    with pytest.raises(CatalogError, match="its tensor ends after its storage of 4 bytes: damaged"):
        convert(tp.request(tmp_path / "out"))

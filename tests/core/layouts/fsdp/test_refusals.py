"""What is refused by name: ranks that are missing or of other trainings, unknown tensors, lies in pickles."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.runtime.pickled import Global, Pairs, PickledObject
from tests.support.checkpoints import read_safetensors
from tests.support.fsdp import FsdpCase, fsdp_case
from tests.support.megatron_sources import Tree, write_archive

EMBEDDING, UP = "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"
PLACEMENTS = "torch.distributed.tensor.placement_types"


def refusal(case: FsdpCase, target: Path, **options: object) -> str:
    """The message of a conversion that is refused, without the directory."""
    with pytest.raises(InputError) as caught:
        convert(case.request(target, **options))
    assert not target.exists()
    return str(caught.value).replace(str(case.root), "ROOT")


@pytest.fixture
def hsdp(tmp_path: Path) -> FsdpCase:
    """Four ranks, of which 0 and 2, and 1 and 3, hold the same."""
    return fsdp_case("hsdp_2x2").copied(tmp_path / "ck")


@pytest.fixture
def plain(tmp_path: Path) -> FsdpCase:
    """Three ranks with shards of their own, and the optimizer's."""
    return fsdp_case("fsdp2_uneven_optim").copied(tmp_path / "ck")


@pytest.fixture
def tp(tmp_path: Path) -> FsdpCase:
    """Four ranks with tensor parallelism."""
    return fsdp_case("tp_fsdp2").copied(tmp_path / "ck")


def test_a_missing_rank_is_named(plain: FsdpCase, tmp_path: Path) -> None:
    plain.file(1).unlink()
    assert refusal(plain, tmp_path / "out") == (
        "ROOT: files cannot be used: model_world_size_3_rank_1.pt is missing. The other files do not hold the whole "
        "model: restore these"
    )
    assert "restore these" in refusal(plain, tmp_path / "out", recover=True)


@pytest.mark.parametrize("rank", range(4))
def test_a_missing_replica_is_recovered_if_asked_to(hsdp: FsdpCase, rank: int, tmp_path: Path) -> None:
    hsdp.file(rank).unlink()
    assert refusal(hsdp, tmp_path / "out") == (
        f"ROOT: files cannot be used: model_world_size_4_rank_{rank}.pt is missing. What they hold is in other files "
        "as well: recover=True does without them"
    )
    report = convert(hsdp.request(tmp_path / "out", recover=True))
    assert any("what they hold was in other files as well" in note for note in report.notes)
    assert read_safetensors(tmp_path / "out/model.safetensors") == hsdp.want


def test_a_truncated_replica_is_recovered_if_asked_to(hsdp: FsdpCase, tmp_path: Path) -> None:
    hsdp.file(3).write_bytes(hsdp.file(3).read_bytes()[:5000])
    assert "model_world_size_4_rank_3.pt is damaged: " in refusal(hsdp, tmp_path / "out")
    convert(hsdp.request(tmp_path / "out", recover=True))
    assert read_safetensors(tmp_path / "out/model.safetensors") == hsdp.want


@pytest.mark.parametrize(("rank", "start"), [(2, 0), (3, 19 * 16)])
def test_a_wrong_crc_is_refused(hsdp: FsdpCase, rank: int, start: int, tmp_path: Path) -> None:
    """The last shard of a tensor is padded in its storage: replicas of it have no CRC of their own."""
    data = bytearray(hsdp.file(rank).read_bytes())
    embedding = hsdp.want[EMBEDDING][2]
    item = len(embedding) // (37 * 16)
    data[data.index(embedding[start * item :][:64])] ^= 1
    hsdp.file(rank).write_bytes(data)
    assert "have the CRC-32" in refusal(hsdp, tmp_path / "out")


def test_replicas_that_differ_are_refused(hsdp: FsdpCase, tmp_path: Path) -> None:
    one, other = "model.layers.0.mlp.gate_proj.weight", UP
    hsdp.change(lambda tree: tree.update({one: tree[other], other: tree[one]}), rank=2)
    message = refusal(hsdp, tmp_path / "out")
    assert message.startswith("ROOT: what several files hold of the model is not the same in all")
    where = "[0:12, 0:16]: one content in model_world_size_4_rank_0.pt, another in model_world_size_4_rank_2.pt"
    assert f"parameter '{one}', {where}" in message


def test_files_of_two_world_sizes(plain: FsdpCase, tmp_path: Path) -> None:
    shutil.copy(plain.file(0), plain.root / "extra_state_world_size_2_rank_0.pt")
    assert refusal(plain, tmp_path / "out") == (
        "ROOT: has files of trainings with 2 and 3 ranks: which ones are right? Move away those of all but one"
    )


def test_a_rank_beyond_the_world(plain: FsdpCase, tmp_path: Path) -> None:
    shutil.copy(plain.file(0), plain.root / "model_world_size_3_rank_7.pt")
    assert refusal(plain, tmp_path / "out").startswith(
        "ROOT: model_world_size_3_rank_7.pt: there is no such rank among 3, which are numbered from 0: it was renamed"
    )


def test_a_world_that_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck/model_world_size_999999_rank_0.pt").touch()
    case = FsdpCase(tmp_path / "ck", tmp_path)
    assert "999999 ranks are more than the 65536 that reshard allows" in refusal(case, tmp_path / "out")


def test_files_without_a_model(plain: FsdpCase, tmp_path: Path) -> None:
    for file in plain.root.glob("model_*"):
        file.unlink()
    assert "but no model_world_size_1_rank_0.pt or the like: the model itself was not saved" in refusal(
        plain, tmp_path / "out"
    )


def test_a_configuration_of_another_world(plain: FsdpCase, tmp_path: Path) -> None:
    (plain.root / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 4}))
    assert refusal(plain, tmp_path / "out") == (
        "ROOT/fsdp_config.json: its world_size is 4, the ranks' files are of 3 by their names: they are of two "
        "trainings, or were renamed"
    )
    (plain.root / "fsdp_config.json").write_text("{")
    assert "ROOT/fsdp_config.json: is damaged (" in refusal(plain, tmp_path / "out")
    (plain.root / "fsdp_config.json").unlink()
    convert(plain.request(tmp_path / "out"))


def test_ranks_that_were_exchanged(hsdp: FsdpCase, tmp_path: Path) -> None:
    hsdp.file(0).rename(tmp_path / "0")
    hsdp.file(1).rename(hsdp.root / "model_world_size_4_rank_0.pt")
    (tmp_path / "0").rename(hsdp.root / "model_world_size_4_rank_1.pt")
    assert "its mesh is that of rank 1, not of rank 0" in refusal(hsdp, tmp_path / "out")


def test_files_that_were_renamed_to_another_world(tmp_path: Path) -> None:
    case = fsdp_case("hsdp_2x2").copied(tmp_path / "ck")
    (case.root / "fsdp_config.json").unlink()
    for rank in range(4):
        old = case.file(rank)
        old.rename(case.root / f"model_world_size_2_rank_{rank}.pt") if rank < 2 else old.unlink()
    assert "its mesh has the sizes [2, 2], with 2 ranks" in refusal(case, tmp_path / "out")


def test_a_file_is_no_checkpoint_of_its_own(plain: FsdpCase, tmp_path: Path) -> None:
    message = "is a part of an FSDP checkpoint: name the directory of all its ranks, ROOT"
    assert message in refusal(plain, tmp_path / "out", source=str(plain.file(0)))
    assert message in refusal(plain, tmp_path / "out", source=str(plain.file(2, "optim")))


def test_names_that_a_rank_lacks(plain: FsdpCase, tmp_path: Path) -> None:
    plain.change(lambda tree: tree.pop(UP), rank=1)
    assert refusal(plain, tmp_path / "out") == (
        "ROOT: its files are not of one checkpoint\n  - model_world_size_3_rank_0.pt and model_world_size_3_rank_1.pt "
        f"do not both have '{UP}'"
    )


def test_names_in_another_order(plain: FsdpCase, tmp_path: Path) -> None:
    plain.change(lambda tree: tree.update({UP: tree.pop(UP)}), rank=1)
    assert "have their tensors in different orders" in refusal(plain, tmp_path / "out")


def test_a_shape_that_only_one_rank_says(plain: FsdpCase, tmp_path: Path) -> None:
    def grow(tree: Tree) -> None:
        _, _, arguments, _ = tree[EMBEDDING].arguments
        kind, dtype, _, *rest = arguments
        size = PickledObject(Global("torch", "Size"), ((39, 16),))
        tree[EMBEDDING].arguments = (
            *tree[EMBEDDING].arguments[:2],
            (kind, dtype, size, *rest),
            tree[EMBEDDING].arguments[3],
        )

    plain.change(grow, rank=0)
    assert "have 'model.embed_tokens.weight' as Float32 [39, 16] as (Shard(0)) on [3] and as Float32 [37, 16]" in (
        refusal(plain, tmp_path / "out")
    )
    plain.change(grow)
    assert "its shard is Float32 [11, 16], by its placements it is Float32 [13, 16]" in refusal(plain, tmp_path / "out")


def test_a_dtype_that_only_the_tensor_around_says(plain: FsdpCase, tmp_path: Path) -> None:
    def change(tree: Tree) -> None:
        function, kind, (own, _, *rest), state = tree[EMBEDDING].arguments
        tree[EMBEDDING].arguments = (function, kind, (own, Global("torch", "int32"), *rest), state)

    plain.change(change)
    assert "its shard is Float32 [13, 16], by its placements it is Int32 [13, 16]" in refusal(plain, tmp_path / "out")


def placement(name: str, **state: object) -> PickledObject:
    return PickledObject(Global(PLACEMENTS, name), (), Pairs(state.items()))


def replaced(**fields: object) -> Callable[[dict[str, Any]], object]:
    """A change that sets fields; the value `...` removes one."""
    return lambda found: found.update(fields)


SPECS: dict[str, tuple[dict[str, object], str]] = {
    "summands": ({"placements": (placement("Partial", reduce_op="sum"),)}, "ranks have summands of it (Partial)"),
    "no placements": ({"placements": ()}, "it does not have one placement for each of the 1 axes of its mesh"),
    "a dimension beyond": ({"placements": (placement("Shard", dim=2),)}, "a placement that is not known for its 2"),
    "a dimension below": ({"placements": (placement("Shard", dim=-1),)}, "a placement that is not known"),
    "a dimension that is no number": ({"placements": (placement("Shard", dim="0"),)}, "a placement that is not known"),
    "a placement that is no object": ({"placements": ("Shard",)}, "a placement that is not known"),
    "a split into none": (
        {"placements": (placement("_StridedShard", dim=0, split_factor=0),), "shard_order": ...},
        "a placement that is not known",
    ),
    "a strided shard of nothing": (
        {"placements": (placement("_StridedShard", dim=0, split_factor=2),), "shard_order": ...}
        | {"use_strided_shard_as_shard_order": True},
        "it is a _StridedShard(0, 2), but there are 1 shards",
    ),
    "a strided shard that is a view's": (
        {"placements": (placement("_StridedShard", dim=0, split_factor=1),)},
        "its strided shards are not those of tensor parallelism inside FSDP",
    ),
    "another order": (
        {
            "shard_order": (
                PickledObject(Global("torch.distributed.tensor._dtensor_spec", "ShardOrderEntry"), (0, (1, 0))),
            )
        },
        "it is sharded in another order than its placements have (shard_order)",
    ),
    "a number as an order": ({"shard_order": 7}, "(shard_order)"),
    "no mesh": ({"mesh": None}, "its mesh of ranks is not one that PyTorch saves"),
}


@pytest.mark.parametrize(("fields", "message"), SPECS.values(), ids=SPECS)
def test_a_spec(fields: dict[str, object], message: str, plain: FsdpCase, tmp_path: Path) -> None:
    plain.change_specs(replaced(**fields), EMBEDDING)
    found = refusal(plain, tmp_path / "out")
    assert f"cannot be read: '{EMBEDDING}'" in found
    assert message in found


def layout_of(*axes: tuple[object, object]) -> PickledObject:
    module = "torch.distributed._mesh_layout"
    flat = tuple(
        PickledObject(Global(module, "_FlatLayout"), (), Pairs([("shape", shape), ("stride", stride)]))
        for shape, stride in axes
    )
    return PickledObject(Global(module, "_MeshLayout"), (), Pairs([("axes", flat)]))


MESHES: dict[str, tuple[dict[str, object], str]] = {
    "another rank": ({"_rank": 7}, "its mesh is that of rank 7, not of rank 1"),
    "a rank that is no number": ({"_rank": "1"}, "its mesh is that of rank 1, not of rank 1"),
    "coordinates beyond": ({"_coordinate_on_dim": (3,)}, "rank 1 has the coordinates [3] in a mesh of [3]"),
    "coordinates below": ({"_coordinate_on_dim": (-1,)}, "its mesh of ranks is not one that PyTorch saves"),
    "other coordinates": (
        {"_coordinate_on_dim": (2,)},
        "rank 1 has the coordinates [2] in its mesh, where it stands at",
    ),
    "more coordinates": ({"_coordinate_on_dim": (1, 0)}, "rank 1 has the coordinates [1, 0] in a mesh of [3]"),
    "no coordinates": ({"_coordinate_on_dim": None}, "its mesh of ranks is not one that PyTorch saves"),
    "other ranks": ({"_flatten_rank_map": (0, 1, 3)}, "its mesh has ranks twice, or others than 0 to 2"),
    "ranks twice": ({"_flatten_rank_map": (0, 1, 1)}, "its mesh has ranks twice, or others than 0 to 2"),
    "more ranks": ({"_flatten_rank_map": (0, 1, 2, 3)}, "its mesh has 4 ranks, not 3"),
    "a huge mesh": ({"_layout": layout_of(((1 << 30,), (1,)))}, "its mesh has the sizes [1073741824], with 3 ranks"),
    "a mesh of nothing": ({"_layout": layout_of(((0,), (1,)))}, "its mesh of ranks is not one that PyTorch saves"),
    "a mesh without strides": ({"_layout": layout_of(((3,), (0,)))}, "its mesh of ranks is not one that"),
    "a mesh without axes": ({"_layout": layout_of()}, "its mesh has the sizes [], with 3 ranks"),
    "many axes": ({"_layout": layout_of(*[((1,), (1,))] * 17)}, "its mesh has the sizes [1, 1,"),
    "axes that are none": (
        {"_layout": PickledObject(Global("torch.distributed._mesh_layout", "_MeshLayout"), (), Pairs([("axes", 3)]))},
        "its mesh of ranks is not one that PyTorch saves",
    ),
}


@pytest.mark.parametrize(("fields", "message"), MESHES.values(), ids=MESHES)
def test_a_mesh(fields: dict[str, object], message: str, plain: FsdpCase, tmp_path: Path) -> None:
    plain.change_meshes(replaced(**fields), EMBEDDING, rank=1)
    found = refusal(plain, tmp_path / "out")
    assert "ROOT/model_world_size_3_rank_1.pt: cannot be read: 'tiny'" in found
    assert message in found


OBJECTS: dict[str, tuple[object, str]] = {
    "a number": (7, "it is not a tensor, but 'int'"),
    "a dict": (Pairs(), "it is not a tensor, but 'Pairs'"),
    "a placement": (
        placement("Replicate"),
        "it is not a tensor, but 'torch.distributed.tensor.placement_types.Replicate'",
    ),
}


@pytest.mark.parametrize(("value", "message"), OBJECTS.values(), ids=OBJECTS)
def test_what_is_no_tensor(value: object, message: str, plain: FsdpCase, tmp_path: Path) -> None:
    plain.change(lambda tree: tree.update({"odd": value}))
    assert f"cannot be read: 'odd': {message}" in refusal(plain, tmp_path / "out")


SHARDED = Global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")


def test_tensors_of_fsdp1_without_a_mesh(plain: FsdpCase, tmp_path: Path) -> None:
    value = PickledObject(Global("torch._tensor", "_rebuild_from_type_v2"), (SHARDED, SHARDED, (), None))
    plain.change(lambda tree: tree.update({"odd": value}))
    message = refusal(plain, tmp_path / "out")
    assert str(SHARDED) in message
    assert message.endswith(
        "FSDP1 saves ShardedTensors if it has no device mesh: load the checkpoint in its training, and save it with "
        "torch.distributed.checkpoint, or with a device mesh"
    )


def test_other_objects_are_never_made(plain: FsdpCase, tmp_path: Path) -> None:
    plain.change(lambda tree: tree.update({"odd": PickledObject(Global("os", "system"), ("touch /tmp/made",))}))
    message = refusal(plain, tmp_path / "out")
    assert "'os.system', which is not data and was not run" in message


def test_flat_parameters(plain: FsdpCase, tmp_path: Path) -> None:
    plain.change(lambda tree: tree.update({"model._flat_param": tree["counted"]}))
    assert "cannot be read: 'model._flat_param': it is a flat parameter of FSDP1" in refusal(plain, tmp_path / "out")


@pytest.mark.parametrize("state", [Pairs(), Pairs([("_local_tensor", 3), ("_spec", 4)])])
def test_a_dtensor_without_its_parts(state: Pairs, plain: FsdpCase, tmp_path: Path) -> None:
    def change(tree: Tree) -> None:
        tree[EMBEDDING].arguments = (*tree[EMBEDDING].arguments[:3], (None, state))

    plain.change(change)
    assert "it is a DTensor without a local tensor and a spec" in refusal(plain, tmp_path / "out")


@pytest.mark.parametrize("size", [(2**62, 2**62), (-1, 3), ("a",), 5, (1,) * 65])
def test_a_dtensor_of_no_shape(size: object, plain: FsdpCase, tmp_path: Path) -> None:
    def change(tree: Tree) -> None:
        function, kind, (own, dtype, _, *rest), state = tree[EMBEDDING].arguments
        tree[EMBEDDING].arguments = (function, kind, (own, dtype, size, *rest), state)

    plain.change(change)
    assert "it is a DTensor without a dtype and a shape that a file can hold" in refusal(plain, tmp_path / "out")


def test_a_state_dict_that_is_none(plain: FsdpCase, tmp_path: Path) -> None:
    plain.change(lambda tree: tree.clear())
    assert "is not a state dict: it must be a dict of tensors by their names" in refusal(plain, tmp_path / "out")


def test_buffers_that_differ(plain: FsdpCase, tmp_path: Path) -> None:
    path = plain.file(1)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    [storage] = [name for name, data in contents.items() if "/data/" in name and data == plain.want["counted"][2]]
    contents[storage] = (99).to_bytes(8, "little")
    write_archive(path, contents)
    assert refusal(plain, tmp_path / "out") == (
        "ROOT: what several files hold of the model is not the same in all\n  - parameter 'counted', []: one content "
        "in model_world_size_3_rank_0.pt, model_world_size_3_rank_2.pt, another in model_world_size_3_rank_1.pt"
    )


def test_the_same_bytes_under_two_names_are_ties_on_all_ranks_only(tmp_path: Path) -> None:
    case = fsdp_case("fsdp2_mixed_tied").copied(tmp_path / "ck")

    def untie(tree: Tree) -> None:
        tree["lm_head.weight"] = tree[UP]

    case.change(untie, rank=1)
    message = refusal(case, tmp_path / "out")
    assert "have 'lm_head.weight' as BFloat16 [37, 16]" in message


def test_a_tie_that_one_rank_lacks(tmp_path: Path) -> None:
    """Two tensors of equal cuts at the same bytes of one file would otherwise be taken for one."""
    case = fsdp_case("fsdp2_uneven_optim").copied(tmp_path / "ck")
    other = "model.layers.1.mlp.up_proj.weight"
    case.change(lambda tree: tree.update({other: tree[UP]}), rank=1)
    assert refusal(case, tmp_path / "out") == (
        f"ROOT: its files are not of one checkpoint\n  - '{UP}' and '{other}' are one tensor in some files, not in all"
    )


def test_links_that_lead_out_are_not_followed(plain: FsdpCase, tmp_path: Path) -> None:
    plain.file(1).rename(tmp_path / "elsewhere.pt")
    (plain.root / "model_world_size_3_rank_1.pt").symlink_to(tmp_path / "elsewhere.pt")
    assert "is a link to" in refusal(plain, tmp_path / "out")


def test_a_configuration_directory_that_leads_out_is_not_followed(plain: FsdpCase, tmp_path: Path) -> None:
    shutil.move(plain.root / "huggingface", tmp_path / "elsewhere")
    (plain.root / "huggingface").symlink_to(tmp_path / "elsewhere")
    assert "ROOT/huggingface: is a link to" in refusal(plain, tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"integrated_save": "yes"}, "which says itself what each file holds, and is never encrypted"),
        ({"source_prefix": "x"}, "whose files have fixed names: leave out 'source_prefix'"),
        ({"recover": True, "fault_ranks": "1"}, "whose files are not counted as ranks: leave out 'fault_ranks'"),
        ({"step": "3"}, "its step is not known: leave out"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, str], message: str, plain: FsdpCase, tmp_path: Path) -> None:
    assert message in refusal(plain, tmp_path / "out", **options)

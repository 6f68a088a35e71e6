"""Conversions of directories that PyTorch's Distributed Checkpoint wrote."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.report import Outcome
from reshard.core.errors import CatalogError, CheckpointError, InputError
from reshard.core.layouts.dcp import catalog as dcp_catalog
from reshard.core.records.plan_file import dump_plan, load_plan, plan_identity
from reshard.core.request.source import FingerprintRequest, SourceRequest
from reshard.core.source.opening import open_source
from reshard.core.source.recovery import assess_recovery
from reshard.core.storage import reading
from reshard.core.storage.reading import SourceFile
from reshard.core.storage.urls import Location
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.dtypes import FLOAT8_NAMES
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from reshard.core.verification.compare import fingerprint_checkpoint
from reshard.core.verification.published import verify_target
from tests.core.conversion.test_foreign_dtypes import read_raw
from tests.core.layouts.dcp.test_metadata import hyper_metadata
from tests.support.checkpoints import Contents, read_safetensors, read_tree
from tests.support.dcp import CASES, DCP_FIXTURES, FOREIGN, DcpCase, archive, dcp_case, saved_tensor
from tests.support.diagnosed import diagnose
from tests.support.loading import load_rank

UNEVEN = dcp_case("fsdp_uneven")
DTYPES = dcp_case("dtypes")
ONE_FILE = "model.safetensors"
ORDINARY = [name for name in CASES if name != FOREIGN]


def strategy_of(whole: Contents, directory: Path) -> str:
    """A MindSpore strategy of 6 ranks: axes that divide by 2 or 3 are cut, the others not."""
    layouts = {}
    for name, (_, shape, _) in whole.items():
        axes = [((1,) if length and length % 2 == 0 else ()) if axis == 0 else () for axis, length in enumerate(shape)]
        if len(shape) > 1 and shape[1] and shape[1] % 3 == 0:
            axes[1] = (0,)
        cut = ParameterLayout((2, 3), tuple(axes), nested=True, tensor_shape=shape)
        layouts[name] = cut if shape else whole_layout(0, 6)
    path = directory / "strategy.json"
    write_strategy(Strategy((StageStrategy(0, layouts),), str(path)), str(path))
    return str(path)


@pytest.mark.parametrize("name", ORDINARY)
def test_whole_tensors_are_those_that_torch_loads(name: str, tmp_path: Path) -> None:
    case = DcpCase(DCP_FIXTURES / name)
    convert(case.request(tmp_path / "out", layout="unified", verify="content"))
    assert read_safetensors(tmp_path / "out" / ONE_FILE) == case.whole


@pytest.mark.parametrize("name", ORDINARY)
def test_ranks_of_a_strategy_and_back(name: str, tmp_path: Path) -> None:
    case = DcpCase(DCP_FIXTURES / name)
    options = {"target_strategy": strategy_of(case.whole, tmp_path), "format": "ckpt", "verify": "content"}
    convert(case.request(tmp_path / "ranks", **options))
    assert len(read_tree(tmp_path / "ranks")) == 6
    convert(case.request(tmp_path / "one", tmp_path / "ranks", layout="unified"))
    assert read_safetensors(tmp_path / "one" / ONE_FILE) == case.whole


def test_the_metadata_names_the_checkpoint(tmp_path: Path) -> None:
    convert(UNEVEN.request(tmp_path / "out", UNEVEN.source / ".metadata", layout="unified"))
    assert read_safetensors(tmp_path / "out" / ONE_FILE) == UNEVEN.whole


def test_objects_are_left_out_and_named(tmp_path: Path) -> None:
    report = convert(dcp_case("single").request(tmp_path / "out"))
    assert report.notes == ("left out: 2 objects of Python, which only PyTorch can read: step, note",)


def test_a_consolidated_directory_is_whole_tensors(tmp_path: Path) -> None:
    case = dcp_case("hf_consolidated")
    report = convert(case.request(tmp_path / "out", case.directory / "src", layout="unified"))
    assert read_safetensors(tmp_path / "out" / ONE_FILE) == case.whole
    assert report.source_world_size == 2


def test_dtypes_that_mindspore_lacks_are_refused_by_name(tmp_path: Path) -> None:
    case = dcp_case("foreign_dtypes")
    with pytest.raises(InputError) as refused:
        convert(case.request(tmp_path / "out"))
    for text in (
        "'float8_e4m3fn' has dtype F8_E4M3, which only layout='unified', layout='torch_dist' and layout='dcp' can hold",
        "'conjugated' has dtype conjugated or negated C64, which reshard cannot convert; if the model does without it",
        "leave it out: exclude=['conjugated']",
    ):
        assert text in str(refused.value)


def test_floats_of_8_bits_become_those_of_safetensors(tmp_path: Path) -> None:
    case = dcp_case("foreign_dtypes")
    complex_ones = ["complex", "conjugated"]
    convert(case.request(tmp_path / "out", verify="content", layout="unified", exclude=complex_ones))
    made = read_raw(tmp_path / "out" / ONE_FILE)
    whole = read_raw(case.directory / "whole.safetensors")
    assert made == {name: whole[name] for name in whole if name not in complex_ones}
    assert {made[name][0] for name in made if name.startswith("float8")} == {*FLOAT8_NAMES}


def test_names_and_dtypes_are_changed_on_the_way(tmp_path: Path) -> None:
    rename, cast = [r"re:model\.(.*)=\1"], ["embed.*=bfloat16"]
    convert(UNEVEN.request(tmp_path / "out", layout="unified", exclude=["*.bias"], rename=rename, cast=cast))
    made = read_safetensors(tmp_path / "out" / ONE_FILE)
    assert made.keys() == {name.removeprefix("model.") for name in UNEVEN.whole if not name.endswith(".bias")}
    assert made["embed.weight"][0] == "BFloat16"


def test_a_rank_is_loaded_without_files(tmp_path: Path) -> None:
    strategy = strategy_of(UNEVEN.whole, tmp_path)
    convert(UNEVEN.request(tmp_path / "out", target_strategy=strategy))
    written = read_tree(tmp_path / "out")[4]
    loaded = dict(load_rank(str(UNEVEN.source), "", strategy, 4))
    assert loaded.keys() == written.keys()
    for name, value in loaded.items():
        assert isinstance(value, np.ndarray)
        assert value.tobytes() == written[name][2]


def test_fingerprints_are_those_of_the_whole_tensors(tmp_path: Path) -> None:
    save = tmp_path / ONE_FILE
    shutil.copy(DTYPES.directory / "whole.safetensors", save)
    sharded, whole = (
        fingerprint_checkpoint(FingerprintRequest(source=str(source))) for source in (DTYPES.source, tmp_path)
    )
    assert {each.name: each for each in sharded.parameters} == {each.name: each for each in whole.parameters}


def test_a_plan_with_boxes_is_stored_and_restored(tmp_path: Path) -> None:
    plan = make_plan(DTYPES.request(tmp_path / "out"))
    (tmp_path / "plan").write_bytes(dump_plan(plan))
    restored = load_plan(str(tmp_path / "plan"), plan_identity(plan))
    assert restored.rank_plan(0) == plan.rank_plan(0)
    assert restored.inputs.catalog == plan.inputs.catalog


def test_an_interrupted_conversion_is_resumed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"target_strategy": strategy_of(UNEVEN.whole, tmp_path)}
    convert(UNEVEN.request(tmp_path / "want", **options))
    assert not convert(UNEVEN.request(tmp_path / "out", ranks="0-2", **options)).committed
    report = convert(UNEVEN.request(tmp_path / "out", **options))
    assert report.committed
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "want")
    assert [each.rank for each in report.ranks if each.outcome is Outcome.RESUMED] == [0, 1, 2]


def test_values_are_compared_with_the_source_s_later(tmp_path: Path) -> None:
    convert(DTYPES.request(tmp_path / "out", layout="unified"))
    report = verify_target(str(tmp_path / "out"), VerifyLevel.CONTENT)
    assert not report.problems
    assert report.level is VerifyLevel.CONTENT


def test_little_memory_is_enough(tmp_path: Path) -> None:
    convert(DTYPES.request(tmp_path / "out", layout="unified", memory_limit="16MiB", workers=1))
    assert read_safetensors(tmp_path / "out" / ONE_FILE) == DTYPES.whole


def test_a_file_with_several_shards_of_a_tensor(tmp_path: Path) -> None:
    case = UNEVEN.copied(tmp_path / "case")
    parts = [(case.source / f"__{rank}_0.distcp").read_bytes() for rank in range(4)]
    starts = [sum(map(len, parts[:rank])) for rank in range(4)]
    (case.source / "all.distcp").write_bytes(b"".join(parts))

    def join(metadata: Any) -> None:
        for place in metadata.storage_data.values():
            place.offset += starts[int(place.relative_path[2])]
            place.relative_path = "all.distcp"

    case.change_metadata(join)
    for rank in range(4):
        (case.source / f"__{rank}_0.distcp").unlink()
    convert(case.request(tmp_path / "out", layout="unified", verify="content"))
    assert read_safetensors(tmp_path / "out" / ONE_FILE) == case.whole


def test_shards_that_are_no_grid(tmp_path: Path) -> None:
    """Four boxes around a fifth, on files in another order; one stored transposed, one cut from a larger matrix."""
    whole = np.arange(9 * 9, dtype=np.float32).reshape(9, 9)
    boxes = [((0, 0), (3, 6)), ((0, 6), (6, 3)), ((6, 3), (3, 6)), ((3, 0), (6, 3)), ((3, 3), (3, 3))]
    case = UNEVEN.copied(tmp_path / "case")
    shards = []
    for number, (start, sizes) in enumerate(boxes):
        part = whole[start[0] : start[0] + sizes[0], start[1] : start[1] + sizes[1]]
        if number == 2:
            shards.append(saved_tensor(part.T.tobytes(), "FloatStorage", 4, sizes, (1, sizes[0])))
        elif number == 3:
            shards.append(saved_tensor(whole.tobytes(), "FloatStorage", 4, sizes, (9, 1), start[0] * 9 + start[1]))
        else:
            shards.append(saved_tensor(part.tobytes(), "FloatStorage", 4, sizes, (sizes[1], 1)))
        (case.source / f"__{9 - number}_0.distcp").write_bytes(b"before" + shards[-1])

    def keep_one(metadata: Any) -> None:
        name = "model.embed.weight"
        tensor = metadata.state_dict_metadata[name]
        (index, place), *_ = [item for item in metadata.storage_data.items() if item[0].fqn == name]
        tensor.size.arguments = ((9, 9),)
        [chunk, *_] = tensor.chunks
        tensor.chunks.clear()
        metadata.storage_data.clear()
        for number, (start, sizes) in enumerate(boxes):
            made = [_copy(each) for each in (chunk, index, place)]
            made[0].offsets, made[0].sizes = (_size(chunk.sizes, each) for each in (start, sizes))
            made[1].offset = made[0].offsets
            made[2].__dict__.update(relative_path=f"__{9 - number}_0.distcp", offset=6, length=len(shards[number]))
            tensor.chunks.append(made[0])
            metadata.storage_data[made[1]] = made[2]
        metadata.state_dict_metadata = {name: tensor}

    case.change_metadata(keep_one)
    convert(case.request(tmp_path / "one", layout="unified", verify="content"))
    assert read_safetensors(tmp_path / "one" / ONE_FILE) == {"model.embed.weight": ("Float32", (9, 9), whole.tobytes())}
    layouts = {"model.embed.weight": ParameterLayout((3, 3), ((1,), (0,)), nested=True)}
    write_strategy(Strategy((StageStrategy(0, layouts),), ""), str(tmp_path / "strategy.json"))
    convert(case.request(tmp_path / "nine", target_strategy=str(tmp_path / "strategy.json"), verify="content"))
    for rank, contents in read_tree(tmp_path / "nine").items():
        row, column = divmod(rank, 3)
        expected = whole[3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
        assert contents["model.embed.weight"][2] == expected.tobytes()


def _copy(value: Any) -> Any:
    made = type(value)()
    made.__dict__.update(value.__dict__)
    return made


def _size(like: Any, numbers: tuple[int, ...]) -> Any:
    return type(like)(numbers)


def test_hyper_parallel_s_directory(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    whole = np.arange(5, dtype=np.float32)
    data = hyper_metadata("hyper_parallel.core.distributed_checkpoint", {"w": [(0, 2), (2, 3)]})
    (source / ".metadata").write_bytes(data)
    save_file({"w": whole[:2]}, source / "_rank0_.safetensors")
    save_file({"w": whole[2:], "other": whole}, source / "_rank1_.safetensors")
    convert(UNEVEN.request(tmp_path / "out", source, layout="unified"))
    assert read_safetensors(tmp_path / "out" / ONE_FILE) == {"w": ("Float32", (5,), whole.tobytes())}


def test_hyper_parallel_s_torch_archives_are_called_so(tmp_path: Path) -> None:
    data = hyper_metadata("hyper_parallel.core.distributed_checkpoint", {"w": [(0, 2)]})
    (tmp_path / ".metadata").write_bytes(data)
    (tmp_path / "_rank0_.safetensors").write_bytes(archive({"data.pkl": b"\x80\x02}q\0."}))
    with pytest.raises(
        CheckpointError, match=r"_rank0_\.safetensors: .* a PyTorch archive, which hyper_parallel saves"
    ):
        open_source(SourceRequest(source=str(tmp_path)))


def test_ranks_that_hyper_parallel_saved_each_for_itself_are_called_so(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"_rank{rank}_.safetensors").touch()
        (tmp_path / f".rank{rank}_metadata").touch()
    with pytest.raises(
        CatalogError, match=r"is hyper_parallel's; it has no \.metadata, but \.rank0_metadata, \.rank1_"
    ):
        open_source(SourceRequest(source=str(tmp_path)))


def truncate(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def _place(name: str, **changes: object) -> Any:
    def change(metadata: Any) -> None:
        [place, *_] = [each for index, each in metadata.storage_data.items() if index.fqn == name]
        place.__dict__.update(changes)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda case: (case.source / ".metadata").unlink(), "no .metadata, which is written last: it was not saved"),
        (
            lambda case: (case.source / ".metadata").rename(case.source / "__0.metadata"),
            "has no .metadata, but __0.metadata: each rank saved a checkpoint of its own",
        ),
        (lambda case: (case.source / "__2_0.distcp").unlink(), "files that .metadata lists are missing: __2_0.distcp"),
        (lambda case: truncate(case.source / "__2_0.distcp", 5), "__2_0.distcp: parameter "),
        (lambda case: truncate(case.source / "__2_0.distcp", 5), "end after the file's end at "),
        (lambda case: truncate(case.source / ".metadata", 5), ".metadata: is not the metadata of a DCP checkpoint"),
        (
            lambda case: case.change_metadata(_place("model.embed.weight", offset=0)),
            "__0_0.distcp: the bytes of 'model.seen', [], and 'model.embed.weight', [0:3, 0:6], overlap at 0: ",
        ),
        (
            lambda case: case.change_metadata(_place("model.embed.weight", relative_path="__1_0.distcp")),
            "__1_0.distcp: ",
        ),
        (
            lambda case: case.change_metadata(_place("model.embed.weight", length=2**62)),
            "parameter 'model.embed.weight': its 4611686018427387904 bytes at",
        ),
    ],
)
def test_damage_is_refused_by_name(damage: Any, message: str, tmp_path: Path) -> None:
    case = UNEVEN.copied(tmp_path / "case")
    damage(case)
    with pytest.raises(InputError) as refused:
        convert(case.request(tmp_path / "out"))
    assert message in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_missing_file_is_noticed_before_others_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = UNEVEN.copied(tmp_path / "case")
    opened: list[str] = []

    def noted(location: Location) -> SourceFile:
        opened.append(location.name)
        return reading.open_source(location)

    monkeypatch.setattr(dcp_catalog, "open_source", noted)
    convert(case.request(tmp_path / "whole"))
    assert len(opened) == 4
    (case.source / "__1_0.distcp").unlink()
    with pytest.raises(InputError, match=r"files that \.metadata lists are missing: __1_0\.distcp"):
        convert(case.request(tmp_path / "out"))
    assert len(opened) == 4


@pytest.mark.parametrize("length", [0, 71, 73])
def test_a_tensor_in_a_safetensors_part_has_the_length_that_the_metadata_gives(length: int, tmp_path: Path) -> None:
    case = dcp_case("safetensors").copied(tmp_path / "case")
    case.change_metadata(_place("model.embed.weight", length=length))
    with pytest.raises(
        InputError, match=f"tensor 'model.embed.weight' has 72 bytes, the metadata says {length}"
    ) as refused:
        convert(case.request(tmp_path / "out"))
    assert "__0_0.distcp" in str(refused.value)


def test_another_tensor_than_the_metadata_says_is_refused(tmp_path: Path) -> None:
    case = UNEVEN.copied(tmp_path / "case")

    def swap(metadata: Any) -> None:
        places = {index.fqn: each for index, each in metadata.storage_data.items() if each.relative_path[2] == "0"}
        one, other = places["model.embed.weight"], places["model.head.weight"]
        one.__dict__, other.__dict__ = other.__dict__, one.__dict__

    case.change_metadata(swap)
    with pytest.raises(InputError, match=r"is Float32 \[2, 6\], the metadata says Float32 \[3, 6\]"):
        convert(case.request(tmp_path / "out"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_strategy": "x"}, "is a DCP checkpoint: .metadata says how it is sharded, so leave out 'source_"),
        ({"step": "3"}, "is a DCP checkpoint, without steps or prefixes: leave out 'step'"),
        ({"source_prefix": "llama"}, "is a DCP checkpoint, without steps or prefixes"),
        ({"recover": True}, "is a DCP checkpoint, which has each slice once and so nothing to recover from"),
        ({"integrated_save": "yes"}, "which says itself what each file holds, and is never encrypted: leave out"),
        ({"decrypt_key": "env:KEY"}, "leave out 'decrypt_key'"),
    ],
)
def test_options_that_say_otherwise_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "0123456789abcdef")
    if "source_strategy" in options:
        options = {"source_strategy": strategy_of(UNEVEN.whole, tmp_path)}
    with pytest.raises(InputError) as refused:
        convert(UNEVEN.request(tmp_path / "out", **options))
    assert message in str(refused.value)


def test_two_tensors_in_one_place_are_refused(tmp_path: Path) -> None:
    """As a wrong offset makes them: both are whole tensors of the shape that the metadata says."""
    case = dcp_case("optimizer").copied(tmp_path / "case")

    def point_elsewhere(metadata: Any) -> None:
        places = {index.fqn: each for index, each in metadata.storage_data.items() if index.index in (0, None)}
        first = next(name for name in places if name.endswith(".exp_avg"))
        places[first].__dict__.update(places[f"{first}_sq"].__dict__)

    case.change_metadata(point_elsewhere)
    with pytest.raises(InputError, match=r"the bytes of '.*\.exp_avg', .* and '.*\.exp_avg_sq', .* overlap at \d+"):
        convert(case.request(tmp_path / "out"))


def test_missing_last_shards_for_hugging_face_cannot_be_noticed_so_a_note_says_it(tmp_path: Path) -> None:
    case = dcp_case("hf_sharded")
    [note] = convert(case.request(tmp_path / "out")).notes
    assert note == (
        "without .metadata, shapes are what the 4 files add up to: compare them, because files of the last ranks could "
        "be missing without a trace"
    )


def test_shards_for_hugging_face_must_fill_their_tensors(tmp_path: Path) -> None:
    case = dcp_case("hf_sharded").copied(tmp_path / "case")
    (case.source / "shard-00002-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(InputError, match=r"its shards are incomplete.*Files may be missing, or of another checkpoint"):
        convert(case.request(tmp_path / "out"))
    shutil.copy(
        case.source / "shard-00001-model-00001-of-00001.safetensors",
        case.source / "shard-00002-model-00001-of-00001.safetensors",
    )
    with pytest.raises(InputError, match="its shards overlap"):
        convert(case.request(tmp_path / "out"))


@pytest.mark.parametrize(
    ("information", "message"),
    [
        (None, "its header has no DCP_SHARDING_INFO"),
        ("[", "DCP_SHARDING_INFO: is not valid JSON: "),
        ('{"w": {"saved_offsets": [1]}, "w": {"saved_offsets": [0]}}', "'w' occurs twice in one object"),
        ("[1]", "DCP_SHARDING_INFO gives no saved_offsets of parameter ''"),
        (json.dumps({"w": {"saved_offsets": [-1]}}), "DCP_SHARDING_INFO gives no saved_offsets of parameter 'w'"),
        (json.dumps({"w": {"saved_offsets": [0, 0]}}), r"'w' is \[0, 0\], its shape \[2\]"),
        (json.dumps({"w": {}}), "saved_offsets"),
    ],
)
def test_sharding_information_is_checked(information: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "src" / "shard-00001-model-00001-of-00001.safetensors"
    path.parent.mkdir()
    metadata = {} if information is None else {"DCP_SHARDING_INFO": information}
    save_file({"w": np.zeros(2, np.float32)}, path, metadata)
    with pytest.raises(InputError, match=message) as refused:
        convert(UNEVEN.request(tmp_path / "out", tmp_path / "src"))
    assert str(path) in str(refused.value)


def test_the_doctor_finds_it_sound_and_nothing_to_recover() -> None:
    diagnosis = diagnose(str(dcp_case("optimizer").source))
    assert diagnosis.fits
    assert diagnosis.facts[0][1].endswith("DCP, 4 files, 40 parameters")
    with pytest.raises(InputError, match="has each slice once and so nothing to recover from"):
        assess_recovery(SourceRequest(source=str(UNEVEN.source)))

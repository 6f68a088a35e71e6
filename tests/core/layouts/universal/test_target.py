"""Conversions to DeepSpeed's universal checkpoint, whose files are read by Python's own unpickler."""

import os
import signal
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.checkpoint.manifest import ParameterRecord, ShardRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import describe_plan, make_plan
from reshard.core.errors import CheckpointError, InputError, TargetError
from reshard.core.files.model import OutputEntry
from reshard.core.files.torch_file_writing import TensorPlace
from reshard.core.layouts.registry import source_layouts
from reshard.core.layouts.universal.target_side import SIDE
from reshard.core.records.plan_file import dump_plan, load_plan, plan_identity
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.target.cleaning import clean
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import Contents, read_safetensors, write_safetensors
from tests.support.conversions import damage, outcomes, stop_before_commit
from tests.support.megatron_files import StoredArray, read_tree
from tests.support.torch_files import written

TAG = "global_step40_universal"
MODEL_FILES = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")


def floats(*shape: int, dtype: str = "Float32", start: float = 0) -> tuple[str, tuple[int, ...], bytes]:
    values = (np.arange(np.prod(shape, dtype=int)) + start).astype("<f4")
    data = values.tobytes() if dtype == "Float32" else (values.view("<u4") >> 16).astype("<u2").tobytes()
    return dtype, shape, data


def with_moments(name: str, *shape: int) -> Contents:
    return {
        name: floats(*shape),
        f"exp_avg.{name}": floats(*shape, start=0.5),
        f"exp_avg_sq.{name}": floats(*shape, start=100),
    }


MODEL: Contents = {
    **with_moments("emb.weight", 5, 3),
    **with_moments("norm.weight", 3),
    **with_moments("scale", *()),
    "frozen.weight": floats(2, 2, dtype="BFloat16"),
    "position_ids": ("Int64", (2,), struct.pack("<2q", 7, -1)),
    "param": ("Int64", (1,), struct.pack("<q", 9)),
}


def asked(directory: Path, contents: Contents | None = None, **options: Any) -> ConversionRequest:
    """A request to convert a model."""
    source = directory / "model.safetensors"
    write_safetensors(source, MODEL if contents is None else contents)
    given = {"target": str(directory / "out"), "iteration": "40", "optimizer_step": 38, "verify": "content"} | options
    return build_request(source=str(source), layout="universal", **given)


def content(value: Any) -> Any:
    """A tree with what tensors are."""
    if isinstance(value, StoredArray):
        return value.dtype, value.shape, value.data
    if isinstance(value, dict):
        return {key: content(each) for key, each in value.items()}
    return value


def read(directory: Path) -> dict[str, Any]:
    """Every file of a checkpoint, by its path."""
    return {
        str(path.relative_to(directory)): content(read_tree(path))
        for path in sorted(directory.rglob("*.pt"))
        if ".reshard" not in path.parts
    }


def refused(directory: Path, contents: Contents | None = None, **options: Any) -> str:
    """The refusal of a conversion that leaves nothing."""
    with pytest.raises(InputError) as error:
        convert(asked(directory, contents, **options))
    assert not (directory / "out").exists()
    return str(error.value)


def test_every_tensor_has_a_file(tmp_path: Path) -> None:
    report = convert(asked(tmp_path))
    assert report.target == str(tmp_path / "out" / TAG)
    assert (tmp_path / "out/latest_universal").read_text() == TAG
    found = read(tmp_path / "out" / TAG)
    step = ("Float32", (), struct.pack("<f", 38))
    for name in ("emb.weight", "norm.weight", "scale"):
        assert found.pop(f"zero/{name}/fp32.pt") == {"param": MODEL[name]}
        assert found.pop(f"zero/{name}/step.pt") == step
        for moment in ("exp_avg", "exp_avg_sq"):
            assert found.pop(f"zero/{name}/{moment}.pt") == {"param": MODEL[f"{moment}.{name}"]}
    assert found.pop("zero/frozen.weight/fp32.pt") == {"param": floats(2, 2)}
    assert found.pop("zero/optimizer_state.pt") == {
        "ds_version": "0.19.8",
        "param_groups": [{}] * 6,
        "optimizer_state_dict": {"state": {0: {"step": 38}}, "param_groups": [{}]},
    }
    for name in MODEL_FILES:
        state = found.pop(name)
        assert state["module"] == {name: MODEL[name] for name in ("position_ids", "param")}
        assert (state["global_steps"], state["skipped_steps"], state["dp_world_size"]) == (40, 0, 1)
        assert "lr_scheduler" not in state
    assert found == {}


def test_notes_say_what_deepspeed_does_not_load(tmp_path: Path) -> None:
    _, summary = describe_plan(asked(tmp_path))
    text = "\n".join(summary.notes)
    assert "DeepSpeed loads no such parameters (frozen ones, other names of tied ones, buffers)" in text
    assert "load_lr_scheduler_states=False" in text
    assert "before ZeRO 3 goes on with an optimizer of torch's own, give its states tensors" in text
    _, summary = describe_plan(asked(tmp_path, select="weights-only"))
    text = "\n".join(summary.notes)
    assert "ZeRO 3 loads it with load_checkpoint(…, load_module_only=True)" in text
    assert "load_lr_scheduler_states" not in text


def test_weights_alone_have_no_steps(tmp_path: Path) -> None:
    convert(asked(tmp_path, select="weights-only", optimizer_step=0))
    found = read(tmp_path / "out" / TAG)
    assert sorted(found) == sorted(
        [
            *(f"zero/{name}/fp32.pt" for name in ("emb.weight", "norm.weight", "scale", "frozen.weight")),
            "zero/optimizer_state.pt",
            *MODEL_FILES,
        ]
    )
    assert "optimizer_state_dict" not in found["zero/optimizer_state.pt"]


def test_floats_of_16_bits_are_widened(tmp_path: Path) -> None:
    half = np.array([1.5, -65504, 6e-8, np.inf], "<f2")
    contents: Contents = {"w": ("Float16", (4,), half.tobytes()), "b": floats(3, dtype="BFloat16")}
    convert(asked(tmp_path, contents))
    found = read(tmp_path / "out" / TAG)
    assert found["zero/w/fp32.pt"] == {"param": ("Float32", (4,), half.astype("<f4").tobytes())}
    assert found["zero/b/fp32.pt"] == {"param": floats(3)}


WEIGHT = with_moments("w", 2)
DOUBLE: Contents = {"w": ("Float64", (1,), bytes(8))}


@pytest.mark.parametrize(
    ("contents", "options", "reason"),
    [
        (WEIGHT, {"optimizer_step": 0}, "does not say after how many steps, without which training goes on wrongly"),
        (WEIGHT, {"exclude": ["w"]}, "cannot become a universal checkpoint: no weight is left of it"),
        ({**WEIGHT, "v": floats(1)}, {"exclude": ["w"]}, "'exp_avg.w' of shape [2] is the moment of 'w', which is not"),
        (WEIGHT, {"exclude": ["exp_avg.w"]}, "'exp_avg_sq.w' is there, but not 'exp_avg.w': leave all optimizer"),
        (WEIGHT, {"exclude": ["exp_avg_sq.w"]}, "'exp_avg.w' is there, but not 'exp_avg_sq.w'"),
        ({**WEIGHT, "w": floats(3)}, {}, "'exp_avg.w' of shape [2] is the moment of 'w', which has [3]"),
        ({**WEIGHT, "step.w": floats(1)}, {}, "'step.w' is optimizer state, and a universal checkpoint has exp_avg"),
        ({"w": floats(2), "adam_m.w": floats(2)}, {}, "'adam_m.w' is optimizer state"),
        (DOUBLE, {}, "'w' is Float64, and DeepSpeed has all of them in float32: round it, cast=['w=float32']"),
        (WEIGHT, {"cast": ["*=bfloat16"]}, "'w' is BFloat16, and DeepSpeed has all of them in float32"),
        ({"position_ids": ("Int64", (1,), bytes(8))}, {}, "no weight is left"),
        ({"a/b": floats(1)}, {}, "'a/b' gets a folder of its name, and folders cannot be named so: give it another"),
        ({"..": floats(1)}, {}, "'..' gets a folder of its name, and folders cannot be named so"),
        ({"a\\b": floats(1)}, {}, "folders cannot be named so"),
        ({"a\nb": floats(1)}, {}, "folders cannot be named so"),
        ({"a\0b": floats(1)}, {}, "folders cannot be named so"),
        ({"é" * 130: floats(1)}, {}, "whose name would have more than 255 bytes"),
        ({"optimizer_state.pt": floats(1)}, {}, "'optimizer_state.pt' gets a folder of its name, which is the name of"),
        ({"Optimizer_state.pt": floats(1)}, {}, "'Optimizer_state.pt' gets a folder of its name, which is the name of"),
        ({"a.Weight": floats(1), "a.weight": floats(1)}, {}, "differs from another one only in upper and lower case"),
        (WEIGHT, {"target_strategy": "s.ckpt"}, "its tensors are whole, so leave out"),
        (WEIGHT, {"prefix": "p"}, "the files of a universal checkpoint have fixed names"),
        (WEIGHT, {"encrypt_key": "env:K"}, "DeepSpeed has no encrypted files"),
        (WEIGHT, {"write_crc": True}, "files that PyTorch saves have a CRC of each tensor anyway"),
        (WEIGHT, {"append_info": ["epoch=1"]}, "keeps its training state elsewhere"),
        (WEIGHT, {"remove_redundancy": True}, "a universal checkpoint holds everything once"),
        (WEIGHT, {"format": "ckpt"}, "writes .pt files: leave out 'format'"),
        (WEIGHT, {"optimizer_step": 1 << 25}, "must be at most 16777216"),
    ],
)
def test_refusals(contents: Contents, options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    assert reason in refused(tmp_path, contents, **options)


@pytest.mark.parametrize("layout", ["megatron", "unified"])
def test_its_options_are_its_own(layout: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only valid with layout='universal'"):
        build_request(source="a", target="b", layout=layout, optimizer_step=3)


def test_a_number_of_steps_that_is_not_written_is_told(tmp_path: Path) -> None:
    text = "\n".join(convert(asked(tmp_path, select="weights-only", optimizer_step=3)).notes)
    assert "there is no optimizer state: DeepSpeed begins with a new optimizer" in text
    assert "; the number of optimizer steps, 3, is not written" in text


def test_a_source_says_its_optimizers_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"global_step": 40, "optimizer_step": 39.0}
    monkeypatch.setattr(source_layouts()[0], "numbers_beside", lambda _: numbers)
    convert(asked(tmp_path, WEIGHT, optimizer_step=0))
    assert read(tmp_path / "out" / TAG)["zero/w/step.pt"] == ("Float32", (), struct.pack("<f", 39))


def test_steps_and_their_tracker(tmp_path: Path) -> None:
    tracker = tmp_path / "out" / "latest_universal"
    convert(asked(tmp_path))
    convert(asked(tmp_path, iteration="7"))
    assert tracker.read_text() == TAG
    convert(asked(tmp_path, iteration="41"))
    assert tracker.read_text() == "global_step41_universal"
    convert(asked(tmp_path, iteration="", target=str(tmp_path / "alone/global_step5_universal")))
    assert [path.name for path in (tmp_path / "alone").iterdir()] == ["global_step5_universal"]
    assert read(tmp_path / "alone/global_step5_universal")[MODEL_FILES[0]]["global_steps"] == 5
    with pytest.raises(InputError, match="iteration='7': the target is named global_step5_universal: leave it out"):
        convert(asked(tmp_path, iteration="7", target=str(tmp_path / "alone/global_step5_universal")))
    convert(asked(tmp_path, iteration="", target=str(tmp_path / "fresh")))
    assert (tmp_path / "fresh/latest_universal").read_text() == "global_step0_universal"
    tracker.write_text("mine")
    with pytest.raises(TargetError, match="is not the tag of a step, such as global_step40_universal: 'mine'. Remove"):
        convert(asked(tmp_path, iteration="50"))


def test_a_killed_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(tmp_path, target=str(tmp_path / "out" / TAG))
    stop_before_commit(monkeypatch, request)
    count = len(read(tmp_path / "out" / f"{TAG}.reshard-partial"))
    assert outcomes(convert(request)) == ["resumed"] * count
    assert outcomes(convert(request)) == ["resumed"] * count
    assert read(tmp_path / "out" / TAG)["zero/scale/fp32.pt"] == {"param": MODEL["scale"]}


def test_a_begun_conversion_is_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(tmp_path, target=str(tmp_path / "out" / TAG))
    stop_before_commit(monkeypatch, request)
    begun = tmp_path / "out" / f"{TAG}.reshard-partial"
    unfinished = begun / "zero/scale/.fp32.pt.0123abcd.tmp"
    unfinished.write_bytes(b"begun")
    assert len(clean(str(tmp_path / "out")).found) == 1
    assert clean(str(tmp_path / "out"), remove=True).removed
    assert list((tmp_path / "out").iterdir()) == []


def test_another_plan_leaves_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "out" / TAG)
    stop_before_commit(monkeypatch, asked(tmp_path, target=place))
    (tmp_path / "out" / f"{TAG}.reshard-partial/zero/scale/.fp32.pt.0123abcd.tmp").write_bytes(b"begun")
    convert(asked(tmp_path, target=place, exclude=["*scale"], overwrite=True))
    assert {path.name for path in (tmp_path / "out" / TAG / "zero").iterdir()} == {
        *("emb.weight", "norm.weight", "frozen.weight", "optimizer_state.pt")
    }


def test_what_no_conversion_wrote_is_not_replaced(tmp_path: Path) -> None:
    convert(asked(tmp_path))
    zero = tmp_path / "out" / TAG / "zero"
    (zero / "emb.weight/notes.txt").write_text("mine")
    with pytest.raises(TargetError, match=r"holds foreign files \(zero/emb\.weight/notes\.txt\)"):
        convert(asked(tmp_path, optimizer_step=39, overwrite=True))
    (zero / "emb.weight/notes.txt").unlink()
    convert(asked(tmp_path, optimizer_step=39, overwrite=True))
    assert read(zero.parent)["zero/scale/step.pt"] == ("Float32", (), struct.pack("<f", 39))


def test_damage_is_found_and_mended(tmp_path: Path) -> None:
    request = asked(tmp_path)
    convert(request)
    target = tmp_path / "out" / TAG
    assert verify_target(str(target), VerifyLevel.CONTENT).problems == ()
    for name in ("zero/emb.weight/exp_avg.pt", "zero/emb.weight/step.pt", "zero/optimizer_state.pt", *MODEL_FILES):
        damage(target / name)
        [problem] = verify_target(str(target), VerifyLevel.CHECKSUM).problems
        assert name in problem
        assert outcomes(convert(request)).count("written") == 1
    (target / "zero/other").mkdir()
    (target / "zero/other/fp32.pt").write_bytes(b"other")
    [problem] = verify_target(str(target), VerifyLevel.STRUCTURE).problems
    assert "zero/other/fp32.pt: does not belong to this checkpoint" in problem


WEIGHT_FILE = "zero/w/fp32.pt"


@pytest.mark.parametrize(
    ("path", "root", "reason"),
    [
        (WEIGHT_FILE, {"parax": TensorPlace("w")}, "has no tensor in the place of parameter 'w'"),
        (WEIGHT_FILE, [TensorPlace("w")], "has no tensor in the place of parameter 'w'"),
        (WEIGHT_FILE, {"param": TensorPlace("w", (3, 1))}, "'w' should be Float32 [3] there, it is Float32 [3, 1]"),
        (MODEL_FILES[0], {"module": {"param": TensorPlace("w")}}, "has ['param'] in place of ['w']"),
        (MODEL_FILES[1], {"module": TensorPlace("w")}, "has [] in place of ['w']"),
        (MODEL_FILES[1], {"module": {"w": [TensorPlace("w")]}}, "has no tensor in the place of parameter 'w'"),
    ],
)
def test_a_file_of_other_tensors_is_found(path: str, root: object, reason: str, tmp_path: Path) -> None:
    entry = OutputEntry("w", dtype_from_name("Float32"), (3,))
    (tmp_path / "fp32.pt").write_bytes(written(root, {"w": (entry, bytes(12))}))
    parameter = ParameterRecord(name="w", dtype="Float32", shape=(3,), digest="")
    record = ShardRecord(
        identity="",
        rank=0,
        file=path,
        size_bytes=0,
        copy_of=None,
        source_ranks=(0,),
        read_bytes=0,
        seconds=0,
        heads=(),
        parameters=(parameter,),
    )
    with closing(open_source(parse_url(str(tmp_path / "fp32.pt")))) as file, pytest.raises(CheckpointError) as error:
        SIDE.read_index(file, record)
    assert reason in str(error.value)


def test_a_plan_as_a_file(tmp_path: Path) -> None:
    plan = make_plan(asked(tmp_path))
    (tmp_path / "plan").write_bytes(dump_plan(plan))
    again = load_plan(str(tmp_path / "plan"), plan_identity(plan))
    assert again.inputs.layout == plan.inputs.layout
    for field, value in {"iteration": -1, "optimizer_step": 1 << 25, "tracked": None}.items():
        fields = plan.inputs.layout.plan_fields()["universal"] | {field: value}
        if field == "tracked":
            del fields[field]
        with pytest.raises((ValueError, KeyError)):
            SIDE.from_plan({"universal": fields})


KILLED_AT = """
import os, signal, sys
from reshard.core.conversion.convert import convert
from reshard.core.conversion.rank_work import RankWork
from reshard.core.request.conversion import build_request

make, done = RankWork.make, []

def step(work, unit):
    done.append(unit.rank)
    if len(done) == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return make(work, unit)

RankWork.make = step
source, target = sys.argv[1:]
convert(build_request(source=source, target=target, layout="universal", iteration="40", optimizer_step=38, workers=1))
"""


def test_a_killed_process_goes_on(tmp_path: Path) -> None:
    request = asked(tmp_path, workers=1, verify="checksum")
    ended = subprocess.run(
        [sys.executable, "-c", KILLED_AT, request.source, request.target], env=dict(os.environ), check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "out/latest_universal").exists()
    done = outcomes(convert(request))
    assert 0 < done.count("resumed") < len(done)
    assert read(tmp_path / "out" / TAG)["zero/emb.weight/exp_avg.pt"] == {"param": MODEL["exp_avg.emb.weight"]}
    assert read_safetensors(Path(request.source)) == MODEL

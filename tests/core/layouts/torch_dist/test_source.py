"""Checkpoints that Megatron-Core 0.16.1 wrote (`torch_dist`), read without it; see each fixture's case.json."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import convert_latest
from reshard.core.errors import InputError
from reshard.core.layouts.registry import TargetLayout
from reshard.core.request.conversion import build_request
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.source.description import describe
from tests.support.checkpoints import Contents, read_safetensors
from tests.support.dcp import DcpCase, saved_tensor, torch_names
from tests.support.diagnosed import diagnose
from tests.support.megatron import ITERATION, SMALL, MegatronCase, megatron_case

DENSE = megatron_case("dist_tp2_pp2_optimizer")
BUCKETS = megatron_case("dist_dp2_dp_reshardable")
QKV = "decoder.layers.self_attention.linear_qkv.weight"
CASES = ("dist_moe_numbered_pp2", "dist_moe_tp2_ep2", "dist_tp2_pp2_optimizer")
FILE = "model.safetensors"


def converted(source: Path, target: Path, **options: object) -> Contents:
    convert(build_request(source=str(source), target=str(target), layout="unified", verify="content", **options))
    return read_safetensors(target / FILE)


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_the_model_on_one_rank(name: str, tmp_path: Path) -> None:
    case = megatron_case(name)
    assert converted(case.source, tmp_path / "out") == case.want
    assert converted(case.iteration / "metadata.json", tmp_path / "other", check_crc=True) == case.want


def test_buckets_of_an_optimizer_are_refused_and_can_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        converted(BUCKETS.source, tmp_path / "out")
    [headline, *problems] = str(refused.value).splitlines()
    assert headline.endswith("cannot be converted")
    assert len(problems) == 1
    assert problems[0].endswith(
        "bucket_idx_0.param' and 2 others: optimizer state in buckets (dp_reshardable), of which only its training "
        "knows the order. Leave out all training state, select='weights-only'"
    )
    assert converted(BUCKETS.source, tmp_path / "weights", select="weights-only") == BUCKETS.weights


def test_what_is_not_a_tensor_is_left_out_with_notes(tmp_path: Path) -> None:
    notes = convert(build_request(source=str(SMALL.source), target=str(tmp_path / "out"), workers=2)).notes
    assert notes[0] == "common.pt, with Megatron's arguments and schedules, is only taken into targets of Megatron"
    assert notes[1].startswith("left out: 4 objects of Python, which only PyTorch can read: decoder.layers.")
    description = describe(str(SMALL.source))
    assert (description["kind"], description["notes"]) == ("torch_dist checkpoint", [notes[0]])
    assert description["ignored"] == []
    assert "torch_dist, 8 files" in diagnose(str(SMALL.source)).facts[0][1]


def change_metadata_of(source: Path, change: Callable[[Any], object]) -> None:
    with torch_names():
        metadata = pickle.loads((source / ".metadata").read_bytes())
        change(metadata)
        (source / ".metadata").chmod(0o600)
        (source / ".metadata").write_bytes(pickle.dumps(metadata, protocol=4))


def stacked(directory: Path, tensors: dict[str, np.ndarray[Any, Any]], shards: int = 2) -> Path:
    """A directory of `torch_dist` in which each file has some layers of every tensor."""
    save_file(tensors, directory / "stacked.safetensors")
    convert(
        build_request(
            source=str(directory / "stacked.safetensors"), target=str(directory / "src"), layout="dcp", shards=shards
        )
    )
    shutil.rmtree(directory / "src/.reshard")
    for name in ("common.pt", "metadata.json"):
        shutil.copy(SMALL.source / name, directory / "src" / name)
    return directory / "src"


@pytest.mark.parametrize("check_crc", [False, True])
def test_a_chunk_may_have_several_layers_and_experts(tmp_path: Path, check_crc: bool) -> None:
    numbers = np.random.default_rng(1)
    weight = numbers.standard_normal((5, 4, 6), np.float32)
    experts = numbers.standard_normal((5, 3, 4, 2), np.float32)
    tensors = {QKV: weight, "decoder.layers.mlp.experts.experts.linear_fc2.weight": experts, "head": weight[0]}
    source = stacked(tmp_path, tensors)
    expected = {"head": weight[0]}
    for layer in range(5):
        expected[f"decoder.layers.{layer}.self_attention.linear_qkv.weight"] = weight[layer]
        for expert in range(3):
            name = f"decoder.layers.{layer}.mlp.experts.local_experts.{expert}.linear_fc2.weight"
            expected[name] = experts[layer, expert]
    got = converted(source, tmp_path / "out", check_crc=check_crc)
    assert got == {name: ("Float32", each.shape, each.tobytes()) for name, each in expected.items()}


@pytest.mark.parametrize("strides", [(12, 1, 3), (1, 8, 2)], ids=["transposed layers", "layers in turn"])
def test_layers_of_a_strided_chunk(strides: tuple[int, ...], tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32)
    source = stacked(tmp_path, {"decoder.layers.a": np.zeros((2, 3, 4), np.float32)}, shards=1)
    data = saved_tensor(values.tobytes(), "FloatStorage", 4, (2, 3, 4), strides)
    (source / "__0_0.distcp").chmod(0o600)
    (source / "__0_0.distcp").write_bytes(data)

    def change(metadata: Any) -> None:
        for place in metadata.storage_data.values():
            place.__dict__["length"] = len(data)

    change_metadata_of(source, change)
    layers = np.lib.stride_tricks.as_strided(values, (2, 3, 4), [4 * stride for stride in strides])
    assert converted(source, tmp_path / "out") == {
        f"decoder.layers.{number}.a": ("Float32", (3, 4), layers[number].tobytes()) for number in range(2)
    }


def test_halves_of_a_gated_matrix_are_joined(tmp_path: Path) -> None:
    halves = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    name = "decoder.layers.0.mlp.experts.experts.1.linear_fc1.weight"
    source = stacked(tmp_path, {f"{name}_w": halves[0], f"{name}_v": halves[1]}, shards=1)
    made = converted(source, tmp_path / "out")
    assert made == {
        "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight": ("Float32", (6, 4), halves.tobytes())
    }


def test_state_under_the_name_of_another_weight_is_refused(tmp_path: Path) -> None:
    """Megatron-Core 0.16.1 saves it with several buckets."""
    weights = np.random.default_rng(1).standard_normal((2, 4, 6)).astype(np.float32)
    state = {"optimizer.state.param.a": weights[0], "optimizer.state.param.b": weights[1]}
    for place, names in (("right", ("a", "b")), ("wrong", ("b", "a"))):
        (tmp_path / place).mkdir()
        rounded = {name: each.astype(ml_dtypes.bfloat16) for name, each in zip(names, weights, strict=True)}
        stacked(tmp_path / place, {**rounded, **state})
    assert len(converted(tmp_path / "right/src", tmp_path / "out")) == 4
    with pytest.raises(InputError) as refused:
        converted(tmp_path / "wrong/src", tmp_path / "other")
    assert (
        "'optimizer.state.param.a' and 1 other: optimizer state under names of other weights, as "
        "'optimizer.state.param.a' is not 'a' in float32; Megatron-Core 0.16 may save it so"
    ) in str(refused.value)
    assert len(converted(tmp_path / "wrong/src", tmp_path / "weights", select="weights-only")) == 2


ROWS = np.zeros((2, 3), np.float32)
CONTRADICTIONS = {
    "stacked and numbered": (
        {"decoder.layers.a": ROWS, "decoder.layers.1.a": ROWS[0]},
        "parameter 'decoder.layers.1.a' is in 'decoder.layers.1.a' and in 'decoder.layers.a'",
    ),
    "two numbers of layers": (
        {"decoder.layers.a": ROWS, "decoder.layers.b": ROWS.T.copy()},
        "parameter 'decoder.layers.b' has 3 of 'decoder.layers.', 'decoder.layers.a' has 2",
    ),
    "no axis of layers": (
        {"decoder.layers.mlp.experts.experts.a": ROWS[0]},
        "'decoder.layers.mlp.experts.experts.a' has the shape [3]: its first 2 axes should be layers and experts",
    ),
    "one half": (
        {"a.linear_fc1.weight_w": ROWS},
        "parameter 'a.linear_fc1.weight' is in 'a.linear_fc1.weight_w', which should be two halves of equal shapes",
    ),
    "a half and the whole": (
        {"a.linear_fc1.weight_w": ROWS, "a.linear_fc1.weight": ROWS},
        "parameter 'a.linear_fc1.weight' is in 'a.linear_fc1.weight' and in 'a.linear_fc1.weight_w'",
    ),
    "two optimizers of one weight": (
        {"optimizer.state.exp_avg.a": ROWS, "chained_1.optimizer.state.exp_avg.a": ROWS},
        "parameter 'optimizer.state.exp_avg.a' is in ",
    ),
    "state of no weight": (
        {"optimizer.state.exp_avg.a": ROWS},
        "parameter 'optimizer.state.exp_avg.a': optimizer state of no weight",
    ),
    "flattened state": (
        {"a": ROWS, "optimizer.state.exp_avg.a": ROWS.reshape(6)},
        "parameter 'optimizer.state.exp_avg.a': optimizer state of the shape [6], but its weight is [2, 3]",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_refused(name: str, tmp_path: Path) -> None:
    tensors, message = CONTRADICTIONS[name]
    source = stacked(tmp_path, tensors, shards=1)
    with pytest.raises(InputError) as refused:
        converted(source, tmp_path / "out")
    assert message in str(refused.value)


def change_config(**fields: object) -> Callable[[DcpCase], None]:
    def change(case: DcpCase) -> None:
        path = case.source / "metadata.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def as_of_older_releases(case: DcpCase) -> None:
    """Give the metadata Megatron's own class."""
    path = case.source / ".metadata"
    module, name = b"megatron.core.dist_checkpointing.strategies.torch", b"MCoreMetadata"
    texts = [b"\x8c" + bytes([len(text)]) + text + b"\x94" for text in (module, name)]
    data = path.read_bytes()
    changed = data.replace(b"\x8c%torch.distributed.checkpoint.metadata\x94\x8c\x08Metadata\x94", b"".join(texts), 1)
    assert changed != data
    path.write_bytes(changed)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda case: (case.source / "metadata.json").unlink(),
            "has Megatron's common.pt, but no metadata.json: it was not saved completely, or not all of it was copied",
        ),
        (lambda case: (case.source / "metadata.json").write_text("{"), "metadata.json: is not valid JSON: "),
        (lambda case: (case.source / "metadata.json").write_text("[]"), "sharded_backend is None, version None"),
        (change_config(sharded_backend="zarr"), "sharded_backend is 'zarr', version 1: reshard reads torch_dist"),
        (change_config(sharded_backend_version=2), "sharded_backend is 'torch_dist', version 2"),
        (
            as_of_older_releases,
            "has classes of Megatron's own, as Megatron-Core 0.15 and earlier releases write them",
        ),
    ],
)
def test_what_is_not_as_megatron_saves_it_is_refused(harm: Any, message: str, tmp_path: Path) -> None:
    case = SMALL.copied(tmp_path / "case")
    harm(case)
    with pytest.raises(InputError) as refused:
        convert(case.request(tmp_path / "out"))
    assert message in str(refused.value)


class TestIterations:
    @pytest.fixture
    def training(self, tmp_path: Path) -> Path:
        """Iterations 3, 4 and 5: the tracker names 4, the last one is not complete."""
        root = tmp_path / "training"
        case = MegatronCase(DENSE.directory)
        for number in (3, 4, 5):
            shutil.copytree(case.iteration, root / f"iter_{number:07d}")
        (root / "latest_checkpointed_iteration.txt").write_text("4")
        (root / "iter_0000005/metadata.json").unlink()
        for path in root.rglob("*"):
            os.utime(path, (0, 0))  # nothing is being written
        return root

    def test_the_one_that_the_tracker_names_is_read(self, training: Path, tmp_path: Path) -> None:
        report = convert(build_request(source=str(training), target=str(tmp_path / "out"), select="weights-only"))
        assert report.notes[0] == "iteration 5 is newer, but skipped: it is incomplete: metadata.json is missing"
        assert describe(str(training))["step"] == 4

    def test_without_a_tracker_it_is_the_newest_complete_one(self, training: Path, tmp_path: Path) -> None:
        (training / "latest_checkpointed_iteration.txt").unlink()
        notes = convert(build_request(source=str(training), target=str(tmp_path / "out"))).notes
        assert notes[:2] == (
            "there is no latest_checkpointed_iteration.txt: iteration 4 is the newest complete one",
            "iteration 5 is skipped: metadata.json is missing",
        )

    @pytest.mark.parametrize(
        ("tracked", "options", "message"),
        [
            ("7", {}, "names iteration 7, which is not there; there are 5, 4, 3: name one with 'step'"),
            ("4", {"step": "6"}, "has no iteration 6; it has 5, 4, 3"),
            ("4", {"step": "5"}, "iter_0000005: has Megatron's common.pt, but no metadata.json"),
            ("4", {"source_prefix": "net"}, "is a torch_dist checkpoint, without steps or prefixes"),
        ],
    )
    def test_others_are_refused(
        self, tracked: str, options: dict[str, object], message: str, training: Path, tmp_path: Path
    ) -> None:
        (training / "latest_checkpointed_iteration.txt").write_text(tracked)
        with pytest.raises(InputError) as refused:
            convert(build_request(source=str(training), target=str(tmp_path / "out"), **options))
        assert message in str(refused.value)

    def test_a_tracked_one_that_is_not_there_is_told(self, training: Path, tmp_path: Path) -> None:
        (training / "latest_checkpointed_iteration.txt").write_text("7")
        request = LatestConversionRequest(source=str(training), target=str(tmp_path / "out"), dry_run=True)
        [note, *_] = convert_latest(request).notes
        assert note == "step 7 is skipped: latest_checkpointed_iteration.txt names it, and it is not there"

    def test_they_are_converted_as_they_come(self, training: Path, tmp_path: Path) -> None:
        request = LatestConversionRequest(
            source=str(training), target=str(tmp_path / "out"), layout=TargetLayout.UNIFIED
        )
        report = convert_latest(request)
        assert report.step == "4"
        assert report.notes[0].startswith("step 5 is skipped: metadata.json is not there yet")
        assert read_safetensors(tmp_path / "out/4" / FILE) == DENSE.want


def test_a_release_counts_as_number_0(tmp_path: Path) -> None:
    shutil.copytree(DENSE.iteration, tmp_path / "src/release")
    assert describe(str(tmp_path / "src"))["step"] == 0
    (tmp_path / "src/latest_checkpointed_iteration.txt").write_text("release")
    assert converted(tmp_path / "src", tmp_path / "out") == DENSE.want
    shutil.copytree(DENSE.iteration, tmp_path / "src/iter_0000007")
    assert describe(str(tmp_path / "src"))["step"] == 0


def test_no_iteration_is_complete(tmp_path: Path) -> None:
    shutil.copytree(DENSE.source, tmp_path / "src")
    (tmp_path / "src" / "latest_checkpointed_iteration.txt").unlink()
    (tmp_path / "src" / ITERATION / "metadata.json").unlink()
    with pytest.raises(InputError, match="no iteration is complete: iteration 3 is skipped: metadata.json is missing"):
        convert(build_request(source=str(tmp_path / "src"), target=str(tmp_path / "out")))

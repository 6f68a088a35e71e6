"""The benchmarks' own files: readable by others, and a wrong target is noticed."""

import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from benchmarks.contenders import CHECKSUM, FROM_MEGATRON, FROM_MEGATRON_NONE, NONE, TO_MEGATRON, Job
from benchmarks.errors import BenchmarkError
from benchmarks.files import _check_rank, check_target, write_checkpoint, write_config, write_strategies
from benchmarks.models import (
    BFLOAT16,
    Model,
    Side,
    blocks,
    experts_transformer,
    fused_transformer,
    megatron_transformer,
    transformer,
    whole_values,
)
from reshard.core.conversion.convert import convert
from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat
from reshard.core.request.conversion import ConversionRequest
from tests.support.checkpoints import read_rank, write_safetensors


@pytest.fixture(scope="module")
def model() -> Model:
    return transformer(hidden=16, layers=1, feed_forward=32, vocabulary=64)


@pytest.fixture(scope="module")
def converted(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("converted")
    write_checkpoint(model, CheckpointFormat.CKPT, directory / "source")
    write_strategies(model, directory)
    convert(
        ConversionRequest(
            source=str(directory / "source"),
            target=str(directory / "target"),
            source_strategy=str(directory / "source_strategy.ckpt"),
            target_strategy=str(directory / "target_strategy.ckpt"),
        )
    )
    return directory / "target"


@pytest.fixture
def target(converted: Path, tmp_path: Path) -> Path:
    return shutil.copytree(converted, tmp_path / "target")


@pytest.mark.parametrize("format", SELF_CONTAINED)
def test_a_source_holds_the_generated_values(model: Model, tmp_path: Path, format: CheckpointFormat) -> None:
    write_checkpoint(model, format, tmp_path / "source")
    for rank in model.ranks(Side.SOURCE):
        found = read_rank(tmp_path / "source", rank)
        assert list(found) == [parameter.name for parameter in model.parameters] or format != CheckpointFormat.CKPT
        for parameter in model.parameters:
            box = parameter.box(Side.SOURCE, rank)
            wanted = np.concatenate(list(blocks(parameter, box))).tobytes()
            assert found[parameter.name] == ("Float32", box.shape, wanted)


def test_a_right_target_passes(model: Model, target: Path) -> None:
    check_target(model, target)


def test_one_wrong_byte_is_noticed(model: Model, target: Path) -> None:
    [path] = (target / "rank_2").glob("*.ckpt")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(BenchmarkError, match=r"adam_v\.model\.output\.weight holds other values"):
        _check_rank(model, 2, target / "rank_2")


def test_another_ranks_file_is_noticed(model: Model, target: Path) -> None:
    with pytest.raises(BenchmarkError, match="holds other values"):
        _check_rank(model, 1, target / "rank_2")


def test_a_missing_rank_is_noticed(model: Model, target: Path) -> None:
    (target / "rank_3").rename(target / "elsewhere")
    with pytest.raises(BenchmarkError, match="not .*rank_3"):
        check_target(model, target)


@pytest.mark.parametrize("kind", ["fused", "experts"])
def test_a_right_export_passes_and_a_wrong_byte_or_name_is_noticed(tmp_path: Path, kind: str) -> None:
    exported = {
        "fused": lambda: fused_transformer(hidden=256, layers=1, feed_forward=24, vocabulary=64),
        "experts": lambda: experts_transformer(hidden=128, layers=1, experts=8, expert_hidden=24, vocabulary=64),
    }[kind]()
    assert exported.export is not None
    job = Job(tmp_path, exported.first_with_same_content(Side.SOURCE), export_options=exported.export.options)
    write_checkpoint(exported, CheckpointFormat.CKPT, job.source(CheckpointFormat.CKPT))
    write_strategies(exported, tmp_path)
    write_config(exported.export, job.like)
    subprocess.run(CHECKSUM.command(job), check=True, capture_output=True)
    check_target(exported, job.target)

    [path] = job.target.glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(BenchmarkError, match="holds other values than it should"):
        check_target(exported, job.target)
    path.write_bytes(bytes(data).replace(b"model.norm.weight", b"model.none.weight"))
    with pytest.raises(BenchmarkError, match="has other parameters"):
        check_target(exported, job.target)


def test_an_export_may_be_cast_and_another_rounding_is_noticed(tmp_path: Path) -> None:
    exported = fused_transformer(hidden=256, layers=1, feed_forward=24, vocabulary=64)
    assert exported.export is not None
    target = tmp_path / "target"
    target.mkdir()
    whole = {each.name: each.part(whole_values(each.source)) for each in exported.export.parameters}
    bits = {name: values.astype(ml_dtypes.bfloat16).view(np.uint16) for name, values in whole.items()}
    contents = {name: ("BFloat16", each.shape, each.tobytes()) for name, each in bits.items()}
    write_safetensors(target / "model.safetensors", contents)
    check_target(exported, target, BFLOAT16)

    with pytest.raises(BenchmarkError, match="is BFloat16 .*, not "):
        check_target(exported, target)
    truncated = {name: (values.view(np.uint32) >> 16).astype(np.uint16) for name, values in whole.items()}
    wrong = {name: ("BFloat16", each.shape, each.tobytes()) for name, each in truncated.items()}
    write_safetensors(target / "model.safetensors", wrong)
    with pytest.raises(BenchmarkError, match="holds other values than it should"):
        check_target(exported, target, BFLOAT16)


def test_both_ways_of_megatron_pass_and_a_wrong_rank_is_noticed(tmp_path: Path) -> None:
    model = megatron_transformer(hidden=1024, layers=2, feed_forward=64, vocabulary=64)
    assert model.export is not None
    assert FROM_MEGATRON_NONE.preparation is not None
    job = Job(tmp_path, model.first_with_same_content(Side.SOURCE), export_options=model.export.options)
    write_checkpoint(model, CheckpointFormat.CKPT, job.source(CheckpointFormat.CKPT))
    write_strategies(model, tmp_path)
    write_config(model.export, job.like)
    for command in (FROM_MEGATRON_NONE.preparation(job), NONE.command(job)):
        subprocess.run(command, check=True, capture_output=True)
    job.target.rename(job.copied)
    for contender in (FROM_MEGATRON, TO_MEGATRON):
        shutil.rmtree(job.target, ignore_errors=True)
        subprocess.run(contender.command(job), check=True, capture_output=True)
        check_target(model, job.target)
    first, second = (job.target / f"release/mp_rank_0{rank}_000/model_optim_rng.pt" for rank in (0, 1))
    first.unlink()
    shutil.copy(second, first)
    with pytest.raises(BenchmarkError, match="mp_rank_00_000/model_optim_rng.pt: .* holds other values"):
        check_target(model, job.target)

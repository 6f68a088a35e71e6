"""The benchmarks' own files: readable by others, and a wrong target is noticed."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.files import _check_rank, check_target, write_checkpoint, write_strategies
from benchmarks.models import Model, Side, blocks, transformer
from reshard.core.checkpoint.model import SELF_CONTAINED, CheckpointFormat
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import ConversionRequest
from tests.support.checkpoints import read_rank


@pytest.fixture(scope="module")
def model() -> Model:
    return transformer(hidden=16, layers=1, feed_forward=32, vocabulary=64)


@pytest.fixture
def target(model: Model, tmp_path: Path) -> Path:
    write_checkpoint(model, CheckpointFormat.CKPT, tmp_path / "source")
    write_strategies(model, tmp_path)
    convert(
        ConversionRequest(
            source=str(tmp_path / "source"),
            target=str(tmp_path / "target"),
            source_strategy=str(tmp_path / "source_strategy.ckpt"),
            target_strategy=str(tmp_path / "target_strategy.ckpt"),
        )
    )
    return tmp_path / "target"


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

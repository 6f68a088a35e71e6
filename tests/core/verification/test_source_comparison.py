"""Finished conversions compared with their sources, which may be missing or changed."""

import shutil
from pathlib import Path

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case
from tests.support.spoiling import copied, file_of, spoil

FOUR_TO_THREE = case(7009)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def content(url: Path) -> tuple[str, ...]:
    return verify_target(str(url), VerifyLevel.CONTENT).problems


@pytest.mark.parametrize("lost", ["gone", "changed"])
def test_a_source_that_is_not_there_any_more(target: Path, tmp_path: Path, lost: str) -> None:
    source = copied(FOUR_TO_THREE, tmp_path / "src")
    convert(FOUR_TO_THREE.request(target, source=str(source)))
    if lost == "gone":
        shutil.rmtree(source)
        message = "which no longer exists"
    else:
        spoil(file_of(source, 1), "layers.0.weight_0")
        message = "which has changed"
    with pytest.raises(InputError) as caught:
        content(target)
    assert str(caught.value).startswith(f"{target}: its values are to be compared with those of {source}, {message}")
    assert "`level='checksum'`, which needs only the checkpoint itself" in str(caught.value)
    assert verify_target(str(target), VerifyLevel.CHECKSUM).problems == ()


def test_a_conversion_without_its_plan(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    (target / ".reshard/plan.json.gz").unlink()
    with pytest.raises(InputError, match="has no plan beside it, which would name the values"):
        content(target)

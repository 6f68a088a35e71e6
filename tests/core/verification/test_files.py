"""One rank's file checked against its record: every changed bit is found."""

from pathlib import Path

import numpy as np
import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.storage.urls import parse_url
from reshard.core.target.workspace import Workspace
from reshard.core.verification.files import verify_rank
from tests.support.checkpoints import case

FOUR_TO_THREE = case(7009)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize("options", [{}, {"write_crc": True}])
@pytest.mark.parametrize("format", ["ckpt", "safetensors"])
def test_verification_finds_any_flipped_bit(target: Path, format: str, options: dict[str, object]) -> None:
    """Also where it changes neither a name nor a number: in a key of the header that nobody looks at, say."""
    report = convert(FOUR_TO_THREE.request(target, format=format, **options))
    location = parse_url(str(target))
    record = Workspace(location, report.identity).read_record(0)
    file = target / "rank_0" / f"checkpoint_0.{format}"
    written = file.read_bytes()
    generator = np.random.default_rng(0)
    for place in [*range(min(500, len(written))), *generator.integers(0, len(written), 50)]:
        damaged = bytearray(written)
        damaged[place] ^= 1 << int(generator.integers(0, 8))
        file.write_bytes(damaged)
        assert verify_rank(location, record, VerifyLevel.CHECKSUM).problems, place

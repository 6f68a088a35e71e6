"""Finished conversions checked against manifest and records: each kind of damage is reported."""

import json
import shutil
from pathlib import Path

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case
from tests.support.records import change_record

FOUR_TO_THREE = case(7009)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_verification_finds_a_flipped_bit_and_a_missing_file(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems
    file = target / "rank_1" / "checkpoint_1.ckpt"
    data = bytearray(file.read_bytes())
    data[-3] ^= 0x10
    file.write_bytes(data)
    (target / "rank_2" / "checkpoint_2.ckpt").unlink()
    [flipped, missing] = verify_target(str(target), VerifyLevel.CHECKSUM).problems
    assert "checkpoint_1.ckpt: parameter" in flipped
    assert "its bytes are not those that were written" in flipped
    assert "checkpoint_2.ckpt: cannot read it: no such file" in missing
    assert len(verify_target(str(target), VerifyLevel.STRUCTURE).problems) == 1


def test_verifying_what_was_never_converted(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a finished conversion"):
        verify_target(str(tmp_path), VerifyLevel.STRUCTURE)


def test_verification_finds_files_that_do_not_belong(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    (target / "rank_0" / "zzz.ckpt").write_bytes(b"")
    (target / "rank_9").mkdir()
    (target / "rank_9" / "x.ckpt").write_bytes(b"")
    problems = verify_target(str(target), VerifyLevel.STRUCTURE).problems
    assert [problem.split(": ")[0].removeprefix(str(target)) for problem in problems] == [
        "/rank_0/zzz.ckpt",
        "/rank_9/x.ckpt",
    ]


def test_verification_finds_that_a_rank_was_taken_out_of_the_manifest(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    manifest = target / ".reshard" / "manifest.json"
    change_record(manifest, ranks=json.loads(manifest.read_text())["ranks"][:2])
    shutil.rmtree(target / "rank_2")
    [problem, of_record] = verify_target(str(target), VerifyLevel.STRUCTURE).problems
    assert problem.endswith("its manifest lists 2 of 3 ranks: it was changed")
    assert of_record.endswith("rank_2.json: does not belong to this checkpoint's records")


def test_verifying_with_a_damaged_record(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target))
    record = target / ".reshard" / "records" / "rank_1.json"
    record.write_text(record.read_text().replace('"rank"', '"rnk"'))
    (target / ".reshard" / "records" / "rank_2.json").unlink()
    [damaged, missing] = verify_target(str(target), VerifyLevel.CHECKSUM).problems
    assert "rank_1.json: not a readable record" in damaged
    assert "rank_2.json: cannot read it" in missing

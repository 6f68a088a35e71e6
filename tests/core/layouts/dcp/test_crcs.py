"""CRCs of a DCP source's tensors, checked as a conversion reads them."""

import io
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import describe_plan
from reshard.core.conversion.report import Outcome
from reshard.core.errors import InputError
from reshard.core.runtime.progress import reporting_to
from reshard.core.storage.reading import SourceFile, open_source
from reshard.core.storage.urls import Location
from tests.core.layouts.dcp.test_catalog import strategy_of
from tests.support.checkpoints import read_safetensors, read_tree
from tests.support.conversions import stop_before_commit
from tests.support.dcp import DcpCase, dcp_case, torch_names
from tests.support.diagnosed import diagnose
from tests.support.loading import load_rank
from tests.support.phases import Phases

UNEVEN = dcp_case("fsdp_uneven")
ONE_FILE = "model.safetensors"
DAMAGED = "model.head.weight"


@pytest.fixture
def case(tmp_path: Path) -> DcpCase:
    """A copy with a tensor of which a bit is flipped."""
    case = UNEVEN.copied(tmp_path / "case")
    flip_value(case, DAMAGED)
    return case


def flip_value(case: DcpCase, name: str) -> None:
    """Damage a byte of a tensor's values, in the middle of its storage."""
    with torch_names():
        metadata = pickle.loads((case.source / ".metadata").read_bytes())
    place = next(each for index, each in metadata.storage_data.items() if index.fqn == name)
    path = case.source / place.relative_path
    content = bytearray(path.read_bytes())
    record = zipfile.ZipFile(io.BytesIO(content[place.offset :][: place.length])).getinfo("archive/data/0")
    name_bytes, extra_bytes = struct.unpack_from("<2H", content, place.offset + record.header_offset + 26)
    start = place.offset + record.header_offset + 30 + name_bytes + extra_bytes
    content[start + record.file_size // 2] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_is_found_by_the_crc(case: DcpCase, tmp_path: Path) -> None:
    said = r"distcp: parameter 'model\.head\.weight': its \d+ bytes at \d+ have the CRC-32 0x.*, the file says 0x.*"
    with pytest.raises(InputError, match=said + r": damaged\. .*\.reshard-partial holds what was made of"):
        convert(case.request(tmp_path / "checked"))
    assert not (tmp_path / "checked").exists()
    with pytest.raises(InputError, match=said):
        describe_plan(case.request(tmp_path / "out"))
    with pytest.raises(InputError, match=said):
        load_rank(str(case.source))
    assert diagnose(str(case.source)).fits  # it reads headers only
    report = convert(case.request(tmp_path / "out", layout="unified", check_crc=False))
    assert report.crc_bytes == 0
    made = read_safetensors(tmp_path / "out" / ONE_FILE)
    assert [name for name in made if made[name] != case.whole[name]] == [DAMAGED]


@pytest.mark.parametrize("name", ["dp_tp", "optimizer"])
def test_each_tensor_is_checked_however_it_is_cut(name: str, tmp_path: Path) -> None:
    whole = dcp_case(name).whole
    strategy = strategy_of(whole, tmp_path)
    for number, damaged in enumerate(list(whole)[::4]):
        case = dcp_case(name).copied(tmp_path / f"case-{number}")
        flip_value(case, damaged)
        with pytest.raises(InputError, match="damaged") as refused:
            convert(case.request(tmp_path / "out", target_strategy=strategy, workers=2, overwrite=True))
        assert f"parameter {damaged!r}: its" in str(refused.value)


def test_files_are_not_read_once_more(tmp_path: Path) -> None:
    assert convert(UNEVEN.request(tmp_path / "out", layout="unified")).crc_bytes == 0


def test_a_check_ahead_of_reading_says_how_far_it_is(tmp_path: Path) -> None:
    with reporting_to(Phases()) as listener:
        describe_plan(UNEVEN.request(tmp_path / "out", layout="unified"))
    assert isinstance(listener, Phases)
    [(total, done)] = [(total, done) for phase, total, done in listener.found if phase == "checking CRCs"]
    contents = sum(len(data) for _, _, data in UNEVEN.whole.values())
    stored = sum(path.stat().st_size for path in UNEVEN.source.glob("*.distcp"))
    assert contents < total == done <= stored


def test_what_is_not_converted_is_not_checked(case: DcpCase, tmp_path: Path) -> None:
    report = convert(case.request(tmp_path / "out", layout="unified", exclude=[DAMAGED]))
    assert report.crc_bytes == 0
    made = read_safetensors(tmp_path / "out" / ONE_FILE)
    assert made == {name: each for name, each in case.whole.items() if name != DAMAGED}


class TestResuming:
    def test_what_an_earlier_run_read_is_read_once_more(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        request = UNEVEN.request(tmp_path / "out", layout="dcp", shards=3)
        stop_before_commit(monkeypatch, request)
        report = convert(request)
        assert {rank.outcome for rank in report.ranks} == {Outcome.RESUMED}
        assert report.crc_bytes == sum(len(data) for _, _, data in UNEVEN.whole.values())

    def test_ranks_that_were_done_without_checks(self, case: DcpCase, tmp_path: Path) -> None:
        unchecked = case.request(tmp_path / "out", layout="dcp", shards=3, ranks="0-1", check_crc=False)
        assert not convert(unchecked).committed
        with pytest.raises(InputError, match=DAMAGED):
            convert(case.request(tmp_path / "out", layout="dcp", shards=3, ranks="2"))
        assert not (tmp_path / "out").exists()

    def test_ranks_made_from_a_file_that_was_read_wrong_are_repeated(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        strategy = strategy_of(UNEVEN.whole, tmp_path)
        request = UNEVEN.request(tmp_path / "out", target_strategy=strategy)
        with monkeypatch.context() as patch:
            patch.setattr("reshard.core.transfer.source_files.open_source", _ReadWrong)
            with pytest.raises(InputError, match=r"__0_0.distcp: parameter .*: damaged"):
                convert(request)
        report = convert(request)
        assert Outcome.WRITTEN in {rank.outcome for rank in report.ranks}
        right = UNEVEN.request(tmp_path / "right", target_strategy=strategy)
        convert(right)
        assert read_tree(tmp_path / "out") == read_tree(tmp_path / "right")


class _ReadWrong:
    """A file, read wrong if it is the first one."""

    def __init__(self, location: Location, *_: object) -> None:
        self._file: SourceFile = open_source(location)
        self.location, self.size_bytes, self.version = location, self._file.size_bytes, self._file.version

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._file.read_into(offset, buffer)
        if self.location.name == "__0_0.distcp":
            buffer[:] = bytes(each ^ 1 for each in buffer)

    def close(self) -> None:
        self._file.close()

"""Parts of a rank's file, one a pipeline stage, read as one file; what does not make one is refused."""

import re
import shutil
from pathlib import Path

import fsspec
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, InputError, PlanError
from reshard.core.layouts.survey import survey
from reshard.core.records.catalog_json import catalog_from_json, catalog_to_json
from reshard.core.request.conversion import build_request
from reshard.core.storage.joined import parts_of
from reshard.core.storage.reading import open_source, read_bytes
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import CONVERSIONS, Contents, read_ckpt, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.joining import join_parts
from tests.support.places import FIXTURES
from tests.support.source_directories import build_catalog

CASE = CONVERSIONS / "case_7010"
PARTS = FIXTURES / "subnetwork_parts"


def write(path: Path, **values: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(checkpoint_bytes(*((name, "Int8", (len(value),), value) for name, value in values.items())))


def catalog(path: Path, ranks: int = 1) -> object:
    return build_catalog(str(path), range(ranks), digest=lambda *_: False)


class TestJoinedFile:
    @pytest.fixture
    def joined(self, tmp_path: Path) -> Path:
        for number, content in ((0, b"abc"), (3, b""), (10, b"defgh")):
            (tmp_path / f"x_part{number}.ckpt").write_bytes(content)
        return tmp_path / "x_part{0,3,10}.ckpt"

    def test_reads_over_borders(self, joined: Path) -> None:
        file = open_source(parse_url(str(joined)))
        assert file.size_bytes == 8
        assert file.read_many([(0, 8), (2, 2), (3, 1), (5, 0), (7, 1)]) == [b"abcdefgh", b"cd", b"d", b"", b"h"]
        buffer = bytearray(5)
        file.read_into(1, memoryview(buffer))
        assert buffer == b"bcdef"
        with pytest.raises(InputError, match=r"x_part10\.ckpt: ends at byte 5, earlier than it should"):
            read_bytes(file, 6, 3)
        file.close()

    def test_changes_with_any_part(self, joined: Path) -> None:
        before = open_source(parse_url(str(joined))).version
        (joined.parent / "x_part0.ckpt").write_bytes(b"abcd")
        assert open_source(parse_url(str(joined))).version != before

    def test_a_missing_part_is_named(self, joined: Path) -> None:
        (joined.parent / "x_part3.ckpt").unlink()
        with pytest.raises(Exception, match=r"x_part3\.ckpt"):
            open_source(parse_url(str(joined)))

    @pytest.mark.parametrize("name", ["x_part0.ckpt", "x_part{0}.ckpt", "x{0,1}.ckpt", "x_part{0,a}.ckpt"])
    def test_other_names_are_their_own(self, name: str) -> None:
        assert parts_of(parse_url(f"/nowhere/{name}")) == ()


def test_mindspores_parts_are_one_checkpoint(tmp_path: Path) -> None:
    found = build_catalog(str(PARTS), range(2), digest=lambda *_: False)
    assert found.stage_numbers == (0, 1)
    assert found.records[1].location == str(PARTS / "rank_1/checkpoint_1_part{0,1}.ckpt")
    assert catalog_from_json(catalog_to_json(found)) == found
    assert survey(str(PARTS)).ignored == ()
    want = read_ckpt(CASE / "full/rank_0/full_0.ckpt") if (CASE / "full/rank_0/full_0.ckpt").exists() else None
    convert(
        build_request(
            source=str(PARTS), target=str(tmp_path / "whole"), source_strategy=str(CASE / "dst_strategy.ckpt")
        )
    )
    [whole] = read_tree(tmp_path / "whole").values()
    assert want is not None
    assert whole == want


def test_a_rank_folder_alone(tmp_path: Path) -> None:
    source = str(PARTS / "rank_0")
    whole = convert(build_request(source=source, target=str(tmp_path / "out"), integrated_save="yes"))
    assert whole.committed
    [found] = read_tree(tmp_path / "out").values()
    want: Contents = {}
    for path in (PARTS / "rank_0").iterdir():
        want |= read_ckpt(path)
    assert found == want


class TestRefusals:
    def test_a_parameter_of_two_parts(self, tmp_path: Path) -> None:
        write(tmp_path / "rank_0/a_part0.ckpt", w=b"12", step=b"1")
        write(tmp_path / "rank_0/a_part1.ckpt", v=b"12", step=b"2")
        message = r"a_part0\.ckpt and a_part1\.ckpt: both have parameter 'step', with different contents"
        with pytest.raises(InputError, match=message):
            catalog(tmp_path)
        write(tmp_path / "rank_0/a_part1.ckpt", v=b"12", step=b"12")
        with pytest.raises(InputError, match=r"both have parameter 'step', but differ"):
            catalog(tmp_path)
        for number in (0, 1):
            write(tmp_path / f"rank_0/a_part{number}.ckpt", shared=bytes(2**20 + 1))
        with pytest.raises(InputError, match=r"both have parameter 'shared': stages share it"):
            catalog(tmp_path)

    def test_ranks_with_different_parts(self, tmp_path: Path) -> None:
        for rank, number in ((0, 0), (0, 1), (1, 0)):
            write(tmp_path / f"rank_{rank}/a_part{number}.ckpt", **{f"w{number}": b"1"})
        message = "ranks have files of different stages: stages 0, 1 (rank_0); stages 0 (rank_1)"
        with pytest.raises(CatalogError, match=re.escape(message)):
            catalog(tmp_path, 2)

    def test_parts_beside_the_whole(self, tmp_path: Path) -> None:
        write(tmp_path / "rank_0/a_part0.ckpt", w=b"1")
        write(tmp_path / "rank_0/a.ckpt", w=b"1")
        with pytest.raises(CatalogError, match=r"rank_0 has a file a\.ckpt and stage files \(a_part0\.ckpt\)"):
            catalog(tmp_path)

    def test_a_part_that_is_missing(self, tmp_path: Path) -> None:
        shutil.copytree(PARTS, tmp_path / "parts")
        for rank in (0, 1):
            (tmp_path / f"parts/rank_{rank}/checkpoint_{rank}_part1.ckpt").unlink()
        request = build_request(
            source=str(tmp_path / "parts"),
            target=str(tmp_path / "out"),
            source_strategy=str(CASE / "dst_strategy.ckpt"),
        )
        message = "its files have the parts of stages 0 only, and 4 parameters of its strategy are in none of them"
        with pytest.raises(PlanError, match=message):
            convert(request)
        names = ("layers.0.*", "layers.2.*", "layers.3.*", "adam_m*")
        assert convert(request.model_copy(update={"allow_missing": [*names]})).committed


def test_encrypted_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")
    strategy = str(CASE / "dst_strategy.ckpt")
    for stage in (0, 1):
        request = build_request(
            source=str(CASE / "src"),
            target=str(tmp_path / f"stage{stage}"),
            source_strategy=str(CASE / f"src_stages/strategy_{4 * stage}.ckpt"),
            target_strategy=strategy,
            encrypt_key="env:KEY",
        )
        convert(request)
        for rank in (0, 1):
            shutil.copytree(tmp_path / f"stage{stage}/rank_{rank}", tmp_path / f"in/rank_{rank}", dirs_exist_ok=True)
    again = tmp_path / "again"
    options = {"source_strategy": strategy, "target_strategy": strategy, "format": "ckpt"}
    with pytest.raises(InputError, match="encrypted"):
        convert(build_request(source=str(tmp_path / "in"), target=str(again), **options))
    convert(build_request(source=str(tmp_path / "in"), target=str(again), decrypt_key="env:KEY", **options))
    assert read_tree(again) == read_tree(CASE / "want")
    with pytest.raises(InputError, match=r"stage0: is encrypted, and such parts cannot be joined"):
        join_parts([str(tmp_path / "stage0"), str(tmp_path / "stage1")], str(tmp_path / "joined"))


def test_safetensors_parts(tmp_path: Path) -> None:
    for stage in (0, 1):
        convert(
            build_request(
                source=str(CASE / "src"),
                target=str(tmp_path / f"stage{stage}"),
                source_strategy=str(CASE / f"src_stages/strategy_{4 * stage}.ckpt"),
                target_strategy=str(CASE / "dst_strategy.ckpt"),
                format="safetensors",
            )
        )
        shutil.copytree(tmp_path / f"stage{stage}", tmp_path / "parts", dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "parts/.reshard")
    convert(
        build_request(
            source=str(tmp_path / "parts"),
            target=str(tmp_path / "again"),
            source_strategy=str(CASE / "dst_strategy.ckpt"),
            target_strategy=str(CASE / "dst_strategy.ckpt"),
            format="ckpt",
        )
    )
    assert read_tree(tmp_path / "again") == read_tree(CASE / "want")


def test_remote_parts(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(PARTS), "/parts-of-files", recursive=True)
    strategy = str(CASE / "dst_strategy.ckpt")
    try:
        convert(
            build_request(
                source="memory://parts-of-files",
                target=str(tmp_path / "out"),
                source_strategy=strategy,
                target_strategy=strategy,
            )
        )
    finally:
        memory.rm("/parts-of-files", recursive=True)
    assert read_tree(tmp_path / "out") == read_tree(CASE / "want")


def test_without_a_strategy_missing_parts_are_refused_or_said(tmp_path: Path) -> None:
    for number in (0, 2):
        write(tmp_path / f"rank_0/x_part{number}.ckpt", **{f"w{number}": b"abcd"})
    request = build_request(source=str(tmp_path / "rank_0"), target=str(tmp_path / "out"))
    with pytest.raises(CatalogError, match=r"the parts of stages 0, 2 only, not of 1\. Add them"):
        convert(request)
    (tmp_path / "rank_0/x_part2.ckpt").unlink()
    notes = convert(request).notes
    assert any("the parts of stages 0 only: whether parts of others are missing cannot be known" in n for n in notes)

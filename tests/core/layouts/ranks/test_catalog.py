from pathlib import Path

import pytest
import xxhash

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.errors import CatalogError, CheckpointError
from reshard.core.files.model import CheckpointFormat, FileIndex
from tests.support.places import FIXTURES
from tests.support.source_directories import Source, catalog, ckpt, contents, safetensors


def chosen(result: CheckpointCatalog) -> list[str]:
    assert list(result.records) == sorted(result.records)
    return [record.location.rpartition("/ck/")[2] for record in result.records.values()]


def test_catalog_of_rank_folders(source: Source) -> None:
    source.add_ranks(12).add_ranks(12, "CKP-2_2.ckpt").add_ranks(3, "CKP-10_2.ckpt").add_ranks(2, "CKP-graph.meta")
    result = catalog(source.url, 12)
    assert chosen(result) == [f"rank_{rank}/CKP-2_2.ckpt" for rank in range(12)]
    assert (result.url, result.step, result.format) == (source.url, "2_2", CheckpointFormat.CKPT)
    assert result.notes == (
        "using step 2_2 of prefix CKP, the newest that all ranks have (CKP-2_2.ckpt on rank_0, 12 ranks)",
        "ignored newer steps that are incomplete: 10_2 (not on rank_3, rank_4, rank_5 and 6 more)",
    )
    record = result.records[11]
    assert record.rank == 11
    assert record.size_bytes == record.index.size_bytes == len(ckpt("w"))
    assert record.location == f"{source.url}/rank_11/CKP-2_2.ckpt"
    assert list(record.index.entries) == ["w"]
    assert record.digests == {}


def test_version_is_the_files(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(ckpt("w"))
    before = catalog(str(path), None).records[0].version
    assert before == catalog(str(path), None).records[0].version
    path.write_bytes(ckpt("w", "v"))
    assert before != catalog(str(path), None).records[0].version


def test_options_reach_the_selection(source: Source) -> None:
    source.add_ranks(2, "A-1_1.ckpt").add_ranks(2, "A-1_2.ckpt").add_ranks(2, "B-1_1.ckpt")
    result = catalog(source.url, 2, step="1_1", source_prefix="A")
    assert chosen(result) == ["rank_0/A-1_1.ckpt", "rank_1/A-1_1.ckpt"]
    assert result.step == "1_1"


def test_names_without_a_step(source: Source) -> None:
    source.add("rank_0/checkpoint_0.ckpt", "rank_1/checkpoint_1.ckpt")
    assert catalog(source.url, 2).step is None


def test_pattern_of_files(source: Source) -> None:
    for rank in range(2):
        source.add(f"origin_checkpoint_rank{rank}/pangu{rank}-100_2.ckpt", f"origin_checkpoint_rank{rank}/x.ckpt")
    result = catalog(source.url + "/origin_checkpoint_rank{rank}/pangu{rank}-100_2.ckpt", 2)
    assert chosen(result) == [f"origin_checkpoint_rank{rank}/pangu{rank}-100_2.ckpt" for rank in range(2)]
    assert result.step == "100_2"


def test_pattern_may_name_breakpoint_files(source: Source) -> None:
    source.add("r0/A-1_2_breakpoint.ckpt", "r1/A-1_2_breakpoint.ckpt")
    assert catalog(source.url + "/r{rank}/A-1_2_breakpoint.ckpt", 2).step == "1_2_breakpoint"
    with pytest.raises(CatalogError, match="only checkpoints saved on an exception"):
        catalog(source.url + "/r{rank}", 2)


def test_single_file_is_rank_0(source: Source) -> None:
    source.add("A-1_2.ckpt", "A-1_3.ckpt")
    assert chosen(catalog(f"{source.url}/A-1_2.ckpt", None)) == ["A-1_2.ckpt"]
    assert chosen(catalog(f"{source.url}/A-1_2.ckpt", 1)) == ["A-1_2.ckpt"]


def test_folder_of_a_single_device(source: Source) -> None:
    source.add("A-9_2.ckpt", "A-10_2.ckpt", "A-graph.meta")
    assert chosen(catalog(source.url, None)) == ["A-10_2.ckpt"]
    assert chosen(catalog(source.url, 1)) == ["A-10_2.ckpt"]


@pytest.mark.parametrize(
    ("name", "what"), [("", "files without rank_N folders"), ("/A.ckpt", "a single checkpoint file")]
)
def test_one_rank_where_the_strategy_has_more(name: str, what: str, source: Source) -> None:
    source.add("A.ckpt")
    with pytest.raises(CatalogError) as caught:
        catalog(source.url + name, 3)
    assert str(caught.value) == (
        f"{source.url}{name}: 1 rank, {what}, but the source strategy has 3 ranks; missing: rank_1, rank_2. "
        "Name the directory of the rank folders, or a pattern with {rank}"
    )


def test_missing_ranks_are_all_listed(source: Source) -> None:
    source.add_ranks(2).add("rank_4/CKP-1_2.ckpt", "rank_6/notes.txt")
    with pytest.raises(CatalogError) as caught:
        catalog(source.url, 30)
    listed = ", ".join(f"rank_{rank}" for rank in range(2, 30) if rank != 4)
    assert str(caught.value) == (
        f"{source.url}: 3 ranks, but the source strategy has 30 ranks; missing: {listed} "
        "(rank_6: a folder without checkpoint files)"
    )


def test_more_ranks_than_the_strategy_has(source: Source) -> None:
    source.add_ranks(8)
    with pytest.raises(CatalogError) as caught:
        catalog(source.url, 4)
    assert str(caught.value) == (
        f"{source.url}: 8 ranks, but the source strategy has 4 ranks: it is another checkpoint's strategy, or one "
        "pipeline stage's own. Too many: rank_4, rank_5, rank_6, rank_7"
    )


def test_extra_ranks_may_be_allowed(source: Source) -> None:
    source.add_ranks(3).add("rank_2/CKP-9_9.ckpt", "rank_2/other.safetensors")
    result = catalog(source.url, 2, allow_extra_ranks=True)
    assert chosen(result) == ["rank_0/CKP-1_2.ckpt", "rank_1/CKP-1_2.ckpt"]
    assert result.notes[-1] == "ignored ranks that are not needed: rank_2"


def test_extra_folder_without_checkpoint_files_is_no_rank(source: Source) -> None:
    source.add_ranks(2).add("rank_2/notes.txt")
    assert len(catalog(source.url, 2).records) == 2


def test_no_strategy_but_several_ranks(source: Source) -> None:
    source.add_ranks(4)
    with pytest.raises(CatalogError, match=r"4 ranks \(rank_0, rank_1, rank_2 and 1 more\).*need a source strategy"):
        catalog(source.url, None)


def test_no_strategy_and_rank_0_alone(source: Source) -> None:
    source.add_ranks(1)
    assert chosen(catalog(source.url, None)) == ["rank_0/CKP-1_2.ckpt"]


def test_no_strategy_and_one_other_rank(source: Source) -> None:
    source.add("rank_3/A.ckpt")
    with pytest.raises(CatalogError, match="source strategy"):
        catalog(source.url, None)


def test_unfinished_conversion_is_refused(source: Source) -> None:
    source.add_ranks(1).add(".reshard/plan.json")
    with pytest.raises(CatalogError, match="unfinished conversion"):
        catalog(source.url, 1)
    source.add(".reshard/manifest.json")
    assert len(catalog(source.url, 1).records) == 1


def test_missing_directory(source: Source) -> None:
    with pytest.raises(CatalogError, match="no such file or directory"):
        catalog(source.url, 1)


def test_one_damaged_file_is_reported_as_it_is(source: Source) -> None:
    source.add_ranks(2).add("rank_1/CKP-1_2.ckpt", data=b"")
    with pytest.raises(CheckpointError, match=r"rank_1/CKP-1_2\.ckpt"):
        catalog(source.url, 2)


def test_all_damaged_files_are_listed(source: Source) -> None:
    source.add_ranks(30)
    for rank in range(3, 30):
        source.add(f"rank_{rank}/CKP-1_2.ckpt", data=ckpt("w")[:-2])
    with pytest.raises(CatalogError) as caught:
        catalog(source.url, 30)
    first, *lines = str(caught.value).splitlines()
    assert first == f"{source.url}: 27 of 30 checkpoint files cannot be used:"
    assert [line.split("/rank_")[1].split("/")[0] for line in lines[:-1]] == [str(rank) for rank in range(3, 23)]
    assert lines[-1] == "  and 7 more"


def test_removed_redundancy_is_known(source: Source) -> None:
    for said in (True, False):
        source.add("rank_0/A.safetensors", data=safetensors({"remove_redundancy": str(said)}))
        assert catalog(source.url, 1).records[0].index.redundancy_removed is said


@pytest.mark.parametrize("case", sorted(path.name for path in (FIXTURES / "conversions").iterdir() if path.is_dir()))
def test_real_checkpoints(case: str) -> None:
    root = FIXTURES / "conversions" / case
    ranks = len(list((root / "src").iterdir()))
    result = catalog(str(root / "src"), ranks, digest=lambda rank, entry: True)
    assert list(result.records) == list(range(ranks))
    for record in result.records.values():
        assert record.index.size_bytes == Path(record.location).stat().st_size
        data = Path(record.location).read_bytes()
        for entry in record.index.entries.values():
            assert record.digests[entry.name] == xxhash.xxh3_128_hexdigest(contents(data, entry))
    distinct: list[FileIndex] = []
    for record in result.records.values():
        if not any(record.index is index for index in distinct):
            assert record.index not in distinct
            distinct.append(record.index)
    full = catalog(str(root / "full"), None)
    assert len(full.records) == 1


def test_real_file_with_crc() -> None:
    for name in ("crc.ckpt", "crc.safetensors"):
        assert catalog(str(FIXTURES / "formats" / name), None).records[0].index.has_crc


def test_real_files_without_replicas() -> None:
    found = catalog(str(FIXTURES / "formats/redundancy_removed/src_safetensors"), 8)
    assert all(record.index.redundancy_removed for record in found.records.values())

"""No bytes of a file are two pieces of a model: indexes with a wrong digit, and links, in every layout."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from reshard.core.checkpoint.shared_bytes import Piece, shared_text
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import describe_plan
from reshard.core.errors import CatalogError, InputError
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.source import FingerprintRequest, SourceRequest
from reshard.core.source.opening import open_source
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.verification.compare import compare_checkpoints, fingerprint_checkpoint
from reshard.mindspore import transform_checkpoints
from tests.core.layouts.dcp.test_metadata import hyper_metadata
from tests.support.checkpoints import case, read_tree
from tests.support.dcp import DcpCase, dcp_case
from tests.support.diagnosed import diagnose
from tests.support.iterations import iteration_case
from tests.support.loading import load_rank
from tests.support.megatron import SMALL

NAME = "model.layers.0.up.weight"


def place_chunk(number: int, **changes: object) -> Callable[[Any], None]:
    """Change the place of one chunk of a tensor in DCP's metadata."""

    def change(metadata: Any) -> None:
        places = [place for index, place in metadata.storage_data.items() if index.fqn == NAME]
        places[number].__dict__.update(changes)

    return change


@pytest.fixture
def doubled(tmp_path: Path) -> DcpCase:
    """A checkpoint whose rows 5 to 8 have, by one digit each, the place of rows 0 to 3."""
    found = dcp_case("dp_tp").copied(tmp_path / "case")
    found.change_metadata(place_chunk(1, relative_path="__0_0.distcp", offset=4731))
    return found


SAME_ROWS = r"__0_0\.distcp: the bytes of '.*up\.weight', \[0:3, 0:6\], and '.*up\.weight', \[5:8, 0:6\], overlap at 47"


@pytest.mark.parametrize(
    "use",
    [
        lambda source, out: convert(dcp_case("dp_tp").request(out, source, verify="content")),
        lambda source, out: convert(dcp_case("dp_tp").request(out, source, layout="unified", check_crc=False)),
        lambda source, out: describe_plan(dcp_case("dp_tp").request(out, source)),
        lambda source, out: diagnose(str(source)),
        lambda source, out: fingerprint_checkpoint(FingerprintRequest(source=str(source))),
        lambda source, out: compare_checkpoints(ComparisonRequest(a=str(dcp_case("dp_tp").source), b=str(source))),
        lambda source, out: list(load_rank(str(source))),
    ],
    ids=["convert", "without-crc", "plan", "doctor", "fingerprint", "diff", "load"],
)
def test_two_chunks_of_a_tensor_at_one_place_are_refused(
    use: Callable[[Path, Path], object], doubled: DcpCase, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=SAME_ROWS):
        use(doubled.source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_archives_that_overlap_by_one_byte_are_refused(tmp_path: Path) -> None:
    found = dcp_case("dp_tp").copied(tmp_path / "case")
    found.change_metadata(place_chunk(0, length=1642))
    with pytest.raises(
        InputError, match=r"the bytes of '.*up\.weight', \[0:3, 0:6\], and '.*bias', \[0:3\], overlap at"
    ):
        convert(found.request(tmp_path / "out"))


def test_a_weight_in_the_place_of_its_moment_is_refused(tmp_path: Path) -> None:
    """Both are parts of what is stored there, of one shape."""
    found = SMALL.copied(tmp_path / "case")
    weight = "decoder.layers.self_attention.linear_qkv.weight"

    def change(metadata: Any) -> None:
        places = {index.fqn: place for index, place in metadata.storage_data.items()}
        places[weight].__dict__.update(places[f"optimizer.state.exp_avg.{weight}"].__dict__)

    found.change_metadata(change)
    with pytest.raises(
        InputError, match=r"the bytes of 'decoder.*', \[3:4.* and 'optimizer.*', \[3:4.*, overlap at 1577"
    ):
        convert(found.request(tmp_path / "out"))


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_dcp_file_that_is_a_link_to_another_is_refused(link: Callable[..., None], tmp_path: Path) -> None:
    found = SMALL.copied(tmp_path / "case")
    # the files of two ranks: other layers of one tensor, at the same places
    (found.source / "__3_1.distcp").unlink()
    link(found.source / "__3_0.distcp", found.source / "__3_1.distcp")
    with pytest.raises(
        CatalogError, match=r"two pieces of the model: an index is damaged, or a link is wrong"
    ) as error:
        convert(found.request(tmp_path / "out"))
    assert r"__3_0.distcp, the same file as " in str(error.value)
    assert "'decoder.layers.2.self_attention.linear_qkv.weight', [3:6, 0:4]," in str(error.value)
    assert "'decoder.layers.3.self_attention.linear_qkv.weight', [3:6, 0:4]," in str(error.value)


def hyper_parallel(directory: Path) -> Path:
    """A vector in two files, which hyper_parallel's metadata describes; the second has the values 2 to 4."""
    directory.mkdir()
    whole = np.arange(4, dtype=np.float32)
    (directory / ".metadata").write_bytes(hyper_metadata("hyper_parallel.core.checkpoint", {"w": [(0, 2), (2, 2)]}))
    save_file({"w": whole[:2]}, directory / "_rank0_.safetensors")
    save_file({"w": whole[2:]}, directory / "_rank1_.safetensors")
    return directory


def test_two_chunks_of_a_name_in_one_safetensors_file_are_refused(tmp_path: Path) -> None:
    source = hyper_parallel(tmp_path / "src")
    metadata = source / ".metadata"
    metadata.write_bytes(metadata.read_bytes().replace(b"_rank1_", b"_rank0_"))
    with pytest.raises(InputError, match=r"_rank0_.safetensors: is said to hold several shards of parameter 'w'"):
        convert(dcp_case("dp_tp").request(tmp_path / "out", source))


def test_two_safetensors_files_that_are_one_are_refused(tmp_path: Path) -> None:
    source = hyper_parallel(tmp_path / "src")
    (source / "_rank1_.safetensors").unlink()
    (source / "_rank1_.safetensors").symlink_to("_rank0_.safetensors")
    with pytest.raises(CatalogError, match=r"the bytes of 'w', \[0:2\], and 'w', \[2:4\], overlap at"):
        convert(dcp_case("dp_tp").request(tmp_path / "out", source))


def test_files_of_a_checkpoint_2_that_are_one_hold_replicas_or_are_refused(tmp_path: Path) -> None:
    found = iteration_case(2)
    copy = found.copied(tmp_path / "case")
    files = [copy.iteration / f"model-000000{rank}-0000004.safetensors" for rank in range(4)]
    slices: dict[bytes, list[int]] = {}
    for rank, file in enumerate(files):
        slices.setdefault(file.read_bytes(), []).append(rank)
    replicas = next(ranks for ranks in slices.values() if len(ranks) > 1)
    relink(files[replicas[0]], files[replicas[1]])
    convert(copy.request(tmp_path / "replicas"))
    assert read_tree(tmp_path / "replicas") == found.want
    other = next(rank for rank in range(4) if rank not in replicas)
    relink(files[replicas[0]], files[other])
    with pytest.raises(CatalogError, match=r"model-0000000-0000004.*the same file as .*overlap at"):
        convert(copy.request(tmp_path / "out"))
    with pytest.raises(CatalogError, match="the same file as"):
        diagnose(str(copy.source))


def relink(original: Path, link: Path) -> None:
    link.unlink()
    os.link(original, link)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Rank folders in which rank 1's file, another slice than rank 0's, is a link to rank 0's."""
    source = tmp_path / "src"
    shutil.copytree(case(7001).directory / "src", source)
    [first], [second] = (list((source / f"rank_{rank}").iterdir()) for rank in (0, 1))
    second.unlink()
    second.symlink_to(first)
    return source


def test_rank_folders_whose_files_are_one_are_refused_and_the_doctor_says_why(linked: Path, tmp_path: Path) -> None:
    options = {"source": str(linked), "verify": "content"}
    with pytest.raises(CatalogError, match=r"rank_0/.*, the same file as .*rank_1/.*: the bytes of"):
        convert(case(7001).request(tmp_path / "out", **options))
    strategy = str(case(7001).directory / "src_strategy.ckpt")
    found = diagnose(str(linked), strategy)
    assert not found.fits
    assert any("one file is two slices: " in finding.found for finding in found.findings)


def test_mindspore_s_functions_refuse_one_file_for_two_slices(linked: Path, tmp_path: Path) -> None:
    source, target = (str(case(7001).directory / f"{side}_strategy.ckpt") for side in ("src", "dst"))
    with pytest.raises(ValueError, match="the same file as"):
        transform_checkpoints(str(linked), str(tmp_path / "out"), "new", source, target)


def text_of(*pieces: tuple[int, int, str]) -> str:
    return shared_text(
        [Piece(start, stop, number, name) for number, (start, stop, name) in enumerate(pieces)], lambda each: each.name
    )


def test_bytes_side_by_side_are_apart_and_one_common_byte_is_not() -> None:
    assert not text_of((0, 8, "a"), (8, 16, "b"), (16, 24, "c"))
    assert text_of((0, 9, "a"), (8, 16, "b")) == "the bytes of a and b overlap at 8"
    assert text_of((8, 16, "b"), (0, 16, "a")) == "the bytes of a and b overlap at 8"


def test_replicas_and_pieces_without_bytes_may_be_anywhere() -> None:
    assert not text_of((0, 8, "a"), (0, 8, "a"), (2, 6, "a"), (4, 4, "empty"), (8, 16, "b"))


def test_a_piece_inside_one_of_long_before_is_found() -> None:
    assert text_of((0, 100, "a"), (10, 20, "a"), (30, 40, "a"), (50, 60, "b")) == "the bytes of a and b overlap at 50"


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6), st.sampled_from("abc")), max_size=8))
def test_what_shares_bytes_is_what_comparing_all_pairs_finds(drawn: list[tuple[int, int, str]]) -> None:
    pieces = [(start, start + length, name) for start, length, name in drawn]
    expected = any(
        max(one[0], other[0]) < min(one[1], other[1]) and one[2] != other[2] for one in pieces for other in pieces
    )
    assert bool(text_of(*pieces)) == expected


def test_ranks_that_all_hold_whole_tensors_may_have_one_file(linked: Path) -> None:
    strategy = str(case(7001).directory / "src_strategy.ckpt")
    request = SourceRequest(source=str(linked), source_strategy=strategy, integrated_save=IntegratedSave.YES)
    assert len(open_source(request).catalog.records) == 8
    with pytest.raises(CatalogError, match="the same file as"):
        open_source(request.model_copy(update={"integrated_save": IntegratedSave.NO}))


@given(
    st.integers(2, 6),
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(1, 4), st.sampled_from("abc")), max_size=6),
)
def test_rows_may_lie_between_the_rows_of_another(period: int, drawn: list[tuple[int, int, int, str]]) -> None:
    rows = [(start, min(run, period), count, name) for start, run, count, name in drawn]
    pieces = [
        Piece(start, start + (count - 1) * period + run, number, name, period, run)
        for number, (start, run, count, name) in enumerate(rows)
    ]
    owned = [
        {start + row * period + byte for row in range(count) for byte in range(run)} for start, run, count, _ in rows
    ]
    shared = any(
        owned[one] & owned[other] and rows[one][3] != rows[other][3] for one in range(len(rows)) for other in range(one)
    )
    found = bool(shared_text(pieces, lambda each: each.name))
    # pieces whose runs are in the same places of a period may be taken to overlap, although they lie side by side
    assert found or not shared
    if found and not shared:
        assert any(
            not one.fits_between(other) and one.name != other.name
            for one in pieces
            for other in pieces
            if one is not other
        )


def test_halves_of_each_row_do_not_overlap() -> None:
    gate, up = Piece(0, 28, 0, "gate", 16, 12), Piece(12, 32, 0, "up", 16, 4)
    assert shared_text([gate, up], lambda each: each.name) == ""
    late = Piece(11, 31, 0, "up", 16, 4)
    assert shared_text([gate, late], lambda each: each.name) == "the bytes of gate and up overlap at 11"
    assert shared_text([gate, Piece(14, 16, 0, "dense")], lambda each: each.name) != ""

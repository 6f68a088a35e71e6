"""DeepSpeed's files of ranks on an object store."""

import shutil
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.latest import convert_latest
from reshard.core.errors import InputError
from reshard.core.request.latest import LatestConversionRequest
from tests.support.deepspeed_files import deepspeed_case, made, to_whole
from tests.support.stores import Store


@pytest.mark.parametrize("name", ["case_zero1_bf16", "case_zero3_sub_groups_frozen"])
def test_files_of_ranks_are_read_by_ranges(name: str, store: Store, tmp_path: Path) -> None:
    case = deepspeed_case(name)
    convert(to_whole(store.add(case.root, name), tmp_path / "out", verify="content"))
    assert made(tmp_path / "out") == case.want


def test_a_missing_rank_is_named(store: Store, tmp_path: Path) -> None:
    case = deepspeed_case("case_zero3_bf16").copied(tmp_path / "ck")
    for path in case.tag.glob("*rank_2*"):
        path.unlink()
    url = store.add(case.root, "missing")
    with pytest.raises(
        InputError, match=r"zero_pp_rank_0_mp_rank_00_model_states.pt is of 3 ranks, but there are files of 2"
    ):
        convert(to_whole(url, tmp_path / "out"))


def test_the_newest_complete_step_is_converted(store: Store, tmp_path: Path) -> None:
    case = deepspeed_case("case_zero3_bf16").copied(tmp_path / "training")
    shutil.copytree(case.root / "global_step2", case.root / "global_step20")
    (case.root / "latest").write_text("global_step20")
    given = {"source": store.add(case.root, "training"), "target": store.url("out"), "layout": "unified"}
    report = convert_latest(LatestConversionRequest.model_validate(given))
    assert (report.step, report.target) == ("20", store.url("out/20"))

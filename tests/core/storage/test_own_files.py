"""Only files that conversions wrote may be removed: any other is refused by name, and stays."""

import os
import re
from pathlib import Path

import pytest

from reshard.core.errors import TargetError
from reshard.core.storage.own_files import Listing, check_replaced, check_unlinked, check_working
from reshard.core.storage.urls import Location, parse_url
from reshard.core.target.own_names import may_be_own

LINKED = (
    *("", "rank_0", "rank_0/a_0.ckpt", ".reshard", ".reshard/records", ".reshard/plan"),
    *("zero", "zero/w", "zero/w/fp32.pt"),
)
STATE = Listing({"plan", "identity"}.__contains__, {re.compile("records"): Listing({"rank_0.json"}.__contains__)})


def put(directory: Path, *files: str) -> Location:
    for file in files:
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / file).touch()
    return parse_url(str(directory))


def test_what_conversions_leave(tmp_path: Path) -> None:
    own = [
        ".reshard/plan",
        ".reshard/.identity.0123abcd.tmp",
        ".reshard/records/rank_0.json",
        ".reshard/records/.rank_0.json.0123abcd.tmp",
        "rank_0/a_0.ckpt",
        "rank_0/.a_0.ckpt.0123abcd.tmp",
        "rank_0/.nfs0000000001a2",
        "rank_12/b.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        ".model-00002-of-00002.safetensors.0123abcd.tmp",
        "zero/optimizer_state.pt",
        "zero/lm_head.weight/fp32.pt",
        "zero/lm_head.weight/.step.pt.0123abcd.tmp",
    ]
    check_working(put(tmp_path / "work", *own), STATE, may_be_own)
    check_working(put(tmp_path / "nothing"), STATE, may_be_own)
    (tmp_path / "empty/rank_0").mkdir(parents=True)
    check_working(put(tmp_path / "empty"), STATE, may_be_own)
    check_working(put(tmp_path / "begun", "rank_0/.a_0.ckpt.0123abcd.tmp"), STATE, may_be_own)


@pytest.mark.parametrize(
    "foreign",
    [
        "notes.txt",
        "rank_x/a.ckpt",
        "rank_٣/a.ckpt",
        "rank_0/notes.txt",
        "rank_0/deeper/a.ckpt",
        "models/a.ckpt",
        "zero/notes.txt",
        "zero/w/notes.txt",
        "zero/w/deeper/fp32.pt",
        "zero/w/rank_0/a.ckpt",
        ".reshard/thesis.tex",
        ".reshard/records/rank_².json",
        ".reshard/records/deeper/rank_0.json",
    ],
)
def test_what_no_conversion_writes_is_named(tmp_path: Path, foreign: str) -> None:
    directory = put(tmp_path / "work", ".reshard/plan", "rank_0/a_0.ckpt", foreign)
    with pytest.raises(TargetError, match="is not a file that conversions write") as raised:
        check_working(directory, STATE, may_be_own)
    named = str(raised.value).partition(": is not a file")[0]
    assert f"{tmp_path}/work/{foreign}".startswith(named)


@pytest.mark.parametrize("linked", LINKED)
def test_links_are_named(tmp_path: Path, linked: str) -> None:
    files = (".reshard/plan", ".reshard/records/rank_0.json", "rank_0/a_0.ckpt", "zero/w/fp32.pt")
    directory = put(tmp_path / "work", *files)
    place = tmp_path / "work" / linked
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    directory = Location(directory.store, str(tmp_path / "work"))
    with pytest.raises(TargetError, match=re.escape(f"{place}: is a link to {tmp_path}/elsewhere")):
        check_working(directory, STATE, may_be_own)


def test_pipes_are_no_files(tmp_path: Path) -> None:
    directory = put(tmp_path / "work", ".reshard/plan")
    os.mkfifo(tmp_path / "work/.reshard/identity")
    with pytest.raises(TargetError, match="identity: is not a file that conversions write"):
        check_working(directory, STATE, may_be_own)


def test_a_checkpoint_that_no_conversion_has_begun(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"work: holds checkpoint files, but no \.reshard of a conversion"):
        check_working(put(tmp_path / "work", "rank_0/a_0.ckpt"), STATE, may_be_own)


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "work").touch()
    for check in (
        lambda place: check_working(place, STATE, may_be_own),
        lambda place: check_replaced(place, may_be_own),
    ):
        with pytest.raises(TargetError, match="work: is not a directory, but has the name of one"):
            check(parse_url(str(tmp_path / "work")))


def test_what_a_target_was_before(tmp_path: Path) -> None:
    own = ".reshard/plan", "rank_0/a.ckpt", "rank_0/log", ".part0.safetensors.0123abcd.tmp", "zero/w/step.pt"
    former = put(tmp_path / "former", *own)
    check_replaced(former, may_be_own)
    check_replaced(parse_url(str(tmp_path / "nothing")), may_be_own)
    put(tmp_path / "former", "thesis.tex")
    with pytest.raises(TargetError, match=r"former: holds foreign files \(thesis\.tex\)"):
        check_replaced(former, may_be_own)
    (tmp_path / "former/thesis.tex").rename(tmp_path / "former/zero/w/thesis.tex")
    with pytest.raises(TargetError, match=r"former: holds foreign files \(zero/w/thesis\.tex\)"):
        check_replaced(former, may_be_own)
    (tmp_path / "link").symlink_to(tmp_path / "former")
    with pytest.raises(TargetError, match="link: is a link to"):
        check_replaced(Location(former.store, str(tmp_path / "link")), may_be_own)


@pytest.mark.parametrize("linked", ["rank_0", ".reshard", ".reshard/records", "zero", "zero/w"])
def test_links_in_a_finished_target(tmp_path: Path, linked: str) -> None:
    files = (".reshard/records/rank_0.json", "rank_0/a.ckpt", "notes.txt", "zero/w/fp32.pt")
    directory = put(tmp_path / "out", *files)
    (tmp_path / "out/my link").symlink_to("notes.txt")
    check_unlinked(directory, STATE, may_be_own)
    (tmp_path / "out" / linked).rename(tmp_path / "elsewhere")
    (tmp_path / "out" / linked).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TargetError, match=f"out/{linked}: is a link to"):
        check_unlinked(directory, STATE, may_be_own)

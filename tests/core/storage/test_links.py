"""Links out of a directory that somebody else may have made are not followed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.core.errors import InputError
from reshard.core.storage.joined import joined_files
from reshard.core.storage.links import check_links
from reshard.core.storage.urls import Location, parse_url


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "given/inside").mkdir(parents=True)
    (tmp_path / "given-away").mkdir()
    for path in ("given/file", "given/inside/file", "given-away/file", "elsewhere"):
        (tmp_path / path).write_text(path)
    return tmp_path / "given"


def check(directory: Path, *names: str) -> None:
    location = parse_url(str(directory))
    check_links(location, [location.child(name) for name in names])


def test_files_and_links_inside(directory: Path) -> None:
    (directory / "link").symlink_to("inside/file")
    (directory / "inside/up").symlink_to("../file")
    (directory / "folder").symlink_to("inside")
    check(directory, "file", "link", "inside/up", "folder/file", "missing")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("link", lambda given: (given / "link").symlink_to(given.parent / "elsewhere")),
        ("link", lambda given: (given / "link").symlink_to("../given-away/file")),
        ("link", lambda given: (given / "link").symlink_to("../nowhere")),
        ("folder/elsewhere", lambda given: (given / "folder").symlink_to("..")),
        (
            "first",
            lambda given: ((given / "first").symlink_to("second"), (given / "second").symlink_to("../elsewhere")),
        ),
    ],
    ids=["absolute", "a directory with a longer name", "nowhere", "through a folder", "chain"],
)
def test_links_that_lead_out(directory: Path, name: str, make: Callable[[Path], object]) -> None:
    make(directory)
    leads_to = os.path.realpath(directory / name)
    with pytest.raises(InputError, match=rf"{directory}/{name}: is a link to {leads_to}, outside {directory}\. "):
        check(directory, "file", name)


def test_each_part_of_a_joint_file(directory: Path) -> None:
    names = [f"{kind}-0000000-0000001.safetensors" for kind in ("model", "opt")]
    (directory / names[1]).symlink_to("../elsewhere")
    with pytest.raises(InputError, match=f"{names[1]}: is a link to"):
        check(directory, joined_files(names))


def test_the_directory_may_be_reached_through_a_link(directory: Path) -> None:
    directory.with_name("alias").symlink_to(directory)
    alias = parse_url(str(directory.parent)).child("alias")
    check_links(alias, [alias.child("file")])


def test_a_snapshot_of_the_hub_may_link_to_its_blobs(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--a--b/snapshots/0123"
    (snapshot / "text_encoder").mkdir(parents=True)
    (tmp_path / "models--a--b/blobs").mkdir()
    (tmp_path / "models--a--b/blobs/hash").touch()
    (snapshot / "config.json").symlink_to("../../blobs/hash")
    (snapshot / "text_encoder/config.json").symlink_to("../../../blobs/hash")
    check(snapshot, "config.json", "text_encoder/config.json")
    check(snapshot / "text_encoder", "config.json")


def test_blobs_that_are_a_link_themselves(tmp_path: Path) -> None:
    snapshot = tmp_path / "given/snapshots/0123"
    snapshot.mkdir(parents=True)
    (tmp_path / "private").mkdir()
    (tmp_path / "given/blobs").symlink_to(tmp_path / "private")
    (snapshot / "config.json").symlink_to("../../blobs/secret")
    with pytest.raises(InputError, match=f"is a link to {tmp_path}/private/secret, outside"):
        check(snapshot, "config.json")


def test_object_stores_have_no_links(folder: Location) -> None:
    check_links(folder, [folder.child("missing")])

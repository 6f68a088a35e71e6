"""Archives as sources: every file is read in place, and nothing but what is in the archive."""

import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from reshard.core.errors import InputError, LimitError, StorageError
from reshard.core.storage.listing import exists, find_files, kind_of, list_folder, names_in
from reshard.core.storage.reading import open_source, read_bytes, read_small_file, read_version
from reshard.core.storage.removal import remove_file
from reshard.core.storage.store import DIRECTORY, FILE
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes

FILES = {"run/rank_0/net.ckpt": bytes(range(256)) * 3000, "run/a b.json": b"{}", "empty": b"", "top.ckpt": b"top"}

Pack = Callable[[Path, Mapping[str, bytes]], None]


def pack_zip(path: Path, files: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir("run")
        for name, data in files.items():
            archive.writestr(name, data)


def pack_tar(path: Path, files: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"./{name}")  # as `tar -C run .` names them
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


PACKS: dict[str, Pack] = {"zip": pack_zip, "tar": pack_tar}


@pytest.fixture(params=["zip", "tar"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def archive(protocol: str, tmp_path: Path) -> Path:
    path = tmp_path / f"a.{protocol}"
    PACKS[protocol](path, FILES)
    return path


@pytest.fixture
def root(protocol: str, archive: Path) -> Location:
    return parse_url(f"{protocol}://::{archive}")


def test_files_are_read_where_they_lie(root: Location) -> None:
    for name, data in FILES.items():
        file = open_source(root.child(name))
        assert file.size_bytes == len(data)
        assert read_bytes(file, 0, len(data)) == read_small_file(root.child(name), 10**6) == data
        assert read_bytes(file, len(data) // 2, len(data) // 3) == data[len(data) // 2 :][: len(data) // 3]


def test_a_name_that_fills_the_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2**32
    path.write_bytes(header.tobuf(tarfile.GNU_FORMAT))
    os.truncate(path, 2**32 + 1024)
    with pytest.raises(LimitError, match=r"a\.tar: reading its metadata would take"):
        find_files(parse_url(f"tar://::{path}"))


def test_more_members_than_memory_has_room_for_are_refused(
    archive: Path, root: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshard.core.storage.archives._MEMBER_BYTES", 2**30)
    monkeypatch.setattr("reshard.core.storage.archives._LEAST_ENTRY_BYTES", 2**20)
    with pytest.raises(LimitError, match=rf"{archive}: reading its metadata would take 3.0 GiB of memory"):
        find_files(root)


def test_a_size_below_zero_is_damage(tmp_path: Path) -> None:
    """The index had no end: behind the member, it began again."""
    path = tmp_path / "a.tar"
    pack_tar(path, {"first": b"1" * 600, "second": b"2" * 600})
    data = bytearray(path.read_bytes())
    header = data[1536:2048]
    header[124:136] = tarfile.itn(-512, 12, tarfile.GNU_FORMAT)  # type: ignore[attr-defined]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    data[1536:2048] = header
    path.write_bytes(data)
    with pytest.raises(StorageError, match="the archive is truncated or damaged"):
        find_files(parse_url(f"tar://::{path}"))


def test_a_member_whose_sizes_differ_is_not_read(tmp_path: Path) -> None:
    """What lies behind it was read as its end."""
    path = tmp_path / "a.zip"
    pack_zip(path, {"first": b"1" * 10, "second": b"2" * 10})
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)  # behind that of the directory
    data[entry + 24] += 5  # its size, but not that in the archive
    path.write_bytes(data)
    with pytest.raises(StorageError, match="is damaged in the archive: it has two sizes"):
        open_source(parse_url(f"zip://first::{path}"))


def test_files_and_directories_are_listed(root: Location) -> None:
    assert names_in(root) == ["empty", "run", "top.ckpt"]
    assert {entry.path: entry.kind for entry in list_folder(root.child("run"))} == {
        "/run/a b.json": FILE,
        "/run/rank_0": DIRECTORY,
    }
    assert [location.path for location in find_files(root.child("run"))] == ["/run/a b.json", "/run/rank_0/net.ckpt"]
    assert [location.path for location in find_files(root)] == sorted(f"/{name}" for name in FILES)
    assert [entry.path for entry in list_folder(root.child("empty"))] == ["/empty"]
    assert kind_of(root) == kind_of(root.child("run")) == DIRECTORY
    assert not exists(root.child("run", "x"))
    assert not exists(root.child("ru"))


def test_a_place_in_an_archive_has_a_url(root: Location, protocol: str, archive: Path) -> None:
    place = root.child("run", "rank_0")
    assert str(place) == f"{protocol}://run/rank_0::{archive}"
    assert parse_url(str(place)) == parse_url(f"{protocol}:///run/rank_0/::file://{archive}") == place
    assert place.parent.parent == root == root.parent
    assert parse_url(str(root)) == root


def test_archives_may_be_anywhere_even_in_archives(
    root: Location, archive: Path, protocol: str, tmp_path: Path
) -> None:
    outer = tmp_path / "outer.tar"
    pack_tar(outer, {"in/side": archive.read_bytes()})
    place = parse_url(f"{protocol}://run::tar://in/side::{outer}")
    assert read_small_file(place.child("a b.json"), 10) == b"{}"
    assert parse_url(str(place)) == place


def test_an_archive_that_is_replaced_is_read_anew(root: Location, archive: Path, protocol: str) -> None:
    before = read_version(root.child("top.ckpt"))
    PACKS[protocol](archive, {"new": b"new", **FILES, "top.ckpt": b"TOP"})
    assert read_version(root.child("top.ckpt")) != before
    assert read_small_file(root.child("top.ckpt"), 10) == b"TOP"
    assert "new" in names_in(root)
    archive.unlink()
    with pytest.raises(StorageError, match="no such file or directory"):
        names_in(root)


@pytest.mark.parametrize("path", ["../../etc/passwd", "..", "/../../../../../../etc/passwd", "run/../../../etc/passwd"])
def test_no_path_leads_out_of_an_archive(root: Location, path: str, protocol: str, archive: Path) -> None:
    assert not exists(parse_url(f"{protocol}://{path}::{archive}"))
    assert not exists(root.child(path))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "run/../../x", "run/.."])
def test_a_member_whose_name_leads_out_is_refused(name: str, protocol: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile"
    if protocol == "zip":
        pack_zip(path, {name: b"x"})
    else:
        with tarfile.open(path, "w") as archive:
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(StorageError, match=rf"the archive has a member '{name}', whose name leads out of it"):
        names_in(parse_url(f"{protocol}://::{path}"))


def test_links_in_a_tar_archive_lead_to_its_files_only(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "links", "w") as archive:
        for name, kind, target in (
            ("run/hard", tarfile.LNKTYPE, "run/a"),
            ("run/soft", tarfile.SYMTYPE, "../run/a"),
            ("run/out", tarfile.SYMTYPE, "../../../etc/passwd"),
            ("run/absolute", tarfile.SYMTYPE, "/etc/passwd"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
        member = tarfile.TarInfo("run/a")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    run = parse_url(f"tar://run::{tmp_path}/links")
    assert read_small_file(run.child("hard"), 10) == read_small_file(run.child("soft"), 10) == b"abc"
    for name in ("out", "absolute"):
        assert kind_of(run.child(name)) not in (FILE, DIRECTORY)
        with pytest.raises(StorageError, match="is a link to no file of the archive"):
            read_small_file(run.child(name), 10)


def test_what_has_no_range_of_its_own_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", FILES["run/rank_0/net.ckpt"])
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    place = parse_url(f"zip://::{tmp_path}/a.zip")
    assert names_in(place) == ["a", "link"]
    with pytest.raises(StorageError, match=r"is compressed in the archive, .*make it without compression \(zip -0\)"):
        open_source(place.child("a"))
    with pytest.raises(StorageError, match="is a link"):
        open_source(place.child("link"))
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("a"))
    with pytest.raises(StorageError, match="not a tar archive, or a compressed one: unpack it"):
        names_in(parse_url(f"tar://::{tmp_path}/a.tar.gz"))


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    pack_zip(tmp_path / "a.zip", {"a": b"abc"})
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[data.rindex(b"PK\1\2") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(StorageError, match="is encrypted in the archive: unpack it"):
        open_source(parse_url(f"zip://a::{tmp_path}/a.zip"))


@pytest.fixture
def damaged(archive: Path, protocol: str) -> Callable[[bytes], str]:
    """Says why an archive with these contents cannot be read."""

    def reason(data: bytes) -> str:
        archive.write_bytes(data)
        root = parse_url(f"{protocol}://::{archive}")
        with pytest.raises(StorageError) as caught:
            read_small_file(root.child("top.ckpt"), 10)
        return str(caught.value)

    return reason


def test_damage_is_told(archive: Path, protocol: str, damaged: Callable[[bytes], str]) -> None:
    whole = archive.read_bytes()
    assert f"not a {protocol} archive" in damaged(b"")
    assert f"not a {protocol} archive" in damaged(b"x" * 5000)
    end = len(whole) - 200 if protocol == "zip" else whole.index(b"./top.ckpt") + 100
    for truncated in (whole[: len(whole) // 2], whole[:end]):
        reason = damaged(truncated)
        assert f"not a {protocol} archive, or a damaged one" in reason or "the archive is truncated" in reason
    spoiled = bytearray(whole)
    # the header before the contents, which the index leads to
    at = whole.index(b"PK\3\4") if protocol == "zip" else whole.index(b"./empty")
    header = whole.rindex(b"PK\3\4") if protocol == "zip" else at
    spoiled[header : header + 4] = b"spoi"
    assert "damaged" in damaged(bytes(spoiled))


def test_every_cut_of_an_archive_ends_in_a_message(archive: Path, protocol: str, tmp_path: Path) -> None:
    PACKS[protocol](archive, {"a": b"abc", "b/c": b"d" * 600})
    whole = archive.read_bytes()
    for length in range(0, len(whole), 37):
        archive.write_bytes(whole[:length])
        place = parse_url(f"{protocol}://::{archive}")
        try:
            contents = [read_small_file(file, 1000) for file in find_files(place)]
        except (StorageError, InputError):
            continue
        assert contents == [b"abc", b"d" * 600]


def test_nothing_is_written_into_an_archive(root: Location) -> None:
    wanted = "an archive can only be read: name a target elsewhere"
    for write in (lambda: write_bytes(root.child("x"), b"x"), lambda: remove_file(root.child("top.ckpt"))):
        with pytest.raises(InputError, match=wanted):
            write()


def test_reading_ends_with_the_file_and_not_with_the_archive(root: Location) -> None:
    reader = root.store.open("/top.ckpt")
    parts = [bytearray(2), bytearray(0), bytearray(2), bytearray(2)]
    assert reader.read_into(0, [memoryview(part) for part in parts]) == 3
    assert parts == [b"to", b"", b"p\0", b"\0\0"]
    assert reader.read_into(3, [memoryview(parts[0])]) == reader.read_into(100, [memoryview(parts[0])]) == 0

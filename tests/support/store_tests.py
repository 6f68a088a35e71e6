"""What every storage promises, for each of them: a subclass says how to reach one, and how to look past it.

Nothing that a test prepares, or compares with, goes through the code under test.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.store import DIRECTORY, FILE, ChangedFileError, Entry, Reader, Store
from reshard.core.storage.urls import parse_url

PART_BYTES = 5 * 2**20
"""The least that S3 takes."""
BUFFERS = UploadBuffers(part_bytes=PART_BYTES, ahead=2)
LENGTHS = {"nothing": 0, "a byte": 1, "a part": PART_BYTES, "more": PART_BYTES + 1, "parts": 2 * PART_BYTES + 12_345}
NAMES = (
    *(
        "a b",
        "ü",
        "100%",
        "%41",
        "a+b",
        "a#b",
        "a?b=c&d",
        "[x]*",
        "~x",
        "it's",
        'say "x"',
        "a:b@c",
        "dot..dot",
        ".hidden",
    ),
    *("back\\slash", "a,b;c", "{x}", "<x>", "x^`|y", "日本"),
)


@dataclass
class Place:
    """An empty directory of a storage.

    Attributes:
        put: writes a file past the code under test; get: its content, None if there is none.
        mark: writes what marks a directory in this storage, if something does.
        upload: begins to upload a file in parts, without an end; its identifier.
        secrets: what opens the storage.
    """

    store: Store
    root: str
    put: Callable[[str, bytes], object]
    get: Callable[[str], bytes | None]
    mark: Callable[[str], object] | None = None
    upload: Callable[[str], str] | None = None
    secrets: tuple[str, ...] = ()

    def at(self, name: str) -> str:
        """The path of a file or directory in it."""
        return f"{self.root}/{name}"


def content(length: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(length)


class ReadingTests:
    """The promises of a `Store` that is only read.

    Attributes:
        names: what files may be called.
        shows_versions: each answer to a read shows the version of the file.
    """

    names: ClassVar[tuple[str, ...]] = NAMES
    shows_versions: ClassVar[bool] = False

    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    # stat, list, find

    def test_stat_of_a_file(self, place: Place) -> None:
        place.put(place.at("file"), b"12345")
        found = place.store.stat(place.at("file"))
        assert (found.path, found.name, found.kind, found.size_bytes) == (place.at("file"), "file", FILE, 5)
        assert not found.is_link

    def test_stat_of_a_directory(self, place: Place) -> None:
        place.put(place.at("run/file"), b"12345")
        assert place.store.stat(place.at("run")).kind == DIRECTORY
        assert place.store.stat(place.at("run")).path == place.at("run")

    @pytest.mark.parametrize("look", ["stat", "list", "open", "beginning"])
    def test_nothing_is_there(self, place: Place, look: str) -> None:
        place.put(place.at("gone-by"), b"a name that begins alike")
        path = place.at("gone")
        attempts: dict[str, Callable[[], object]] = {
            "stat": lambda: place.store.stat(path),
            "list": lambda: place.store.list(path),
            "open": lambda: place.store.open(path),
            "beginning": lambda: place.store.read_beginning(path, 100),
        }
        with pytest.raises(FileNotFoundError) as caught:
            attempts[look]()
        reason = place.store.reason_of(caught.value, path)
        assert reason
        assert reason.text == "no such file or directory"
        assert not reason.transient

    def test_a_version_differs_when_the_content_does(self, place: Place) -> None:
        versions = set()
        for text in (b"one", b"two", b"three", b"four!"):
            place.put(place.at("file"), text)
            versions.add(place.store.stat(place.at("file")).file_version)
        assert len(versions) == 4

    def test_a_version_is_the_same_however_it_is_looked_for(self, place: Place) -> None:
        place.put(place.at("run/file"), b"content")
        [listed], [found] = place.store.list(place.at("run")), place.store.find(place.root)
        with closing(place.store.open(place.at("run/file"))) as reader:
            want = place.store.stat(place.at("run/file")).file_version
            assert (listed.file_version, found.file_version, reader.version) == (want, want, want)

    def test_list_of_a_directory(self, place: Place) -> None:
        for name in ("file", "run/file", "run/deep/file", "other"):
            place.put(place.at(name), name.encode())
        assert sorted(
            (each.path, each.kind, each.size_bytes * (each.kind == FILE)) for each in place.store.list(place.root)
        ) == [
            (place.at("file"), FILE, 4),
            (place.at("other"), FILE, 5),
            (place.at("run"), DIRECTORY, 0),
        ]

    def test_list_of_a_file_is_the_file(self, place: Place) -> None:
        place.put(place.at("file"), b"12345")
        place.put(place.at("file-2"), b"123")
        [found] = place.store.list(place.at("file"))
        assert (found.path, found.kind, found.size_bytes) == (place.at("file"), FILE, 5)

    def test_find(self, place: Place) -> None:
        names = ["b", "a/z", "a/b/c", "a-1", "a.b", "empty"]
        for name in names:
            place.put(place.at(name), b"" if name == "empty" else name.encode())
        found = place.store.find(place.root)
        assert [each.path for each in found] == sorted(place.at(name) for name in names)
        assert {each.kind for each in found} == {FILE}
        assert [each.name for each in place.store.find(place.at("a"))] == ["c", "z"]

    def test_find_of_nothing_is_nothing(self, place: Place) -> None:
        assert list(place.store.find(place.at("gone"))) == []

    def test_odd_names_are_read(self, place: Place) -> None:
        for name in self.names:
            path, data = place.at(f"{name}/{name}"), name.encode()
            place.put(path, data)
            assert place.store.stat(path).size_bytes == len(data), name
            assert place.store.read_beginning(path, 100) == data, name
            assert [each.path for each in place.store.list(place.at(name))] == [path]
        assert _kinds(place.store.list(place.root), place) == dict.fromkeys(self.names, DIRECTORY)
        assert sorted(each.name for each in place.store.find(place.root)) == sorted(self.names)

    # reading

    def test_reading_at_offsets_into_several_parts(self, place: Place) -> None:
        data = content(100_000)
        place.put(place.at("file"), data)
        with closing(place.store.open(place.at("file"))) as reader:
            assert reader.size_bytes == len(data)
            for offset, lengths in ((0, [100_000]), (0, [1]), (12_345, [1, 70_000, 17, 3]), (99_999, [1])):
                assert _read(reader, offset, lengths) == data[offset : offset + sum(lengths)]

    def test_reading_beyond_the_end_gives_what_is_there(self, place: Place) -> None:
        data = content(1000)
        place.put(place.at("file"), data)
        place.put(place.at("empty"), b"")
        with closing(place.store.open(place.at("file"))) as reader:
            assert _read(reader, 900, [60, 60]) == data[900:]
            assert _read(reader, 1000, [10]) == b""
            assert _read(reader, 5000, [10]) == b""
        with closing(place.store.open(place.at("empty"))) as reader:
            assert reader.size_bytes == 0
            assert _read(reader, 0, [10]) == b""

    def test_a_directory_cannot_be_opened(self, place: Place) -> None:
        place.put(place.at("run/file"), b"12345")
        with pytest.raises(IsADirectoryError) as caught:
            place.store.open(place.at("run"))
        assert place.store.reason_of(caught.value, place.at("run"))

    def test_reading_a_file_that_was_replaced(self, place: Place) -> None:
        place.put(place.at("file"), b"1" * 1000)
        with closing(place.store.open(place.at("file"))) as reader:
            place.put(place.at("file"), b"2" * 1000)
            if self.shows_versions:
                assert reader.is_proven
                with pytest.raises(ChangedFileError):
                    _read(reader, 0, [1000])
            else:
                assert not reader.is_proven
                assert reader.version != place.store.stat(place.at("file")).file_version

    def test_a_file_of_an_expected_version_is_read(self, place: Place) -> None:
        place.put(place.at("file"), b"12345")
        version = place.store.stat(place.at("file")).file_version
        with closing(place.store.open(place.at("file"), version)) as reader:
            assert (reader.size_bytes, reader.version) == (5, version)
            assert _read(reader, 1, [3]) == b"234"
        place.put(place.at("file"), b"54321")
        if self.shows_versions:
            with closing(place.store.open(place.at("file"), version)) as reader, pytest.raises(ChangedFileError):
                _read(reader, 1, [3])

    @pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 100_000])
    def test_the_beginning_of_a_file(self, place: Place, length: int) -> None:
        data = content(length)
        place.put(place.at("file"), data)
        assert place.store.read_beginning(place.at("file"), 100) == data[:100]

    # what it says of itself

    def test_its_url_leads_to_it_again(self, place: Place) -> None:
        for name in ("", *(f"/{name}" for name in self.names)):
            path = place.root + name
            found = parse_url(place.store.url(path))
            assert found.path == path
            assert found.store == place.store
            assert found.store.is_same(place.store)
            assert place.store.is_same(found.store)

    def test_it_is_not_the_same_as_another(self, place: Place) -> None:
        class Other(Store):
            pass

        Other.__abstractmethods__ = frozenset()
        assert not place.store.is_same(Other())  # type: ignore[abstract]

    def test_an_error_of_somebody_else_is_not_explained(self, place: Place) -> None:
        assert place.store.reason_of(ValueError("of somebody else"), place.at("file")) is None

    def test_it_shows_no_secrets(self, place: Place) -> None:
        shown = f"{place.store!r} {place.store!s} {place.store.url(place.root)} {vars(place.store)}"
        assert [secret for secret in place.secrets if secret in shown] == []


class StoreTests(ReadingTests):
    """All promises of `Store`.

    Attributes:
        judges_conditions: the server behind `put_if` replaces only what has the version.
        tells_missing: to remove what is not there is an error.
        hides_unfinished: a file that is being written is not seen.
    """

    judges_conditions: ClassVar[bool] = True
    tells_missing: ClassVar[bool] = True
    hides_unfinished: ClassVar[bool] = True

    def test_odd_names_are_written(self, place: Place) -> None:
        for name in self.names:
            path, data = place.at(f"{name}/{name}"), name.encode()
            place.store.put(path, data)
            assert place.get(path) == data, name
            place.store.copy(path, place.at(f"copy/{name}"))
            assert place.get(place.at(f"copy/{name}")) == data, name
            place.store.remove(path)
            assert place.get(path) is None, name
        assert sorted(each.name for each in place.store.find(place.root)) == sorted(self.names)

    def test_copying_nothing(self, place: Place) -> None:
        with pytest.raises(FileNotFoundError) as caught:
            place.store.copy(place.at("gone"), place.at("copy"))
        assert place.store.reason_of(caught.value, place.at("gone"))

    def test_put(self, place: Place) -> None:
        for data in (b"first", b"", b"second, which is longer"):
            version = place.store.put(place.at("new/file"), data)
            assert place.get(place.at("new/file")) == data
            assert version in ("", place.store.stat(place.at("new/file")).version)

    def test_put_if(self, place: Place) -> None:
        store, path = place.store, place.at("file")
        if not store.puts_conditionally:
            with pytest.raises(NotImplementedError):
                store.put_if(path, b"x", "1")
            return
        first = store.put(path, b"first")
        second = store.put_if(path, b"second", first)
        assert second == store.stat(path).version
        assert place.get(path) == b"second"
        if not self.judges_conditions:
            return
        assert store.put_if(path, b"third", first) is None
        assert place.get(path) == b"second"
        place.put(path, b"somebody else's")
        assert store.put_if(path, b"third", second or "") is None
        assert place.get(path) == b"somebody else's"
        assert store.put_if(place.at("gone"), b"x", first) is None
        assert place.get(place.at("gone")) is None

    @pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
    def test_writing_a_file(self, place: Place, length: int) -> None:
        data = content(length)
        output = place.store.create(place.at("new/file"), BUFFERS)
        buffer = bytearray(700_001)
        for start in range(0, length, len(buffer)):
            piece = data[start : start + len(buffer)]
            buffer[: len(piece)] = piece
            output.write(memoryview(buffer)[: len(piece)])  # used again for the next one
        if self.hides_unfinished:
            assert place.get(place.at("new/file")) is None
            assert [each for each in place.store.find(place.at("new")) if each.name == "file"] == []
        output.finish()
        assert place.get(place.at("new/file")) == data
        assert place.store.stat(place.at("new/file")).size_bytes == length

    @pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
    def test_discarding_a_file_leaves_what_was_there(self, place: Place, length: int) -> None:
        place.put(place.at("old"), b"old")
        for name in ("old", "new") if self.hides_unfinished else ("new",):
            output = place.store.create(place.at(name), BUFFERS)
            output.write(content(length))
            output.discard()
        assert place.get(place.at("old")) == b"old"
        assert place.get(place.at("new")) is None
        assert [each.path for each in place.store.find(place.root)] == [place.at("old")]
        assert list(place.store.abandoned(place.root)) == []

    def test_a_file_replaces_another_when_it_is_finished(self, place: Place) -> None:
        place.put(place.at("file"), b"old")
        output = place.store.create(place.at("file"), BUFFERS)
        output.write(b"new content")
        if self.hides_unfinished:
            assert place.get(place.at("file")) == b"old"
        output.finish()
        assert place.get(place.at("file")) == b"new content"

    @pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
    def test_copy(self, place: Place, length: int) -> None:
        data = content(length)
        place.put(place.at("file"), data)
        place.put(place.at("old"), b"old")
        for name in ("new/copy", "old"):
            place.store.copy(place.at("file"), place.at(name))
            assert place.get(place.at(name)) == data
        assert place.get(place.at("file")) == data

    def test_remove(self, place: Place) -> None:
        for name in ("file", "file-2", "file.d/inner"):
            place.put(place.at(name), b"x")
        place.store.remove(place.at("file"))
        assert place.get(place.at("file")) is None
        assert [each.path for each in place.store.find(place.root)] == [place.at("file-2"), place.at("file.d/inner")]

    def test_removing_nothing(self, place: Place) -> None:
        if not self.tells_missing:
            place.store.remove(place.at("gone"))
            return
        with pytest.raises(FileNotFoundError) as caught:
            place.store.remove(place.at("gone"))
        assert place.store.reason_of(caught.value, place.at("gone"))

    def test_abandoned_uploads(self, place: Place) -> None:
        assert place.store.keeps_parts == (place.upload is not None)
        assert list(place.store.abandoned(place.root)) == []
        if place.upload is None:
            return
        begun = {name: place.upload(place.at(name)) for name in ("run/file", "run-2/file", "file")}
        found = {each.path: each for each in place.store.abandoned(place.root)}
        assert {path: each.upload_id for path, each in found.items()} == {
            place.at(name): upload_id for name, upload_id in begun.items()
        }
        assert [each.path for each in place.store.abandoned(place.at("run"))] == [place.at("run/file")]
        assert [each.path for each in place.store.abandoned(place.at("file"))] == [place.at("file")]
        for each in found.values():
            place.store.abort(each)
            place.store.abort(each)  # it is gone already
        assert list(place.store.abandoned(place.root)) == []


class ObjectStoreTests(StoreTests):
    """And what holds where directories are prefixes of names."""

    shows_versions: ClassVar[bool] = True

    def test_what_it_can_do(self, place: Place) -> None:
        store = place.store
        assert (store.has_paths, store.renames, store.is_near) == (False, False, False)
        assert store.puts_conditionally


class MarkedStoreTests(ObjectStoreTests):
    """And where an empty object can stand for a directory.

    Attributes:
        lists_empty: a directory is there if nothing else is in it.
    """

    lists_empty: ClassVar[bool] = True

    def test_what_marks_a_directory_is_a_directory(self, place: Place) -> None:
        assert place.mark
        for name in ("run", "run/inner", "only"):
            place.mark(place.at(name))
        place.put(place.at("run/file"), b"x")
        place.put(place.at("run/empty"), b"")
        assert place.store.stat(place.at("run")).kind == DIRECTORY
        assert _kinds(place.store.list(place.root), place) == dict.fromkeys(
            ["run"] + ["only"] * self.lists_empty, DIRECTORY
        )
        assert _kinds(place.store.list(place.at("run")), place) == {
            "run/file": FILE,
            "run/empty": FILE,
        } | ({"run/inner": DIRECTORY} if self.lists_empty else {})
        assert [each.path for each in place.store.find(place.root)] == [place.at("run/empty"), place.at("run/file")]


def _read(reader: Reader, offset: int, lengths: list[int]) -> bytes:
    parts = [bytearray(length) for length in lengths]
    count = reader.read_into(offset, [memoryview(part) for part in parts])
    return b"".join(parts)[:count]


def _kinds(entries: object, place: Place) -> dict[str, str]:
    assert isinstance(entries, list | tuple)
    found: list[Entry] = list(entries)
    return {each.path.removeprefix(f"{place.root}/"): each.kind for each in found}

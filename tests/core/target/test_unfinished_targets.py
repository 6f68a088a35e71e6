"""Targets that an earlier version left unfinished: completed without a change to what is there."""

import fsspec
import pytest

import reshard
from tests.support.unfinished_targets import CASES, in_memory, target_of


@pytest.mark.parametrize("name", CASES)
def test_what_an_earlier_version_began_is_completed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNFINISHED_KEY", "0123456789abcdef")
    options = {**CASES[name]}
    begun = options.pop("ranks")
    with in_memory() as memory:
        before = _files(memory, name)
        report = reshard.convert(**options, target=target_of(name))
        resumed = [each.rank for each in report.ranks if each.outcome == "resumed"]
        assert resumed == ([0, 1] if begun == "0-1" else [int(begun)])
        assert report.committed
        after = _files(memory, name)
        assert before
        assert before.items() <= after.items()
        reshard.convert(**options, target=target_of("anew"))
        anew = _files(memory, "anew")
        if "encrypt_key" in options:  # each encryption has random numbers of its own
            assert anew.keys() == after.keys()
        else:
            assert anew == after


def _files(memory: fsspec.AbstractFileSystem, name: str) -> dict[str, bytes]:
    """The content of a target's files, without reshard's records, by their paths below the target."""
    root = f"/unfinished/{name}/"
    paths = [path for path in memory.find(root) if ".reshard" not in path]
    return {path.removeprefix(root): memory.cat_file(path) for path in paths}

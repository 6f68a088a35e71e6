"""Checkpoint 2.0 on an object store."""

from pathlib import Path

from reshard.core.conversion.convert import convert
from tests.support.checkpoints import read_tree
from tests.support.iterations import iteration_case
from tests.support.stores import Store


def test_an_iteration_is_read_by_ranges(store: Store, tmp_path: Path) -> None:
    for case in (iteration_case(4), iteration_case(5)):
        name = case.directory.name
        url = store.add(case.source, name)
        convert(case.request(tmp_path / name, url, verify="content"))
        assert read_tree(tmp_path / name) == case.want

"""Checkpoint 2.0 on an object store."""

from pathlib import Path

from reshard.core.conversion.convert import convert
from tests.support.checkpoints import read_tree
from tests.support.iterations import iteration_case, iteration_request, read_iteration, read_metadata, tracked
from tests.support.stores import Store


def test_an_iteration_is_read_by_ranges(store: Store, tmp_path: Path) -> None:
    for case in (iteration_case(4), iteration_case(5)):
        name = case.directory.name
        url = store.add(case.source, name)
        convert(case.request(tmp_path / name, url, verify="content"))
        assert read_tree(tmp_path / name) == case.want


def test_an_iteration_is_written_beside_others_and_tracked_last(store: Store, tmp_path: Path) -> None:
    case = iteration_case(2)
    url = store.add(iteration_case(6).source, "output")
    strategy = str(case.iteration / "metadata.json")
    request = iteration_request(case.source, url, target_strategy=strategy, verify="content")
    assert convert(request).committed
    output = store.files("output")
    made = output / case.iteration.name
    assert tracked(output) == "45960"
    assert read_metadata(made) == read_metadata(case.iteration)
    assert read_iteration(made) == read_iteration(case.iteration)
    assert (output / "iteration_00000040" / "metadata.json").exists()
    assert convert(request).written_bytes == 0
    convert(case.request(tmp_path / "back", url))
    assert read_tree(tmp_path / "back") == case.want

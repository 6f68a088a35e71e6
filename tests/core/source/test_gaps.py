"""Parameters that some or all files of a source lack, and files of different steps."""

from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError
from reshard.core.request.source import SourceRequest
from reshard.core.source.recovery import assess_recovery
from tests.support.checkpoints import read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.damaged import entries_of, file_of, request_of, whole_model, whole_shards


@pytest.mark.parametrize(
    "drop",
    [
        pytest.param({0: {"b"}, 1: {"b"}, 2: {"c"}, 3: {"a"}, 4: {"a"}, 5: {"c"}}, id="two copies"),
        pytest.param(
            {0: {"b", "c"}, 1: {"b", "c"}, 2: {"a", "c"}, 3: {"a", "c"}, 4: {"a", "b"}, 5: {"a", "b"}}, id="one"
        ),
    ],
)
def test_entries_on_some_ranks_only(tmp_path: Path, drop: dict[int, set[str]]) -> None:
    report = convert(request_of(whole_shards(tmp_path, drop)))
    assert read_tree(tmp_path / "out")[0] == whole_model()
    assert any(
        "redundancy was removed from the source, judging by the contents of its files" in note for note in report.notes
    )


def test_parameters_that_no_file_holds_are_named(tmp_path: Path) -> None:
    """All files were cut off before 'c', or it was never saved: the whole model lacks it, which has to be said."""
    directory = whole_shards(tmp_path, {rank: {"c"} for rank in range(6)})
    message = "in the source's strategy, but in NO file, and so not in the result: c"
    assert message in convert(request_of(directory)).notes
    assert message in assess_recovery(SourceRequest.of(request_of(directory))).notes
    assert read_tree(tmp_path / "out")[0].keys() == {"a", "b"}


def test_a_file_cut_off_behind_all_that_its_strategy_gives_it(tmp_path: Path) -> None:
    """Each slice has all of its copies, but what no strategy knows comes from other ranks, and may be wrong there."""
    directory = whole_shards(tmp_path)
    for rank in range(6):
        extras = [("rng", "Int32", (), bytes([rank, 0, 0, 0])), ("note", "str", (0,), f"of {rank}".encode("utf-32-le"))]
        entries = [*entries_of(file_of(directory, rank)), *(() if rank == 4 else extras)]
        file_of(directory, rank).write_bytes(checkpoint_bytes(*entries))
    notes = convert(request_of(directory)).notes
    assert (
        "not in any strategy, and NOT on rank_4, whose files may have been cut off: rng, note; their values are taken "
        "from other ranks"
    ) in notes
    assert any("different on different source ranks: rng, note; " in note for note in notes)


@pytest.mark.parametrize("differs", [True, False])
def test_large_parameters_of_no_strategy_that_differ_between_ranks_are_noted(differs: bool, tmp_path: Path) -> None:
    """Contents of more than a megabyte are not compared whole."""
    directory = whole_shards(tmp_path)
    for rank in range(6):
        buffer = ("buffer", "UInt8", (2**20 + 1,), bytes([rank if differs else 7]) * (2**20 + 1))
        file_of(directory, rank).write_bytes(checkpoint_bytes(*entries_of(file_of(directory, rank)), buffer))
    notes = convert(request_of(directory)).notes
    said = "in no strategy, but different on different source ranks, as samples show: buffer; every target rank gets"
    assert any(note.startswith(said) for note in notes) == differs


def test_files_of_an_older_step_under_the_new_ones_name(tmp_path: Path) -> None:
    """One of them may even stand in for a lost rank."""
    directory = whole_shards(tmp_path)
    for rank in range(6):
        step = ("step_num", "Int32", (), bytes([80 if rank in (2, 5) else 120, 0, 0, 0]))
        file_of(directory, rank).write_bytes(checkpoint_bytes(*entries_of(file_of(directory, rank)), step))
    request = request_of(directory, recover=True, fault_ranks="0")
    message = (
        "the source's files are of DIFFERENT STEPS, by their 'step_num': one on rank_1, rank_3, rank_4, another on "
        "rank_2, rank_5"
    )
    with pytest.raises(
        CatalogError, match=f"{message}. Name another step with 'step', or the ranks whose files are stale"
    ):
        convert(request)
    assert assess_recovery(SourceRequest.of(request)).notes[0] == message
    assert convert(request.model_copy(update={"append_info": ["step_num=120"]})).committed

import re

import pytest

from reshard.core.checkpoint.selection import FileSelection, select_files
from reshard.core.errors import CatalogError
from reshard.core.files.file_names import Step, parse_name
from reshard.core.files.model import CheckpointFormat


def select(
    *folders: str, step: str | None = None, source_prefix: str | None = None, named: bool = False
) -> FileSelection:
    """Selects among folders given as "name name …", rank 0's first."""
    found = {}
    for rank, folder in enumerate(folders):
        names = [parse_name(name) for name in folder.split()]
        found[rank] = [name for name in names if name is not None]
    return select_files("/ck", found, step=step, source_prefix=source_prefix, named=named)


def chosen(selection: FileSelection) -> list[str]:
    return [selection.names[rank].name for rank in sorted(selection.names)]


def refused(*folders: str, **options: str) -> str:
    with pytest.raises(CatalogError) as caught:
        select(*folders, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.startswith("/ck") or "EPOCH_STEP" in message
    return message


def test_newest_step_by_number_not_by_letter() -> None:
    selection = select("CKP-9_5.ckpt CKP-10_5.ckpt CKP-10_11.ckpt CKP-10_9.ckpt")
    assert chosen(selection) == ["CKP-10_11.ckpt"]
    assert selection.step == Step(10, 11)
    assert selection.format is CheckpointFormat.CKPT
    assert selection.notes == ("using step 10_11 of prefix CKP, the newest that all ranks have (CKP-10_11.ckpt)",)


def test_newest_step_that_every_rank_has() -> None:
    selection = select(
        "CKP-1_5.ckpt CKP-2_5.ckpt CKP-3_5.ckpt", "CKP-1_5.ckpt CKP-2_5.ckpt", "CKP-2_5.ckpt CKP-3_5.ckpt CKP-4_5.ckpt"
    )
    assert chosen(selection) == ["CKP-2_5.ckpt"] * 3
    assert selection.notes == (
        "using step 2_5 of prefix CKP, the newest that all ranks have (CKP-2_5.ckpt on rank_0, 3 ranks)",
        "ignored newer steps that are incomplete: 4_5 (not on rank_0, rank_1), 3_5 (not on rank_1)",
    )


def test_no_step_on_all_ranks() -> None:
    message = refused("CKP-1_5.ckpt", "CKP-2_5.ckpt")
    assert message == "/ck, prefix CKP: no step that all ranks have: 2_5 (not on rank_0), 1_5 (not on rank_1)"


def test_step_as_asked() -> None:
    selection = select("CKP-1_5.ckpt CKP-10_5.ckpt", "CKP-1_5.ckpt CKP-10_5.ckpt CKP-11_5.ckpt", step="1_5")
    assert chosen(selection) == ["CKP-1_5.ckpt"] * 2
    assert selection.notes == ("using step 1_5 of prefix CKP, as asked (CKP-1_5.ckpt on rank_0, 2 ranks)",)


def test_asked_step_missing_on_some_ranks() -> None:
    folder = "CKP-9_5.ckpt CKP-10_5.ckpt"
    message = refused(folder + " CKP-11_5.ckpt", folder, folder, step="11_5")
    assert message == "/ck, prefix CKP: step 11_5 is missing on rank_1, rank_2; all ranks have 10_5, 9_5"


def test_asked_step_missing_and_none_common() -> None:
    message = refused("CKP-1_5.ckpt", "CKP-2_5.ckpt", step="3_5")
    assert message == "/ck, prefix CKP: step 3_5 is missing on rank_0, rank_1; no step is on all ranks"


def test_step_that_is_not_one() -> None:
    assert "'ten'" in refused("CKP-1_5.ckpt", step="ten")


def test_asked_step_but_names_carry_none() -> None:
    message = refused("checkpoint_0.ckpt", "checkpoint_1.ckpt", step="1_5")
    assert message == "/ck: step 1_5 was asked for, but the names of the files carry no step"


def test_breakpoint_files_are_ignored_unless_asked_for() -> None:
    folder = "CKP-9_5.ckpt CKP-10_5_breakpoint.ckpt CKP-11_5_breakpoint.ckpt"
    selection = select(folder, folder)
    assert chosen(selection) == ["CKP-9_5.ckpt"] * 2
    assert selection.notes[1:] == (
        "ignored checkpoints saved on an exception, which 'step' can ask for: 11_5_breakpoint, 10_5_breakpoint",
    )
    asked = select(folder, folder, step="10_5_breakpoint")
    assert chosen(asked) == ["CKP-10_5_breakpoint.ckpt"] * 2
    assert asked.step == Step(10, 5, breakpoint=True)


def test_breakpoint_of_the_same_step_is_not_the_step() -> None:
    folder = "CKP-9_5.ckpt CKP-9_5_breakpoint.ckpt"
    assert chosen(select(folder, step="9_5")) == ["CKP-9_5.ckpt"]


def test_breakpoint_prefix_is_no_rival() -> None:
    folder = "CKP-9_5.ckpt CKP_1-1_5_breakpoint.ckpt"
    assert chosen(select(folder, folder)) == ["CKP-9_5.ckpt"] * 2


def test_only_breakpoint_files() -> None:
    message = refused("CKP-9_5.ckpt", "CKP-9_5_breakpoint.ckpt CKP-10_5_breakpoint.ckpt")
    assert message == (
        "/ck: rank_1: only checkpoints saved on an exception; they are used if 'step' asks for one: "
        "10_5_breakpoint, 9_5_breakpoint"
    )


def test_breakpoint_file_that_the_user_named() -> None:
    assert chosen(select("CKP-9_5_breakpoint.ckpt", named=True)) == ["CKP-9_5_breakpoint.ckpt"]


def test_prefixes_that_differ_in_a_number_may_be_ranks() -> None:
    assert refused("ckpt_0.ckpt ckpt_1.ckpt ckpt_2.ckpt") == (
        "/ck: checkpoints of several prefixes: ckpt_0, ckpt_1, ckpt_2. If their numbers are ranks, name "
        "/ck/ckpt_{rank}.ckpt and its strategy; if each is whole, 'source_prefix' chooses one"
    )
    assert "name /ck/a2b{rank}c-1_2.safetensors and" in refused("a2b0c-1_2.safetensors a2b13c-1_2.safetensors")
    assert "ranks" not in refused("a_0.ckpt b_1.ckpt") + refused("a.ckpt a_1.ckpt") + refused("a_00.ckpt a_01.ckpt")


def test_several_prefixes() -> None:
    folder = "CKP-9_5.ckpt CKP_1-10_5.ckpt"
    message = refused(folder, folder)
    assert message == "/ck: checkpoints of several prefixes: CKP, CKP_1. 'source_prefix' chooses one"
    assert chosen(select(folder, folder, source_prefix="CKP")) == ["CKP-9_5.ckpt"] * 2
    assert chosen(select(folder, folder, source_prefix="CKP_1")) == ["CKP_1-10_5.ckpt"] * 2


def test_steps_are_never_mixed_across_prefixes() -> None:
    message = refused("CKP-9_5.ckpt", "CKP_1-9_5.ckpt")
    assert message == "/ck: no prefix of file names that all 2 ranks have: CKP (rank_0), CKP_1 (rank_1)"


def test_prefix_of_some_ranks_is_ignored_with_a_note() -> None:
    selection = select("CKP-9_5.ckpt CKP_2-10_5.ckpt", "CKP-9_5.ckpt")
    assert chosen(selection) == ["CKP-9_5.ckpt"] * 2
    assert selection.notes[1:] == ("ignored prefixes that not all ranks have: CKP_2 (rank_0)",)


def test_unknown_source_prefix() -> None:
    message = refused("CKP-9_5.ckpt", "CKP-9_5.ckpt", source_prefix="CPK")
    assert message == (
        "/ck: no files of prefix CPK ('source_prefix') for rank_0, rank_1. There are: CKP (rank_0, rank_1)"
    )


@pytest.mark.parametrize("source_prefix", [None, "pangu{rank}", "pangu1", "pangu0"])
def test_prefix_with_the_rank(source_prefix: str | None) -> None:
    selection = select("pangu0-100_2.ckpt", "pangu1-100_2.ckpt", source_prefix=source_prefix)
    assert chosen(selection) == ["pangu0-100_2.ckpt", "pangu1-100_2.ckpt"]
    assert "step 100_2 of prefix pangu{rank}" in selection.notes[0]


def test_second_run_can_be_asked_for_where_it_looks_like_a_rank() -> None:
    folders = [f"CKP_{rank}-1_1.ckpt CKP_1-2_2.ckpt CKP_1-1_1.ckpt" for rank in range(3)]
    assert chosen(select(*folders, source_prefix="CKP_1")) == ["CKP_1-2_2.ckpt"] * 3
    assert chosen(select(*folders, source_prefix="CKP_{rank}", step="1_1")) == [
        "CKP_0-1_1.ckpt",
        "CKP_1-1_1.ckpt",
        "CKP_2-1_1.ckpt",
    ]


def test_one_file_without_a_step() -> None:
    selection = select("checkpoint_0.ckpt", "checkpoint_1.ckpt")
    assert selection.step is None
    assert selection.notes == ("using files whose names have no step number (checkpoint_0.ckpt on rank_0, 2 ranks)",)


def test_one_file_each_may_be_named_anyhow() -> None:
    selection = select("first.ckpt", "second.ckpt")
    assert chosen(selection) == ["first.ckpt", "second.ckpt"]
    assert selection.notes[1:] == ("the names of the files differ: first (rank_0), second (rank_1)",)


def test_files_without_a_step_one_per_prefix() -> None:
    folders = ["a_0.ckpt b.ckpt", "a_1.ckpt b.ckpt"]
    assert chosen(select(*folders, source_prefix="a_{rank}")) == ["a_0.ckpt", "a_1.ckpt"]
    assert "a_{rank}, b" in refused(*folders)


def test_files_with_and_without_a_step() -> None:
    folder = "CKP.ckpt CKP-1_2.ckpt"
    message = refused(folder, folder)
    assert message == (
        "/ck, prefix CKP: CKP.ckpt carries no step, others do: it is unclear which is newer. 'step' chooses one of 1_2"
    )
    assert chosen(select(folder, folder, step="1_2")) == ["CKP-1_2.ckpt"] * 2


def test_file_without_a_step_on_some_ranks_only() -> None:
    message = refused("CKP.ckpt", "CKP-1_2.ckpt")
    assert message.endswith("1_2 (not on rank_0), the file without a step (not on rank_1)")


def test_mixed_formats() -> None:
    message = refused("CKP-1_2.ckpt", "CKP-1_2.safetensors")
    assert "CKP-1_2.ckpt (rank_0) and CKP-1_2.safetensors (rank_1)" in message
    assert "{rank}" in message
    assert "CKP-1_2.safetensors (rank_0)" in refused("CKP-1_2.ckpt CKP-1_2.safetensors")


def test_mixed_formats_among_breakpoint_files_do_not_matter() -> None:
    assert chosen(select("CKP-1_2.ckpt CKP-1_3_breakpoint.safetensors")) == ["CKP-1_2.ckpt"]


def test_long_lists_are_cut() -> None:
    folders = [f"run{chr(ord('a') + rank)}-1_1.ckpt" for rank in range(14)]
    message = refused(*folders)
    assert len(re.findall(r"run\w \(rank_\d+\)", message)) == 10
    assert message.endswith("and 4 more")

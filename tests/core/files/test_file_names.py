import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.files.file_names import (
    NO_EPOCH,
    CheckpointName,
    Step,
    group_prefixes,
    parse_name,
    parse_step,
)
from reshard.core.files.model import CheckpointFormat
from reshard.core.storage.patterns import spelled_for


@pytest.mark.parametrize(
    ("name", "prefix", "step"),
    [
        ("CKP-10_5.ckpt", "CKP", Step(10, 5)),
        ("CKP_1-0_5.ckpt", "CKP_1", Step(0, 5)),
        ("CKP-10_5_breakpoint.ckpt", "CKP", Step(10, 5, breakpoint=True)),
        ("llama-7b-3_4.safetensors", "llama-7b", Step(3, 4)),
        ("a-1_2-3_4.ckpt", "a-1_2", Step(3, 4)),
        ("checkpoint_3.ckpt", "checkpoint_3", None),
        ("v1.5-2_3.ckpt", "v1.5", Step(2, 3)),
        ("-1_2.ckpt", "-1_2", None),
        ("CKP-01_2.ckpt", "CKP-01_2", None),
        (f"CKP-{'9' * 400}_1.ckpt", f"CKP-{'9' * 400}_1", None),
        ("CKP-1_2_breakpoints.ckpt", "CKP-1_2_breakpoints", None),
    ],
)
def test_name_says_prefix_and_step(name: str, prefix: str, step: Step | None) -> None:
    file_format = CheckpointFormat(name.rsplit(".", 1)[1])
    assert parse_name(name) == CheckpointName(name, prefix, step, file_format)


@pytest.mark.parametrize(
    "name",
    ["CKP-graph.meta", ".CKP-1_2.ckpt", ".ckpt", "ckpt", "a.ckpt.tmp", "a.CKPT", "notes.txt", "x{rank}-1_2.ckpt", ""],
)
def test_other_names_are_no_checkpoint_files(name: str) -> None:
    assert parse_name(name) is None


@pytest.mark.parametrize("text", ["", "010", "10_", "10-5", "1_2_3", " 1_2", "1_2_Breakpoint", "-1_2", "1_02", "²_1"])
def test_what_is_not_a_step(text: str) -> None:
    assert parse_step(text) is None


def test_an_iteration_is_a_step_without_epoch() -> None:
    step = parse_step("40")
    assert step == Step(NO_EPOCH, 40)
    assert str(step) == "40"


@given(st.integers(0, 10**17), st.integers(0, 10**17), st.booleans())
def test_step_reads_back(epoch: int, step: int, at_breakpoint: bool) -> None:
    value = Step(epoch, step, at_breakpoint)
    assert parse_step(str(value)) == value


def test_steps_order_as_numbers() -> None:
    assert Step(9, 5) < Step(10, 5) < Step(10, 40) < Step(11, 0)


def groups(*prefixes: set[str]) -> dict[str, tuple[int, ...]]:
    return group_prefixes(dict(enumerate(prefixes)))


def test_same_prefix_on_all_ranks() -> None:
    assert groups({"CKP"}, {"CKP"}) == {"CKP": (0, 1)}


def test_prefix_with_the_rank_in_it() -> None:
    assert groups({"llama_rank_0"}, {"llama_rank_1"}) == {"llama_rank_{rank}": (0, 1)}


def test_another_number_in_the_prefix_may_equal_a_rank() -> None:
    prefixes = [{f"llama3_rank_{rank}"} for rank in range(5)]
    assert groups(*prefixes) == {"llama3_rank_{rank}": (0, 1, 2, 3, 4)}


def test_rank_may_occur_several_times() -> None:
    assert groups({"r0_of_0"}, {"r1_of_1"}) == {"r{rank}_of_{rank}": (0, 1)}


def test_rank_right_behind_another_number() -> None:
    prefixes = [{f"run1{rank}"} for rank in range(24)]
    assert groups(*prefixes) == {"run1{rank}": tuple(range(24))}


def test_second_run_is_not_taken_for_rank_1() -> None:
    assert groups({"CKP", "CKP_1"}, {"CKP", "CKP_1"}) == {"CKP": (0, 1), "CKP_1": (0, 1)}


def test_raw_prefix_of_all_ranks_beats_a_template() -> None:
    assert groups({"CKP_0", "CKP_1"}, {"CKP_1"}) == {"CKP_1": (0, 1), "CKP_0": (0,)}


def test_template_of_all_ranks_beats_a_raw_prefix_of_some() -> None:
    prefixes = [{f"CKP_{rank}"} for rank in range(4)]
    prefixes[3].add("CKP_1")
    assert groups(*prefixes) == {"CKP_{rank}": (0, 1, 2, 3), "CKP_1": (3,)}


def test_single_rank_has_no_templates() -> None:
    assert groups({"CKP_0", "CKP"}) == {"CKP": (0,), "CKP_0": (0,)}


def test_prefix_full_of_the_rank_does_not_explode() -> None:
    assert groups({"0" * 200}, {"1" * 200})


@given(
    st.lists(st.sets(st.text("ab01_", min_size=1, max_size=5), max_size=4), min_size=1, max_size=4),
)
def test_every_prefix_belongs_to_exactly_one_group(prefixes: list[set[str]]) -> None:
    grouped = groups(*prefixes)
    members = sorted((rank, spelled_for(spelling, rank)) for spelling, ranks in grouped.items() for rank in ranks)
    assert members == sorted((rank, prefix) for rank, ours in enumerate(prefixes) for prefix in ours)

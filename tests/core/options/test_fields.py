"""Types of fields: steps, sizes and ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.options.fields import parse_ranks, parse_size
from reshard.core.runtime.wording import size_text
from tests.support.requests import refusal, request


@pytest.mark.parametrize("step", ["", "10_5", "0_0", "10_5_breakpoint", "40"])
def test_steps(step: str) -> None:
    assert request(step=step).step == step


@pytest.mark.parametrize("step", ["10-5", "10_5_", "_5", "10_5_6", "10_5_Breakpoint", " 10_5", "10_5\n", "-1_5"])
def test_what_is_no_step(step: str) -> None:
    assert "must be EPOCH_STEP" in refusal(step=step)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1024", 1024),
        ("1024B", 1024),
        ("2GiB", 2**31),
        ("2gib", 2**31),
        ("0.5 GiB", 2**29),
        (" 512 MiB ", 2**29),
        ("1.5KB", 1500),
        ("3MB", 3_000_000),
        ("4GB", 4 * 10**9),
        ("1TB", 10**12),
        ("1TiB", 2**40),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("count_bytes", [0, 1023, 1536, 5 * 2**19, 2**30, 3 * 2**39, 2**50])
def test_sizes_are_accepted_as_they_are_printed(count_bytes: int) -> None:
    assert parse_size(size_text(count_bytes)) == count_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1e9", "1,5GiB", "1.GiB", "2 G B", "2EiB", "2G", "inf", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="must be a size such as 512MiB or 2GiB"):
        parse_size(text)


def test_a_size_beyond_all_measure() -> None:
    assert request(memory_limit="9" * 400 + "GiB").memory_limit_bytes > 10**400


@given(st.integers(0, 2**70), st.sampled_from(["", "B", "KiB", "MiB", "GiB", "TiB"]))
def test_whole_sizes_are_exact(count: int, unit: str) -> None:
    factor = 1 if unit in ("", "B") else 1024 ** ("KMGT".index(unit[0]) + 1)
    assert parse_size(f"{count}{unit}") == count * factor


def test_the_smallest_memory_limit() -> None:
    assert request(memory_limit="16MiB").memory_limit_bytes == 16 * 2**20
    assert "must be at least 16MiB" in refusal(memory_limit="16777215")


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("", ()),
        ("  ", ()),
        ("5", (5,)),
        ("0-3,7", (0, 1, 2, 3, 7)),
        ("7, 2 - 3 ,3", (2, 3, 7)),
        ("4-4", (4,)),
        ("1,2,", (1, 2)),
        ("1000000", (1_000_000,)),
    ],
)
def test_ranks(text: str, ranks: tuple[int, ...]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["-1", "3-1", "a", "1-2-3", "0x1", "1;2", "1 2", ",", " , ,", "0-1000001", "1.5"])
def test_what_are_no_ranks(text: str) -> None:
    with pytest.raises(ValueError, match="must be ranks such as 0-3,7"):
        parse_ranks(text)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_any_list_of_ranks(ranks: set[int]) -> None:
    assert parse_ranks(",".join(map(str, ranks))) == tuple(sorted(ranks))

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reshard.core.errors import CatalogError, CheckpointError, InputError, StorageError
from reshard.core.files.any_format import read_index
from reshard.core.files.ckpt_writing import expected_heads
from reshard.core.files.model import FileIndex, OutputEntry
from reshard.core.files.remote_index.indexing import Answer, Indexed, Item, Workers, read_indexes
from reshard.core.runtime.retry import count_retry, counting_retries
from reshard.core.storage.reading import SourceFile
from reshard.core.tensor.dtypes import TEXT, dtype_from_name
from tests.support.ckpt_writer import blob
from tests.support.remote_file import RemoteFile, planned_parts, sparse_file

MIB = 2**20
BYTES = dtype_from_name("Int8")


@pytest.fixture(scope="module")
def threads() -> Iterator[Workers]:
    with ThreadPoolExecutor(4) as pool:
        yield Workers(pool)


def indexed(
    files: Sequence[SourceFile], threads: Workers, *, assume_alike: bool = True
) -> Mapping[int, Indexed | InputError]:
    return read_indexes(dict(enumerate(files)), threads, assume_alike=assume_alike)


def assumed(found: Mapping[int, Indexed | InputError]) -> list[int]:
    return sorted(rank for rank, outcome in found.items() if isinstance(outcome, Indexed) and outcome.assumed)


def stage(first_layer: int, *, layers: int = 25, shape: tuple[int, ...] = (8, MIB)) -> list[OutputEntry]:
    """225 entries of 1 to 8 MiB."""
    return [
        OutputEntry(f"layers.{layer:02}.{part}", BYTES, (part % shape[0] + 1, *shape[1:]))
        for layer in range(first_layer, first_layer + layers)
        for part in range(9)
    ]


def test_one_of_eight_equal_files_is_walked_the_others_compared_in_one_round(threads: Workers) -> None:
    files = [sparse_file(stage(0)) for _ in range(8)]
    found = indexed(files, threads)
    assert assumed(found) == [1, 2, 3, 4, 5, 6, 7]
    assert len({id(outcome.index) for outcome in found.values() if isinstance(outcome, Indexed)}) == 1
    assert found[0] == Indexed(read_index(sparse_file(stage(0))))
    walked, *others = files
    assert len(walked.rounds) <= 15
    assert all(len(file.rounds) == 1 and file.requests <= 10 and file.read_bytes < 2**14 for file in others)


def test_one_file_of_each_stage_is_walked_though_all_are_of_one_size(threads: Workers) -> None:
    files = [sparse_file(stage(25 * (rank // 4))) for rank in range(16)]
    assert len({file.size_bytes for file in files}) == 1
    found = indexed(files, threads)
    assert assumed(found) == [rank for rank in range(16) if rank % 4]
    for rank, outcome in found.items():
        assert isinstance(outcome, Indexed)
        assert outcome.index == read_index(sparse_file(stage(25 * (rank // 4))))
    assert all(len(file.rounds) <= 17 for file in files)


def test_files_of_other_sizes_are_walked(threads: Workers) -> None:
    files = [sparse_file(stage(0, layers=layers)) for layers in (3, 4, 3, 5)]
    assert assumed(indexed(files, threads)) == [2]


def test_files_of_one_name_in_many_orders_are_not_walked_one_after_another(threads: Workers) -> None:
    """Of those of one size whose first parameter is the same more are walked in each wave."""
    names = [f"w{number:02}" for number in range(20)]

    def order(rank: int) -> list[str]:
        return ["first", *names[rank:], *names[:rank], "last"]

    files = [sparse_file([OutputEntry(name, BYTES, (MIB,)) for name in order(rank)]) for rank in range(20)]
    found = indexed(files, threads)
    for rank, outcome in found.items():
        assert isinstance(outcome, Indexed)
        if not outcome.assumed:
            assert list(outcome.index.entries) == order(rank)
    # compared with those of each wave before: one, one, two, four, eight files
    assert max(sum(1 for ranges in file.rounds if (0, 256) in ranges or ranges[0][0] == 0) for file in files) <= 7


def test_nothing_is_assumed_if_it_must_not_be(threads: Workers) -> None:
    files = [sparse_file(stage(0)) for _ in range(3)]
    found = indexed(files, threads, assume_alike=False)
    assert assumed(found) == []
    assert list(found.values()) == [Indexed(read_index(sparse_file(stage(0))))] * 3


def test_files_with_texts_are_all_walked(threads: Workers) -> None:
    files = [sparse_file([*stage(0, layers=3), OutputEntry("note", TEXT, (4,), text)]) for text in "abca"]
    found = indexed(files, threads)
    assert assumed(found) == []
    assert [outcome.index.entries["note"].text for outcome in found.values() if isinstance(outcome, Indexed)] == list(
        "abca"
    )


def test_files_that_cannot_be_foreseen_are_walked_at_once_not_in_ever_larger_waves() -> None:
    waves: list[int] = []

    class Counting(Workers):
        def outcomes(self, work: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer | InputError]:
            items = list(items)
            waves.append(len(items))
            return super().outcomes(work, items)

    text = OutputEntry("note", TEXT, (4,), "a")
    with ThreadPoolExecutor(2) as pool:
        indexed([sparse_file([*stage(0, layers=3), text]) for _ in range(16)], Counting(pool))
    assert [count for count in waves if count] == [1, 15]


def test_work_in_threads_knows_on_whose_behalf_it_is_done(threads: Workers) -> None:
    with counting_retries() as count:
        threads.outcomes(count_retry, ["once", "twice"])
    assert count.value == 2


def test_safetensors_are_read_in_two_rounds(threads: Workers) -> None:
    header = b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}%s}' % (b" " * 100_000)
    data = len(header).to_bytes(8, "little") + header + b"ab"
    files = [RemoteFile([(0, data)], len(data), f"memory:///{rank}/a.safetensors") for rank in range(3)]
    found = indexed(files, threads)
    assert assumed(found) == []
    assert all(isinstance(outcome, Indexed) and list(outcome.index.entries) == ["w"] for outcome in found.values())
    assert [len(file.rounds) for file in files] == [2, 2, 2]


def test_a_damaged_first_file_does_not_make_the_others_be_walked(threads: Workers) -> None:
    files = [sparse_file(stage(0)) for _ in range(9)]
    for rank in (0, 4):
        files[rank] = RemoteFile([(0, b"\x0a\xff" * 20)], files[rank].size_bytes)
    found = indexed(files, threads)
    refused = {rank for rank, outcome in found.items() if isinstance(outcome, CheckpointError)}
    assert refused == {0, 4}
    assert len(assumed(found)) == 5
    assert sum(len(file.rounds) == 1 for file in files) >= 5


class Failing(RemoteFile):
    def __init__(self, error: Exception, size_bytes: int) -> None:
        super().__init__([], size_bytes)
        self.error = error

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        raise self.error


@pytest.mark.parametrize("rank", [0, 2])
def test_a_file_that_cannot_be_read_is_refused_the_others_are_not(rank: int, threads: Workers) -> None:
    files = [sparse_file(stage(0)) for _ in range(4)]
    files[rank] = Failing(StorageError("permission denied"), files[rank].size_bytes)
    found = indexed(files, threads)
    assert isinstance(found[rank], CatalogError)
    assert sum(isinstance(outcome, Indexed) for outcome in found.values()) == 3


def test_a_transient_failure_is_no_refusal() -> None:
    files = [sparse_file(stage(0)) for _ in range(4)]
    files[3] = Failing(StorageError("slow down", transient=True), files[3].size_bytes)
    with ThreadPoolExecutor(2) as pool, pytest.raises(StorageError, match="slow down"):
        indexed(files, Workers(pool))


names = st.builds("{}.{}".format, st.sampled_from(["layers", "blocks", "l"]), st.integers(0, 12))
entries = st.builds(
    OutputEntry, names, st.just(BYTES), st.sampled_from([(2, 3), (3, 2), (6,), (5,), (), (0, 7), (1000,)])
)


@st.composite
def variants(draw: st.DrawFn, base: list[OutputEntry]) -> tuple[list[tuple[int, bytes]], int]:
    """A file of the entries, or one that is nearly such a file."""
    found = list(base)
    kind = draw(st.sampled_from(["same", "same", "shuffled", "renamed", "reshaped", "swapped", "damaged", "cut"]))
    place = draw(st.integers(0, len(base) - 1))
    entry = base[place]
    if kind == "shuffled":
        found = draw(st.permutations(base))
    elif kind == "renamed":
        found[place] = replace(entry, name=entry.name[:-1] + "x")
    elif kind == "reshaped":
        found[place] = replace(entry, shape=tuple(reversed(entry.shape)))
    elif kind == "swapped":
        other = draw(st.integers(0, len(base) - 1))
        found[place], found[other] = found[other], found[place]
    parts, size_bytes = planned_parts(found)
    if kind == "damaged":
        start, part = parts[draw(st.integers(0, len(parts) - 1))]
        damaged = bytearray(part)
        damaged[draw(st.integers(0, len(part) - 1))] ^= 1 << draw(st.integers(0, 7))
        parts = [(offset, bytes(damaged) if offset == start else literal) for offset, literal in parts]
    elif kind == "cut":
        cut = draw(st.integers(1, min(9, size_bytes - 1)))
        # bytes missing at the end were added at the beginning, so the size reveals nothing
        parts = [(0, blob(9, b"x" * (cut - 2))[:cut])] + [(start + cut, part) for start, part in parts]
        parts = [(start, part[: size_bytes - start]) for start, part in parts if start < size_bytes]
    return parts, size_bytes


@st.composite
def checkpoints(draw: st.DrawFn) -> list[tuple[list[tuple[int, bytes]], int]]:
    base = draw(st.lists(entries, min_size=1, max_size=30, unique_by=lambda entry: entry.name))
    other = draw(st.sampled_from([base, [replace(entry, name="z" + entry.name[1:]) for entry in base]]))
    return [draw(variants(draw(st.sampled_from([base, other])))) for _ in range(draw(st.integers(1, 6)))]


def refusal_or_index(file: RemoteFile) -> FileIndex | str:
    try:
        return read_index(file)
    except CheckpointError as error:
        return str(error)


@given(checkpoints())
def test_an_assumed_index_is_right_wherever_the_heads_of_what_is_read_agree(
    threads: Workers, files: list[tuple[list[tuple[int, bytes]], int]]
) -> None:
    found = indexed([RemoteFile(*file) for file in files], threads)
    for rank, outcome in found.items():
        file = RemoteFile(*files[rank])
        right = refusal_or_index(file)
        if isinstance(outcome, InputError):
            assert str(outcome) == right
        elif not outcome.assumed:
            assert outcome.index == right
        else:
            held = list(outcome.index.entries.values())
            agreeing = [
                entry
                for entry in held
                if all(file.read_many([(head.offset, len(head.data))]) == [head.data] for head in expected_heads(entry))
            ]
            assert (agreeing == held) == (outcome.index == right)
            if isinstance(right, FileIndex):
                places = {entry.extents for entry in agreeing}
                # a name that comes again counts where it comes last: then another's head is not where it should be
                assert all(
                    found == entry or (found is not None and found.extents not in places)
                    for entry in agreeing
                    for found in [right.entries.get(entry.name)]
                )

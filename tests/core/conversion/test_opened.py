"""Open checkpoints: whole tensors and ranks' shards, read by index, are what those who wrote the files have."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import reshard
from reshard import mindspore
from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, CheckpointError, InputError, UnknownNameError
from reshard.core.files.numpy_values import INT4, is_same
from reshard.core.runtime.keys import source_key
from reshard.core.storage import reading
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import whole_layout
from reshard.core.transfer import parameter_reader
from tests.endurance.test_memory import run_limited
from tests.support.checkpoints import ALL_CASES, Contents, case, ckpt, read_ckpt, read_rank
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.damaged import entries_of, file_of, whole_model, whole_shards
from tests.support.deepspeed_files import deepspeed_case, to_whole
from tests.support.iterations import CASES as ITERATION_CASES
from tests.support.iterations import IterationCase
from tests.support.megatron_sources import MegatronSource
from tests.support.places import FIXTURES

MIB = 2**20
FOUR_RANKS = case(7009)
STRATEGY = FOUR_RANKS.directory / "src_strategy.ckpt"


@dataclass(frozen=True)
class Written:
    """A checkpoint of another writer, the whole tensors in it, and names of what it has beside them."""

    source: Path
    want: Callable[[], Contents]
    options: dict[str, Any] = field(default_factory=dict)
    more: str = ""


def raw(path: Path) -> Contents:
    """The tensors of a `.safetensors` file, of whatever dtype, by the safetensors library."""
    found = safetensors.deserialize(path.read_bytes())
    return {name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"])) for name, entry in found}


def of_directories(folder: str, answer: str) -> Iterator[Written]:
    for path in sorted((FIXTURES / folder).iterdir()):
        sharded = path / "src" / "sharded"
        yield Written(sharded if sharded.exists() else path / "src", lambda path=path: raw(path / answer))  # type: ignore[misc]


def of_megatron() -> Iterator[Written]:
    for path in sorted((FIXTURES / "megatron").iterdir()):
        if (path / "want.safetensors").exists():
            yield Written(path / "src", lambda path=path: MegatronSource(path / "src", path).want, more="optimizer.")  # type: ignore[misc]


def of_conversions() -> Iterator[Written]:
    for each in ALL_CASES:
        [full] = [path for path in (each.directory / "full").rglob("*") if path.suffix in (".ckpt", ".safetensors")]
        read = read_ckpt if full.suffix == ".ckpt" else raw
        options = {"strategy": each.directory / "src_strategy.ckpt"}
        yield Written(each.directory / "src", lambda read=read, full=full: read(full), options)  # type: ignore[misc]


def of_model_families() -> Iterator[Written]:
    for path in sorted((FIXTURES / "model_families").glob("*/hf")):
        files = sorted(path.glob("*.safetensors"))
        yield Written(path, lambda files=files: {k: v for file in files for k, v in raw(file).items()})  # type: ignore[misc]


WRITTEN = [
    *of_conversions(),
    *of_directories("dcp", "whole.safetensors"),
    *of_directories("fsdp_ranks", "want.safetensors"),
    *of_directories("deepspeed", "want.safetensors"),
    *of_megatron(),
    *of_model_families(),
    *(
        Written(each.source, lambda each=each: each.whole, more="global_step")  # type: ignore[misc]
        for each in (IterationCase(FIXTURES / "checkpoint2" / name) for name in ITERATION_CASES)
    ),
]
UNREADABLE = "conjugated"
"""Its dtype is one that only PyTorch has."""


@pytest.mark.parametrize("written", WRITTEN, ids=lambda each: str(each.source.relative_to(FIXTURES)))
def test_whole_tensors_of_every_layout(written: Written) -> None:
    want = written.want()
    with reshard.open(written.source, **written.options) as checkpoint:
        assert set(want) <= set(checkpoint)
        assert all(written.more and name.startswith(written.more) for name in set(checkpoint) - set(want))
        for name, (_, shape, content) in want.items():
            if name == UNREADABLE:
                continue
            tensor = checkpoint[name]
            assert tensor.shape == shape
            assert np.asarray(tensor).tobytes() == content, name
            if shape and shape[0]:
                row = np.frombuffer(content, tensor.dtype).reshape(shape)[-1]
                assert is_same(np.asarray(tensor[-1]), np.asarray(row)), name


@pytest.mark.parametrize("layout", ["ranks", "unified", "dcp", "checkpoint2"])
def test_what_reshard_writes(tmp_path: Path, layout: str) -> None:
    options = {"iteration": "7", "common": ["global_step=7"]} if layout == "checkpoint2" else {}
    convert(FOUR_RANKS.request(tmp_path / "out", target_strategy="", select="weights-only", layout=layout, **options))
    with reshard.open(tmp_path / "out") as checkpoint:
        held = [name for name in checkpoint if name != "global_step"]
        assert len(held) == 4
        assert all(np.asarray(checkpoint[name]).tobytes() == of_full()[name][2] for name in held)


def test_a_universal_checkpoint(tmp_path: Path) -> None:
    source = deepspeed_case("case_zero1_bf16")
    convert(to_whole(source.root, tmp_path / "out", layout="universal"))
    with reshard.open(tmp_path / "out") as checkpoint:
        moments = [name for name in checkpoint if name.startswith("exp_avg")]
        assert len(moments) > 10
        assert all(np.asarray(checkpoint[name]).tobytes() == source.want[name][2] for name in moments)


@cache
def of_full() -> Contents:
    [full] = (FOUR_RANKS.directory / "full").rglob("*.ckpt")
    return read_ckpt(full)


@cache
def opened() -> reshard.Checkpoint:
    return reshard.open(FOUR_RANKS.directory / "src", strategy=STRATEGY)


@settings(max_examples=200)
@given(st.data())
def test_indexes_are_those_of_numpy(data: st.DataObject) -> None:
    checkpoint = opened()
    tensor = checkpoint[data.draw(st.sampled_from(list(checkpoint)))]
    array = np.frombuffer(of_full()[tensor.name][2], tensor.dtype).reshape(tensor.shape)
    index = data.draw(st_numpy.basic_indices(array.shape, allow_newaxis=True, allow_ellipsis=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameter_reader, "PART_BYTES", data.draw(st.sampled_from([64, 5000, 2**28])))
        patch.setattr(parameter_reader, "MAX_SCRATCH_BYTES", data.draw(st.sampled_from([64, 5000, 2**22])))
        found = tensor[index]
    wanted = array[index]
    assert type(found) is type(wanted)
    assert found.shape == wanted.shape
    assert np.array_equal(found, wanted)


@given(st.data())
def test_blocks_are_the_tensor_in_order(data: st.DataObject) -> None:
    tensor = opened()[data.draw(st.sampled_from(list(opened())))]
    # each block is a read: at most some dozens of a tensor
    max_bytes = data.draw(st.integers(max(tensor.dtype.itemsize, tensor.nbytes // 32), 5000))
    blocks = list(tensor.blocks(max_bytes))
    assert b"".join(block.tobytes() for _, block in blocks) == of_full()[tensor.name][2]
    assert [start for start, _ in blocks] == [sum(len(each) for _, each in blocks[:n]) for n in range(len(blocks))]
    assert max(block.nbytes for _, block in blocks) <= max_bytes


def test_it_is_a_mapping() -> None:
    checkpoint = opened()
    assert list(checkpoint) == list(checkpoint.keys())
    assert len(checkpoint) == 7
    name = next(iter(checkpoint))
    assert name in checkpoint
    assert "nobody" not in checkpoint
    assert checkpoint.get("nobody") is None
    assert [tensor.name for tensor in checkpoint.values()] == [name for name, _ in checkpoint.items()]
    tensor = checkpoint[name]
    assert (tensor.shape, tensor.ndim, tensor.size, tensor.nbytes) == ((48, 12), 2, 576, 4608)
    assert (tensor.dtype, len(tensor), len(list(tensor))) == (np.dtype("f8"), 48, 48)
    assert checkpoint.ranks == (0, 1, 2, 3)
    assert checkpoint.step is None
    assert any("no step number" in note for note in checkpoint.notes)


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError) as caught:
        opened()["learning_rat"]
    assert isinstance(caught.value, UnknownNameError)
    assert str(caught.value).endswith("src: has no tensor 'learning_rat'; did you mean learning_rate?")
    with pytest.raises(UnknownNameError, match="rank_1 of .*: has no tensor 5"):
        opened().rank(1)[5]  # type: ignore[index]


def test_an_index_out_of_bounds_names_the_tensor() -> None:
    with pytest.raises(IndexError, match=r"tensor 'layers.0.weight_0': index 48 is out of bounds for axis 0 with size"):
        opened()["layers.0.weight_0"][48]


def test_a_rank_s_shards_are_those_of_its_file() -> None:
    for rank in opened().ranks:
        want = read_rank(FOUR_RANKS.directory / "src", rank)
        shards = opened().rank(rank)
        assert (shards.rank, list(shards)) == (rank, list(want))
        assert f"rank_{rank}" in shards.file
        for name, (_, shape, content) in want.items():
            assert shards[name].shape == shape
            assert np.asarray(shards[name]).tobytes() == content
            if shape:
                assert np.array_equal(shards[name][::2], np.asarray(shards[name])[::2])


def test_ranks_that_there_are_not() -> None:
    with pytest.raises(InputError, match=r"src: has ranks 0-3, not 4"):
        opened().rank(4)
    with reshard.open(FIXTURES / "fsdp_ranks" / "case_fsdp1" / "src") as checkpoint:
        assert checkpoint.ranks == ()
        with pytest.raises(InputError, match="its files are not one for each rank: read its whole tensors"):
            checkpoint.rank(0)


def test_lost_files(tmp_path: Path) -> None:
    directory = whole_shards(tmp_path)
    file_of(directory, 1).unlink()
    source, strategy = directory / "src", directory / "strategy.ckpt"
    with pytest.raises(CatalogError, match="rank_1"):
        reshard.open(source, strategy=strategy)
    with reshard.open(source, strategy=strategy, recover=True, fault_ranks=[2]) as checkpoint:
        for name, (_, _, content) in whole_model().items():
            assert np.asarray(checkpoint[name]).tobytes() == content
        assert checkpoint.ranks == (0, 3, 4, 5)
        assert any("RECOVERED: rank_1" in note for note in checkpoint.notes)
        with pytest.raises(CatalogError, match="src: rank_1 has no usable file: "):
            checkpoint.rank(1)
    with pytest.raises(InputError, match="fault_ranks 2: only valid with recover=True"):
        reshard.open(source, strategy=strategy, fault_ranks=2)
    for rank in (3, 5):
        file_of(directory, rank).unlink()
    with pytest.raises(CatalogError, match="no holder"):
        reshard.open(source, strategy=strategy, recover=True)


def test_notes_say_which_of_several_values_are_read(tmp_path: Path) -> None:
    directory = whole_shards(tmp_path)
    for rank in range(6):
        entries = entries_of(file_of(directory, rank))
        outside = ("outside", "Int32", (1,), np.array([rank], np.int32).tobytes())
        file_of(directory, rank).write_bytes(checkpoint_bytes(*entries, outside))
    with reshard.open(directory / "src", strategy=directory / "strategy.ckpt") as checkpoint:
        assert checkpoint["outside"].item() == 0
        assert [checkpoint.rank(rank)["outside"].item() for rank in checkpoint.ranks] == [0, 1, 2, 3, 4, 5]
        assert "not in any strategy; the lowest rank's is read: outside" in checkpoint.notes
        assert any("but different on different ranks: outside. If they are" in note for note in checkpoint.notes)


def test_a_tied_parameter_is_the_first_stage_s(tmp_path: Path) -> None:
    values = {rank: np.array([rank, rank], np.int32) for rank in range(2)}
    for rank, value in values.items():
        ckpt(tmp_path / "src" / f"rank_{rank}" / "m.ckpt", tied=value, **{f"own_{rank}": value})
    whole = whole_layout(1, 1)
    stages = tuple(StageStrategy(rank, {"tied": whole, f"own_{rank}": whole}) for rank in values)
    write_strategy(Strategy(stages, "made"), str(tmp_path / "strategy.json"))
    with reshard.open(tmp_path / "src", strategy=tmp_path / "strategy.json") as checkpoint:
        assert list(checkpoint) == ["tied", "own_0", "own_1"]
        assert checkpoint["tied"][:].tolist() == [0, 0]
        assert checkpoint.rank(1)["tied"][:].tolist() == [1, 1]
        assert "held by several pipeline stages; the first one's is read: tied" in checkpoint.notes


def test_every_kind_of_value(kinds: Path) -> None:
    wanted = mindspore.load_checkpoint(str(kinds))
    with reshard.open(kinds) as checkpoint:
        assert list(checkpoint) == list(wanted)
        for name, value in wanted.items():
            assert is_same(checkpoint[name].read(), value), name
            assert is_same(checkpoint.rank(0)[name].read(), value), name
        assert checkpoint["half"].dtype == ml_dtypes.bfloat16
        assert checkpoint["packed"].dtype.metadata == INT4.metadata
        assert checkpoint["scalar"][()] == checkpoint["scalar"].item() == 3
        assert checkpoint["empty"][:, 1:].shape == (0, 2)
        text, table = checkpoint["version"], checkpoint["table"]
        assert (text.shape, text.dtype, text[()], str(np.asarray(text))) == ((), np.dtype("<U6"), "a text", "a text")
        assert (table.shape, table.dtype, len(table[()])) == ((), np.dtype(object), 3)
        with pytest.raises(InputError, match="tensor 'table' is not an array of numbers: read it whole"):
            list(table.blocks())
        with pytest.raises(TypeError, match="tensor 'scalar' is a scalar and has no length"):
            len(checkpoint["scalar"])


def test_floats_of_8_bits_and_a_dtype_that_numpy_lacks() -> None:
    source = FIXTURES / "dcp" / "case_foreign_dtypes" / "src"
    with reshard.open(source) as checkpoint:
        found = {tensor.dtype for tensor in checkpoint.values() if tensor.name != UNREADABLE}
        assert found >= {np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2), np.dtype(np.complex64)}
        tensor = checkpoint[UNREADABLE]
        assert repr(tensor) == "<Tensor 'conjugated': conjugated or negated C64 [2, 4], 64 B>"
        for read in (lambda: tensor.dtype, lambda: tensor[0], lambda: np.asarray(tensor)):
            with pytest.raises(CheckpointError, match="tensor 'conjugated': reshard cannot read its dtype, conjugated"):
                read()


def test_a_tensor_whose_place_in_the_model_is_unknown() -> None:
    source = FIXTURES / "megatron" / "dist_dp2_dp_reshardable" / "src"
    with reshard.open(source) as checkpoint:
        [name, *_] = [name for name in checkpoint if name.startswith("optimizer.")]
        with pytest.raises(CheckpointError, match="cannot be read as a whole: "):
            checkpoint[name][0]


def test_conversions_of_numpy() -> None:
    tensor = opened()["layers.0.weight_0"]
    assert np.asarray(tensor, np.float32).dtype == np.float32
    assert np.array(tensor).flags.writeable
    assert np.add(tensor, 1).shape == tensor.shape
    with pytest.raises(ValueError, match="reading it always makes a copy"):
        np.array(tensor, copy=False)


def test_representations_are_short(tmp_path: Path) -> None:
    names = [f"{'n' * 300}{n}\n\x1b[31m" for n in range(1000)]
    path = Path(ckpt(tmp_path / "m.ckpt", **{name: np.zeros(1, np.float32) for name in names}))
    with reshard.open(path) as checkpoint:
        for shown in (repr(checkpoint), repr(checkpoint.rank(0)), repr(checkpoint[names[0]]), repr(checkpoint.items())):
            assert len(shown) < 500
            assert shown.isprintable()
        table = checkpoint._repr_html_()
        assert len(table) < 3000
        assert "\x1b" not in table
        assert "1000 tensors</p>" in table
        assert table.endswith("</table><p>and 990 more</p>")
    path = Path(ckpt(tmp_path / "markup.ckpt", **{"<b>": np.zeros(1, np.float32)}))
    with reshard.open(path) as checkpoint:
        assert "<tr><td>&lt;b&gt;</td><td>float32</td><td>[1]</td><td>4 B</td></tr>" in checkpoint._repr_html_()
    assert "src: 7 tensors: 'layers.0.weight_0', " in repr(opened())
    assert repr(opened()).endswith(" and 4 more>")
    assert repr(opened()["layers.0.weight_0"]) == "<Tensor 'layers.0.weight_0': float64 [48, 12], 4.5 KiB>"


def test_closing() -> None:
    before = open_files()
    checkpoint = reshard.open(FOUR_RANKS.directory / "src", strategy=STRATEGY)
    tensor = checkpoint["layers.0.weight_0"]
    assert tensor[0].shape == (12,)
    assert open_files() > before
    checkpoint.close()
    checkpoint.close()
    assert open_files() == before
    assert tensor.shape == (48, 12)
    with pytest.raises(InputError, match="src: was closed; open it again to read from it"):
        tensor[0]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_rows_one_after_another_keep_files_open() -> None:
    with reshard.open(FOUR_RANKS.directory / "src", strategy=STRATEGY) as checkpoint:
        tensor = checkpoint["layers.0.weight_0"]
        tensor[0]
        before = open_files()
        for _ in tensor:
            pass
        assert open_files() <= before + 3


def test_a_source_that_changes(kinds: Path) -> None:
    with reshard.open(kinds) as checkpoint:
        checkpoint["half"][0]
        os.utime(kinds, (1, 1))
        with pytest.raises(CatalogError, match=r"kinds.ckpt changed while it was being"):
            checkpoint["half"][0]


def test_a_source_that_is_replaced(kinds: Path, tmp_path: Path) -> None:
    with reshard.open(kinds) as checkpoint:
        checkpoint["half"][0]
        shutil.copyfile(kinds, tmp_path / "other.ckpt")
        os.replace(tmp_path / "other.ckpt", kinds)
        with pytest.raises(CatalogError, match=r"kinds.ckpt changed while it was being"):
            checkpoint["half"][0]


def test_an_encrypted_checkpoint_and_a_caller_without_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")
    convert(FOUR_RANKS.request(tmp_path / "out", format="ckpt", encrypt_key="env:KEY"))
    checkpoint = reshard.open(tmp_path / "out", decrypt_key="env:KEY")
    monkeypatch.delenv("KEY")
    for name, tensor in checkpoint.items():
        assert source_key() is None
        assert np.asarray(tensor).tobytes() == of_full()[name][2]
    with pytest.raises(InputError, match="env:KEY"):
        reshard.open(tmp_path / "out", decrypt_key="env:KEY")


def test_many_threads_read_at_once() -> None:
    with reshard.open(FOUR_RANKS.directory / "src", strategy=STRATEGY) as checkpoint:
        names = [name for name in checkpoint if checkpoint[name].shape] * 20

        def read(number: int) -> bool:
            tensor = checkpoint[names[number]]
            array = np.frombuffer(of_full()[tensor.name][2], tensor.dtype).reshape(tensor.shape)
            index = slice(number % len(tensor), None, 1 + number % 3)
            return np.array_equal(tensor[index], array[index])

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(read, range(len(names))))


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the bytes read from files since the last call."""
    counts = [0]
    read = reading._Source.read_parts

    def counted(self: Any, offset: int, parts: Any) -> None:
        counts[0] += sum(map(len, parts))
        read(self, offset, parts)

    monkeypatch.setattr(reading._Source, "read_parts", counted)

    def since() -> int:
        count, counts[0] = counts[0], 0
        return count

    return since


def huge(path: Path, rows: int = 2**14) -> Path:
    """A file of one tensor `w`, float32 [rows, 32768], which takes no room on disk."""
    size = rows * 32768 * 4
    header = f'{{"w":{{"dtype":"F32","shape":[{rows},32768],"data_offsets":[0,{size}]}}}}'.encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return path


def test_a_slice_reads_its_bytes_and_no_others(tmp_path: Path, read_bytes: Callable[[], int]) -> None:
    with reshard.open(huge(tmp_path / "m.safetensors")) as checkpoint:
        row = 32768 * 4
        assert read_bytes() < MIB
        tensor = checkpoint["w"]
        for index, wanted in [
            (np.s_[5:7], 2 * row),
            (np.s_[-1], row),
            (np.s_[::4096], 4 * row),
            (np.s_[::-4096], 4 * row),
            (np.s_[100, 10:20], 40),
            (np.s_[:2, 7], 2 * 4),
            (np.s_[3:3], 0),
        ]:
            tensor[index]
            assert read_bytes() == wanted, index


def test_a_slice_of_a_sharded_tensor_reads_one_file(read_bytes: Callable[[], int]) -> None:
    checkpoint = opened()
    tensor = checkpoint["layers.1.weight_1"]
    tensor[0]
    read_bytes()
    found = tensor[0]
    assert read_bytes() == found.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("index", ["1000:1010", "::4096", "::-1, ::32768"])
def test_a_slice_takes_its_memory(tmp_path: Path, index: str) -> None:
    path = huge(tmp_path / "m.safetensors", 2**15)

    def peak(statement: str) -> int:
        program = f"import reshard\nwith reshard.open({str(path)!r}) as checkpoint:\n    {statement}"
        return run_limited(0, [sys.executable, "-c", program])

    assert peak(f"checkpoint['w'][{index}]") - peak("checkpoint['w'][0, 0]") < 16 * MIB


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stratgy": "x"}, "stratgy: there is no such option; did you mean strategy"),
        ({"memory_limit": 1}, "memory_limit 1: must be at least 16MiB"),
        ({"memory_limit": "much"}, "memory_limit 'much': must be a size"),
        ({"step": "new"}, "step 'new': must be EPOCH_STEP"),
        ({"strategy": "nowhere.ckpt"}, "nowhere.ckpt"),
        ({"decrypt_key": "secret"}, "decrypt_key: "),
        ({"storage": "my secret"}, "storage: must be env:NAME"),
        ({"integrated_save": "maybe"}, "integrated_save 'maybe'"),
    ],
)
def test_refusals(kinds: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        reshard.open(kinds, **options)


def test_what_a_person_would_write(tmp_path: Path) -> None:
    directory = whole_shards(tmp_path)
    options: dict[str, Any] = {"step": "1_1", "memory_limit": 2 << 30, "integrated_save": False}
    with reshard.open(directory / "src", strategy=directory / "strategy.ckpt", **options) as checkpoint:
        assert checkpoint.step == "1_1"
    with reshard.open(FIXTURES / "megatron" / "legacy_tp1" / "src", step=3) as checkpoint:
        assert checkpoint.step == "3"


TORCH = sorted((Path(__file__).parents[3] / ".venv-torch" / "lib").glob("python3*/site-packages"))
TORCH_PROGRAM = """
import sys
sys.path.append(sys.argv[1])
import numpy, torch, reshard
from safetensors.torch import load_file
for case in sys.argv[2:]:
    want = load_file(f"{case}/whole.safetensors")
    with reshard.open(f"{case}/src") as checkpoint:
        for name, tensor in checkpoint.items():
            if name == "conjugated":
                continue
            found, wanted = tensor.torch(), want[name]
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), name
            assert str(found.tolist()) == str(wanted.tolist()), name
            assert tensor.torch(numpy.s_[..., None]).shape == (*wanted.shape, 1), name
            if tensor.ndim and tensor.shape[0]:
                assert str(tensor.torch(numpy.s_[::-1])[0].tolist()) == str(wanted[-1].tolist()), name
"""


@pytest.mark.skipif(not TORCH, reason="PyTorch is not installed: `make conformance` does it")
def test_tensors_of_pytorch() -> None:
    cases = [str(FIXTURES / "dcp" / name) for name in ("case_dtypes", "case_foreign_dtypes", "case_dp_tp")]
    run_limited(0, [sys.executable, "-W", "error", "-c", TORCH_PROGRAM, str(TORCH[0]), *cases])


def test_without_pytorch(kinds: Path) -> None:
    with reshard.open(kinds) as checkpoint, pytest.raises(InputError, match="'half': .torch.. needs PyTorch, which is"):
        checkpoint["half"].torch()

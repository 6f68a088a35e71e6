"""`reshard inspect CHECKPOINT NAME` and `--extract`: what parameters hold, and files that numpy loads."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from reshard.cli import output
from reshard.cli.main import run
from reshard.core.files.model import SELF_CONTAINED
from reshard.core.text.printing import printable
from tests.support.checkpoints import case
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.comparing import file_of
from tests.support.damaged import entries_of, whole_shards
from tests.support.damaged import file_of as rank_file
from tests.support.families import Family, directory_contents
from tests.support.models import Model
from tests.support.places import FIXTURES
from tests.support.reference import RandomLayout
from tests.support.safetensors_files import write_safetensors

CASE = case(7010).directory
STRATEGY = ["--source-strategy", str(CASE / "src_strategy.ckpt")]
NAME = "adam_m.layers.4.weight_4"
PLAIN = FIXTURES / "formats" / "plain.ckpt"
HF = Family("llama").hf
ROWS = RandomLayout((2,), ((0,), ()), ())


def printed_by(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> str:
    assert run(["inspect", *map(str, arguments)]) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def whole_model(tmp_path: Path) -> tuple[str, str, np.ndarray]:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    model = Model({"w": ("Float32", values.view(np.uint32))}, {"w": ROWS}, 2)
    source, strategy = model.write(tmp_path, SELF_CONTAINED[0])
    return source, strategy, values


def test_a_sharded_parameter_is_read_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, strategy, _ = whole_model(tmp_path)
    out = printed_by(capsys, source, "w", "--source-strategy", strategy, "--integrated-save", "no")
    facts = dict(line.split("  ", 1) for line in out.splitlines() if "  " in line)
    facts = {name: text.strip() for name, text in facts.items()}
    assert facts["shape"] == "[4, 6], 96 B"
    assert facts["sharding"] == "2 shards on 2 ranks"
    assert facts["files"] == "2 files: rank_0/m.ckpt, rank_1/m.ckpt"
    assert (facts["min"], facts["max"], facts["mean"], facts["std"]) == ("0", "23", "11.5", "6.92219")
    assert (facts["NaN"], facts["Inf"], facts["-Inf"], facts["zeros"]) == ("0", "0", "0", "1 of 24")
    assert facts["first"] == "0, 1, 2, 3, 4, 5, 6, 7"


def test_a_ranks_shard_is_read_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, strategy, values = whole_model(tmp_path)
    out = printed_by(capsys, source, "w", "--rank", "1", "--source-strategy", strategy, "--json")
    [contents] = json.loads(out)["parameters"][0]["contents"]
    assert (contents["rank"], contents["shape"]) == (1, [2, 6])
    assert contents["mean"] == values[2:].mean()
    assert "is on ranks 0-1, not on 7" in printed_by(capsys, source, "w", "--rank", "7", code=2)


def test_without_a_strategy_each_ranks_shard_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, _, values = whole_model(tmp_path)
    document = json.loads(printed_by(capsys, source, "w", "--json"))
    assert [each["mean"] for each in document["parameters"][0]["contents"]] == [values[:2].mean(), values[2:].mean()]
    assert "give the strategy with --source-strategy" in document["notes"][-1]
    table = printed_by(capsys, source, "w").splitlines()
    assert table[0].split() == ["parameter", "rank", "dtype", "shape", "min", "max", "mean", "NaN", "Inf"]
    assert table[2].split()[:3] == ["w", "1", "Float32"]


def test_many_files_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed_by(capsys, CASE / "src", NAME, *STRATEGY).splitlines()
    [files] = [line for line in lines if line.startswith("files")]
    count = int(files.split()[1])
    assert count > 0
    assert files.count(".ckpt") == min(count, 4)
    assert files.endswith(f"and {count - 4} more") or count <= 4


def test_replicas_that_are_not_read_are_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed_by(capsys, CASE / "src", NAME, *STRATEGY)
    assert "note: only the lowest rank's replica is read; 'reshard scan' reads all of them" in out


def test_patterns_make_a_table_of_every_kind_of_value(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed_by(capsys, PLAIN, "*", "--json")
    parameters = {each["name"]: each["contents"][0] for each in json.loads(out)["parameters"]}
    assert parameters["scalar"]["mean"] == 2.5
    assert parameters["scalar"]["shape"] == []
    assert parameters["mask"]["first"][0] in (True, False)
    assert parameters["ids"]["nan"] == 0
    assert parameters["note"]["text"]
    assert parameters["note"]["count"] is None
    assert parameters["brain"]["count"] == 15
    assert len(printed_by(capsys, PLAIN, "*_num").splitlines()) == 4


def test_names_stay_different_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = printed_by(capsys, HF, "model.layers.*").splitlines()
    names = [line.split()[0] for line in whole if line.startswith("model.")]
    assert max(map(len, names)) > 30
    monkeypatch.setattr(output, "terminal_width", lambda stream: 62)
    lines = printed_by(capsys, HF, "model.layers.*").splitlines()
    assert len({line.split()[0] for line in lines if line.startswith("model.")}) == len(names)


def test_a_text_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed_by(capsys, PLAIN, "note").splitlines()
    [text] = [line for line in lines if line.startswith("text")]
    assert printable(text.split(maxsplit=1)[1]).startswith("'")


def test_nan_and_inf_are_counted_and_left_out_of_the_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.array([1, np.nan, np.inf, -np.inf, 3], np.float32)
    path = file_of(tmp_path / "a.ckpt", ("w", "Float32", values))
    [contents] = json.loads(printed_by(capsys, path, "w", "--json"))["parameters"][0]["contents"]
    assert (contents["nan"], contents["positive_inf"], contents["negative_inf"]) == (1, 1, 1)
    assert (contents["mean"], contents["least"], contents["greatest"]) == (2, 1, 3)
    assert contents["first"] == [1, "NaN", "Infinity", "-Infinity", 3]


def test_a_wrong_name_is_answered_with_a_similar_one(capsys: pytest.CaptureFixture[str]) -> None:
    error = printed_by(capsys, HF, "lm_head.wieght", code=2)
    assert "has no parameter 'lm_head.wieght'; did you mean lm_head.weight?" in error
    assert "did you mean lm_head.weight?" in printed_by(capsys, HF, "--extract", "lm_head.wieght", "x.npy", code=2)


def test_options_of_reading_need_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--rank, --step: only valid with NAME" in printed_by(capsys, HF, "--rank", "1", "--step", "1_1", code=2)
    assert "only valid with --extract" in printed_by(capsys, HF, "lm_head.weight", "--cast", "float32", code=2)
    extract = ["--extract", "lm_head.weight", "x.npy"]
    assert "takes the parameter's name itself" in printed_by(capsys, HF, "lm_head.weight", *extract, code=2)


def test_a_whole_tensor_is_extracted_from_its_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, strategy, values = whole_model(tmp_path)
    file = tmp_path / "w.npy"
    given = ["--source-strategy", strategy, "--integrated-save", "no", "--extract", "w", str(file)]
    out = printed_by(capsys, source, *given)
    assert f"numpy.load('{file}')" in out
    loaded = np.load(file)
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, values)
    assert "already exists: pass --overwrite to replace it" in printed_by(capsys, source, *given, code=2)
    printed_by(capsys, source, "--extract", "w", file, "--rank", "1", "--overwrite", "--source-strategy", strategy)
    np.testing.assert_array_equal(np.load(file), values[2:])


def test_without_a_strategy_one_rank_has_to_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, _, _ = whole_model(tmp_path)
    error = printed_by(capsys, source, "--extract", "w", tmp_path / "w.npy", code=2)
    assert "name the strategy with --source-strategy, or one rank with --rank 0" in error
    assert not (tmp_path / "w.npy").exists()


def test_bfloat16_is_written_bit_by_bit_and_loads_with_any_numpy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "head.npy"
    out = printed_by(capsys, HF, "--extract", "lm_head.weight", file)
    assert f"numpy.load('{file}').view(ml_dtypes.bfloat16)" in out
    _, shape, data = directory_contents(HF)["lm_head.weight"]
    loaded = np.load(file)
    assert (loaded.dtype.str, loaded.shape) == ("|V2", tuple(shape))
    assert loaded.tobytes() == bytes(data)
    printed_by(capsys, HF, "--extract", "lm_head.weight", file, "--overwrite", "--cast", "float32")
    cast = np.load(file)
    assert cast.dtype == np.float32
    np.testing.assert_array_equal(cast, loaded.view(ml_dtypes.bfloat16).astype(np.float32))


def test_floats_of_8_bits_are_written_bit_by_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bits = np.arange(256, dtype=np.uint8).reshape(16, 16)
    write_safetensors(tmp_path / "model.safetensors", {"w": ("F8_E4M3", bits)})
    printed_by(capsys, tmp_path / "model.safetensors", "--extract", "w", tmp_path / "w.npy")
    loaded = np.load(tmp_path / "w.npy")
    assert loaded.dtype.str == "|V1"
    np.testing.assert_array_equal(loaded.view(np.uint8), bits)


@pytest.mark.parametrize("name", ["scalar", "mask", "ids", "half", "wide", "u8", "name-with-hyphen"])
def test_every_kind_of_array_is_extracted(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed_by(capsys, PLAIN, "--extract", name, tmp_path / "x.npy")
    loaded = np.load(tmp_path / "x.npy")
    contents = json.loads(printed_by(capsys, PLAIN, name, "--json"))["parameters"][0]["contents"][0]
    assert list(loaded.shape) == contents["shape"]
    assert loaded.reshape(-1)[:8].tolist() == contents["first"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--extract", "note", "x.npy"], "parameter 'note': a str is not an array of numbers"),
        (["--extract", "scalar", "x.bin"], "the file name must end in .npy"),
        (["--extract", "ids", "x.npy", "--cast", "float32"], "only floats of 16 or 8 bits are cast to float32"),
        (["--extract", "scalar", "x.npy", "--cast", "float32"], "leave out --cast float32"),
        (["--extract", "scalar", "memory://x.npy"], "memory"),
    ],
)
def test_what_cannot_be_extracted_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in printed_by(capsys, PLAIN, *arguments, code=2)
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_no_file_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.arange(2**20, dtype=np.float32)
    path = file_of(tmp_path / "a.ckpt", ("w", "Float32", values))
    data = path.read_bytes()
    path.write_bytes(data[:-1000])
    printed_by(capsys, path, "--extract", "w", tmp_path / "w.npy", code=2)
    assert [each.name for each in tmp_path.iterdir()] == ["a.ckpt"]


def of_steps(directory: Path, steps: list[int]) -> list[str]:
    """A checkpoint of two slices on three ranks each, saved at these steps; returns the arguments that name it."""
    whole_shards(directory)
    for rank, step in enumerate(steps):
        path = rank_file(directory, rank)
        path.write_bytes(checkpoint_bytes(*entries_of(path), ("step_num", "Int32", (), np.int32(step).tobytes())))
    return [str(directory / "src"), "--source-strategy", str(directory / "strategy.ckpt")]


def test_slices_of_different_steps_are_not_read_as_one_tensor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = of_steps(tmp_path, [1, 1, 1, 2, 1, 1])
    for what in (["a"], ["--extract", "a", str(tmp_path / "a.npy")]):
        assert "DIFFERENT STEPS, by their 'step_num'" in printed_by(capsys, *named, *what, code=2)
    assert not (tmp_path / "a.npy").exists()
    printed_by(capsys, *named, "--extract", "a", tmp_path / "a.npy", "--rank", "3")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), [1, 5])


def test_what_was_found_in_the_source_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = of_steps(tmp_path, [1] * 6)
    note = "note: not in any strategy; the lowest rank's is read: step_num"
    assert note in printed_by(capsys, *named, "a").splitlines()
    assert note in printed_by(capsys, *named, "--extract", "a", tmp_path / "a.npy").splitlines()


def test_a_directory_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.npy").mkdir()
    error = printed_by(capsys, PLAIN, "--extract", "scalar", tmp_path / "x.npy", "--overwrite", code=2)
    assert f"{tmp_path}/x.npy: is a directory; name a file" in error
    assert (tmp_path / "x.npy").is_dir()

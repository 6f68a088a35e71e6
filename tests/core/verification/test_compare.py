"""Comparing checkpoints: the same model however it is cut, and whatever is different is found, named and located."""

import json
from pathlib import Path

import fsspec
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.checkpoint import file_shares
from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, InputError
from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat
from reshard.core.options.validation import build_options
from reshard.core.request.comparison import build_comparison
from reshard.core.request.source import FingerprintRequest
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.verification import differences, views
from reshard.core.verification.compare import fingerprint_checkpoint
from reshard.core.verification.comparison_report import ComparisonReport, Kind
from tests.support.checkpoints import ALL_CASES, Case, case
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.comparing import compared, file_of
from tests.support.models import UNSIGNED, Model, random_bits
from tests.support.places import FIXTURES
from tests.support.plans import make_strategy
from tests.support.reference import AXIS_LENGTH, RandomLayout, layouts

ROWS = RandomLayout((2,), ((0,),), ())
FORMATS = st.sampled_from(SELF_CONTAINED)


def reason(a: str | Path, b: str | Path, **options: object) -> str:
    """What the only difference is."""
    report = compared(a, b, **options)
    assert not report.same
    [difference] = report.differences
    return difference.message


def text_of(name: str, text: str) -> tuple[str, str, tuple[int, ...], bytes]:
    return name, "str", (0,), text.encode("utf-32-le")


@st.composite
def random_values(draw: st.DrawFn) -> dict[str, tuple[str, np.ndarray]]:
    dtypes = draw(st.lists(st.sampled_from(sorted(UNSIGNED)), min_size=1, max_size=3))
    shapes = st.sampled_from([(AXIS_LENGTH,), (AXIS_LENGTH, AXIS_LENGTH)])
    return {f"p{number}": (dtype, random_bits(dtype, draw(shapes), number)) for number, dtype in enumerate(dtypes)}


@st.composite
def random_models(draw: st.DrawFn, values: dict[str, tuple[str, np.ndarray]]) -> Model:
    """The same values in any layout; some of them may be in none."""
    devices = draw(st.sampled_from([1, 2, 4, 6]))
    cut = [name for name in values if name == "p0" or draw(st.booleans())]
    return Model(values, {name: draw(layouts(devices, values[name][1].ndim)) for name in cut}, devices)


@settings(max_examples=15)
@given(st.data())
def test_a_model_is_the_same_in_any_layout_and_one_changed_element_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("models")
    values = data.draw(random_values())
    one, other = data.draw(random_models(values)), data.draw(random_models(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_shares, "BLOCK_BYTES", data.draw(st.sampled_from([1000, 2**22])))
        patch.setattr(differences, "_BLOCK_BYTES", data.draw(st.sampled_from([200, 2**20])))
        patch.setattr(file_shares, "_MIN_SHARE_BYTES", data.draw(st.sampled_from([500, 2**26])))
        a, strategy_a = one.write(directory / "a", data.draw(FORMATS), data.draw(st.sampled_from([101, 2**29])))
        b, strategy_b = other.write(directory / "b", data.draw(FORMATS))
        report = compared(a, b, strategy_a=strategy_a, strategy_b=strategy_b)
        assert report.same, report
        assert report.a.parameters == len(values)

        name, rank = data.draw(st.sampled_from(sorted(values))), data.draw(st.integers(0, other.devices - 1))
        shard = other.shards[rank][name]
        place = data.draw(st.integers(0, shard.size - 1))
        shard.reshape(-1)[place] ^= np.array(1 << data.draw(st.integers(0, 8 * shard.itemsize - 1)), shard.dtype)
        b, strategy_b = other.write(directory / "changed", data.draw(FORMATS))
        report = compared(a, b, strategy_a=strategy_a, strategy_b=strategy_b)
        check_found(report, one, other, name, rank, place)


def check_found(report: ComparisonReport, one: Model, model: Model, name: str, rank: int, place: int) -> None:
    """That a report tells of the one element that was changed in one rank's copy."""
    assert (report.only_a, report.only_b, report.a.differing) == ((), (), ())
    whole = model.values[name][1]
    sharing = model.sharing(name, rank)
    if len(sharing) > 1 and name in model.layouts:
        [sentence] = report.b.differing
        assert f"parameter {name!r}" in sentence
        others = [other for other in sharing if other != rank]
        assert (f"rank_{rank}" in sentence.split("another on")[1]) or len(others) == 1, sentence
    elif name not in model.layouts and len(sharing) > 1:
        # no strategy says that the ranks' contents are one: those of fewer ranks may be some of them
        assert report.same == (one.devices < model.devices)
        if not report.same:
            [difference] = report.differences
            assert difference.message.endswith("between ranks 1 different contents in A, 2 in B")
            return
        assert f"{name!r}, which no strategy knows" in report.notes[0]
        return
    assert not report.same
    if rank == sharing[0]:
        [difference] = report.differences
        index = tuple(map(int, np.unravel_index(model.places(name, rank).reshape(-1)[place], whole.shape)))
        assert (difference.name, difference.kind, difference.count) == (name, Kind.CONTENT, 1)
        assert difference.first == index
        assert difference.index == index
    else:
        assert not report.differences


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.directory.name)
def test_the_files_that_mindspore_wrote_are_one_model(case: Case) -> None:
    of_side = {"full": "", "src": case.directory / "src_strategy.ckpt", "want": case.directory / "dst_strategy.ckpt"}
    for one, other in (("full", "src"), ("src", "want")):
        report = compared(
            case.directory / one,
            case.directory / other,
            strategy_a=str(of_side[one]),
            strategy_b=str(of_side[other]),
        )
        assert report.same, report.verdict


def test_all_kinds_of_files_of_one_model_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    formats = FIXTURES / "formats"
    expected = json.loads((formats / "expect.json").read_text())
    plain = formats / "plain.ckpt"
    assert compared(plain, formats / "crc.ckpt").same
    # MindSpore appends to a .ckpt only, and cannot make a CRC of bfloat16
    for name, absent in {"plain.safetensors": [], "crc.safetensors": ["brain"]}.items():
        report = compared(plain, formats / name)
        assert sorted(report.only_a) == sorted([*expected["append"], *absent])
        assert (report.only_b, report.differences) == ((), ())
    for mode, key in expected["keys"].items():
        monkeypatch.setenv("KEY", key)
        encrypted = formats / f"encrypted_{mode}.ckpt"
        appended = list(expected["append"])
        assert compared(encrypted, plain, decrypt_key_a="env:KEY", decrypt_mode_a=mode, exclude=appended).same
        assert compared(plain, encrypted, decrypt_key_b="env:KEY", decrypt_mode_b=mode, exclude=appended).same


def test_of_an_encrypted_side_no_values_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formats = FIXTURES / "formats"
    monkeypatch.setenv("KEY", json.loads((formats / "expect.json").read_text())["keys"]["AES-GCM"])
    other = file_of(tmp_path / "other.ckpt", ("scalar", "Float32", np.array(3, np.float32)))
    options = {"decrypt_key_a": "env:KEY", "include": ["scalar"]}
    message = reason(formats / "encrypted_AES-GCM.ckpt", other, **options)
    assert message == "1 of 1 element; by 0.5 at most, at []"


def test_a_redundancy_removed_checkpoint_is_the_model_that_it_was_made_from() -> None:
    removed = FIXTURES / "formats/redundancy_removed"
    strategy = str(removed / "src_strategy.ckpt")
    for kind in ("src_ckpt", "src_safetensors"):
        assert compared(removed / "full", removed / kind, strategy_b=strategy).same


def test_a_remote_checkpoint_in_patterns_is_the_same_as_a_local_one() -> None:
    source, strategy = case(7009).directory / "src", str(case(7009).directory / "src_strategy.ckpt")
    fsspec.filesystem("memory").put(str(source), "memory://compared/src", recursive=True)
    pattern = "memory://compared/src/rank_{rank}/checkpoint_{rank}.ckpt"
    report = compared(source, pattern, strategy_a=strategy, strategy_b=strategy)
    assert report.same
    assert report.verdict == "the same model: 7 parameters, 205.5 KiB, 4 and 4 ranks"


def test_unequal_parameters_are_told_with_where_and_how_much(tmp_path: Path) -> None:
    one = np.arange(12, dtype=np.float32).reshape(3, 4)
    other = one.copy()
    other[1, 2] += 0.5
    other[2, 3] -= 2
    a, b = file_of(tmp_path / "a.ckpt", ("w", "Float32", one)), file_of(tmp_path / "b.ckpt", ("w", "Float32", other))
    report = compared(a, b)
    assert report.verdict == "NOT the same: 1 parameter of different content"
    [difference] = report.differences
    assert difference.message == "2 of 12 elements; by 2 at most, at [2, 3]: 11.0 and 9.0"
    assert (difference.count, difference.first, difference.largest) == (2, (1, 2), 2.0)
    assert difference.index == (2, 3)


def test_nan_infinity_and_signs_of_zero(tmp_path: Path) -> None:
    def with_(*values: float) -> Path:
        name = "_".join(map(str, values))
        return file_of(tmp_path / f"{name}.ckpt", ("w", "Float32", np.array([*values, 1], np.float32)))

    zero = with_(0.0)
    assert reason(zero, with_(float("nan"))) == (
        "1 of 2 elements; the first at [0]: 0.0 and nan; 1 NaN on one side only"
    )
    assert reason(zero, with_(float("inf"))) == "1 of 2 elements; by inf at most, at [0]: 0.0 and inf"
    assert reason(zero, with_(-0.0)) == "1 of 2 elements; by 0 at most, at [0]: 0.0 and -0.0"
    nans = [np.array([bits, 7], np.uint32) for bits in (0x7FC00000, 0x7FC00001)]
    files = [file_of(tmp_path / f"{number}.ckpt", ("w", "Float32", nan)) for number, nan in enumerate(nans)]
    assert reason(*files) == "1 of 2 elements; the first at [0]: nan and nan"
    assert compared(files[0], files[0]).same
    largest = json.loads(compared(zero, with_(float("inf"))).model_dump_json())["differences"][0]["largest"]
    assert largest == "Infinity"


@pytest.mark.parametrize(
    ("dtype", "one", "other", "message"),
    [
        ("Int64", np.array([1, -5]), np.array([1, 2**62]), "the first at [1]: -5 and 4611686018427387904"),
        ("UInt8", np.array([250, 3], np.uint8), np.array([0, 3], np.uint8), "the first at [0]: 250 and 0"),
        ("Bool", np.array([True, False]), np.array([True, True]), "the first at [1]: False and True"),
        ("Int4", np.array([0x1F, 1], np.uint8), np.array([0xF1, 1], np.uint8), "the first at [0]: 0x1f and 0xf1"),
        (
            "BFloat16",
            np.array([1, 2], ml_dtypes.bfloat16),
            np.array([1, 2.5], ml_dtypes.bfloat16),
            "by 0.5 at most, at [1]: 2 and 2.5",
        ),
    ],
)
def test_values_are_told_as_their_dtype(
    tmp_path: Path, dtype: str, one: np.ndarray, other: np.ndarray, message: str
) -> None:
    files = [file_of(tmp_path / f"{number}.ckpt", ("w", dtype, each)) for number, each in enumerate((one, other))]
    assert reason(*files) == f"1 of 2 elements; {message}"


def test_texts_scalars_and_what_only_one_side_has(tmp_path: Path) -> None:
    number = ("step", "Int64", (), np.int64(5).tobytes())
    (tmp_path / "a.ckpt").write_bytes(checkpoint_bytes(text_of("note", "one"), number, text_of("only", "x")))
    (tmp_path / "b.ckpt").write_bytes(checkpoint_bytes(text_of("note", "another"), number, text_of("other", "x")))
    report = compared(tmp_path / "a.ckpt", tmp_path / "b.ckpt")
    assert report.verdict == (
        "NOT the same: 1 parameter only in A, 1 parameter only in B, 1 parameter of different content"
    )
    assert (report.only_a, report.only_b) == (("only",), ("other",))
    assert [(each.name, each.message) for each in report.differences] == [("note", "'one' and 'another'")]
    assert compared(tmp_path / "a.ckpt", tmp_path / "b.ckpt", include=["step"]).same


def test_shapes_and_dtypes_are_told(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32)
    a = file_of(tmp_path / "a.ckpt", ("s", "Float32", array), ("d", "Int32", array.view(np.int32)))
    b = file_of(tmp_path / "b.ckpt", ("s", "Float32", array.reshape(2, 3)), ("d", "Float32", array))
    report = compared(a, b, ignore_dtype=True)
    assert [(each.kind, each.message) for each in report.differences] == [
        (Kind.SHAPE, "[6] and [2, 3]"),
        (Kind.DTYPE, "Int32 and Float32"),
    ]


def test_floats_of_another_dtype_are_compared_as_the_narrower_one(tmp_path: Path) -> None:
    wide = np.random.default_rng(1).standard_normal((40, 30)).astype(np.float32)
    narrow = wide.astype(ml_dtypes.bfloat16)
    a = file_of(tmp_path / "a.ckpt", ("w", "Float32", wide))
    b = file_of(tmp_path / "b.ckpt", ("w", "BFloat16", narrow))
    for one, other in ((a, b), (b, a)):
        [difference] = compared(one, other).differences
        assert difference.kind is Kind.DTYPE
        assert difference.equal_when_cast
        assert difference.message.endswith("; equal when cast to BFloat16")
        report = compared(one, other, ignore_dtype=True)
        assert report.same
        assert report.notes == ("1 parameter of other dtypes, equal when cast",)
    narrow[3, 7] *= 2
    c = file_of(tmp_path / "c.ckpt", ("w", "BFloat16", narrow))
    [difference] = compared(a, c, ignore_dtype=True).differences
    assert difference.message.startswith(
        "Float32 and BFloat16; different even when cast to BFloat16; 1 of 1200 elements; by "
    )
    assert difference.index == (3, 7)


def test_a_cast_export_is_the_same_weights(tmp_path: Path) -> None:
    source = case(7010)
    convert(source.request(tmp_path / "out", cast=["*=float16"]))
    strategies = {
        "strategy_a": str(source.directory / "src_strategy.ckpt"),
        "strategy_b": str(source.directory / "dst_strategy.ckpt"),
    }
    assert not compared(source.directory / "src", tmp_path / "out", **strategies).same
    assert compared(source.directory / "src", tmp_path / "out", ignore_dtype=True, **strategies).same


def test_ranks_whose_copies_differ_are_named(tmp_path: Path) -> None:
    devices = RandomLayout((2, 2), ((1,), ()), ())
    model = Model({"w": ("Float32", random_bits("Float32", (4, 3), 1))}, {"w": devices}, 4)
    model.shards[3]["w"][0, 0] ^= 1
    checkpoint, strategy = model.write(tmp_path, CheckpointFormat.CKPT)
    report = compared(checkpoint, checkpoint, strategy_a=strategy, strategy_b=strategy)
    assert report.verdict == (
        "NOT the same: A is not a single model: replicas of 1 slice differ, "
        "B is not a single model: replicas of 1 slice differ"
    )
    assert report.a.differing == ("parameter 'w', [2:4, 0:3]: one content on rank_2, another on rank_3",)


def test_stages_that_share_a_parameter_have_to_agree(tmp_path: Path) -> None:
    whole = np.arange(8, dtype=np.int32).reshape(4, 2)
    for rank in range(4):
        # stage 0 cuts rows, stage 1 columns
        shard = np.split(whole + (rank > 1), 2, axis=rank // 2)[rank % 2]
        file_of(tmp_path / f"ckpt/rank_{rank}/m.ckpt", ("tied", "Int32", shard))
    stages = [{"tied": ParameterLayout((2,), cut, nested=True)} for cut in (((0,), ()), ((), (0,)))]
    write_strategy(make_strategy(*stages), str(tmp_path / "strategy.ckpt"))
    one = file_of(tmp_path / "one.ckpt", ("tied", "Int32", whole))
    report = compared(tmp_path / "ckpt", one, strategy_a=str(tmp_path / "strategy.ckpt"))
    assert not report.differences
    assert report.a.differing == (
        "parameter 'tied', which stages share: one content on rank_0, rank_1, another on rank_2, rank_3",
    )


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
def test_stages_of_which_each_has_a_part_are_put_together(tmp_path: Path, dtype: str) -> None:
    whole = np.arange(8, dtype=np.float32 if dtype == "Float32" else ml_dtypes.bfloat16).reshape(4, 2)
    other = np.zeros((1, 1), whole.dtype)
    for rank in range(4):
        # the first stage's lower rows, and the second one's upper rows, are in no file
        shard = [("tied", dtype, np.split(whole, 2)[rank % 2])] if rank in (0, 3) else []
        file_of(tmp_path / f"ckpt/rank_{rank}/m.ckpt", *shard, (f"own{rank // 2}", dtype, other))
    layouts = [
        {
            "tied": ParameterLayout((2,), ((0,), ()), nested=True),
            f"own{stage}": ParameterLayout((2,), ((), ()), nested=True),
        }
        for stage in range(2)
    ]
    write_strategy(make_strategy(*layouts), str(tmp_path / "strategy.ckpt"))
    owns = [(f"own{stage}", "Float32", other.astype(np.float32)) for stage in range(2)]
    one = file_of(tmp_path / "one.ckpt", ("tied", "Float32", whole.astype(np.float32)), *owns)
    options = {"strategy_a": str(tmp_path / "strategy.ckpt"), "trust_strategy_a": True, "ignore_dtype": True}
    report = compared(tmp_path / "ckpt", one, **options)
    assert report.same, report


def test_nothing_is_as_good_as_nothing(tmp_path: Path) -> None:
    values = {"w": ("Int64", random_bits("Int64", (4,), 1)), "no": ("Int8", np.zeros((0, 2), np.uint8))}
    model = Model(values, {"w": ROWS, "no": RandomLayout((2,), ((0,), ()), ())}, 2)
    checkpoint, strategy = model.write(tmp_path, CheckpointFormat.SAFETENSORS)
    one = file_of(tmp_path / "one.ckpt", *((name, dtype, array) for name, (dtype, array) in values.items()))
    assert compared(checkpoint, one, strategy_a=strategy).same


def test_ranks_of_different_steps_are_no_single_model(tmp_path: Path) -> None:
    values = {"w": ("Float32", random_bits("Float32", (4,), 1)), "global_step": ("Int32", np.zeros(1, np.uint32))}
    model = Model(values, {"w": ROWS}, 2)
    model.shards[1]["global_step"] += 1
    checkpoint, strategy = model.write(tmp_path, CheckpointFormat.CKPT)
    report = compared(checkpoint, checkpoint, strategy_a=strategy, strategy_b=strategy)
    assert report.a.differing == (
        "parameter 'global_step', which no strategy knows: one content on rank_0, another on rank_1",
    )
    assert compared(checkpoint, checkpoint, strategy_a=strategy, strategy_b=strategy, exclude=["global_step"]).same


def test_what_every_rank_has_for_itself_may_be_a_part_of_the_other_sides(tmp_path: Path) -> None:
    values = {"w": ("Float32", random_bits("Float32", (4,), 1)), "cur_rank": ("Int32", np.zeros(1, np.uint32))}
    model = Model(values, {"w": ROWS}, 2)
    model.shards[1]["cur_rank"] += 1
    checkpoint, strategy = model.write(tmp_path, CheckpointFormat.CKPT)
    whole = file_of(
        tmp_path / "whole.ckpt", ("w", "Float32", values["w"][1]), ("cur_rank", "Int32", np.zeros(1, np.int32))
    )
    report = compared(checkpoint, whole, strategy_a=strategy)
    assert report.same
    assert list(report.notes) == [
        (
            "parameter 'cur_rank', which no strategy knows, differs between ranks: 2 different contents in A, 1 in B; "
            "all contents of one side are among the other's"
        )
    ]
    other = file_of(
        tmp_path / "other.ckpt", ("w", "Float32", values["w"][1]), ("cur_rank", "Int32", np.full(1, 5, np.int32))
    )
    assert reason(checkpoint, other, strategy_a=strategy) == (
        "1 of 1 element; the first at [0]: 0 and 5; between ranks 2 different contents in A, 1 in B"
    )


def test_a_copy_that_only_one_side_of_as_many_ranks_has_is_a_difference(tmp_path: Path) -> None:
    values = {"w": ("Float32", random_bits("Float32", (4,), 1)), "extra": ("Int32", np.zeros(2, np.uint32))}
    model = Model(values, {"w": ROWS}, 2)
    a, strategy = model.write(tmp_path / "a", CheckpointFormat.CKPT)
    model.shards[1]["extra"][1] = 7
    b, _ = model.write(tmp_path / "b", CheckpointFormat.CKPT)
    options = {"strategy_a": strategy, "strategy_b": strategy}
    assert reason(a, b, **options) == "between ranks 1 different contents in A, 2 in B"
    assert reason(b, a, **options) == "between ranks 2 different contents in A, 1 in B"
    model.shards[0]["extra"][0] = 3
    c, _ = model.write(tmp_path / "c", CheckpointFormat.CKPT)
    assert reason(b, c, **options) == (
        "1 of 2 elements; the first at [0]: 0 and 3; between ranks 2 different contents in A, 2 in B"
    )


def test_equal_texts_of_the_first_rank_are_not_told(tmp_path: Path) -> None:
    sides = {}
    for side, texts in {"a": ("one", "one"), "b": ("one", "other")}.items():
        for rank, text in enumerate(texts):
            path = tmp_path / side / f"rank_{rank}" / "m.ckpt"
            path.parent.mkdir(parents=True)
            path.write_bytes(checkpoint_bytes(("w", "Float32", (2,), bytes(8)), text_of("text", text)))
        sides[side] = tmp_path / side
    strategy = str(tmp_path / "strategy.ckpt")
    write_strategy(make_strategy({"w": ParameterLayout((2,), ((0,),), nested=True)}), strategy)
    message = reason(sides["a"], sides["b"], strategy_a=strategy, strategy_b=strategy)
    assert message == "between ranks 1 different contents in A, 2 in B"


def test_fingerprints_stand_for_a_checkpoint(tmp_path: Path) -> None:
    source, strategy = case(7010).directory / "src", str(case(7010).directory / "src_strategy.ckpt")
    document = tmp_path / "there.json"
    request = build_options(FingerprintRequest, source=str(source), source_strategy=strategy)
    document.write_text(fingerprint_checkpoint(request).model_dump_json())
    full = case(7010).directory / "full"
    assert compared(full, document).same
    assert compared(document, full).verdict == "the same model: 8 parameters, 333.2 KiB, 8 and 1 ranks"
    assert compared(document, document, select="weights-only").a.parameters == 5
    other = case(7009).directory / "full"
    report = compared(other, document, include=["global_step", "learning_rate"])
    assert not report.same
    assert report.differences[0].message == ""
    assert "fingerprints alone do not show where contents differ, and by how much" in report.notes


def test_whether_other_dtypes_are_equal_when_cast_cannot_always_be_told_from_fingerprints(tmp_path: Path) -> None:
    wide = np.ones(3, np.float32)
    a = file_of(tmp_path / "a.ckpt", ("w", "Float32", wide))
    b = file_of(tmp_path / "b.ckpt", ("w", "Float16", wide.astype(np.float16)))
    for path in (a, b):
        request = build_options(FingerprintRequest, source=str(path))
        path.with_suffix(".json").write_text(fingerprint_checkpoint(request).model_dump_json())
    assert reason(a, tmp_path / "b.json") == "Float32 and Float16; equal when cast to Float16"
    assert reason(tmp_path / "a.json", b) == (
        "Float32 and Float16; fingerprints do not show whether they are equal when cast"
    )


def test_advice_names_the_options_of_the_side() -> None:
    source, strategy = case(7010).directory / "src", str(case(7010).directory / "src_strategy.ckpt")
    with pytest.raises(InputError, match=r"none is given: pass 'strategy_b'$"):
        compared(source, source, strategy_a=strategy)
    encrypted = FIXTURES / "formats/encrypted_SM4-CBC.ckpt"
    with pytest.raises(InputError, match=r"name its key with 'decrypt_key_a', and decrypt_mode_a='SM4-CBC'$"):
        compared(encrypted, encrypted)


def test_signaling_nans_are_told_without_a_warning(tmp_path: Path) -> None:
    bits = np.array([0x7F800001, 0x3F800000], np.uint32)
    one = file_of(tmp_path / "one.ckpt", ("w", "Float32", bits))
    other = file_of(tmp_path / "other.ckpt", ("w", "Float32", bits ^ np.array([0, 1], np.uint32)))
    quiet = file_of(tmp_path / "quiet.ckpt", ("w", "Float32", bits ^ np.array([2, 0], np.uint32)))
    assert reason(one, other).startswith("1 of 2 elements; by 1.19209e-07 at most, at [1]")
    assert reason(one, quiet) == "1 of 2 elements; the first at [0]: nan and nan"


def test_where_all_names_differ_it_is_said_what_to_do_with_renamed_ones(tmp_path: Path) -> None:
    value = np.ones(2, np.float32)
    a = file_of(tmp_path / "a.ckpt", ("w", "Float32", value))
    [note] = compared(a, file_of(tmp_path / "b.ckpt", ("v", "Float32", value))).notes
    assert note.startswith(
        "A and B have no parameter name in common; if parameters of one were renamed, convert the other"
    )
    both = file_of(tmp_path / "both.ckpt", ("w", "Float32", value), ("v", "Float32", value))
    assert not compared(a, both).notes


def test_nothing_to_compare_is_refused() -> None:
    full = case(7010).directory / "full"
    with pytest.raises(InputError, match="nothing is left to compare of .*: no parameter is included"):
        compared(full, full, exclude=["*"])
    with pytest.raises(InputError, match="there is nothing to fingerprint: no parameter is included"):
        fingerprint_checkpoint(build_options(FingerprintRequest, source=str(full), exclude=["*"]))


def test_patterns_that_fit_nothing_are_refused() -> None:
    full = case(7010).directory / "full"
    with pytest.raises(
        InputError, match=r"^exclude=\['adam_w\*'\], include=\['no\.such'\]: no parameter of .* or .* has such a name"
    ):
        compared(full, full, include=["no.such", "adam*"], exclude=["adam_w*"])
    with pytest.raises(InputError, match=r"include=\['no.such'\]: no parameter of .*full has such a name"):
        fingerprint_checkpoint(build_options(FingerprintRequest, source=str(full), include=["no.such"]))


def test_a_unified_checkpoint_is_the_same_as_what_it_was_made_from(tmp_path: Path) -> None:
    source = case(7010)
    strategy = str(source.directory / "src_strategy.ckpt")
    for naming in ("huggingface", "mindspore"):
        out = tmp_path / naming
        convert(
            source.request(out, target_strategy="", layout="unified", max_shard_size="150KB", unified_naming=naming)
        )
        report = compared(source.directory / "src", out, strategy_a=strategy)
        assert report.same, report.verdict
        assert report.verdict.startswith("the same model: 8 parameters, 333.2 KiB, 8 ranks and ")
        [index] = out.glob("*.json")
        assert compared(source.directory / "full", index).same


def test_a_side_that_is_no_whole_checkpoint_is_refused(tmp_path: Path) -> None:
    source, full = case(7010).directory / "src", case(7010).directory / "full"
    with pytest.raises(CatalogError, match="several ranks need a source strategy, none is given"):
        compared(source, full)


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.ckpt", ("w", "Int32", np.arange(6, dtype=np.int32)))
    side = views.open_checkpoint_view(build_options(FingerprintRequest, source=str(path)))
    file_of(path, ("w", "Int32", np.arange(1, 8, dtype=np.int32)))
    with pytest.raises(CatalogError, match="rank_0: .*a.ckpt changed since its headers were read"):
        side.contents(["w"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"decrypt_mode_a": "SM4-CBC"},
            "decrypt_mode_a 'SM4-CBC': needs a key: name it",
        ),
        ({"strategy_b": "s3://me:secret@host/x"}, "strategy_b: a URL must not carry credentials"),
        ({"step_b": "newest"}, "step_b 'newest': must be EPOCH_STEP, such as 10_5"),
        ({"storage_a": "hunter2"}, "storage_a: must be env:NAME, file:PATH or block:NAME"),
        ({"decrypt_key_b": "hunter2"}, "decrypt_key_b: must be"),
        ({"memory_limit": "1 KiB"}, "memory_limit '1 KiB': must be at least 16MiB"),
        ({"b": ""}, "b '': must not be empty"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as refused:
        build_comparison(**{"a": "a", "b": "b", **options})
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)

"""Scans: every NaN and Inf of every file is counted and its place is right, whatever the layout."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reshard
from reshard.core.checkpoint import file_shares
from reshard.core.checkpoint.content_blocks import ElementRange
from reshard.core.checkpoint.file_shares import read_file_blocks
from reshard.core.errors import InputError
from reshard.core.files.model import SELF_CONTAINED
from reshard.core.request.source import OpenRequest
from reshard.core.source.opened_files import open_files
from reshard.core.tensor.float_bits import float_bits
from reshard.core.verification.scan import shard_start
from reshard.core.verification.scan_report import MAX_PLACES, ScanReport
from tests.support.checkpoints import case
from tests.support.comparing import file_of
from tests.support.families import ALL_FAMILIES
from tests.support.models import Model, random_bits
from tests.support.places import FIXTURES
from tests.support.reference import AXIS_LENGTH, RandomLayout, layouts
from tests.support.safetensors_files import write_safetensors
from tests.support.spoiling import copied

FLOATS = {
    "Float16": np.float16,
    "BFloat16": ml_dtypes.bfloat16,
    "Float32": np.float32,
    "Float64": np.float64,
}
ROWS = RandomLayout((2,), ((0,),), ())
NAN, INF = 0x7FC00000, 0xFF800000


def finite(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Float32 numbers, as unsigned integers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).view(np.uint32)


def found(report: ScanReport) -> dict[str, tuple[int, int, int]]:
    return {each.name: (each.nan, each.inf, each.files) for each in report.non_finite}


@st.composite
def random_models(draw: st.DrawFn) -> Model:
    values = {}
    for number, dtype in enumerate(draw(st.lists(st.sampled_from(sorted(FLOATS)), min_size=1, max_size=3))):
        shape = draw(st.sampled_from([(AXIS_LENGTH,), (AXIS_LENGTH, AXIS_LENGTH)]))
        values[f"p{number}"] = dtype, random_bits(dtype, shape, number)
    devices = draw(st.sampled_from([1, 2, 4, 6]))
    return Model(values, {name: draw(layouts(devices, len(bits.shape))) for name, (_, bits) in values.items()}, devices)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_counts_and_places_are_numpys(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    model = data.draw(random_models())
    source, strategy = model.write(tmp_path_factory.mktemp("model"), data.draw(st.sampled_from(SELF_CONTAINED)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_shares, "BLOCK_BYTES", data.draw(st.sampled_from([64, 1000, 2**22])))
        patch.setattr(file_shares, "_MIN_SHARE_BYTES", data.draw(st.sampled_from([100, 2**26])))
        given_strategy = data.draw(st.booleans())
        report = reshard.scan(source, strategy=strategy if given_strategy else None, workers=3, integrated_save="no")
    assert report.files == model.devices
    assert report.parameters == len(model.values)
    by_name = {each.name: each for each in report.non_finite}
    for name, (dtype, _) in model.values.items():
        with np.errstate(invalid="ignore"):  # numpy warns of signaling NaN
            shards = [shards[name].view(FLOATS[dtype]).astype(np.float64) for shards in model.shards.values()]
        nan, inf = (sum(int(test(shard).sum()) for shard in shards) for test in (np.isnan, np.isinf))
        assert (name in by_name) == bool(nan + inf)
        if name not in by_name:
            continue
        assert (by_name[name].nan, by_name[name].inf) == (nan, inf)
        ranks = [rank for rank, shard in enumerate(shards) if not np.isfinite(shard).all()]
        assert [place.rank for place in by_name[name].places] == ranks[:MAX_PLACES]
        for place in by_name[name].places:
            shard = shards[place.rank]
            first = int(np.argmin(np.isfinite(shard)))
            assert place.file == f"rank_{place.rank}/m.{Path(place.file).suffix[1:]}"
            assert place.first == tuple(np.unravel_index(first, shard.shape))
            whole = model.values[name][1].shape
            expected = tuple(np.unravel_index(model.places(name, place.rank).reshape(-1)[first], whole))
            known = given_strategy or model.devices == 1
            assert place.first_in_whole == (expected if known else None)


def test_nan_in_one_replica_only_is_found_and_named(tmp_path: Path) -> None:
    replicated = RandomLayout((2, 2), ((0,), ()), ())
    model = Model({"w": ("Float32", finite((4, 6)))}, {"w": replicated}, 4)
    model.shards[3]["w"][1, 2] = NAN
    model.shards[3]["w"][1, 5] = INF
    source, strategy = model.write(tmp_path, SELF_CONTAINED[0])
    report = reshard.scan(source, strategy=strategy, integrated_save="no")
    assert found(report) == {"w": (1, 1, 1)}
    [place] = report.non_finite[0].places
    assert (place.rank, place.file, place.first) == (3, "rank_3/m.ckpt", (1, 2))
    assert place.first_in_whole == tuple(np.unravel_index(model.places("w", 3)[1, 2], (4, 6)))
    assert report.verdict == "1 NaN and 1 Inf in 1 of 1 floating-point parameters, 1 place in 4 files"
    assert not report.finite
    assert '"finite":false' in report.model_dump_json()


def test_no_whole_index_is_told_where_ranks_may_hold_whole_tensors(tmp_path: Path) -> None:
    model = Model({"w": ("Float32", finite((4,)))}, {"w": ROWS}, 2)
    model.shards[1]["w"][0] = NAN
    source, strategy = model.write(tmp_path, SELF_CONTAINED[0])
    places = {
        asked: reshard.scan(source, strategy=strategy, integrated_save=asked).non_finite[0].places[0]
        for asked in ("auto", "yes", "no")
    }
    assert {asked: place.first_in_whole for asked, place in places.items()} == {"auto": None, "yes": (0,), "no": (2,)}


def test_parameters_that_are_zero_throughout_are_named(tmp_path: Path) -> None:
    values = {name: ("Float32", finite((4,))) for name in ("lost", "partly", "full")}
    model = Model(values, dict.fromkeys(values, ROWS), 2)
    for rank in (0, 1):
        model.shards[rank]["lost"][:] = 0x80000000 * rank
    model.shards[0]["partly"][:] = 0
    source, _ = model.write(tmp_path, SELF_CONTAINED[1])
    report = reshard.scan(source)
    assert report.zeros == ("lost",)
    assert report.finite


def test_other_dtypes_are_passed_over_and_unknown_ones_are_told(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(
        path,
        {
            "f8": ("F8_E4M3", np.array([0x01, 0x7F], np.uint8)),
            "c": ("C64", np.array([2**64 - 1], np.uint64)),
            "i": ("I32", np.array([-1], np.int32)),
        },
    )
    report = reshard.scan(path)
    assert found(report) == {"f8": (1, 0, 1)}
    assert "not scanned: 1 parameter of the dtype C64: c" in report.notes
    assert report.parameters == 1
    assert report.non_finite[0].places[0].first_in_whole == (1,)


def test_what_is_selected_is_scanned(tmp_path: Path) -> None:
    path = file_of(
        tmp_path / "a.ckpt",
        ("w", "Float32", finite((3,))),
        ("adam_m.w", "Float32", np.array([1, NAN, 2], np.uint32)),
    )
    assert found(reshard.scan(path)) == {"adam_m.w": (1, 0, 1)}
    assert reshard.scan(path, select="weights-only").finite
    assert reshard.scan(path, exclude=["adam*"]).finite
    with pytest.raises(InputError, match=r"exclude=\['adm\*'\]: no parameter of .*a.ckpt has such a name"):
        reshard.scan(path, exclude=["adm*"])


def test_without_floating_point_parameters_there_is_nothing_to_scan(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.ckpt", ("w", "Int32", np.arange(3, dtype=np.int32)))
    with pytest.raises(InputError, match="nothing to scan: no floating-point parameter is included"):
        reshard.scan(path)


def test_a_missing_rank_is_refused_rather_than_passed_over(tmp_path: Path) -> None:
    source = copied(case(7010), tmp_path / "src")
    shutil.rmtree(source / "rank_5")
    with pytest.raises(InputError, match="rank_5"):
        reshard.scan(source)


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.ckpt", ("w", "Float32", finite((3,))))

    class Changing:
        def note(self, message: str) -> None: ...
        def advance(self, count_bytes: int) -> None: ...
        def begin(self, phase: str, total_bytes: int = 0) -> None:
            if phase == "scanning":
                file_of(path, ("w", "Float32", finite((7,))))

    with pytest.raises(InputError, match="rank_0: .*a.ckpt changed since its headers were read"):
        reshard.scan(path, progress=Changing())


def test_encrypted_files_are_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    formats = FIXTURES / "formats"
    monkeypatch.setenv("KEY", json.loads((formats / "expect.json").read_text())["keys"]["AES-GCM"])
    encrypted = reshard.scan(formats / "encrypted_AES-GCM.ckpt", decrypt_key="env:KEY")
    assert encrypted.parameters == 6
    assert not encrypted.notes[1:]
    assert encrypted.non_finite == ()


@pytest.mark.parametrize(
    "source",
    [
        *sorted((FIXTURES / "dcp").glob("case_*/*checkpoint*")),
        *(family.hf for family in ALL_FAMILIES[:3]),
    ],
    ids=lambda path: "/".join(path.parts[-2:]),
)
def test_other_layouts_are_scanned_as_they_are(source: Path) -> None:
    report = reshard.scan(source)
    assert report.finite
    assert report.parameters


SHARDED = [
    source
    for layout in ("dcp", "fsdp_ranks", "megatron")
    for source in sorted((FIXTURES / layout).glob("case_*/src"))
    if not (source / "sharded").exists()
]


@pytest.mark.parametrize("source", SHARDED, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_shards_are_where_the_checkpoint_says(source: Path) -> None:
    opened = open_files(OpenRequest(source=str(source)))
    compared = 0
    with reshard.open(source) as checkpoint:
        wholes: dict[str, np.ndarray] = {}
        for record in opened.catalog.records.values():
            for name, entry in record.index.entries.items():
                start = shard_start(opened, record, name)
                if name not in checkpoint or start is None or 0 in entry.shape or float_bits(entry.dtype) is None:
                    continue
                if name not in wholes:
                    wholes[name] = np.asarray(checkpoint[name]).view(f"<u{entry.dtype.itemsize}")
                box = tuple(slice(low, low + length) for low, length in zip(start, entry.shape, strict=True))
                blocks = read_file_blocks(record, [ElementRange.whole(entry)])
                shard = np.concatenate([values.reshape(-1).copy() for _, _, values in blocks])
                np.testing.assert_array_equal(wholes[name][box].reshape(-1), shard)
                compared += 1
    assert compared

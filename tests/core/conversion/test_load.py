"""Loading a rank: the same values that a conversion writes, and nothing is written."""

import os
import shutil
import sys
from contextvars import copy_context
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reshard.core.conversion.load as load_module
from reshard import mindspore
from reshard.core.changes.changes import OverflowPolicy
from reshard.core.conversion.convert import convert
from reshard.core.conversion.load import LoadPlan, plan_load
from reshard.core.errors import CastError, CatalogError, InputError, PlanError, StorageError
from reshard.core.files.numpy_values import INT4, Value, dtype_of, is_same
from reshard.core.request.conversion import build_request
from reshard.core.runtime.keys import source_key
from reshard.core.transfer import parameter_reader
from tests.endurance.test_memory import run_limited
from tests.support.changed_values import TARGET_DEVICES, draw_job, overflowing_plan
from tests.support.checkpoints import Case, Contents, case, read_ckpt
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.loading import load_rank

FOUR_TO_THREE = case(7009)
CASES = [case(7001), FOUR_TO_THREE, case(7011)]
NOT_WRITTEN = build_request(source="a", target="memory://reshard-nowhere")
MIB = 2**20


def contents(loaded: dict[str, Value]) -> Contents:
    arrays = {name: value for name, value in loaded.items() if isinstance(value, np.ndarray)}
    return {name: (dtype_of(each).name, each.shape, each.tobytes()) for name, each in arrays.items()}


def strategies(of: Case) -> tuple[str, str, str]:
    request = of.request("unused")
    return request.source, request.source_strategy, request.target_strategy


@pytest.mark.parametrize("of", CASES, ids=lambda of: of.directory.name)
def test_ranks_are_what_mindspore_converts_to(of: Case) -> None:
    plan = plan_load(*strategies(of))
    assert list(plan.ranks) == list(of.want)
    for rank, want in of.want.items():
        assert contents(dict(plan.load(rank))) == want


def test_no_strategy_is_none_as_well() -> None:
    source, source_strategy, _ = strategies(FOUR_TO_THREE)
    whole = contents(dict(load_rank(source, source_strategy, None)))
    assert whole == contents(dict(load_rank(source, source_strategy, "")))
    assert whole == contents(dict(load_rank(str(FOUR_TO_THREE.directory / "full"), None, None)))


def test_the_order_is_that_of_the_rank_s_file(tmp_path: Path) -> None:
    convert(FOUR_TO_THREE.request(tmp_path / "out", format="ckpt"))
    wanted = read_ckpt(tmp_path / "out" / "rank_1" / "checkpoint_1.ckpt")
    assert [name for name, _ in load_rank(*strategies(FOUR_TO_THREE), 1)] == list(wanted)
    assert plan_load(*strategies(FOUR_TO_THREE)).names(1) == tuple(wanted)


@pytest.mark.parametrize("remote", [False, True])
@settings(max_examples=10)
@given(st.data())
def test_changed_values_are_those_of_numpy(
    tmp_path_factory: pytest.TempPathFactory, remote: bool, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("work")
    job = draw_job(data, directory, remote)
    loaded = LoadPlan(NOT_WRITTEN, job.plan(), copy_context())
    rank = data.draw(st.integers(0, TARGET_DEVICES - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameter_reader, "PART_BYTES", data.draw(st.sampled_from([64, 5000, 2**20])))
        patch.setattr(load_module, "_MAX_BATCH_BYTES", data.draw(st.sampled_from([0, 5000, 2**20])))
        patch.setattr(parameter_reader, "MAX_SCRATCH_BYTES", data.draw(st.sampled_from([64, 5000, 2**20])))
        found = contents(dict(loaded.load(rank)))
    assert found == job.wanted(rank)


def test_values_are_those_of_load_checkpoint(kinds: Path) -> None:
    wanted = mindspore.load_checkpoint(str(kinds))
    found = dict(load_rank(str(kinds)))
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert is_same(found[name], value), name
    assert found["half"].dtype == ml_dtypes.bfloat16  # type: ignore[union-attr]
    assert found["packed"].dtype.metadata == INT4.metadata  # type: ignore[union-attr]


def test_what_is_appended_is_loaded_too(kinds: Path) -> None:
    found = dict(load_rank(str(kinds), append_info=["epoch=5", "version=text:2.0"]))
    assert found["epoch"] == np.array(5, np.int64)
    assert found["version"] == "2.0"


def test_options_are_those_of_a_conversion(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = tmp_path / "m.ckpt"
    path.write_bytes(checkpoint_bytes(*((name, "Float32", (3, 4), values.tobytes()) for name in ("w", "adam_m.w"))))
    loaded = load_rank(str(path), select="weights-only", rename=["w=v"], cast=["*=bfloat16"], transpose=["w"])
    [(name, value)] = loaded
    assert name == "v"
    assert is_same(value, values.T.astype(ml_dtypes.bfloat16).copy())


def test_some_names_of_a_rank(kinds: Path) -> None:
    assert [name for name, _ in load_rank(str(kinds), names=["truth", "half"])] == ["half", "truth"]
    assert list(load_rank(str(kinds), names=[])) == []


def test_an_encrypted_source_and_a_caller_without_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")
    convert(FOUR_TO_THREE.request(tmp_path / "out", format="ckpt", encrypt_key="env:KEY"))
    _, _, strategy = strategies(FOUR_TO_THREE)
    plan = plan_load(str(tmp_path / "out"), strategy, strategy, decrypt_key="env:KEY")
    monkeypatch.delenv("KEY")
    for rank, want in FOUR_TO_THREE.want.items():
        loaded = {}
        for name, value in plan.load(rank):
            assert source_key() is None
            loaded[name] = value
        assert contents(loaded) == want
    with pytest.raises(InputError, match="env:KEY"):
        load_rank(str(tmp_path / "out"), strategy, strategy, decrypt_key="env:KEY")


def test_ranks_are_loaded_side_by_side() -> None:
    plan = plan_load(*strategies(FOUR_TO_THREE))
    for values in zip(*(plan.load(rank) for rank in plan.ranks), strict=True):
        assert len({name for name, _ in values}) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "ckpt"}, "format: only for writing a target, and loading writes none: leave it out"),
        ({"overwrite": True, "verify": "none"}, "overwrite, verify: only for writing a target"),
        ({"target": "x"}, "target: only for writing a target"),
        ({"memory_limit": "1MiB"}, "memory_limit '1MiB': must be at least 16MiB"),
        ({"colour": 1}, "colour 1: there is no such option"),
        ({"cast": ["*=int8"]}, "int8"),
        ({"decrypt_key": "secret"}, "decrypt_key: "),
        ({"decrypt_key": "env:NOT_THERE"}, "env:NOT_THERE"),
        ({"source_strategy": "nowhere.ckpt"}, "nowhere.ckpt"),
        ({"names": ["nobody"]}, r"rank_0 of the target has no parameter 'nobody'"),
        ({"rename": ["nobody=x"]}, "nobody"),
    ],
)
def test_refusals(kinds: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, StorageError), match=message):
        load_rank(str(kinds), **options)


def test_a_rank_that_the_target_lacks() -> None:
    with pytest.raises(PlanError, match="the target has ranks 0 to 2, not 3"):
        load_rank(*strategies(FOUR_TO_THREE), 3)


def test_values_that_become_infinite(tmp_path: Path) -> None:
    path = tmp_path / "m.ckpt"
    path.write_bytes(checkpoint_bytes(("w", "Float32", (2,), np.array([1, 1e6], np.float32).tobytes())))
    with pytest.raises(CastError, match="parameter 'w': 1 finite Float32 value becomes infinite as Float16"):
        list(load_rank(str(path), cast=["*=float16"]))
    with pytest.warns(UserWarning, match=r"1 finite value became INFINITE \(w: 1\)"):
        [(_, value)] = load_rank(str(path), cast=["*=float16"], cast_overflow="allow")
    assert is_same(value, np.array([1, np.inf], np.float16))


def test_overflows_of_a_rank_are_refused_before_it_is_handed_out(tmp_path: Path) -> None:
    plan = overflowing_plan(tmp_path, OverflowPolicy.FAIL)
    loaded = LoadPlan(NOT_WRITTEN, plan, copy_context()).load(1)
    with pytest.raises(CastError, match=r"first is at \[20, 1\], the largest is -1e\+06"):
        next(loaded)


def test_a_source_that_changes_meanwhile(kinds: Path) -> None:
    values = load_rank(str(kinds))
    next(values)
    os.utime(kinds, (1, 1))
    with pytest.raises(CatalogError, match=r"kinds.ckpt changed while it was being"):
        list(values)


def test_who_stops_asking_leaves_no_file_open(kinds: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    values = load_rank(str(kinds))
    next(values)
    values.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", ", transpose=['*'], cast=['*=bfloat16']"], ids=["plain", "turned, cast"])
def test_memory_is_the_limit_and_one_array(tmp_path: Path, options: str) -> None:
    """Four parameters of 64 MiB; the program alone takes some memory, too."""
    content = bytes(64 * MIB)
    path = tmp_path / "m.ckpt"
    path.write_bytes(checkpoint_bytes(*((f"w{n}", "Float32", (4096, 4096), content) for n in range(4))))
    small = tmp_path / "small.ckpt"
    small.write_bytes(checkpoint_bytes(("w", "Float32", (2, 2), bytes(16))))

    def peak(source: Path) -> int:
        program = (
            "from reshard import load_rank\n"
            f"for name, array in load_rank({str(source)!r}, memory_limit='32MiB'{options}):\n"
            "    del array"
        )
        return run_limited(0, [sys.executable, "-c", program])

    try:
        assert peak(path) - peak(small) < (64 + 32) * MIB
    finally:
        shutil.rmtree(tmp_path)

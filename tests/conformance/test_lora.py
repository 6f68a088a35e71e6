"""Adapters that peft trained, merged by reshard: the bytes of peft's own merge."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.conformance.dcp import PYTHON
from tests.conformance.mindspore_process import JudgeProcess
from tests.support.families import directory_contents

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not next(PYTHON.parents[1].glob("lib/*/site-packages/peft"), None),
        reason="peft is not installed: `make conformance` does it",
    ),
]
CASES = [
    *[("linear", dtype, rank) for dtype in ("bfloat16", "float16", "float32") for rank in (4, 16)],
    *[(kind, "bfloat16", 8) for kind in ("stabilized", "patterns", "embedding", "saved", "biases", "experts")],
]
TYPES = {"BFloat16": ml_dtypes.bfloat16, "Float16": np.float16, "Float32": np.float32}


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    with JudgeProcess(tmp_path_factory.mktemp("judge") / "log", PYTHON, "lora_judge.py") as judge:
        yield judge


@pytest.mark.parametrize(("kind", "dtype", "rank"), CASES, ids=["-".join(map(str, case)) for case in CASES])
def test_a_merge_is_pefts(judge: JudgeProcess, tmp_path: Path, kind: str, dtype: str, rank: int) -> None:
    judge.ask("merge", directory=str(tmp_path), kind=kind, dtype=dtype, rank=rank, seed=rank)
    request = build_request(
        source=str(tmp_path / "base"),
        target=str(tmp_path / "ours"),
        layout="unified",
        lora=str(tmp_path / "adapter"),
        verify="content",
    )
    assert convert(request).committed
    ours, theirs = directory_contents(tmp_path / "ours"), directory_contents(tmp_path / "merged")
    assert {name: each[:2] for name, each in ours.items()} == {name: each[:2] for name, each in theirs.items()}
    before = directory_contents(tmp_path / "base")
    assert any(before[name] != theirs[name] for name in theirs)
    for name, (kind_of, _, content) in theirs.items():
        # the order in which a processor adds the terms of a product may be another than this one's
        found, wanted = (np.frombuffer(each, TYPES[kind_of]).astype(np.float64) for each in (ours[name][2], content))
        tolerance = 2.0**-20 if kind_of == "Float32" else 2.0 ** -(7 if kind_of == "BFloat16" else 10)
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=2.0**-22, err_msg=name)
        share = np.mean(found == wanted)
        assert share == 1 or (kind_of == "Float32" and share > 0.5) or share > 0.999, name


def test_adapters_in_mindformers_names(judge: JudgeProcess, tmp_path: Path) -> None:
    """Merged into a base with fused weights of MindFormers', and there and back in a directory of its own."""
    judge.ask("merge", directory=str(tmp_path), kind="linear", dtype="float32", rank=8, seed=8)
    base, lora = str(tmp_path / "base"), str(tmp_path / "adapter")
    options: dict[str, Any] = {"preset": "llama", "layout": "unified", "verify": "content"}
    fused = ["qkv_concat=true", "qkv_grouped=true"]
    convert(build_request(source=base, target=str(tmp_path / "mf"), switch=fused, **options))
    export = {"source": str(tmp_path / "mf"), "like": base, "switch": fused[1:], "lora": lora}
    convert(build_request(target=str(tmp_path / "ours"), **export, **options))
    convert(build_request(source=base, target=str(tmp_path / "straight"), layout="unified", lora=lora))
    assert directory_contents(tmp_path / "ours") == directory_contents(tmp_path / "straight")
    there = {"source": lora, "switch": ["lora_names=mindpet"], "config_json": base}
    convert(build_request(target=str(tmp_path / "mindpet"), **there, **options))
    back = {"source": str(tmp_path / "mindpet"), "config_json": base, "lora_alpha": 10}
    convert(build_request(target=str(tmp_path / "back"), **back, **options))
    wanted = directory_contents(tmp_path / "adapter")
    assert directory_contents(tmp_path / "back") == wanted
    found = judge.ask("apply", directory=str(tmp_path), adapter="back", dtype="float32", to="again")
    assert len(found["trained"]) == len(wanted)
    assert directory_contents(tmp_path / "again") == directory_contents(tmp_path / "merged")


FUSED = [
    ("llama", ["qkv_concat=true", "qkv_grouped=true", "names=legacy", "lora_names=mindpet"], ["qkv_grouped=true"]),
    ("llama", ["qkv_concat=true", "qkv_grouped=false", "names=legacy", "lora_names=tk"], ["qkv_grouped=false"]),
]


@pytest.mark.parametrize(("preset", "there", "back"), FUSED)
def test_adapters_of_fused_weights(
    judge: JudgeProcess, tmp_path: Path, preset: str, there: list[str], back: list[str]
) -> None:
    """Those of q, k and v, and of gate and up, become one each, and several again: peft makes the same of them."""
    judge.ask("merge", directory=str(tmp_path), kind="all", dtype="float32", rank=8, seed=3, exact=True)
    base, lora = str(tmp_path / "base"), str(tmp_path / "adapter")
    options: dict[str, Any] = {"preset": preset, "layout": "unified", "verify": "content", "config_json": base}
    blocks = [*there, "lora_join=blocks"]
    convert(build_request(source=lora, target=str(tmp_path / "fused"), switch=blocks, **options))
    given = {"source": str(tmp_path / "fused"), "switch": back, "lora_alpha": 30}
    convert(build_request(target=str(tmp_path / "parts"), **given, **options))
    found = judge.ask("apply", directory=str(tmp_path), adapter="parts", dtype="float32", to="again")
    assert len(found["trained"]) == 2 * 7 * 2
    merged = directory_contents(tmp_path / "merged")
    assert directory_contents(tmp_path / "again") == merged
    assert merged != directory_contents(tmp_path / "base")
    convert(build_request(source=base, target=str(tmp_path / "ours"), layout="unified", lora=lora))
    assert directory_contents(tmp_path / "ours") == merged
    again = {"source": str(tmp_path / "parts"), "switch": there}
    convert(build_request(target=str(tmp_path / "there"), **again, **options))
    assert directory_contents(tmp_path / "there") == directory_contents(tmp_path / "fused")

"""Whole shapes that cannot be right beside those of other parameters of the layer."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from reshard.core.conversion.plan_notes import plan_notes
from reshard.core.conversion.planning import describe_plan
from reshard.core.plan.whole_shapes import BY_FILES, Whole
from reshard.core.request.conversion import build_request
from reshard.core.source.diagnosis_report import Diagnosis
from reshard.core.source.sibling_checks import sibling_findings
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import read_safetensors
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.diagnosed import diagnose, only
from tests.support.families import ALL_FAMILIES, Family, directory_contents
from tests.support.two_stages import COLUMNS, NORM, ROWS, put, strategy

SHAPES = {
    "attention.wq.weight": (128, 128),
    "attention.wk.weight": (64, 128),
    "attention.wo.weight": (128, 128),
    "feed_forward.w1.weight": (256, 128),
    "feed_forward.w2.weight": (128, 256),
    "attention_norm.weight": (128,),
}
CUTS = {
    "attention.wo.weight": COLUMNS,
    "feed_forward.w2.weight": COLUMNS,
    "attention_norm.weight": NORM,
}
LAYOUTS = {f"model.layers.{n}.{name}": CUTS.get(name, ROWS) for n in range(2) for name in SHAPES}


def saved(tmp_path: Path, layouts: Mapping[str, ParameterLayout] = LAYOUTS) -> None:
    random = np.random.default_rng(1)
    wholes = {name: random.random(SHAPES[name.split(".", 3)[3]], np.float32) for name in layouts}
    for rank in range(4):
        entries = []
        for name, layout in layouts.items():
            tensor = wholes[name]
            shard = tensor[layout.shard_grid(tensor.ndim).box_of(rank, tensor.shape).as_index()]
            entries.append((name, "Float32", shard.shape, shard.tobytes()))
        put(tmp_path / "src", rank, *entries)


def diagnosed(tmp_path: Path, misread: Mapping[str, ParameterLayout], like: str = "") -> Diagnosis:
    write_strategy(strategy([{**LAYOUTS, **misread}]), str(tmp_path / "strategy.ckpt"))
    return diagnose(str(tmp_path / "src"), str(tmp_path / "strategy.ckpt"), like=like)


def misread_in_all_layers(part: str, layout: ParameterLayout) -> dict[str, ParameterLayout]:
    return {name: layout for name in LAYOUTS if part in name}


def test_a_right_strategy_is_consistent_but_not_confirmed(tmp_path: Path) -> None:
    saved(tmp_path)
    diagnosis = diagnosed(tmp_path, {})
    assert (diagnosis.fits, diagnosis.findings) == (True, ())
    assert diagnosis.whole_shapes.unconfirmed == 10
    shown = {kind.parameters: (kind.count, kind.shape, kind.confirmed_by) for kind in diagnosis.whole_shapes.kinds}
    assert shown["model.layers.*.attention.wk.weight"] == (2, (64, 128), "")
    assert shown["model.layers.*.attention_norm.weight"] == (2, (128,), BY_FILES)


@pytest.mark.parametrize(
    ("part", "layout", "wrong", "mended"),
    [
        ("wq", COLUMNS, "[64, 256]", "[128, 128]"),
        ("wk", COLUMNS, "[32, 256]", "[64, 128]"),
        ("wo", ROWS, "[256, 64]", "[128, 128]"),
        ("w1", COLUMNS, "[128, 256]", "[256, 128]"),
        ("w2", ROWS, "[256, 128]", "[128, 256]"),
    ],
)
def test_a_matrix_that_is_sharded_along_the_wrong_axis_in_every_layer(
    tmp_path: Path, part: str, layout: ParameterLayout, wrong: str, mended: str
) -> None:
    saved(tmp_path)
    finding = only(diagnosed(tmp_path, misread_in_all_layers(part, layout)), "shapes")
    assert f".{part}.weight' {wrong} beside " in finding.found
    assert "'model.layers.0.attention_norm.weight' [128]" in finding.found
    assert f"sharded along another axis, make {mended}" in finding.found


def test_a_plan_warns_of_a_matrix_that_contradicts_its_siblings(tmp_path: Path) -> None:
    saved(tmp_path)
    wrong = LAYOUTS | misread_in_all_layers("wq", COLUMNS)
    write_strategy(strategy([wrong]), str(tmp_path / "strategy.ckpt"))
    paths = {"source": str(tmp_path / "src"), "source_strategy": str(tmp_path / "strategy.ckpt")}
    plan, summary = describe_plan(build_request(target=str(tmp_path / "out"), **paths))
    [warning] = [note for note in plan_notes(plan) if note.startswith("is this strategy the checkpoint's own? ")]
    assert "'model.layers.0.attention.wq.weight' [64, 256] beside " in warning
    assert not summary.whole_shapes.confirmed
    assert "model.layers.*.attention.wq.weight [64, 256]" in str(summary.whole_shapes)


def test_all_matrices_of_an_attention_sharded_along_the_wrong_axis(tmp_path: Path) -> None:
    saved(tmp_path)
    exchanged = {name: COLUMNS if lay is ROWS else ROWS for name, lay in LAYOUTS.items() if lay is not NORM}
    found = only(diagnosed(tmp_path, exchanged), "shapes").found
    for part in ("wq", "wk", "wo"):
        assert f".{part}.weight' " in found


def test_a_json_strategy_confirms_the_shapes_and_a_checkpoint_given_with_like_does(tmp_path: Path) -> None:
    saved(tmp_path)
    wholes = [
        (name, "Float32", SHAPES[name.split(".", 3)[3]], bytes(4 * int(np.prod(SHAPES[name.split(".", 3)[3]]))))
        for name in LAYOUTS
    ]
    (tmp_path / "whole.ckpt").write_bytes(checkpoint_bytes(*wholes))
    like = str(tmp_path / "whole.ckpt")
    right = diagnosed(tmp_path, {}, like=like)
    assert (right.fits, right.whole_shapes.confirmed, right.whole_shapes.witnesses) == (True, True, like)
    found = only(diagnosed(tmp_path, misread_in_all_layers("wq", COLUMNS), like=like), "shapes").found
    assert found.startswith(f"the strategy makes wholes of other shapes than {like} has: ")
    assert "'model.layers.0.attention.wq.weight' [64, 256], not [128, 128]" in found


def wholes(**kinds: tuple[tuple[int, ...], tuple[int, ...]]) -> dict[str, Whole]:
    """Names with two underscores for a dot -> whole tensors that nothing confirms if they are sharded."""
    return {
        name.replace("__", "."): Whole(shape, pieces, "" if max(pieces) > 1 else BY_FILES)
        for name, (shape, pieces) in kinds.items()
    }


def test_an_embedding_without_the_length_of_norms() -> None:
    norm = ((16,), (1,))
    found = sibling_findings(wholes(tok_embeddings__weight=((32, 32), (1, 2)), layers__0__norm__weight=norm))
    assert "'tok_embeddings.weight' [32, 32] beside 'layers.0.norm.weight' [16]" in found[0].found
    assert not sibling_findings(wholes(tok_embeddings__weight=((64, 16), (2, 1)), layers__0__norm__weight=norm))


def test_a_moment_of_another_whole_shape_than_its_parameter() -> None:
    found = sibling_findings(wholes(layers__0__w=((8, 8), (2, 1)), adam_m__layers__0__w=((4, 8), (1, 1))))
    assert "'adam_m.layers.0.w' [4, 8] beside 'layers.0.w' [8, 8]" in found[0].found


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param({"attn__q_norm": ((4,), (1,)), "attn__q_proj": ((32, 16), (2, 1))}, id="a norm of heads"),
        pytest.param(
            {"norm": ((16,), (1,)), "attn__o_proj": ((16, 32), (1, 2)), "attn__q_b_proj": ((48, 8), (2, 1))},
            id="queries of low rank",
        ),
        pytest.param(
            {"norm": ((16,), (1,)), "attn__wq": ((32, 32), (2, 1)), "attn__wo": ((16, 32), (1, 1))},
            id="inputs of another length",
        ),
        pytest.param(
            {"norm": ((16,), (1,)), "cross_attn__wk": ((8, 32), (1, 2)), "cross_attn__wq": ((16, 16), (2, 1))},
            id="an encoder's length",
        ),
        pytest.param(
            {"norm": ((16,), (1,)), "mlp__fc1": ((16, 64), (1, 2)), "mlp__fc2": ((64, 16), (2, 1))},
            id="stored as input, output",
        ),
        pytest.param({"norm": ((16,), (1,)), "experts__w1": ((4, 16, 64), (2, 1, 1))}, id="stacked experts"),
        pytest.param({"wq": ((16, 32), (1, 2)), "wk": ((8, 16), (2, 1))}, id="no majority and no norm"),
    ],
)
def test_networks_with_other_rules_contradict_nothing(
    layer: dict[str, tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    assert sibling_findings(wholes(**{f"layers__0__{name}": each for name, each in layer.items()})) == []


@pytest.mark.parametrize("family", ALL_FAMILIES, ids=str)
@pytest.mark.parametrize("pieces", [2, 4])
def test_no_family_of_models_contradicts_itself(family: Family, pieces: int) -> None:
    for tensors in (read_safetensors(family.mf), directory_contents(family.hf)):
        for axis in (0, 1):
            cut = tuple(pieces if each == axis else 1 for each in (0, 1))
            shapes = {name: tuple(shape) for name, (_, shape, _) in tensors.items()}
            sharded = {name for name, shape in shapes.items() if len(shape) == 2 and shape[axis] % pieces == 0}
            assert sharded
            of_family = {
                name: Whole(shape, cut, "") if name in sharded else Whole(shape, (1,) * len(shape), BY_FILES)
                for name, shape in shapes.items()
            }
            assert sibling_findings(of_family) == []

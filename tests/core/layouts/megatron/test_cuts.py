"""Tensors cut among ranks, and put together again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.errors import LayoutError
from reshard.core.layouts.megatron.cuts import (
    Cut,
    ModelRank,
    Traits,
    cut_of,
    part_of,
    placed_part,
    stacked_shape,
    stored_shape,
)

LAYER = "decoder.layers.7."
GATED = Traits(gated=True)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Cut, tuple[int, ...], list[ModelRank]]:
    tensor, expert, expert_tensor = (draw(st.integers(1, 4)) for _ in range(3))
    cut = draw(
        st.sampled_from(
            [
                *(Cut(axis, of_experts=of_experts) for axis in (None, 0, 1) for of_experts in (False, True)),
                *(Cut(0, halves=True, of_experts=of_experts) for of_experts in (False, True)),
                Cut(2, halves=True, of_experts=True, stacked=True),
                Cut(2, of_experts=True, stacked=True),
                Cut(1, of_experts=True, stacked=True),
            ]
        )
    )
    axes = 3 if cut.stacked else 2
    shape = [draw(st.integers(1, 3)) for _ in range(axes)]
    if cut.axis is not None:
        shape[cut.axis] *= (expert_tensor if cut.of_experts else tensor) * (2 if cut.halves else 1)
    if cut.stacked:
        shape[0] *= expert
    ranks = [
        ModelRank(t, tensor, e, expert, x, expert_tensor)
        for t in range(tensor)
        for e in range(expert)
        for x in range(expert_tensor)
    ]
    return cut, tuple(shape), ranks


@given(_cases())
def test_parts_put_together_are_the_whole(case: tuple[Cut, tuple[int, ...], list[ModelRank]]) -> None:
    cut, shape, ranks = case
    whole = np.arange(np.prod(shape)).reshape(shape)
    found = np.full(shape, -1)
    for rank in ranks:
        part = part_of(cut, shape, rank)
        local = np.full(part.shape, -1)
        for piece in part.pieces:
            local[piece.local.as_index()] = whole[piece.box.as_index()]
        assert (local >= 0).all()
        placed = placed_part(cut, part.shape, rank)
        assert placed == part
        for piece in placed.pieces:
            found[piece.box.as_index()] = local[piece.local.as_index()]
    assert (found == whole).all()


def test_a_gated_matrix_is_a_slice_of_gates_and_one_of_ups() -> None:
    cut = cut_of(f"{LAYER}mlp.linear_fc1.weight", GATED)
    assert cut is not None
    part = placed_part(cut, (4, 3), ModelRank(1, 2))
    assert part.whole == (8, 3)
    assert [(str(piece.box), str(piece.local)) for piece in part.pieces] == [
        ("[2:4, 0:3]", "[0:2, 0:3]"),
        ("[6:8, 0:3]", "[2:4, 0:3]"),
    ]


def test_one_rank_has_a_gated_matrix_in_one_piece() -> None:
    cut = cut_of(f"{LAYER}mlp.linear_fc1.weight", GATED)
    assert cut is not None
    assert [str(piece.box) for piece in placed_part(cut, (4, 3), ModelRank()).pieces] == ["[0:4, 0:3]"]


def test_stacked_experts_have_an_axis_of_their_own() -> None:
    cut = cut_of(f"{LAYER}mlp.experts.weight1", GATED)
    assert cut is not None
    shape = stacked_shape("weight1", (5, 8), 2)
    assert shape == (2, 5, 4)
    assert stored_shape("weight1", shape) == (5, 8)
    part = placed_part(cut, shape, ModelRank(0, 2, 1, 2, 1, 2))
    assert part.whole == (4, 5, 8)
    assert [str(piece.box) for piece in part.pieces] == ["[2:4, 0:5, 2:4]", "[2:4, 0:5, 6:8]"]
    assert stacked_shape("weight2", (6, 5), 2) == (2, 3, 5)
    assert stored_shape("weight2", (2, 3, 5)) == (6, 5)


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("embedding.word_embeddings.weight", Cut(0)),
        ("embedding.position_embeddings.weight", Cut()),
        ("output_layer.weight", Cut(0)),
        ("decoder.final_layernorm.weight", Cut()),
        ("final_layernorm.weight", Cut()),
        (f"{LAYER}input_layernorm.weight", Cut()),
        (f"{LAYER}pre_mlp_layernorm.bias", Cut()),
        (f"{LAYER}self_attention.linear_qkv.weight", Cut(0)),
        (f"{LAYER}self_attention.linear_qkv.bias", Cut(0)),
        (f"{LAYER}self_attention.linear_qkv.layer_norm_weight", Cut()),
        (f"{LAYER}self_attention.q_layernorm.weight", Cut()),
        (f"{LAYER}self_attention.core_attention.softmax_offset", Cut(0)),
        (f"{LAYER}self_attention.linear_proj.weight", Cut(1)),
        (f"{LAYER}self_attention.linear_proj.post_layernorm.weight", Cut()),
        (f"{LAYER}mlp.linear_fc2.post_layernorm.weight", Cut()),
        (f"{LAYER}post_attn_norm.weight", Cut()),
        (f"{LAYER}post_mlp_layernorm.weight", Cut()),
        (f"{LAYER}self_attention.linear_proj.bias", Cut()),
        (f"{LAYER}self_attention.linear_q_up_proj.weight", Cut(0)),
        (f"{LAYER}self_attention.linear_q_up_proj.layer_norm_weight", Cut()),
        (f"{LAYER}self_attention.linear_kv_up_proj.weight", Cut(0)),
        (f"{LAYER}self_attention.linear_q_proj.weight", Cut(0)),
        (f"{LAYER}self_attention.linear_q_down_proj.weight", Cut()),
        (f"{LAYER}mlp.linear_fc1.weight", Cut(0, halves=True)),
        (f"{LAYER}mlp.linear_fc1.bias", Cut(0, halves=True)),
        (f"{LAYER}mlp.linear_fc1.layer_norm_weight", Cut()),
        (f"{LAYER}mlp.linear_fc2.weight", Cut(1)),
        (f"{LAYER}mlp.linear_fc2.bias", Cut()),
        (f"{LAYER}mlp.shared_experts.linear_fc1.weight", Cut(0, halves=True)),
        (f"{LAYER}mlp.shared_experts.gate_weight", Cut()),
        (f"{LAYER}mlp.router.weight", Cut()),
        (f"{LAYER}mlp.router.expert_bias", Cut()),
        (f"{LAYER}mlp.router.bias", Cut()),
        (f"{LAYER}mlp.experts.local_experts.3.linear_fc1.bias", Cut(0, halves=True, of_experts=True)),
        (f"{LAYER}mlp.experts.local_experts.3.linear_fc1.weight", Cut(0, halves=True, of_experts=True)),
        (f"{LAYER}mlp.experts.local_experts.3.linear_fc2.weight", Cut(1, of_experts=True)),
        (f"{LAYER}mlp.experts.local_experts.3.linear_fc2.bias", Cut(of_experts=True)),
        (f"{LAYER}mlp.experts.linear_fc1.weight3", Cut(0, halves=True, of_experts=True)),
        (f"{LAYER}mlp.experts.linear_fc2.weight3", Cut(1, of_experts=True)),
        (f"{LAYER}mlp.experts.weight1", Cut(2, halves=True, of_experts=True, stacked=True)),
        (f"{LAYER}mlp.experts.weight2", Cut(1, of_experts=True, stacked=True)),
        ("mtp.layers.0.enorm.weight", Cut()),
        ("mtp.layers.0.hnorm.weight", Cut()),
        ("mtp.layers.0.final_layernorm.weight", Cut()),
        ("mtp.layers.0.eh_proj.weight", Cut(0)),
        ("mtp.layers.0.transformer_layer.self_attention.linear_proj.weight", Cut(1)),
        ("mtp.layers.0.transformer_layer.mlp.experts.weight2", Cut(1, of_experts=True, stacked=True)),
        ("mtp.final_layernorms.0.weight", Cut()),
        (f"{LAYER}self_attention.linear_strange.weight", None),
        (f"{LAYER}mlp.linear_fc1.weight.more", None),
        ("decoder.layers.x.mlp.linear_fc1.weight", None),
    ],
)
def test_how_names_are_cut(name: str, cut: Cut | None) -> None:
    assert cut_of(name, GATED) == cut


def test_traits_decide_what_names_do_not() -> None:
    assert cut_of(f"{LAYER}mlp.linear_fc1.weight", Traits()) == Cut(0)
    assert cut_of(f"{LAYER}mlp.experts.weight1", Traits()) == Cut(2, of_experts=True, stacked=True)
    assert cut_of(f"{LAYER}self_attention.linear_qkv.weight", Traits(latent=True)) == Cut()
    assert cut_of(f"{LAYER}self_attention.linear_q_down_proj.weight", Traits(cuts_down=True)) == Cut(0)


@pytest.mark.parametrize(
    ("cut", "shape", "message"),
    [
        (Cut(0), (3, 2), r"axis 0 of its shape \[3, 2\] cannot be divided evenly by 2"),
        (Cut(0, halves=True), (6, 2), r"axis 0 of its shape \[6, 2\] cannot be divided evenly by 4"),
        (Cut(1), (4,), r"its shape \[4\] has too few axes"),
        (Cut(0), (), r"its shape \[\] has too few axes"),
        (Cut(stacked=True, of_experts=True), (4, 4), r"its shape \[4, 4\] has too few axes"),
    ],
)
def test_tensors_that_cannot_be_cut(cut: Cut, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        part_of(cut, shape, ModelRank(0, 2))


def test_stacked_shapes_must_suit_the_number_of_experts() -> None:
    with pytest.raises(LayoutError, match=r"its shape \[5, 9\] is not that of 2 experts"):
        stacked_shape("weight1", (5, 9), 2)


@pytest.mark.parametrize("name", ["q_layernorm", "k_layernorm"])
def test_norms_over_all_heads_together_are_cut_as_the_heads_are(name: str) -> None:
    assert cut_of(f"{LAYER}self_attention.{name}.weight", Traits(joint_norms=True)) == Cut(0)
    assert cut_of(f"{LAYER}input_layernorm.weight", Traits(joint_norms=True)) == Cut()

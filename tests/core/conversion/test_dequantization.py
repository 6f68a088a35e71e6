"""Block-scaled weights become bfloat16 on the way, against the same in numpy."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, PlanError, VerificationError
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import write_strategy
from tests.support.checkpoints import read_tree
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import RandomLayout, layouts, shard_of
from tests.support.safetensors_files import write_safetensors

BLOCK = (16, 24)
SCALE = "{x:*}_scale_inv"
JOIN = {"join": {"parameters": ["w", "v"], "into": "w"}}
Tensors = dict[str, tuple[str, np.ndarray]]


def quantized(number: int, shape: tuple[int, int], block: tuple[int, int] = BLOCK) -> Tensors:
    """A weight with its scale, and what they make in bfloat16."""
    generator = np.random.default_rng(number)
    weight = generator.integers(0, 256, shape, np.uint8)
    weight[weight & 0x7F == 0x7F] = 0  # not a number
    scale = generator.uniform(1e-4, 3, [-(-length // side) for length, side in zip(shape, block, strict=True)])
    return {"w": ("F8_E4M3", weight), "w_scale_inv": ("F32", scale.astype(np.float32))}


def dequantized(tensors: Tensors, block: tuple[int, int] = BLOCK) -> np.ndarray:
    (_, weight), (_, scale) = tensors["w"], tensors["w_scale_inv"]
    factors = np.repeat(np.repeat(scale, block[0], 0), block[1], 1)[: weight.shape[0], : weight.shape[1]]
    values = weight.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * factors
    return values.astype(ml_dtypes.bfloat16)


def run(
    directory: Path, tensors: Tensors, steps: list[dict[str, Any]], cuts: dict[str, RandomLayout], **more: Any
) -> Path:
    source, target = directory / "source", directory / "target"
    source.mkdir()
    write_safetensors(source / "model.safetensors", tensors)
    strategy = directory / "strategy.ckpt"
    write_strategy(make_strategy({each: as_layout(cut) for each, cut in cuts.items()}), str(strategy))
    document = directory / "changes.yaml"
    document.write_text(str({"steps": steps, **more}).replace("'", '"').replace("True", "true"))
    request = build_request(
        source=str(source),
        target=str(target),
        target_strategy=str(strategy),
        changes=str(document),
        format="safetensors",
        verify="content",
        memory_limit="16MiB",
    )
    assert convert(request).committed
    return target


def dequantize(**more: Any) -> dict[str, Any]:
    return {"dequantize": {"parameters": "{x:*}", "scale": SCALE, "block": list(BLOCK), **more}}


@settings(max_examples=6)
@given(st.data())
def test_weights_are_scaled_block_by_block(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("scaled")
    tensors = quantized(data.draw(st.integers(0, 99)), (48, 120))
    whole = dequantized(tensors)
    steps = [dequantize()]
    if data.draw(st.booleans()):
        steps.append({"transpose": {"parameters": "w"}})
        whole = whole.T
    if data.draw(st.booleans()):
        steps.append({"repeat": {"parameters": "w", "to": "v.{i}", "count": 24}})
        steps.append({"stack": {"parameters": "v.{i}", "into": "s", "count": 24}})
    wanted = {"w": whole}
    if "stack" in steps[-1]:
        wanted["s"] = np.stack([whole] * 24)
    if data.draw(st.booleans()):  # rows in turn
        groups = len(whole) // 2
        steps.append({"split": {"parameters": "w", "into": ["even", "odd"], "groups": groups}})
        wanted |= {"even": wanted.pop("w")[::2], "odd": whole[1::2]}
        if data.draw(st.booleans()):
            steps.append({"join": {"parameters": ["odd", "even"], "into": "w", "groups": groups}})
            both = [wanted.pop("odd"), wanted.pop("even")]
            wanted["w"] = np.stack(both, 1).reshape(whole.shape)
    cuts = {name: data.draw(layouts(4, array.ndim)) for name, array in wanted.items()}
    cast = data.draw(st.sampled_from([None, "float32"]))
    more = {"cast": [{"parameters": "*", "dtype": cast}]} if cast else {}
    target = run(directory, tensors, steps, cuts, **more)
    for rank, held in read_tree(target).items():
        assert {*held} == {*wanted}
        for name, (dtype, shape, content) in held.items():
            shard = shard_of(wanted[name], cuts[name], rank)
            shard = shard.astype(np.float32) if cast else shard
            assert dtype == ("Float32" if cast else "BFloat16")
            assert (shape, content) == (shard.shape, np.ascontiguousarray(shard).tobytes())


def test_without_a_scale_or_in_another_type_nothing_is_scaled(tmp_path: Path) -> None:
    plain = {"v": ("F32", np.ones((24, 24), np.float32))}
    wanted = {"w": RandomLayout((1,), ((), ()), ()), "v": RandomLayout((1,), ((), ()), ())}
    target = run(tmp_path, quantized(1, (48, 24)) | plain, [dequantize()], wanted)
    assert {name: dtype for name, (dtype, _, _) in read_tree(target)[0].items()} == {"w": "BFloat16", "v": "Float32"}


@pytest.mark.parametrize(
    ("tensors", "steps", "problem"),
    [
        (
            quantized(1, (48, 24)) | {"w_scale_inv": ("F32", np.ones((2, 1), np.float32))},
            [dequantize()],
            "'w' has shape [48, 24], so 'w_scale_inv' must have [3, 1], not [2, 1]",
        ),
        (
            quantized(1, (48, 24)) | {"w": ("BF16", np.ones((48, 24), np.uint16))},
            [dequantize()],
            "'w' has dtype BFloat16, its scale 'w_scale_inv' Float32: only F8_E4M3 with scales of Float32 can be",
        ),
        (
            quantized(1, (48, 24)),
            [{"transpose": {"parameters": "w"}}, dequantize()],
            "'w' can only be used as the source has it: dequantize before other steps change it",
        ),
        (
            quantized(1, (48, 72)),  # as many blocks in rows as in columns: turned scales would fit
            [{"transpose": {"parameters": "w_scale_inv"}}, dequantize()],
            "'w_scale_inv' can only be used as the source has it: dequantize before other steps change it",
        ),
        (
            quantized(1, (48, 24)),
            [{"transpose": {"parameters": "w"}}],
            "and 'w' would be transposed; make them bfloat16, fp8='dequantize'",
        ),
        (
            quantized(1, (48, 24)),
            [{"repeat": {"parameters": "w", "to": "v"}}, dequantize(), JOIN],
            "it would have values of 'w' both scaled and as they are stored, which have different dtypes",
        ),
        (
            quantized(1, (3, 1), (1, 1)),
            [{"repeat": {"parameters": "w_scale_inv", "to": "v"}}, dequantize(block=[1, 1]), JOIN],
            "has different dtypes ('w' BFloat16, 'w_scale_inv' Float32), which a cast could make one",
        ),
        (
            {"v": ("F32", np.ones((24, 24), np.float32))},
            [dequantize()],
            "step 1, the dequantization of '{x:*}', matches no parameter",
        ),
    ],
)
def test_what_cannot_be_scaled_is_refused(
    tmp_path: Path, tensors: Tensors, steps: list[dict[str, Any]], problem: str
) -> None:
    with pytest.raises(PlanError) as error:
        run(
            tmp_path, tensors, steps, {name: RandomLayout((1,), ((), ()), ()) for name in ("w", "v") if name in tensors}
        )
    assert problem in str(error.value)
    assert not (tmp_path / "target").exists()


def test_a_scale_that_makes_values_infinite_is_damaged(tmp_path: Path) -> None:
    tensors = quantized(1, (48, 24))
    tensors["w_scale_inv"][1][1, 0] = np.inf
    with pytest.raises(InputError, match="'w': values become infinite by their scale 'w_scale_inv', near"):
        run(tmp_path, tensors, [dequantize()], {"w": RandomLayout((1,), ((), ()), ())})


def test_the_plan_counts_the_factors_that_each_rank_reads(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_safetensors(source / "model.safetensors", quantized(1, (48, 96)))
    layout = RandomLayout((2,), ((0,), ()), ())
    write_strategy(make_strategy({"w": as_layout(layout)}), str(tmp_path / "strategy.ckpt"))
    document = tmp_path / "changes.yaml"
    document.write_text(str({"steps": [dequantize()]}).replace("'", '"'))
    plan = make_plan(
        build_request(
            source=str(source),
            target=str(tmp_path / "target"),
            target_strategy=str(tmp_path / "strategy.ckpt"),
            changes=str(document),
        )
    )
    factors = 3 * 4 * 4  # 48 * 96 in blocks of 16 * 24, as float32
    assert [totals.needed_bytes for totals in plan.totals] == [24 * 96 + factors] * 2


def test_a_replica_of_a_scale_that_differs_is_found_although_it_was_not_read(tmp_path: Path) -> None:
    tensors = quantized(1, (48, 24))
    for rank in range(3):
        folder = tmp_path / "source" / f"rank_{rank}"
        folder.mkdir(parents=True)
        weight, scale = tensors["w"][1], tensors["w_scale_inv"][1].copy()
        if rank == 2:
            scale.view(np.uint32)[1, 0] ^= 1 << 22
        write_safetensors(folder / "m.safetensors", {"w": ("F8_E4M3", weight), "w_scale_inv": ("F32", scale)})
    whole = as_layout(RandomLayout((3,), ((), ()), ()))
    write_strategy(make_strategy({"w": whole, "w_scale_inv": whole}), str(tmp_path / "strategy.ckpt"))
    document = tmp_path / "changes.yaml"
    document.write_text(str({"steps": [dequantize()]}).replace("'", '"'))
    request = build_request(
        source=str(tmp_path / "source"),
        source_strategy=str(tmp_path / "strategy.ckpt"),
        target=str(tmp_path / "target"),
        layout="unified",
        changes=str(document),
        verify="content",
    )
    with pytest.raises(VerificationError) as caught:
        convert(request)
    differing = "source: parameter 'w_scale_inv', [0:3, 0:1]: one content on rank_0, rank_1, another on rank_2"
    assert differing in str(caught.value)
    assert "of the target" not in str(caught.value)  # its ranks are not to blame
    assert "recover=True and fault_ranks='RANKS'" in str(caught.value)

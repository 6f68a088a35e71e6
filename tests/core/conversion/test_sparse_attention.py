"""DeepSeek-V3.2 under MindFormers' and Megatron's names, held against rules in numpy: its indexer moves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, PlanError
from reshard.core.request.conversion import build_request
from tests.support.checkpoints import read_safetensors
from tests.support.families import Family, directory_contents
from tests.support.megatron_rules import megatron
from tests.support.mindformers_rules import Arrays

HEADS, OF_HEAD, HIDDEN = 3, 12, 32
CASES = [("positions_last", False), ("positions_first", False), ("positions_last", True)]
"""Rows of the indexer, and whether MindSpeed-LLM's names are meant, which say nothing of them."""


def model() -> tuple[Arrays, dict[str, Any]]:
    """A model of DeepSeek-V3 with an indexer in each layer, the one for multi-token prediction included."""
    family = Family("deepseek3_mtp")
    hf: Arrays = {}
    for path in family.hf.glob("*.safetensors"):
        hf |= load_file(path)
    config = json.loads((family.hf / "config.json").read_text())
    assert config["hidden_size"] == HIDDEN
    config |= {"model_type": "deepseek_v32", "index_n_heads": HEADS, "index_head_dim": OF_HEAD}
    draw = np.random.default_rng(2)
    shapes = {
        "wq_b.weight": (HEADS * OF_HEAD, config["q_lora_rank"]),
        "wk.weight": (OF_HEAD, HIDDEN),
        "k_norm.weight": (OF_HEAD,),
        "k_norm.bias": (OF_HEAD,),
        "weights_proj.weight": (HEADS, HIDDEN),
    }
    for number in range(config["num_hidden_layers"] + 1):
        for name, shape in shapes.items():
            array = draw.standard_normal(shape).astype(hf["model.norm.weight"].dtype)
            hf[f"model.layers.{number}.self_attn.indexer.{name}"] = array
    return hf, config


def positions_last(array: np.ndarray, rotated: int) -> np.ndarray:
    """In each head those that are not rotated, then the rotated ones in pairs, one of each half."""
    heads = array.reshape(-1, OF_HEAD, *array.shape[1:])
    pairs = np.empty_like(heads[:, :rotated])
    pairs[:, 0::2], pairs[:, 1::2] = heads[:, : rotated // 2], heads[:, rotated // 2 : rotated]
    return np.concatenate([heads[:, rotated:], pairs], axis=1).reshape(array.shape)


def expected(hf: Arrays, config: dict[str, Any], rows: str, *, of_mindspeed: bool) -> Arrays:
    rest = {name: array for name, array in hf.items() if ".indexer." not in name}
    made = megatron(rest, config)
    if of_mindspeed:
        made = _concatenated(made)
    count = config["num_hidden_layers"]
    for name, array in hf.items():
        _, _, last = name.partition(".self_attn.indexer.")
        if not last:
            continue
        number = int(name.split(".")[2])
        place = f"decoder.layers.{number}" if number < count else "mtp.layers.0.transformer_layer"
        if of_mindspeed:
            made[f"{place}.self_attention.dsa_indexer.{last}"] = array
            continue
        moves = rows == "positions_last" and not last.startswith("weights_proj")
        ours = last if last.startswith("k_norm") else f"linear_{last}"
        moved = positions_last(array, config["qk_rope_head_dim"]) if moves else array
        made[f"{place}.self_attention.core_attention.indexer.{ours}"] = moved
    return made


def _concatenated(made: Arrays) -> Arrays:
    """MindSpeed-LLM's attention: both down-projections are one."""
    names = {"linear_q_up_proj": "linear_qb", "linear_kv_up_proj": "linear_kvb", "kv_layernorm": "k_layernorm"}
    found: Arrays = {}
    for name, array in made.items():
        if "linear_q_down_proj" in name:
            both = [array, made[name.replace("linear_q_down", "linear_kv_down")]]
            found[name.replace("linear_q_down_proj", "linear_qkv")] = np.concatenate(both)
        elif "linear_kv_down_proj" not in name:
            old = next((each for each in names if f".{each}." in name), "")
            found[name.replace(old, names[old]) if old else name] = array
    return found


def written(directory: Path, arrays: Arrays, config: dict[str, Any] | None = None) -> Path:
    directory.mkdir()
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, directory / "model.safetensors")
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(("rows", "of_mindspeed"), CASES)
def test_megatron_and_back(rows: str, of_mindspeed: bool, tmp_path: Path) -> None:
    arrays, config = model()
    hf = written(tmp_path / "hf", arrays, config)
    ours = written(tmp_path / "megatron", expected(arrays, config, rows, of_mindspeed=of_mindspeed))
    options: dict[str, Any] = {"preset": "deepseek_v32", "layout": "unified", "verify": "content"}
    switch = ["names=megatron", f"mla_qkv_concat={str(of_mindspeed).lower()}"]
    if not of_mindspeed:
        switch.append(f"indexer_rows={rows}")
    convert(build_request(source=str(hf), target=str(tmp_path / "there"), switch=switch, **options))
    assert directory_contents(tmp_path / "there") == directory_contents(ours)
    source = {"source": str(ours), "like": str(hf)}
    convert(build_request(target=str(tmp_path / "back"), switch=switch, **source, **options))
    assert directory_contents(tmp_path / "back") == directory_contents(hf)


def rotated(values: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotated by positions, the first half's elements with those of the second."""
    first, second = np.split(values, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def test_the_rows_answer_alike() -> None:
    """MindFormers and Megatron-Core 0.16 take pairs from the end, Hugging Face halves from the beginning."""
    draw, count = np.random.default_rng(1), 8
    both = draw.standard_normal((2, HEADS, OF_HEAD))
    angles = draw.standard_normal((2, count // 2))  # of a query's place, and of a key's

    def as_hugging_face(values: np.ndarray, angle: np.ndarray) -> np.ndarray:
        return np.concatenate([rotated(values[:, :count], angle), values[:, count:]], axis=-1)

    def as_mindformers(values: np.ndarray, angle: np.ndarray) -> np.ndarray:
        others, pairs = values[:, : OF_HEAD - count], values[:, OF_HEAD - count :]
        halves = np.concatenate([pairs[:, 0::2], pairs[:, 1::2]], axis=-1)
        return np.concatenate([others, rotated(halves, angle)], axis=-1)

    def scores(layout: Callable[[np.ndarray, np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
        queries, keys = map(layout, values, angles)
        found: np.ndarray = queries @ keys.T
        return found

    moved = np.stack([positions_last(each.reshape(-1), count).reshape(each.shape) for each in both])
    assert np.allclose(scores(as_mindformers, moved), scores(as_hugging_face, both))
    assert not np.allclose(scores(as_mindformers, both), scores(as_hugging_face, both))


def refusal(source: Path, kind: type[Exception], *switch: str) -> str:
    options: dict[str, Any] = {"target": "/tmp/never", "layout": "unified", "preset": "deepseek_v32"}
    with pytest.raises(kind) as caught:
        make_plan(build_request(source=str(source), switch=list(switch), **options))
    return str(caught.value)


MINDFORMERS = ("names=mcore", "mla_qkv_concat=false", "use_interleaved_weight_layout_mlp=true")


def test_how_the_indexer_lies_is_asked_for(tmp_path: Path) -> None:
    arrays, config = model()
    text = refusal(written(tmp_path / "hf", arrays, config), InputError, *MINDFORMERS)
    assert "a checkpoint does not show how the rows of the indexer's heads are laid out" in text
    assert "switch=['indexer_rows=positions_last'] (those that positions rotate last, in pairs; so MindFormers" in text


@pytest.mark.parametrize("number", [1, 2])
def test_an_indexer_that_is_missing(number: int, tmp_path: Path) -> None:
    """In the last layer for multi-token prediction as well."""
    arrays, config = model()
    name = f"model.layers.{number}.self_attn.indexer.k_norm.bias"
    del arrays[name]
    text = refusal(written(tmp_path / "hf", arrays, config), PlanError, *MINDFORMERS, "indexer_rows=positions_first")
    assert f"parameter {name!r} is missing" in text


def test_heads_that_positions_do_not_fit(tmp_path: Path) -> None:
    arrays, config = model()
    hf = written(tmp_path / "hf", arrays, config | {"index_head_dim": config["qk_rope_head_dim"]})
    text = refusal(hf, InputError, *MINDFORMERS, "indexer_rows=positions_last")
    assert "its numbers do not go together: 'decoder.layers.{L}.self_attention.core_attention.indexer." in text


def test_kimi_k2_has_the_layers_of_deepseek_v3(tmp_path: Path) -> None:
    family = Family("deepseek3")
    hf = {name: array for path in family.hf.glob("*.safetensors") for name, array in load_file(path).items()}
    config = json.loads((family.hf / "config.json").read_text()) | {"model_type": "kimi_k2"}
    source = written(tmp_path / "hf", hf, config)
    switch = ["mla_qkv_concat=false", "use_interleaved_weight_layout_mlp=true"]
    options: dict[str, Any] = {"preset": "deepseek3", "layout": "unified", "switch": switch}
    convert(build_request(source=str(source), target=str(tmp_path / "out"), **options))
    assert directory_contents(tmp_path / "out") == read_safetensors(family.mf)

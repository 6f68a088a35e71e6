"""Choosing and changing parameters from the command line: what is written, what is said, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reshard.core.files.model import CheckpointFormat
from reshard.core.layouts.manifests import parse_manifest
from reshard.core.strategy.files import write_strategy
from tests.support.checkpoints import Contents, read_tree
from tests.support.composing import join_arrays, split_array
from tests.support.models import Model
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import RandomLayout, shard_of

DOCUMENT = r"""
# one layer after another, as a serving framework wants them
select: weights-only
split:
  - parameters: 'layers\.(\d+)\.qkv\.weight'
    into: ['layers.\1.q.weight', 'layers.\1.k.weight', 'layers.\1.v.weight']
    parts: [4, 1, 1]
    groups: 2          # four query heads, a key and a value head, and the same again
join:
  - parameters: ['layers\.(\d+)\.gate\.weight', 'layers\.(\d+)\.up\.weight']
    into: 'layers.\1.gate_up.weight'
transpose:
  - parameters: '*.dense.weight'
rename:
  - name: embedding_table
    to: model.embed_tokens.weight
  - pattern: 'layers\.(.*)'
    to: 'model.layers.\1'
cast:
  - parameters: '*norm*'
    dtype: float32
  - parameters: '*'
    dtype: bfloat16
"""
ROWS = RandomLayout((2, 2), ((1,), ()), (2,))
COLUMNS = RandomLayout((2, 2), ((), (0,)), ())
WHOLE = RandomLayout((4,), ((),), ())


def trained() -> Model:
    generator = np.random.default_rng(7)

    def floats(*shape: int) -> tuple[str, np.ndarray]:
        return "Float32", generator.standard_normal(shape).astype(np.float32).view(np.uint32)

    values = {"embedding_table": floats(32, 16)}
    layouts = {"embedding_table": ROWS}
    for layer in range(2):
        for name, shape, layout in (
            ("qkv.weight", (48, 16), COLUMNS),
            ("dense.weight", (16, 32), ROWS),
            ("gate.weight", (24, 16), ROWS),
            ("up.weight", (24, 16), COLUMNS),
            ("norm.weight", (16,), WHOLE),
        ):
            values[f"layers.{layer}.{name}"] = floats(*shape)
            values[f"adam_m.layers.{layer}.{name}"] = floats(*shape)
            layouts[f"layers.{layer}.{name}"] = layouts[f"adam_m.layers.{layer}.{name}"] = layout
    values["scale_sense"], values["rope"] = floats(), floats(8)
    values["global_step"] = ("Int32", np.array([7], np.uint32))
    return Model(values, layouts, 4)


def wanted(model: Model) -> dict[str, np.ndarray]:
    """What the document makes of whole tensors, by numpy and ml_dtypes."""
    whole = {name: bits.view(np.float32) for name, (dtype, bits) in model.values.items() if dtype == "Float32"}
    half = ml_dtypes.bfloat16
    made = {"model.embed_tokens.weight": whole["embedding_table"].astype(half), "rope": whole["rope"].astype(half)}
    for layer in range(2):
        here = {name: whole[f"layers.{layer}.{name}.weight"] for name in ("qkv", "dense", "gate", "up", "norm")}
        parts = split_array(here["qkv"], 0, (4, 1, 1), 2)
        changed = dict(zip("qkv", parts, strict=True))
        changed |= {"dense": here["dense"].T, "gate_up": join_arrays([here["gate"], here["up"]], 0, 1)}
        made |= {f"model.layers.{layer}.{name}.weight": array.astype(half) for name, array in changed.items()}
        made[f"model.layers.{layer}.norm.weight"] = here["norm"]
    return made


def contents_of(arrays: dict[str, np.ndarray]) -> Contents:
    names = {"bfloat16": "BFloat16", "float32": "Float32", "float16": "Float16", "int32": "Int32"}
    return {name: (names[each.dtype.name], each.shape, each.tobytes()) for name, each in arrays.items()}


@pytest.fixture
def source(tmp_path: Path) -> tuple[Model, list[str]]:
    model = trained()
    directory, strategy = model.write(tmp_path, CheckpointFormat.CKPT)
    (tmp_path / "changes.yaml").write_text(DOCUMENT)
    return model, [directory, "--source-strategy", strategy]


def test_one_document_makes_another_model_of_it(
    reshard: Callable[..., Any], tmp_path: Path, source: tuple[Model, list[str]]
) -> None:
    model, arguments = source
    changes = ["--changes", tmp_path / "changes.yaml", "--engine", "direct"]
    shown = reshard("convert", *arguments[:1], tmp_path / "whole", *arguments[1:], *changes)
    assert shown.code == 0, shown.err
    made = wanted(model)
    assert read_tree(tmp_path / "whole") == {0: contents_of(made)}
    assert reshard("verify", tmp_path / "whole").code == 0
    manifest = parse_manifest((tmp_path / "whole/.reshard/manifest.json").read_bytes(), "manifest")
    assert [rule.parameters for rule in manifest.changes.split] == [r"layers\.(\d+)\.qkv\.weight"]
    assert "adam_m.layers.0.qkv.weight" in manifest.excluded
    assert {"global_step", "scale_sense"} <= set(manifest.excluded)
    # the same on three ranks, by a strategy of the new names
    by_rows = RandomLayout((3,), ((0,), ()), ())
    by_columns = RandomLayout((3,), ((), (0,)), ())
    uncut = RandomLayout((3,), ((), ()), ())
    layouts = {
        name: by_rows if array.shape[0] % 3 == 0 else by_columns if array.shape[1] % 3 == 0 else uncut
        for name, array in made.items()
        if array.ndim == 2
    }
    strategy = tmp_path / "new_strategy.ckpt"
    write_strategy(make_strategy({name: as_layout(layout) for name, layout in layouts.items()}), str(strategy))
    target = [tmp_path / "cut", "--target-strategy", strategy, "--format", "safetensors", "--memory-limit", "16MiB"]
    shown = reshard("convert", *arguments[:1], *target, *arguments[1:], *changes)
    assert shown.code == 0, shown.err
    dropped = {"model.layers.0.norm.weight", "model.layers.1.norm.weight"}
    assert read_tree(tmp_path / "cut") == {
        rank: contents_of(
            {
                name: np.ascontiguousarray(shard_of(array, layouts[name], rank)) if name in layouts else array
                for name, array in made.items()
                if name not in dropped
            }
        )
        for rank in range(3)
    }


def test_options_do_the_same_and_come_first(
    reshard: Callable[..., Any], tmp_path: Path, source: tuple[Model, list[str]]
) -> None:
    model, arguments = source
    options = ["--include", "layers.0.*", "--exclude", "*.up.weight", "--rename", r"re:layers\.0\.(.*)=\1"]
    options += ["--cast", "*=Float16", "--transpose", "*dense.weight", "--engine", "direct"]
    shown = reshard("convert", arguments[0], tmp_path / "out", *arguments[1:], *options)
    assert shown.code == 0, shown.err
    whole = {name: model.values[f"layers.0.{name}"][1].view(np.float32) for name in ("qkv.weight", "gate.weight")}
    whole["dense.weight"] = model.values["layers.0.dense.weight"][1].view(np.float32).T
    whole["norm.weight"] = model.values["layers.0.norm.weight"][1].view(np.float32)
    halves = {name: np.ascontiguousarray(array).astype(np.float16) for name, array in whole.items()}
    assert read_tree(tmp_path / "out") == {0: contents_of(halves)}
    both = ["--changes", tmp_path / "changes.yaml", "--cast", "*=float16", "--exclude", "rope", "--json"]
    plan = reshard("plan", arguments[0], *arguments[1:], *both).json
    assert {effect["dtype"] for effect in plan["effects"]} == {"Float16"}
    assert {"parameter": "rope", "by": "exclude rope"} in plan["excluded"]
    assert {"parameter": "scale_sense", "by": "select weights-only: loss scaling"} in plan["excluded"]


def test_one_file_is_changed_without_any_strategy(reshard: Callable[..., Any], tmp_path: Path) -> None:
    values = {"a": ("Float32", np.arange(12, dtype=np.uint32).reshape(3, 4)), "step": ("Int32", np.array(7, np.uint32))}
    directory, _ = Model(values, {}, 1).write(tmp_path, CheckpointFormat.SAFETENSORS)
    options = ["--transpose", "a", "--rename", "step=global_step", "--engine", "direct"]
    assert reshard("convert", directory, tmp_path / "out", *options).code == 0
    turned = np.ascontiguousarray(values["a"][1].T)
    assert read_tree(tmp_path / "out")[0] == {
        "a": ("Float32", (4, 3), turned.tobytes()),
        "global_step": ("Int32", (), values["step"][1].tobytes()),
    }


def test_a_dry_run_shows_what_becomes_of_parameters(
    reshard: Callable[..., Any], tmp_path: Path, source: tuple[Model, list[str]]
) -> None:
    _, arguments = source
    shown = reshard("plan", *arguments, "--changes", tmp_path / "changes.yaml")
    assert shown.code == 0, shown.err
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert "parameter made from how dtype shape" in lines
    assert (
        "model.layers.0.gate_up.weight layers.0.gate.weight + layers.0.up.weight joined, renamed, cast "
        "Float32 -> BFloat16 [24, 16] + [24, 16] -> [48, 16]"
    ) in lines
    assert "adam_m.layers.0.qkv.weight select weights-only: optimizer state" in lines
    assert "changed, as declared: 13 renamed; 6 split; 2 joined; 2 transposed; 12 cast to BFloat16" in shown.out
    many = tmp_path / "many"
    names = {f"p{number}": ("Float32", np.zeros(2, np.uint32)) for number in range(40)}
    directory, _ = Model(names, {}, 1).write(many, CheckpointFormat.CKPT)
    shown = reshard("convert", directory, tmp_path / "out", "--dry-run", "--cast", "*=float16", "--exclude", "p?")
    assert "and 14 more changed; --json lists all" in shown.out
    assert not (tmp_path / "out").exists()


def test_what_a_changed_parameter_is_read_from(
    reshard: Callable[..., Any], tmp_path: Path, source: tuple[Model, list[str]]
) -> None:
    arguments = [*source[1], "--changes", tmp_path / "changes.yaml", "--rank", 0]
    reads = reshard("plan", *arguments, "--param", "model.layers.0.gate_up.weight", "--json").json["reads"]
    assert [read["source_parameter"] for read in reads] == ["layers.0.gate.weight"] * 4 + ["layers.0.up.weight"] * 2
    assert [read["size_bytes"] for read in reads] == [6 * 16 * 4] * 4 + [24 * 8 * 4] * 2
    reads = reshard("plan", *arguments, "--param", "model.layers.0.dense.weight", "--json").json["reads"]
    assert [(read["source_box"], read["target_box"], read["axes"]) for read in reads[:2]] == [
        ("[0:4, 0:32]", "[0:32, 0:4]", [1, 0]),
        ("[0:4, 0:32]", "[0:32, 4:8]", [1, 0]),
    ]
    shown = reshard("plan", *arguments, "--param", "model.layers.0.dense.weight").out
    assert "0  layers.0.dense.weight  [0:4, 0:32]  [0:32, 0:4], axes 1, 0 " in shown


REFUSED_OPTIONS = [
    (["--rename", "a"], "--rename: 'a' must be OLD=NEW or re:PATTERN=NEW"),
    (["--rename", "a=b=c"], "'a=b=c' must be OLD=NEW or re:PATTERN=NEW"),
    (
        ["--rename", "re:(=b"],
        "'(' is not a regular expression: missing ), unterminated subpattern",
    ),
    (["--rename", r"re:a\d(.)=\2"], r"'\2' does not go with the regular expression 'a\d(.)': invalid group"),
    (
        ["--rename", r"re:\.norm=x"],
        r"the rename of '\.norm' matches no parameter as a whole, though a part of 'layers.0",
    ),
    (["--cast", "bfloat16"], "--cast: 'bfloat16' must be PATTERN=DTYPE, such as *=bfloat16"),
    (["--cast", "*=int8"], "unsupported dtype 'int8'; choose from float16, bfloat16, float32, float64"),
    (["--include", ""], "--include: a pattern is empty"),
    (["--select", "weights"], "'weights' is not one of 'all', 'weights-only'"),
    (
        ["--exclude", "adam_v*"],
        "these changes cannot be applied\n  - the pattern 'adam_v*' (exclude) matches no parameter",
    ),
    (["--rename", "rope=layers.0.norm.weight"], "'layers.0.norm.weight' and 'rope' would both be called"),
    (["--changes", "nowhere.yaml"], "nowhere.yaml"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED_OPTIONS)
def test_what_is_refused(
    reshard: Callable[..., Any], source: tuple[Model, list[str]], options: list[str], message: str
) -> None:
    shown = reshard("plan", *source[1], *options)
    assert shown.code in (2, 3)
    assert message in shown.err


def test_a_document_may_be_json(reshard: Callable[..., Any], tmp_path: Path, source: tuple[Model, list[str]]) -> None:
    document = tmp_path / "changes.json"
    document.write_text(json.dumps({"exclude": ["adam_m.*"], "cast": [{"parameters": "*", "dtype": "float16"}]}))
    plan = reshard("plan", *source[1], "--changes", document, "--json").json
    assert {effect["dtype"] for effect in plan["effects"]} == {"Float16"}
    document.write_text('{"exclude": "adam_m.*"}')
    shown = reshard("plan", *source[1], "--changes", document)
    assert shown.code == 2
    assert f"{document}: exclude: must be a list, between [ and ]" in shown.err

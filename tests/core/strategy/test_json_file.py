"""Strategy files in JSON: MindSpore's own ones, and what is no such file."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from reshard.core.errors import StrategyError
from reshard.core.strategy.json_file import build_json, parse_json
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.strategy.protobuf_file import parse_protobuf
from reshard.core.tensor.layout import ParameterLayout
from tests.support.places import FIXTURES

CASE = FIXTURES / "conversions/case_7010"


def document() -> dict[str, Any]:
    return {
        "current_stage": 1,
        "parallel_strategy_item": {"op": {"stage": 0, "parallel_strategy": [[1, 2]]}},
        "parallel_layout_item": {
            "weight": {
                "dev_matrix": [2, 2],
                "tensor_map": [1, -1],
                "tensor_shape": [4, 6],
                "field": 0,
                "opt_weight_shard_step": 0,
                "opt_weight_shard_size": 0,
            }
        },
    }


def parse(content: object) -> Strategy:
    return parse_json(json.dumps(content).encode(), "dir/file.json")


def changed(**fields: object) -> dict[str, Any]:
    content = document()
    content["parallel_layout_item"]["weight"].update(fields)
    return content


@pytest.mark.parametrize("name", ["src_strategy", "dst_strategy"])
def test_json_twin_of_mindspore_says_what_the_protobuf_one_says(name: str) -> None:
    twin = parse_json((CASE / f"{name}.json").read_bytes(), "file")
    strategy = parse_protobuf((CASE / f"{name}.ckpt").read_bytes(), "file")
    assert twin.merged == strategy.merged
    assert [stage.stage for stage in twin.stages] == [stage.stage for stage in strategy.stages]
    assert [stage.layouts for stage in twin.stages] == [stage.layouts for stage in strategy.stages]
    assert [list(stage.layouts) for stage in twin.stages] == [list(stage.layouts) for stage in strategy.stages]


@pytest.mark.parametrize("name", ["src_strategy", "dst_strategy"])
def test_file_written_by_mindspore_is_rewritten_the_same(name: str) -> None:
    data = (CASE / f"{name}.json").read_bytes()
    assert json.loads(build_json(parse_json(data, "file"))) == json.loads(data)


def test_tensor_shape_is_kept() -> None:
    assert parse(document()).stages[0].layouts["weight"].tensor_shape == (4, 6)
    assert json.loads(build_json(parse(document()))) == document()


def test_unknown_tensor_shape_is_left_out() -> None:
    content = document()
    del content["parallel_layout_item"]["weight"]["tensor_shape"]
    strategy = parse(content)
    assert strategy.stages[0].layouts["weight"].tensor_shape is None
    assert json.loads(build_json(strategy)) == content


def test_uneven_lengths() -> None:
    content = changed(param_split_shape=[3, 1], indices_offset=[0, 3], field=2, opt_weight_shard_size=-1)
    layout = parse(content).stages[0].layouts["weight"]
    assert (layout.param_split_shape, layout.indices_offset, layout.field) == ((3, 1), (0, 3), 2)
    assert layout.optimizer_shard_size == -1
    assert json.loads(build_json(parse(content))) == content


def test_operators_may_be_absent() -> None:
    content = document()
    del content["parallel_strategy_item"]
    assert parse(content).stages[0] == StageStrategy(0, parse(document()).stages[0].layouts)


def test_further_keys_of_newer_versions_are_passed_over() -> None:
    assert parse(document() | {"parallel_layout_value_item": {"op": {"0": {}}}}) == parse(document())


def test_operators_of_one_name_in_two_stages_become_one() -> None:
    layouts = parse(document()).stages[0].layouts
    stages = tuple(StageStrategy(stage, layouts, (OperatorStrategy("op", stage, ((stage,),)),)) for stage in (0, 1))
    content = json.loads(build_json(Strategy(stages, "made")))
    assert content["parallel_strategy_item"] == {"op": {"stage": 0, "parallel_strategy": [[0]]}}
    assert list(content["parallel_layout_item"]) == ["0-weight", "1-weight"]


def nested(*tensor_map: tuple[int, ...], **fields: Any) -> Strategy:
    layout = ParameterLayout((2, 2), tensor_map, nested=True, **fields)
    return Strategy((StageStrategy(0, {"weight": layout}),), "made")


def test_nested_map_that_is_flat_in_truth_is_written() -> None:
    written = parse_json(build_json(nested((1,), ())), "made")
    assert written.stages[0].layouts["weight"] == ParameterLayout((2, 2), ((1,), ()))


@pytest.mark.parametrize("strategy", [nested((1, 0), ()), nested((1, 0))])
def test_nested_map_is_refused(strategy: Strategy) -> None:
    with pytest.raises(StrategyError, match=r"^made: parameter '0?-?weight': .*several device axes.*JSON"):
        build_json(strategy)


def test_nested_map_whose_step_no_flat_map_may_have_is_refused() -> None:
    with pytest.raises(StrategyError, match=r"cannot be written as JSON: .*step 7"):
        build_json(nested((0,), (), optimizer_shard_step=7, optimizer_shard_size=2))


class TestNoStrategy:
    """Every kind of bad file is a StrategyError that begins with the file's name."""

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "is empty"),
            (b" \n", "is empty"),
            (b"{", "line 1, column 2"),
            (b'{"parallel_layout_item": {}', "line 1"),
            (b'{"a": "\xff"}', "no UTF-8 text at byte 7"),
            (b"\xef\xbb\xbf{}", "BOM"),
            (b"\x08\x01\x12\x03", "looks like a protobuf one, whose name must not end in .json"),
            (b"\x0a\x10" + b"\0" * 40, "looks like a checkpoint"),
            (b"[" * 200_000, "nested too deeply"),
            (b'{"a":' * 200_000, "nested too deeply"),
            (b"[" + b"1" * 5000 + b"]", "thousands of digits"),
            (b"[]", r"the document is \[\], not an object"),
            (b"null", "the document is null"),
            (b"{}", "has no 'parallel_layout_item'"),
            (b'{"parallel_layout_item": {}}', "has no parameter layouts"),
            (b'{"parallel_layout_item": []}', r"parallel_layout_item is \[\], not an object"),
            (b'{"parallel_layout_item": {"a": {}, "a": {}}}', "'a' occurs twice"),
            (b'{"parallel_layout_item": {"a": 1}}', "parameter 'a' is 1, not an object"),
        ],
    )
    def test_bytes(self, data: bytes, message: str) -> None:
        with pytest.raises(StrategyError, match=rf"^dir/file\.json: .*{message}"):
            parse_json(data, "dir/file.json")

    @pytest.mark.parametrize(
        "key", ["dev_matrix", "tensor_map", "field", "opt_weight_shard_step", "opt_weight_shard_size"]
    )
    def test_missing_key(self, key: str) -> None:
        content = document()
        del content["parallel_layout_item"]["weight"][key]
        with pytest.raises(StrategyError, match=f"^dir/file.json: .*parameter 'weight': has no '{key}'"):
            parse(content)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"dev_matrix": 4}, "dev_matrix is 4, not a list"),
            ({"dev_matrix": [2.0, 2]}, "dev_matrix entry is 2.0, not an integer"),
            ({"dev_matrix": [True, 4]}, "dev_matrix entry is true, not an integer"),
            ({"dev_matrix": [2, 0]}, r"device matrix is \[2, 0\]"),
            ({"dev_matrix": [-2, -2]}, "device matrix is"),
            ({"tensor_map": ["0"]}, 'tensor_map entry is "0", not an integer'),
            ({"tensor_map": [[1, 0], [-1]]}, r"tensor_map entry is \[1, 0\], not an integer"),
            ({"tensor_map": [-2, -1]}, r"tensor_map is \[-2, -1\]"),
            ({"tensor_map": [2, -1]}, "names device axis 2"),
            ({"tensor_shape": [4, 6, 2]}, "2 tensor axes, the tensor has 3"),
            ({"tensor_shape": [4, -6]}, "negative"),
            ({"tensor_shape": [4, 1 << 63]}, "64 bits"),
            ({"field": False}, "field is false, not an integer"),
            ({"field": 1 << 31}, "32 bits"),
            ({"opt_weight_shard_step": None}, "opt_weight_shard_step is null, not an integer"),
            ({"opt_weight_shard_size": float("nan")}, "opt_weight_shard_size is NaN"),
            ({"param_split_shape": {}}, "param_split_shape is {}, not a list"),
        ],
    )
    def test_wrong_value(self, fields: dict[str, object], message: str) -> None:
        with pytest.raises(StrategyError, match=rf"^dir/file\.json: .*'weight'.*{message}"):
            parse(changed(**fields))

    @pytest.mark.parametrize(
        ("operator", "message"),
        [
            ([], "operator 'op' is"),
            ({"parallel_strategy": []}, "has no 'stage'"),
            ({"stage": 0}, "has no 'parallel_strategy'"),
            ({"stage": True, "parallel_strategy": []}, "stage is true"),
            ({"stage": -1, "parallel_strategy": []}, "'op' has sizes or a stage beyond"),
            ({"stage": 0, "parallel_strategy": [1]}, "parallel_strategy is 1, not a list"),
            ({"stage": 0, "parallel_strategy": [[1.5]]}, "parallel_strategy entry is 1.5"),
        ],
    )
    def test_wrong_operator(self, operator: object, message: str) -> None:
        with pytest.raises(StrategyError, match=rf"^dir/file\.json: .*{message}"):
            parse(document() | {"parallel_strategy_item": {"op": operator}})

    def test_lone_surrogate_in_a_name(self) -> None:
        content = document()
        content["parallel_layout_item"]["\ud800"] = content["parallel_layout_item"].pop("weight")
        with pytest.raises(StrategyError, match="not valid Unicode"):
            parse(content)

    def test_merged_file_with_a_hole(self) -> None:
        content = document()
        content["parallel_layout_item"]["1-a"] = content["parallel_layout_item"].pop("weight")
        with pytest.raises(StrategyError, match=r"^dir/file.json: holds stages \[1\]"):
            parse(content)


def test_own_strategy_keeps_its_stage() -> None:
    content = document()
    content["parallel_strategy_item"]["op"]["stage"] = 3
    strategy = parse(content)
    assert strategy.stages[0].stage == 3
    assert parse_json(build_json(strategy), strategy.origin) == strategy
    with pytest.raises(StrategyError, match="stage 2"):
        build_json(replace(strategy, stages=(replace(strategy.stages[0], stage=2),)))

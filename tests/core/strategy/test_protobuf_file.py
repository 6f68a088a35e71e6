"""Strategy files in protobuf: MindSpore's own ones, unusual layouts, and what is no strategy."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from reshard.core.errors import StrategyError
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.strategy.protobuf_file import build_protobuf, parse_protobuf
from reshard.core.strategy.strategy_pb2 import ParallelGroupMap, ParallelLayouts, ParallelStrategyMap
from reshard.core.tensor.layout import ALL_REPEATED_AXES, ParameterLayout
from tests.support.places import FIXTURES

MINDSPORE_FILES = sorted(FIXTURES.glob("conversions/**/*strategy*.ckpt"))
FLAT = ParameterLayout((2, 2), ((1,), ()))


def own(layout: ParameterLayout, name: str = "weight") -> Strategy:
    return Strategy((StageStrategy(0, {name: layout}, (OperatorStrategy("op", 0, ((1, 2),)),)),), "made", merged=False)


def message_of(layout: ParameterLayout) -> ParallelStrategyMap:
    return ParallelStrategyMap.FromString(build_protobuf(own(layout)))


def layouts_of(message: ParallelStrategyMap) -> ParallelLayouts:
    return message.parallel_layout_item[0].parallel_layouts


def parse(message: ParallelStrategyMap) -> Strategy:
    return parse_protobuf(message.SerializePartialToString(), "dir/file.ckpt")


def in_stage_order(message: ParallelStrategyMap) -> ParallelStrategyMap:
    """The same with its items sorted by stage, as this project writes them; MindSpore takes the directory's order."""
    ordered = ParallelStrategyMap(current_stage=message.current_stage)
    operators = sorted(message.parallel_strategy_item, key=lambda item: item.parallel_strategys.stage)
    ordered.parallel_strategy_item.extend(operators)
    layouts = list(message.parallel_layout_item)
    if layouts[0].param_name[0].isdigit():
        layouts.sort(key=lambda item: int(item.param_name.split("-")[0]))
    ordered.parallel_layout_item.extend(layouts)
    return ordered


def test_there_are_files_of_mindspore_to_test_with() -> None:
    assert len(MINDSPORE_FILES) > 100


@pytest.mark.parametrize("path", MINDSPORE_FILES, ids=lambda path: str(path.relative_to(FIXTURES / "conversions")))
def test_file_written_by_mindspore_is_rewritten_the_same(path: Path) -> None:
    data = path.read_bytes()
    expected = in_stage_order(ParallelStrategyMap.FromString(data)).SerializeToString()
    assert build_protobuf(parse_protobuf(data, str(path))) == expected


def test_merged_file_of_mindspore_as_model() -> None:
    path = FIXTURES / "conversions/case_7001/src_strategy.ckpt"
    strategy = parse_protobuf(path.read_bytes(), "here")
    assert strategy.merged
    assert strategy.origin == "here"
    assert [stage.stage for stage in strategy.stages] == [0, 1]
    assert strategy.devices_per_stage == 4
    assert list(strategy.stages[1].layouts) == ["layers.1.weight_1", "layers.3.weight_3"]
    assert strategy.stages[1].layouts["layers.3.weight_3"] == ParameterLayout((4, 1), ((), (1,)))
    assert strategy.stages[1].operators == (OperatorStrategy("Default/MatMul-op0", 1, ((1, 1),)),)


def test_own_file_of_mindspore_has_the_stage_of_its_first_operator() -> None:
    path = FIXTURES / "conversions/case_7001/src_stages/strategy_5.ckpt"
    strategy = parse_protobuf(path.read_bytes(), "here")
    assert not strategy.merged
    assert [stage.stage for stage in strategy.stages] == [1]
    assert strategy.ranks == range(4, 8)


def test_own_file_without_operators_is_of_stage_0() -> None:
    message = message_of(FLAT)
    del message.parallel_strategy_item[:]
    assert parse(message).stages[0].stage == 0


@pytest.mark.parametrize(
    ("layout", "tensor_maps"),
    [
        (ParameterLayout((2, 2), ()), [[]]),
        (ParameterLayout((2, 2), ((),)), [[-1]]),
        (ParameterLayout((2, 2), ((0,),)), [[0]]),
        (ParameterLayout((2, 2), ((1,), (0,))), [[1, 0]]),
        (ParameterLayout((2, 2), ((1,), (0,)), nested=True), [[1], [0]]),
        (ParameterLayout((2, 2, 2), ((2, 1), ()), nested=True), [[2, 1], [-1]]),
        # MindSpore distinguishes the nested map of a 1-d tensor from a flat one by an empty second message
        (ParameterLayout((2, 2), ((1, 0),), nested=True), [[1, 0], []]),
    ],
)
def test_tensor_maps(layout: ParameterLayout, tensor_maps: list[list[int]]) -> None:
    message = message_of(layout)
    assert [list(tensor_map.dim) for tensor_map in layouts_of(message).tensor_map] == tensor_maps
    assert parse(message).stages[0].layouts == {"weight": layout}


def test_optimizer_shard_field_and_uneven_lengths_are_kept() -> None:
    layout = ParameterLayout(
        (2, 2),
        ((1,), ()),
        optimizer_shard_step=1,
        optimizer_shard_size=ALL_REPEATED_AXES,
        field=2,
        param_split_shape=(30, 10),
        indices_offset=(0, -30),
    )
    message = message_of(layout)
    assert layouts_of(message).opt_weight_shard_size == -1
    assert list(layouts_of(message).param_split_shape[0].dim) == [30, 10]
    assert list(layouts_of(message).indices_offset[0].dim) == [0, -30]
    assert parse(message).stages[0].layouts["weight"] == layout


def test_empty_uneven_lengths_are_written_as_one_message_each() -> None:
    layouts = layouts_of(message_of(FLAT))
    assert len(layouts.param_split_shape) == len(layouts.indices_offset) == 1


def test_absent_uneven_lengths_are_none() -> None:
    message = message_of(FLAT)
    layouts_of(message).ClearField("param_split_shape")
    layouts_of(message).ClearField("indices_offset")
    assert parse(message).stages[0].layouts["weight"] == FLAT


def test_dashes_in_a_merged_parameter_name_are_kept() -> None:
    strategy = replace(own(FLAT, "3-a-b"), merged=True)
    data = build_protobuf(strategy)
    assert ParallelStrategyMap.FromString(data).parallel_layout_item[0].param_name == "0-3-a-b"
    assert parse_protobuf(data, "made") == strategy


def test_dash_in_an_own_parameter_name_is_no_stage() -> None:
    stage = StageStrategy(0, {"0-b": FLAT, "a-b": FLAT}, own(FLAT).stages[0].operators)
    strategy = Strategy((stage,), "made", merged=False)
    assert parse_protobuf(build_protobuf(strategy), "made") == strategy


def test_own_strategy_that_would_be_read_as_merged_is_not_written() -> None:
    with pytest.raises(StrategyError, match=r"'0-b'.*read as a merged one"):
        build_protobuf(own(FLAT, "0-b"))


@pytest.mark.parametrize("operators", [(), (OperatorStrategy("op", 0, ()),)])
def test_own_strategy_that_would_lose_its_stage_is_not_written(operators: tuple[OperatorStrategy, ...]) -> None:
    strategy = Strategy((StageStrategy(1, {"weight": FLAT}, operators),), "made", merged=False)
    with pytest.raises(StrategyError, match=r"made: .*stage 1"):
        build_protobuf(strategy)


def test_merged_file_with_a_hole() -> None:
    message = message_of(FLAT)
    message.parallel_layout_item[0].param_name = "2-weight"
    with pytest.raises(StrategyError, match=r"dir/file.ckpt: holds stages \[2\], not 0..n-1"):
        parse(message)


def test_operator_of_a_stage_without_parameters_is_kept() -> None:
    message = ParallelStrategyMap.FromString(build_protobuf(replace(own(FLAT), merged=True)))
    message.parallel_strategy_item.add(node_name="lost").parallel_strategys.stage = 7
    strategy = parse(message)
    assert [operator.node_name for operator in strategy.stages[0].operators] == ["op", "lost"]
    assert build_protobuf(strategy) == message.SerializeToString()


class TestNoStrategy:
    """Every kind of bad file is a StrategyError that begins with the file's name."""

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "is empty"),
            (b"\x08\x01", "has no parameter layouts"),
            (b"\x0a\x10" + b"\0" * 40, "looks like a checkpoint"),
            (b'\x40\0\0\0\0\0\0\0{"a":{}}', "looks like a checkpoint .*safetensors"),
            (b'{"current_stage": 1}', "looks like a JSON one, whose name must end in .json"),
            (b"PK\x03\x04....", "zip archive"),
            (b"\xd8\x5e\x3a\x7f" + b"\0" * 40, "encrypted checkpoint"),
            (b"\x80\x04\x95", "pickle"),
            (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
            (b"no such thing", "damaged, truncated, or another kind"),
            (b"\x0b" * 5000, "is not a strategy"),
        ],
    )
    def test_bytes(self, data: bytes, message: str) -> None:
        with pytest.raises(StrategyError, match=rf"^dir/file\.ckpt: .*{message}"):
            parse_protobuf(data, "dir/file.ckpt")

    def test_checkpoint_of_mindspore(self) -> None:
        data = (FIXTURES / "conversions/case_7001/src/rank_0/checkpoint_0.ckpt").read_bytes()
        with pytest.raises(StrategyError, match="looks like a checkpoint"):
            parse_protobuf(data, "file")

    def test_group_info_file(self) -> None:
        groups = ParallelGroupMap()
        groups.parallel_group_item.add(group_name="0-1").parallel_group_ranks.dim.extend([0, 1])
        groups.ckpt_restore_rank_list.dim.extend([0, 1])
        with pytest.raises(StrategyError, match="looks like a group info file"):
            parse_protobuf(groups.SerializeToString(), "file")

    def test_truncated_at_every_length(self) -> None:
        data = (FIXTURES / "conversions/case_7002/dst_stages/strategy_0.ckpt").read_bytes()
        whole = parse_protobuf(data, "file").stages[0].layouts
        for length in range(len(data)):
            try:
                layouts = parse_protobuf(data[:length], "file").stages[0].layouts
            except StrategyError:
                continue
            # an end exactly between two parameters is a shorter, valid file
            assert len(layouts) < len(whole)
            assert all(whole[name] == layout for name, layout in layouts.items())

    @pytest.mark.parametrize("field", ["param_name", "parallel_layouts"])
    def test_required_field_of_an_item_missing(self, field: str) -> None:
        message = message_of(FLAT)
        message.parallel_layout_item[0].ClearField(field)
        with pytest.raises(StrategyError, match="is not a strategy"):
            parse(message)

    @pytest.mark.parametrize("field", ["field", "opt_weight_shard_step", "opt_weight_shard_size"])
    def test_required_field_of_a_layout_missing(self, field: str) -> None:
        message = message_of(FLAT)
        layouts_of(message).ClearField(field)
        with pytest.raises(StrategyError, match="is not a strategy"):
            parse(message)

    @pytest.mark.parametrize(
        ("field", "count"), [("dev_matrix", 0), ("dev_matrix", 2), ("tensor_map", 0), ("indices_offset", 2)]
    )
    def test_number_of_messages(self, field: str, count: int) -> None:
        message = message_of(FLAT)
        layouts_of(message).ClearField(field)
        for _ in range(count):
            getattr(layouts_of(message), field).add(dim=[1])
        with pytest.raises(StrategyError, match=rf"'weight': has {count} {field} messages, not one"):
            parse(message)

    @pytest.mark.parametrize(
        ("layout", "problem"),
        [
            (replace(FLAT, device_matrix=(2, 0)), r"device matrix is \[2, 0\]"),
            (replace(FLAT, device_matrix=()), r"device matrix is \[\]"),
            (replace(FLAT, device_matrix=(1,) * 65), "device matrix is"),
            (replace(FLAT, device_matrix=(1 << 31, 1 << 31)), "more than 1048576 devices"),
            (replace(FLAT, tensor_map=((-2,), ())), r"\[-2\]"),
            (replace(FLAT, tensor_map=((2,), ())), "names device axis 2"),
            (replace(FLAT, tensor_map=((1,), (1,))), "twice"),
            (replace(FLAT, tensor_map=((1, -1), ()), nested=True), r"lists \[1, -1\]"),
            (replace(FLAT, optimizer_shard_size=-2), "size -2"),
            (replace(FLAT, optimizer_shard_step=-1), "step -1"),
            (replace(FLAT, param_split_shape=(-1,)), "negative"),
            (replace(FLAT, param_split_shape=(1, 2), indices_offset=(0,)), "2 lengths .* 1 offsets"),
        ],
    )
    def test_impossible_layout_is_neither_read_nor_written(self, layout: ParameterLayout, problem: str) -> None:
        message = message_of(FLAT)
        layouts = layouts_of(message)
        layouts.dev_matrix[0].dim[:] = layout.device_matrix
        layouts.ClearField("tensor_map")
        for dims in layout.tensor_map if layout.nested else [sum(layout.tensor_map, ())]:
            layouts.tensor_map.add(dim=dims or [-1])
        layouts.opt_weight_shard_size = layout.optimizer_shard_size
        layouts.opt_weight_shard_step = layout.optimizer_shard_step
        layouts.param_split_shape[0].dim[:] = layout.param_split_shape
        layouts.indices_offset[0].dim[:] = layout.indices_offset
        with pytest.raises(StrategyError, match=f"^dir/file.ckpt: parameter 'weight': .*{problem}"):
            parse(message)
        with pytest.raises(StrategyError, match=r"^made: "):
            build_protobuf(own(layout))

    def test_parameters_of_different_device_counts(self) -> None:
        stage = StageStrategy(0, {"a": FLAT}, (OperatorStrategy("op", 0, ()),))
        message = ParallelStrategyMap.FromString(build_protobuf(Strategy((stage,), "made", merged=False)))
        other = message.parallel_layout_item.add(param_name="b")
        other.CopyFrom(message.parallel_layout_item[0])
        other.param_name = "b"
        other.parallel_layouts.dev_matrix[0].dim[:] = [8]
        other.parallel_layouts.tensor_map[0].dim[:] = [0]
        with pytest.raises(StrategyError, match=r"^dir/file.ckpt: .*different device counts: 4 for 'a', 8 for 'b'"):
            parse(message)

    def test_stages_of_different_device_counts(self) -> None:
        message = message_of(FLAT)
        message.parallel_layout_item[0].param_name = "0-a"
        other = message.parallel_layout_item.add()
        other.CopyFrom(message.parallel_layout_item[0])
        other.param_name = "1-a"
        other.parallel_layouts.dev_matrix[0].dim[:] = [2, 4]
        with pytest.raises(StrategyError, match=r"^dir/file.ckpt: .*stage 0: 4, stage 1: 8"):
            parse(message)

    @pytest.mark.parametrize("names", [("weight", "weight"), ("0-a", "00-a")])
    def test_parameter_twice(self, names: tuple[str, str]) -> None:
        message = message_of(FLAT)
        message.parallel_layout_item.add().CopyFrom(message.parallel_layout_item[0])
        for item, name in zip(message.parallel_layout_item, names, strict=True):
            item.param_name = name
        with pytest.raises(StrategyError, match="occurs twice"):
            parse(message)

    @pytest.mark.parametrize("name", ["", "0-"])
    def test_parameter_without_a_name(self, name: str) -> None:
        message = message_of(FLAT)
        message.parallel_layout_item[0].param_name = name
        with pytest.raises(StrategyError, match="without a name"):
            parse(message)

    def test_name_that_is_not_text(self) -> None:
        data = build_protobuf(own(FLAT, "weight")).replace(b"weight", b"\xff\xfe\xfd\xfc\xfb\xfa")
        with pytest.raises(StrategyError, match=r"^file: .*not UTF-8 text"):
            parse_protobuf(data, "file")

    @pytest.mark.parametrize(
        "strategy",
        [
            own(FLAT, "\ud800"),
            own(replace(FLAT, field=1 << 31)),
            own(replace(FLAT, param_split_shape=(1 << 63,))),
            Strategy((StageStrategy(0, {"a": FLAT}, (OperatorStrategy("op", 0, ((-1,),)),)),), "made"),
        ],
    )
    def test_what_protobuf_cannot_hold_is_not_written(self, strategy: Strategy) -> None:
        with pytest.raises(StrategyError, match=r"^made: "):
            build_protobuf(strategy)

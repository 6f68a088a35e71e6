"""Strategy files as MindSpore writes them, made by independent means: protobuf's own classes and the json module."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from tests.support.messages import INT32, INT64, MESSAGE, REPEATED, REQUIRED, STRING, UINT32, Fields, message_class

_MESSAGES: dict[str, Fields] = {
    "ParallelStrategyMap": [
        ("current_stage", UINT32, REQUIRED, ""),
        ("parallel_strategy_item", MESSAGE, REPEATED, "ParallelStrategyItem"),
        ("parallel_layout_item", MESSAGE, REPEATED, "ParallelLayoutItem"),
    ],
    "ParallelStrategyItem": [
        ("node_name", STRING, REQUIRED, ""),
        ("parallel_strategys", MESSAGE, REQUIRED, "ParallelStrategys"),
    ],
    "ParallelStrategys": [
        ("stage", UINT32, REQUIRED, ""),
        ("parallel_strategy", MESSAGE, REPEATED, "ParallelStrategy"),
    ],
    "ParallelStrategy": [("dim", UINT32, REPEATED, "")],
    "ParallelLayoutItem": [
        ("param_name", STRING, REQUIRED, ""),
        ("parallel_layouts", MESSAGE, REQUIRED, "ParallelLayouts"),
    ],
    "ParallelLayouts": [
        ("dev_matrix", MESSAGE, REPEATED, "DevMatrix"),
        ("tensor_map", MESSAGE, REPEATED, "TensorMap"),
        ("param_split_shape", MESSAGE, REPEATED, "ParamSplitShape"),
        ("indices_offset", MESSAGE, REPEATED, "IndicesOffset"),
        ("field", INT32, REQUIRED, ""),
        ("opt_weight_shard_step", INT32, REQUIRED, ""),
        ("opt_weight_shard_size", INT32, REQUIRED, ""),
    ],
    "DevMatrix": [("dim", UINT32, REPEATED, "")],
    "TensorMap": [("dim", INT32, REPEATED, "")],
    "ParamSplitShape": [("dim", INT64, REPEATED, "")],
    "IndicesOffset": [("dim", INT64, REPEATED, "")],
}


_StrategyMessage = message_class("reshard_tests_strategy", _MESSAGES, "ParallelStrategyMap", {})


@dataclass(frozen=True)
class FileLayout:
    """A parameter's layout in the fields of a strategy file."""

    device_matrix: tuple[int, ...]
    tensor_map: tuple[tuple[int, ...], ...]
    """The device axes that cut each tensor axis, counted from the right, slowest first."""
    nested: bool
    """One list for each tensor axis; else flat, one list for all of them."""
    optimizer_step: int
    optimizer_size: int
    tensor_shape: tuple[int, ...]
    uneven: tuple[int, ...] = ()
    """Lengths of the pieces of axis 0 where they differ."""

    @property
    def indices_offset(self) -> list[int]:
        """Where the pieces begin."""
        return [sum(self.uneven[:piece]) for piece in range(len(self.uneven))]

    @property
    def lists(self) -> list[list[int]]:
        """The tensor map with -1 where nothing is cut."""
        return [list(axes) or [-1] for axes in self.tensor_map]

    @property
    def flat(self) -> list[int]:
        """The same in one list."""
        return [axis for axes in self.lists for axis in axes]


Stages = Mapping[int, Mapping[str, FileLayout]]
"""Stage number -> parameter name, as it is to stand in the file -> layout."""


def write_strategy_file(path: Path, stages: Stages) -> None:
    """One strategy file that holds these stages, JSON if its name ends so, else protobuf."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_json_bytes(stages) if path.suffix == ".json" else _protobuf_bytes(stages))


def read_protobuf_strategy(path: Path) -> dict[str, Any]:
    """A protobuf strategy file as a dict of its fields."""
    found: dict[str, Any] = json_format.MessageToDict(_StrategyMessage.FromString(path.read_bytes()))
    return found


def _protobuf_bytes(stages: Stages) -> bytes:
    message = _StrategyMessage(current_stage=1)
    for stage, layouts in stages.items():
        operator = message.parallel_strategy_item.add(node_name=f"Default/MatMul-op{stage}")
        operator.parallel_strategys.stage = stage
        operator.parallel_strategys.parallel_strategy.add(dim=[1, 1])
        for name, layout in layouts.items():
            item = message.parallel_layout_item.add(param_name=name).parallel_layouts
            item.dev_matrix.add(dim=layout.device_matrix)
            if layout.nested:
                for axes in layout.lists:
                    item.tensor_map.add(dim=axes)
                if len(layout.lists) == 1:  # else it would be read as a flat map
                    item.tensor_map.add()
            else:
                item.tensor_map.add(dim=layout.flat)
            item.param_split_shape.add(dim=layout.uneven)
            item.indices_offset.add(dim=layout.indices_offset)
            item.field = 0
            item.opt_weight_shard_step = layout.optimizer_step
            item.opt_weight_shard_size = layout.optimizer_size
    data: bytes = message.SerializeToString()
    return data


def _json_bytes(stages: Stages) -> bytes:
    operators = {
        f"Default/MatMul-op{stage}": {"stage": stage, "parallel_strategy": [[1, 1], [1, 1]]} for stage in stages
    }
    layouts = {
        name: {
            "dev_matrix": layout.device_matrix,
            "tensor_map": layout.flat,
            "tensor_shape": layout.tensor_shape,
            "field": 0,
            "opt_weight_shard_step": layout.optimizer_step,
            "opt_weight_shard_size": layout.optimizer_size,
        }
        | ({"param_split_shape": layout.uneven, "indices_offset": layout.indices_offset} if layout.uneven else {})
        for stage in stages.values()
        for name, layout in stage.items()
    }
    whole = {"current_stage": 1, "parallel_strategy_item": operators, "parallel_layout_item": layouts}
    return json.dumps(whole).encode()

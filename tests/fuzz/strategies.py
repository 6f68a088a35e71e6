"""Strategy files, protobuf and JSON, alone and merged; what is accepted can be written again. Files of groups."""

import math

from reshard.core.errors import StrategyError
from reshard.core.layouts.dcp.metadata import parse_dcp_metadata
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.groups import read_groups
from reshard.core.strategy.json_file import build_json, parse_json
from reshard.core.strategy.merging import merge_strategies
from reshard.core.strategy.model import Strategy
from reshard.core.strategy.protobuf_file import build_protobuf, parse_protobuf
from reshard.core.strategy.strategy_pb2 import ParallelGroupItem, ParallelGroupMap, ParallelGroupRanks
from tests.fuzz.mutations import damaged_json, damaged_pickle, damaged_protobuf
from tests.fuzz.parsers import Parser
from tests.support.places import FIXTURES
from tests.support.splitting import split_strategy

_ORIGIN = "hostile_strategy"


def _protobuf_seeds() -> list[bytes]:
    names = ("case_7001/src_strategy.ckpt", "case_7010/dst_strategy.ckpt", "case_7018/src_strategy.ckpt")
    stages = sorted(FIXTURES.glob("conversions/case_7010/src_stages/*_0.ckpt"))
    return [path.read_bytes() for path in [*(FIXTURES / "conversions" / name for name in names), *stages]]


def _json_seeds() -> list[bytes]:
    paths = sorted(FIXTURES.glob("conversions/case_7010/**/*strategy*.json"))
    assert paths
    own = (
        b'{"parallel_strategy_item": {"MatMul": {"stage": 1, "parallel_strategy": [[1, 2]]}}, "parallel_layout_item": \
{"w": {"dev_matrix": [2, 2], "tensor_map": [1, -1], "tensor_shape": [4, 4], "field": 0, "opt_weight_shard_step": 0, \
"opt_weight_shard_size": 0, "param_split_shape": [1, 3], "indices_offset": [0, 1]}}}'
    )
    return [own, *(path.read_bytes() for path in paths[:4])]


def _parse_protobuf(data: bytes) -> None:
    _use(parse_protobuf(data, _ORIGIN))


def _parse_json(data: bytes) -> None:
    _use(parse_json(data, _ORIGIN))


def _use(strategy: Strategy) -> None:
    """What comes next: it is written, as it is and in the other format, and merged with itself."""
    again = parse_protobuf(build_protobuf(strategy), _ORIGIN)
    assert again.parameters == strategy.parameters
    assert again.ranks == strategy.ranks
    try:
        assert parse_json(build_json(strategy), _ORIGIN).parameters == strategy.parameters
    except StrategyError as error:
        assert "JSON" in str(error)  # which does not hold everything
    if not strategy.merged or strategy.stages[0].stage == 0:
        parts = split_strategy(strategy)
        try:
            merge_strategies([*parts, *parts])
        except StrategyError as error:
            assert "stage 0 is missing" in str(error)


def _group_seeds() -> list[bytes]:
    ranks = ParallelGroupRanks(dim=[0, 1, 2, 3])
    item = ParallelGroupItem(group_name="hccl_world_group", parallel_group_ranks=ranks)
    message = ParallelGroupMap(parallel_group_item=[item, item], ckpt_restore_rank_list=ranks)
    return [message.SerializeToString(), b"[[0, 2], [1, 3]]", b" [[3, 1], [0], [2]]"]


def _read_groups(data: bytes) -> None:
    place = parse_url(f"memory:///fuzz/{_ORIGIN}")
    place.store.put(place.path, data)
    groups = read_groups([str(place)])
    ranks = [rank for group in groups for rank in group]
    assert sorted(ranks) == list(range(len(ranks)))


PROTOBUF = Parser("strategy-protobuf", _protobuf_seeds, _parse_protobuf, (damaged_protobuf,), _ORIGIN)
GROUPS = Parser("groups", _group_seeds, _read_groups, (damaged_protobuf, damaged_json))
JSON = Parser("strategy-json", _json_seeds, _parse_json, (damaged_json,), _ORIGIN)


def _dcp_seeds() -> list[bytes]:
    paths = [path for path in sorted(FIXTURES.glob("dcp/*/src/.metadata")) if path.stat().st_size < 9000]
    return [path.read_bytes() for path in paths]


def _parse_dcp(data: bytes) -> None:
    metadata = parse_dcp_metadata(data, _ORIGIN)
    for tensor in metadata.tensors.values():
        assert sum(chunk.box.size for chunk in tensor.chunks) == math.prod(tensor.shape)


DCP_METADATA = Parser("dcp-metadata", _dcp_seeds, _parse_dcp, (damaged_pickle,), _ORIGIN)

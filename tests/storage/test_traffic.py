"""How much goes over the network, by the server's own count.

What is needed of a source is counted element by element, once however many target ranks want it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.report import ConversionReport
from reshard.core.files.any_format import plan_file
from reshard.core.files.model import CheckpointFormat, OutputEntry
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import read_ckpt
from tests.support.ckpt_writer import filled
from tests.support.stores import Store

FLOAT = dtype_from_name("Float32")
NESTED = 1.05
COLUMNS = 1.3

Maps = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Side:
    """How one side cuts all weights (of two axes): device matrix, tensor map, optimizer shards, pipeline stages."""

    matrix: tuple[int, ...]
    tensor_map: Maps
    optimizer_shards: int = 0
    stages: int = 1

    @property
    def layout(self) -> ParameterLayout:
        return ParameterLayout(
            self.matrix,
            self.tensor_map,
            optimizer_shard_step=self.matrix[-1] if self.optimizer_shards else 0,
            optimizer_shard_size=self.optimizer_shards,
            nested=True,
        )

    def strategy(self, names: Sequence[str]) -> Strategy:
        share = len(names) // self.stages
        stages = (
            StageStrategy(number, dict.fromkeys(names[number * share : (number + 1) * share], self.layout))
            for number in range(self.stages)
        )
        return Strategy(tuple(stages), "a test", merged=self.stages > 1)

    def shards(self, tensors: Mapping[str, np.ndarray], rank: int) -> dict[str, np.ndarray]:
        strategy = self.strategy(list(tensors))
        stage = next(stage for stage in strategy.stages if rank in strategy.stage_ranks(stage))
        place = rank - strategy.stage_ranks(stage).start
        return {
            name: tensors[name][self.layout.shard_grid(2).box_of(place, tensors[name].shape).as_index()]
            for name in stage.layouts
        }


def rows(devices: int, **more: int) -> Side:
    return Side((devices,), ((0,), ()), **more)


def columns(devices: int, **more: int) -> Side:
    return Side((devices,), ((), (0,)), **more)


@dataclass(frozen=True)
class Conversion:
    """A conversion in a store, and what came of it."""

    store: Store
    plan: ConversionPlan
    report: ConversionReport

    @property
    def needed_bytes(self) -> int:
        """Bytes of source shards that some target rank needs, each once."""
        wanted: dict[tuple[int, str], np.ndarray] = {}
        for rank in self.plan.target_ranks:
            for parameter in self.plan.rank_plan(rank).parameters:
                for read in parameter.reads:
                    shape = self.plan.source_entry(read.source_rank, parameter.name).shape
                    held = wanted.setdefault((read.source_rank, parameter.name), np.zeros(shape, bool))
                    held[read.source_box.as_index()] = True
        return sum(int(held.sum()) for held in wanted.values()) * FLOAT.itemsize

    @property
    def source_bytes(self) -> int:
        """What the server sent of the source's files."""
        return sum(exchange.sent_bytes for exchange in self._gets if "/src/" in exchange.call.key)

    @property
    def amplification(self) -> float:
        return self.source_bytes / self.needed_bytes

    @property
    def _gets(self) -> list:
        return [each for each in self.store.proxy.exchanges() if each.call.operation == "GetObject"]


@pytest.fixture
def converted(store: Store) -> Callable[..., Conversion]:
    """`converted(source, target, …)`: random matrices of a shape, put into the store and converted there."""

    def run(
        source: Side, target: Side, *, count: int = 6, shape: tuple[int, int] = (768, 1536), **options: object
    ) -> Conversion:
        generator = np.random.default_rng(prod(shape))
        tensors = {
            f"layers.{number}.weight": generator.random(shape, np.float32).astype(np.float32) for number in range(count)
        }
        strategy = source.strategy(list(tensors))
        for rank in strategy.ranks:
            shards = source.shards(tensors, rank)
            file = plan_file(
                CheckpointFormat.CKPT, [OutputEntry(name, FLOAT, each.shape) for name, each in shards.items()]
            )
            path = store.files(f"src/rank_{rank}/model.ckpt")
            path.parent.mkdir(parents=True)
            path.write_bytes(filled(file, lambda name, held=shards: held[name].tobytes()))  # type: ignore[misc]
        store.files("x").parent.mkdir(parents=True, exist_ok=True)
        for name, side in (("src_strategy.ckpt", source), ("dst_strategy.ckpt", target)):
            write_strategy(side.strategy(list(tensors)), str(store.files(name)))
        store.server.look_again()
        request = build_request(
            source=store.url("src"),
            target=store.url("out"),
            source_strategy=store.url("src_strategy.ckpt"),
            target_strategy=store.url("dst_strategy.ckpt"),
            **({"verify": "none"} | options),
        )
        plan = make_plan(request)
        store.proxy.forget()
        report = convert(request)
        for rank in plan.target_ranks:
            want = {
                name: ("Float32", each.shape, each.tobytes()) for name, each in target.shards(tensors, rank).items()
            }
            assert read_ckpt(store.files(f"out/rank_{rank}/checkpoint_{rank}.ckpt")) == want
        return Conversion(store, plan, report)

    return run


NESTING = [
    pytest.param(rows(8), rows(4), id="rows: 8 to 4"),
    pytest.param(rows(4), rows(8), id="rows: 4 to 8"),
    pytest.param(rows(4), rows(3), id="rows: 4 to 3"),
    pytest.param(Side((2, 4), ((0,), ())), Side((2, 2), ((0,), ())), id="replicas on both sides"),
    pytest.param(Side((2, 2), ((0,), ())), Side((2, 2), ((0,), ()), 2), id="to optimizer shards"),
    pytest.param(Side((4, 2), ((0,), ()), 4), Side((2, 2), ((0,), ()), 2), id="between optimizer shards"),
    pytest.param(rows(2, stages=3), rows(2, stages=2), id="pipeline: 3 stages to 2"),
    pytest.param(columns(8), columns(4), id="columns that are joined"),
    pytest.param(rows(1), Side((4,), ((), ())), id="whole everywhere"),
]
CUTTING = [
    pytest.param(columns(4), columns(8), id="columns: 4 to 8"),
    pytest.param(columns(4), columns(6), id="columns: 4 to 6"),
    pytest.param(rows(4), columns(6), id="rows to columns"),
    pytest.param(columns(1), columns(8), id="columns: 1 to 8"),
    pytest.param(columns(1), columns(64), id="columns: 1 to 64"),
    pytest.param(Side((2, 2), ((0,), (1,))), Side((3, 2), ((0,), (1,))), id="blocks of another grid"),
]


@pytest.mark.parametrize(("source", "target"), NESTING)
def test_where_cuts_nest_each_byte_comes_once(converted: Callable[..., Conversion], source: Side, target: Side) -> None:
    assert converted(source, target).amplification <= NESTED


@pytest.mark.parametrize(("source", "target"), CUTTING)
def test_what_many_ranks_need_parts_of_comes_once(
    converted: Callable[..., Conversion], source: Side, target: Side
) -> None:
    assert converted(source, target).amplification <= COLUMNS


def test_the_report_says_what_was_read_and_what_for(converted: Callable[..., Conversion]) -> None:
    conversion = converted(rows(4), rows(2), verify="checksum")
    report = conversion.report
    assert conversion.needed_bytes <= report.read_bytes <= conversion.source_bytes
    assert report.verified_bytes == report.written_bytes
    assert (report.crc_bytes, report.retried_requests) == (0, 0)


def test_a_new_target_is_claimed_with_few_requests(converted: Callable[..., Conversion]) -> None:
    """From the first look at it to the last request before the ranks: each waits for the one before, mostly."""
    conversion = converted(rows(2), rows(1), count=1, shape=(64, 64))
    calls = [exchange.call for exchange in conversion.store.proxy.exchanges()]
    first = next(number for number, call in enumerate(calls) if "/out/.reshard/" in call.key)
    last = next(number for number, call in enumerate(calls) if "/out/rank_0/" in call.key)
    before = [(call.operation, call.key) for call in calls[first:last] if "/out" in call.key or not call.key]
    assert len(before) <= 9, before
    assert "ListMultipartUploads" not in {operation for operation, _ in before}  # AWS's own client would be loaded

"""The demo's model: a small llama, the optimizer's state that training keeps beside it, and how jobs cut both.

Weights are bfloat16, the two Adam moments of each float32. The embedding is tied: it is the output layer as well, so
the first and the last pipeline stage both hold it. Matrices are cut over the tensor-parallel devices the way Megatron
does: projections into a layer by their rows, those out of it by their columns.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.dtypes import DType, dtype_from_name
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.slices import Shape

LAYERS = 4
_HIDDEN = 128
_FEED_FORWARD = 352
_VOCABULARY = 4096

_BFLOAT16 = dtype_from_name("BFloat16")
_FLOAT32 = dtype_from_name("Float32")
_DEVICE_AXES_FROM_RIGHT = {"tensor": 0, "data": 1}


@dataclass(frozen=True)
class Parameter:
    """A weight or a moment of one: `cut_axis` is the tensor axis that tensor parallelism cuts, None for none."""

    name: str
    dtype: DType
    shape: Shape
    cut_axis: int | None


@dataclass(frozen=True)
class Job:
    """How many devices a job has, and what for.

    Attributes:
        stages: pipeline stages.
        data_parallel: replicas of the model in each stage.
        tensor_parallel: devices that share each matrix.
        optimizer_shards: pieces that the replicas cut each matrix and its moments into; 0: every replica has it whole.
    """

    stages: int
    data_parallel: int
    tensor_parallel: int
    optimizer_shards: int = 0

    @property
    def devices_per_stage(self) -> int:
        """Devices of each pipeline stage."""
        return self.data_parallel * self.tensor_parallel

    @property
    def ranks(self) -> range:
        """The job's global ranks."""
        return range(self.stages * self.devices_per_stage)

    def stage_of(self, rank: int) -> int:
        """The pipeline stage that a global rank belongs to."""
        return rank // self.devices_per_stage

    def strategy(self, stage: int) -> Strategy:
        """What each rank of a stage saves as its strategy: the layouts of that stage alone."""
        layouts = {parameter.name: self.layout(parameter) for parameter in stage_parameters(stage, self.stages)}
        cut = (self.data_parallel, 1), (1, self.tensor_parallel)
        operators = tuple(OperatorStrategy(f"Default/model/MatMul-op{i}", stage, cut) for i in range(LAYERS))
        return Strategy((StageStrategy(stage, layouts, operators),), origin="the demo", merged=False)

    def layout(self, parameter: Parameter) -> ParameterLayout:
        """How a parameter is cut over the devices of a stage."""
        axes = range(len(parameter.shape))
        tensor_map = tuple((_DEVICE_AXES_FROM_RIGHT["tensor"],) if axis == parameter.cut_axis else () for axis in axes)
        # as in training: what is below a threshold is not worth the communication and stays whole
        shards = self.optimizer_shards if len(parameter.shape) > 1 else 0
        return ParameterLayout(
            (self.data_parallel, self.tensor_parallel),
            tensor_map,
            optimizer_shard_step=self.tensor_parallel if shards else 0,
            optimizer_shard_size=shards,
        )


def stage_parameters(stage: int, stages: int) -> Iterator[Parameter]:
    """All parameters of one of `stages` pipeline stages, in the order in which they are saved."""
    weights = list(_stage_weights(stage, stages))
    yield from weights
    for moment in ("adam_m", "adam_v"):
        for weight in weights:
            yield Parameter(f"{moment}.{weight.name}", _FLOAT32, weight.shape, weight.cut_axis)


def values(parameter: Parameter, step: int) -> np.ndarray:
    """The whole of a parameter as of a training step; bfloat16 as its bits. The same at each call."""
    generator = np.random.default_rng(zlib.crc32(f"{parameter.name} at {step}".encode()))
    floats = generator.random(parameter.shape, dtype=np.float32)
    if parameter.name.startswith("adam_v."):
        return floats * np.float32(1e-6)
    floats = (floats - np.float32(0.5)) * np.float32(0.04)
    if parameter.dtype == _BFLOAT16:
        return (floats.view(np.uint32) >> 16).astype(np.uint16)
    return floats


def training_state(epoch: int, step: int) -> dict[str, np.ndarray]:
    """What is saved beside the parameters, the same on every rank and not in any strategy."""
    return {
        "global_step": np.array([step], dtype=np.int32),
        "learning_rate": np.array(3e-4, dtype=np.float32),
        "scale_sense": np.array(65536.0, dtype=np.float32),
        "epoch_num": np.array(epoch, dtype=np.int64),
        "step_num": np.array(step, dtype=np.int64),
    }


def _stage_weights(stage: int, stages: int) -> Iterator[Parameter]:
    if stage in (0, stages - 1):
        yield _weight("tok_embeddings.embedding_weight", (_VOCABULARY, _HIDDEN), 0)
    for layer in range(stage * LAYERS // stages, (stage + 1) * LAYERS // stages):
        for name in ("wq", "wk", "wv"):
            yield _weight(f"layers.{layer}.attention.{name}.weight", (_HIDDEN, _HIDDEN), 0)
        yield _weight(f"layers.{layer}.attention.wo.weight", (_HIDDEN, _HIDDEN), 1)
        yield _weight(f"layers.{layer}.feed_forward.w1.weight", (_FEED_FORWARD, _HIDDEN), 0)
        yield _weight(f"layers.{layer}.feed_forward.w2.weight", (_HIDDEN, _FEED_FORWARD), 1)
        yield _weight(f"layers.{layer}.feed_forward.w3.weight", (_FEED_FORWARD, _HIDDEN), 0)
        yield _weight(f"layers.{layer}.attention_norm.weight", (_HIDDEN,), None)
        yield _weight(f"layers.{layer}.ffn_norm.weight", (_HIDDEN,), None)
    if stage == stages - 1:
        yield _weight("norm_out.weight", (_HIDDEN,), None)


def _weight(name: str, shape: Shape, cut_axis: int | None) -> Parameter:
    return Parameter(f"model.{name}", _BFLOAT16, shape, cut_axis)

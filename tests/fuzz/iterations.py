"""Documents of MindFormers' checkpoints: metadata.json, common.json, the tracker, meta.json of the former layout."""

import json
import math

from reshard.core.layouts.checkpoint2.common import build_common, parse_common
from reshard.core.layouts.checkpoint2.metadata import parse_metadata
from reshard.core.layouts.checkpoint2.names import parse_tensor_file
from reshard.core.layouts.ranks.mindformers import SAVED_STEP_NAME, read_saved_step
from reshard.core.layouts.tracker import Tracker, read_tracker
from reshard.core.storage.urls import Location, parse_url
from reshard.core.strategy.protobuf_file import build_protobuf
from tests.fuzz.mutations import damaged_json
from tests.fuzz.parsers import Parser
from tests.support.iterations import CASES, IterationCase
from tests.support.places import FIXTURES

_ORIGIN = "hostile_iteration"
_LARGEST_SEED_BYTES = 20_000


def _metadata_seeds() -> list[bytes]:
    cases = [IterationCase(FIXTURES / "checkpoint2" / name) for name in CASES]
    paths = [case.iteration / "metadata.json" for case in cases]
    compact = [json.dumps(json.loads(path.read_text())).encode() for path in paths if path.exists()]
    return [data for data in compact if len(data) < _LARGEST_SEED_BYTES]


def _parse_metadata(data: bytes) -> None:
    metadata = parse_metadata(data, _ORIGIN)
    for file in metadata.files.values():
        assert parse_tensor_file(file.name)
        assert "/" not in file.name
        assert set(file.tensors) <= metadata.tensors.keys()
        assert file.rank in metadata.strategy.ranks
    for tensor in metadata.tensors.values():
        if tensor.layout is not None:
            pieces = math.prod(tensor.layout.shard_grid(len(tensor.shape)).pieces)
            assert math.prod(tensor.local_shape) * pieces == math.prod(tensor.shape)
            assert set(tensor.ranks) <= set(metadata.strategy.ranks)
    if metadata.strategy.parameters:
        build_protobuf(metadata.strategy)


def _common_seeds() -> list[bytes]:
    return [
        b'{"epoch_num": 1, "step_num": 40, "global_step": 40, "loss_scale": null, "ckpt_status": 0, "other": "a"}',
        b'{"global_batch_size": 512, "loss_scale": 65536.5, "consumed_samples": 20480}',
        b"{}",
    ]


def _parse_common(data: bytes) -> None:
    common = parse_common(data, _ORIGIN)
    assert parse_common(build_common(common), _ORIGIN) == common


def _placed(name: str, data: bytes) -> Location:
    directory = parse_url(f"memory:///fuzz/{_ORIGIN}")
    directory.store.put(directory.child(name).path, data)
    return directory


def _read_tracker(data: bytes) -> None:
    assert read_tracker(_placed(Tracker().name, data), Tracker()) is not None


def _saved_step_seeds() -> list[bytes]:
    return [b'{"last_epoch": 1, "last_step": 40, "last_ckpt_file": "llama_rank_0-1_40.ckpt"}']


def _read_saved_step(data: bytes) -> None:
    step = read_saved_step(_placed(SAVED_STEP_NAME, data))
    assert step is None or (step.epoch >= 0 and step.step >= 0)


METADATA = Parser("metadata", _metadata_seeds, _parse_metadata, (damaged_json,), _ORIGIN)
COMMON = Parser("common", _common_seeds, _parse_common, (damaged_json,), _ORIGIN)
TRACKER = Parser("tracker", lambda: [b"40", b" 123456789\n"], _read_tracker, (), _ORIGIN)
SAVED_STEP = Parser("saved-step", _saved_step_seeds, _read_saved_step, (damaged_json,), _ORIGIN)

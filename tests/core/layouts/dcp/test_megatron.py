"""Weights of a checkpoint that Megatron-Core 0.16.1 wrote (`torch_dist`); see the fixture's case.json."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.source.description import describe
from tests.support.checkpoints import read_safetensors
from tests.support.dcp import DcpCase, dcp_case

MEGATRON = dcp_case("megatron")
QKV = "decoder.layers.self_attention.linear_qkv.weight"
OPTIMIZER = f"optimizer.state.exp_avg.{QKV}"


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    notes = convert(MEGATRON.request(tmp_path / "out")).notes
    assert notes[0] == (
        "left out: Megatron's common.pt, a pickle of arguments and schedules; 1 tensor of its optimizer, which only "
        f"Megatron can take up: {OPTIMIZER}"
    )
    assert notes[1].startswith("left out: 4 objects of Python, which only PyTorch can read: decoder.layers.")
    assert describe(str(MEGATRON.source))["notes"] == [notes[0]]


def test_layers_become_parameters_by_steps(tmp_path: Path) -> None:
    changes = tmp_path / "changes.yaml"
    changes.write_text(
        """
        steps:
          - unstack: {parameters: 'decoder.layers.{x:*}', into: 'decoder.layers.{L}.{x}', count: 4}
        """
    )
    convert(MEGATRON.request(tmp_path / "out", layout="unified", changes=str(changes), verify="content"))
    made = read_safetensors(tmp_path / "out" / "model.safetensors")
    dtype, shape, data = MEGATRON.whole[QKV]
    layers = np.frombuffer(data, np.float32).reshape(shape)
    for number in range(4):
        name = f"decoder.layers.{number}.self_attention.linear_qkv.weight"
        assert made[name] == (dtype, shape[1:], layers[number].tobytes())
    assert len(made) == 9


def change_config(**fields: object) -> Any:
    def change(case: DcpCase) -> None:
        path = case.source / "metadata.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def only_optimizer(case: DcpCase) -> None:
    names = list(MEGATRON.whole)

    def remove(metadata: Any) -> None:
        for name in names:
            del metadata.state_dict_metadata[name]
        for index in [index for index in metadata.storage_data if index.fqn in names]:
            del metadata.storage_data[index]
        del metadata.all_local_plans

    case.change_metadata(remove)


def as_of_older_releases(case: DcpCase) -> None:
    """Give the metadata Megatron's own class."""
    path = case.source / ".metadata"
    module, name = b"megatron.core.dist_checkpointing.strategies.torch", b"MCoreMetadata"
    texts = [b"\x8c" + bytes([len(text)]) + text + b"\x94" for text in (module, name)]
    data = path.read_bytes()
    changed = data.replace(b"\x8c%torch.distributed.checkpoint.metadata\x94\x8c\x08Metadata\x94", b"".join(texts), 1)
    assert changed != data
    path.write_bytes(changed)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda case: (case.source / "metadata.json").unlink(),
            "has Megatron's common.pt, but no metadata.json, which is written last: it was not saved completely",
        ),
        (lambda case: (case.source / "metadata.json").write_text("{"), "metadata.json: cannot be read as JSON: "),
        (lambda case: (case.source / "metadata.json").write_text("[]"), "sharded_backend is None, version None"),
        (change_config(sharded_backend="zarr"), "sharded_backend is 'zarr', version 1: reshard reads torch_dist"),
        (change_config(sharded_backend_version=2), "sharded_backend is 'torch_dist', version 2"),
        (
            as_of_older_releases,
            "has classes of Megatron's own, as Megatron-Core 0.15 and earlier releases write them",
        ),
        (only_optimizer, "has no weights, only Megatron's optimizer state, which reshard does not convert"),
    ],
)
def test_what_is_not_as_megatron_saves_it_is_refused(harm: Any, message: str, tmp_path: Path) -> None:
    case = MEGATRON.copied(tmp_path / "case")
    harm(case)
    with pytest.raises(InputError) as refused:
        convert(case.request(tmp_path / "out"))
    assert message in str(refused.value)

"""Directories of PyTorch's Distributed Checkpoint on an object store."""

from pathlib import Path

from reshard.core.conversion.convert import convert
from tests.support.checkpoints import read_safetensors
from tests.support.dcp import dcp_case
from tests.support.stores import Store


def test_a_dcp_checkpoint_is_read_by_ranges(store: Store, tmp_path: Path) -> None:
    for name in ("dtypes", "fsdp_uneven", "safetensors", "hf_sharded"):
        case = dcp_case(name)
        url = store.add(case.source, name)
        convert(case.request(tmp_path / name, url, layout="unified", verify="content"))
        assert read_safetensors(tmp_path / name / "model.safetensors") == case.whole

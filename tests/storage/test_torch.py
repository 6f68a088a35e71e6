"""Files of PyTorch's whole tensors in an object store."""

from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.request.conversion import build_request
from tests.core.layouts.torch.test_source import FLAT, TORCH, TWO, A, B, write_model
from tests.support.checkpoints import Contents, read_safetensors
from tests.support.stores import Store


def made(source: str, target: Path, **options: object) -> Contents:
    convert(build_request(source=source, target=str(target), layout="unified", verify="content", **options))
    return read_safetensors(target / "model.safetensors")


def test_they_are_read_by_ranges(store: Store, tmp_path: Path) -> None:
    url = store.add(TORCH / "nested.pth", "nested.pth")
    assert made(url, tmp_path / "nested", root="state_dict", exclude=["narrow"]) == FLAT
    url = store.add(write_model(tmp_path / "src", TWO), "model")
    assert made(url, tmp_path / "several") == {"a": A, "b": B}


def test_a_changed_value_is_found(store: Store, tmp_path: Path) -> None:
    source = write_model(tmp_path / "src", TWO)
    path = source / "pytorch_model-00001-of-00002.bin"
    path.write_bytes(path.read_bytes().replace(A[2], bytes(len(A[2]))))
    url = store.add(source, "model")
    with pytest.raises(InputError, match=r"00001-of-00002\.bin: parameter 'a': its 32 bytes at \d+ have the CRC-32"):
        made(url, tmp_path / "out")

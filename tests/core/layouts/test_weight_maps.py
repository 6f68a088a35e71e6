import json
from pathlib import Path

import pytest

from reshard.core.errors import CatalogError
from reshard.core.layouts.weight_maps import check_file_names, dump_weight_map, read_weight_map
from reshard.core.storage.urls import Location, parse_url

WEIGHTS = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}


def index(path: Path, data: bytes) -> Location:
    file = path / "model.safetensors.index.json"
    file.write_bytes(data)
    return parse_url(str(file))


def test_a_written_map_reads_back(tmp_path: Path) -> None:
    data = dump_weight_map(WEIGHTS, 12)
    assert json.loads(data)["metadata"] == {"total_size": 12}
    assert read_weight_map(index(tmp_path, data)) == WEIGHTS


def test_a_bare_map(tmp_path: Path) -> None:
    assert read_weight_map(index(tmp_path, json.dumps(WEIGHTS).encode())) == WEIGHTS


@pytest.mark.parametrize("data", [b"", b"[]", b'{"weight_map": {"a": 5}}', b"\xff", b'{"a": "x", "a": "y"}'])
def test_no_map(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CatalogError, match="is not a map of parameters to files"):
        read_weight_map(index(tmp_path, data))


@pytest.mark.parametrize(
    "file", ["../x.safetensors", "d/x.safetensors", "d\\x.safetensors", "x.bin", "x\0.safetensors"]
)
def test_files_elsewhere_are_refused(file: str) -> None:
    location = parse_url("/ck/index.json")
    check_file_names(WEIGHTS, location)
    with pytest.raises(CatalogError, match=r"^/ck/index\.json: places parameter 'a' in .*not the name of"):
        check_file_names({"a": file}, location)

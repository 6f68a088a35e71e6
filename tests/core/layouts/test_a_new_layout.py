"""A layout of its own, a directory of `.npy` files: a package and a line of the registry make it a source."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from reshard.core.checkpoint.catalog import CatalogRecord, CheckpointCatalog
from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat, FileIndex, TensorEntry
from reshard.core.layouts import any_layout, output_directory, registry, survey
from reshard.core.layouts.place import Place, whole_file
from reshard.core.layouts.source_layout import CatalogOptions, Document, FoundCheckpoint, SelfEvident, SourceLayout
from reshard.core.layouts.unified.strategy import unified_strategy
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.source.description import describe
from reshard.core.source.diagnosis import diagnose
from reshard.core.storage.reading import read_version
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.dtypes import dtype_from_torch
from reshard.core.tensor.slices import Extent
from reshard.core.verification.compare import compare_checkpoints


class FoundArrays(FoundCheckpoint):
    """A directory with a file for each tensor."""

    has_whole_tensors = True
    no_steps = "is a directory of arrays. Name the directory that training saves into"

    @property
    def self_evident(self) -> SelfEvident:
        return SelfEvident("arrays", len(self.files), "its arrays are whole")

    def check_options(self, options: CatalogOptions) -> None:
        if options.step or options.source_prefix:
            raise CatalogError(f"{self.url}: arrays have no steps")

    def catalog(self, options: CatalogOptions) -> CheckpointCatalog:
        records = {rank: _record(rank, Path(str(file.location))) for rank, (file,) in self.files.items()}
        return CheckpointCatalog(self.url, CheckpointFormat.SAFETENSORS, None, records, has_whole_tensors=True)

    def sharding_of(self, catalog: CheckpointCatalog) -> Strategy:
        return unified_strategy(catalog)

    def describe(self) -> Document:
        return {"kind": "arrays", "url": self.url, "files": [file.location.name for (file,) in self.files.values()]}


def _record(rank: int, path: Path) -> CatalogRecord:
    array = np.load(path, mmap_mode="r")
    size_bytes, shape = path.stat().st_size, array.shape
    extent = Extent(size_bytes - math.prod(shape) * array.itemsize, math.prod(shape) * array.itemsize)
    entry = TensorEntry(path.stem, dtype_from_torch(array.dtype.name), shape, (extent,))
    index = FileIndex(CheckpointFormat.SAFETENSORS, size_bytes, {path.stem: entry})
    return CatalogRecord(rank, str(path), size_bytes, read_version(parse_url(str(path))), index)


class Arrays(SourceLayout):
    """The layout."""

    name = "npy"

    def holds(self, names: Sequence[str]) -> bool:
        return any(name.endswith(".npy") for name in names)

    def recognize(self, place: Place, step: str) -> FoundArrays | None:
        arrays = [item for item in place.items if item.name.endswith(".npy")]
        if not arrays:
            return None
        files = {rank: (whole_file(item.location),) for rank, item in enumerate(arrays)}
        ignored = tuple(name for name in place.names if not name.endswith(".npy"))
        return FoundArrays(str(place.location), files, ignored=ignored)


W, B = np.arange(48, dtype=np.float32).reshape(8, 6), np.arange(6, dtype=np.float32)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    known = registry.source_layouts()
    for module in (registry, survey, any_layout, output_directory):
        monkeypatch.setattr(module, "source_layouts", lambda: (Arrays(), *known))
    directory = tmp_path / "arrays"
    directory.mkdir()
    np.save(directory / "w.npy", W)
    np.save(directory / "b.npy", B)
    (directory / "README").write_text("two arrays")
    return directory


def test_a_new_layout_is_converted(source: Path, tmp_path: Path) -> None:
    request = build_request(source=str(source), target=str(tmp_path / "out"), layout="unified", verify="content")
    assert convert(request).committed
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: array.tolist() for name, array in written.items()} == {"w": W.tolist(), "b": B.tolist()}


def test_a_new_layout_is_described_diagnosed_and_compared(source: Path, tmp_path: Path) -> None:
    convert(build_request(source=str(source), target=str(tmp_path / "out"), layout="unified"))
    assert describe(str(source))["files"] == ["b.npy", "w.npy"]
    diagnosis = diagnose(str(source))
    assert diagnosis.fits
    assert dict(diagnosis.facts)["needs"] == "no strategy: its arrays are whole"
    assert compare_checkpoints(build_comparison(a=str(source), b=str(tmp_path / "out"))).same


def test_a_new_layout_refuses_options_in_its_own_words(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="arrays have no steps"):
        convert(build_request(source=str(source), target=str(tmp_path / "out"), step="1"))
    with pytest.raises(CatalogError, match="says itself how it is sharded, so leave out 'source_strategy'"):
        diagnose(str(source), str(source))

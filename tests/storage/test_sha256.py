"""Conversions between object stores that take the SHA-256 of files."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from reshard.core.verification.published import verify_target
from tests.support.sha256 import manifest_at, sha256_of
from tests.support.stores import Store, of_operation


def test_files_of_several_parts_and_their_source(store: Store, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {f"w{number}": generator.integers(0, 255, 4_000_003, np.uint8) for number in range(4)}
    (tmp_path / "src").mkdir()
    save_file(arrays, tmp_path / "src/model.safetensors")
    source, target = store.add(tmp_path / "src", "src"), store.url("out")
    convert(build_request(source=source, target=target, format="ckpt", sha256="source", memory_limit="16MiB"))
    assert len(of_operation(store, "UploadPart")) > 1
    manifest, stored = manifest_at(target), store.files("out")
    assert {rank.file: rank.sha256 for rank in manifest.ranks} == {
        name: sha256 for name, sha256 in sha256_of(stored).items() if name.endswith(".ckpt")
    }
    [whole] = manifest.source_files
    assert (whole.url, whole.sha256) == (
        f"{source}/model.safetensors",
        sha256_of(tmp_path / "src")["model.safetensors"],
    )
    report = verify_target(target, VerifyLevel.CHECKSUM, provenance=True)
    assert (report.problems, report.notes) == ((), ())  # a note would say that the source was not looked at

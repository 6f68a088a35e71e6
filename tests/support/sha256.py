"""The SHA-256 of a target's files, by the system's own program, and what its manifest says."""

import subprocess
from pathlib import Path

from reshard.core.checkpoint.manifest import Manifest
from reshard.core.layouts.manifests import read_manifest
from reshard.core.storage.urls import parse_url


def manifest_at(target: Path | str) -> Manifest:
    found = read_manifest(parse_url(str(target)))
    assert found is not None
    return found


def recorded_sha256(target: Path | str) -> dict[str, str | None]:
    """Path below the target -> what the manifest says."""
    return manifest_at(target).sha256


def sha256_of(target: Path) -> dict[str, str | None]:
    """Path below the target -> what sha256sum says of the file there; reshard's own state is left out."""
    files = sorted(path for path in target.rglob("*") if path.is_file() and ".reshard" not in path.parts)
    printed = subprocess.run(["sha256sum", "-b", *files], capture_output=True, text=True, check=True).stdout
    pairs = (line.split(" *", 1) for line in printed.splitlines())
    return {str(Path(name).relative_to(target)): digest for digest, name in pairs}

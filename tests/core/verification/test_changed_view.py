"""A checkpoint as a preset changes it, held against another."""

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from reshard.core.errors import PlanError
from reshard.core.request.comparison import build_comparison
from reshard.core.verification.compare import compare_checkpoints
from tests.support.families import Family, switches_of

MTP = Family("deepseek3_mtp")


def test_a_copy_that_is_none_is_not_taken_for_one(tmp_path: Path) -> None:
    changed = Path(shutil.copytree(MTP.hf, tmp_path / "hf"))
    for file in changed.glob("*.safetensors"):
        tensors = load_file(file)
        names = [name for name in tensors if ".layers." in name and name.endswith("embed_tokens.weight")]
        for name in names:
            tensors[name].reshape(-1)[-1] += 1
        file.chmod(0o600)
        save_file(tensors, file, {"format": "pt"})
    options = {"preset": "deepseek3", "switch": switches_of(MTP, to_mf=True)}
    assert compare_checkpoints(build_comparison(a=str(MTP.hf), b=str(MTP.mf), **options)).same
    with pytest.raises(
        PlanError, match=r"embed_tokens.weight' is to be dropped, and is no copy of 'model.embed_tokens"
    ):
        compare_checkpoints(build_comparison(a=str(changed), b=str(MTP.mf), **options))

"""Files that a document in the source names are not read through links that lead out of its directory."""

import shutil
from pathlib import Path

import pytest

from reshard.core.errors import InputError
from reshard.core.layouts.survey import survey
from tests.support.dcp import dcp_case
from tests.support.families import Family
from tests.support.iterations import iteration_case

SOURCES = {
    "unified": (Family("llama").hf, "model.safetensors.index.json", ".safetensors"),
    "dcp": (dcp_case("fsdp_uneven").source, ".metadata", ".distcp"),
    "checkpoint2": (iteration_case(2).iteration, "metadata.json", ".safetensors"),
}


@pytest.mark.parametrize("layout", SOURCES)
@pytest.mark.parametrize("what", ["document", "file of tensors"])
def test_links_out_of_the_source(tmp_path: Path, layout: str, what: str) -> None:
    original, document, suffix = SOURCES[layout]
    source = Path(shutil.copytree(original, tmp_path / original.name))
    linked = source / document if what == "document" else min(source.glob(f"*{suffix}"))
    assert survey(str(source)).files
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"{linked}: is a link to {tmp_path}/elsewhere, outside {source}"):
        survey(str(source))
    linked.unlink()
    (tmp_path / "elsewhere").rename(source / "kept")
    linked.symlink_to("kept")
    assert survey(str(source)).files

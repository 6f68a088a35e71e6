"""A checkpoint as one side of a comparison."""

from pathlib import Path

import numpy as np
import pytest

from reshard.core.errors import CatalogError
from reshard.core.options.validation import build_options
from reshard.core.request.source import FingerprintRequest
from reshard.core.text.options import option
from reshard.core.verification.views import open_checkpoint_view, open_fingerprints
from tests.support.checkpoints import case
from tests.support.comparing import file_of


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.ckpt", ("w", "Int32", np.arange(6, dtype=np.int32)))
    side = open_checkpoint_view(build_options(FingerprintRequest, source=str(path)))
    file_of(path, ("w", "Int32", np.arange(1, 8, dtype=np.int32)))
    with pytest.raises(CatalogError, match="rank_0: .*a.ckpt changed since its headers were read"):
        side.contents(["w"])


def test_a_view_of_files_and_one_of_their_fingerprints_are_alike(tmp_path: Path) -> None:
    source, strategy = case(7010).directory / "src", str(case(7010).directory / "src_strategy.ckpt")
    view = open_checkpoint_view(FingerprintRequest(source=str(source), source_strategy=strategy, exclude=["adam*"]))
    contents = view.contents(view.tensors)
    document = tmp_path / "document.json"
    document.write_text(view.document_of(contents).model_dump_json())
    known = open_fingerprints(FingerprintRequest(source=str(document)))
    assert (
        (known.ranks, known.stages, known.ranks_of_stage) == (view.ranks, view.stages, view.ranks_of_stage) == (8, 2, 4)
    )
    assert known.tensors == dict(sorted(view.tensors.items()))
    assert known.size_bytes == view.size_bytes
    assert known.contents(known.tensors) == contents
    assert known.stored_bytes(known.tensors) == 0 < view.stored_bytes(view.tensors)


def test_patterns_that_fit_nothing_are_known_before_anything_is_read() -> None:
    full = str(case(7010).directory / "full")
    view = open_checkpoint_view(FingerprintRequest(source=full, include=["*"], exclude=["adam*", "no.such*"]))
    assert view.unused == {option("exclude", ["no.such*"])}
    assert not [name for name in view.tensors if name.startswith("adam")]

"""Documents of fingerprints: what they stand for, and which are refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from reshard.core.errors import InputError
from reshard.core.options.validation import build_options
from reshard.core.request.source import FingerprintRequest
from reshard.core.verification.compare import fingerprint_checkpoint
from reshard.core.verification.fingerprint_file import ModelFingerprint, ParameterFingerprint, fingerprint_of_all
from tests.support.checkpoints import case
from tests.support.comparing import compared, file_of
from tests.support.iterations import iteration_case


def test_the_models_fingerprint_changes_with_every_part_of_it(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.int32)
    variants = [
        ("w", "Int32", array),
        ("v", "Int32", array),
        ("w", "UInt32", array),
        ("w", "Int32", array.reshape(2, 3)),
        ("w", "Int32", array[::-1].copy()),
    ]
    found = set()
    for number, entry in enumerate(variants):
        path = file_of(tmp_path / f"{number}.ckpt", entry)
        found.add(fingerprint_checkpoint(build_options(FingerprintRequest, source=str(path))).fingerprint)
    assert len(found) == len(variants)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "is neither a checkpoint nor a JSON document of 'reshard fingerprint'"),
        ("not JSON", "is neither a checkpoint nor a JSON document of 'reshard fingerprint'"),
        (None, "cannot read it: no such file"),
    ],
)
def test_what_is_no_document_of_fingerprints_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "there.json").write_text(content)
    with pytest.raises(InputError, match=message):
        compared(tmp_path / "there.json", case(7010).directory / "full")


def test_changed_fingerprints_are_refused(tmp_path: Path) -> None:
    request = build_options(FingerprintRequest, source=str(case(7010).directory / "full"))
    document = json.loads(fingerprint_checkpoint(request).model_dump_json())
    document["parameters"][0]["fingerprint"] = "0" * 16
    (tmp_path / "there.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="was changed: its parameters do not give its fingerprint"):
        compared(tmp_path / "there.json", case(7010).directory / "full")
    with pytest.raises(InputError, match="fingerprints have no strategy, no other steps, no root and no key"):
        compared(tmp_path / "there.json", case(7010).directory / "full", strategy_a="strategy.ckpt")


def test_fingerprints_of_what_cannot_be_a_dtype_are_refused(tmp_path: Path) -> None:
    parameters = (ParameterFingerprint(name="w", dtype="F\n", shape=(), fingerprint="0" * 16),)
    whole = fingerprint_of_all(parameters)
    document = ModelFingerprint(
        checkpoint="c", step=None, ranks=1, size_bytes=0, fingerprint=whole, parameters=parameters
    )
    path = tmp_path / "there.json"
    path.write_text(document.model_dump_json())
    with pytest.raises(InputError, match=r"there.json: 'F\\n' cannot be the name of a dtype"):
        compared(path, path)


def test_the_metadata_of_a_checkpoint_is_not_taken_for_fingerprints(tmp_path: Path) -> None:
    iteration = iteration_case(6).copied(tmp_path / "case").source / "iteration_00000040"
    assert compared(iteration / "metadata.json", iteration).same

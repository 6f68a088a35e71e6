"""Statements are read by in-toto's own messages, strictly, and their envelopes verified by securesystemslib."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reshard.core.conversion.convert import convert
from tests.conformance.mindspore_process import JudgeProcess, RefusalError
from tests.support.checkpoints import case
from tests.support.places import PROJECT
from tests.support.sha256 import sha256_of
from tests.support.signing import kept, new_key, private_pem, public_pem

PYTHON = PROJECT / ".venv-signing" / "bin" / "python"
KEY = new_key()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="model-signing is not installed: `make conformance` does it"),
]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    with JudgeProcess(tmp_path_factory.mktemp("judge") / "log", PYTHON, "statements_judge.py") as judge:
        yield judge


def converted(path: Path, **options: Any) -> Path:
    convert(case(7009).request(path / "out", **{"verify": "content", **options}))
    return path / "out"


def statement(target: Path, name: str) -> str:
    return str(target / ".reshard" / f"{name}.intoto.json")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("provenance", "https://slsa.dev/provenance/v1"), ("equivalence", "urn:reshard:value-equivalence:v1")],
)
def test_statements_are_in_totos(judge: JudgeProcess, tmp_path: Path, name: str, kind: str) -> None:
    target = converted(tmp_path, sha256="source", append_info=["epoch=5"], cast=["*=bfloat16"])
    found = judge.ask("statement", path=statement(target, name))
    assert found["type"] == kind
    assert found["subjects"] == {file: {"sha256": sha256} for file, sha256 in sha256_of(target).items()}


def test_provenance_is_slsas(judge: JudgeProcess, tmp_path: Path) -> None:
    target = converted(tmp_path, sha256="source")
    found = judge.ask("provenance", path=statement(target, "provenance"))
    assert found["build_type"] == "urn:reshard:conversion:v1"
    assert found["source"] == str(case(7009).directory / "src")
    assert found["seconds"] >= 0
    assert set(found["versions"]) == {"reshard", "python", "numpy"}
    for uri, digest in found["dependencies"].values():
        assert digest == {"sha256": hashlib.sha256(Path(uri.removeprefix("file://")).read_bytes()).hexdigest()}
    assert len(found["dependencies"]) == 6


def test_envelopes_are_verified(judge: JudgeProcess, tmp_path: Path) -> None:
    target = converted(tmp_path, sign=kept(tmp_path / "key.pem", private_pem(KEY)))
    for name, key in (("right", KEY), ("wrong", new_key())):
        (tmp_path / name).write_bytes(public_pem(key))
    for name in ("provenance", "equivalence"):
        found = judge.ask("envelope", path=statement(target, name), key=str(tmp_path / "right"))
        assert found["payload_type"] == "application/vnd.in-toto+json"
        with pytest.raises(RefusalError, match="VerificationError"):
            judge.ask("envelope", path=statement(target, name), key=str(tmp_path / "wrong"))


def test_the_judge_sees_what_is_wrong(judge: JudgeProcess, tmp_path: Path) -> None:
    target = converted(tmp_path, sha256="target")
    path = target / ".reshard" / "provenance.intoto.json"
    document = json.loads(path.read_text())
    document["predicate"]["buildDefinition"]["more"] = 1
    path.write_text(json.dumps(document))
    with pytest.raises(RefusalError, match="no field named .more"):
        judge.ask("provenance", path=str(path))

"""Plans that version 0.1.0 wrote: this one reads them, and a conversion that it began is the same conversion."""

import gzip
import json

import pytest

from reshard.core.records import plan_file
from reshard.core.records.plan_file import dump_plan, load_plan, plan_identity
from reshard.core.target.documents import document_names, documents_of
from tests.support.places import FIXTURES

PLANS = FIXTURES / "plans"
EXPECTED = json.loads((PLANS / "expected.json").read_text())


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_file, "__version__", "0.1.0")  # part of the identity


def test_every_layout_has_a_plan() -> None:
    assert {path.name.removesuffix(".json.gz") for path in PLANS.glob("*.json.gz")} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_plan_of_an_earlier_version_is_the_same_plan(name: str) -> None:
    path, expected = PLANS / f"{name}.json.gz", EXPECTED[name]
    plan = load_plan(str(path), expected["identity"])
    assert plan_identity(plan) == expected["identity"]
    assert gzip.decompress(dump_plan(plan)) == gzip.decompress(path.read_bytes())
    assert [plan.file_name(rank) for rank in plan.target_ranks] == expected["files"]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_documents_of_an_earlier_plan_are_the_same(name: str) -> None:
    plan = load_plan(str(PLANS / f"{name}.json.gz"), EXPECTED[name]["identity"])
    documents = {document.name: document.summary.digest for document in documents_of(plan).each}
    assert documents == EXPECTED[name]["documents"]
    assert document_names(plan) == tuple(documents)

"""Statements as documents: what they hold, how they are parsed, and how little they say of an encrypted target."""

import json
from typing import Any

import pytest

from reshard.core.checkpoint.manifest import MAX_STATEMENT_BYTES, Manifest, RankSummary, RunRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.custody.agreement import disagreements
from reshard.core.custody.equivalence import Comparison, EquivalenceStatement, build_equivalence
from reshard.core.custody.provenance import Invocation, ProvenanceStatement, build_provenance
from reshard.core.custody.statements import (
    Dependency,
    Digests,
    FileFacts,
    Statement,
    dump_statement,
    parse_statement,
    uri_of,
    url_of,
)
from reshard.core.errors import TargetError

RUN = RunRecord(
    begun="2026-11-27T01:02:03+00:00",
    seconds=1.5,
    user="ann",
    host="node1",
    read_bytes=8,
    written_bytes=8,
    resumed_ranks=0,
    retried_requests=0,
    peak_memory_bytes=None,
)
MANIFEST = Manifest(
    identity="0123abcd",
    writer="reshard 0.1.0",
    created="2026-11-27T01:02:05+00:00",
    source="/data/run 1/step",
    step="10_5",
    source_world_size=4,
    target_world_size=1,
    format="ckpt",
    verified=VerifyLevel.CONTENT,
    dropped=("a",),
    excused=("b",),
    carried=("c",),
    notes=("said",),
    excluded=("d",),
    ranks=(RankSummary(rank=0, file="rank_0/x.ckpt", size_bytes=8, record_digest="", sha256="ab" * 32),),
    run=RUN,
    fingerprint="f" * 32,
)
SEALED = MANIFEST.model_copy(
    update={"encryption": "AES-GCM", "fingerprint": None}
    | dict.fromkeys(("dropped", "excused", "carried", "notes", "excluded"), ())
)
WHOLE = Dependency(
    name="s.ckpt",
    uri="s3://bucket/s.ckpt",
    digest=Digests(sha256="cd" * 32),
    annotations=FileFacts(role="source_strategy", size_bytes=5, read="whole"),
)
INVOCATION = Invocation(
    parameters={
        "source": "s3://bucket/run?X-Amz-Signature=abc123&x=1",
        "source_storage": "env:STORAGE",
        "encrypt_key": "block:key",
        "include": ["secret.layer.*"],
        "root": "secret.layer",
        "workers": 4,
    },
    dependencies=(WHOLE,),
    versions={"reshard": "0.1.0", "python": "3.12.1"},
    flow_run="5c2e",
)
COMPARISON = Comparison(3, 96, "f" * 32, replicas=True, appended={"epoch": 5}, overflows={"w": 2})


def provenance(manifest: Manifest = MANIFEST) -> dict[str, Any]:
    return json.loads(dump_statement(build_provenance(manifest, INVOCATION)))


def equivalence(manifest: Manifest = MANIFEST, comparison: Comparison = COMPARISON) -> dict[str, Any]:
    return json.loads(dump_statement(build_equivalence(manifest, comparison)))


def test_provenance_is_slsas() -> None:
    document = provenance()
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    assert document["subject"] == [{"name": "rank_0/x.ckpt", "digest": {"sha256": "ab" * 32}}]
    definition, run = document["predicate"]["buildDefinition"], document["predicate"]["runDetails"]
    assert definition["buildType"] == "urn:reshard:conversion:v1"
    assert definition["resolvedDependencies"] == [
        {
            "name": "s.ckpt",
            "uri": "s3://bucket/s.ckpt",
            "digest": {"sha256": "cd" * 32},
            "annotations": {"role": "source_strategy", "sizeBytes": 5, "read": "whole"},
        }
    ]
    assert run["builder"]["version"] == {"reshard": "0.1.0", "python": "3.12.1"}
    assert run["metadata"] == {
        "invocationId": "0123abcd/5c2e",
        "startedOn": "2026-11-27T01:02:03Z",
        "finishedOn": "2026-11-27T01:02:05Z",
    }


def test_names_of_secrets_stay_and_secrets_go() -> None:
    parameters = provenance()["predicate"]["buildDefinition"]["externalParameters"]
    assert (parameters["source_storage"], parameters["encrypt_key"]) == ("env:STORAGE", "block:key")
    assert parameters["source"] == "s3://bucket/run?X-Amz-Signature=…&x=1"


def test_equivalence_says_what_was_compared_and_what_differs_by_declaration() -> None:
    predicate = equivalence()["predicate"]
    assert (predicate["level"], predicate["valuesCompared"], predicate["parametersCompared"]) == ("content", True, 3)
    assert predicate["source"] == {
        "uri": "file:///data/run%201/step",
        "step": "10_5",
        "ranks": 4,
        "fingerprint": "f" * 32,
    }
    assert predicate["target"]["fingerprint"] == "f" * 32
    assert predicate["declared"]["leftOut"] == {
        "excluded": ["d"],
        "dropped": ["a"],
        "excused": ["b"],
        "passedThrough": ["c"],
    }
    assert (predicate["declared"]["appended"], predicate["declared"]["overflows"]) == ({"epoch": 5}, {"w": 2})


def test_values_that_were_not_compared_have_no_fingerprint() -> None:
    checked = MANIFEST.model_copy(update={"verified": VerifyLevel.CHECKSUM, "fingerprint": None})
    predicate = equivalence(checked, Comparison())["predicate"]
    assert (predicate["level"], predicate["valuesCompared"], predicate["method"]) == ("checksum", False, "not compared")
    assert predicate["source"]["fingerprint"] is predicate["target"]["fingerprint"] is None


def test_statements_beside_an_encrypted_target_name_no_parameter_and_no_fingerprint() -> None:
    document, values = provenance(SEALED), equivalence(SEALED)
    internal = document["predicate"]["buildDefinition"]["internalParameters"]
    for part in (internal, values["predicate"]):
        assert part["withheld"] is True
        assert "encrypted" in part["withheldReason"]
    assert values["predicate"]["declared"] is None
    assert values["predicate"]["source"]["fingerprint"] is values["predicate"]["target"]["fingerprint"] is None
    assert "secret.layer" not in json.dumps(document)


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        (build_provenance(MANIFEST, INVOCATION), ProvenanceStatement),
        (build_equivalence(MANIFEST, COMPARISON), EquivalenceStatement),
    ],
)
def test_the_same_content_gives_the_same_bytes(statement: Statement, kind: type[Statement]) -> None:
    data = dump_statement(statement)
    assert dump_statement(parse_statement(data, kind, "x")) == data
    assert list(disagreements(parse_statement(data, kind, "x"), MANIFEST, "x")) == []


@pytest.mark.parametrize("url", ["/a b/ü%20#?/x{rank}.ckpt", "s3://bucket/a%20b"])
def test_uris_lead_back(url: str) -> None:
    assert url_of(uri_of(url)) == url


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"_type": "x", "_type": "x"}', "occurs twice"),
        (b'{"_type": "https://in-toto.io/Statement/v0.1"}', "_type: Input should be"),
        (b'{"a": "\xff"}', "utf-8"),
        (b'{"later": NaN}', "NaN is not JSON"),
    ],
)
def test_malformed_statements_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(TargetError, match=f"^x: not a readable statement: .*{reason}"):
        parse_statement(data, ProvenanceStatement, "x")


def test_a_statement_of_another_kind_is_refused() -> None:
    data = dump_statement(build_equivalence(MANIFEST, COMPARISON))
    with pytest.raises(TargetError, match="predicateType: Input should be 'https://slsa.dev/provenance/v1'"):
        parse_statement(data, ProvenanceStatement, "x")


def test_a_huge_statement_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(TargetError, match="the limit for a statement"):
        parse_statement(bytes(MAX_STATEMENT_BYTES + 1), ProvenanceStatement, "x")


def test_fields_that_are_not_known_are_passed_over() -> None:
    document = provenance() | {"later": 1}
    assert parse_statement(json.dumps(document).encode(), ProvenanceStatement, "x").subject

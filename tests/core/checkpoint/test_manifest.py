"""The records beside a converted checkpoint: public JSON, so what is in them is pinned here."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.changes.changes import Changes, SplitRule
from reshard.core.checkpoint.manifest import (
    Manifest,
    ParameterRecord,
    RankSummary,
    ShardRecord,
    dump_record,
    seal_manifest,
    unseal_manifest,
)
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import TargetError
from reshard.core.layouts.manifests import parse_manifest, parse_shard_record
from reshard.core.runtime.keys import EncryptionMode, Key
from tests.support.records import as_record

RECORD = ShardRecord(
    identity="abc",
    rank=3,
    file="rank_3/checkpoint_3.ckpt",
    size_bytes=2**40,
    copy_of=None,
    source_ranks=(0, 5),
    read_bytes=12,
    seconds=0.1,
    verified=VerifyLevel.CHECKSUM,
    heads=("2f",),
    parameters=(
        ParameterRecord(name="größe.weight", dtype="BFloat16", shape=(2, 3), digest="0f"),
        ParameterRecord(name="scalar", dtype="Int64", shape=(), digest="1f"),
    ),
)
MANIFEST = Manifest(
    identity="abc",
    writer="reshard 0.1.0",
    created="2026-01-02T03:04:05+00:00",
    source="/src",
    step=None,
    source_world_size=4,
    target_world_size=1,
    format="ckpt",
    verified=VerifyLevel.STRUCTURE,
    dropped=("adam_m.w",),
    excused=(),
    carried=("epoch_num",),
    notes=("first\nsecond",),
    ranks=(RankSummary(rank=0, file="rank_0/checkpoint_0.ckpt", size_bytes=5, record_digest="00ff"),),
)
PARSERS: dict[str, tuple[Any, Any]] = {"record": (RECORD, parse_shard_record), "manifest": (MANIFEST, parse_manifest)}


@pytest.mark.parametrize("kind", PARSERS)
def test_dumped_and_parsed_it_is_the_same(kind: str) -> None:
    record, parse = PARSERS[kind]
    data = dump_record(record)
    assert parse(data, "x.json") == record
    assert dump_record(parse(data, "x.json")) == data, "digests of records are over these bytes"
    assert data.endswith(b"}\n")


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
    st.floats(0, 1e9),
    st.integers(0, 2**63),
    st.sampled_from(VerifyLevel),
)
def test_any_content(names: list[str], seconds: float, size_bytes: int, level: VerifyLevel) -> None:
    parameters = tuple(ParameterRecord(name=n, dtype="Int8", shape=(size_bytes,), digest="") for n in names)
    changes = {"parameters": parameters, "seconds": seconds, "size_bytes": size_bytes, "verified": level, "copy_of": 0}
    record = RECORD.model_copy(update=changes)
    assert parse_shard_record(dump_record(record), "x") == record


def test_what_others_may_rely_on() -> None:
    fields = json.loads(dump_record(MANIFEST))
    assert (fields["schema_version"], fields["digest_algorithm"]) == (1, "xxh3_128")
    assert fields["ranks"] == [
        {"rank": 0, "file": "rank_0/checkpoint_0.ckpt", "size_bytes": 5, "record_digest": "00ff", "sha256": None}
    ]
    assert fields["verified"] == "structure"
    fields = json.loads(dump_record(RECORD))
    assert fields["schema_version"] == 1
    assert "sha256" not in fields, "records of earlier versions keep their digests"
    assert fields["parameters"][0] == {"name": "größe.weight", "dtype": "BFloat16", "shape": [2, 3], "digest": "0f"}


def changed(kind: str, **changes: object) -> bytes:
    fields = json.loads(dump_record(PARSERS[kind][0])) | changes
    return as_record({name: value for name, value in fields.items() if value is not ...})


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 2}, "schema_version: Input should be 1"),
        ({"added": 1}, "added: Extra inputs are not permitted"),
        ({"identity": ...}, "identity: Field required"),
        ({"identity": None}, "identity: Input should be a valid string"),
        ({"verified": "perfectly"}, "verified: Input should be 'none', 'structure', 'checksum' or 'content'"),
    ],
)
def test_other_records_are_refused(kind: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(TargetError) as caught:
        PARSERS[kind][1](changed(kind, **changes), "/out/.reshard/x.json")
    assert str(caught.value) == f"/out/.reshard/x.json: not a readable {kind}: {message}"


def test_what_was_changed_is_in_it_and_no_older_one_lacks_anything() -> None:
    changes = Changes(split=(SplitRule(parameters="a", into=("b", "c")),))
    manifest = MANIFEST.model_copy(update={"changes": changes, "excluded": ("secret.w",)})
    data = dump_record(manifest)
    assert parse_manifest(data, "x") == manifest
    newer = ("changes", "excluded", "plan_digest", "digest")
    older = {name: value for name, value in json.loads(data).items() if name not in newer}
    assert parse_manifest(json.dumps(older).encode(), "x") == MANIFEST
    key = Key(b"0123456789abcdef", EncryptionMode.AES_GCM)
    sealed = seal_manifest(manifest, key)
    assert (sealed.changes, sealed.excluded) == (Changes(), ())
    assert b"secret" not in dump_record(sealed)
    opened = unseal_manifest(parse_manifest(dump_record(sealed), "x"), key, "x")
    assert (opened.changes, opened.excluded) == (changes, ("secret.w",))


def test_a_newer_version_is_named_first() -> None:
    with pytest.raises(TargetError, match="x.json: not a readable manifest: schema_version: Input should be 1"):
        parse_manifest(changed("manifest", schema_version=2, added=1, ranks=..., step=5), "x.json")


def test_a_layout_of_a_later_version_is_named() -> None:
    with pytest.raises(TargetError, match="x.json: not a readable manifest: layout 'paper' is unknown"):
        parse_manifest(changed("manifest", layout="paper"), "x.json")


def test_what_is_wrong_inside_is_found() -> None:
    bad = [{"rank": 0, "file": "f", "size_bytes": "large", "record_digest": ""}]
    with pytest.raises(
        TargetError, match="x: not a readable manifest: ranks.0.size_bytes: Input should be a valid int"
    ):
        parse_manifest(changed("manifest", ranks=bad), "x")


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"\x89PNG\r\n", b'{"a":' * 300])
def test_garbage_is_refused(kind: str, data: bytes) -> None:
    with pytest.raises(TargetError, match=f"/out/x.json: not a readable {kind}: the file: "):
        PARSERS[kind][1](data, "/out/x.json")


@pytest.mark.parametrize("kind", PARSERS)
def test_a_truncated_record_is_refused(kind: str) -> None:
    record, parse = PARSERS[kind]
    data = dump_record(record).rstrip()
    for length in range(0, len(data), 7):
        with pytest.raises(TargetError):
            parse(data[:length], "x")


PLACES = [
    "../../x",
    "/etc/passwd",
    "rank_3/../../x",
    "rank_3/..",
    "rank_3/.",
    "rank_3/a/b",
    "rank_4/a.ckpt",
    "rank_٣/a",
    "",
]


@pytest.mark.parametrize("file", [*PLACES, "rank_3/a\\b", "rank_3/a\0b", "rank_03/a.ckpt", "notes.txt", "rank_3"])
def test_a_file_where_no_conversion_writes_it(file: str) -> None:
    with pytest.raises(TargetError, match="^x: says that the file of rank_3 is .*, where no conversion writes it"):
        parse_shard_record(changed("record", file=file), "x")
    summary = {"rank": 3, "file": file, "size_bytes": 5, "record_digest": "00ff"}
    with pytest.raises(TargetError, match="^x: says that the file of rank_3 is .*, where no conversion writes it"):
        parse_manifest(changed("manifest", ranks=[summary]), "x")


@pytest.mark.parametrize(
    "file", ["rank_3/größe 3_part{0,1}.ckpt", "rank_3/..a", "part3.safetensors", "model.safetensors"]
)
def test_files_where_conversions_write_them(file: str) -> None:
    assert parse_shard_record(changed("record", file=file), "x").file == file


@pytest.mark.parametrize("file", [*PLACES, "rank_0/checkpoint_0.ckpt", "part0.safetensors", "x.safetensors.index.json"])
def test_an_index_that_no_conversion_writes(file: str) -> None:
    index = {"file": file, "size_bytes": 5, "digest": "00ff"}
    with pytest.raises(TargetError, match="^x: names its index .*, which no conversion does"):
        parse_manifest(changed("manifest", index=index), "x")

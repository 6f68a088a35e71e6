"""Records beside checkpoints: manifest, records, plan, leases, also sealed; lists of faulty ranks, weight maps."""

import atexit
import json
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from reshard.core.checkpoint.manifest import dump_record
from reshard.core.checkpoint.self_digest import add_digest, split_digest
from reshard.core.conversion.convert import convert
from reshard.core.custody.agreement import disagreements
from reshard.core.custody.attestation import Attestation
from reshard.core.custody.equivalence import EquivalenceStatement
from reshard.core.custody.provenance import ProvenanceStatement
from reshard.core.custody.reading import KINDS
from reshard.core.custody.statements import dump_statement, parse_statement
from reshard.core.errors import InputError, TargetError
from reshard.core.layouts.manifests import parse_manifest, parse_shard_record
from reshard.core.layouts.weight_maps import read_weight_map
from reshard.core.mindspore_api.elastic import parse_fault_ranks
from reshard.core.records.plan_file import load_plan, load_sources
from reshard.core.request.conversion import build_request
from reshard.core.runtime.keys import EncryptionMode, Key
from reshard.core.runtime.sealing import seal, unseal
from reshard.core.storage.leases.lease_holder import parse_holder
from reshard.core.storage.urls import parse_url
from tests.fuzz.mutations import damaged_gzip, damaged_json
from tests.fuzz.parsers import Parser
from tests.support.places import FIXTURES

_ORIGIN = "hostile_record"


@cache
def _directory() -> Path:
    """Where a converted checkpoint is, and hostile files are put."""
    directory = Path(tempfile.mkdtemp(prefix="reshard-fuzz-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    case = FIXTURES / "conversions/case_7010"
    strategies = {
        "source_strategy": str(case / "src_strategy.ckpt"),
        "target_strategy": str(case / "dst_strategy.ckpt"),
    }
    convert(build_request(source=str(case / "src"), target=str(directory / "target"), sha256="target", **strategies))
    return directory


def _state() -> Path:
    return _directory() / "target/.reshard"


def _manifests() -> list[bytes]:
    return [split_digest((_state() / "manifest.json").read_bytes())[0]]


def _statements() -> list[bytes]:
    return [(_state() / name).read_bytes() for name in KINDS]


def _parse_statement(data: bytes) -> None:
    kind = ProvenanceStatement if b"slsa" in data else EquivalenceStatement
    statement = parse_statement(data, kind, _ORIGIN)
    assert parse_statement(dump_statement(statement), kind, _ORIGIN) == statement
    manifest = parse_manifest(add_digest(_manifests()[0]), _ORIGIN)
    assert all(problem.startswith(f"{_ORIGIN}: ") for problem in disagreements(statement, manifest, _ORIGIN))
    document = json.loads(data)
    provenance, equivalence = (document, None) if b"slsa" in data else (None, document)
    shown = str(Attestation(target=_ORIGIN, provenance=provenance, equivalence=equivalence, signatures=()))
    assert shown.replace("\n", "").isprintable()


def _records() -> list[bytes]:
    return [split_digest(path.read_bytes())[0] for path in sorted((_state() / "records").iterdir())[:3]]


def _parse_manifest(data: bytes) -> None:
    manifest = parse_manifest(add_digest(data), _ORIGIN)
    assert parse_manifest(dump_record(manifest), _ORIGIN) == manifest


def _parse_record(data: bytes) -> None:
    record = parse_shard_record(add_digest(data), _ORIGIN)
    assert parse_shard_record(dump_record(record), _ORIGIN) == record


def _plans() -> list[bytes]:
    return [(_state() / "plan.json.gz").read_bytes()]


def _parse_plan(data: bytes) -> None:
    place = parse_url(f"memory:///fuzz/{_ORIGIN}.json.gz")
    place.store.put(place.path, data)
    with suppress(TargetError):
        load_sources.__wrapped__(str(place), "")
    try:
        load_plan.__wrapped__(str(place), "of nobody")
    except TargetError as error:
        if "not of nobody" not in str(error):
            raise


def _leases() -> list[bytes]:
    lease = b'{"run": "1f", "host": "a", "user": "b", "process": 7, "started": "2026-01-02", "ranks": [0, 3]'
    return [lease + b"}", lease + b', "renewal": 3}']


def _parse_lease(data: bytes) -> None:
    holder = parse_holder(data, _ORIGIN)
    assert str(holder)
    assert set(holder.ranks) | {0}  # they are compared with others'


def _fault_lists() -> list[bytes]:
    return [b'{"FaultRankIds":["0","12"],"CreatTime":1}', b'{"FaultRankIds":"[\\"0\\", \\"12\\"]"}', b'["07", 3]']


def _parse_fault_list(data: bytes) -> None:
    assert all(int(rank) >= 0 for rank in parse_fault_ranks(data, _ORIGIN))


_KEY = Key(b"0123456789abcdef", EncryptionMode.AES_GCM)


def _sealed() -> list[bytes]:
    return [seal(b"{}" * 50, _KEY, "plan"), seal(b"", _KEY, "plan"), b"{}"]


def _unseal(data: bytes) -> None:
    for key in (_KEY, None):
        try:
            unseal(data, key, "plan", _ORIGIN)
        except InputError as error:
            assert _ORIGIN in str(error)


def _weight_maps() -> list[bytes]:
    return [
        b'{"metadata":{"total_size":8},"weight_map":{"a.b":"part0.safetensors","c":"part1.safetensors"}}',
        b'{"a":"b"}',
    ]


def _parse_weight_map(data: bytes) -> None:
    place = parse_url(f"memory:///fuzz/{_ORIGIN}.json")
    place.store.put(place.path, data)
    assert all(isinstance(path, str) for path in read_weight_map(place).values())


SEALED = Parser("sealed", _sealed, _unseal, (), _ORIGIN)
WEIGHT_MAP = Parser("weight-map", _weight_maps, _parse_weight_map, (damaged_json,), _ORIGIN)
MANIFEST = Parser("manifest", _manifests, _parse_manifest, (damaged_json,), _ORIGIN)
STATEMENT = Parser("statement", _statements, _parse_statement, (damaged_json,), _ORIGIN)
RECORD = Parser("record", _records, _parse_record, (damaged_json,), _ORIGIN)
# it may be compressed 250 times
PLAN = Parser("plan", _plans, _parse_plan, (damaged_gzip,), _ORIGIN, memory_factor=250 * 64)
LEASE = Parser("lease", _leases, _parse_lease, (damaged_json,), _ORIGIN)
FAULT_LIST = Parser("fault-list", _fault_lists, _parse_fault_list, (damaged_json,), _ORIGIN)

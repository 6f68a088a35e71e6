"""What fuzzing found, each mended: named after its symptom."""

import gzip
import json
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.core.conversion.planning import make_plan
from reshard.core.errors import CheckpointError, InputError, LimitError, StrategyError, TargetError
from reshard.core.files.map_parameters import parse_map_parameter
from reshard.core.layouts.checkpoint2.metadata import parse_metadata
from reshard.core.layouts.manifests import parse_manifest, parse_shard_record
from reshard.core.options.fields import parse_ranks
from reshard.core.records.plan_file import load_plan, load_sources, load_target_strategy, rebuild_plan
from reshard.core.request.conversion import build_request
from reshard.core.runtime.metadata import metadata_limited
from reshard.core.storage.leases.lease_holder import parse_holder
from reshard.core.storage.named_options import resolve_storages
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.groups import parse_groups
from reshard.core.text.secrets import carries_credentials, scrubbed
from tests.fuzz import checkpoints, iterations, presets, records, strategies
from tests.fuzz.engine import outcome
from tests.support.places import FIXTURES

_DEEP = 100_000


def test_a_shape_of_thousands_of_digits_is_refused_not_printed() -> None:
    nines = "9" * 4000
    header = f'{{"w":{{"dtype":"F32","shape":[{nines},{nines}],"data_offsets":[0,4]}}}}'.encode()
    data = len(header).to_bytes(8, "little") + header + b"abcd"
    assert outcome(checkpoints.SAFETENSORS, data) == ("", False)


def test_a_number_of_hundreds_of_digits_in_common_json_is_refused() -> None:
    assert outcome(iterations.COMMON, b'{"step_num": ' + b"9" * 400 + b"}") == ("", False)


def test_a_single_entry_does_not_make_a_job_of_a_million_ranks() -> None:
    document = json.loads(max(iterations.METADATA.seeds(), key=lambda seed: seed.count(b"null")))
    name = next(name for name, tensor in document["state_dict_metadata"].items() if tensor["layout"] is None)
    file = "model-0000099-0000004.safetensors"
    entry = {"file_name": file, "storage_rank": 2**20 - 1, "rank_group": [0]}
    document["storage_data"][f"('{name}', (0,))"].append(entry)
    with pytest.raises(StrategyError) as caught:
        parse_metadata(json.dumps(document).encode(), "hostile")
    assert str(caught.value) == f"hostile: says that rank_1048575 wrote {file}, but is too short for so many ranks"


@pytest.mark.parametrize("text", [b'{"a":' * _DEEP, b"[" * _DEEP], ids=["objects", "lists"])
def test_a_deeply_nested_lease_is_no_recursion_error(text: bytes) -> None:
    with pytest.raises(TargetError, match="the lease: not a readable lease"):
        parse_holder(text, "the lease")


@pytest.mark.parametrize(
    "change", [{"ranks": [{}]}, {"ranks": ["0"]}, {"ranks": [True]}, {"run": "../../other"}, {"run": 7}], ids=str
)
def test_a_lease_of_odd_ranks_or_of_a_run_elsewhere_is_refused(change: dict[str, object]) -> None:
    fields = {"run": "1f", "host": "a", "user": "b", "process": 7, "started": "2026", "ranks": [0]}
    parse_holder(json.dumps(fields).encode(), "the lease")
    with pytest.raises(TargetError, match="the lease: not a readable lease"):
        parse_holder(json.dumps(fields | change).encode(), "the lease")


def test_deeply_nested_storage_options_are_no_recursion_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP", '{"a":' * 20_000)
    with pytest.raises(InputError, match="env:DEEP: is not a JSON object of storage options"):
        resolve_storages([("s3://bucket/x", "env:DEEP")])


def test_an_option_whose_name_is_no_text_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="must be a valid string"):
        build_request(**{"source": "/x", "target": "/y", "\ud800": ""})


@pytest.mark.parametrize("unit", ["://", "://a?&", "://:", "://a:1", "?&"])
def test_looking_for_credentials_takes_no_minutes_however_odd_the_url(unit: str) -> None:
    began = time.process_time()
    assert not carries_credentials(unit * (500_000 // len(unit)))
    assert time.process_time() - began < 20


@pytest.mark.parametrize("text", ["://" + ":" * 500_000, "://:" * 200_000, "a" * 500_000, "accesskeyid" * 50_000])
def test_removing_secrets_takes_no_minutes_however_odd_the_text(text: str) -> None:
    began = time.process_time()
    assert scrubbed(text) == text
    assert time.process_time() - began < 20


def test_ranks_that_are_asked_for_again_and_again_are_counted_once() -> None:
    began = time.process_time()
    assert parse_ranks("0-999999," * 40_000 + "7, 999999-1000000") == tuple(range(1_000_001))
    assert time.process_time() - began < 20


@pytest.mark.parametrize(("parse", "field"), [(parse_manifest, "ranks"), (parse_shard_record, "parameters")])
def test_a_record_of_many_errors_is_refused_by_the_first(parse: Callable[[bytes, str], object], field: str) -> None:
    seed = (records._manifests() if field == "ranks" else records._records())[0]
    data = json.dumps(json.loads(seed) | {field: [0] * 200_000}).encode()
    tracemalloc.start()
    try:
        with pytest.raises(TargetError, match=f"the record: not a readable .*: {field}.0: Input should be"):
            parse(data, "the record")
        assert tracemalloc.get_traced_memory()[1] < 64 * len(data)
    finally:
        tracemalloc.stop()


def test_a_strategy_of_far_more_ranks_than_there_are_is_refused_within_seconds(tmp_path: Path) -> None:
    layout = {"dev_matrix": [2] * 15, "tensor_map": [0], "field": 0}
    layout |= {"opt_weight_shard_step": 0, "opt_weight_shard_size": 0}
    strategy = tmp_path / "huge.json"
    strategy.write_text(json.dumps({"parallel_layout_item": {"w": layout}}))
    source = FIXTURES / "conversions/case_7010/src"
    began = time.process_time()
    with pytest.raises(InputError, match="the source strategy has 32768 ranks"):
        make_plan(build_request(source=str(source), target=str(tmp_path / "x"), source_strategy=str(strategy)))
    assert time.process_time() - began < 60


def _plan_file(name: str, data: bytes) -> str:
    place = parse_url(f"memory:///found/{name}")
    place.store.put(place.path, data)
    return str(place)


def test_a_plan_that_unpacks_to_far_more_than_it_takes_is_refused_before_it_does() -> None:
    url = _plan_file("bomb.json.gz", gzip.compress(b'{"a":"' + b" " * (16 << 20) + b'"}'))
    tracemalloc.start()
    try:
        with pytest.raises(TargetError, match="bomb.json.gz: not a readable plan: it is cut off, or unpacks to more"):
            load_sources(url, "")
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


def test_a_plan_of_too_many_lists_is_refused_before_all_of_it_is_unpacked() -> None:
    chance = random.Random(7)
    lists = b"".join(b"[]," * 460 + b'"%05x",' % chance.getrandbits(20) for _ in range(20_000))
    url = _plan_file("lists.json.gz", gzip.compress(b'{"a":[' + lists + b"[]]}", 1))
    tracemalloc.start()
    try:
        with metadata_limited(1), pytest.raises(LimitError, match="lists.json.gz: reading its metadata would take"):
            load_sources(url, "")
        assert tracemalloc.get_traced_memory()[1] < len(lists) // 3
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "load",
    [
        load_plan,
        load_sources,
        lambda url, _, digest: rebuild_plan(url, digest),
        lambda url, identity, digest: load_target_strategy(url, identity, digest, encrypted=False),
    ],
    ids=["plan", "sources", "rebuilt", "strategy"],
)
def test_a_plan_that_is_not_the_manifest_s_is_not_unpacked(load: Callable[[str, str, str], object]) -> None:
    url = _plan_file("changed.json.gz", gzip.compress(b'{"a":"' + random.Random(7).randbytes(1 << 20).hex().encode()))
    tracemalloc.start()
    try:
        with pytest.raises(TargetError, match="changed.json.gz: is not the plan that was written: it was changed"):
            load(url, "", "0" * 32)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


def test_a_deeply_nested_plan_is_no_recursion_error() -> None:
    url = _plan_file("deep.json.gz", gzip.compress(b'{"a":' * _DEEP, compresslevel=1))
    with pytest.raises(TargetError, match="deep.json.gz: not a readable plan"):
        load_plan(url, "")


def test_a_plan_that_cannot_be_made_again_is_refused_by_its_file_name() -> None:
    document = json.loads(gzip.decompress(records._plans()[0]))
    catalog = document["catalog"] | {"records": document["catalog"]["records"][:1]}
    for change in ({"encryption": "AES-GCM"}, {"catalog": catalog}):
        url = _plan_file("changed.json.gz", gzip.compress(json.dumps(document | change).encode()))
        load_plan.cache_clear()
        with pytest.raises(TargetError, match="changed.json.gz: not a readable plan: "):
            load_plan(url, "")


def test_a_deeply_nested_weight_map_is_no_recursion_error() -> None:
    assert outcome(records.WEIGHT_MAP, b"[" * _DEEP) == ("", False)


@pytest.mark.parametrize("name", [b",", b"f4,f4", b"("])
def test_a_map_parameter_whose_type_is_no_word_is_no_syntax_error(name: bytes) -> None:
    tensor = b"\x08\x01\x12" + bytes([len(name)]) + name + b"\x1a\x04abcd"
    with pytest.raises(CheckpointError, match="map parameter 'm': .* is not an element type: damaged"):
        parse_map_parameter([b"\x0a" + bytes([len(tensor)]) + tensor], "m")


def test_groups_of_ranks_in_the_billions_are_refused_not_counted() -> None:
    with pytest.raises(StrategyError, match="groups: has rank 3709551615, beyond 1048576"):
        parse_groups(b"[[0], [3709551615]]", "groups")
    with pytest.raises(StrategyError, match="groups: has rank 4294967295, beyond 1048576"):
        parse_groups(b"\x12\x06\x08\xff\xff\xff\xff\x0f", "groups")


def test_a_group_with_a_high_rank_takes_no_memory_for_those_below() -> None:
    assert outcome(strategies.GROUPS, b"[[0, 65536]]", measured=True) == ("", False)


def test_a_deeply_nested_preset_is_refused_at_once() -> None:
    assert outcome(presets.PRESET, b"preset: " + b"[" * _DEEP) == ("", False)

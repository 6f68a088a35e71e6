"""The memory for parsing is estimated before parsing, and bounded for all threads together."""

import json
import threading
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from reshard.core.checkpoint.manifest import ParameterRecord
from reshard.core.errors import CatalogError, LimitError
from reshard.core.runtime import metadata
from reshard.core.runtime.metadata import (
    Parse,
    check_metadata,
    check_unique_keys,
    json_bytes,
    load_json,
    metadata_limit_bytes,
    metadata_limited,
    parse_json,
    parsing,
    protobuf_bytes,
    records_bytes,
    refuse_constant,
)
from reshard.core.strategy.protobuf_file import parse_protobuf
from tests.support.ckpt_writer import blob
from tests.support.patience import PATIENCE_SECONDS

SIZE_BYTES = 200_000


def repeated(value: str) -> bytes:
    return ("[" + value * (SIZE_BYTES // len(value.encode())) + "0]").encode()


DOCUMENTS = {
    "empty lists": repeated("[],"),
    "lists of one": repeated("[1],"),
    "nested lists": repeated("[" * 300 + "]" * 300 + ","),
    "empty objects": repeated("{},"),
    "objects of one": repeated('{"":0},'),
    "objects of six": repeated('{"a":0,"b":1,"c":2,"d":3,"e":4,"f":5},'),
    "integers": repeated("999,"),
    "fractions": repeated("1.5,"),
    "short texts": repeated('"aa",'),
    "texts that are not ASCII": repeated('"\u00e9b",'),
    "wide texts": repeated('"\U0001f600",'),
    "escaped texts": repeated('"' + r"\ud83d\ude00" + "a" * 500 + '",'),
    "one wide text makes all wide": repeated('"' + "a" * 500 + '",')[:-2] + '"\U0001f600"]'.encode(),
    "one object": json.dumps({f"{number:x}": number for number in range(SIZE_BYTES // 12)}).encode(),
    "a header": json.dumps(
        {
            f"model.layers.{number}.attention.weight": {
                "dtype": "F32",
                "shape": [4096, 4096],
                "data_offsets": [number * 67_108_864, (number + 1) * 67_108_864],
            }
            for number in range(SIZE_BYTES // 130)
        }
    ).encode(),
}


@pytest.fixture(autouse=True)
def _low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "MIN_LIMIT_BYTES", 0)


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_parsing_json_takes_no_more_memory_than_was_estimated(kind: str) -> None:
    data = DOCUMENTS[kind]
    tracemalloc.start()
    try:
        load_json(data, kind)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes <= json_bytes(data)


def test_a_real_header_is_not_estimated_at_more_than_three_times_what_it_takes() -> None:
    tracemalloc.start()
    try:
        load_json(DOCUMENTS["a header"], "a header")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert json_bytes(DOCUMENTS["a header"]) < 3 * peak_bytes


def test_members_that_a_record_does_not_know_are_estimated_as_errors() -> None:
    known = json.dumps([{"name": "a", "dtype": "b", "shape": [], "digest": "c"}] * 100, separators=(",", ":")).encode()
    unknown = known.replace(b'"name"', b'"nome"')
    fields = ParameterRecord.model_fields
    assert records_bytes(unknown, fields) - records_bytes(known, fields) == 100 * 1800


def test_what_would_take_more_than_the_limit_is_refused_by_name() -> None:
    with metadata_limited(1 << 20):
        check_metadata(1 << 20, "rank_0")
        with pytest.raises(LimitError) as raised:
            check_metadata(3 << 20, "rank_0")
    assert str(raised.value) == (
        "rank_0: reading its metadata would take 3.0 MiB of memory, more than the limit of 1.0 MiB: damaged, or made "
        "to fill the memory. If it is intact, raise 'memory_limit'"
    )


def test_a_document_is_refused_before_it_is_parsed() -> None:
    with metadata_limited(1 << 20), pytest.raises(LimitError, match="plan.json: reading its metadata would take"):
        load_json(b"[" * SIZE_BYTES, "plan.json")  # parsed, it would be a RecursionError


def test_a_strategy_of_empty_messages_is_refused_before_it_is_parsed() -> None:
    data = blob(2, blob(1, b"a") + blob(2, b"\x08\0" + b"\x12\0" * SIZE_BYTES))
    with metadata_limited(1 << 20), pytest.raises(LimitError, match="strategy.ckpt: reading its metadata would take"):
        parse_protobuf(data, "strategy.ckpt")
    assert protobuf_bytes(data) > SIZE_BYTES * 64


def test_metadata_gets_512_mib_however_little_the_buffers_get(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with metadata_limited(16 << 20):
        assert metadata_limit_bytes() == 512 << 20


def test_what_a_parse_takes_adds_up() -> None:
    with metadata_limited(1 << 20), parsing("rank_0") as parse:
        parse.take(600 << 10)
        with pytest.raises(LimitError, match="would take 1.2 MiB"):
            parse.take(600 << 10)


def test_large_parses_run_one_after_another_and_small_ones_at_once() -> None:
    together = threading.Barrier(4)
    under_way: list[str] = []

    def small(_: int) -> None:
        with metadata_limited(64 << 20), parsing("small") as parse:
            parse.take(1 << 20)
            together.wait(timeout=PATIENCE_SECONDS)

    def large(number: int) -> int:
        with metadata_limited(64 << 20), parsing("large") as parse:
            parse.take(1 << 20)
            together.wait(timeout=PATIENCE_SECONDS)
            parse.take(40 << 20)
            under_way.append("large")
            most = len(under_way)
            for _ in range(1000):
                most = max(most, len(under_way))
            under_way.pop()
            return most

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(small, range(4)))
        assert list(pool.map(large, range(4))) == [1, 1, 1, 1]


def test_a_large_parse_that_fails_lets_the_next_one_begin() -> None:
    def parse_and_fail() -> None:
        with metadata_limited(1 << 20), parsing("rank_0") as parse:
            parse.take(900 << 10)
            raise ValueError("damaged")

    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="damaged"):
        pool.submit(parse_and_fail).result()
    with metadata_limited(1 << 20):
        parse = Parse("rank_1")
        parse.take(900 << 10)  # would wait for ever
        parse.end()


def test_an_error_does_not_keep_what_was_parsed() -> None:
    class Large:
        pass

    large: weakref.ref[Large] | None = None

    def read() -> None:
        nonlocal large
        header = Large()
        large = weakref.ref(header)
        try:
            raise ValueError("the first")
        except ValueError:
            raise LimitError("damaged") from None

    def parse() -> None:
        with parsing("rank_0"):
            read()

    with pytest.raises(LimitError) as raised:
        parse()
    assert raised.value is not None
    assert large is not None
    assert large() is None


@pytest.mark.parametrize("document", [b'{"a": 1, "b": 2, "a": 1}', b'{"b": [{"c": {"a": 1, "\\u0061": 2}}]}'])
def test_a_key_that_is_there_twice_is_refused_in_every_document(document: bytes) -> None:
    with pytest.raises(ValueError, match="'a' occurs twice in one object"):
        load_json(document, "a document")
    with pytest.raises(ValueError, match="'a' occurs twice in one object"):
        check_unique_keys(document)
    check_unique_keys(b'[{"a": 1}, {"a": 1}]')


def test_keys_are_compared_without_keeping_what_they_lead_to() -> None:
    document = b"[" + b",".join([b'{"a": {"b": [1, 2, 3]}}'] * 20_000) + b"]"
    tracemalloc.start()
    try:
        check_unique_keys(document)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(document)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[NaN]", "NaN is not JSON"),
        (b'{"a": 1, "a": 2}', "'a' occurs twice in one object"),
    ],
)
def test_what_is_not_json_is_refused_with_its_name_and_the_reason(document: bytes, reason: str) -> None:
    with pytest.raises(CatalogError) as refused:
        parse_json(document, "common.json", CatalogError, constants=refuse_constant)
    assert str(refused.value) == f"common.json: is not valid JSON: {reason}"


def test_a_reason_of_any_length_is_shortened() -> None:
    key = "a" * 10_000
    with pytest.raises(CatalogError) as refused:
        parse_json(f'{{"{key}": 1, "{key}": 2}}'.encode(), "common.json", CatalogError)
    assert len(str(refused.value)) == len("common.json: is not valid JSON: ") + 200

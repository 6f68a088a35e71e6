"""What may be asked for, and how the rest is refused: by the option's name on the command line."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reshard.core.errors import InputError
from reshard.core.request.changes import OverflowPolicy, Selection
from reshard.core.request.conversion import (
    ConversionRequest,
    OutputFormat,
    TargetLayout,
    UnmatchedPolicy,
    VerifyLevel,
    build_request,
)
from reshard.core.request.fields import parse_ranks, parse_size
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.storage.unified_names import UnifiedNaming


def request(**options: object) -> ConversionRequest:
    return build_request(**({"source": "/src", "target": "/out"} | options))


def refusal(**options: object) -> str:
    with pytest.raises(InputError) as caught:
        request(**options)
    return str(caught.value)


# ---- the form ----


def test_two_fields_are_enough() -> None:
    asked = build_request(source="/src", target="/out")
    assert asked.model_dump(exclude={"source", "target"}) == {
        "source_strategy": "",
        "target_strategy": "",
        "source_storage": "",
        "target_storage": "",
        "format": OutputFormat.SAME,
        "prefix": "checkpoint_",
        "source_prefix": "",
        "workers": 0,
        "memory_limit": "2GiB",
        "verify": VerifyLevel.CHECKSUM,
        "check_crc": True,
        "unmatched": UnmatchedPolicy.DROP,
        "allow_missing": [],
        "decrypt_key": "",
        "decrypt_mode": EncryptionMode.AES_GCM,
        "encrypt_key": "",
        "encrypt_mode": EncryptionMode.AES_GCM,
        "write_crc": False,
        "append_info": [],
        "layout": TargetLayout.RANKS,
        "max_shard_size": "5GB",
        "unified_naming": UnifiedNaming.HUGGINGFACE,
        "select": Selection.ALL,
        "include": [],
        "exclude": [],
        "rename": [],
        "cast": [],
        "cast_overflow": OverflowPolicy.FAIL,
        "transpose": [],
        "changes": "",
        "remove_redundancy": False,
        "replicas": 1,
        "check_replicas": False,
        "integrated_save": "auto",
        "trust_strategy": False,
        "shared_parameters": "first",
        "recover": False,
        "fault_ranks": "",
        "dask_scheduler": "",
        "concurrency_limit": "",
        "step": "",
        "ranks": "",
        "overwrite": False,
    }
    assert asked.memory_limit_bytes == 2 * 2**30


def test_defaults_are_valid() -> None:
    asked = build_request(source="/src", target="/out")
    assert build_request(**asked.model_dump(mode="json")) == asked


def test_the_form_describes_every_field() -> None:
    schema = ConversionRequest.model_json_schema()
    assert schema["required"] == ["source", "target"]
    assert schema["additionalProperties"] is False
    titles = [field["title"] for field in schema["properties"].values()]
    assert len(set(titles)) == len(titles) == len(ConversionRequest.model_fields)
    for name, field in schema["properties"].items():
        assert len(field["description"]) > 20, name
        assert "anyOf" not in field, f"{name} would be shown as a choice of types"


def test_a_request_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        request().source = "/other"


# ---- refusals ----


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"source": ""}, "SOURCE '': String should have at least 1 character"),
        ({"target": ""}, "TARGET '': String should have at least 1 character"),
        ({"target": 5}, "TARGET 5: Input should be a valid string"),
        ({"source_strategy": None}, "--source-strategy None: Input should be a valid string"),
        ({"format": "npz"}, "--format 'npz': Input should be 'same', 'ckpt' or 'safetensors'"),
        ({"verify": "all"}, "--verify 'all': Input should be 'none', 'structure', 'checksum' or 'content'"),
        ({"unmatched": "keep"}, "--unmatched 'keep': Input should be 'drop' or 'fail'"),
        ({"workers": -1}, "--workers -1: Input should be greater than or equal to 0"),
        ({"workers": 1025}, "--workers 1025: Input should be less than or equal to 1024"),
        ({"workers": "many"}, "--workers 'many': Input should be a valid integer"),
        ({"memory_limit": "16MB"}, "--memory-limit '16MB': must be at least 16MiB"),
        ({"memory_limit": "lots"}, "--memory-limit 'lots': must be a size such as 512MiB or 2GiB"),
        ({"ranks": "0-"}, "--ranks '0-': must be ranks such as 0-3,7"),
        ({"dask_scheduler": "10.0.0.5"}, "--dask-scheduler '10.0.0.5': must be the address of a Dask scheduler"),
        ({"step": "10"}, "--step '10': must be EPOCH_STEP, such as 10_5, or EPOCH_STEP_breakpoint"),
        ({"allow_missing": ["a", 5]}, "--allow-missing 5: Input should be a valid string"),
        ({"allow_missing": "adam_*"}, "--allow-missing 'adam_*': Input should be a valid list"),
        ({"overwrite": "perhaps"}, "--overwrite 'perhaps': Input should be a valid boolean"),
        ({"target_strat": "x"}, "--target-strat 'x': Extra inputs are not permitted"),
    ],
)
def test_refusals(options: dict[str, object], told: str) -> None:
    assert refusal(**options).startswith(told)


def test_what_is_missing_is_named_alone() -> None:
    with pytest.raises(InputError) as caught:
        build_request(source="/src", ranks="1")
    assert str(caught.value) == "TARGET: Field required"


def test_all_that_is_wrong_is_told_at_once() -> None:
    lines = refusal(ranks="x", step="y", workers=-1).splitlines()
    assert [line.split()[0] for line in lines] == ["--workers", "--step", "--ranks"]


@pytest.mark.parametrize("prefix", ["a/b", "/", "..", "a..b", ".hidden", "a\\b", "a\0"])
def test_prefixes_that_lead_elsewhere(prefix: str) -> None:
    assert refusal(prefix=prefix) == f"--prefix {prefix!r}: must be a plain name: no '/', no '..', no dot in front"


@pytest.mark.parametrize("prefix", ["", "checkpoint_", "net-10_5_", "a.b ü"])
def test_plain_prefixes(prefix: str) -> None:
    assert request(prefix=prefix).prefix == prefix


@pytest.mark.parametrize("step", ["", "10_5", "0_0", "10_5_breakpoint"])
def test_steps(step: str) -> None:
    assert request(step=step).step == step


@pytest.mark.parametrize("step", ["10-5", "10_5_", "_5", "10_5_6", "10_5_Breakpoint", " 10_5", "10_5\n", "-1_5"])
def test_what_is_no_step(step: str) -> None:
    assert "must be EPOCH_STEP" in refusal(step=step)


# ---- sizes ----


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1024", 1024),
        ("1024B", 1024),
        ("2GiB", 2**31),
        ("2gib", 2**31),
        ("0.5 GiB", 2**29),
        (" 512 MiB ", 2**29),
        ("1.5KB", 1500),
        ("3MB", 3_000_000),
        ("4GB", 4 * 10**9),
        ("1TB", 10**12),
        ("1TiB", 2**40),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1e9", "1,5GiB", "1.GiB", "2 G B", "2PiB", "2G", "inf", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="must be a size such as 512MiB or 2GiB"):
        parse_size(text)


def test_a_size_beyond_all_measure() -> None:
    assert request(memory_limit="9" * 400 + "GiB").memory_limit_bytes > 10**400


@given(st.integers(0, 2**70), st.sampled_from(["", "B", "KiB", "MiB", "GiB", "TiB"]))
def test_whole_sizes_are_exact(count: int, unit: str) -> None:
    factor = 1 if unit in ("", "B") else 1024 ** ("KMGT".index(unit[0]) + 1)
    assert parse_size(f"{count}{unit}") == count * factor


def test_the_smallest_memory_limit() -> None:
    assert request(memory_limit="16MiB").memory_limit_bytes == 16 * 2**20
    assert "must be at least 16MiB" in refusal(memory_limit="16777215")


# ---- ranks and workers ----


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("", ()),
        ("  ", ()),
        ("5", (5,)),
        ("0-3,7", (0, 1, 2, 3, 7)),
        ("7, 2 - 3 ,3", (2, 3, 7)),
        ("4-4", (4,)),
        ("1,2,", (1, 2)),
        ("1000000", (1_000_000,)),
    ],
)
def test_ranks(text: str, ranks: tuple[int, ...]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["-1", "3-1", "a", "1-2-3", "0x1", "1;2", "1 2", ",", " , ,", "0-1000001", "1.5"])
def test_what_are_no_ranks(text: str) -> None:
    with pytest.raises(ValueError, match="must be ranks such as 0-3,7"):
        parse_ranks(text)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_any_list_of_ranks(ranks: set[int]) -> None:
    assert parse_ranks(",".join(map(str, ranks))) == tuple(sorted(ranks))


def test_chosen_ranks() -> None:
    everything = range(8, 16)
    assert request().chosen_ranks(everything) == tuple(everything)
    assert request(ranks=" ").chosen_ranks(everything) == tuple(everything)
    assert request(ranks="15,8-9").chosen_ranks(everything) == (8, 9, 15)
    with pytest.raises(InputError, match="--ranks 0-20: the target has ranks 8 to 15, not 0, 1, 2, 3, 4, 5, 6, 7$"):
        request(ranks="0-20").chosen_ranks(everything)


def test_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert request(workers=3).worker_count == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5})
    assert request().worker_count == 3

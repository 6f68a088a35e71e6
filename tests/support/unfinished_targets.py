"""Conversions that an earlier version has begun, in fsspec's memory: sources, unfinished targets, and the options.

`python -m tests.support.unfinished_targets` makes the targets of tests/fixtures/unfinished anew, by the version that is
installed. That is due when the version's number changes, since plans of another version are never resumed, and not when
its code does.
"""

import datetime
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec

import reshard
from tests.support.places import FIXTURES

UNFINISHED = FIXTURES / "unfinished"
_SAVED = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
"""Versions of files in memory are the times when they were made."""
_SOURCES = "memory:///fixtures"
_TARGETS = "memory:///unfinished"
_CHECKPOINT2 = f"{_SOURCES}/checkpoint2/case_2_dp_tp"
_PIPELINE = f"{_SOURCES}/checkpoint2/case_4_pipeline_shared_embedding"
_RANKS = f"{_SOURCES}/conversions/case_7012"
_DCP = f"{_SOURCES}/dcp/case_optimizer"
_LIKE = f"{_SOURCES}/like"
_BY_STRATEGIES = {
    "source": f"{_RANKS}/src",
    "source_strategy": f"{_RANKS}/src_strategy.ckpt",
    "target_strategy": f"{_RANKS}/dst_strategy.ckpt",
}
CASES: Mapping[str, Mapping[str, Any]] = {
    "ranks": {**_BY_STRATEGIES, "ranks": "0", "prefix": "net_"},
    "encrypted": {**_BY_STRATEGIES, "ranks": "3", "encrypt_key": "env:UNFINISHED_KEY"},
    "ranks-of-checkpoint2": {
        "source": f"{_CHECKPOINT2}/src",
        "target_strategy": f"{_CHECKPOINT2}/dst_strategy.ckpt",
        "ranks": "1",
        "select": "weights-only",
        "cast": ["*=bfloat16"],
        "remove_redundancy": True,
    },
    "unified": {"source": f"{_CHECKPOINT2}/src", "layout": "unified", "max_shard_size": "4kB", "ranks": "0-1"},
    "unified-like": {
        "source": f"{_DCP}/src",
        "layout": "unified",
        "max_shard_size": "1kB",
        "include": ["model.*"],
        "like": _LIKE,
        "ranks": "1",
    },
    "unified-mindspore": {
        "source": f"{_RANKS}/src",
        "source_strategy": f"{_RANKS}/src_strategy.ckpt",
        "layout": "unified",
        "unified_naming": "mindspore",
        "max_shard_size": "4kB",
        "ranks": "1",
        "append_info": ["epoch_num=3"],
    },
    "checkpoint2": {
        "source": f"{_PIPELINE}/src",
        "target_strategy": f"{_PIPELINE}/dst_strategy.ckpt",
        "layout": "checkpoint2",
        "ranks": "0",
        "common": ["loss_scale=4"],
    },
    "dcp": {"source": f"{_DCP}/src", "layout": "dcp", "shards": 3, "ranks": "2"},
    "dcp-by-strategy": {**_BY_STRATEGIES, "layout": "dcp", "ranks": "0"},
}
"""Name -> the options under which the earlier version was asked for some of the target's ranks."""


def target_of(name: str) -> str:
    """The URL of a case's target."""
    return f"{_TARGETS}/{name}"


@contextmanager
def in_memory(*, with_targets: bool = True) -> Iterator[fsspec.AbstractFileSystem]:
    """Provide sources, and unfinished targets, in memory."""
    memory = fsspec.filesystem("memory")
    for url in (_CHECKPOINT2, _PIPELINE, _RANKS, _DCP):
        place = url.removeprefix(f"{_SOURCES}/")
        _load(memory, FIXTURES / place, f"/fixtures/{place}")
    memory.pipe_file("/fixtures/like/config.json", b'{"model_type": "of_no_family", "torch_dtype": "float32"}')
    if with_targets:
        _load(memory, UNFINISHED, "/unfinished")
    for file in memory.store.values():
        file.created = file.modified = _SAVED
    try:
        yield memory
    finally:
        memory.rm("/fixtures", recursive=True)
        memory.rm("/unfinished", recursive=True)


def _load(memory: fsspec.AbstractFileSystem, folder: Path, place: str) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            memory.pipe_file(f"{place}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def _make() -> None:
    with in_memory(with_targets=False) as memory:
        for name, options in CASES.items():
            reshard.convert(**options, target=target_of(name))
        for path in memory.find("/unfinished"):
            file = UNFINISHED / path.removeprefix("/unfinished/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(memory.cat_file(path))


if __name__ == "__main__":
    _make()

"""Unified checkpoints on an object store: written there, replaced in place, and read from there."""

from pathlib import Path
from typing import Any

from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import VerifyLevel
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case, read_rank, read_safetensors, read_tree
from tests.support.stores import Store

CASE = case(7010)


def files_of(store: Store, path: str) -> list[str]:
    return sorted(file.name for file in store.files(path).iterdir() if file.is_file())


def test_there_and_back(store: Store, tmp_path: Path) -> None:
    url = store.url("whole")
    options: dict[str, Any] = {"target_strategy": "", "layout": "unified"}
    convert(CASE.request(url, **options, max_shard_size="50KB"))
    convert(CASE.request(url, **options, max_shard_size="150KB", overwrite=True))
    shards = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert files_of(store, "whole") == [*shards, "model.safetensors.index.json"]
    assert verify_target(url, VerifyLevel.CONTENT).problems == ()
    whole = [read_safetensors(store.files("whole") / name) for name in shards]
    assert whole[0] | whole[1] | whole[2] == read_rank(CASE.directory / "full", 0)
    convert(CASE.request(tmp_path / "back", source=url, source_strategy="", format="ckpt"))
    assert read_tree(tmp_path / "back") == CASE.want

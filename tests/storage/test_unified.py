"""Unified checkpoints on an object store: written there, replaced in place, and read from there."""

from pathlib import Path
from typing import Any

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case, read_rank, read_safetensors, read_tree
from tests.support.families import Family, directory_contents
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


def test_a_complete_directory_is_replaced_by_another(store: Store) -> None:
    """A tokenizer of the old model beside the new one's weights would be read by loaders."""
    llama, qwen = Family("llama"), Family("qwen2")
    reference, url = store.add(llama.hf, "llama"), store.url("out")
    (store.files("llama") / "vocab.json").write_text("{}")
    store.server.look_again()
    options = {"target": url, "layout": "unified"}
    convert(build_request(source=reference, like=reference, **options))
    assert (store.files("out") / "vocab.json").exists()
    convert(build_request(source=str(qwen.hf), like=str(qwen.hf), overwrite=True, **options))
    assert not (store.files("out") / "vocab.json").exists()
    assert (store.files("out") / "config.json").read_bytes() == (qwen.hf / "config.json").read_bytes()
    assert directory_contents(store.files("out")) == directory_contents(qwen.hf)
    assert verify_target(url, VerifyLevel.CONTENT).problems == ()

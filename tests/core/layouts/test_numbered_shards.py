"""Names of files that number themselves."""

from reshard.core.layouts.numbered_shards import ShardName, parse_shard


def test_files_of_several() -> None:
    assert parse_shard("model.fp16-00001-of-00002.safetensors") == ShardName(
        "model.fp16", "00001", "00002", ".safetensors"
    )
    assert parse_shard("model-00001-of-00001.safetensors") is None
    assert parse_shard("model.safetensors") is None

"""Which errors show that a file is damaged, and the advice that refusals end with."""

from pathlib import Path

import pytest

from reshard.core.checkpoint.catalog import CheckpointCatalog
from reshard.core.checkpoint.damage_policy import DamagePolicy, is_damage, with_advice
from reshard.core.errors import CatalogError, CheckpointError, InputError, StorageError
from reshard.core.files.encryption.cipher_blocks import KeyMistakeError
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from tests.support.damaged import file_of, whole_shards
from tests.support.source_directories import build_catalog


def test_contents_are_damage_and_wrong_keys_are_not() -> None:
    assert is_damage(CheckpointError("truncated"))
    assert not is_damage(KeyMistakeError("another key"))
    assert not is_damage(CatalogError("several steps"))


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        open_source(parse_url(str(tmp_path / "no.ckpt")))
    error = InputError("cannot be used")
    error.__cause__ = caught.value
    assert is_damage(error)
    error.__cause__ = StorageError("permission denied")
    assert not is_damage(error)


def test_advice_ends_an_error_of_the_same_class() -> None:
    error = with_advice(CheckpointError("truncated"), "recover=True would succeed")
    assert (type(error), str(error)) == (CheckpointError, "truncated\nrecover=True would succeed")
    assert with_advice(error, "") is error


def test_advice_is_asked_for_lost_ranks_alone(tmp_path: Path) -> None:
    directory = whole_shards(tmp_path)
    asked: list[list[int]] = []

    def advice(catalog: CheckpointCatalog) -> str:
        asked.append(sorted(catalog.lost))
        return "some advice"

    def build(**policy: object) -> CheckpointCatalog:
        return build_catalog(
            str(directory / "src"),
            range(6),
            digest=lambda *_: False,
            damage=DamagePolicy(advice=advice, **policy),  # type: ignore[arg-type]
        )

    assert build().lost == {}
    assert asked == []
    file_of(directory, 3).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"rank_3/.*\nsome advice"):
        build()
    assert asked == [[3]]
    file_of(directory, 2).unlink()
    with pytest.raises(CatalogError, match=r"missing: rank_2.*\nsome advice"):
        build()
    assert asked == [[3], [2, 3]]
    assert sorted(build(recovers=True).lost) == [2, 3]
    assert asked == [[3], [2, 3]]

"""Which checkpoint of a directory of MindFormers' outputs is meant."""

from pathlib import Path

import pytest

from reshard.core.errors import CatalogError
from reshard.core.files.file_names import Step
from reshard.core.layouts.output_directory import find_output_checkpoint
from reshard.core.layouts.ranks.mindformers import read_saved_step
from reshard.core.storage.listing import names_in
from reshard.core.storage.urls import parse_url


def make(root: Path, *paths: str) -> None:
    for path in paths:
        place = root / path
        if path.endswith("/"):
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"")


def found(root: Path) -> str | None:
    location = parse_url(str(root))
    chosen = find_output_checkpoint(location, names_in(location))
    return None if chosen is None else str(chosen).removeprefix(f"{root}/")


@pytest.mark.parametrize(
    ("paths", "want"),
    [
        (["checkpoint/rank_0/llama_rank_0-1_4.ckpt", "strategy/ckpt_strategy_rank_0.ckpt", "log/"], "checkpoint"),
        (["checkpoint/iteration_00000004/"], "checkpoint"),
        (["checkpoint/", "checkpoint_network/rank_3/"], "checkpoint_network"),
        (["transformed_checkpoint/llama/rank_0/", "strategy/"], "transformed_checkpoint/llama"),
        (["unified_checkpoint/param_name_map.json"], "unified_checkpoint"),
        (["checkpoint", "unified_checkpoint/param_name_map.json"], "unified_checkpoint"),
        (["checkpoint/", "log/"], None),
        (["rank_0/", "checkpoint/rank_0/"], None),
        (["model.safetensors", "checkpoint/rank_0/"], None),
        (["resume_record/latest_checkpointed_iteration.txt"], None),
    ],
)
def test_the_only_one(paths: list[str], want: str | None, tmp_path: Path) -> None:
    make(tmp_path, *paths)
    assert found(tmp_path) == want


def test_several_are_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path, "checkpoint/rank_0/", "checkpoint_network/rank_0/", "transformed_checkpoint/a/rank_0/")
    with pytest.raises(CatalogError) as caught:
        found(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: has several checkpoints; name the one that is meant:\n"
        f"  {tmp_path}/checkpoint (all that training saved)\n"
        f"  {tmp_path}/checkpoint_network (the network's parameters alone)\n"
        f"  {tmp_path}/transformed_checkpoint/a (what training loaded, converted)"
    )


def test_a_failed_conversion_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "transformed_checkpoint/llama/rank_0/", "transformed_checkpoint/llama/transform_failed_rank_3.txt")
    with pytest.raises(CatalogError) as caught:
        found(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/transformed_checkpoint/llama: has transform_failed_rank_3.txt: MindFormers could not convert it"
    )


@pytest.mark.parametrize(
    ("document", "want"),
    [
        ('{"last_epoch": 1, "last_step": 40, "last_ckpt_file": "llama_rank_0-1_40.ckpt"}', Step(1, 40)),
        ('{"last_epoch": null, "last_step": 40}', None),
        ('{"last_epoch": -1, "last_step": 40}', None),
        ('{"model": "another kind of file"}', None),
        ('[{"last_epoch": 1}]', None),
        ('{"last_epoch": 1, "last', None),
        ("[" * 10_000, None),
        (" " * (1 << 17), None),
    ],
)
def test_the_last_saved_step(document: str, want: Step | None, tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text(document)
    assert read_saved_step(parse_url(str(tmp_path))) == want


def test_no_step_is_recorded(tmp_path: Path) -> None:
    assert read_saved_step(parse_url(str(tmp_path))) is None

"""Steps with real files, from any strategy to any and back, byte for byte against numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.changes.changes import Changes
from reshard.core.changes.inverse import inverted
from reshard.core.conversion.convert import convert
from reshard.core.errors import PlanError
from reshard.core.files.model import SELF_CONTAINED
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import write_strategy
from tests.support.checkpoints import read_tree
from tests.support.models import UNSIGNED, Model
from tests.support.plans import as_layout, make_strategy
from tests.support.random_steps import SHAPES, random_steps
from tests.support.reference import DEVICE_COUNTS, RandomLayout, layouts, shard_of
from tests.support.safetensors_files import write_safetensors

Cuts = dict[str, RandomLayout]


def converted(directory: Path, name: str, source: str, strategy: str, cuts: Cuts, changes: Changes, **more: Any) -> str:
    """The target of a conversion under random layouts; it is in the directory `name`."""
    target = directory / name
    write_strategy(make_strategy({each: as_layout(cut) for each, cut in cuts.items()}), f"{target}_strategy.ckpt")
    document = directory / f"{name}.json"
    document.write_text(changes.model_dump_json(exclude_defaults=True))
    request = build_request(
        source=source,
        target=str(target),
        source_strategy=strategy,
        target_strategy=f"{target}_strategy.ckpt",
        changes=str(document),
        verify="content",
        memory_limit="16MiB",
        **more,
    )
    assert convert(request).committed
    return str(target)


def check(target: str, cuts: Cuts, wholes: dict[str, np.ndarray]) -> None:
    for rank, held in read_tree(Path(target)).items():
        assert {*held} == {*wholes}
        for name, (_, shape, content) in held.items():
            shard = shard_of(wholes[name], cuts[name], rank)
            assert (shape, content) == (shard.shape, np.ascontiguousarray(shard).tobytes()), name


@settings(max_examples=4)
@given(st.data())
def test_whatever_steps_make_is_what_numpy_makes_and_their_inverse_undoes_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("steps")
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    wholes = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    bits = {name: ("Float32", array.view(UNSIGNED["Float32"])) for name, array in wholes.items()}
    devices, target_devices = (data.draw(st.sampled_from(DEVICE_COUNTS)) for _ in range(2))
    cuts = {name: data.draw(layouts(devices, len(shape))) for name, shape in SHAPES.items()}
    source_format, target_format = (data.draw(st.sampled_from(SELF_CONTAINED)) for _ in range(2))
    source, strategy = Model(bits, cuts, devices).write(directory, source_format, piece_bytes=1000)
    changes, made = data.draw(random_steps(wholes))
    wanted = {name: data.draw(layouts(target_devices, array.ndim)) for name, array in made.items()}
    workers = data.draw(st.sampled_from([1, 4]))
    target = converted(directory, "made", source, strategy, wanted, changes, format=str(target_format), workers=workers)
    check(target, wanted, made)
    back = converted(directory, "back", target, f"{target}_strategy.ckpt", cuts, inverted(changes))
    check(back, cuts, wholes)


def drop_copies(directory: Path, copies: list[np.ndarray]) -> Path:
    source, embed = directory / "source", np.arange(96 * 24, dtype=np.float32).reshape(96, 24)
    source.mkdir()
    tensors = {"embed": ("F32", embed), **{f"mtp.{number}.embed": ("F32", copy) for number, copy in enumerate(copies)}}
    write_safetensors(source / "model.safetensors", tensors)
    document = directory / "changes.json"
    step = {"drop": {"parameters": "mtp.{i}.embed", "copy_of": "embed", "count": len(copies)}}
    document.write_text(Changes.model_validate({"steps": [step]}).model_dump_json(exclude_defaults=True))
    target = directory / "target"
    request = build_request(source=str(source), target=str(target), changes=str(document), verify="content")
    assert convert(request).committed
    return target


def test_copies_are_left_out_once_they_were_compared(tmp_path: Path) -> None:
    embed = np.arange(96 * 24, dtype=np.float32).reshape(96, 24)
    [(_, held)] = read_tree(drop_copies(tmp_path, [embed, embed])).items()
    assert {*held} == {"embed"}


def test_a_copy_that_is_none_is_not_left_out(tmp_path: Path) -> None:
    embed = np.arange(96 * 24, dtype=np.float32).reshape(96, 24)
    other = embed.copy()
    other[95, 23] = -0.0
    with pytest.raises(PlanError) as error:
        drop_copies(tmp_path, [embed, other])
    assert "'mtp.1.embed' is to be dropped, and is not a copy of 'embed': they differ in [0:96, 0:24]" in str(
        error.value
    )
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        (
            [
                {"stack": {"parameters": "w.{e}", "into": "w", "count": 2}},
                {"unstack": {"parameters": "w", "into": "v.{e}", "count": 2}},
            ],
            {"v.0": [0, 1, 2], "v.1": [3, 4, 5]},
        ),
        (
            [{"unstack": {"parameters": "w.{e}", "into": "w.{e}.{i}", "count": 3}}],
            {f"w.{e}.{i}": 3 * e + i for e in range(2) for i in range(3)},
        ),
    ],
)
def test_members_of_a_family_that_was_stacked_and_elements_of_a_vector(
    steps: list[dict[str, Any]], wanted: dict[str, Any], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    tensors = {f"w.{e}": ("F32", np.arange(3 * e, 3 * e + 3, dtype=np.float32)) for e in range(2)}
    write_safetensors(source / "model.safetensors", tensors)
    document = tmp_path / "changes.json"
    document.write_text(Changes.model_validate({"steps": steps}).model_dump_json(exclude_defaults=True))
    target = tmp_path / "target"
    assert convert(
        build_request(source=str(source), target=str(target), changes=str(document), verify="content")
    ).committed
    [(_, held)] = read_tree(target).items()
    assert {name: content for name, (_, _, content) in held.items()} == {
        name: np.array(value, np.float32).tobytes() for name, value in wanted.items()
    }

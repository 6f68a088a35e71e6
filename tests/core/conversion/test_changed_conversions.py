"""Conversions that change parameters, with real files, from any strategy to any, byte for byte against numpy."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.conversion.convert import convert
from reshard.core.files.model import SELF_CONTAINED, CheckpointFormat
from reshard.core.request.conversion import build_request
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.layout import whole_layout
from tests.support.changed_plans import SHAPES, random_changes
from tests.support.checkpoints import read_tree
from tests.support.models import UNSIGNED, Model
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import DEVICE_COUNTS, layouts, shard_of

DTYPES = {"Float32": np.float32, "BFloat16": ml_dtypes.bfloat16, "Float64": np.float64}


@settings(max_examples=6)
@given(st.data())
def test_whatever_is_declared_is_what_numpy_makes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("changed")
    kind = data.draw(st.sampled_from(sorted(DTYPES)))
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    wholes = {name: generator.standard_normal(shape).astype(DTYPES[kind]) for name, shape in SHAPES.items()}
    devices = data.draw(st.sampled_from(DEVICE_COUNTS))
    bits = {name: (kind, array.view(UNSIGNED[kind])) for name, array in wholes.items()}
    cuts = {name: data.draw(layouts(devices, len(shape))) for name, shape in SHAPES.items()}
    source_format, target_format = (data.draw(st.sampled_from(SELF_CONTAINED)) for _ in range(2))
    source, strategy = Model(bits, cuts, devices).write(directory, source_format, piece_bytes=1000)
    changes, made = data.draw(random_changes(wholes))
    made = {name: array.astype(np.float16) if changes.cast else array for name, array in made.items()}
    target_devices = data.draw(st.sampled_from(DEVICE_COUNTS))
    wanted = {name: data.draw(layouts(target_devices, array.ndim)) for name, array in made.items()}
    new_strategy = directory / "new_strategy.ckpt"
    write_strategy(make_strategy({name: as_layout(layout) for name, layout in wanted.items()}), str(new_strategy))
    document = directory / "changes.json"
    document.write_text(changes.model_dump_json(exclude_defaults=True))
    request = build_request(
        source=source,
        target=str(directory / "out"),
        source_strategy=strategy,
        target_strategy=str(new_strategy),
        format=str(target_format),
        changes=str(document),
        verify="content",
        workers=data.draw(st.sampled_from([1, 4])),
        memory_limit="16MiB",
    )
    assert convert(request).committed
    dtype = "Float16" if changes.cast else kind
    for rank, held in read_tree(directory / "out").items():
        assert {*held} == {*made}
        for name, (stored, shape, content) in held.items():
            shard = shard_of(made[name], wanted[name], rank)
            assert (stored, shape, content) == (dtype, shard.shape, np.ascontiguousarray(shard).tobytes())
            assert len(content) == shard.size * dtype_from_name(dtype).itemsize


def test_tied_parameters_are_compared_although_they_are_changed(tmp_path: Path) -> None:
    values = {"tied": np.arange(8, dtype=np.uint32).reshape(2, 4)}
    for rank, offset in enumerate((0, 1)):
        model = Model({"tied": ("Float32", values["tied"] + np.uint32(offset))}, {}, 1)
        directory, _ = model.write(tmp_path / f"{rank}", CheckpointFormat.CKPT)
        (tmp_path / f"ckpt/rank_{rank}").mkdir(parents=True)
        (tmp_path / f"ckpt/rank_{rank}/m.ckpt").write_bytes((Path(directory) / "rank_0/m.ckpt").read_bytes())
    whole = whole_layout(2)
    write_strategy(make_strategy({"tied": whole}, {"tied": whole}), str(tmp_path / "strategy.ckpt"))
    request = build_request(
        source=str(tmp_path / "ckpt"),
        target=str(tmp_path / "out"),
        source_strategy=str(tmp_path / "strategy.ckpt"),
        transpose=["tied"],
        rename=["tied=head"],
    )
    report = convert(request)
    assert any("DIFFERENT copies of tied parameters: tied (stage 0's is used" in n for n in report.notes)
    assert read_tree(tmp_path / "out")[0] == {
        "head": ("Float32", (4, 2), np.ascontiguousarray(values["tied"].T).tobytes())
    }

"""The plan on disk and its identity."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from reshard.core.changes.lora.deltas import Delta
from reshard.core.errors import TargetError
from reshard.core.layouts.ranks.target import RankFolders
from reshard.core.plan.adapter import AdaptedSource, PlacedDelta
from reshard.core.records.plan_file import _placed_to_json, dump_plan, load_plan, plan_identity
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.tensor.dtypes import TEXT
from reshard.core.tensor.segments import Piece
from reshard.core.tensor.slices import TensorSlice
from tests.support.plans import (
    entry,
    make_catalog,
    make_strategy,
    plan_of,
    vector,
)


def test_plan_file_holds_the_same_plan(tmp_path: object) -> None:
    entries = {rank: [entry("w", (2,)), entry("note", (8,), TEXT, "hé")] for rank in range(2)}
    target = make_strategy({"w": replace(vector(4, True), tensor_shape=(4,))})
    plan = plan_of(make_catalog(entries), make_strategy({"w": vector(2, True)}), target, layout=RankFolders("p_"))
    location = parse_url(f"{tmp_path}/plan.json.gz")
    write_bytes(location, dump_plan(plan))
    again = load_plan(str(location), plan_identity(plan))
    assert [again.rank_plan(r) for r in range(4)] == [plan.rank_plan(r) for r in range(4)]
    assert again.source_entry(0, "note").text == "hé"


def test_identity_follows_contents_not_circumstances() -> None:
    entries = {rank: [entry("w", (2,))] for rank in range(2)}
    catalog, source = make_catalog(entries), make_strategy({"w": vector(2, True)})
    one = plan_identity(plan_of(catalog, source, None))
    assert one == plan_identity(plan_of(replace(catalog, notes=("chosen",)), source, None))
    changed = {r: replace(record, version="newer") for r, record in catalog.records.items()}
    others = [
        plan_of(catalog, source, None, layout=RankFolders("other_")),
        plan_of(catalog, source, None, allow_missing=("x",)),
        plan_of(catalog, source, make_strategy({"w": vector(2, True)})),
        plan_of(replace(catalog, records=changed), source, None),
    ]
    assert len({one, *map(plan_identity, others)}) == 5


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    plan = plan_of(make_catalog({0: [entry("w", (4,))]}), None, None)
    data = dump_plan(plan)
    path = tmp_path / "plan.json.gz"
    for position in range(10, len(data) - 8):  # the gzip header says nothing of the content
        path.write_bytes(data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :])
        with pytest.raises(TargetError, match=r"plan\.json\.gz: "):
            load_plan(str(path), plan_identity(plan))


def test_pieces_of_an_adapter_are_written_as_earlier_versions_did() -> None:
    """Or the plan of a conversion that was begun before would have another identity."""
    piece = Piece(0, TensorSlice((0, 0), (4, 2)), (1, 0), (2, 0), steps=(2, 1))
    placed = {"w": AdaptedSource((4, 2), (PlacedDelta(piece, Delta((2, 4))),))}
    [part] = _placed_to_json(placed)["w"]["parts"]
    assert part["piece"] == {
        "source": 0,
        "box": {"start": (0, 0), "stop": (4, 2), "steps": ()},
        "axes": (1, 0),
        "start": (2, 0),
        "scale": None,
        "steps": (2, 1),
        "added": 0,
        "adapted": False,
    }
    assert msgspec.convert(part["piece"], Piece) == piece

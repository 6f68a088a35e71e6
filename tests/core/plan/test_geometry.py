"""The geometry of layout classes: parts of source shards that fill each target shard."""

from msgspec.structs import replace

from reshard.core.plan.geometry import ClassGeometry
from reshard.core.plan.ownership import SourceCopy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.tensor.segments import Piece, joined, transposed, whole_piece

ROWS = ParameterLayout((2,), ((0,), ()), nested=True)
COLUMNS = ParameterLayout((2,), ((), (0,)), nested=True)


def test_whole_parameters_are_worked_out_in_units() -> None:
    geometry = ClassGeometry.of_whole([SourceCopy(4, ROWS)], COLUMNS.shard_grid(2), (20, 60))
    assert geometry.unit_counts == (2, 2)
    assert geometry.units_of((20, 60)) == (10, 30)
    assert [str(geometry.target_box(cell)) for cell in ((0, 0), (0, 1))] == ["[0:2, 0:1]", "[0:2, 1:2]"]
    assert [(part.rank, str(part.box), part.place == part.box) for part in geometry.parts((0, 1))] == [
        (4, "[0:1, 1:2]", True),
        (5, "[1:2, 1:2]", True),
    ]
    assert geometry.target_sizes.tolist() == [2, 2]
    assert geometry.source_sizes.tolist() == [[2, 2]]


def test_an_empty_tensor_has_empty_units() -> None:
    geometry = ClassGeometry.of_whole([SourceCopy(0, ROWS)], COLUMNS.shard_grid(2), (0, 6))
    assert geometry.units_of((0, 6)) == (0, 3)


def test_pieces_are_placed_in_elements() -> None:
    pieces = joined([((whole_piece((4, 2)),), (4, 2)), (tuple(_of_source(1, (4, 6))), (4, 6))], 1, 1)
    sources = [((SourceCopy(0, ROWS),), (4, 2)), ((SourceCopy(0, COLUMNS),), (4, 6))]
    geometry = ClassGeometry(sources, pieces, COLUMNS.shard_grid(2), (4, 8))
    assert [(part.source, part.rank, str(part.box), str(part.place)) for part in geometry.parts((0, 0))] == [
        (0, 0, "[0:2, 0:2]", "[0:2, 0:2]"),
        (0, 1, "[2:4, 0:2]", "[2:4, 0:2]"),
        (1, 0, "[0:4, 0:2]", "[0:4, 2:4]"),
    ]
    assert geometry.source_sizes.tolist() == [[8, 0], [8, 16]]
    assert geometry.target_sizes.tolist() == [16, 16]


def test_transposed_pieces_name_their_axes() -> None:
    pieces = transposed((whole_piece((4, 6)),), (1, 0))
    geometry = ClassGeometry([((SourceCopy(0, ROWS),), (4, 6))], pieces, ROWS.shard_grid(2), (6, 4))
    assert [(part.rank, str(part.box), str(part.place), part.axes) for part in geometry.parts((1, 0))] == [
        (0, "[0:2, 3:6]", "[3:6, 0:2]", (1, 0)),
        (1, "[2:4, 3:6]", "[3:6, 2:4]", (1, 0)),
    ]


def _of_source(number: int, shape: tuple[int, ...]) -> list[Piece]:
    return [replace(whole_piece(shape), source=number)]

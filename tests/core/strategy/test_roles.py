"""Roles of device axes, derived from the layouts of a stage."""

from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.strategy.roles import device_roles, model_axes_of
from reshard.core.tensor.layout import ParameterLayout
from tests.support.plans import as_layout
from tests.support.reference import DEVICE_COUNTS, layouts

ROWS = ParameterLayout((2, 1, 4), ((0,), ()))
COLUMNS = ParameterLayout((2, 4, 1), ((), (1,)))
WHOLE = ParameterLayout((8,), ((),))


def test_different_spellings_of_the_same_devices() -> None:
    roles = device_roles([("rows", ROWS), ("columns", COLUMNS), ("whole", WHOLE)], 8)
    assert (roles.data_parallel, roles.model_parallel) == (2, 4)
    assert [(axis.stride, axis.size) for axis in roles.axes] == [(4, 2), (1, 4)]
    assert roles.axes[1].cuts == {("rows", 0), ("columns", 1)}


def test_rows_and_columns_are_cut_by_one_kind() -> None:
    assert device_roles([("rows", ROWS), ("columns", COLUMNS)], 8).several_sizes == ""


def test_nothing_is_cut() -> None:
    roles = device_roles([("whole", WHOLE)], 8)
    assert (roles.data_parallel, roles.model_parallel, roles.several_sizes) == (8, 1, "")
    assert device_roles([], 1).model_parallel == 1


def test_experts_are_another_kind() -> None:
    experts = ParameterLayout((2, 4), ((1,), (0,)))
    roles = device_roles([("rows", ROWS), ("experts", experts)], 8)
    assert (roles.data_parallel, roles.model_parallel) == (1, 8)
    assert roles.several_sizes == (
        "different devices cut different parameters: 2 devices cut 'experts' along axis 0; "
        "4 devices cut 'experts' along axis 1, 'rows' along axis 0"
    )


def test_the_same_number_of_pieces_by_other_devices() -> None:
    by_steps = ParameterLayout((4, 2), ((1,), ()))
    roles = device_roles([("rows", ROWS), ("embedding", by_steps)], 8)
    assert (roles.data_parallel, roles.model_parallel, roles.several_sizes) == (2, 4, "")
    assert not roles.is_one_kind
    of_six = [("rows", ParameterLayout((2, 3), ((0,),))), ("embedding", ParameterLayout((3, 2), ((1,),)))]
    roles = device_roles(of_six, 6)
    assert (roles.data_parallel, roles.model_parallel, roles.several_sizes) == (2, 3, "")


def test_arrangements_that_do_not_go_together() -> None:
    two, three = ParameterLayout((3, 2), ((0,),)), ParameterLayout((2, 3), ((0,),))
    roles = device_roles([("two", two), ("three", three)], 6)
    assert (roles.data_parallel, roles.model_parallel) == (1, 6)
    assert roles.several_sizes == (
        "devices are arranged in ways that do not go together: in groups of 2 for 'two', of 3 for 'three'"
    )


def test_optimizer_shards_are_made_of_copies() -> None:
    sharded = ParameterLayout((2, 4), ((0,), ()), optimizer_shard_step=4, optimizer_shard_size=2)
    assert device_roles([("sharded", sharded)], 8).data_parallel == 2


def test_several_axes_of_one_tensor_axis_keep_their_order() -> None:
    nested = ParameterLayout((2, 2, 2), ((0, 2), ()), nested=True)
    flat = ParameterLayout((2, 4), ((0,), ()))
    roles = device_roles([("nested", nested), ("flat", flat)], 8)
    assert model_axes_of(nested, 2, roles) == [[2, 0], []]
    assert model_axes_of(flat, 2, roles) == [[1, 2], []]


@settings(max_examples=50)
@given(st.data())
def test_data_parallel_ranks_hold_the_same(data: st.DataObject) -> None:
    devices = data.draw(st.sampled_from(DEVICE_COUNTS))
    of_stage = [(f"p{n}", as_layout(data.draw(layouts(devices, 2)))) for n in range(data.draw(st.integers(1, 4)))]
    roles = device_roles(of_stage, devices)
    assert roles.data_parallel * roles.model_parallel == roles.device_count == devices
    for axis in roles.axes:
        for _, layout in of_stage:
            bare = ParameterLayout(layout.device_matrix, layout.tensor_map, layout.nested)
            cells = bare.shard_grid(2).cells
            if not axis.cuts:
                for rank in range(devices):
                    beside = rank - rank // axis.stride % axis.size * axis.stride
                    assert (cells[rank] == cells[beside]).all()

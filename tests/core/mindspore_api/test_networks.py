import ml_dtypes
import numpy as np
import pytest

from core.mindspore_api.networks import checked_network, fill_network

FLOATS = np.arange(4, dtype=np.float32)


def test_arrays_are_filled_in_place() -> None:
    network: dict[str, np.ndarray] = {"w": np.zeros(4, np.float32), "other": np.ones(1)}
    array = network["w"]
    assert fill_network(network, {"w": FLOATS, "more": FLOATS, "note": "text"}, strict=True) == (
        ["other"],
        ["more", "note"],
    )
    np.testing.assert_array_equal(array, FLOATS)


@pytest.mark.parametrize(
    ("value", "array"),
    [
        (FLOATS, np.zeros(4, np.float16)),
        (FLOATS, np.zeros(4, ml_dtypes.bfloat16)),
        (FLOATS.astype(ml_dtypes.bfloat16), np.zeros(4)),
        (FLOATS.astype(np.int8), np.zeros(4, np.int64)),
        (FLOATS.reshape(4, 1, 1), np.zeros(4, np.float32)),
    ],
)
def test_dtypes_and_trailing_axes_are_converted(value: np.ndarray, array: np.ndarray) -> None:
    fill_network({"w": array}, {"w": value}, strict=False)
    np.testing.assert_array_equal(array.astype(np.float32), FLOATS)


@pytest.mark.parametrize(
    ("value", "array", "strict", "message"),
    [
        (FLOATS, np.zeros(3, np.float32), False, r"has shape \(4,\) in the checkpoint, \(3,\) in the network"),
        (FLOATS, np.zeros((4, 1), np.float32), False, "has shape"),
        (FLOATS.reshape(4, 1), np.zeros((2, 2), np.float32), False, "has shape"),
        (FLOATS, np.zeros(4, np.int32), False, "is float32 in the checkpoint, int32 in the network"),
        (FLOATS.astype(np.uint8), np.zeros(4, np.int32), False, "is uint8 in the checkpoint"),
        (FLOATS, np.zeros(4, np.float16), True, "is float32 in the checkpoint, float16"),
    ],
)
def test_what_does_not_fit_changes_nothing(value: np.ndarray, array: np.ndarray, strict: bool, message: str) -> None:
    first = np.zeros(4, np.float32)
    with pytest.raises(RuntimeError, match=message):
        fill_network({"first": first, "w": array}, {"first": FLOATS, "w": value}, strict)
    assert not first.any()


def test_what_is_no_network() -> None:
    with pytest.raises(TypeError, match="a dict of numpy arrays here, not <class 'list'>: there are no Cells"):
        checked_network([])
    with pytest.raises(TypeError, match="a network's 5 has to be a numpy array under a string"):
        checked_network({5: FLOATS})
    with pytest.raises(TypeError, match="a network's 'w' has to be a numpy array under a string, not <class 'list'>"):
        checked_network({"w": [1]})


def test_a_read_only_array_leaves_all_as_they_were() -> None:
    first, second = np.zeros(4, np.float32), np.zeros(4, np.float32)
    second.flags.writeable = False
    with pytest.raises(TypeError, match="a network's 'second' is a read-only array"):
        fill_network({"first": first, "second": second}, {"first": FLOATS, "second": FLOATS}, strict=False)
    assert not first.any()

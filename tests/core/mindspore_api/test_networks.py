import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reshard import mindspore
from reshard.core.mindspore_api.networks import Filling, checked_network, fill_network

FLOATS = np.arange(4, dtype=np.float32)


def test_arrays_are_filled_in_place() -> None:
    network: dict[str, np.ndarray] = {"w": np.zeros(4, np.float32), "other": np.ones(1)}
    array = network["w"]
    filling = fill_network(network, {"w": FLOATS, "more": FLOATS, "note": "text"}, strict=True)
    assert filling == Filling(["other"], ["more", "note"], {})
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
    with pytest.raises(TypeError, match="a dict of numpy arrays here, not <class 'list'>, or a Cell where"):
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


def zeros(*names: str) -> dict[str, np.ndarray]:
    return {name: np.zeros(4, np.float32) for name in names}


@pytest.mark.parametrize(
    ("names", "values", "by_suffix"),
    [
        (
            ["fc.weight", "fc.bias"],
            ["bb.fc.weight", "bb.fc.bias"],
            {"fc.weight": "bb.fc.weight", "fc.bias": "bb.fc.bias"},
        ),
        (["weight"], ["myweight"], {"weight": "myweight"}),
        (["a", "b", "c"], ["x.a", "y.b", "y.c", "x.c"], {"a": "x.a", "c": "x.c", "b": "y.b"}),
        (["a", "b"], ["a", "x.b", "x.a"], {"b": "x.b"}),
        (["a", "b"], ["aa", "xb"], {"b": "xb"}),  # the first missing name is never taken for a prefix
        (["a"], ["aa"], {}),
        (["accu_grads.a"], ["x.accu_grads.a"], {}),
    ],
)  # as MindSpore 2.10 fills them: `make conformance API=load_param_into_net`
def test_arrays_are_filled_by_suffix(names: list[str], values: list[str], by_suffix: dict[str, str]) -> None:
    network = zeros(*names)
    given: dict[str, Any] = {name: FLOATS + number for number, name in enumerate(values, 1)}
    with warnings.catch_warnings(action="ignore"):
        not_loaded, unused = mindspore.load_param_into_net(network, given)
    for name, array in network.items():
        source = by_suffix.get(name, name)
        np.testing.assert_array_equal(array, given[source] if source in given else np.zeros(4))
    assert not_loaded == [n for n in names if n not in by_suffix and n not in given and not n.startswith("accu_grads")]
    assert unused == [name for name in values if name not in names]


def test_what_is_filled_by_suffix_is_warned_of() -> None:
    with pytest.warns(
        UserWarning, match=r"^filled from .* end in theirs: 'fc\.w' from 'bb\.fc\.w'; strict_load=T"
    ) as caught:
        mindspore.load_param_into_net(zeros("fc.w", "other"), {"bb.fc.w": FLOATS})
    assert [each.filename for each in caught] == [__file__]


def test_strictly_only_full_names_count() -> None:
    network = zeros("fc.w")
    assert mindspore.load_param_into_net(network, {"bb.fc.w": FLOATS}, strict_load=True) == (["fc.w"], ["bb.fc.w"])
    assert not network["fc.w"].any()


def test_a_suffix_of_another_shape_changes_nothing() -> None:
    network = zeros("a") | {"b": np.zeros(3, np.float32)}
    with pytest.raises(RuntimeError, match=r"parameter 'b': has shape \(4,\) in the checkpoint, \(3,\) in the network"):
        mindspore.load_param_into_net(network, {"x.a": FLOATS, "x.b": FLOATS})
    assert not network["a"].any()


def test_texts_fill_nothing_and_are_no_parameters_that_lack() -> None:
    assert mindspore.load_param_into_net(zeros("a"), {"a": "text", "x.b": "text"}) == ([], ["a", "x.b"])


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "a dict of numpy arrays here", (5, {})),
        (TypeError, "'parameter_dict' has to be a dict, not <class 'list'>", ({}, [])),
        (TypeError, "'parameter_dict' has <class 'int'> under 'a', not a numpy array", ({}, {"a": 1})),
        (TypeError, "under 5, not a numpy array or a text under a string", ({}, {5: FLOATS})),
        (TypeError, "'strict_load' has to be a bool, not 'x'", ({}, {"a": FLOATS}, "x")),
        (ValueError, "'remove_redundancy' has to be bool, not 1", ({}, {"a": FLOATS}, False, 1)),
        (TypeError, "'remove_redundancy': there are no other ranks here", ({}, {"a": FLOATS}, False, True)),
    ],
)
def test_refused_arguments(error: type[Exception], message: str, arguments: tuple) -> None:
    with pytest.raises(error, match=message):
        mindspore.load_param_into_net(*arguments)

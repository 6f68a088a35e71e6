import pickle
from collections import OrderedDict, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.runtime.pickle_writing import PickleWriter, attributes, build_pickle, integer, new_object
from reshard.core.runtime.pickled import Global, Pairs, PersistentId, PickledObject, read_pickle

NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.binary(max_size=9) | st.text(st.characters(codec=None), max_size=20)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.lists(inner).map(tuple), max_leaves=20)


@given(VALUES)
def test_python_reads_what_was_written(value: Any) -> None:
    assert pickle.loads(build_pickle(value)) == value
    assert type(pickle.loads(build_pickle(value))) is type(value)


def test_records_are_read_as_they_were_written() -> None:
    size, made = Global("torch", "Size"), Global("package.module", "Made")
    value = Pairs(
        [
            ("a", PickledObject(size, ((2, 3),))),
            ("b", PickledObject(made, (), Pairs([("x", 1)]))),
            (made, PersistentId("p")),
        ]
    )
    assert read_pickle(build_pickle(value), [("torch", "Size"), ("package.module", "Made")]) == value


def test_a_writer_refers_to_what_it_has_defined() -> None:
    writer = PickleWriter()
    for number in range(300):  # more than one byte can count
        writer.define(f"text {number}")
    assert writer.define("text 7") == writer.fragment("text 7")
    writer.write(writer.fragment(["text 7", "text 299", "other", ("text 7",)]))
    assert pickle.loads(writer.finish()) == ["text 7", "text 299", "other", ("text 7",)]


def test_objects_get_their_attributes() -> None:
    writer = PickleWriter()
    made_by = writer.define(Global(__name__, "Made"))
    writer.write(new_object(made_by) + attributes([(writer.fragment("size"), integer(2**40))]))
    assert vars(pickle.loads(writer.finish())) == {"size": 2**40}


class Made:
    pass


def test_what_has_no_opcode_is_refused() -> None:
    with pytest.raises(TypeError, match="no opcode for set"):
        build_pickle({1})


def test_objects_have_items_values_and_a_state() -> None:
    ordered = PickledObject(Global("collections", "OrderedDict"), (), None, Pairs([("a", 1)]))
    several = PickledObject(Global("collections", "deque"), ((0,),), None, None, [1, 2])
    assert pickle.loads(build_pickle([ordered, several])) == [OrderedDict(a=1), deque([0, 1, 2])]
    with_state = PickledObject(Global("collections", "OrderedDict"), (), Pairs([("mark", 2)]), Pairs([("a", 1)]))
    assert vars(pickle.loads(build_pickle(with_state))) == {"mark": 2}

"""Pickles as data: the same values as Python's own machine gives, and nothing run."""

import os
import pickle
import pickletools
import tracemalloc
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reshard.core.runtime.pickled import (
    Global,
    Pairs,
    PersistentId,
    PickledObject,
    PickleError,
    read_objects,
    read_pickle,
)
from tests.support.dcp import Opcodes

NOTHING: frozenset[tuple[str, str]] = frozenset()
ORDERED_DICT = ("collections", "OrderedDict")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def as_values(read: Any) -> Any:
    """Pairs as the dicts that they were."""
    if isinstance(read, Pairs):
        return {key: as_values(value) for key, value in read}
    if isinstance(read, list | tuple):
        return type(read)(map(as_values, read))
    return read


@given(VALUES, st.integers(0, 5))
def test_data_is_read_as_python_reads_it(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    # protocol 0 has floats as text, and texts with escapes: torch does not write it
    assume(protocol or not {"F", "V"} & {opcode.code for opcode, _, _ in pickletools.genops(data)})
    assert as_values(read_pickle(data, NOTHING)) == value


def test_an_allowed_name_is_a_record() -> None:
    read = read_pickle(pickle.dumps(OrderedDict()), {ORDERED_DICT})
    assert read == PickledObject(Global(*ORDERED_DICT), ())
    with pytest.raises(PickleError, match="sets an item of something that is not a dict"):
        read_pickle(pickle.dumps(OrderedDict(a=1)), {ORDERED_DICT})


def test_a_name_that_is_not_allowed_is_not_run(tmp_path: Any) -> None:
    touched = tmp_path / "touched"

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {touched}",)

    for protocol in range(6):
        with pytest.raises(PickleError, match=r"at byte \d+: wants '(posix|nt|os)\.system', which no checkpoint needs"):
            read_pickle(pickle.dumps(Hostile(), protocol), {ORDERED_DICT})
    assert not touched.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.distributed.checkpoint.metadata", "os.system"),
        ("torch", "os.system"),
        ("collections.OrderedDict", ""),
        ("collections", "OrderedDict.fromkeys"),
        ("builtins", "eval"),
        ("", ""),
    ],
)
def test_module_and_name_are_compared_as_a_pair(module: str, name: str) -> None:
    data = Opcodes().of(b"\x80\x04").text(module).text(name).of(b"\x93.").bytes()
    with pytest.raises(PickleError, match="which no checkpoint needs: it was not run"):
        read_pickle(data, {ORDERED_DICT, ("torch", "Size"), ("torch.distributed.checkpoint.metadata", "Metadata")})


@pytest.mark.parametrize("code", [each.code for each in pickletools.opcodes])
def test_every_opcode_alone_is_read_or_refused(code: str) -> None:
    for arguments in (b"", b"\x01", b"\x00" * 8, b"\xff" * 8, b"1\n", b"os\nsystem\n"):
        with pytest.raises(PickleError):
            read_pickle(b"\x80\x02" + code.encode("latin-1") + arguments, NOTHING)


@pytest.mark.parametrize(
    "code", ["i", "o", "\x92", "P", "\x82", "\x83", "\x84", "\x8f", "\x90", "\x91", "B", "C", "\x96", "\x97", "\x98"]
)
def test_opcodes_that_are_no_data_are_refused_by_name(code: str) -> None:
    name = repr(code) if code.isprintable() else f"{ord(code):#04x}"
    with pytest.raises(PickleError, match=f"at byte 0: has the opcode {name}, which checkpoints do not need"):
        read_pickle(code.encode("latin-1") + b"\x01" * 16 + b".", NOTHING)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends at byte 0 without its last opcode: truncated"),
        (b"\x80\x04]", "ends at byte 3 without"),
        (b"\x80\x09N.", "is of protocol 9"),
        (b"NN.", "leaves values behind"),
        (b"N.N", "at byte 1: 1 bytes follow its end"),
        (b"(.", "takes more than there is"),
        (b"N(.", "takes more than there is"),
        (b"N(N.", "leaves values behind"),
        (b"e.", "no mark to go back to"),
        (b"N(Ne.", "appends to something that is not a list"),
        (b"N(NNu.", "sets an item of something that is not a dict"),
        (b"}(Nu.", "a key without a value"),
        (b"h\x07.", "asks for memo 7, which it has not set"),
        (b"NNb.", "sets the state of something that has none"),
        (b"NNR.", "constructs something without a name"),
        (b"NN\x93.", "names a class by something that is not text"),
        (b"X\xff\xff\xff\xff.", "takes more than there is"),
        (b"\x8d" + b"\xff" * 8 + b".", "takes more than there is"),
        (b"\x8a\xff" + b"\x01" * 255 + b".", "an integer of 255 bytes"),
        (b"\x8b\xff\xff\xff\x7f.", "an integer of 2147483647 bytes"),
        (b"I" + b"9" * 5000 + b"\n.", "a line without an end"),
        (b"I" + b"9" * 100 + b"\n.", "an invalid number"),
        (b"X\x01\x00\x00\x00\xff.", "at byte 0: UnicodeDecodeError: damaged"),
        (b"g" + b"9" * 30 + b"\n.", "an invalid number"),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    with pytest.raises(PickleError, match=message):
        read_pickle(data, NOTHING)


def test_a_list_may_contain_itself() -> None:
    read = read_pickle(b"]q\x00h\x00a.", NOTHING)
    assert isinstance(read, list)
    assert read[0] is read


def test_nesting_does_not_recurse() -> None:
    depth = 200_000
    read = read_pickle(b"N" + b"\x85N0" * depth + b".", NOTHING)
    assert isinstance(read, tuple)
    while read != (None,):  # else freeing it would recurse
        (read,) = read


def test_shared_parts_are_not_copied() -> None:
    doubled = b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) + b"0" for n in range(200))
    read = read_pickle(b"Nq\x000" + doubled + b"h\xc8.", NOTHING)
    assert isinstance(read, tuple)
    assert read[0] is read[1]


def test_records_keep_names_arguments_and_state() -> None:
    data = b"\x80\x02ccollections\nOrderedDict\n(K\x01X\x01\x00\x00\x00at}X\x01\x00\x00\x00bK\x02sb."
    data = data.replace(b"t}", b"tR}")
    read = read_pickle(data, {ORDERED_DICT})
    assert read == PickledObject(Global("collections", "OrderedDict"), (1, "a"), Pairs([("b", 2)]))
    with pytest.raises(PickleError, match="a second time"):
        read_pickle(data.replace(b"b.", b"bNb."), {ORDERED_DICT})


def test_something_beside_the_pickle_is_a_reference() -> None:
    assert read_pickle(b"X\x01\x00\x00\x00aQ.", NOTHING) == PersistentId("a")


@pytest.mark.parametrize("opcode", [b"(", b"]", b"}", b"\x94", b"\x85", b"Q", b"]\x94", b"(t", b"}2"])
def test_opcodes_that_only_fill_the_memory_are_refused_unread(opcode: bytes) -> None:
    data = b"\x80\x02N" + opcode * 500_000
    tracemalloc.start()
    try:
        with pytest.raises(PickleError, match="is full of opcodes that make objects without contents"):
            read_pickle(data, [])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_objects_of_any_class_are_records() -> None:
    ordered = OrderedDict(a=1)
    ordered.mark = 2  # type: ignore[attr-defined]
    value = [ordered, b"\x00\xff", {1}, frozenset([2]), OrderedDict.fromkeys, b"x" * 300]
    read = read_objects(pickle.dumps(value, 4))
    assert read == [
        PickledObject(Global(*ORDERED_DICT), (), Pairs([("mark", 2)]), Pairs([("a", 1)])),
        b"\x00\xff",
        PickledObject(Global("builtins", "set"), (), values=[1]),
        PickledObject(Global("builtins", "frozenset"), (), values=[2]),
        PickledObject(Global("builtins", "getattr"), (Global(*ORDERED_DICT), "fromkeys")),
        b"x" * 300,
    ]


def test_objects_take_no_more_bytes_than_there_are() -> None:
    for code in (b"B\xff\xff\xff\x7f", b"C\x09", b"\x8e" + b"\xff" * 8):
        with pytest.raises(PickleError, match="at byte 0: it takes more than there is"):
            read_objects(code + b"x.")


def test_objects_are_not_run() -> None:
    assert read_objects(b"cos\nsystem\n(X\x04\x00\x00\x00exittR.") == PickledObject(Global("os", "system"), ("exit",))
    with pytest.raises(PickleError, match="sets the state of something that has none"):
        read_objects(b"cos\nsystem\n}b.")
    with pytest.raises(PickleError, match="is full of opcodes that make objects without contents"):
        read_objects(b"\x80\x02(" + b"]" * 20_000 + b"l.")

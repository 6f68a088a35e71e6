import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.checkpoint.self_digest import add_digest, split_digest

DOCUMENT = json.dumps({"a": 1, "b": "}"}, indent=1).encode() + b"\n"


def test_a_digest_is_the_last_field() -> None:
    document = json.loads(add_digest(DOCUMENT))
    assert list(document) == ["a", "b", "digest"]
    assert len(document["digest"]) == 32


def test_it_comes_off_again() -> None:
    data, has_digest = split_digest(add_digest(DOCUMENT))
    assert has_digest
    assert json.loads(data) == json.loads(DOCUMENT)


def test_documents_of_earlier_versions_have_none() -> None:
    assert split_digest(DOCUMENT) == (DOCUMENT, False)


@given(st.data())
def test_any_changed_byte_is_noticed(drawn: st.DataObject) -> None:
    data = bytearray(add_digest(DOCUMENT))
    place = drawn.draw(st.integers(0, len(data) - 1))
    data[place] ^= 1 << drawn.draw(st.integers(0, 7))
    try:
        _, has_digest = split_digest(bytes(data))
    except ValueError as error:
        assert "do not match the digest" in str(error)
    else:
        assert not has_digest  # the field's own name was changed: a reader that needs a digest refuses it


def test_a_digest_written_otherwise_does_not_pass_for_none() -> None:
    with pytest.raises(ValueError, match="do not match the digest"):
        split_digest(add_digest(DOCUMENT).replace(b'"digest": ', b'"digest" : '))

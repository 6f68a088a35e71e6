"""Entries to append as text: NAME=VALUE."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.core.changes.info_texts import InfoValue, format_info, parse_info
from reshard.core.errors import InputError
from reshard.core.request.conversion import build_request


class TestTexts:
    @pytest.mark.parametrize(
        ("text", "want"),
        [
            ("epoch_num=5", ("epoch_num", 5)),
            ("a=-5", ("a", -5)),
            ("a=+007", ("a", 7)),
            ("a=18446744073709551615", ("a", 2**64 - 1)),
            ("lr=0.5", ("lr", 0.5)),
            ("a=1e-3", ("a", 0.001)),
            ("a=.5", ("a", 0.5)),
            ("a=5.", ("a", 5.0)),
            ("a=true", ("a", True)),
            ("a=False", ("a", False)),
            ("a=héllo", ("a", "héllo")),
            ("a=", ("a", "")),
            ("a=b=c", ("a", "b=c")),
            ("a=text:5", ("a", "5")),
            ("a=text:", ("a", "")),
            ("a=text:text:x", ("a", "text:x")),
            ("a=nan", ("a", "nan")),
            ("a=0x10", ("a", "0x10")),
            ("a=1.2.3", ("a", "1.2.3")),
            ("a= 5", ("a", " 5")),
            ("a=٣", ("a", "٣")),
        ],
    )
    def test_a_value_of_each_kind(self, text: str, want: tuple[str, InfoValue]) -> None:
        [found] = parse_info([text])
        assert (found, type(found[1])) == (want, type(want[1]))

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            (["epoch_num"], "must be NAME=VALUE, such as epoch_num=5, not 'epoch_num'"),
            (["=5"], "must be NAME=VALUE, such as epoch_num=5, not '=5'"),
            (["a=1", "b=2", "a=3"], "gives 'a' twice"),
            (["a=1e39"], "'a': 1e+39 is not a finite Float32"),
            (["a=-1e400"], "'a': -inf is not a finite Float32"),
            (["a=18446744073709551616"], "fits neither Int64 nor UInt64"),
            (["a=-9223372036854775809"], "fits neither Int64 nor UInt64"),
            (["a=\udcff"], "'a': its name or its text is not UTF-8"),
            (["\udcff=1"], "its name or its text is not UTF-8"),
            (["a=b\0"], "'a': its text ends in a zero byte"),
        ],
    )
    def test_what_is_none(self, texts: list[str], message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            parse_info(texts)
        with pytest.raises(InputError, match="append_info.*" + re.escape(message)):
            build_request(source="a", target="b", append_info=texts)

    @given(
        st.text(min_size=1).filter(lambda name: "=" not in name),
        st.one_of(
            st.booleans(),
            st.integers(-(2**63), 2**64 - 1),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.text().filter(lambda text: not text.endswith("\0")),
            st.sampled_from(["true", "1", "text:", "1e5", "inf"]),
        ),
    )
    def test_what_is_formatted_is_parsed(self, name: str, value: InfoValue) -> None:
        [(found, parsed)] = parse_info([format_info(name, value)])
        assert (found, parsed, type(parsed)) == (name, value, type(value))

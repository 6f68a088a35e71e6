"""Every parser, for a moment: the seeds, the same damage each time, and what hypothesis thinks of."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.engine import outcome, run
from tests.fuzz.parsers import Parser
from tests.fuzz.run import PARSERS

_INPUTS = 60

every_parser = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)


@every_parser
def test_it_survives_damaged_files(parser: Parser) -> None:
    tally = run(parser, random.Random(parser.name), inputs=_INPUTS)
    assert list(tally.failures.values()) == []
    assert tally.count == _INPUTS


@every_parser
def test_it_survives_its_seeds_cut_off(parser: Parser) -> None:
    seed = min(parser.seeds(), key=len)
    for stop in range(0, len(seed), max(1, len(seed) // 40)):
        assert outcome(parser, seed[:stop])[0] == ""


@every_parser
@given(data=st.binary(max_size=100))
@settings(derandomize=True, database=None, deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_it_survives_anything(parser: Parser, data: bytes) -> None:
    assert outcome(parser, data)[0] == ""


@every_parser
def test_sound_files_are_accepted(parser: Parser) -> None:
    # the others say nothing if all is refused
    assert all(outcome(parser, seed) == ("", True) for seed in parser.seeds())

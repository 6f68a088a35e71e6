"""Strategies of source and target that were exchanged."""

from pathlib import Path

import pytest

from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import ALL_CASES, Case
from tests.support.two_stages import ROWS, STAGES, strategy, write

OF_TWO = {name: ParameterLayout((2,), ((0,), ())) for each in STAGES for name in each if not name.endswith("norm")}
OF_EIGHT = {name: ParameterLayout((8,), ((), (0,))) for name in OF_TWO}


def exchanged(tmp_path: Path, source: str, target: str) -> ConversionRequest:
    return build_request(
        source=str(tmp_path / "src"),
        target=str(tmp_path / "out"),
        source_strategy=str(tmp_path / source),
        target_strategy=str(tmp_path / target),
    )


@pytest.mark.parametrize("other", [OF_TWO, OF_EIGHT], ids=["of fewer ranks", "of as many ranks"])
def test_exchanged_strategies_are_named_as_such(tmp_path: Path, other: dict[str, ParameterLayout]) -> None:
    layouts = {name: ParameterLayout((8,), ((0,), ())) if other is OF_TWO else ROWS_OF_EIGHT for name in OF_TWO}
    write(tmp_path / "src", [layouts])
    write_strategy(strategy([layouts]), str(tmp_path / "own.ckpt"))
    write_strategy(strategy([other]), str(tmp_path / "other.ckpt"))
    make_plan(exchanged(tmp_path, "own.ckpt", "other.ckpt"))
    with pytest.raises(InputError) as message:
        make_plan(exchanged(tmp_path, "other.ckpt", "own.ckpt"))
    headline, *_ = str(message.value).splitlines()
    given, _, found = headline.partition(f": {tmp_path}/own.ckpt, given as the target's, fits the source ")
    assert given == "'source_strategy' and 'target_strategy' seem to be exchanged"
    assert found == f"{tmp_path}/src, and {tmp_path}/other.ckpt does not:"


ROWS_OF_EIGHT = ParameterLayout((4, 2), ((0,), ()))
"""Four ranks share each slice, which the other strategy gives to one rank each."""


def test_a_wrong_source_strategy_beside_one_of_another_job_is_not_called_exchanged(tmp_path: Path) -> None:
    write(tmp_path / "src")
    write_strategy(strategy([OF_TWO]), str(tmp_path / "source.ckpt"))
    write_strategy(strategy([dict.fromkeys(OF_TWO, ROWS)]), str(tmp_path / "target.ckpt"))
    with pytest.raises(InputError) as message:
        make_plan(exchanged(tmp_path, "source.ckpt", "target.ckpt"))
    assert "exchanged" not in str(message.value)


@pytest.mark.parametrize("conversion", ALL_CASES, ids=lambda conversion: conversion.directory.name)
def test_strategies_of_real_conversions_that_are_exchanged(conversion: Case, tmp_path: Path) -> None:
    own, other = (str(conversion.directory / f"{side}_strategy.ckpt") for side in ("src", "dst"))
    with pytest.raises(InputError, match="^'source_strategy' and 'target_strategy' seem to be exchanged: "):
        make_plan(conversion.request(tmp_path / "out", source_strategy=other, target_strategy=own))

"""Findings, and what those of one cause share."""

import json

from reshard.core.source.findings import (
    Cause,
    Finding,
    Severity,
    findings_by_cause,
    optimizer_shard_cause,
    quoted_names,
)
from reshard.core.tensor.layout import ParameterLayout

WAS_OFF, WAS_ON = Cause("off", "", ""), Cause("on", "", "")
ROWS = ParameterLayout((2, 2), ((0,), ()))
SHARDED = ParameterLayout((2, 2), ((0,), ()), optimizer_shard_step=2, optimizer_shard_size=2)


def test_findings_are_problems_unless_they_say_otherwise() -> None:
    finding = Finding(check="names", found="x is missing", means="another network")
    assert json.loads(finding.model_dump_json()) == {
        "check": "names",
        "severity": "problem",
        "found": "x is missing",
        "means": "another network",
        "advice": "",
    }


def test_details_of_one_cause_are_one_finding() -> None:
    cause = Cause("shards do not fit", "another network", "use its strategy")
    found = findings_by_cause("shapes", {cause: [f"{number}" for number in range(12)]})
    assert found == [
        Finding(
            check="shapes",
            severity=Severity.PROBLEM,
            found="shards do not fit: 0; 1; 2; 3; 4; 5; 6; 7; 8; 9 and 2 more",
            means="another network",
            advice="use its strategy",
        )
    ]


def test_names_in_quotes() -> None:
    assert quoted_names(["a", "b\n"]) == r"'a', 'b\n'"


def test_the_optimizer_shard_explains_what_ranks_hold() -> None:
    without = optimizer_shard_cause(SHARDED, lambda layout: layout == ROWS, was_off=WAS_OFF, was_on=WAS_ON)
    assert without is WAS_OFF
    more = optimizer_shard_cause(ROWS, lambda layout: layout != ROWS, was_off=WAS_OFF, was_on=WAS_ON)
    assert more is WAS_ON
    assert optimizer_shard_cause(ROWS, lambda _: False, was_off=WAS_OFF, was_on=WAS_ON) is None

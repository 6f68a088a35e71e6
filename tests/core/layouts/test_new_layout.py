"""A layout that declares an option has it in the command, forms, job files, keywords and reference."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT

PROGRAM = """
import json, sys
from enum import StrEnum
from types import ModuleType
from typing import Annotated

import click
from pydantic import Field

from reshard.core.layouts import registry
from reshard.core.options.fields import Metavar
from reshard.core.options.validation import RequestModel

# one more name in the list
names = {name: each.value for name, each in registry.TargetLayout.__members__.items()}
registry.TargetLayout = StrEnum("TargetLayout", names | {"PAPER": "paper"})

# and a package
from reshard.core.layouts.options import LayoutOptions

class PaperOptions(RequestModel):
    sheet_size: Annotated[str, Metavar("DIN")] = Field(default="A4", description="Size of the sheets.")

paper = ModuleType("reshard.core.layouts.paper.options")
paper.OPTIONS = LayoutOptions("paper", "printed numbers.", PaperOptions, suffix=".pdf", refused={"write_crc": "no ink"})
sys.modules[paper.__name__] = paper

from docs.write_cli_reference import reference
from docs.write_keywords import module_text
from reshard.cli.convert import command as convert
from reshard.cli.convert_latest import command as convert_latest
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.request.job_file import dump_job, parse_job
from reshard.deployments import forms
from reshard.deployments.form_groups import form_schema

def refusal(**options):
    try:
        build_request(source="a", target="b", **options)
    except Exception as error:
        return str(error)

asked = build_request(source="a", target="b", layout="paper", sheet_size="A3")
approved = form_schema(forms.convert_with_approval)
answer = {
    "help": [each.get_help(click.Context(each, max_content_width=200)) for each in (convert, convert_latest)],
    "forms": [form_schema(each)["properties"] for each in (forms.convert, forms.convert_latest)],
    "group": approved["definitions"]["output"]["properties"],
    "layouts": approved["definitions"]["TargetLayout"]["enum"],
    "job": dump_job(asked),
    "parsed": parse_job(dump_job(asked).encode(), "job.yaml", ConversionRequest),
    "keywords": module_text(),
    "reference": reference(),
    "refusals": [
        refusal(layout="paper", format="ckpt"), refusal(layout="paper", write_crc=True), refusal(sheet_size="A3")
    ],
}
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """What users see of a layout `paper` and its option `sheet_size`."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert ran.returncode == 0, ran.stderr
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def test_it_is_an_option_of_the_commands(shown: dict[str, Any]) -> None:
    for text in shown["help"]:
        assert "[ranks|unified|checkpoint2|dcp|paper]" in text
        assert "--sheet-size DIN" in text
        assert "Size of the sheets." in text


def test_it_is_a_field_of_the_forms(shown: dict[str, Any]) -> None:
    for properties in shown["forms"]:
        assert properties["sheet_size"]["title"] == "Output: Sheet size"
        assert properties["sheet_size"]["description"] == "Size of the sheets."
        assert properties["layout"]["description"].endswith(" paper: printed numbers.")
    assert shown["group"]["sheet_size"]["default"] == "A4"
    assert shown["layouts"] == ["ranks", "unified", "checkpoint2", "dcp", "paper"]


def test_it_is_in_job_files(shown: dict[str, Any]) -> None:
    assert shown["job"] == "source: a\ntarget: b\nlayout: paper\nsheet_size: A3\n"
    assert shown["parsed"] == {"source": "a", "target": "b", "layout": "paper", "sheet_size": "A3"}


def test_it_is_a_keyword(shown: dict[str, Any]) -> None:
    assert "        sheet_size: Size of the sheets.\n" in shown["keywords"]
    assert "    sheet_size: str\n" in shown["keywords"]
    assert 'Literal["ranks", "unified", "checkpoint2", "dcp", "paper"]' in shown["keywords"]


def test_it_is_in_the_reference(shown: dict[str, Any]) -> None:
    assert "`--sheet-size DIN`: Size of the sheets. (default: A4)" in shown["reference"]


def test_what_does_not_go_with_it_is_refused(shown: dict[str, Any]) -> None:
    assert shown["refusals"] == [
        "layout 'paper': writes .pdf files: leave out 'format'",
        "write_crc True: no ink",
        "sheet_size 'A3': only valid with layout='paper'",
    ]

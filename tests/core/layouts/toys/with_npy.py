"""Adds the layout `npy` to the list, runs commands, and prints what users see as JSON.

The list is all of reshard that it changes: the package would lie beside the others, and is found here instead.
"""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import Any

from reshard.core import layouts
from reshard.core.layouts import registry

layouts.__path__.append(str(Path(__file__).parent))
names = {each.name: each.value for each in registry.TargetLayout}
registry.TargetLayout = StrEnum("TargetLayout", names | {"NPY": "npy"}, module=registry.__name__)  # type: ignore[misc]
registry.SOURCE_NAMES = ("npy", *registry.SOURCE_NAMES)


def run(*commands: list[str]) -> list[tuple[int, str]]:
    """Return each command's exit code, and what it prints."""
    from reshard.cli import main

    answers = []
    for command in commands:
        with redirect_stdout(io.StringIO()) as output, redirect_stderr(output):
            code = main.run(command)
        answers.append((code, output.getvalue()))
    return answers


def shown() -> dict[str, Any]:
    """Return what forms, job files, keywords and the reference say."""
    from docs.write_cli_reference import reference
    from docs.write_keywords import functions_text, types_text
    from reshard.core.request.conversion import ConversionRequest, build_request
    from reshard.core.request.job_file import dump_job, parse_job
    from reshard.deployments import forms
    from reshard.deployments.form_groups import form_schema

    asked = build_request(source="a", target="b", layout="npy", npy_version=2)
    approved = form_schema(forms.convert_with_approval)
    return {
        "flat": form_schema(forms.convert_expert)["properties"],
        "groups": [
            form_schema(each)["definitions"]["output"]["properties"]
            for each in (forms.convert, forms.convert_latest, forms.convert_with_approval)
        ],
        "layouts": approved["definitions"]["TargetLayout"]["enum"],
        "job": dump_job(asked),
        "parsed": parse_job(dump_job(asked).encode(), "job.yaml", ConversionRequest),
        "keywords": functions_text() + types_text(),
        "reference": reference(),
        "loading": _refused_loading(),
    }


def _refused_loading() -> str:
    from reshard.core.conversion.load import plan_load
    from reshard.errors import ReshardError

    try:
        plan_load("a", None, None, npy_version=2)
    except ReshardError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(*json.loads(sys.argv[1])) if sys.argv[1:] else shown()))

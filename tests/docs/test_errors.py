"""Messages that the page on errors quotes are in the code, between the places of names and numbers."""

import ast
import re

import pytest

from tests.support.places import PROJECT

PAGE = (PROJECT / "docs" / "reference" / "errors.md").read_text()
STEMS = [stem for row in re.findall(r"^\| `(.*?)` \|", PAGE, re.MULTILINE) for stem in row.split("…") if stem.strip()]


@pytest.fixture(scope="module")
def texts() -> str:
    """Every literal of the code; literals that follow each other in the source are one."""
    files = [
        path for folder in ("core", "cli", "flows", "deployments", "tasks") for path in (PROJECT / folder).rglob("*.py")
    ]
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text())))
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_there_are_messages() -> None:
    assert len(STEMS) > 40


@pytest.mark.parametrize("stem", STEMS)
def test_a_quoted_message_is_in_the_code(texts: str, stem: str) -> None:
    assert stem.strip() in texts

"""Messages that the page on errors quotes are in the code, between the places of names and numbers.

The page spells options as the command does.
"""

import ast
import re

import pytest

from reshard.cli.spelling import flag
from reshard.core.text.options import Option
from tests.support.places import PROJECT

PAGE = (PROJECT / "docs" / "reference" / "errors.md").read_text()
STEMS = [stem for row in re.findall(r"^\| `(.*?)` \|", PAGE, re.MULTILINE) for stem in row.split("…") if stem.strip()]


def literals(node: ast.AST) -> str:
    """The literals of a text, with options spelled in place of their marks; other values are line breaks."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(literals, parts))
        case ast.FormattedValue(value=ast.Call(func=ast.Name(id="option" | "source_option"), args=arguments)):
            try:
                return flag(Option(*map(ast.literal_eval, arguments)))
            except ValueError:  # the value of a variable
                return "\n"
    return "\n"


@pytest.fixture(scope="module")
def texts() -> str:
    """Every literal of the code; literals that follow each other in the source are one."""
    files = [
        path for folder in ("core", "cli", "flows", "deployments", "tasks") for path in (PROJECT / folder).rglob("*.py")
    ]
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text())))
    return "\n".join(literals(node) for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr))


def test_there_are_messages() -> None:
    assert len(STEMS) > 40


@pytest.mark.parametrize("stem", STEMS)
def test_a_quoted_message_is_in_the_code(texts: str, stem: str) -> None:
    assert stem.strip() in texts

"""Pages link to files and headings that exist, and every page is in both lists of pages."""

import re
from pathlib import Path

import pytest

from docs.write_cli_reference import PAGE, reference
from reshard import api, errors
from tests.support.places import PROJECT

DOCS = PROJECT / "docs"
PAGES = [PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    path for folder in ("docs", "benchmarks") for path in (PROJECT / folder).rglob("*.md")
)


def anchors(page: Path) -> set[str]:
    """What a code host calls the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that a page links to, each with the anchor in it."""
    found = re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", page.read_text())
    return [(page.parent / path if path else page, anchor) for path, anchor in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert [path for path, _ in links(page) if not path.exists()] == []
    assert [(path, anchor) for path, anchor in links(page) if anchor and anchor not in anchors(path)] == []


def test_the_list_of_pages_has_all() -> None:
    listed = {path.resolve() for path, _ in links(DOCS / "README.md")}
    assert [page for page in DOCS.rglob("*.md") if page not in {*listed, DOCS / "README.md"}] == []


def test_the_python_reference_has_every_public_name() -> None:
    page = (DOCS / "site" / "api.rst").read_text()
    assert sorted(re.findall(r"auto(?:function|class):: reshard\.(\w+)$", page, re.MULTILINE)) == sorted(api.__all__)
    raised = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert re.findall(r"autoexception:: reshard\.errors\.(\w+)$", page, re.MULTILINE) == raised


def test_the_reference_of_the_command_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "run: python -m docs.write_cli_reference"

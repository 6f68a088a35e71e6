"""The site of the pages: built without a warning, complete in itself, searched in a browser without a server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.browser import CHROMIUM, NO_CHROMIUM, browser_page
from tests.support.places import PROJECT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`make docs`, elsewhere: a dead link or anchor is an error."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    built = subprocess.run(
        [*command, "--conf-dir", "docs/site", "--doctree-dir", str(directory / "trees"), ".", str(directory / "html")],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return directory / "html"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    loading = re.compile(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*\"")
    assert [(page.name, found) for page in pages for found in loading.findall(page.read_text())] == []
    styles = [
        (sheet.name, found)
        for sheet in site.rglob("*.css")
        for found in re.findall("url\\(.?https?:[^)]*", sheet.read_text())
    ]
    assert styles == []


@pytest.mark.skipif(not CHROMIUM, reason=NO_CHROMIUM)
def test_a_reader_searches_and_switches_to_dark(site: Path) -> None:
    with browser_page("") as pages:
        page = pages.page
        page.goto((site / "index.html").as_uri())
        expect(page.get_by_role("heading", name="The first minute")).to_be_visible()
        page.get_by_placeholder("Search").fill("max-shard-size")
        page.keyboard.press("Enter")
        expect(page.locator("#search-results")).to_contain_text("Search finished")
        page.locator("#search-results a", has_text="How a conversion works").first.click()
        expect(page.get_by_role("heading", name="Resuming")).to_be_visible()
        shown = "getComputedStyle(document.body).backgroundColor"
        before = page.evaluate(shown)
        page.locator(".theme-toggle:visible").first.click()  # from the system's choice, light here
        assert page.evaluate(shown) != before

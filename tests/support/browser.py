"""A real browser, Debian's chromium without a window, and how a person uses Prefect's pages with it."""

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from playwright.sync_api import Locator, Page, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.support.patience import until
from tests.support.prefect_server import Worker, prefect_server

CHROMIUM = shutil.which("chromium")
NO_CHROMIUM = "there is no chromium here: apt-get install chromium"
_PAGE_MILLISECONDS = 60_000
_PATIENCE_MILLISECONDS = 10_000
_MOST_CLICKS = 4


@contextmanager
def served_to_a_browser(directory: Path) -> Iterator["PrefectPages"]:
    """A browser before a Prefect server to which `reshard serve` serves, for the time of the block."""
    serve = [str(Path(sys.executable).with_name("reshard")), "serve"]
    with prefect_server(directory / "home") as server:
        serving = Worker(server, directory, serve, {})
        try:
            until(server.client.read_deployments, "nothing is served")
            with browser_page(server.api_url.removesuffix("/api")) as pages:
                yield pages
        finally:
            serving.kill()


@contextmanager
def browser_page(ui_url: str) -> Iterator["PrefectPages"]:
    """Runs a browser for the time of the block; `ui_url` is where the server has its pages."""
    assert CHROMIUM, NO_CHROMIUM
    with sync_playwright() as playwright:
        # its sandbox does not work for root, as which containers run
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1200, "height": 1000})
            page.set_default_timeout(_PAGE_MILLISECONDS)
            expect.set_options(timeout=_PAGE_MILLISECONDS)
            yield PrefectPages(page, ui_url)
        finally:
            browser.close()


class PrefectPages:
    """What a person does on the pages of a Prefect server."""

    def __init__(self, page: Page, ui_url: str) -> None:
        self.page = page
        self._ui_url = ui_url

    def open_form(self, deployment: str) -> None:
        """From the list of deployments to the form of a run."""
        self.page.goto(f"{self._ui_url}/v2/deployments")
        self.page.get_by_role("link", name=deployment, exact=True).click()
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Custom run").click()
        expect(self.page.get_by_text("Parameters", exact=True)).to_be_visible()

    def field(self, title: str) -> Locator:
        """A form's field."""
        return self.page.get_by_label(re.compile(rf"^{re.escape(title)}( \(Optional\))?$"))

    def open_group(self, title: str) -> None:
        """Opens a group of a form's fields."""
        group = self.page.get_by_text(f"{title} (Optional)", exact=True).locator("xpath=ancestor::div[fieldset][1]")
        group.get_by_role("tab", name="Change").click()

    def fill(self, values: Mapping[str, str]) -> None:
        """Fills in fields by their titles."""
        for title, value in values.items():
            self.field(title).fill(value)

    def submit(self) -> None:
        """Clicks on the form's button."""
        self.page.get_by_role("button", name="Submit").click()

    def await_refusal(self) -> None:
        """Waits until the server has refused what was submitted: until then the form takes nothing else."""
        expect(self.page.get_by_text("Error creating flow run").first).to_be_visible()

    def start_run(self) -> None:
        """Starts the run of a form that is right, and follows the link to it.

        While Prefect's form holds on to an old error, or is busy, a click does not start it: then it takes another.
        """
        view_run = self.page.get_by_role("button", name="View run")
        for _ in range(_MOST_CLICKS):
            self.submit()
            with suppress(PlaywrightTimeout):
                view_run.wait_for(timeout=_PATIENCE_MILLISECONDS)
                break
        view_run.click()
        self.page.wait_for_url("**/runs/flow-run/**")

    def open_artifact(self, key: str) -> None:
        """From the page of the latest run to one of its artifacts, by way of the page with that artifact's history."""
        self.page.get_by_role("tab", name="Artifacts").click()
        self.page.get_by_role("link", name=key).first.click()
        self.page.wait_for_url(f"**/artifacts/key/{key}")
        self.page.locator("a[href*='/artifacts/artifact/']").first.click()
        self.page.wait_for_url("**/artifacts/artifact/**")

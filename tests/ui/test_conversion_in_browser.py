"""A person converts a checkpoint with nothing but the browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from demo.make_checkpoint import SOURCE, TARGET, make_demo
from reshard.core.layouts.manifests import parse_manifest
from reshard.core.storage.urls import parse_url
from tests.support.browser import CHROMIUM, NO_CHROMIUM, PrefectPages, served_to_a_browser

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason=NO_CHROMIUM)]

_RUN_MILLISECONDS = 120_000


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("demo") / "llama"
    make_demo(parse_url(str(directory)))
    return directory


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectPages]:
    with served_to_a_browser(tmp_path_factory.mktemp("prefect")) as pages:
        yield pages


def filled_in(demo: Path, target: Path) -> dict[str, str]:
    return {
        "Source": str(demo / "checkpoint"),
        "Target": str(target),
        "Source strategy": str(demo / "strategy"),
        "Target strategy": str(demo / "target_strategy"),
    }


def test_a_form_is_filled_in_and_the_run_followed_to_its_pages(pages: PrefectPages, demo: Path, tmp_path: Path) -> None:
    page, target = pages.page, tmp_path / "converted"
    pages.open_form("convert")
    expect(page.get_by_text("Epoch and step of the source, as in its file names")).to_be_visible()
    pages.fill(filled_in(demo, target) | {"Step": "the newest"})
    pages.submit()
    pages.await_refusal()
    expect(
        page.locator("form").get_by_text(
            "'EPOCH_STEP, such as 10_5, or EPOCH_STEP_breakpoint, or an iteration' was expected"
        )
    ).to_be_visible()
    assert not target.exists()

    pages.fill({"Step": ""})
    pages.start_run()
    expect(page.get_by_text("Completed", exact=True).first).to_be_visible(timeout=_RUN_MILLISECONDS)
    manifest = parse_manifest((target / ".reshard" / "manifest.json").read_bytes(), "the manifest")

    run_url = page.url
    pages.open_artifact("conversion-summary")
    heading = page.get_by_role("heading", name=f"Converted: {len(SOURCE.ranks)} → {len(TARGET.ranks)} ranks")
    expect(heading).to_be_visible()
    expect(page.get_by_text("every byte was read back").first).to_be_visible()
    expect(page.get_by_text(str(target), exact=True).first).to_be_visible()

    page.goto(run_url)
    pages.open_artifact("conversion-ranks")
    for rank in manifest.ranks:
        expect(page.get_by_role("cell", name=rank.file)).to_be_visible()
    table = page.get_by_role("table")
    assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth"), "columns that do not fit"

    page.goto(run_url)
    pages.open_artifact("conversion-plan")
    picture = page.get_by_role("img", name="Bytes from each source rank to each target rank")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 300

    page.goto(run_url)
    pages.open_artifact("run-progress")
    expect(page.get_by_text("Progress: 100%")).to_be_visible()


def test_what_only_the_run_finds_wrong_is_its_message(pages: PrefectPages, demo: Path, tmp_path: Path) -> None:
    page = pages.page
    pages.open_form("convert")
    pages.open_group("Resources")
    pages.fill(filled_in(demo, tmp_path / "out") | {"Memory limit": "1MiB"})
    pages.start_run()
    expect(page.get_by_text("Failed", exact=True).first).to_be_visible(timeout=_RUN_MILLISECONDS)
    page.get_by_role("tab", name="Details").click()
    expect(page.get_by_text("Memory limit '1MiB': must be at least 16MiB").first).to_be_visible()


def test_a_failure_says_what_to_do_next(pages: PrefectPages, demo: Path, tmp_path: Path) -> None:
    page = pages.page
    pages.open_form("convert")
    pages.fill(filled_in(demo, tmp_path / "out") | {"Source": str(demo / "no-such-checkpoint")})
    pages.start_run()
    expect(page.get_by_text("Failed", exact=True).first).to_be_visible(timeout=_RUN_MILLISECONDS)
    pages.open_artifact("conversion-summary")
    expect(page.get_by_role("heading", name="What to do next")).to_be_visible()
    expect(page.get_by_text("no-such-checkpoint").first).to_be_visible()


def test_a_plan_is_read_and_approved_in_the_dialog(pages: PrefectPages, demo: Path, tmp_path: Path) -> None:
    page, target = pages.page, tmp_path / "approved"
    pages.open_form("convert-with-approval")
    pages.open_group("Resources")
    pages.fill(filled_in(demo, target) | {"Memory limit": "2 apples"})
    pages.submit()
    expect(page.locator("form").get_by_text("'a size such as 512MiB or 2GiB' was expected")).to_be_visible()
    pages.fill({"Memory limit": "64MiB"})
    pages.start_run()
    expect(page.get_by_text("Suspended", exact=True).first).to_be_visible(timeout=_RUN_MILLISECONDS)
    assert not list(tmp_path.iterdir())
    page.get_by_role("button", name="Open menu").click()
    page.get_by_role("menuitem", name="Resume").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("to write")).to_be_visible()
    expect(dialog.get_by_text(str(target), exact=True)).to_be_visible()
    dialog.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("'decision' is a required property").first).to_be_visible()
    dialog.get_by_label("Decision").click()
    page.get_by_role("option", name="convert").click()
    dialog.get_by_label("Comment").fill("Ann")
    dialog.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("Completed", exact=True).first).to_be_visible(timeout=_RUN_MILLISECONDS)
    assert parse_manifest((target / ".reshard" / "manifest.json").read_bytes(), "the manifest").ranks

"""Takes the pictures in docs/screenshots: `python -m docs.take_screenshots [DIRECTORY]`.

Makes the demo in DIRECTORY, which the pictures show and which must not be there yet; starts a Prefect server, serves
reshard to it, and converts the demo with the browser, as a person does. All of it is gone at the end.
"""

import argparse
import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, Locator, expect

from demo.make_checkpoint import make_demo
from reshard.cli.main import run
from reshard.core.storage.urls import parse_url
from tests.support.browser import CHROMIUM, NO_CHROMIUM, PrefectPages, served_to_a_browser

PICTURES = Path(__file__).with_name("screenshots")
_MARGIN_PIXELS = 24
_RECORDING_MILLISECONDS = 4000
"""The server learns a little later than of the run's end how its tasks ended."""
_COLORS = 128
"""The pages are flat: a palette makes the pictures a third as large, and nothing is seen of it."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m docs.take_screenshots", description="Takes docs/screenshots.")
    parser.add_argument("directory", nargs="?", default="/data/llama-demo", help="where to make the demo (%(default)s)")
    directory = Path(parser.parse_args().directory)
    if not CHROMIUM:
        sys.exit(NO_CHROMIUM)
    if directory.exists():
        sys.exit(f"{directory} is there already: name another directory, it is removed at the end")
    with demo_in(directory), served_pages() as pages:
        for name, picture in take(pages, directory):
            path = PICTURES / f"{name}.png"
            path.write_bytes(_flat(picture))
            print(f"{path.relative_to(PICTURES.parents[1])}: {path.stat().st_size / 1024:.0f} KiB")


def take(pages: PrefectPages, demo: Path) -> Iterator[tuple[str, bytes]]:
    """Converts the demo; yields a name and a PNG for each page on the way."""
    page = pages.page
    pages.open_form("convert")
    pages.fill(
        {
            "Source": str(demo / "checkpoint"),
            "Target": str(demo / "for_inference"),
            "Source strategy": str(demo / "strategy"),
            "Target strategy": str(demo / "target_strategy"),
            "Step": "the newest",
        }
    )
    pages.submit()
    pages.await_refusal()
    expect(page.locator("form").get_by_text("was expected")).to_be_visible()
    yield "form", _down_to(pages, page.get_by_role("tab", name="Change").last)

    pages.fill({"Step": ""})
    pages.start_run()
    expect(page.get_by_text("Completed", exact=True).first).to_be_visible(timeout=120_000)
    run_url = page.url
    page.get_by_role("tab", name="Artifacts").click()
    expect(page.get_by_text("conversion-summary")).to_be_visible()
    page.wait_for_timeout(_RECORDING_MILLISECONDS)
    page.reload()
    expect(page.get_by_text("conversion-summary")).to_be_visible()
    yield "run", _down_to(pages, page.get_by_text("Converted: "))

    pages.open_artifact("conversion-summary")
    yield "summary", _down_to(pages, page.get_by_text("Show Raw Data"))
    page.goto(run_url)
    pages.open_artifact("conversion-ranks")
    yield "ranks", _down_to(pages, page.get_by_text("Show Raw Data"))
    page.goto(run_url)
    pages.open_artifact("conversion-plan")
    picture = page.get_by_role("img", name="Bytes from each source rank to each target rank")
    expect(picture).to_be_visible()
    yield "picture", _down_to(pages, picture)

    page.goto(_plan_page(demo).as_uri())
    yield "plan", _down_to(pages, page.get_by_text("Changed parameters"))


def _plan_page(demo: Path) -> Path:
    """What `reshard plan --html` makes of the demo."""
    file = demo / "plan.html"
    strategies = ("--source-strategy", str(demo / "strategy"), "--target-strategy", str(demo / "target_strategy"))
    changed = ("--select", "weights-only", "--cast", "*=float32")
    with redirect_stdout(io.StringIO()):
        exit_code = run(["plan", str(demo / "checkpoint"), *strategies, *changed, "--html", str(file)])
    if exit_code:
        sys.exit("the plan's page was not made")
    return file


@contextmanager
def demo_in(directory: Path) -> Iterator[None]:
    """The demo's checkpoint, for the time of the block."""
    try:
        make_demo(parse_url(str(directory)))
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def served_pages() -> Iterator[PrefectPages]:
    """A browser before a Prefect server to which reshard is served."""
    with tempfile.TemporaryDirectory(prefix="reshard-screenshots-") as made:
        directory = Path(made)
        _without_advertisements(directory / "home")
        with served_to_a_browser(directory) as pages:
            yield pages


def _without_advertisements(home: Path) -> None:
    home.mkdir()
    setting = 'PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT = "false"'
    (home / "profiles.toml").write_text(f'active = "pictures"\n[profiles.pictures]\n{setting}\n')


def _down_to(pages: PrefectPages, last: Locator) -> bytes:
    """The page from its top to the lower edge of `last`, as a PNG."""
    page = pages.page
    page.mouse.move(0, 0)
    page.evaluate("document.scrollingElement.scrollTo(0, 0)")  # the menu goes with the window
    page.wait_for_timeout(1500)  # for what is still being drawn
    box = last.bounding_box()
    assert box, f"{last} is not on the page"
    width = page.viewport_size["width"] if page.viewport_size else 0
    clip: FloatRect = {"x": 0, "y": 0, "width": width, "height": box["y"] + box["height"] + _MARGIN_PIXELS}
    return page.screenshot(full_page=True, clip=clip)


def _flat(picture: bytes) -> bytes:
    """The same PNG with a palette."""
    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE)
    flat = io.BytesIO()
    image.save(flat, "PNG", optimize=True)
    return flat.getvalue()


if __name__ == "__main__":
    main()

"""A real notebook: reports and bars as Jupyter shows them."""

from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.browser import CHROMIUM, NO_CHROMIUM, browser_page
from tests.support.checkpoints import case
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT

CASE = case(7010)
SOURCE, STRATEGY = CASE.directory / "src", CASE.directory / "src_strategy.ckpt"
HTML, WIDGET, PLAIN = "text/html", "application/vnd.jupyter.widget-view+json", "text/plain"
HOSTILE = "<img src=x onerror='document.title = 1'>" + "a_very_long_name." * 60

pytestmark = pytest.mark.slow

_PROGRAMS = f"""
import reshard
reshard.convert({str(SOURCE)!r}, "out", source_strategy={str(STRATEGY)!r}, progress=True)
---
from tqdm.auto import tqdm
assert not reshard.verify("out", progress=tqdm).problems
---
found = reshard.fingerprint("out")
found
---
parameter = found.parameters[0].model_copy(update={{"name": {HOSTILE!r}}})
found.model_copy(update={{"checkpoint": {HOSTILE!r}, "parameters": (parameter,)}})
---
await reshard.to_thread(reshard.doctor, "out")
""".split("---\n")


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook as it is after its cells have run."""
    directory = tmp_path_factory.mktemp("notebook")
    document = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, _PROGRAMS)))
    environment = {"PYTHONPATH": str(PROJECT), "IPYTHONDIR": str(directory), "HOME": str(directory)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        client = NotebookClient(document, timeout=PATIENCE_SECONDS, resources={"metadata": {"path": str(directory)}})
        return client.execute()


def shown(notebook: Any, number: int, kind: str) -> list[Any]:
    outputs = notebook.cells[number].outputs
    return [output.data[kind] for output in outputs if kind in output.get("data", {})]


def test_a_bar_of_tqdm_is_a_widget_of_the_notebook(notebook: Any) -> None:
    for number in (0, 1):
        assert shown(notebook, number, WIDGET), notebook.cells[number].outputs


def test_reports_are_shown_as_tables(notebook: Any) -> None:
    for number, word in ((0, "converted"), (2, "the whole model"), (4, "no strategy")):
        html = "".join(shown(notebook, number, HTML))
        assert "<table " in html
        assert word in html
    [plain] = [text for text in shown(notebook, 0, PLAIN) if "ConversionReport" in text]
    assert len(plain) < 400


@pytest.mark.skipif(not CHROMIUM, reason=NO_CHROMIUM)
def test_a_hostile_name_stays_text_and_in_the_window(notebook: Any) -> None:
    [html] = shown(notebook, 3, HTML)
    with browser_page("") as pages:
        pages.page.set_content(f"<title>0</title><body>{html}</body>")
        assert pages.page.title() == "0"
        assert pages.page.locator("img").count() == 0
        assert pages.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

"""README and tutorial are followed from top to bottom on a Prefect server, and print what they show."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.places import PROJECT
from tests.support.prefect_server import PrefectServer, prefect_server

README = (PROJECT / "README.md").read_text()
TUTORIAL = (PROJECT / "docs" / "tutorial.md").read_text()

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as running:
        yield running


def blocks(page: str) -> list[tuple[str, str]]:
    """The commands and programs of a page, and what it says they print."""
    return re.findall(r"^```(console|python|text)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def done(block: tuple[str, str], directory: Path, server: PrefectServer | None = None) -> str:
    """What a block prints, with this server or none configured."""
    kind, text = block
    text = text.replace("make install\n", "")
    command = [sys.executable, "-c", text] if kind == "python" else ["sh", "-eu", "-c", text]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    prefect = server.environment if server else {}
    inherited |= {name: value for name, value in prefect.items() if name.startswith("PREFECT_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        command,
        cwd=directory,
        env=inherited | {"PATH": path, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def shape(text: str, directory: str = "/home/me/reshard") -> list[str]:
    """Printed lines without what differs from run to run: numbers, and the width of columns made of them."""
    lines = text.replace(f"{directory}/", "").splitlines()
    return [" ".join(re.sub(r"\d+(\.\d+)?", "N", line).split()) for line in lines if line.strip()]


def test_readme(server: PrefectServer, tmp_path: Path) -> None:
    quick_start, shown, program, flow = blocks(README)
    demo, tests = (line.partition("#")[0].strip() for line in quick_start[1].splitlines())
    assert (demo, tests) == ("make demo", "make test")
    here = f"make -C {PROJECT} demo DEMO={tmp_path}/demo-out PREFECT_HOME={tmp_path}/prefect"
    printed = shape(done(("console", here), tmp_path), str(tmp_path))
    # the page shortens long lines
    lines = [line.removesuffix("…") for line in shape(shown[1])]
    assert [line for line in lines if not any(each.startswith(line) for each in printed)] == []
    assert "(4096, 128) bfloat16" in done(program, tmp_path)
    assert done(flow, tmp_path, server).endswith("True\n")


def test_tutorial(server: PrefectServer, tmp_path: Path) -> None:
    prepare, *others = blocks(TUTORIAL)
    assert prepare[1].startswith("make install\n")
    printed: list[str] = []
    for kind, text in others:
        if kind == "text":
            assert set(shape(text)) <= set(shape(printed[-1], str(tmp_path)))
        else:
            here = text.replace("http://127.0.0.1:4200/api", server.api_url)
            printed.append(done((kind, here), tmp_path, server if here != text else None))
    assert "CONSISTENT, whole shapes not confirmed" in printed[2]
    assert "all files intact" in printed[4]
    assert "exit code 2" in printed[5]
    assert "the same model: 38 parameters" in printed[7]
    assert "model.layers.3.ffn_norm.weight bfloat16 (128,)" in printed[8]
    assert (tmp_path / "demo-out" / "in_prefect" / ".reshard" / "manifest.json").exists()

"""The commands of the operating guide run, in its order and unchanged but for hosts, ports and paths."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import pytest

from demo.make_checkpoint import make_demo
from reshard.core.storage.urls import parse_url
from tests.support.patience import until
from tests.support.places import PROJECT
from tests.support.prefect_server import free_port

BLOCKS = re.findall(
    r"^```(shell|console|python)\n(.*?)^```",
    (PROJECT / "docs" / "guides" / "operating.md").read_text(),
    re.MULTILINE | re.DOTALL,
)
SERVES, DASK = "reshard serve", "dask scheduler"

pytestmark = pytest.mark.slow


class Operator:
    """Who follows the guide: what is exported stays so, what keeps running runs until the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.exports = ""
        self._api = free_port()
        self._running: list[subprocess.Popen[bytes]] = []
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self._environment = inherited | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PREFECT_HOME": str(directory / "prefect"),
            "PREFECT_PROFILES_PATH": str(directory / "profiles.toml"),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
        }

    @cached_property
    def _dask(self) -> int:
        """The scheduler's port: free when it is about to be bound, minutes after the server's."""
        return free_port()

    def follow(self, kind: str, block: str) -> None:
        """Does what a block says; a `shell` is left running."""
        text = self._here(block)
        if kind == "shell":
            for command in _long_running(text):
                self._start(command)
            return
        program = [sys.executable, "-c", text] if kind == "python" else ["sh", "-eu", "-c", text]
        self._run(["sh", "-eu", "-c", f'{self.exports}exec "$@"', "sh", *program])
        if kind == "console":
            self.exports += "".join(f"{line}\n" for line in re.findall(r"^export .*$", text, re.MULTILINE))

    def end(self) -> None:
        """Ends what is still running."""
        for process in reversed(self._running):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)

    def server_answers(self) -> bool:
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            opener.open(f"http://127.0.0.1:{self._api}/api/health", timeout=5)
            return True
        return False

    def _start(self, command: str) -> None:
        with (self.directory / "running.log").open("ab") as log:
            script = ["sh", "-eu", "-c", f"{self.exports}{command}"]
            process = subprocess.Popen(
                script, cwd=PROJECT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        self._running.append(process)
        if "server start" in command:
            until(self.server_answers, "the server does not answer")

    def _run(self, command: list[str]) -> None:
        ran = subprocess.run(
            command, cwd=PROJECT, env=self._environment, capture_output=True, text=True, timeout=400, check=False
        )
        assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout}{ran.stderr}"

    def _here(self, text: str) -> str:
        for documented, real in {
            "/data/llama": str(self.directory / "llama"),
            "0.0.0.0": "127.0.0.1",
            "4200": str(self._api),
        }.items():
            text = text.replace(documented, real)
        return text.replace("8786", str(self._dask)) if "8786" in text else text


def _long_running(text: str) -> list[str]:
    """The commands of a block, each with the exports before it."""
    exports = "\n".join(line for line in text.splitlines() if line.startswith("export"))
    return [f"{exports}\nexec {line}" for line in text.splitlines() if line and not line.startswith("export")]


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    make_demo(parse_url(str(tmp_path / "llama")))
    for path in (tmp_path / "llama").rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))  # training is over since long
    operator = Operator(tmp_path)
    yield operator
    operator.end()


def test_the_guide_can_be_followed(operator: Operator) -> None:
    llama = operator.directory / "llama"
    # it is for those who have no worker; here one is running already
    blocks = [(kind, block) for kind, block in BLOCKS if SERVES not in block]
    assert len(blocks) < len(BLOCKS)
    for kind, block in blocks:
        operator.follow(kind, block)
    for target in ("for_inference", "approved", "whole", "serving/3_1200"):
        manifest = llama / target / ".reshard" / "manifest.json"
        until(manifest.exists, f"{target} is not converted")
    assert not (llama / "serving" / "4_1600").exists()  # some ranks were never saved

"""The programs of docs/guides/programs.md are run as they stand there, but for paths."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.exceptions import ObjectNotFound

from demo.make_checkpoint import make_demo
from reshard.core.storage.urls import parse_url
from tests.support.patience import until
from tests.support.places import PROJECT
from tests.support.prefect_server import PrefectServer, Worker, prefect_server

PAGE = (PROJECT / "docs" / "guides" / "programs.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as running:
        yield running


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user is: what the examples name is here."""
    here = tmp_path_factory.mktemp("user")
    make_demo(parse_url(str(here / "demo-out")))
    make_demo(parse_url(str(here / "llama")))
    return here


@pytest.fixture(scope="module")
def serving(server: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """`reshard serve`."""
    worker = Worker(server, tmp_path_factory.mktemp("serve"), [sys.executable, "-m", "reshard.cli.main", "serve"], {})
    try:
        yield worker
    finally:
        worker.kill()


def ran(server: PrefectServer, directory: Path, *command: str) -> str:
    text = [part.replace("/data/llama", str(directory / "llama")) for part in command]
    result = subprocess.run(
        text,
        cwd=directory,
        env=server.environment | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def python(server: PrefectServer, directory: Path, program: str) -> str:
    return ran(server, directory, sys.executable, "-c", program)


def test_every_example_is_known() -> None:
    assert (len(PROGRAMS), len(COMMANDS)) == (14, 1)


def test_in_this_process(server: PrefectServer, directory: Path) -> None:
    convert, bar, verify, cancellable = PROGRAMS[:4]
    printed = python(server, directory, convert)
    assert printed.startswith("True ")
    assert "rank_3/checkpoint_3.ckpt" in printed
    assert python(server, directory, bar).endswith("all files intact\n")
    assert python(server, directory, verify).endswith("all is right\n")
    assert python(server, directory, cancellable).startswith("converted ")
    python(server, directory, PROGRAMS[13])
    assert "INFO" in (directory / "reshard.log").read_text()


def test_as_a_flow(server: PrefectServer, directory: Path) -> None:
    assert python(server, directory, PROGRAMS[4]) == "True 1\n"


def test_several_at_once(server: PrefectServer, directory: Path) -> None:
    assert python(server, directory, PROGRAMS[5]).splitlines() == [
        f"{directory}/demo-out/whole 1",
        f"{directory}/demo-out/four 4",
    ]


def test_a_rank_without_files_and_a_comparison(server: PrefectServer, directory: Path) -> None:
    """It follows what the page does before: one of the conversions is compared with its source."""
    loaded = python(server, directory, PROGRAMS[6]).splitlines()
    assert len(loaded) == 38
    assert {line.split()[1] for line in loaded} == {"bfloat16"}
    assert python(server, directory, PROGRAMS[7]).startswith("range(0, 4) [")
    looked = python(server, directory, PROGRAMS[8]).splitlines()
    assert "119 tensors: " in looked[0]
    assert python(server, directory, PROGRAMS[9]).startswith("the same model: 119 parameters")


def test_runs_on_a_worker(server: PrefectServer, directory: Path, serving: Worker) -> None:
    start, verify, manifest = PROGRAMS[10:13]
    wait_until_served(server)
    python(server, directory, start)
    assert python(server, directory, verify).startswith("Completed(")
    assert python(server, directory, manifest).split()[:2] == ["3_1200", "checksum"]
    ran(server, directory, "sh", "-eu", "-c", COMMANDS[0])
    assert (directory / "llama" / "whole" / ".reshard" / "manifest.json").exists()
    broken = start.replace("/data/llama/strategy", "/nowhere")
    with pytest.raises(AssertionError, match=r"Failed\(.*/nowhere"):
        python(server, directory, broken.replace("for_inference", "other"))


def wait_until_served(server: PrefectServer) -> None:
    def there() -> bool:
        try:
            server.client.read_deployment_by_name("merge-strategy/merge-strategy")
        except ObjectNotFound:
            return False
        return True

    until(there, "nothing is served")

"""Running the flow from this process, with a server that is there and with the one that Prefect brings along."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, PREFECT_API_URL, temporary_settings

from reshard.core.errors import ConversionError, InputError
from reshard.core.runtime.progress import SilentProgress
from reshard.flows.convert_checkpoint import convert_checkpoint
from reshard.flows.local import run_locally
from tests.support.checkpoints import case, read_tree
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.places import PROJECT
from tests.support.run_events import event_of, run_id_of

FOUR_TO_THREE = case(7009)

ENDLESS_RUN = """
import json, sys, time
from reshard.core.conversion.rank_work import RankWork
from reshard.core.runtime.progress import SilentProgress
from reshard.core.request.conversion import build_request
from reshard.flows.embedded_server import start_server
from reshard.flows.local import run_locally

def endless(work, unit):
    if unit.rank == 0:
        print(start_server().process.pid, flush=True)
    while True:
        work.advance(1)
        time.sleep(0.01)

RankWork.make = endless
run_locally(build_request(**json.loads(sys.argv[1])), SilentProgress())
"""

ONE_RUN = """
import json, sys
from reshard.core.runtime.progress import SilentProgress
from reshard.core.request.conversion import build_request
from reshard.flows.local import run_locally
print(run_locally(build_request(**json.loads(sys.argv[1])), SilentProgress()).committed)
assert "prefect.server" not in sys.modules, "importing a server takes seconds"
"""


@pytest.fixture(autouse=True)
def _console_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """run_locally takes the console for its caller; the tests want it back."""
    for name in ("prefect", "prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "level", logger.level)
        monkeypatch.setattr(logger, "propagate", logger.propagate)


def start(script: str, tmp_path: Path) -> subprocess.Popen[str]:
    request = FOUR_TO_THREE.request(tmp_path / "out")
    return subprocess.Popen(
        [sys.executable, "-c", script, request.model_dump_json()],
        cwd=PROJECT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        | {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_PROFILES_PATH": str(tmp_path / "profiles.toml")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def states(tmp_path: Path, table: str) -> set[str]:
    with sqlite3.connect(tmp_path / "prefect" / "prefect.db") as database:
        found = {name for (name,) in database.execute(f"select state_name from {table}")}
    database.close()
    return found


def is_alive(process: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


def test_uses_the_configured_server(tmp_path: Path) -> None:
    assert run_locally(FOUR_TO_THREE.request(tmp_path / "out"), SilentProgress()).committed
    with pytest.raises(InputError, match="/nowhere"):
        run_locally(FOUR_TO_THREE.request(tmp_path / "out", source_strategy="/nowhere"), SilentProgress())


@pytest.mark.slow
def test_events_of_later_runs_go_to_their_own_server(tmp_path: Path) -> None:
    of_its_own = {PREFECT_API_URL: None, PREFECT_API_DATABASE_CONNECTION_URL: f"sqlite+aiosqlite:///{tmp_path}/db"}
    with temporary_settings(of_its_own):
        assert run_locally(FOUR_TO_THREE.request(tmp_path / "embedded")).committed
    state = convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "configured"), return_state=True)
    event_of(run_id_of(state), "reshard.conversion.completed")


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(
            ConversionError,
            match=r"the Prefect server at http://127.0.0.1:9/api \(Prefect's settings\) does not answer",
        ),
    ):
        run_locally(FOUR_TO_THREE.request(tmp_path / "out"), SilentProgress())


def test_sigterm_is_left_as_it_was(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    run_locally(FOUR_TO_THREE.request(tmp_path / "out"), SilentProgress())
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_the_embedded_server_is_quiet_and_records_everything(tmp_path: Path) -> None:
    run = start(ONE_RUN, tmp_path)
    out, err = run.communicate(timeout=PATIENCE_SECONDS)
    assert (run.returncode, out, err) == (0, "True\n", "")
    assert read_tree(tmp_path / "out") == FOUR_TO_THREE.want
    assert states(tmp_path, "flow_run") == states(tmp_path, "task_run") == {"Completed"}


@pytest.mark.slow
def test_an_embedded_server_that_does_not_start_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "prefect").mkdir()
    (tmp_path / "prefect" / "prefect.db").write_text("no database")
    run = start(ONE_RUN, tmp_path)
    _, err = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 1
    assert "ConversionError: the embedded Prefect server does not answer" in err
    assert "--engine direct" in err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_the_embedded_server(number: signal.Signals, tmp_path: Path) -> None:
    run = start(ENDLESS_RUN, tmp_path)
    assert run.stdout
    server = int(run.stdout.readline())
    if number == signal.SIGINT:
        os.killpg(run.pid, number)  # as a terminal does: the server gets it too
    else:
        run.send_signal(number)
    run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode in (-number, 128 + number)
    assert not is_alive(server)
    assert states(tmp_path, "flow_run") == {"Crashed"}


@pytest.mark.slow
def test_the_embedded_server_of_a_killed_run_ends(tmp_path: Path) -> None:
    run = start(ENDLESS_RUN, tmp_path)
    assert run.stdout
    server = int(run.stdout.readline())
    assert is_alive(server)
    run.kill()
    run.communicate(timeout=PATIENCE_SECONDS)
    until(lambda: not is_alive(server), "the server is still there")

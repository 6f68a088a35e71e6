"""Nothing phones home: no process of a flow run asks for another machine, even where Prefect would send its events.

It sends them from terminals, for a fresh PREFECT_HOME, outside of CI.
"""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from prefect._internal.analytics.ci_detection import CI_ENV_VARS

import reshard.tasks
from reshard.deployments.described import read_descriptions
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT
from tests.support.training import CASE, save_step

RECORDER = """
import os, sys

def write(event, host):
    with open(os.environ["RECORDED"], "a") as file:
        file.write(f"{os.getpid()} {event} {host}\\n")

def record(event, arguments):
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    elif event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    write(event, host)

write("start", "127.0.0.1")
sys.addaudithook(record)
"""
HERE = {"127.0.0.1", "localhost", "::1", "None", "b'127.0.0.1'"}


def on_a_terminal(command: list[str], directory: Path) -> tuple[int, str, list[str]]:
    """Run a command on a terminal, without a server; return its exit code, output, and the hosts that it asked for."""
    (directory / "sitecustomize.py").write_text(RECORDER)
    recorded = directory / "recorded"
    left_out = {*CI_ENV_VARS, *reshard.tasks.TELEMETRY_OFF}
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in left_out and not name.startswith("PREFECT_") and not name.startswith("PYTEST")
    }
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=directory,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=inherited
        | {"PREFECT_HOME": str(directory / "prefect"), "RECORDED": str(recorded), "TERM": "dumb"}
        | {"PYTHONPATH": f"{directory}:{PROJECT}"},
        start_new_session=True,
    )
    os.close(slave)
    output = b""
    with suppress(OSError):  # the end of a terminal
        while chunk := os.read(master, 65536):
            output += chunk
    os.close(master)
    lines = recorded.read_text().splitlines() if recorded.exists() else []
    return process.wait(PATIENCE_SECONDS), output.decode(), lines


@pytest.mark.slow
def test_a_flow_run_with_its_server_asks_for_no_other_machine(tmp_path: Path) -> None:
    save_step(tmp_path / "training", "1_0")
    strategies = ("--source-strategy", str(CASE.directory / "src_strategy.ckpt"))
    command = ["convert-latest", str(tmp_path / "training"), str(tmp_path / "out"), *strategies, "--engine", "prefect"]
    code, output, asked = on_a_terminal([sys.executable, "-m", "reshard", *command, "--settle-seconds", "0"], tmp_path)
    assert code == 0, output
    assert "on Prefect's embedded server" in output
    assert len({line.split()[0] for line in asked}) >= 2, "the command and its server are recorded"
    assert [line for line in asked if line.split()[2] not in HERE] == []
    assert "anonymous usage data" not in output
    assert " | INFO" not in output


def test_a_users_own_choice_is_left_as_it_is() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "import os, reshard.flows; print(os.environ['DO_NOT_TRACK'])"],
        env=os.environ | {"DO_NOT_TRACK": "0"},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "0\n"


@pytest.mark.parametrize("package", ["reshard.flows", "reshard.tasks", "reshard.deployments", "reshard.cli.deploy"])
def test_every_part_that_uses_prefect_switches_its_telemetry_off_before_it_is_imported(package: str) -> None:
    script = f"import sys, os, {package}; print(os.environ['DO_NOT_TRACK'], 'prefect' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name not in reshard.tasks.TELEMETRY_OFF}
    shown = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert shown.stdout == "1 False\n"


def test_deployments_switch_it_off_for_their_runs() -> None:
    for described in read_descriptions():
        environment = described.work_pool.environment
        assert reshard.tasks.TELEMETRY_OFF.items() <= environment.items()
        assert environment["PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS"] == "false"

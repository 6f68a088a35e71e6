"""A Prefect server with the deployments, and runs of them."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.places import PROJECT
from tests.support.prefect_server import (
    PrefectServer,
    artifacts_of,
    await_run,
    start_run,
)
from tests.support.runs import recorded_ranks
from tests.support.s3_proxy import S3Proxy

CONVERT = "convert-checkpoint/convert"
STEP = "3_1200"
"""The newest step of the demo's checkpoint that is complete."""


@dataclass(frozen=True)
class Demo:
    """The demo's checkpoint, on a local disk and in a store."""

    directory: Path
    store: S3Proxy

    def parameters(self, target: Path, **others: object) -> dict[str, object]:
        """Of a conversion of a second."""
        strategies = {
            name: str(self.directory / name.removeprefix("source_")) for name in ("source_strategy", "target_strategy")
        }
        return {"source": str(self.directory / "checkpoint"), "target": str(target), **strategies, **others}

    def arguments(self, target: Path) -> list[str]:
        """The same, as a command takes them."""
        given = {name: str(value) for name, value in self.parameters(target).items()}
        places = [given.pop("source"), given.pop("target")]
        return [*places, *(word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value))]

    def slow_parameters(self, target: Path) -> dict[str, object]:
        """Of a conversion that takes as long as the store is slow, rank by rank."""
        return self.parameters(target, source="s3://source/checkpoint", workers=1, memory_limit="16MiB")


def reshard(server: PrefectServer, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command against the server."""
    command = [sys.executable, "-m", "reshard.cli.main", *arguments]
    return subprocess.run(
        command,
        cwd=PROJECT,
        env=server.environment | settings,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def start_slow_run(server: PrefectServer, demo: Demo, target: Path) -> UUID:
    """A run that has written a rank, and has others to write."""
    run_id = start_run(server, CONVERT, demo.slow_parameters(target))
    await_run(server, run_id, "Running")
    until(lambda: recorded_ranks(target), "no rank is done")
    assert not target.exists()
    return run_id


def outcomes_of(server: PrefectServer, run_id: UUID) -> Counter[str]:
    """How many ranks a run wrote, copied, or found done by an earlier one."""
    rows = artifacts_of(server, run_id)["conversion-ranks"]
    return Counter(row["outcome"] for row in (json.loads(rows) if isinstance(rows, str) else rows))

"""A real Prometheus, Debian's, with the project's alert rules, that scrapes one exporter each second."""

import json
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import PROJECT
from tests.support.prefect_server import free_port
from tests.support.servers import server_process

RULES = PROJECT / "deployments" / "prometheus" / "rules.yaml"
needs_prometheus = pytest.mark.skipif(not shutil.which("prometheus"), reason="needs Debian's prometheus")
_READY = re.compile("Server is ready to receive web requests")


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        found: list[dict[str, Any]] = self._get(f"query?{urllib.parse.urlencode({'query': expression})}")["result"]
        return found

    def value(self, expression: str) -> float | None:
        """The value of the one series that an expression has; None if it has none."""
        found = self.query(expression)
        assert len(found) < 2, found
        return float(found[0]["value"][1]) if found else None

    def rules(self) -> dict[str, dict[str, Any]]:
        """The alert rules by name, with their state."""
        return {rule["name"]: rule for group in self._get("rules")["groups"] for rule in group["rules"]}

    def _get(self, path: str) -> dict[str, Any]:
        with self._opener.open(f"{self._url}/api/v1/{path}", timeout=30) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data


@contextmanager
def prometheus_server(directory: Path, target: str) -> Iterator[Prometheus]:
    """Runs a server for the time of the block; `target` is HOST:PORT of the exporter."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "reshard", "static_configs": [{"targets": [target]}]}],
    }
    file = directory / "prometheus.yaml"
    file.write_text(json.dumps(config))  # YAML as well
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"]
    with server_process([*command, f"--web.listen-address={address}"], _READY, directory / "prometheus.log", {}):
        yield Prometheus(f"http://{address}")

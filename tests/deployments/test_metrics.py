"""`reshard metrics`: what it says of a server's conversions to a real Prometheus, by the dashboard and the alerts."""

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import DeploymentSchedule, FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from reshard.core.conversion.history import ConversionState, HistoryEntry
from reshard.deployments.metrics import conversion_metrics, run_metrics, schedule_metrics
from reshard.tasks.history import read_history
from tests.support.deployed import CONVERT, Demo, reshard
from tests.support.patience import until
from tests.support.places import PROJECT
from tests.support.prefect_server import PrefectServer, Worker, await_run, free_port, start_run
from tests.support.prometheus import RULES, Prometheus, needs_prometheus, prometheus_server
from tests.support.servers import server_process

DASHBOARD = json.loads((PROJECT / "deployments/grafana/reshard.json").read_text())
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
ENDED = datetime(2026, 3, 1, tzinfo=UTC)
Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def values_of(metrics: Iterable[Metric]) -> Values:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value for metric in metrics for sample in metric.samples
    }


def value(values: Values, metric: str, **labels: str) -> float | None:
    return values.get((metric, frozenset(labels.items())))


def entry(state: ConversionState, **others: Any) -> HistoryEntry:
    fields: dict[str, Any] = {"deployment": "convert", "ended": ENDED, "flow_run_id": str(uuid4())}
    return HistoryEntry(state=state, **fields | others)


def test_counters_are_sums_over_completed_conversions_only() -> None:
    entries = [
        entry(ConversionState.COMMITTED, seconds=5.0, read_bytes=100, written_bytes=50, retried_requests=2),
        entry(ConversionState.COMMITTED, seconds=70.0, read_bytes=1, written_bytes=2, ended=ENDED + timedelta(hours=1)),
        entry(ConversionState.FAILED, seconds=900.0, read_bytes=7, retried_requests=9),
        entry(ConversionState.RUNNING, ended=None),
        entry(ConversionState.COMMITTED, deployment=None, written_bytes=11),
    ]
    values = values_of(conversion_metrics(entries))
    ours = {"deployment": "convert"}
    assert value(values, "reshard_read_bytes_total", **ours) == 101
    assert value(values, "reshard_written_bytes_total", **ours) == 52
    assert value(values, "reshard_written_bytes_total", deployment="none") == 11
    assert value(values, "reshard_retried_requests_total", **ours) == 2
    assert value(values, "reshard_conversion_seconds_count", **ours) == 2
    assert value(values, "reshard_conversion_seconds_sum", **ours) == 75
    assert value(values, "reshard_conversion_seconds_bucket", **ours, le="10.0") == 1
    assert value(values, "reshard_conversion_seconds_bucket", **ours, le="+Inf") == 2
    assert value(values, "reshard_conversions", **ours, state="failed") == 1
    assert value(values, "reshard_conversions", **ours, state="committed") == 2
    assert value(values, "reshard_last_success_timestamp_seconds", **ours) == (ENDED + timedelta(hours=1)).timestamp()
    assert value(values, "reshard_last_failure_timestamp_seconds", **ours) == ENDED.timestamp()


def test_the_order_of_runs_does_not_show() -> None:
    entries = [entry(ConversionState.COMMITTED, seconds=seconds) for seconds in (1e16, 1.0, 1.0)]
    assert values_of(conversion_metrics(entries)) == values_of(conversion_metrics(entries[::-1]))


def test_a_server_without_conversions_says_zero_so_that_the_first_one_counts() -> None:
    values = values_of(conversion_metrics([]))
    for name in ("convert", "convert-with-approval", "convert-latest", "none"):
        assert value(values, "reshard_written_bytes_total", deployment=name) == 0
        assert value(values, "reshard_conversions", deployment=name, state="crashed") == 0
        assert value(values, "reshard_last_success_timestamp_seconds", deployment=name) is None


def deployment(name: str, *schedules: DeploymentSchedule) -> DeploymentResponse:
    return DeploymentResponse(id=uuid4(), name=name, flow_id=uuid4(), labels={}, schedules=list(schedules))


def test_the_last_conversion_of_a_schedule_is_known_by_its_target() -> None:
    def schedule(slug: str, target: str, *, active: bool = True) -> DeploymentSchedule:
        return DeploymentSchedule(
            id=uuid4(), schedule=CronSchedule(cron="@daily"), slug=slug, active=active, parameters={"target": target}
        )

    latest = deployment(
        "convert-latest",
        schedule("llama", "/data/llama/serving/"),
        schedule("qwen", "s3://bucket/qwen", active=False),
        schedule("other", "/data/llama"),
    )
    entries = [
        entry(ConversionState.COMMITTED, target="file:///data/llama/serving/10_5"),
        entry(ConversionState.COMMITTED, target="s3://bucket/qwen", ended=ENDED + timedelta(1)),
        entry(ConversionState.FAILED, target="file:///data/llama/serving/20_5", ended=ENDED + timedelta(2)),
    ]
    values = values_of(schedule_metrics([latest], entries))
    name = "reshard_schedule_last_conversion_timestamp_seconds"
    assert value(values, name, schedule="llama") == ENDED.timestamp()
    assert value(values, name, schedule="qwen") == (ENDED + timedelta(1)).timestamp()
    assert value(values, name, schedule="other") is None
    assert value(values, "reshard_schedule_active", schedule="qwen") == 0


def test_runs_are_counted_by_state_and_the_longest_wait_is_told() -> None:
    convert, verify = deployment("convert"), deployment("verify")
    now = datetime.now(UTC)

    def run(kind: StateType, name: str, waited_seconds: float) -> FlowRun:
        due: Any = now - timedelta(seconds=waited_seconds)
        return FlowRun(
            flow_id=uuid4(), deployment_id=convert.id, state_type=kind, state_name=name, expected_start_time=due
        )

    runs = [
        run(StateType.SCHEDULED, "Late", 90),
        run(StateType.SCHEDULED, "AwaitingConcurrencySlot", 30),
        run(StateType.SCHEDULED, "Scheduled", 1),
        run(StateType.RUNNING, "Running", 5000),
        run(StateType.PAUSED, "Suspended", 7000),
    ]
    values = values_of(run_metrics(runs, [convert, verify], now))
    states = {
        state: value(values, "reshard_runs", deployment="convert", state=state) for state in ("late", "suspended")
    }
    assert states == {"late": 1, "suspended": 1}
    assert value(values, "reshard_runs", deployment="convert", state="waiting_for_slot") == 1
    assert value(values, "reshard_runs", deployment="verify", state="running") == 0
    assert value(values, "reshard_queue_oldest_seconds", deployment="convert") == 90
    assert value(values, "reshard_queue_oldest_seconds", deployment="verify") == 0


def test_the_dashboard_uses_metrics_that_there_are_and_its_panels_do_not_overlap() -> None:
    source = "".join((PROJECT / f"deployments/{name}.py").read_text() for name in ("metrics", "exporter"))
    texts = [expression for _, expression in EXPRESSIONS] + [RULES.read_text()]
    used = {name for text in texts for name in re.findall(r"\breshard_(\w+?)(?:_total|_bucket|_count)?\b", text)}
    fields = set(re.findall(r'"reshard_([a-z_]+)"', source)) | {"last_success_timestamp_seconds"}
    fields |= {"last_failure_timestamp_seconds", "read_bytes", "written_bytes", "retried_requests"}
    assert used <= fields
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs Debian's prometheus")
def test_prometheus_understands_the_configuration_and_the_rules() -> None:
    config = RULES.with_name("prometheus.yaml")
    done = subprocess.run(["promtool", "check", "config", str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 rules found" in done.stdout


@pytest.fixture(scope="module")
def exporter(server: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of `reshard metrics`."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "reshard.cli.main", "metrics", "--port", address.rpartition(":")[2]]
    log = tmp_path_factory.mktemp("exporter") / "log"
    with server_process(command, re.compile(r"metrics of \S+ at \S+/metrics; Ctrl-C stops"), log, server.environment):
        yield address


@pytest.fixture(scope="module")
def prometheus(exporter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Scrapes the exporter, and has done so once."""
    with prometheus_server(tmp_path_factory.mktemp("prometheus"), exporter) as prometheus:
        until(lambda: prometheus.value("reshard_up"), "Prometheus has no metrics")
        yield prometheus


@pytest.fixture(scope="module")
def conversions(
    prometheus: Prometheus, server: PrefectServer, worker: Worker, demo: Demo, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """A completed conversion, one of a schedule, and one that failed, while Prometheus watches."""
    directory = tmp_path_factory.mktemp("converted")
    await_run(server, start_run(server, CONVERT, demo.parameters(directory / "once")), "Completed")
    parameters = demo.parameters(directory / "latest")
    made = reshard(server, "schedule", *demo.arguments(directory / "latest"), "--cron", "0 0 1 1 *", "--name", "yearly")
    assert made.returncode == 0, made.stderr
    latest = "convert-latest-checkpoint/convert-latest"
    await_run(server, start_run(server, latest, parameters), "Completed")
    wrong = demo.parameters(directory / "failed", source=str(directory / "nothing"))
    await_run(server, start_run(server, CONVERT, wrong), "Failed")
    yield
    assert reshard(server, "schedule", "--remove", "yearly").returncode == 0


@pytest.mark.slow
@needs_prometheus
@pytest.mark.usefixtures("conversions")
def test_prometheus_has_what_the_servers_history_has(server: PrefectServer, prometheus: Prometheus) -> None:
    entries = [each for each in read_history(server.client) if each.state is ConversionState.COMMITTED]
    written = sum(each.written_bytes or 0 for each in entries)
    assert written > 0
    until(lambda: prometheus.value("sum(reshard_written_bytes_total)") == written, "the bytes are not there")
    assert prometheus.value("sum(reshard_read_bytes_total)") == sum(each.read_bytes or 0 for each in entries)
    assert prometheus.value("sum(reshard_conversion_seconds_count)") == len(entries)
    until(lambda: (prometheus.value("sum(increase(reshard_written_bytes_total[1h]))") or 0) > 0, "nothing was added")
    until(lambda: prometheus.value('sum(reshard_conversions{state="failed"})'), "the failure is not there")
    until(lambda: prometheus.value('reshard_work_pool_workers{status="online"}'), "the worker is not online")
    rules = until(
        lambda: (rules := prometheus.rules())["ReshardConversionFailed"]["state"] == "firing" and rules, "no alert"
    )
    assert {name: rule["health"] for name, rule in rules.items()} == dict.fromkeys(rules, "ok")
    assert rules["ReshardNoConversion"]["state"] == "inactive"


@pytest.mark.slow
@needs_prometheus
@pytest.mark.usefixtures("conversions")
@pytest.mark.parametrize("expression", [each for _, each in EXPRESSIONS], ids=[title for title, _ in EXPRESSIONS])
def test_each_panel_of_the_dashboard_shows_something(prometheus: Prometheus, expression: str) -> None:
    until(lambda: prometheus.query(expression), f"no data: {expression}")


@pytest.mark.slow
def test_another_exporter_says_the_same(server: PrefectServer, exporter: str) -> None:
    """Nothing is counted in the process: it may be started again."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{exporter}/metrics") as answer:
        first = answer.read().decode()
    once = reshard(server, "metrics", "--once")
    assert once.returncode == 0, once.stderr
    assert _counters(once.stdout) == _counters(first)
    assert "reshard_conversion_seconds_count" in {name for name, _ in _counters(first)}


def _counters(text: str) -> Values:
    kinds = ("counter", "histogram")
    return values_of(family for family in text_string_to_metric_families(text) if family.type in kinds)


@pytest.mark.slow
def test_a_server_that_does_not_answer(bare_server: PrefectServer, tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{free_port()}/api"
    once = reshard(bare_server, "metrics", "--once", PREFECT_API_URL=dead)
    assert (once.returncode, once.stdout) == (3, "")
    assert f"the Prefect server at {dead} (PREFECT_API_URL in the environment) does not answer: " in once.stderr
    port = free_port()
    command = [sys.executable, "-m", "reshard.cli.main", "metrics", "--port", str(port)]
    settings = bare_server.environment | {"PREFECT_API_URL": dead}
    log = tmp_path / "log"
    with server_process(command, re.compile("Ctrl-C stops"), log, settings):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{port}/metrics") as answer:
            values = values_of(text_string_to_metric_families(answer.read().decode()))
        taken = reshard(bare_server, "metrics", "--port", str(port))
    assert value(values, "reshard_up") == 0
    assert "the Prefect server does not answer: " in log.read_text()
    assert (taken.returncode, taken.stdout) == (2, "")
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use: choose another port" in taken.stderr


@pytest.mark.slow
def test_sigterm_ends_it_in_order(bare_server: PrefectServer) -> None:
    command = [sys.executable, "-m", "reshard.cli.main", "metrics", "--port", str(free_port())]
    with subprocess.Popen(command, env=bare_server.environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert "/metrics; Ctrl-C stops" in process.stderr.readline()
        process.terminate()
        left = process.stderr.read()
    assert (process.returncode, left) == (0, "")

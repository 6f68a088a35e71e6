"""What the flow adds to ranks that are next to no work: `python -m benchmarks.overhead threads|local|cluster RANKS`.

Prints as JSON how long the flow took, that for each rank, and how much later the server had recorded the last task
run; the peak memory of the run's process, the server's memory at the end, and its slowest answer meanwhile. Starting a
cluster is not in it if it runs already: `cluster` is a scheduler and two workers on this machine.
"""

import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import psutil
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.sorting import TaskRunSort
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from benchmarks.errors import BenchmarkError
from benchmarks.files import write_checkpoint, write_strategies
from benchmarks.models import cut_by, matrices
from reshard.core.files.model import CheckpointFormat
from reshard.core.request.conversion import ConversionRequest
from reshard.flows.convert_checkpoint import convert_checkpoint
from tests.support.dask_processes import dask_processes

KINDS = ("threads", "local", "cluster")
_WORKERS = 2
_ROWS, _COLUMNS = 4000, 8
_RECORDED_SECONDS = 120
_QUIET_POLLS = 4
_POLL_SECONDS = 0.25
_ASK_SECONDS = 0.5


def main() -> None:
    """The command."""
    kind, ranks = sys.argv[1], int(sys.argv[2])
    with (
        tempfile.TemporaryDirectory(prefix="reshard-overhead-") as place,
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        _scheduler(kind, Path(place)) as scheduler,
    ):
        request = _request(Path(place), "measured", ranks, scheduler)
        if kind == "cluster":
            _await_recording(_convert(_request(Path(place), "before", _WORKERS, scheduler)))
        with _asking() as answers:
            started = time.perf_counter()
            flow_run_id = _convert(request)
            seconds = time.perf_counter() - started
        recorded = _await_recording(flow_run_id)
    figures = {
        "flow_seconds": seconds,
        "seconds_per_rank": seconds / ranks,
        "recorded_seconds": recorded,
        "slowest_answer_seconds": max(answers),
        "run_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "server_bytes": _server_bytes(),
    }
    print(json.dumps(figures))


def _convert(request: ConversionRequest) -> UUID:
    """Run the flow; return its run's id."""
    state = convert_checkpoint(request, return_state=True)
    if not state.is_completed() or state.state_details.flow_run_id is None:
        raise BenchmarkError(f"the conversion failed: {state.message}")
    return state.state_details.flow_run_id


def _request(place: Path, name: str, ranks: int, scheduler: str) -> ConversionRequest:
    directory = place / name
    directory.mkdir()
    rows = -(-_ROWS // ranks) * ranks
    model = matrices(1, (rows, _COLUMNS), cut_by(0, 1), cut_by(0, ranks))
    write_checkpoint(model, CheckpointFormat.CKPT, directory / "source")
    write_strategies(model, directory)
    return ConversionRequest(
        source=str(directory / "source"),
        target=str(directory / "out"),
        source_strategy=str(directory / "source_strategy.ckpt"),
        target_strategy=str(directory / "target_strategy.ckpt"),
        workers=_WORKERS,
        dask_scheduler=scheduler,
    )


@contextmanager
def _scheduler(kind: str, directory: Path) -> Iterator[str]:
    if kind != "cluster":
        yield "" if kind == "threads" else "local"
        return
    with dask_processes(directory / "dask") as cluster:
        cluster.add_workers(_WORKERS)
        yield cluster.address


@contextmanager
def _asking() -> Iterator[list[float]]:
    """Ask the server for its health twice a second; yields how long its answers took."""
    answers = [0.0]
    ended = threading.Event()

    def ask() -> None:
        with get_client(sync_client=True) as client:
            while not ended.wait(_ASK_SECONDS):
                started = time.perf_counter()
                client.hello()
                answers.append(time.perf_counter() - started)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        ended.set()
        thread.join()


def _server_bytes() -> int:
    """Resident memory of the server's process on this machine; 0 if it is elsewhere."""
    port = urlsplit(str(PREFECT_API_URL.value())).port
    listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN and each.pid]
    return sum(int(psutil.Process(each.pid).memory_info().rss) for each in listening if each.laddr.port == port)


def _await_recording(flow_run_id: UUID) -> float:
    """How long it takes until the server knows the end of as many task runs as it will."""
    EventsWorker.instance().wait_until_empty()
    started = last = time.perf_counter()
    ended, quiet = -1, 0
    while quiet < _QUIET_POLLS:
        time.sleep(_POLL_SECONDS)
        now = _ended_tasks(flow_run_id)
        quiet = quiet + 1 if now == ended else 0
        last = last if now == ended else time.perf_counter()
        ended = now
        if time.perf_counter() - started > _RECORDED_SECONDS:
            raise BenchmarkError(f"the server has recorded the end of {ended} task runs, and is still at it")
    return last - started


def _ended_tasks(flow_run_id: UUID) -> int:
    ours = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    count, offset = 0, 0
    with get_client(sync_client=True) as client:
        while runs := client.read_task_runs(flow_run_filter=ours, sort=TaskRunSort.ID_DESC, limit=200, offset=offset):
            count += sum(run.state is not None and run.state.is_final() for run in runs)
            offset += len(runs)
    return count


if __name__ == "__main__":
    main()

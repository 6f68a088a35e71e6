"""Ranks on the workers of a real Dask cluster: what is made there, and that nothing that was lost looks done."""

import contextvars
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from prefect.logging import disable_run_logger
from prefect.settings import PREFECT_API_URL, temporary_settings

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.dispatch import Kind, Unit
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.session import open_session
from reshard.core.errors import ConversionError, InputError
from reshard.core.request.conversion import ConversionRequest
from reshard.flows.convert_checkpoint import convert_checkpoint
from tests.core.layouts.dcp.test_catalog import strategy_of
from tests.core.layouts.dcp.test_crcs import DAMAGED, UNEVEN, flip_value
from tests.support.checkpoints import case, read_tree
from tests.support.columns import column_case
from tests.support.dask_processes import DaskProcesses, dask_processes
from tests.support.places import PROJECT
from tests.support.runs import files_of, partial, recorded_ranks
from tests.support.s3_proxy import s3_proxy
from tests.support.s3_server import s3_server
from tests.support.sha256 import recorded_sha256, sha256_of
from tests.support.signed_sources import Keys, copy_of_source
from tests.support.signing import digests_of, new_key, private_pem, signed_digests

FOUR_TO_THREE = case(7009)
PIPELINES = case(7001)

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskProcesses]:
    with dask_processes(tmp_path / "dask") as processes:
        yield processes


def test_converts_on_a_local_cluster(tmp_path: Path) -> None:
    report = convert_checkpoint(PIPELINES.request(tmp_path / "out", dask_scheduler="local", verify="content"))
    assert report.committed
    assert report.compared  # the source is read by the workers, too
    assert read_tree(tmp_path / "out") == PIPELINES.want


def test_workers_take_the_sha256_of_what_they_write_and_the_run_alone_signs(
    cluster: DaskProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_workers(2)
    key, keys, source = new_key(), Keys(tmp_path / "keys"), copy_of_source(PIPELINES, tmp_path)
    keys.sign(source)
    monkeypatch.setenv("KEY", private_pem(key).decode())  # the workers have neither of these
    monkeypatch.setenv("TRAINING", keys.public.read_text())
    monkeypatch.setattr("reshard.core.conversion.sha256._hash_ranks", None)  # the run has none to take
    target = tmp_path / "out"
    asked = {"source": str(source), "require_signed_by": "env:TRAINING", "sign": "env:KEY", "verify": "none"}
    convert_checkpoint(PIPELINES.request(target, dask_scheduler=cluster.address, **asked))
    assert recorded_sha256(target) == {name: each for name, each in sha256_of(target).items() if name != "model.sig"}
    assert signed_digests((target / "model.sig").read_bytes(), key) == digests_of(target)


def test_workers_report_the_crcs_of_what_they_read(cluster: DaskProcesses, tmp_path: Path) -> None:
    cluster.add_workers(2)
    case = UNEVEN.copied(tmp_path / "case")
    options = {"target_strategy": strategy_of(case.whole, tmp_path), "dask_scheduler": cluster.address}
    report = convert_checkpoint(case.request(tmp_path / "right", **options))
    assert report.committed
    # but for what two workers have read in parts that overlap: that is read once more
    assert report.crc_bytes < sum(len(data) for _, _, data in case.whole.values()) // 20
    flip_value(case, DAMAGED)
    with pytest.raises(InputError, match=f"parameter '{DAMAGED}': its .* the file says 0x.*: damaged"):
        convert_checkpoint(case.request(tmp_path / "wrong", **options))
    assert not (tmp_path / "wrong").exists()
    assert len(recorded_ranks(tmp_path / "wrong")) < len(report.ranks)


def test_workers_compare_the_values_of_an_encrypted_source_with_a_target_that_was_finished_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")
    convert(FOUR_TO_THREE.request(tmp_path / "src", encrypt_key="env:KEY"))
    strategy = str(FOUR_TO_THREE.directory / "dst_strategy.ckpt")
    source = {"source": str(tmp_path / "src"), "source_strategy": strategy, "decrypt_key": "env:KEY"}
    request = FOUR_TO_THREE.request(tmp_path / "out", target_strategy="", **source)
    convert(request)
    report = convert_checkpoint(request.model_copy(update={"dask_scheduler": "local", "verify": VerifyLevel.CONTENT}))
    assert report.compared
    assert report.verified is VerifyLevel.CONTENT


def test_converts_on_a_running_cluster(cluster: DaskProcesses, tmp_path: Path) -> None:
    cluster.add_workers(2)
    report = convert_checkpoint(PIPELINES.request(tmp_path / "out", dask_scheduler=cluster.address))
    assert report.committed
    assert read_tree(tmp_path / "out") == PIPELINES.want
    (tmp_path / "columns").mkdir()
    columns = column_case(tmp_path / "columns")
    assert convert_checkpoint(columns.request(dask_scheduler=cluster.address)).committed
    assert read_tree(columns.target) == columns.want


def test_a_scheduler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.flows.dask_cluster.CONNECT_SECONDS", 1.0)
    with pytest.raises(ConversionError, match=r"the Dask scheduler at tcp://127.0.0.1:9 does not answer"):
        convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", dask_scheduler="tcp://127.0.0.1:9"))
    assert not (tmp_path / "out").exists()


def test_a_server_that_is_no_scheduler_and_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONNECT_SECONDS", "_ANSWER_SECONDS"):
        monkeypatch.setattr(f"reshard.flows.dask_cluster.{name}", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConversionError, match=f"the Dask scheduler at {address} does not answer: what listens"):
            convert_checkpoint(PIPELINES.request(tmp_path / "out", dask_scheduler=address))
    assert not (tmp_path / "out").exists()


def test_a_scheduler_without_workers(cluster: DaskProcesses, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"the Dask cluster at tcp://\S+ has no workers. Start some"):
        convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", dask_scheduler=cluster.address))


def test_without_dask_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "reshard.flows.dask_cluster", raising=False)
    monkeypatch.setitem(sys.modules, "prefect_dask", None)
    monkeypatch.setitem(sys.modules, "prefect_dask.task_runners", None)
    with pytest.raises(
        InputError, match=r"dask_scheduler local: Dask is not installed .*pip install 'reshard\[dask\]'"
    ):
        convert_checkpoint(FOUR_TO_THREE.request(tmp_path / "out", dask_scheduler="local"))


def test_workers_elsewhere_need_a_server_that_they_reach(tmp_path: Path) -> None:
    from reshard.flows.dask_cluster import running_cluster

    with (
        temporary_settings({PREFECT_API_URL: None}),
        pytest.raises(InputError, match="could not reach Prefect's embedded server"),
        running_cluster("tcp://127.0.0.1:9"),
    ):
        pass


def test_a_worker_that_is_killed_does_not_fail_the_run(cluster: DaskProcesses, tmp_path: Path) -> None:
    cluster.add_workers(2)
    killed = threading.Thread(target=kill_when_recorded, args=(cluster, [cluster.workers[0]], tmp_path / "out", 1))
    killed.start()
    report = convert_checkpoint(PIPELINES.request(tmp_path / "out", dask_scheduler=cluster.address))
    killed.join()
    assert cluster.workers[0].poll() is not None
    assert report.committed
    assert read_tree(tmp_path / "out") == PIPELINES.want


def test_when_all_workers_die_the_ranks_are_told_by_name(
    cluster: DaskProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshard.flows.dask_cluster.NO_WORKERS_SECONDS", 3.0)
    cluster.add_workers(2)
    killed = threading.Thread(target=kill_when_recorded, args=(cluster, list(cluster.workers), tmp_path / "out", 2))
    killed.start()
    state = convert_checkpoint(PIPELINES.request(tmp_path / "out", dask_scheduler=cluster.address), return_state=True)
    killed.join()
    assert state.is_failed()
    assert "rank_11: its task was lost: the Dask cluster at" in str(state.message)
    assert "has had no workers for 3 s" in str(state.message)
    assert not (tmp_path / "out").exists()
    cluster.add_workers(1)
    assert convert_checkpoint(PIPELINES.request(tmp_path / "out", dask_scheduler=cluster.address)).committed
    assert read_tree(tmp_path / "out") == PIPELINES.want


def test_when_the_scheduler_dies_the_run_fails(cluster: DaskProcesses, tmp_path: Path) -> None:
    cluster.add_workers(1)
    killed = threading.Thread(target=kill_when_recorded, args=(cluster, [cluster.scheduler], tmp_path / "out", 1))
    killed.start()
    state = convert_checkpoint(PIPELINES.request(tmp_path / "out", dask_scheduler=cluster.address), return_state=True)
    killed.join()
    assert state.is_failed()
    assert "rank_11: its task was lost" in str(state.message)
    assert not (tmp_path / "out").exists()


# ---- the run's end is the end of its work ----

FLOW = """
import sys
from reshard.core.request.conversion import ConversionRequest
from reshard.flows.convert_checkpoint import convert_checkpoint
if __name__ == "__main__":
    convert_checkpoint(ConversionRequest.model_validate_json(sys.argv[1]))
"""


class SlowWorkers:
    """Makes workers pause, for as long as a file is there, when they are about to write a rank."""

    MODULE = """
import os, time
import reshard.core.conversion.rank_work, reshard.core.transfer.writer
def slowly(*args, **options):
    while os.path.exists({gate!r}):
        open({seen!r}, "a").close()
        time.sleep(0.05)
    return reshard.core.transfer.writer.transform_ranks(*args, **options)
reshard.core.conversion.rank_work.transform_ranks = slowly
"""

    def __init__(self, directory: Path) -> None:
        self.gate, self.seen = directory / "gate", directory / "seen"
        self.gate.touch()
        self.preload = directory / "slow_preload.py"
        self.preload.write_text(self.MODULE.format(gate=str(self.gate), seen=str(self.seen)))

    def await_work(self) -> None:
        """Returns when a worker is about to write."""
        deadline = time.monotonic() + 120
        while not self.seen.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def slow(tmp_path: Path) -> SlowWorkers:
    return SlowWorkers(tmp_path)


def start_flow(request: ConversionRequest) -> "subprocess.Popen[bytes]":
    settings = {"PREFECT_API_URL": str(PREFECT_API_URL.value()), "PYTHONPATH": str(PROJECT)}
    return subprocess.Popen(
        [sys.executable, "-c", FLOW, request.model_dump_json()],
        env=os.environ | settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def everything_in(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_what_a_killed_run_left_under_way_writes_nothing_after_another_took_over(
    cluster: DaskProcesses, tmp_path: Path, slow: SlowWorkers
) -> None:
    cluster.add_workers(2, preload=slow.preload)
    target = tmp_path / "out"
    flow = start_flow(FOUR_TO_THREE.request(target, dask_scheduler=cluster.address))
    slow.await_work()
    flow.kill()
    flow.wait()
    # another plan, which writes files of the same names
    other = case(7003)
    assert convert(other.request(target, overwrite=True)).committed
    before = everything_in(target)
    slow.gate.unlink()  # those of the killed run go on
    time.sleep(3)
    assert everything_in(target) == before
    assert read_tree(target) == other.want
    assert not partial(target).exists()


def test_workers_stop_soon_after_the_run_is_terminated(
    cluster: DaskProcesses, tmp_path: Path, slow: SlowWorkers
) -> None:
    cluster.add_workers(2, preload=slow.preload)
    target = tmp_path / "out"
    flow = start_flow(FOUR_TO_THREE.request(target, dask_scheduler=cluster.address))
    slow.await_work()
    flow.terminate()
    flow.wait(timeout=30)
    slow.gate.unlink()
    deadline = time.monotonic() + 20
    while list(partial(target).rglob("*.tmp")):  # a worker that stops clears away what it had begun
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not recorded_ranks(target)
    assert convert(FOUR_TO_THREE.request(target)).committed
    assert read_tree(target) == FOUR_TO_THREE.want


def test_a_worker_that_does_not_see_the_files_says_so(cluster: DaskProcesses, tmp_path: Path) -> None:
    from reshard.tasks.assignment import Assignment
    from reshard.tasks.conversion import transform_rank

    request = FOUR_TO_THREE.request(tmp_path / "out")
    with open_session(request, make_plan(request)) as session, disable_run_logger():
        assignment = Assignment.of(session)
        elsewhere = replace(assignment, plan_url="/not/here/.reshard/plan.json.gz")
        with pytest.raises(InputError, match="is not seen on .*have to be on a file system that all machines"):
            contextvars.Context().run(transform_rank.fn, elsewhere, Unit(Kind.WRITE, (0,)))
        skewed = replace(assignment, version="0.0")
        with pytest.raises(InputError, match="the run's is 0.0: install the same"):
            contextvars.Context().run(transform_rank.fn, skewed, Unit(Kind.WRITE, (0,)))


# ---- between buckets ----


def test_converts_from_bucket_to_bucket_while_a_worker_is_killed(tmp_path: Path) -> None:
    with s3_server(tmp_path / "s3") as s3, s3_proxy(s3) as proxy:
        shutil.copytree(PIPELINES.directory, s3.path("source", "model"))
        s3.look_again()
        keys = tmp_path / "keys.json"
        keys.write_text(json.dumps({"endpoint_url": proxy.url, "key": s3.access_key, "secret": s3.secret_key}))
        asked = PIPELINES.request(
            "s3://target/out",
            source="s3://source/model/src",
            source_strategy="s3://source/model/src_strategy.ckpt",
            target_strategy=str(PIPELINES.directory / "dst_strategy.ckpt"),
            source_storage=f"file:{keys}",
            target_storage=f"file:{keys}",
        )
        with dask_processes(tmp_path / "dask") as cluster:
            cluster.add_workers(2)
            records = s3.path("target", "out/.reshard/records")
            killed = threading.Thread(target=kill_when, args=(cluster, [cluster.workers[0]], records, 1))
            killed.start()
            report = convert_checkpoint(asked.model_copy(update={"dask_scheduler": cluster.address}))
            killed.join()
            assert cluster.workers[0].poll() is not None
        assert report.committed
        assert read_tree(s3.path("target", "out")) == PIPELINES.want
    direct = convert(PIPELINES.request(tmp_path / "direct"))
    assert direct.committed
    assert files_of(tmp_path / "direct") == files_of(s3.path("target", "out"))


def kill_when_recorded(cluster: DaskProcesses, processes: list, target: Path, count: int) -> None:
    """Kills processes as soon as so many ranks are recorded."""
    kill_when(cluster, processes, partial(target) / ".reshard" / "records", count)


def kill_when(cluster: DaskProcesses, processes: list, records: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(list(records.glob("rank_*.json"))) < count:
        time.sleep(0.005)
    for process in processes:
        cluster.kill(process)

"""`reshard schedule`: what it makes on a server, changes and refuses, and that a worker then converts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reshard.core.errors import InputError
from reshard.core.request.latest import LatestConversionRequest
from reshard.deployments.job_schedules import LATEST, default_name, scheduled_parameters
from tests.support.deployed import STEP, Demo, reshard
from tests.support.patience import until
from tests.support.prefect_server import PrefectServer, Worker
from tests.support.runs import Files, check_finished

JOB = ("/data/llama/checkpoint", "/data/llama/serving")
NIGHTLY = ("--cron", "0 2 * * *", "--timezone", "Europe/Berlin")


def test_a_schedules_parameters_are_what_differs_from_the_defaults() -> None:
    request = LatestConversionRequest(
        source="/data/a", target="s3://bucket/b", keep_checkpoint_max=5, exclude=["adam_*"], dry_run=True
    )
    assert scheduled_parameters(request) == {
        "source": "/data/a",
        "target": "s3://bucket/b",
        "keep_checkpoint_max": 5,
        "exclude": ["adam_*"],
    }


def test_relative_paths_are_refused_by_name() -> None:
    request = LatestConversionRequest(source="checkpoint", target="/data/b", target_strategy="./strategy")
    with pytest.raises(InputError) as caught:
        scheduled_parameters(request)
    source, strategy = str(caught.value).splitlines()
    assert source.startswith(
        "'source' 'checkpoint': a relative path, but a deployed run works in a temporary directory of its"
    )
    assert strategy.startswith("'target_strategy' './strategy': a relative path, ")


@pytest.mark.parametrize(
    ("target", "name"),
    [("/data/llama/serving/", "llama-serving"), ("s3://bucket/serving", "bucket-serving"), ("/out", "out")],
)
def test_a_schedule_is_named_after_its_target(target: str, name: str) -> None:
    assert default_name(target) == name


@pytest.fixture
def own(server: PrefectServer) -> Iterator[PrefectServer]:
    """The server; schedules that a test makes are removed."""
    before = {each.id for each in server.client.read_deployment_by_name(LATEST).schedules}
    yield server
    deployment = server.client.read_deployment_by_name(LATEST)
    for each in deployment.schedules:
        if each.id not in before:
            server.client.delete_deployment_schedule(deployment.id, each.id)


def put(server: PrefectServer, *arguments: str) -> dict[str, Any]:
    done = reshard(server, "schedule", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def listed(server: PrefectServer) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in put(server, "--list")["schedules"]}


@pytest.mark.slow
def test_the_same_command_again_changes_nothing_and_another_changes_the_schedule(own: PrefectServer) -> None:
    dry = put(own, *JOB, *NIGHTLY, "--dry-run")
    assert (dry["outcome"], dry["dry_run"]) == ("made", True)
    assert "llama-serving" not in listed(own)
    made = put(own, *JOB, *NIGHTLY, "--keep-checkpoint-max", "5")
    assert (made["name"], made["outcome"], made["when"]) == ("llama-serving", "made", "0 2 * * * Europe/Berlin")
    assert [moment[11:19] for moment in made["next"]] == ["02:00:00"] * 3
    assert listed(own)["llama-serving"]["parameters"] == {"source": JOB[0], "target": JOB[1], "keep_checkpoint_max": 5}
    assert put(own, *JOB, *NIGHTLY, "--keep-checkpoint-max", "5")["outcome"] == "unchanged"

    # a changed one stays paused, and deploying keeps all of it
    assert put(own, "--pause", "llama-serving")["outcome"] == "paused"
    assert listed(own)["llama-serving"]["parameters"]["target"] == JOB[1]  # Prefect's own command drops them
    changed = reshard(own, "schedule", *JOB, "--every", "10m")
    assert changed.stdout.splitlines() == [
        "schedule  llama-serving, changed",
        "fires     every 10m",
        "note      it is paused; switch it on with: reshard schedule --resume llama-serving",
    ]
    assert reshard(own, "deploy").returncode == 0
    there = listed(own)["llama-serving"]
    assert (there["active"], there["when"], there["next"]) == (False, "every 10m", [])
    assert there["parameters"] == {"source": JOB[0], "target": JOB[1]}
    assert put(own, "--resume", "llama-serving")["outcome"] == "resumed"
    assert len(listed(own)["llama-serving"]["next"]) == 3
    assert put(own, "--remove", "llama-serving")["outcome"] == "removed"
    assert set(listed(own)) == {"every-10-minutes"}


@pytest.mark.slow
def test_two_jobs_do_not_share_a_schedule_by_accident(own: PrefectServer) -> None:
    put(own, "/data/a/checkpoint", "/data/a/serving", "--every", "1h")
    refused = reshard(own, "schedule", "/mnt/checkpoint", "/mnt/a/serving", "--every", "1h")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "reshard: error: the schedule a-serving has another target, /data/a/serving: choose another --name for "
        "this one, or update that one with --name a-serving\n"
    )
    assert put(own, "/mnt/checkpoint", "/mnt/a/serving", "--every", "1h", "--name", "mnt")["outcome"] == "made"
    assert put(own, "/mnt/checkpoint", "/mnt/serving", "--every", "1h", "--name", "mnt")["outcome"] == "changed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*JOB, "--cron", "0 25 * * *"), "--cron '0 25 * * *': not a cron expression: "),
        (("checkpoint", JOB[1], "--every", "1h"), "SOURCE 'checkpoint': a relative path, but a deployed run works"),
        ((*JOB, "--every", "1h", "--encrypt-key", "file:key"), "--encrypt-key 'file:key': a relative path, "),
        (("--pause", "lama"), "no schedule 'lama' on the server, which has every-10-minutes"),
    ],
)
def test_nothing_is_made_of_wrong_input(own: PrefectServer, arguments: tuple[str, ...], message: str) -> None:
    done = reshard(own, "schedule", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"reshard: error: {message}")
    assert set(listed(own)) == {"every-10-minutes"}


@pytest.mark.slow
def test_a_server_whose_form_lacks_an_option_refuses_it(own: PrefectServer) -> None:
    """As one does that was deployed by an older version."""
    client = own.client
    deployment = client.read_deployment_by_name(LATEST)
    schema = json.loads(json.dumps(deployment.parameter_openapi_schema))
    del schema["properties"]["keep_checkpoint_max"]
    client.request(
        "PATCH", "/deployments/{id}", path_params={"id": deployment.id}, json={"parameter_openapi_schema": schema}
    )
    done = reshard(own, "schedule", *JOB, "--every", "1h", "--keep-checkpoint-max", "5")
    assert done.returncode == 2
    assert f"schedule llama-serving of {LATEST}: its runs fail: Unevaluated properties are not allowed" in done.stderr
    assert reshard(own, "deploy").returncode == 0


@pytest.mark.slow
def test_a_scheduled_job_is_converted_by_a_worker(
    own: PrefectServer, worker: Worker, demo: Demo, wanted: Files, tmp_path: Path
) -> None:
    target = tmp_path / "converted"
    made = put(own, *demo.arguments(target), "--every", "5s", "--name", "often")
    assert made["outcome"] == "made"
    until((target / STEP).exists, "nothing was converted")
    put(own, "--remove", "often")
    check_finished(target / STEP, wanted, "of a schedule")

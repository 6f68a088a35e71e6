"""Compose, systemd and Kubernetes: their files agree with each other, with the image and with the commands."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import reshard
from reshard.cli.main import run
from reshard.core.request.conversion import ConversionRequest
from reshard.deployments.described import read_descriptions
from tests.support.places import PROJECT

DEPLOYMENTS = PROJECT / "deployments"
IMAGE = f"reshard:{reshard.__version__}"
DOCKERFILE = (DEPLOYMENTS / "Dockerfile").read_text()
COMPOSE = (DEPLOYMENTS / "compose.yaml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE)["services"]
UNITS = sorted((DEPLOYMENTS / "systemd").iterdir())
SERVICE_UNITS = [unit for unit in UNITS if unit.suffix == ".service"]
TEMPLATE = json.loads((DEPLOYMENTS / "kubernetes/base-job-template.json").read_text())
[POOL] = {each.work_pool.name for each in read_descriptions()}
WORKER = ["prefect", "worker", "start", "--pool", POOL]


def test_compose_runs_the_image_of_this_version_and_prefect_asks_for_a_login() -> None:
    ours = {name: service for name, service in SERVICES.items() if name not in ("postgres", "prometheus", "grafana")}
    assert {service["image"] for service in ours.values()} == {f"${{RESHARD_IMAGE:-{IMAGE}}}"}
    login = ours["server"]["environment"]["PREFECT_SERVER_API_AUTH_STRING"]
    assert login.startswith("${PREFECT_API_AUTH_STRING:?")  # compose refuses to start without it
    assert {
        ours[name]["environment"]["PREFECT_API_AUTH_STRING"] for name in ("deploy", "worker", "demo", "metrics")
    } == {login}
    assert SERVICES["server"]["build"]["dockerfile"] == "deployments/Dockerfile"


def test_compose_opens_ports_on_this_machine_only() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {
        "server": ["${RESHARD_ADDRESS:-127.0.0.1:4200}:4200"],
        "grafana": ["${GRAFANA_ADDRESS:-127.0.0.1:3000}:3000"],
    }
    assert SERVICES["grafana"]["profiles"] == ["metrics"]


def test_the_database_has_a_password_of_its_own_and_the_server_waits_for_it() -> None:
    database, settings = SERVICES["postgres"], SERVICES["server"]["environment"]
    password = settings["PREFECT_SERVER_DATABASE_PASSWORD"]
    assert password.startswith("${POSTGRES_PASSWORD:?")  # compose refuses to start without it
    assert yaml.safe_load(COMPOSE)["secrets"] == {"postgres_password": {"environment": "POSTGRES_PASSWORD"}}
    assert database["environment"]["POSTGRES_PASSWORD_FILE"] == "/run/secrets/postgres_password"
    assert database["environment"]["POSTGRES_USER"] == settings["PREFECT_SERVER_DATABASE_USER"]
    assert database["environment"]["POSTGRES_DB"] == settings["PREFECT_SERVER_DATABASE_NAME"]
    assert settings["PREFECT_SERVER_DATABASE_HOST"] in SERVICES
    assert SERVICES["server"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert database["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]
    assert "ports" not in database


def test_prometheus_and_grafana_find_each_other_and_their_files() -> None:
    """What Compose mounts is there, and services know each other by the names that they have."""
    for name in ("prometheus", "grafana"):
        mounted = [volume.split(":")[0] for volume in SERVICES[name]["volumes"]]
        files = [DEPLOYMENTS / source for source in mounted if source.startswith("./")]
        assert files
        assert all(path.exists() for path in files)
    config = yaml.safe_load((DEPLOYMENTS / "prometheus/prometheus.yaml").read_text())
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": ["metrics:4202"]}]
    assert SERVICES["metrics"]["command"] == ["reshard", "metrics", "--host", "0.0.0.0"]
    [source] = yaml.safe_load((DEPLOYMENTS / "grafana/provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((DEPLOYMENTS / "grafana/provisioning/dashboards/reshard.yaml").read_text())["providers"]
    dashboard = "./grafana/reshard.json:" + provider["options"]["path"] + "/reshard.json:ro"
    assert dashboard in SERVICES["grafana"]["volumes"]


def test_every_setting_of_compose_is_in_the_example() -> None:
    example = set(re.findall(r"^#?([A-Z_]+)=", (DEPLOYMENTS / "example.env").read_text(), re.MULTILINE))
    used = set(re.findall(r"\$\{([A-Z_]+)", COMPOSE))
    assert example - used == {"COMPOSE_PROFILES"}
    assert used - example == {"RESHARD_IMAGE", "POSTGRES_IMAGE", "PROMETHEUS_IMAGE", "GRAFANA_IMAGE"}


def test_compose_starts_a_worker_of_the_pool_and_the_demo_converts() -> None:
    assert SERVICES["worker"]["command"][: len(WORKER)] == WORKER
    assert SERVICES["deploy"]["command"] == ["reshard", "deploy"]
    script = SERVICES["demo"]["command"][-1]
    parameters = re.findall(r"--param (\w+)=(\S+)", script)
    ConversionRequest.model_validate(dict(parameters))
    assert "python -m demo.make_checkpoint /data/demo\n" in script
    assert (PROJECT / "demo/make_checkpoint.py").exists()
    assert script.endswith(f"reshard verify {dict(parameters)['target']}\n")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        # the programs are looked for
        text = unit.read_text().replace("/opt/reshard/bin", str(Path(sys.executable).parent))
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *tmp_path.iterdir()], capture_output=True, text=True, check=False
    )
    # with a warning it still succeeds
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", SERVICE_UNITS, ids=lambda unit: unit.name)
def test_units_start_what_there_is_with_little_rights(unit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = unit.read_text()
    for setting in ("NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=yes", "CapabilityBoundingSet="):
        assert f"\n{setting}\n" in text
    assert "\nUser=reshard\n" in text
    [started] = re.findall(r"^ExecStart=/opt/reshard/bin/(.*)$", text, re.MULTILINE)
    program, *arguments = shlex.split(started)
    if program == "prefect":
        assert [program, *arguments][: len(WORKER)] == WORKER
    else:
        assert run([arguments[0], "--help"]) == 0
        assert "SOURCE TARGET" in capsys.readouterr().out


def test_the_timer_starts_a_unit_that_there_is() -> None:
    assert {unit.stem for unit in UNITS if unit.suffix == ".timer"} < {unit.stem for unit in SERVICE_UNITS}


def _pod() -> dict[str, Any]:
    pod: dict[str, Any] = TEMPLATE["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    return pod


def test_the_job_template_uses_each_of_its_variables() -> None:
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(TEMPLATE["job_configuration"])))
    assert used == set(TEMPLATE["variables"]["properties"])


def test_the_job_template_takes_what_the_deployments_say() -> None:
    for described in read_descriptions():
        jsonschema.validate(described.work_pool.job_variables, TEMPLATE["variables"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"env": "none"}, TEMPLATE["variables"])


def test_jobs_run_the_image_of_this_version_with_little_rights() -> None:
    [container] = _pod()["containers"]
    assert TEMPLATE["variables"]["properties"]["image"]["default"] == IMAGE
    user = _pod()["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}\n" in DOCKERFILE
    assert user["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    # what is written must be mounted
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"/data", "/home/reshard", "/tmp"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in _pod()["volumes"]}
    assert "WORKDIR /data\n" in DOCKERFILE
    assert "HOME=/home/reshard " in DOCKERFILE


def test_jobs_have_secrets_by_name_only() -> None:
    [container] = _pod()["containers"]
    assert container["env"] == [
        {
            "name": "PREFECT_API_AUTH_STRING",
            "valueFrom": {"secretKeyRef": {"name": "reshard-prefect", "key": "auth-string"}},
        }
    ]
    # otherwise the worker's own, in plain text, would take its place
    assert TEMPLATE["variables"]["properties"]["env"]["default"] == {"PREFECT_API_AUTH_STRING": None}


def test_every_file_that_the_guide_names_exists() -> None:
    guide = (PROJECT / "docs/guides/containers.md").read_text()
    named = set(re.findall(r"deployments/[\w./@*-]+\w", guide)) - {"deployments/.env"}
    assert named
    missing = [name for name in named if not list(PROJECT.glob(name))]
    assert not missing
    assert os.access(DEPLOYMENTS / "entrypoint.sh", os.X_OK)

"""Which engine carries out a conversion, and what is said of it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.cli.engine import AUTO, DIRECT, PREFECT, choose_engine
from reshard.core.errors import InputError
from reshard.core.request.conversion import build_request
from tests.support.checkpoints import case, read_tree
from tests.support.prefect_server import free_port
from tests.support.training import CASE, save_step

CONVERSION = case(7010)
SOURCE = CONVERSION.directory / "src"
STRATEGIES = (
    "--source-strategy",
    CONVERSION.directory / "src_strategy.ckpt",
    "--target-strategy",
    CONVERSION.directory / "dst_strategy.ckpt",
)
OF_STEPS = (
    "--source-strategy",
    CASE.directory / "src_strategy.ckpt",
    "--target-strategy",
    CASE.directory / "dst_strategy.ckpt",
)
SERVER = "http://127.0.0.1:9/api"
NO_SERVER = "direct; no Prefect server is configured (for a flow run: set PREFECT_API_URL, or --engine prefect)"
ON_SERVER = f"prefect; on the server {SERVER}, set by PREFECT_API_URL in the environment"
EMBEDDED = "prefect; on Prefect's embedded server, because none is configured"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and working directory without any of Prefect's settings."""
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("engine", "server", "options", "name", "text"),
    [
        (AUTO, "", {}, DIRECT, NO_SERVER),
        (AUTO, SERVER, {}, PREFECT, f"{ON_SERVER} (without Prefect: --engine direct)"),
        (AUTO, "", {"dask_scheduler": "local"}, PREFECT, f"{EMBEDDED} (because of --dask-scheduler)"),
        (AUTO, "", {"concurrency_limit": "a"}, PREFECT, f"{EMBEDDED} (because of --concurrency-limit)"),
        (AUTO, SERVER, {"concurrency_limit": "a"}, PREFECT, f"{ON_SERVER} (because of --concurrency-limit)"),
        (PREFECT, "", {}, PREFECT, f"{EMBEDDED} (without Prefect: --engine direct)"),
        (PREFECT, SERVER, {}, PREFECT, f"{ON_SERVER} (without Prefect: --engine direct)"),
        (DIRECT, SERVER, {}, DIRECT, "direct, by --engine (a Prefect flow run: --engine prefect)"),
    ],
)
def test_the_engine_follows_the_option_the_server_and_the_request(
    engine: str, server: str, options: dict[str, str], name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if server:
        monkeypatch.setenv("PREFECT_API_URL", server)
    chosen = choose_engine(engine, build_request(source="a", target="b", **options))
    assert (chosen.name, chosen.text) == (name, text)


def test_the_direct_engine_refuses_what_only_a_flow_run_does() -> None:
    request = build_request(source="a", target="b", dask_scheduler="local", concurrency_limit="disks")
    with pytest.raises(InputError, match="--dask-scheduler and --concurrency-limit: not supported by --engine direct"):
        choose_engine(DIRECT, request)


def test_without_a_server_convert_is_direct_and_says_so(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = reshard("convert", SOURCE, tmp_path / "out", *STRATEGIES)
    assert (shown.code, shown.err) == (0, "")
    assert f"\nengine     {NO_SERVER}\n" in shown.out
    assert reshard("convert", SOURCE, tmp_path / "out", *STRATEGIES, "--json").json["engine"] == "direct"


def test_without_a_server_convert_latest_is_direct_and_says_so(reshard: Callable[..., Any], tmp_path: Path) -> None:
    save_step(tmp_path / "training", "1_0")
    shown = reshard("convert-latest", tmp_path / "training", tmp_path / "out", *OF_STEPS)
    assert shown.code == 0, shown.err
    assert f"\nengine     {NO_SERVER}\n" in shown.out
    again = reshard("convert-latest", tmp_path / "training", tmp_path / "out", *OF_STEPS, "--json")
    assert (again.json["outcome"], again.json["engine"]) == ("nothing new", "direct")


@pytest.mark.parametrize("url", ["nonsense", "127.0.0.1:4200/api", "http:///api", "http://[::1/api"])
def test_a_setting_that_is_no_url_is_wrong_input(
    reshard: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", url)
    shown = reshard("convert", SOURCE, tmp_path / "out", *STRATEGIES)
    assert (shown.code, shown.out) == (2, "")
    assert f"{url} (PREFECT_API_URL in the environment) is not the URL of a Prefect server: set it like " in shown.err
    assert reshard("convert", SOURCE, tmp_path / "out", *STRATEGIES, "--engine", "direct").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["deploy", "serve"])
def test_such_a_setting_is_wrong_input_for_what_needs_a_server(
    spawned: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "nonsense")
    shown = spawned(command)
    assert shown.code == 2
    assert "nonsense (PREFECT_API_URL in the environment) is not the URL of a Prefect server" in shown.err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["convert", "convert-latest"])
def test_a_configured_server_that_does_not_answer_is_an_error(
    spawned: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Never a silent conversion without it: the run would be missing on the server."""
    url = f"http://127.0.0.1:{free_port()}/api"
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(f'active = "ours"\n[profiles.ours]\nPREFECT_API_URL = "{url}"\n')
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    shown = spawned(command, SOURCE, tmp_path / "out", *STRATEGIES)
    assert (shown.code, shown.out) == (3, "")
    assert f"the Prefect server at {url} (the profile ours in {profiles}) does not answer: " in shown.err
    assert "change that setting, or convert without Prefect: --engine direct" in shown.err
    assert shown.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_settings_that_prefect_cannot_read_are_named(
    spawned: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API", "{")
    shown = spawned("convert", SOURCE, tmp_path / "out", *STRATEGIES)
    assert shown.code == 2
    assert "Prefect cannot read its settings (PREFECT_API_URL in the environment): " in shown.err
    assert "or convert without Prefect: --engine direct" in shown.err
    assert spawned("convert", SOURCE, tmp_path / "out", *STRATEGIES, "--engine", "direct").code == 0


@pytest.mark.slow
def test_convert_latest_as_a_flow_run(
    spawned: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    save_step(tmp_path / "training", "1_0")
    command = ("convert-latest", tmp_path / "training", tmp_path / "out", *OF_STEPS, "--engine", "prefect")
    shown = spawned(*command)
    assert shown.code == 0, shown.err
    assert f"outcome  step 1_0 was converted to {tmp_path}/out/1_0" in shown.out
    assert f"\nengine     {EMBEDDED} (without Prefect: --engine direct)\n" in shown.out
    assert "starting Prefect's embedded server" in shown.err
    assert "INFO" not in shown.err
    assert read_tree(tmp_path / "out/1_0") == CASE.want
    wrong = spawned("convert-latest", tmp_path / "nowhere", tmp_path / "out", *OF_STEPS, "--engine", "prefect")
    assert (wrong.code, wrong.out) == (2, "")
    assert f"reshard: error: {tmp_path}/nowhere" in wrong.err

"""Storages that are unusable as named: refused at once as a wrong input, before anything is read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.cli.main import WRONG_INPUT, run
from tests.support.checkpoints import case
from tests.support.stores import BUCKET, Store, forget_connections

CASE = case(7009).directory
STRATEGIES = [f"--source-strategy={CASE / 'src_strategy.ckpt'}", f"--target-strategy={CASE / 'dst_strategy.ckpt'}"]
WAYS: dict[str, Callable[[str, str], list[str]]] = {
    "direct": lambda source, target: ["convert", source, target, *STRATEGIES, "--engine=direct"],
    "flow": lambda source, target: ["convert", source, target, *STRATEGIES, "--engine=prefect"],
    "dry run": lambda source, target: ["convert", source, target, *STRATEGIES, "--dry-run"],
    "plan": lambda source, target: ["plan", source, target, *STRATEGIES],
    "latest": lambda source, target: ["convert-latest", source, target, *STRATEGIES],
    "joining": lambda source, target: ["join-parts", source, target],
}
each_way = pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[pytest.mark.slow] if name == "flow" else [], id=name) for name, way in WAYS.items()],
)
Way = Callable[[str, str], list[str]]


def refused(capfd: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The error's only line."""
    capfd.readouterr()
    code = run(arguments)
    out, err = capfd.readouterr()
    assert (code, out) == (WRONG_INPUT, ""), err
    assert "trying again" not in err
    [line] = [line for line in err.splitlines() if line.startswith("reshard: error: ")]
    return line.removeprefix("reshard: error: ")


@each_way
@pytest.mark.parametrize("protocol", ["s3", "obs"])
def test_a_target_in_a_bucket_that_is_not_there(store: Store, capfd: pytest.CaptureFixture[str], way: Way) -> None:
    source = store.add(CASE / "src", "src")
    target = store.url("out").replace(BUCKET, "no-such-bucket")
    assert refused(capfd, way(source, target)) == (
        f"{target}: cannot list it: there is no bucket 'no-such-bucket': create it, or name another"
    )
    [exchange] = store.proxy.exchanges()
    assert exchange.call.bucket == "no-such-bucket"


@each_way
@pytest.mark.parametrize("protocol", ["s3", "obs"])
def test_a_target_without_credentials(
    store: Store, capfd: pytest.CaptureFixture[str], way: Way, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    forget_connections()
    line = refused(capfd, way(str(tmp_path / "nowhere"), store.url("out")))
    assert store.url("out") in line
    assert ("OBS" if store.protocol == "obs" else "AWS") + "_ACCESS_KEY" in line
    assert store.proxy.exchanges() == []


@each_way
def test_an_occupied_target(store: Store, capfd: pytest.CaptureFixture[str], way: Way) -> None:
    if way is WAYS["latest"]:
        pytest.skip("a directory of steps may hold others' directories")
    store.add(CASE / "src", "out")
    line = refused(capfd, way(store.url("nowhere"), store.url("out")))
    assert line.startswith(f"{store.url('out')}: is not empty. Name another")
    assert not [exchange for exchange in store.proxy.exchanges() if "/nowhere" in exchange.call.key]


def test_a_bucket_that_is_taken_away_is_not_asked_for_again(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    source = store.url("src").replace(BUCKET, "no-such-bucket")
    line = refused(capfd, ["fingerprint", source])
    assert line == f"{source}: cannot read it: there is no bucket 'no-such-bucket': create it, or name another"

"""Checkpoints in object stores as sides of a comparison, each with a storage of its own."""

import json
from pathlib import Path

import pytest

from reshard.cli.main import run
from reshard.core.request.comparison import build_comparison
from reshard.core.verification.compare import compare_checkpoints
from tests.support.checkpoints import case
from tests.support.s3_proxy import s3_proxy
from tests.support.s3_server import S3Server, s3_server
from tests.support.stores import BUCKET, Store

CASE = case(7010).directory


def options_of(server: S3Server, url: str) -> str:
    return json.dumps({"endpoint_url": url, "key": server.access_key, "secret": server.secret_key})


@pytest.mark.parametrize("protocol", ["s3", "obs"])
def test_a_store_and_a_disk(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    source, strategy = store.add(CASE / "src", "src"), store.add(CASE / "src_strategy.ckpt", "strategy.ckpt")
    sides = [source, str(CASE / "want"), "--strategy-a", strategy, "--strategy-b", str(CASE / "dst_strategy.ckpt")]
    assert run(["diff", *sides]) == 0
    assert capsys.readouterr().out.startswith("the same model: 8 parameters, 333.2 KiB, 8 and 2 ranks\n")
    assert "PutObject" not in store.proxy.counts()


def test_one_url_on_two_servers(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = store.add(CASE / "full", "model")
    (tmp_path / "changes.yaml").write_text("include: ['*']")
    changes = store.add(tmp_path / "changes.yaml", "changes.yaml")
    with s3_server(tmp_path / "root", (BUCKET,)) as other, s3_proxy(other) as proxy:
        there = other.path(BUCKET, f"{store.prefix}/model/rank_0/full_0.ckpt")
        there.parent.mkdir(parents=True)
        [whole] = (CASE / "full").rglob("*.ckpt")
        content = bytearray(whole.read_bytes())
        content[-1] ^= 0x40
        there.write_bytes(content)
        other.look_again()
        for name in store.proxy.environment:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HERE", options_of(store.server, store.proxy.url))
        monkeypatch.setenv("THERE", options_of(other, proxy.url))
        sides = {"a": url, "b": url, "storage_a": "env:HERE", "storage_b": "env:THERE"}
        report = compare_checkpoints(build_comparison(**sides))
        changed = compare_checkpoints(build_comparison(**sides, changes=changes))  # which are where A is
    assert report.verdict == changed.verdict == "NOT the same: 1 parameter of different content"
    assert report.differences[0].count == 1

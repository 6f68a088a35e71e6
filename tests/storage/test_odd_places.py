"""Where a conversion reads and writes when names do not tell it: one store under two names, two under one, and none."""

import json
from pathlib import Path

import pytest

from reshard.cli.main import run
from reshard.core.conversion.convert import convert
from reshard.core.errors import TargetError
from tests.support.checkpoints import case, read_tree
from tests.support.s3_proxy import s3_proxy
from tests.support.s3_server import S3Server, s3_server
from tests.support.stores import BUCKET, Store


def obs_leads_to(server: S3Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBS_ENDPOINT", url)
    monkeypatch.setenv("OBS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("OBS_SECRET_ACCESS_KEY", server.secret_key)


# ---- one store under two names ----


@pytest.mark.parametrize("path", ["src", "src/out", ""])
def test_a_source_is_not_overwritten_through_another_protocol(
    store: Store, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversion = case(7010)
    source = store.add(conversion.directory / "src", "src")
    before = read_tree(store.files("src"))
    obs_leads_to(store.server, store.proxy.url, monkeypatch)
    target = f"obs://{BUCKET}/{store.prefix}/{path}"
    with pytest.raises(TargetError, match=r"is the source itself|lies inside"):
        convert(conversion.request(target, source=source, overwrite=True))
    assert read_tree(store.files("src")) == before


def test_a_source_is_not_overwritten_with_other_storage_options(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    conversion = case(7010)
    source = store.add(conversion.directory / "src", "src")
    before = read_tree(store.files("src"))
    keys = {"endpoint_url": store.proxy.url, "key": store.server.access_key, "secret": store.server.secret_key}
    monkeypatch.setenv("TARGET", json.dumps(keys))
    target = source.replace("s3://", "obs://")
    with pytest.raises(TargetError, match="is the source itself"):
        convert(conversion.request(target, source=source, overwrite=True, target_storage="env:TARGET"))
    assert read_tree(store.files("src")) == before


def test_two_servers_may_have_buckets_of_one_name(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversion = case(7010)
    source = store.add(conversion.directory / "src", "src")
    with s3_server(tmp_path / "root", (BUCKET,)) as other, s3_proxy(other) as proxy:
        obs_leads_to(other, proxy.url, monkeypatch)
        convert(conversion.request(source.replace("s3://", "obs://"), source=source))
        assert read_tree(other.path(BUCKET, f"{store.prefix}/src")) == conversion.want


# ---- no store at all ----


@pytest.mark.parametrize("endpoint", ["minio.local:9000", "u:hunter2@localhost:99999"])
def test_an_endpoint_without_a_scheme_is_a_wrong_input(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert run(["inspect", f"s3://{BUCKET}/src"]) == 2
    printed = capsys.readouterr().err
    assert "AWS_ENDPOINT_URL: must look like https://host:port, without user and password" in " ".join(printed.split())
    assert "hunter2" not in printed

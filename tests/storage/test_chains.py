"""Archives and caches of a real object store, and a web server, as sources."""

import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from reshard.cli.main import run
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError, ReshardError
from tests.support.checkpoints import Case, case, read_tree
from tests.support.stores import Store, of_operation
from tests.support.web_server import WebServer, web_server


@pytest.fixture
def conversion() -> Case:
    return case(7010)


def packed(directory: Path, protocol: str, target: Path) -> Path:
    """An archive of a directory, without compression."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    if protocol == "zip":
        with zipfile.ZipFile(target, "w") as archive:
            for path in files:
                archive.write(path, path.relative_to(directory))
    else:
        with tarfile.open(target, "w") as tar:
            tar.add(directory, ".")
    return target


def in_archive(conversion: Case, archive: str, protocol: str) -> dict[str, object]:
    """A conversion that reads everything from an archive."""
    return {
        "source": f"{protocol}://src::{archive}",
        "source_strategy": f"{protocol}://src_strategy.ckpt::{archive}",
        "target_strategy": f"{protocol}://dst_strategy.ckpt::{archive}",
    }


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_conversion_from_an_archive_in_a_store(store: Store, conversion: Case, tmp_path: Path, kind: str) -> None:
    archive = store.add(packed(conversion.directory, kind, tmp_path / "a"), f"a.{kind}")
    convert(conversion.request(tmp_path / "out", **in_archive(conversion, archive, kind)))
    assert read_tree(tmp_path / "out") == conversion.want
    assert run(["verify", str(tmp_path / "out"), "--level", "content"]) == 0
    record = (tmp_path / "out" / ".reshard" / "manifest.json").read_text()
    assert f"{kind}://src::{archive}" in record


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_conversion_from_a_local_archive_to_a_store(
    store: Store, conversion: Case, tmp_path: Path, kind: str
) -> None:
    archive = packed(conversion.directory, kind, tmp_path / "a")
    convert(conversion.request(store.url("out"), **in_archive(conversion, str(archive), kind)))
    assert read_tree(store.files("out")) == conversion.want


def test_an_archive_in_a_store_is_read_in_parts(store: Store, conversion: Case, tmp_path: Path) -> None:
    archive = store.add(packed(conversion.directory, "zip", tmp_path / "a"), "a.zip")
    store.proxy.begin_anew()
    assert run(["inspect", f"zip://src/rank_3/checkpoint_3.ckpt::{archive}"]) == 0
    read = sum(exchange.sent_bytes for exchange in of_operation(store, "GetObject"))
    assert read < (tmp_path / "a").stat().st_size / 2


def test_a_pattern_in_an_archive(store: Store, conversion: Case, tmp_path: Path) -> None:
    archive = store.add(packed(conversion.directory, "zip", tmp_path / "a"), "a.zip")
    pattern = f"zip://src/rank_{{rank}}/checkpoint_{{rank}}.ckpt::{archive}"
    convert(conversion.request(tmp_path / "out", source=pattern))
    assert read_tree(tmp_path / "out") == conversion.want


def test_options_reach_the_store_behind_a_chain(
    store: Store, conversion: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = store.add(packed(conversion.directory, "zip", tmp_path / "a"), "a.zip")
    keys = {"endpoint_url": store.proxy.url, "key": store.server.access_key, "secret": store.server.secret_key}
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    caching = {"cache_storage": str(tmp_path / "cache")}
    given: tuple[dict[str, object], ...] = ({**keys}, {"s3": keys}, {**keys, "filecache": caching})
    for number, options in enumerate(given):
        monkeypatch.setenv("SOURCE", json.dumps(options))
        chain = f"filecache::{archive}" if "filecache" in options else archive
        request = conversion.request(
            tmp_path / f"out{number}",
            **in_archive(conversion, chain, "zip"),
            source_storage="env:SOURCE",
            target_storage="env:SOURCE",
        )
        convert(request)
        assert read_tree(tmp_path / f"out{number}") == conversion.want
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("chain", ["simplecache", "filecache"])
def test_a_conversion_through_a_cache(
    store: Store, conversion: Case, tmp_path: Path, chain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = store.add(conversion.directory / "src", "src")
    monkeypatch.setenv("FILES", json.dumps({"filecache": {"cache_storage": str(tmp_path / "cache")}}))
    options = {"source_storage": "env:FILES"} if chain == "filecache" else {}
    convert(conversion.request(tmp_path / "out", source=f"{chain}::{source}", **options))
    assert read_tree(tmp_path / "out") == conversion.want
    # other ranks of the same files, from the copies
    store.proxy.begin_anew()
    convert(conversion.request(tmp_path / "again", source=f"{chain}::{source}", **options))
    assert read_tree(tmp_path / "again") == conversion.want
    assert not of_operation(store, "GetObject")


def test_a_source_that_was_replaced_is_noticed_through_a_cache(store: Store, conversion: Case, tmp_path: Path) -> None:
    source = f"simplecache::{store.add(conversion.directory / 'src', 'src')}"
    convert(conversion.request(tmp_path / "out", source=source))
    changed = store.files("src") / "rank_0" / "checkpoint_0.ckpt"
    data = bytearray(changed.read_bytes())
    data[-40] ^= 1
    changed.write_bytes(data)
    store.server.look_again()
    assert run(["verify", str(tmp_path / "out"), "--level", "content"]) != 0


@pytest.mark.parametrize("chain", ["zip://out::{}", "simplecache::{}/out"])
def test_a_target_behind_a_chain_is_refused(store: Store, conversion: Case, tmp_path: Path, chain: str) -> None:
    archive = store.add(packed(conversion.directory, "zip", tmp_path / "a"), "a.zip")
    with pytest.raises(InputError, match="can only be read: name a target elsewhere"):
        convert(conversion.request(chain.format(archive)))


# ---- a web server ----


@pytest.fixture
def web(conversion: Case) -> Iterator[WebServer]:
    with web_server(conversion.directory) as server:
        yield server


def test_a_conversion_from_a_web_server(web: WebServer, conversion: Case, tmp_path: Path) -> None:
    urls = {
        "source": f"{web.url}/src/",
        "source_strategy": f"{web.url}/src_strategy.ckpt",
        "target_strategy": f"{web.url}/dst_strategy.ckpt",
    }
    convert(conversion.request(tmp_path / "out", **urls))
    assert read_tree(tmp_path / "out") == conversion.want
    assert run(["inspect", f"{web.url}/src"]) == 0
    assert run(["verify", str(tmp_path / "out"), "--level", "content"]) == 0
    assert {method for method, _, _ in web.asked} == {"GET", "HEAD"}


def test_a_conversion_from_an_archive_on_a_web_server(tmp_path: Path, conversion: Case) -> None:
    (tmp_path / "root").mkdir()
    packed(conversion.directory, "zip", tmp_path / "root" / "a.zip")
    with web_server(tmp_path / "root") as web:
        convert(conversion.request(tmp_path / "out", **in_archive(conversion, f"{web.url}/a.zip", "zip")))
    assert read_tree(tmp_path / "out") == conversion.want


def test_an_archive_that_is_replaced_during_a_conversion_stops_it(tmp_path: Path, conversion: Case) -> None:
    (tmp_path / "root").mkdir()
    archive = packed(conversion.directory, "tar", tmp_path / "root" / "a.tar")
    with web_server(tmp_path / "root") as web:
        request = conversion.request(tmp_path / "out", source=f"tar://src::{web.url}/a.tar")
        make_plan(request)
        planned = len(web.asked)
        data = archive.read_bytes()
        longer = data + bytes(10_240)
        web.before_range = lambda: archive.write_bytes(longer if len(web.asked) > planned + 1 else data)
        with pytest.raises(ReshardError, match=r"tar://.*a\.tar.* changed while it was being read"):
            convert(request)
    assert not (tmp_path / "out").exists()


def test_a_target_on_a_web_server_is_refused(web: WebServer, conversion: Case) -> None:
    with pytest.raises(InputError, match="a web server can only be read: name a target elsewhere"):
        convert(conversion.request(f"{web.url}/out"))


def test_a_web_server_without_ranges_is_refused(web: WebServer, conversion: Case, tmp_path: Path) -> None:
    web.knows_ranges = False
    with pytest.raises(ReshardError, match="answers requests for parts of files with the whole"):
        convert(conversion.request(tmp_path / "out", source=f"{web.url}/src"))
    assert not (tmp_path / "out").exists()

"""Conversions by the command from and to Azure's and Google's storage, against the servers that stand for them here."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from reshard.cli.main import run
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.storage.store import Store
from reshard.core.storage.stores import open_store
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.azure_server import AzureServer, connection_string
from tests.support.checkpoints import Case, case, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.gcs_server import GcsServer
from tests.support.past_stores import PastAzure, PastGcs
from tests.support.patience import until
from tests.support.runs import RESHARD, start
from tests.support.stores import BUCKET, forget_connections

FOUR_TO_THREE, OTHER = case(7009), case(7010)
MANIFEST = ".reshard/manifest.json"


@dataclass
class Cloud:
    """An empty place in a storage, and how to look past the code under test."""

    protocol: str
    root: str
    past: PastGcs | PastAzure
    variables: Mapping[str, str]

    def url(self, path: str) -> str:
        return f"{self.protocol}://{self.root}/{path}"

    def put(self, directory: Path, path: str = "") -> str:
        for file in directory.rglob("*"):
            if file.is_file():
                name = "/".join(each for each in (path, str(file.relative_to(directory))) if each)
                self.past.put(f"{self.root}/{name}", file.read_bytes())
        return self.url(path)

    def get(self, path: str, directory: Path) -> Path:
        for name in self.names(path):
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.past.get(f"{self.root}/{name}") or b"")
        return directory / path

    def names(self, path: str) -> list[str]:
        return [name.removeprefix(f"{self.root}/") for name in self.past.names(f"{self.root}/{path}")]


@pytest.fixture(params=["gs", "az"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    server: GcsServer | AzureServer = request.getfixturevalue({"gs": "gcs", "az": "azure"}[request.param])
    past = PastAzure(server) if isinstance(server, AzureServer) else PastGcs(server.url)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    forget_connections()
    name = request.node.originalname.replace("_", "-")
    yield Cloud(request.param, f"{BUCKET}/{request.param}/{name}", past, server.environment)
    forget_connections()


def command(cloud: Cloud, which: Case = FOUR_TO_THREE, source: str = "", target: str = "") -> list[str]:
    strategies = [f"--source-strategy={which.directory}/src_strategy.ckpt"]
    strategies += [f"--target-strategy={which.directory}/dst_strategy.ckpt"]
    return ["convert", source or cloud.url("src"), target or cloud.url("out"), *strategies, "--engine=direct"]


def test_a_conversion_within_it(cloud: Cloud, reshard: Callable[..., str], tmp_path: Path) -> None:
    cloud.put(FOUR_TO_THREE.directory / "src", "src")
    reshard(*command(cloud), "--verify=content")
    assert read_tree(cloud.get("out", tmp_path)) == FOUR_TO_THREE.want
    assert [name for name in cloud.names("out") if "/leases/" in name] == []
    reshard("verify", cloud.url("out"))
    assert "nothing: an earlier run" in reshard(*command(cloud))


def test_from_it_and_to_it(cloud: Cloud, reshard: Callable[..., str], tmp_path: Path) -> None:
    cloud.put(FOUR_TO_THREE.directory / "src", "src")
    reshard(*command(cloud, target=str(tmp_path / "local")))
    assert read_tree(tmp_path / "local") == FOUR_TO_THREE.want
    reshard(*command(cloud, source=str(FOUR_TO_THREE.directory / "src")))
    assert read_tree(cloud.get("out", tmp_path)) == FOUR_TO_THREE.want


def test_overwriting_removes_what_another_conversion_left(
    cloud: Cloud, reshard: Callable[..., str], tmp_path: Path
) -> None:
    reshard(*command(cloud, OTHER, source=str(OTHER.directory / "src")))
    reshard(*command(cloud, source=str(FOUR_TO_THREE.directory / "src")), "--overwrite")
    assert read_tree(cloud.get("out", tmp_path)) == FOUR_TO_THREE.want


def test_cleaning_what_is_unfinished(cloud: Cloud, reshard: Callable[..., str]) -> None:
    reshard(*command(cloud, source=str(FOUR_TO_THREE.directory / "src")), "--ranks=0")
    assert cloud.names("out")
    assert "removed" in reshard("clean", cloud.url("out"), "--yes")
    assert cloud.names("out") == []


def test_a_bucket_that_is_missing(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    word = {"gs": "bucket", "az": "container"}[cloud.protocol]
    arguments = command(cloud, source=str(FOUR_TO_THREE.directory / "src"), target=f"{cloud.protocol}://missing/out")
    assert run(arguments) == 2
    assert f"there is no {word} 'missing': create it, or name another" in capsys.readouterr().err


_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_ATTEMPTS: dict[str, Callable[[Store, str], object]] = {
    "read": lambda store, path: store.read_beginning(path, 10),
    "list": lambda store, path: store.find(path),
    "put": lambda store, path: store.put(path, b"x"),
    "send": lambda store, path: _send(store, path),
    "copy": lambda store, path: store.copy(path, f"{path}-copy"),
    "remove": lambda store, path: store.remove(path),
}


def _send(store: Store, path: str) -> None:
    output = store.create(path, UploadBuffers())
    output.write(bytes(20_000_000))
    output.finish()


@pytest.mark.parametrize(
    ("attempt", "enough", "too_little", "permission"),
    [
        ("read", "r", "wcdl", "read (of a SAS: r and l)"),
        ("list", "l", "rwcd", "read (of a SAS: r and l)"),
        ("put", "cw", "rdl", "write (of a SAS: c and w)"),
        ("send", "cw", "rdl", "write (of a SAS: c and w)"),
        ("copy", "rcw", "rdl", "write (of a SAS: c and w)"),
        ("remove", "d", "rwcl", "delete (of a SAS: d)"),
    ],
)
def test_what_a_signature_must_allow_on_azure(
    azure: AzureServer, attempt: str, enough: str, too_little: str, permission: str
) -> None:
    path = f"{BUCKET}/signed/{attempt}"
    PastAzure(azure).put(path, b"content")

    def opened(letters: str) -> Store:
        text = f"BlobEndpoint={azure.endpoint};SharedAccessSignature={azure.signature(BUCKET, letters)}"
        return open_store(f"az://{path}", {"connection_string": text})[0]

    _ATTEMPTS[attempt](opened(enough), path)
    PastAzure(azure).put(path, b"content")
    store = opened(too_little)
    with pytest.raises(Exception, match="403") as caught:
        _ATTEMPTS[attempt](store, path)
    reason = store.reason_of(caught.value, path)
    assert reason
    assert reason.text.startswith("access denied: the credentials ")
    assert reason.text.endswith(f"lack the permission {_BLOBS}/{permission}")


@pytest.mark.parametrize("attempt", _ATTEMPTS)
def test_a_wrong_key_on_azure(azure: AzureServer, attempt: str) -> None:
    path = f"{BUCKET}/other/file"
    store = open_store(f"az://{path}", {"connection_string": connection_string(azure.endpoint, key="AAAA")})[0]
    with pytest.raises(Exception, match="403") as caught:
        _ATTEMPTS[attempt](store, path)
    reason = store.reason_of(caught.value, path)
    assert reason
    assert reason.text.startswith("access denied: the credentials are wrong, or lack the permission ")


SHAPE = (4096, 1024)
"""Of a parameter: a target rank has 32 MiB."""


@pytest.mark.slow
def test_a_killed_run_is_resumed(cloud: Cloud, reshard: Callable[..., str], tmp_path: Path) -> None:
    whole = {f"layers.{number}.weight": np.random.default_rng(number).random(SHAPE, np.float32) for number in range(4)}
    for ranks, name in ((4, "src"), (2, "dst")):
        layouts = dict.fromkeys(whole, ParameterLayout((ranks,), ((0,), ())))
        strategy = Strategy((StageStrategy(0, layouts),), "a test", merged=False)
        write_strategy(strategy, str(tmp_path / f"{name}_strategy.ckpt"))
        for rank in range(ranks):
            parts = {name: np.split(values, ranks)[rank] for name, values in whole.items()}
            data = checkpoint_bytes(*((each, "Float32", part.shape, part.tobytes()) for each, part in parts.items()))
            file = tmp_path / name / f"rank_{rank}" / "model.ckpt"
            file.parent.mkdir(parents=True)
            file.write_bytes(data)
    arguments = ["convert", str(tmp_path / "src"), cloud.url("out"), "--engine=direct"]
    arguments += [
        f"--{side}-strategy={tmp_path}/{name}_strategy.ckpt" for side, name in (("source", "src"), ("target", "dst"))
    ]
    process = start([*RESHARD, *arguments], {**os.environ, **cloud.variables})
    until(lambda: [name for name in cloud.names("out") if "/leases/" in name], "nothing is claimed")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert f"out/{MANIFEST}" not in cloud.names("out")
    reshard(*arguments)
    assert read_tree(cloud.get("out", tmp_path / "found")) == read_tree(tmp_path / "dst")
    assert [name for name in cloud.names("out") if "/leases/" in name] == []

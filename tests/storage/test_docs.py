"""The examples of docs/guides/storage.md are run as they stand there, but for hosts and keys."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from demo.make_checkpoint import make_demo
from reshard.core.storage.urls import parse_url
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT
from tests.support.s3_proxy import s3_proxy
from tests.support.s3_server import S3Server, s3_server

PAGE = PROJECT / "docs" / "guides" / "storage.md"
EXAMPLES = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
RESULTS = [
    ("serving/llama/four", 4),
    ("serving/llama/one", 1),
    ("serving/llama/four-on-obs", 4),
    ("restored", 1),
    ("serving/llama/elsewhere", 1),
]
"""What each of them makes: where, and how many ranks."""
PROFILE = """[profile training]
endpoint_url = {url}
aws_access_key_id = {key}
aws_secret_access_key = {secret}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3") / "root"
    make_demo(parse_url(str(root / "training" / "llama")))
    with s3_server(root, ("training", "serving")) as running, s3_proxy(running) as proxy:
        # which answers ranges as S3 does
        yield replace(running, url=proxy.url)


@pytest.fixture
def directory(server: S3Server, tmp_path: Path) -> Path:
    """Where the user is: files that the examples name are here."""
    shutil.copytree(server.path("training", "llama"), tmp_path / "demo-out")
    options = {"endpoint_url": server.url, "key": server.access_key, "secret": server.secret_key}
    (tmp_path / "training.json").write_text(json.dumps(options))
    profile = PROFILE.format(url=server.url, key=server.access_key, secret=server.secret_key)
    (tmp_path / "aws-config").write_text(profile)
    return tmp_path


def test_every_example_is_known() -> None:
    assert len(EXAMPLES) == len(RESULTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "result"), list(zip(EXAMPLES, RESULTS, strict=False)), ids=[path for path, _ in RESULTS]
)
def test_an_example_does_what_it_says(server: S3Server, directory: Path, example: str, result: tuple[str, int]) -> None:
    for documented, real in {
        "https://minio.example.com:9000": server.url,
        "obs.cn-north-4.myhuaweicloud.com": server.url,
        "not-this-one": server.secret_key,
        "KEY_ID=reshard": f"KEY_ID={server.access_key}",
        '"key": "reshard"': f'"key": "{server.access_key}"',
    }.items():
        example = example.replace(documented, real)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "OBS_"))} | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "AWS_CONFIG_FILE": str(directory / "aws-config"),
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    ran = subprocess.run(
        ["sh", "-eu", "-c", example],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    assert server.secret_key not in ran.stdout + ran.stderr
    path, ranks = result
    place = directory / path if path == "restored" else server.root / path
    assert sorted(folder.name for folder in place.glob("rank_*")) == [f"rank_{rank}" for rank in range(ranks)]
    assert (place / ".reshard" / "manifest.json").exists()

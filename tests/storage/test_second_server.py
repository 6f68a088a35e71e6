"""What was tried against one S3 server works with another, too, which answers ranges and conditions by itself."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reshard.cli.main import run
from reshard.core.errors import CatalogError
from reshard.core.storage.reading import is_proven, open_source, read_bytes
from reshard.core.storage.uploads import abort_uploads
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_file
from tests.support.checkpoints import case, read_tree
from tests.support.s3_client import s3_client
from tests.support.s3_server import S3Server
from tests.support.stores import BUCKET, content_of, forget_connections

FOUR_TO_THREE = case(7009)
CONTENT = content_of(20_000_000)
"""Three parts."""


@pytest.fixture(autouse=True)
def _environment(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    forget_connections()
    yield
    forget_connections()


@pytest.fixture
def client(moto: S3Server) -> Any:
    return s3_client(moto.url)


def test_a_conversion_from_bucket_to_bucket(reshard: Callable[..., str], client: Any, tmp_path: Path) -> None:
    for path in FOUR_TO_THREE.directory.rglob("*"):
        if path.is_file():
            key = path.relative_to(FOUR_TO_THREE.directory)
            client.put_object(Bucket=BUCKET, Key=str(key), Body=path.read_bytes())
    command = ["convert", f"s3://{BUCKET}/src", f"s3://{BUCKET}/out"]
    command += [f"--{side}-strategy=s3://{BUCKET}/{name}_strategy.ckpt" for side, name in SIDES]
    reshard(*command)
    keys = [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET, Prefix="out/")["Contents"]]
    assert [key for key in keys if "/leases/" in key] == []
    for key in keys:
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    assert read_tree(tmp_path / "out") == FOUR_TO_THREE.want
    reshard("verify", command[2])
    assert "nothing: an earlier run" in reshard(*command)


SIDES = (("source", "src"), ("target", "dst"))


def test_ranges_show_the_version_they_are_of(client: Any) -> None:
    client.put_object(Bucket=BUCKET, Key="file.bin", Body=CONTENT)
    file = open_source(parse_url(f"s3://{BUCKET}/file.bin"))
    assert file.read_many([(5, 7), (len(CONTENT) - 9, 9)]) == [CONTENT[5:12], CONTENT[-9:]]
    assert is_proven(file)
    client.put_object(Bucket=BUCKET, Key="file.bin", Body=CONTENT[::-1])
    with pytest.raises(CatalogError, match="file.bin changed while it was being read"):
        read_bytes(file, 5, 7)


def test_an_upload_in_parts_and_the_rest_of_one(client: Any) -> None:
    location = parse_url(f"s3://{BUCKET}/file.bin")
    client.create_multipart_upload(Bucket=BUCKET, Key="file.bin")
    with write_file(location) as file:
        file.write(CONTENT)
    assert client.get_object(Bucket=BUCKET, Key="file.bin")["Body"].read() == CONTENT
    assert client.head_object(Bucket=BUCKET, Key="file.bin")["ETag"].endswith('-3"')
    assert abort_uploads(location, [location]) == 1
    assert abort_uploads(location, [location]) == 0


def test_a_missing_bucket_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "s3://no-such-bucket/src"]) == 2
    assert "there is no bucket 'no-such-bucket': create it, or name another" in capsys.readouterr().err

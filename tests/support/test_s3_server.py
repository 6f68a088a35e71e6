import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.patience import until
from tests.support.places import PROJECT
from tests.support.s3_client import code_of, s3_client
from tests.support.s3_server import S3Server, s3_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "root", ("bucket",)) as running:
        yield running


def test_objects_are_files(server: S3Server) -> None:
    s3_client(server.url).put_object(Bucket="bucket", Key="a/b", Body=b"content")
    assert server.path("bucket", "a/b").read_bytes() == b"content"


def test_an_etag_tells_contents_apart(server: S3Server) -> None:
    client = s3_client(server.url)
    etags = [client.put_object(Bucket="bucket", Key="etag", Body=body)["ETag"] for body in (b"1", b"2", b"1")]
    assert etags[0] == etags[2] != etags[1]
    assert client.head_object(Bucket="bucket", Key="etag")["ETag"] == etags[2]


def test_what_is_done_behind_its_back_is_seen_when_it_looks_again(server: S3Server) -> None:
    client = s3_client(server.url)
    for key in ("behind/removed", "behind/changed", "gone/with/its/directories"):
        client.put_object(Bucket="bucket", Key=key, Body=b"1")
    client.delete_object(Bucket="bucket", Key="gone/with/its/directories")
    keys = ("behind/added", "gone/again", "new/directory/added")
    for key in (*keys, "behind/changed"):
        server.path("bucket", key).parent.mkdir(parents=True, exist_ok=True)
        server.path("bucket", key).write_bytes(b"22")
    server.path("bucket", "behind/removed").unlink()
    server.look_again()
    for key in (*keys, "behind/changed"):
        assert client.get_object(Bucket="bucket", Key=key)["Body"].read() == b"22", key
    assert code_of(lambda: client.head_object(Bucket="bucket", Key="behind/removed")) == "404"
    listed = client.list_objects_v2(Bucket="bucket", Prefix="behind/")["Contents"]
    assert [each["Key"] for each in listed] == ["behind/added", "behind/changed"]


def test_a_bucket_outlives_its_last_object(server: S3Server) -> None:
    with s3_server(server.root.parent / "emptied", ("bucket",)) as emptied:
        client = s3_client(emptied.url)
        client.put_object(Bucket="bucket", Key="only/one", Body=b"")
        client.delete_object(Bucket="bucket", Key="only/one")
        emptied.look_again()
        assert "Contents" not in client.list_objects_v2(Bucket="bucket")


def test_signatures_are_checked(server: S3Server) -> None:
    client = s3_client(server.url, secret_key="another secret key")
    assert code_of(lambda: client.list_objects_v2(Bucket="bucket")) == "SignatureDoesNotMatch"


def test_it_does_not_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.support.s3_server import s3_server\n"
        "with s3_server(Path(sys.argv[1])) as server:\n"
        "    print(server.url, flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "root")], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout
        url = urlsplit(process.stdout.readline())
        address = (url.hostname or "", url.port or 0)
        assert answers(address)
        os.kill(process.pid, signal.SIGKILL)
    until(lambda: not answers(address), "the server is still there")


def answers(address: tuple[str, int]) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(address) == 0


def test_a_server_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.s3_server._FLAGS", ("--nonsense",))
    with pytest.raises(RuntimeError, match="unknown flag: --nonsense"), s3_server(tmp_path / "root"):
        pass

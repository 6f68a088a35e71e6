"""The benchmarks' object store: clients find S3 there, what goes over its wire is counted, it ends with its process."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import obstore
import psutil
import pytest
from obstore.exceptions import PreconditionError
from obstore.store import S3Store

from benchmarks import measure
from benchmarks import object_store as module
from benchmarks.errors import BenchmarkError
from benchmarks.object_store import NGINX, NO_NGINX, ObjectStore, object_store
from benchmarks.results import Traffic
from tests.support.patience import until
from tests.support.s3_client import code_of, s3_client
from tests.support.s3_server import RCLONE

pytestmark = pytest.mark.skipif(NGINX is None and "CI" not in os.environ, reason=NO_NGINX)
DELAY_SECONDS = 0.3
PART_BYTES = 5 * 2**20


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "buckets"


@pytest.fixture(scope="module")
def store(directory: Path) -> Iterator[ObjectStore]:
    with object_store(directory, DELAY_SECONDS) as running:
        yield running


@pytest.fixture(scope="module")
def client(store: ObjectStore) -> Any:
    # nginx may end a connection between two requests; what is tested are its answers
    return s3_client(store.environment(delayed=False)["AWS_ENDPOINT_URL"], retries={"total_max_attempts": 3})


@pytest.fixture
def files(store: ObjectStore, directory: Path) -> Path:
    """The files behind the target's bucket, of which there are none."""
    store.begin()
    target = directory / "target"
    subprocess.run(["rm", "-rf", target], check=True)
    target.mkdir()
    return target


def rclone(store: ObjectStore, *arguments: str | Path, delayed: bool = False) -> str:
    return measure.run([str(RCLONE), *map(str, arguments)], store.environment(delayed=delayed)).output


def keys(client: Any, **options: object) -> list[str]:
    listed = client.get_paginator("list_objects_v2").paginate(Bucket="target", **options)
    return [each["Key"] for page in listed for each in page.get("Contents", [])]


def upload(client: Any, key: str, *parts: bytes, **options: object) -> str:
    """Upload in parts; returns the etag."""
    name = client.create_multipart_upload(Bucket="target", Key=key)["UploadId"]
    of = {"Bucket": "target", "Key": key, "UploadId": name}
    answers = [client.upload_part(**of, PartNumber=number, Body=part) for number, part in enumerate(parts, 1)]
    numbered = [{"PartNumber": number, "ETag": answer["ETag"]} for number, answer in enumerate(answers, 1)]
    return str(client.complete_multipart_upload(**of, MultipartUpload={"Parts": numbered}, **options)["ETag"])


def test_traffic_is_counted_by_bucket_and_from_the_beginning_only(
    store: ObjectStore, directory: Path, tmp_path: Path
) -> None:
    (directory / "source" / "ckpt").mkdir(parents=True, exist_ok=True)
    (directory / "source" / "ckpt" / "a").write_bytes(bytes(10_000))
    for _ in range(2):
        store.begin()
        rclone(store, "copyto", ":s3:source/ckpt/a", tmp_path / "a")
        rclone(store, "copyto", tmp_path / "a", ":s3:target/out/a")
        (tmp_path / "a").unlink()
        (directory / "target" / "out" / "a").unlink()
        traffic = store.traffic()
        assert (traffic.source_sent_bytes, traffic.requests["GetObject"]) == (10_000, 1)
        assert 10_000 <= traffic.received_bytes < 10_500
        assert traffic.target_sent_bytes < 1000
        assert traffic.requests["PutObject"] == 1


def test_the_servers_processor_time_is_counted_from_the_beginning_only(
    store: ObjectStore, client: Any, files: Path
) -> None:
    def work(seconds: float) -> None:
        def traffic() -> Traffic:
            for _ in range(50):
                client.list_objects_v2(Bucket="target")
            return store.traffic()

        until(lambda: traffic().server_seconds >= seconds, "no processor time is counted")

    (files / "a").write_bytes(b"a")
    work(0.3)
    store.begin()
    assert store.traffic().server_seconds < 0.3


def test_files_put_there_and_removed_behind_its_back_are_seen(store: ObjectStore, files: Path) -> None:
    (files / "late").mkdir()
    (files / "late" / "a").write_bytes(b"a")
    assert rclone(store, "lsf", "--recursive", ":s3:target/late") == "a\n"
    (files / "late" / "a").unlink()
    (files / "late").rmdir()
    assert "late" not in rclone(store, "lsf", ":s3:target")


def test_each_request_waits_for_the_delay_whoever_answers_it(store: ObjectStore, files: Path) -> None:
    (files / "a").write_bytes(b"a")
    delayed = s3_client(store.environment(delayed=True)["AWS_ENDPOINT_URL"])
    requests = (
        lambda: delayed.get_object(Bucket="target", Key="a"),
        lambda: delayed.list_objects_v2(Bucket="target"),
        lambda: delayed.put_object(Bucket="target", Key="b", Body=b"b"),
    )
    for request in requests:
        started = time.monotonic()
        request()
        assert time.monotonic() - started >= DELAY_SECONDS
    assert (files / "b").read_bytes() == b"b"


def test_ranges_and_conditions_are_heeded(client: Any, files: Path) -> None:
    (files / "a").write_bytes(b"0123456789")
    head = client.head_object(Bucket="target", Key="a")
    answer = client.get_object(Bucket="target", Key="a", Range="bytes=2-4", IfMatch=head["ETag"])
    assert (answer["ResponseMetadata"]["HTTPStatusCode"], answer["Body"].read(), answer["ETag"]) == (
        *(206, b"234"),
        head["ETag"],
    )
    (files / "a").write_bytes(b"replaced")
    assert code_of(lambda: client.head_object(Bucket="target", Key="a", IfMatch=head["ETag"])) == "412"
    assert code_of(lambda: client.get_object(Bucket="target", Key="a", IfMatch=head["ETag"])) == "412"
    assert code_of(lambda: client.get_object(Bucket="target", Key="b")) == "NoSuchKey"
    assert code_of(lambda: client.head_object(Bucket="target", Key="b")) == "404"
    assert code_of(lambda: client.list_objects_v2(Bucket="none")) == "NoSuchBucket"


def test_obstore_reads_and_writes_there(store: ObjectStore, files: Path) -> None:
    url = store.environment(delayed=False)["AWS_ENDPOINT_URL"]
    there = S3Store(
        "target", endpoint=url, region="us-east-1", skip_signature=True, client_options={"allow_http": True}
    )
    whole = bytes(range(256)) * 100_000
    obstore.put(there, "large", whole, use_multipart=True, chunk_size=PART_BYTES)
    put = obstore.put(there, "small", b"small")
    assert put["e_tag"] == obstore.head(there, "small")["e_tag"]
    assert obstore.get_range(there, "large", start=10_000_000, length=1000) == whole[10_000_000:10_001_000]
    assert (files / "large").read_bytes() == whole
    obstore.put(there, "small", b"large")
    with pytest.raises(PreconditionError):
        obstore.get(there, "small", options={"if_match": put["e_tag"]})
    assert sorted(each["path"] for each in obstore.list(there).collect()) == ["large", "small"]


def test_an_object_written_again_within_a_second_has_another_etag(client: Any, files: Path) -> None:
    etags = [client.put_object(Bucket="target", Key="a", Body=body)["ETag"] for body in (b"a", b"b", b"c")]
    assert len(set(etags)) == 3
    assert client.head_object(Bucket="target", Key="a")["ETag"] == etags[-1]


def test_writing_and_deleting_heed_conditions(client: Any, files: Path) -> None:
    first = client.put_object(Bucket="target", Key="a", Body=b"a", IfNoneMatch="*")["ETag"]
    assert code_of(lambda: client.put_object(Bucket="target", Key="a", Body=b"", IfNoneMatch="*")) == (
        "PreconditionFailed"
    )
    second = client.put_object(Bucket="target", Key="a", Body=b"b", IfMatch=first)["ETag"]
    assert code_of(lambda: client.delete_object(Bucket="target", Key="a", IfMatch=first)) == "PreconditionFailed"
    assert code_of(lambda: upload(client, "a", b"c", IfNoneMatch="*")) == "PreconditionFailed"
    client.delete_object(Bucket="target", Key="a", IfMatch=second)
    assert keys(client) == []


def test_parts_are_one_object_for_all_who_ask(store: ObjectStore, client: Any, files: Path) -> None:
    whole = os.urandom(2 * PART_BYTES + 10)
    etag = upload(client, "deep/a", whole[:PART_BYTES], whole[PART_BYTES:])
    assert not (files / "deep" / "a").exists(), "they wait until somebody reads it"
    [listed] = client.list_objects_v2(Bucket="target", Prefix="deep/")["Contents"]
    head = client.head_object(Bucket="target", Key="deep/a", IfMatch=etag)
    assert (listed["Key"], listed["Size"], listed["ETag"]) == ("deep/a", len(whole), etag)
    assert (head["ContentLength"], head["ETag"], head["LastModified"]) == (len(whole), etag, listed["LastModified"])
    assert code_of(lambda: client.head_object(Bucket="target", Key="deep/a", IfMatch='"other"')) == "412"
    read = client.get_object(Bucket="target", Key="deep/a", Range="bytes=9-12", IfMatch=etag)
    assert (read["Body"].read(), read["ETag"]) == (whole[9:13], etag)
    assert client.head_object(Bucket="target", Key="deep/a")["ETag"] == etag, "the file's"
    assert (files / "deep" / "a").read_bytes() == whole

    upload(client, "deep/b", b"b")
    store.traffic()
    assert (files / "deep" / "b").read_bytes() == b"b"


def test_parts_give_way_to_what_is_written_after_them(client: Any, files: Path) -> None:
    etags = {upload(client, "a", b"a"), upload(client, "a", b"b")}
    etags.add(client.put_object(Bucket="target", Key="a", Body=b"c")["ETag"])
    assert len(etags) == 3
    assert client.get_object(Bucket="target", Key="a")["Body"].read() == b"c"
    upload(client, "a", b"d")
    client.copy_object(Bucket="target", Key="copy", CopySource="target/a")
    client.delete_object(Bucket="target", Key="a")
    assert keys(client) == ["copy"]
    assert client.get_object(Bucket="target", Key="copy")["Body"].read() == b"d"


def test_an_upload_can_be_looked_at_and_given_up(client: Any, files: Path) -> None:
    of = {"Bucket": "target", "Key": "a & b"}
    name = client.create_multipart_upload(**of)["UploadId"]
    client.upload_part(**of, UploadId=name, PartNumber=2, Body=b"abc")
    [listed] = client.list_multipart_uploads(Bucket="target", Prefix="a ")["Uploads"]
    assert (listed["Key"], listed["UploadId"]) == ("a & b", name)
    [part] = client.list_parts(**of, UploadId=name)["Parts"]
    assert (part["PartNumber"], part["Size"]) == (2, 3)
    wrong = {"Parts": [{"PartNumber": 2, "ETag": '"other"'}]}
    assert (
        code_of(lambda: client.complete_multipart_upload(**of, UploadId=name, MultipartUpload=wrong)) == "InvalidPart"
    )
    client.abort_multipart_upload(**of, UploadId=name)
    assert code_of(lambda: client.list_parts(**of, UploadId=name)) == "NoSuchUpload"
    assert "Uploads" not in client.list_multipart_uploads(Bucket="target", Prefix="a ")
    assert keys(client) == []


def test_lists_come_in_pages_and_in_order(client: Any, files: Path) -> None:
    names = ["a b/1", "a b/2", "a+b", "a-1", "z/ü", "z"]
    for name in names[:-1]:
        client.put_object(Bucket="target", Key=name, Body=name.encode())
    assert keys(client) == sorted(names[:-1])
    assert keys(client, PaginationConfig={"PageSize": 2}) == sorted(names[:-1])
    assert keys(client, Prefix="a b/", StartAfter="a b/1") == ["a b/2"]
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="target", Delimiter="/", MaxKeys=1)
    found = [
        each.get("Key") or each["Prefix"]
        for page in pages
        for each in page.get("Contents", []) + page.get("CommonPrefixes", [])
    ]
    assert found == ["a b/", "a+b", "a-1", "z/"]
    gone = client.delete_objects(Bucket="target", Delete={"Objects": [{"Key": "a b/1"}, {"Key": "z/ü"}]})
    assert [each["Key"] for each in gone["Deleted"]] == ["a b/1", "z/ü"]
    assert keys(client) == ["a b/2", "a+b", "a-1"]
    assert not (files / "z").exists(), "directories are no objects"


def test_what_it_does_not_do_it_refuses(client: Any, files: Path) -> None:
    client.put_object(Bucket="target", Key="a", Body=b"a")
    name = client.create_multipart_upload(Bucket="target", Key="b")["UploadId"]
    of = {"Bucket": "target", "Key": "b", "UploadId": name, "PartNumber": 1}
    assert code_of(lambda: client.upload_part_copy(**of, CopySource="target/a")) == "NotImplemented"
    assert code_of(lambda: client.list_objects(Bucket="target")) == "NotImplemented"


def test_it_is_gone_when_the_block_ends(tmp_path: Path) -> None:
    with object_store(tmp_path / "buckets", 0) as running:
        url = running.environment(delayed=False)["AWS_ENDPOINT_URL"]
    until(lambda: processes_of(tmp_path) == [], "processes are left")
    with pytest.raises(URLError):
        build_opener(ProxyHandler({})).open(url)


def test_it_is_gone_when_its_process_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from benchmarks.object_store import object_store\n"
        f"with object_store(Path({str(tmp_path / 'buckets')!r}), 0): print('up', flush=True); time.sleep(1000)"
    )
    killed = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert killed.stdout
    assert killed.stdout.readline() == b"up\n"
    assert any("nginx" in each for each in processes_of(tmp_path))
    killed.kill()
    killed.communicate()
    until(lambda: processes_of(tmp_path) == [], "processes are left")


def processes_of(directory: Path) -> list[str]:
    """Names of the processes that work there."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(directory) in f"{process.cwd()} {' '.join(process.cmdline())}":
                found.append(process.name())
        except psutil.Error:
            continue
    return found


def test_a_store_that_cannot_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as listeners:
        taken = [listeners.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = (listener.getsockname()[1] for listener in taken)
        monkeypatch.setattr(module, "free_port", lambda: next(ports))
        with pytest.raises(BenchmarkError, match="Address already in use"), object_store(tmp_path / "buckets", 0):
            pass


def test_without_nginx_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NGINX", None)
    with pytest.raises(BenchmarkError, match="apt-get install nginx-light"), object_store(tmp_path / "buckets", 0):
        pass


def test_its_clients_read_no_settings_of_anyone(store: ObjectStore) -> None:
    names = "RCLONE_CONFIG", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "FSSPEC_CONFIG_DIR"
    environment = store.environment(delayed=True)
    assert {environment[name] for name in names} == {os.devnull}

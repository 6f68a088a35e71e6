"""s3://: which endpoint, keys and ways of asking settings lead to, as a server sees them."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

from reshard.core.errors import InputError
from reshard.core.storage.objects.object_store import ObjectStore
from reshard.core.storage.objects.s3 import S3Service, s3_settings
from reshard.core.storage.stores import open_store
from tests.support.canned_server import OBJECT, Answer, Asked, CannedServer
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT
from tests.support.signatures import signed_by

KEYS = {"key": "own", "secret": "own secret"}
SECRET = "AKIASECRET"


def opened(url: str = "s3://models/run", **options: Any) -> ObjectStore:
    store, _ = open_store(url, options)
    assert isinstance(store, ObjectStore)
    return store


def refusal(url: str = "s3://models/run", **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        open_store(url, options)
    assert SECRET not in "".join(format_exception(caught.value))
    assert str(caught.value).startswith(f"{url!r}: ")
    return str(caught.value)


def asked(server: CannedServer, **options: Any) -> Asked:
    """The request of a look at an object."""
    opened(**options).stat("models/run/a")
    return server.asked[-1]


def environment(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


# ---- where ----


def test_the_endpoint_of_the_options_wins_then_the_environment(
    server: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(variable, server.url)
        assert asked(server, **KEYS).path == "/models/run/a"
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    assert asked(server, **KEYS, endpoint_url=server.url).path == "/models/run/a"
    assert asked(server, **KEYS, client_kwargs={"endpoint_url": server.url}).path == "/models/run/a"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
    assert asked(server, **KEYS).path == "/models/run/a"


def test_variables_that_only_obstore_knows_do_not_count(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(
        monkeypatch,
        AWS_ENDPOINT="http://127.0.0.1:1",
        AWS_REGION="nowhere",
        AWS_BUCKET="other",
        AWS_SKIP_SIGNATURE="true",
        AWS_S3_EXPRESS="true",
        AWS_REQUEST_PAYER="true",
        AWS_VIRTUAL_HOSTED_STYLE_REQUEST="true",
        AWS_ALLOW_HTTP="false",
        AWS_PROXY_URL="http://127.0.0.1:1",
        AWS_TIMEOUT="1ms",
    )
    request = asked(server, endpoint_url=server.url, **KEYS)
    assert request.path == "/models/run/a"
    assert signed_by(request) == ("own", "us-east-1", None)
    assert "x-amz-request-payer" not in request.headers


@pytest.mark.parametrize(
    ("variables", "options", "url"),
    [
        ({}, {"client_kwargs": {"region_name": "eu-west-3"}}, "https://s3.eu-west-3.amazonaws.com"),
        ({"AWS_DEFAULT_REGION": "eu-west-3"}, {}, "https://s3.eu-west-3.amazonaws.com"),
        ({"AWS_DEFAULT_REGION": "cn-north-1"}, {}, "https://s3.cn-north-1.amazonaws.com.cn"),
        ({"AWS_DEFAULT_REGION": "r-1", "AWS_USE_FIPS_ENDPOINT": "true"}, {}, "https://s3-fips.r-1.amazonaws.com"),
        (
            {"AWS_DEFAULT_REGION": "r-1", "AWS_USE_DUALSTACK_ENDPOINT": "true"},
            {},
            "https://s3.dualstack.r-1.amazonaws.com",
        ),
        (
            {
                "AWS_ENDPOINT_URL": "http://host",
                "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
                "AWS_DEFAULT_REGION": "r-1",
            },
            {},
            "https://s3.r-1.amazonaws.com",
        ),
        ({"AWS_ENDPOINT_URL": "http://host/"}, {}, "http://host"),
    ],
)
def test_the_endpoint_follows_from_the_settings(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], options: dict[str, Any], url: str
) -> None:
    environment(monkeypatch, **variables)
    assert opened(**KEYS, **options).service.address == url


@pytest.mark.parametrize("region", ["eu-west-1/../x", "a b", "us@evil", "é"])
def test_what_cannot_be_a_region_is_refused(region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the region that is configured cannot be one" in refusal(**KEYS, client_kwargs={"region_name": region})
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    assert "the region that is configured cannot be one" in refusal(**KEYS)


@pytest.mark.parametrize(
    ("options", "bucket", "host"),
    [
        ({}, "models", "models.s3.r-1.amazonaws.com"),
        ({}, "models.of.us", "s3.r-1.amazonaws.com"),
        ({}, "Models_1", "s3.r-1.amazonaws.com"),
        ({"addressing_style": "path"}, "models", "s3.r-1.amazonaws.com"),
        ({"addressing_style": "auto"}, "models", "models.s3.r-1.amazonaws.com"),
    ],
)
def test_the_bucket_stands_where_aws_looks_for_it(options: dict[str, str], bucket: str, host: str) -> None:
    settings = s3_settings({**KEYS, "client_kwargs": {"region_name": "r-1"}, "config_kwargs": {"s3": options}})
    client: Any = S3Service(settings).client(bucket, {"max_retries": 0})
    assert client.config["endpoint_url_s3"] == f"https://{host}"
    assert client.config["virtual_hosted_style_request"] == str(host.startswith(f"{bucket}.")).lower()


def test_a_bucket_stands_in_the_host_where_that_is_asked_for(
    server: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a name below localhost is known to few machines, but a proxy is asked for anything
    monkeypatch.setenv("http_proxy", server.url)
    virtual = {"s3": {"addressing_style": "virtual"}}
    assert asked(server, **KEYS, endpoint_url="http://host:9").path == "http://host:9/models/run/a"
    request = asked(server, **KEYS, endpoint_url="http://host:9", config_kwargs=virtual)
    assert request.path == "http://models.host:9/run/a"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://host:9/path/")
    assert asked(server, **KEYS).path == "http://host:9/path/models/run/a"


@pytest.mark.parametrize("bucket", ["a b", "..", "é", "models%20", "a:b", "arn:aws:s3:eu-west-1:1:accesspoint"])
def test_what_cannot_be_a_bucket_is_refused(bucket: str) -> None:
    assert refusal(f"s3://{bucket}/run", **KEYS).endswith(f"cannot be opened: {bucket!r} cannot be a bucket's name")


@pytest.mark.parametrize("url", ["s3://", "s3:///run"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    assert refusal(url, **KEYS).endswith("cannot be opened: it names no bucket")


def test_buckets_of_s3_express_are_refused() -> None:
    assert "directory buckets of S3 Express are not supported" in refusal("s3://models--usw2-az1--x-s3/run", **KEYS)


def test_a_version_in_a_url_is_refused() -> None:
    assert "versionId in a URL is not supported" in refusal("s3://models/run?versionId=1", **KEYS)


# ---- the region of a bucket ----


@pytest.mark.parametrize("status", [200, 301, 403])
def test_without_a_region_it_is_asked_for_by_the_bucket(server: CannedServer, status: int) -> None:
    from reshard.core.storage.objects.aws_configuration import region_of

    server.answer = Answer(status, headers={"x-amz-bucket-region": "eu-west-3"})
    assert region_of(server.url, "models") == "eu-west-3"
    [request] = server.asked
    assert (request.method, request.path) == ("HEAD", "/models")
    assert "authorization" not in request.headers


def test_a_region_that_nobody_tells_is_the_usual_one(server: CannedServer) -> None:
    from reshard.core.storage.objects.aws_configuration import region_of

    server.answer = Answer(404)
    assert region_of(server.url, "models") == "us-east-1"


def test_a_region_is_asked_for_again_if_there_was_no_answer(
    server: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong one was kept for the rest of the process, and each request refused."""
    from reshard.core.storage.objects.aws_configuration import region_of

    server.answer = Answer(503)
    with pytest.raises(ConnectionError, match=f"{server.url} does not say in which region the bucket 'models' is"):
        region_of(server.url, "models")
    with pytest.raises(ConnectionError, match="does not say in which region"):
        region_of("http://127.0.0.1:1", "models")


def test_a_bucket_of_aws_is_asked_for_in_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = []

    def region_of(endpoint: str, bucket: str, *_: object) -> str:
        asked_for.append((endpoint, bucket))
        return "eu-west-3"

    monkeypatch.setattr("reshard.core.storage.objects.aws_configuration.region_of", region_of)
    service = S3Service(s3_settings(KEYS))
    for _ in range(2):
        client: Any = service.client("models", {"max_retries": 0})
        assert client.config["endpoint_url_s3"] == "https://models.s3.eu-west-3.amazonaws.com"
        assert client.config["region"] == "eu-west-3"
    assert asked_for == [("https://s3.us-east-1.amazonaws.com", "models")]


# ---- who ----


def test_keys_come_from_one_place_together(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(
        monkeypatch,
        AWS_ENDPOINT_URL=server.url,
        AWS_ACCESS_KEY_ID="of environment",
        AWS_SECRET_ACCESS_KEY="s",
        AWS_SESSION_TOKEN="token of environment",
        AWS_DEFAULT_REGION="eu-west-3",
    )
    assert signed_by(asked(server)) == ("of environment", "eu-west-3", "token of environment")
    assert signed_by(asked(server, **KEYS)) == ("own", "eu-west-3", None)
    assert signed_by(asked(server, **KEYS, token="own token")) == ("own", "eu-west-3", "own token")
    here = {"region_name": "here"}
    assert signed_by(asked(server, **KEYS, client_kwargs=here)) == ("own", "here", None)
    configured = {"key": "configured", "secret": "s", "token": "configured token", "requester_pays": True}
    monkeypatch.setattr("fsspec.config.conf", {"s3": configured})
    assert signed_by(asked(server)) == ("configured", "eu-west-3", "configured token")
    request = asked(server, **KEYS)
    assert signed_by(request) == ("own", "eu-west-3", None)
    assert request.headers["x-amz-request-payer"] == "requester"


def test_a_configured_token_is_not_added_to_named_keys(server: CannedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsspec.config.conf", {"s3": {"token": "configured"}})
    assert signed_by(asked(server, endpoint_url=server.url, **KEYS))[2] is None


def test_fsspecs_configuration_is_merged_setting_by_setting(
    server: CannedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = {"client_kwargs": {"region_name": "configured"}, "config_kwargs": {"read_timeout": 7}}
    monkeypatch.setattr("fsspec.config.conf", {"s3": configured})
    store = opened(endpoint_url=server.url, config_kwargs={"connect_timeout": 3}, **KEYS)
    client: Any = store.service.client("models", {"max_retries": 0})
    assert client.client_options["read_timeout"] == "7s"
    assert client.client_options["connect_timeout"] == "3s"
    assert client.config["region"] == "configured"


def test_fsspecs_own_files_and_variables_count(server: CannedServer, home: Path) -> None:
    (home / ".config/fsspec").mkdir(parents=True)
    (home / ".config/fsspec/s3.json").write_text(json.dumps({"s3": {"endpoint_url": server.url, "key": "of file"}}))
    program = (
        "from reshard.core.storage.stores import open_store\n"
        "store, path = open_store('s3://models/run/a', {})\n"
        "store.stat(path)"
    )
    loaded(program, home, FSSPEC_S3_KEY="of variable", FSSPEC_S3_SECRET="s")
    assert signed_by(server.asked[-1])[0] == "of variable"


def test_settings_that_only_tune_s3fs_are_ignored(server: CannedServer) -> None:
    tuned = {"use_listings_cache": False, "default_block_size": 5, "config_kwargs": {"retries": {"mode": "standard"}}}
    assert asked(server, endpoint_url=server.url, **KEYS, **tuned).method == "HEAD"


@pytest.mark.parametrize("anon", [True, "true", "1"])
def test_public_buckets_are_read_without_keys(
    server: CannedServer, anon: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="s")
    assert "authorization" not in asked(server, endpoint_url=server.url, anon=anon).headers
    assert "authorization" in asked(server, endpoint_url=server.url, anon=False).headers


# ---- how ----


def test_new_objects_are_encrypted_as_asked_for(server: CannedServer) -> None:
    writing = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "the-key", "BucketKeyEnabled": True}
    store = opened(endpoint_url=server.url, s3_additional_kwargs=writing, **KEYS)
    server.answer = Answer(headers={"ETag": '"x"'})
    store.put("models/run/a", b"x")
    headers = server.asked[-1].headers
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "the-key"
    assert headers["x-amz-server-side-encryption-bucket-key-enabled"] == "true"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"endpoint": "http://x", "acces_key": SECRET}, "acces_key, endpoint: no such storage option; there are end"),
        ({"username": SECRET}, "username: no such storage option"),
        ({"version_aware": True}, "version_aware: no such storage option"),
        ({"config_kwargs": {"max_conections": SECRET}}, "max_conections: no such storage option of config_kwargs"),
        ({"config_kwargs": {"s3": {"addressing_style": SECRET}}}, "addressing_style: must be auto, path or virtual"),
        ({"config_kwargs": {"s3": {"use_dualstack_endpoint": SECRET}}}, "no such storage option of config_kwargs.s3"),
        ({"config_kwargs": {"s3": SECRET}}, "config_kwargs.s3: must be an object of options"),
        ({"config_kwargs": {"read_timeout": SECRET}}, "config_kwargs.read_timeout: must be a number of seconds"),
        ({"config_kwargs": {"read_timeout": 0}}, "config_kwargs.read_timeout: must be a number of seconds"),
        ({"config_kwargs": {"connect_timeout": True}}, "config_kwargs.connect_timeout: must be a number of seconds"),
        ({"config_kwargs": SECRET}, "config_kwargs: must be an object of options"),
        ({"client_kwargs": SECRET}, "client_kwargs: must be an object of options"),
        ({"client_kwargs": {"regoin": SECRET}}, "regoin: no such storage option of client_kwargs; there are region_n"),
        ({"client_kwargs": {"aws_access_key_id": SECRET}}, "aws_access_key_id: no such storage option of client_kw"),
        ({"client_kwargs": {"region_name": [SECRET]}}, "client_kwargs.region_name: must be a text"),
        ({"client_kwargs": {"verify": [SECRET]}}, "client_kwargs.verify: must be false, or the path of a bundle"),
        ({"s3_additional_kwargs": {"ACL": SECRET}}, "ACL: no such storage option of s3_additional_kwargs"),
        ({"s3_additional_kwargs": {"ServerSideEncryption": SECRET}}, "ServerSideEncryption: must be AES256, aws:kms"),
        ({"s3_additional_kwargs": {"SSEKMSKeyId": SECRET}}, "ServerSideEncryption: must be AES256, aws:kms or aws"),
        (
            {"s3_additional_kwargs": {"ServerSideEncryption": "aws:kms", "BucketKeyEnabled": SECRET}},
            "s3_additional_kwargs.BucketKeyEnabled: must be true or false",
        ),
        ({"anon": SECRET}, "anon: must be true or false"),
        ({"requester_pays": [SECRET]}, "requester_pays: must be true or false"),
        ({"key": [SECRET], "secret": "s"}, "key: must be a text"),
        ({"key": "k", "secret": {"a": SECRET}}, "secret: must be a text"),
        ({"key": SECRET}, "key and secret must be given together"),
        ({"secret": SECRET}, "key and secret must be given together"),
        ({"token": SECRET}, "key and secret must be given together"),
    ],
)
def test_options_that_do_not_exist_are_refused_at_once(options: dict[str, Any], reason: str) -> None:
    for url in ("s3://models/run", "obs://models/run"):
        assert reason in refusal(url, **{"endpoint_url": "http://host", **options})


# ---- what is loaded, and shown ----


def loaded(program: str, home: Path, *names: str, **variables: str) -> Sequence[str]:
    """Which of these modules a program has loaded, in a process with these variables."""
    program = f"import json, sys\n{program}\nprint(json.dumps([name for name in {names} if name in sys.modules]))"
    environment = {"HOME": str(home), "PATH": "/usr/bin", **variables}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    found: Sequence[str] = json.loads(ended.stdout)
    return found


def test_plain_keys_are_used_without_the_packages_of_aws(server: CannedServer, home: Path) -> None:
    options = {**KEYS, "endpoint_url": server.url}
    program = (
        "from reshard.core.storage.stores import open_store\n"
        f"store, path = open_store('s3://models/run/a', {options})\n"
        "store.stat(path)"
    )
    assert loaded(program, home, "obstore") == ["obstore"]
    assert loaded(program, home, "boto3", "botocore", "fsspec", "asyncio", "urllib.request", "ssl") == []


def test_settings_are_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    from reshard.core.storage.objects import aws_configuration
    from reshard.core.storage.objects.s3_options import parse_options

    environment(monkeypatch, AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY=SECRET)
    options = {"key": "k", "secret": SECRET, "token": SECRET, "endpoint_url": "http://host"}
    store = opened(**options)
    shown = [store, store.service, vars(store.service), s3_settings(options), parse_options(options)]
    shown += [aws_configuration.configuration(None), store.service.client("models", {"max_retries": 0})]
    for each in shown:
        assert SECRET not in f"{each!r} {each}"


def test_other_settings_are_another_store(monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(**KEYS)
    assert opened("s3a://models/other", **KEYS) is first
    assert opened(**{**KEYS, "secret": "another"}) is not first
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://host")
    assert opened(**KEYS) is not first


def test_the_package_that_a_protocol_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    extras = {
        "s3": "s3",
        "s3a": "s3",
        "obs": "obs",
        "gs": "gs",
        "gcs": "gs",
        "az": "azure",
        "abfs": "azure",
        "abfss": "azure",
    }
    for protocol, extra in extras.items():
        assert refusal(f"{protocol}://models/run").endswith(
            f"{protocol}:// needs a package that is not installed: pip install 'reshard[{extra}]'"
        )


def listing(*keys: str) -> Answer:
    """A page with empty objects."""
    described = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-11-26T08:00:00Z</LastModified><Size>0</Size><ETag>x</ETag>"
        "</Contents>"
        for key in keys
    )
    return Answer(200, f"<ListBucketResult>{described}</ListBucketResult>".encode())


def test_empty_objects_right_below_a_prefix_are_not_asked_for(server: CannedServer) -> None:
    server.answer = listing("run/", "run/a", "run/b")
    found = opened(endpoint_url=server.url, **KEYS).list("models/run")
    assert [entry.name for entry in found] == ["a", "b"]
    assert len(server.asked) == 1


def test_markers_of_directories_that_hold_something_are_not_asked_for(server: CannedServer) -> None:
    server.answer = listing(
        "run/", "run/rank_0/", "run/rank_0/inner/", "run/rank_0/inner/a", "run/rank_1/", "run/rank_1/a"
    )
    page = server.answer
    server.answers = lambda path: page if "list-type" in path else OBJECT
    found = opened(endpoint_url=server.url, **KEYS).find("models/run")
    assert [entry.path for entry in found] == ["models/run/rank_0/inner/a", "models/run/rank_1/a"]
    assert [request.path.partition("?")[0] for request in server.asked[1:]] == [
        "/models/run/rank_0/inner/a",
        "/models/run/rank_1/a",
    ]

"""Secrets in URLs and requests are refused, in what others say removed, and never repeated."""

import pytest

from core.errors import InputError
from core.request import build_request
from core.secrets import NAME_ADVICE, carries_credentials, scrubbed


@pytest.mark.parametrize("field", ["source", "target", "source_strategy", "target_strategy"])
def test_a_url_with_a_password_is_refused_without_repeating_it(field: str) -> None:
    options = {"source": "a", "target": "b", field: "s3://bob:hunter2@bucket/x"}
    with pytest.raises(InputError, match="must not carry credentials") as caught:
        build_request(**options)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in str(caught.value.__cause__)


@pytest.mark.parametrize("field", ["source_storage", "target_storage"])
@pytest.mark.parametrize(
    "value", ['{"key": "k", "secret": "hunter2"}', "hunter2", "vault:hunter2", "env:", "env: hunter2"]
)
def test_storage_options_themselves_are_refused_without_repeating_them(field: str, value: str) -> None:
    option = "--" + field.replace("_", "-")
    with pytest.raises(InputError) as caught:
        build_request(**{"source": "a", "target": "b", field: value})
    assert str(caught.value) == f"{option}: {NAME_ADVICE}"
    assert "hunter2" not in str(caught.value.__cause__)


@pytest.mark.parametrize("name", ["", "env:MINIO", "file:/etc/reshard/minio.json", "file:~/a b.json", "block:minio"])
def test_a_name_of_storage_options_is_taken(name: str) -> None:
    assert build_request(source="a", target="b", source_storage=name).source_storage == name


@pytest.mark.parametrize(
    "url",
    [
        "s3://bob:hunter2@bucket/x",
        "https://host/x?X-Amz-Signature=hunter2",
        "https://host/x?a=b&x-obs-signature=hunter2",
        "https://host/x?se=1&sig=hunter2&sv=2",
        "https://host/x?AWSAccessKeyId=a&Signature=hunter2",
    ],
)
def test_a_url_that_opens_what_it_names_carries_credentials(url: str) -> None:
    assert carries_credentials(url)


@pytest.mark.parametrize(
    "url", ["https://host/x?versionId=1", "https://host/x?design=1", "/data/x?sig=1", "s3://a/b:c@d"]
)
def test_other_urls_carry_none(url: str) -> None:
    assert not carries_credentials(url)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("GET http://me:hunter2@proxy:80/x failed", "GET http://…@proxy:80/x failed"),
        ("at https://h/x?a=b&X-Amz-Signature=hunter2&c=d", "at https://h/x?a=b&X-Amz-Signature=…&c=d"),
        ("X-Amz-Credential=hunter2, then", "X-Amz-Credential=… then"),
        ("AWSAccessKeyId=hunter2", "AWSAccessKeyId=…"),
        ("<AWSAccessKeyId>hunter2</AWSAccessKeyId>", "<AWSAccessKeyId>…</AWSAccessKeyId>"),
        ("https://h/x?sig=hunter2", "https://h/x?sig=…"),
        ("/data/run: no such file, and 5 bytes = all", "/data/run: no such file, and 5 bytes = all"),
    ],
)
def test_what_others_say_is_repeated_without_its_secrets(text: str, left: str) -> None:
    assert scrubbed(text) == left

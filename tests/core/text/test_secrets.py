"""Secrets in URLs and requests are refused, in what others say removed, and never repeated."""

from pathlib import Path

import pytest

from reshard.cli.main import run
from reshard.core.errors import InputError
from reshard.core.request.conversion import build_request
from reshard.core.text.secrets import carries_credentials, scrubbed
from tests.support.checkpoints import case


@pytest.mark.parametrize("field", ["source", "target", "source_strategy", "target_strategy"])
def test_a_url_with_a_password_is_refused_without_repeating_it(field: str) -> None:
    options = {"source": "a", "target": "b", field: "s3://bob:hunter2@bucket/x"}
    with pytest.raises(InputError, match="must not carry credentials") as caught:
        build_request(**options)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in str(caught.value.__cause__)


@pytest.mark.parametrize("url", ["https://hunter2@host/x", "s3://AK%3Ahunter2@b", "https://h/x?token=hunter2"])
def test_a_token_in_a_url_is_refused_wherever_a_url_is_taken_without_repeating_it(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = str(tmp_path)
    commands = [
        ["convert", url, here],
        ["convert", here, url],
        ["convert", here, here, "--changes", url],
        ["convert-latest", url, here],
        ["plan", url],
        ["plan", str(case(7009).directory / "full"), "--html", url],
        ["recover", url],
        ["doctor", url],
        ["verify", url],
        ["diff", url, here],
        ["diff", here, here, "--strategy-b", url],
        ["fingerprint", url],
        ["join-parts", url, here, here],
        ["merge-strategy", url, here],
        ["make-strategy", here, "--like", url, "-D", "2", "-M", "1"],
        ["inspect", url],
    ]
    for command in commands:
        assert run(command) == 2, command
        shown = "".join(capsys.readouterr())
        assert "hunter2" not in shown, command
        assert "must not carry credentials" in shown, (command, shown)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bob:hunter2@bucket/x",
        "https://host/x?X-Amz-Signature=hunter2",
        "https://host/x?a=b&x-obs-signature=hunter2",
        "https://host/x?se=1&sig=hunter2&sv=2",
        "https://host/x?AWSAccessKeyId=a&Signature=hunter2",
        "https://host/x?token=hunter2",
        "https://host/x?a=1&TOKEN=hunter2",
        "https://host/x?x-obs-security-token=hunter2",
        "https://host/x?X-Amz-Security-Token=hunter2",
        "https://host/x?accessToken=hunter2",
        "https://host/x?api_key=hunter2",
        "https://host/x#access_token=hunter2",
        "https://host/x?%74oken=hunter2",
        "https://host/x%3Ftoken%3Dhunter2",
        "https://hunter2@host/x",
        "HTTPS://hunter2@host/x",
        "https://hunter2%40host/x",
        "git+https://hunter2@host/x",
        "s3://hunter2@bucket/x",
        "s3://AK%3Ahunter2@bucket",
        "s3://AK%3ahunter2%40bucket",
        "s3://AK%253Ahunter2@bucket",
        "s3://AK:hunt/er2@bucket/x",
        "s3://A[K:hunter2@bucket/x",
        "http://me:hunter2@[::1]:9000/x",
        "simplecache::s3://AK:hunter2@bucket/x",
        "simplecache::https://host/x?token=hunter2",
        "zip://a.zip::https://hunter2@host/x",
    ],
)
def test_a_url_that_opens_what_it_names_carries_credentials(url: str) -> None:
    assert carries_credentials(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://host/x?versionId=1",
        "https://host/x?design=1&tokenizer=2",
        "/data/x?sig=1",
        "/data/x?token=1",
        "s3://a/b:c@d",
        "s3://bucket/run@5/x",
        "s3://bucket/a%40b%3Ac",
        "obs://host:443/bucket/run@5",
        "http://[::1]:9000/a@b",
        "https://host:443?x=a@b",
        "sftp://user@host/x",
        "hdfs://user@host:9000/x",
        "abfs://container@account.dfs.core.windows.net/x",
    ],
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
        ("'https://h/x?a=1&token=hunter2'", "'https://h/x?a=1&token=…'"),
        ("https://h/x?x-obs-security-token=hunter2 no", "https://h/x?x-obs-security-token=… no"),
        ("at https://h/x%3Ftoken%3Dhunter2&c=d", "at https://h/x%3Ftoken%3D…&c=d"),
        ("GET https://hunter2@h/x failed", "GET https://…@h/x failed"),
        ("'s3://AK%3Ahunter2@b': no", "'s3://…@b': no"),
        ("s3://AK:hunt/er2@b failed", "s3://…@b failed"),
        ("at https://h/x?%74oken=hunter2 it failed", "at … it failed"),
        (
            "sftp://user@host/x: no, http://proxy:80: ask me@h",
            "sftp://user@host/x: no, http://proxy:80: ask me@h",
        ),
        ("/data/run: no such file, and 5 bytes = all", "/data/run: no such file, and 5 bytes = all"),
    ],
)
def test_what_others_say_is_repeated_without_its_secrets(text: str, left: str) -> None:
    assert scrubbed(text) == left

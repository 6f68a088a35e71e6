"""Options of the check of a converted checkpoint."""

import pytest

from reshard.core.errors import InputError
from reshard.core.options.validation import build_options
from reshard.core.request.verification import VerificationRequest


def test_a_target_is_enough() -> None:
    request = build_options(VerificationRequest, target="/out")
    assert (request.level, request.decrypt_key, request.storage) == ("checksum", "", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": ""}, "target '': must not be empty"),
        ({"target": "s3://user:password@bucket/x"}, "target: a URL must not carry credentials"),
        ({"level": "none"}, "level 'none': must be 'structure', 'checksum' or 'content'"),
        (
            {"decrypt_mode": "AES-CBC"},
            "decrypt_mode 'AES-CBC': needs a key: name it with",
        ),
        (
            {"source_decrypt_mode": "SM4-CBC"},
            "source_decrypt_mode 'SM4-CBC': needs a key",
        ),
        ({"source_decrypt_key": "secret"}, "source_decrypt_key: must be env:NAME, file:PATH or block:NAME"),
        ({"source_storage": "secret"}, "source_storage: must be env:NAME, file:PATH or block:NAME"),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_options(VerificationRequest, **{"target": "/out"} | options)
    assert str(caught.value).startswith(message)

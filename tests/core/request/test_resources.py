"""Names of storages and keys in requests."""

from reshard.core.request.conversion import build_request
from reshard.core.request.resources import key_names, names_in, storage_pairs
from reshard.core.request.source import DiagnosisRequest, SourceRequest


def test_each_url_goes_with_its_storage() -> None:
    request = build_request(
        source="/a",
        target="/b",
        source_strategy="/s",
        target_strategy="/t",
        changes="/c.yaml",
        source_storage="env:S",
        target_storage="env:T",
        decrypt_key="env:K",
        encrypt_key="env:E",
        sign="env:K2",
        sign_passphrase="env:P",
        sign_certificate="/chain.pem",
        require_signed_by="block:training",
    )
    assert dict(storage_pairs(request)) == {
        "/a": "env:S",
        "/s": "env:S",
        "/c.yaml": "env:S",
        "/b": "env:T",
        "/t": "env:T",
        "/chain.pem": "env:T",
        "block:training": "env:S",
        "": "env:S",
    }
    assert (key_names(request).source, key_names(request).target) == ("env:K", "env:E")
    assert set(names_in(request)) == {"env:S", "env:T", "env:K", "env:E", "env:K2", "env:P", "block:training"}
    source = SourceRequest.of(request)
    assert dict(storage_pairs(source)) == {"/a": "env:S", "/s": "env:S"}
    assert set(filter(None, names_in(source))) == {"env:S", "env:K"}


def test_an_adapter_is_where_the_source_is() -> None:
    request = build_request(source="/a", target="/b", lora="/adapter", source_storage="env:S")
    assert dict(storage_pairs(request))["/adapter"] == "env:S"


def test_what_a_diagnosis_compares_with_is_where_the_source_is() -> None:
    request = DiagnosisRequest(
        source="/a", like="/l", preset="/p.yaml", training_config="/t.yaml", source_storage="env:S"
    )
    assert dict(storage_pairs(request)) == {"/a": "env:S", "": "env:S"} | dict.fromkeys(
        ("/l", "/p.yaml", "/t.yaml"), "env:S"
    )


def test_a_reference_is_where_the_source_is() -> None:
    request = build_request(source="/a", target="/b", layout="unified", like="/l", source_storage="env:S")
    assert dict(storage_pairs(request))["/l"] == "env:S"

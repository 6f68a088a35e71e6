"""Options of reading a checkpoint."""

import pytest

from reshard.core.errors import InputError
from reshard.core.options.validation import build_options
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.request.source import FingerprintRequest, SourceRequest
from reshard.core.strategy.integrated_save import IntegratedSave


def test_the_source_of_a_conversion_keeps_its_options() -> None:
    conversion = build_request(
        source="/a", target="/b", source_strategy="/s", step="10_5", recover=True, fault_ranks="3,1"
    )
    source = SourceRequest.of(conversion)
    assert (source.source, source.source_strategy, source.step) == ("/a", "/s", "10_5")
    assert source.faulty == (1, 3)
    assert source.memory_limit_bytes == conversion.memory_limit_bytes == 2**31
    assert source.assumed_integrated_save is IntegratedSave.AUTO


def test_a_source_without_a_strategy_holds_slices() -> None:
    request = build_options(FingerprintRequest, source="/a", fault_ranks="1")
    assert request.assumed_integrated_save is IntegratedSave.NO
    assert not request.check_crc
    assert request.faulty == ()  # they count with 'recover' only


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": ""}, "source '': must not be empty"),
        ({"source_strategy": "s3://user:password@bucket/x"}, "source_strategy: a URL must not carry credentials"),
        ({"decrypt_mode": "AES-CBC"}, "decrypt_mode 'AES-CBC': needs a key"),
        ({"memory_limit": "1MiB"}, "memory_limit '1MiB': must be at least 16MiB"),
        ({"fault_ranks": "x"}, "fault_ranks 'x': must be ranks such as 0-3,7"),
        ({"exclude": ["a", ""]}, "exclude: a pattern is empty"),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_options(FingerprintRequest, **{"source": "/a"} | options)
    assert str(caught.value).startswith(message)


def test_every_field_is_a_conversions_with_the_same_default() -> None:
    for name, field in SourceRequest.model_fields.items():
        assert field.get_default() == ConversionRequest.model_fields[name].get_default(), name

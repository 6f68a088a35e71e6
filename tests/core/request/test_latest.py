"""Options of a scheduled conversion, and the conversion of one step that follows from them."""

import pytest

from reshard.core.errors import InputError
from reshard.core.options.validation import build_options
from reshard.core.request.latest import LatestConversionRequest


def test_a_step_is_converted_into_its_own_directory() -> None:
    request = build_options(LatestConversionRequest, source="/runs", target="/out/", workers=3, format="safetensors")
    conversion = request.conversion_of("10_5")
    assert (conversion.source, conversion.target, conversion.step) == ("/runs", "/out/10_5", "10_5")
    assert (conversion.workers, conversion.format) == (3, "safetensors")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": ""}, "target '': must not be empty"),
        ({"source": "s3://user:password@bucket/x"}, "source: a URL must not carry credentials"),
        ({"settle_seconds": 601}, "patience_seconds 600: must be at least the settling time, 601"),
        ({"keep_checkpoint_max": -1}, "keep_checkpoint_max -1: must be at least 0"),
        ({"step": "10_5"}, "step '10_5': there is no such option"),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_options(LatestConversionRequest, **{"source": "/runs", "target": "/out"} | options)
    assert str(caught.value).startswith(message)

"""Files that MindSpore wrote in every format, with what they hold."""

import json
from typing import Any

import ml_dtypes
import numpy as np

from tests.support.places import FIXTURES

FORMATS = FIXTURES / "formats"

EXPECTED = json.loads((FORMATS / "expect.json").read_text())

KEYS = {mode: key.encode() for mode, key in EXPECTED["keys"].items()}

NUMPY = {"BFloat16": np.dtype(ml_dtypes.bfloat16), "Bool": np.dtype(bool)}


def check_parameters(found: dict[str, Any], names: set[str] | None = None) -> None:
    for name, expected in EXPECTED["params"].items():
        if names is None or name in names:
            value = found[name]
            assert value.dtype == NUMPY.get(expected["dtype"]) or value.dtype.name == expected["dtype"].lower()
            assert list(value.shape) == expected["shape"]
            assert value.tobytes().hex() == expected["hex"]


def check_appended(found: dict[str, Any]) -> None:
    for name, expected in EXPECTED["append"].items():
        value = found[name]
        assert value == expected
        assert isinstance(value, str) or value.shape == ()

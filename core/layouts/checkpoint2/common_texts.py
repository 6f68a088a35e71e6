"""Values for common.json of MindFormers' Checkpoint 2.0, as texts KEY=VALUE."""

import json
import math
from collections.abc import Iterable

from reshard.core.layouts.checkpoint2.names import COMMON_KEYS
from reshard.core.layouts.state_numbers import Number


def parse_common_texts(texts: Iterable[str]) -> dict[str, Number]:
    """Parse texts such as `loss_scale=65536` and `epoch_num=null` to values by key.

    Raises:
        ValueError: one is none, names an unknown key, or a key twice.
    """
    values: dict[str, Number] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise ValueError(f"{text!r} is not KEY=VALUE")
        if key not in COMMON_KEYS:
            raise ValueError(f"MindFormers knows no key {key!r} in common.json: {', '.join(COMMON_KEYS)}")
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = _number(key, value)
    return values


def _number(key: str, text: str) -> Number:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is a number or null in common.json, not {text!r}")
    return value

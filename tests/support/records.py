"""Changes records beside a target consistently: with the matching digest."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reshard.core.checkpoint.self_digest import add_digest


def as_record(fields: Mapping[str, Any]) -> bytes:
    """Bytes of a record or manifest with these fields."""
    return add_digest(json.dumps({name: value for name, value in fields.items() if name != "digest"}).encode())


def change_record(path: Path, **changes: object) -> None:
    """Changes fields of a record or a manifest."""
    path.write_bytes(as_record(json.loads(path.read_bytes()) | changes))

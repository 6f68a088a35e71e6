"""The content of a lease names its holder, on one line."""

import json
import os

import pytest

from reshard.core.storage.leases.lease_holder import new_holder, parse_holder


def test_a_container_without_user_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: (_ for _ in ()).throw(KeyError("uid not found")))
    assert new_holder([]).user == str(os.getuid())


def test_the_holder_of_a_lease_is_named_on_one_line() -> None:
    fields = {"run": "1", "host": "h\nreshard: done", "user": "u\x1b[2J", "process": 7, "started": "", "ranks": [0]}
    text = str(parse_holder(json.dumps(fields).encode(), "here"))
    assert text == "run 1 of u\\x1b[2J on h\\nreshard: done (process 7, since )"

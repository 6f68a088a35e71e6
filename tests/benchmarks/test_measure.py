"""Measuring a command: its children's bytes count, and its failure is reported."""

import json
import sys

import pytest

from benchmarks.errors import BenchmarkError
from benchmarks.measure import run

MIB = 2**20


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_bytes_of_children_count() -> None:
    write = "import os; [os.write(os.open('/dev/null', os.O_WRONLY), bytes(2**20)) for _ in range(20)]"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {write!r}], check=True); print('done')"
    measured = run(python(code))
    assert measured.output == "done\n"
    assert 20 * MIB <= measured.written_bytes < 21 * MIB


def test_memory_of_children_counts() -> None:
    code = "import time; held = b'x' * (100 << 20); time.sleep(1)"
    measured = run(python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"))
    assert 100 * MIB < measured.peak_bytes < 200 * MIB
    assert measured.seconds > 1


def test_memory_of_this_process_does_not_count() -> None:
    held = b"x" * (300 * MIB)
    assert run(["sleep", "0.2"]).peak_bytes < 100 * MIB < len(held)


def test_what_is_set_up_for_other_object_stores_is_kept_from_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_CA_BUNDLE", "RCLONE_TRANSFERS", "FSSPEC_S3_KEY", "http_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "/nonsense")
    monkeypatch.setenv("MY_AWS_THING", "kept")
    given = json.loads(
        run(python("import json, os; print(json.dumps(dict(os.environ)))"), {"AWS_REGION": "here"}).output
    )
    assert [name for name, value in given.items() if value == "/nonsense"] == []
    assert (given["MY_AWS_THING"], given["AWS_REGION"]) == ("kept", "here")


def test_a_failure_is_told_with_what_was_printed() -> None:
    with pytest.raises(BenchmarkError, match="(?s)exit code 3:.*no such luck"):
        run(python("import sys; print('no such luck', file=sys.stderr); sys.exit(3)"))

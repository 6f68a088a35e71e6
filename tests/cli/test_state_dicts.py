"""Files of PyTorch's state dicts on the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.checkpoints import read_rank
from tests.support.places import FIXTURES

NESTED, FLAT = (FIXTURES / "torch" / name for name in ("nested.pth", "flat.pt"))


def test_one_dict_of_a_file_is_converted(tmp_path: Path, reshard: Callable[..., Any]) -> None:
    done = reshard("convert", NESTED, tmp_path / "out", "--layout", "unified")
    assert done.code == 2
    assert "choose one with --root state_dict" in done.err
    done = reshard("convert", NESTED, tmp_path / "out", "--root", "state_dict", "--exclude", "narrow")
    assert done.code == 0
    assert "left out of nested.pth, beside --root state_dict: epoch" in " ".join(done.out.split())
    assert read_rank(tmp_path / "out", 0)["count"] == ("Int64", (), (3).to_bytes(8, "little"))


def test_it_is_inspected_diagnosed_and_compared(reshard: Callable[..., Any]) -> None:
    shown = reshard("inspect", NESTED).out
    assert "state_dict (11 tensors), optimizer_states (6 tensors), epoch" in " ".join(shown.split())
    assert "choose one with --root KEY" in shown
    shown = reshard("inspect", NESTED, "--root", "state_dict", "--json").out
    assert json.loads(shown)["files"][0]["parameters"][0]["name"] == "embed.weight"
    done = reshard("inspect", FLAT, "--root", "nope")
    assert (done.code, "has no 'nope'" in done.err) == (2, True)
    assert reshard("inspect", FLAT).out.startswith(f"PyTorch checkpoint  {FLAT}")
    assert "no strategy: its tensors are whole" in reshard("doctor", NESTED, "--root", "state_dict").out
    assert reshard("diff", NESTED, FLAT, "--root-a", "state_dict").code == 0
    done = reshard("diff", FLAT, NESTED)
    assert (done.code, "choose one with --root-b state_dict" in done.err) == (2, True)
    assert reshard("plan", FLAT, "--layout", "unified").code == 0


def test_a_job_may_say_it(tmp_path: Path, reshard: Callable[..., Any]) -> None:
    job = tmp_path / "job.yaml"
    lines = [f"source: {NESTED}", f"target: {tmp_path / 'out'}", "root: state_dict", "include: [embed.weight]"]
    job.write_text("\n".join(lines))
    assert reshard("convert", "--config", job).code == 0
    assert read_rank(tmp_path / "out", 0).keys() == {"embed.weight"}

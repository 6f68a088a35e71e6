"""CONTRIBUTING describes the architecture as it is."""

import re
import tomllib

from tests.support.places import PROJECT

CONTRIBUTING = (PROJECT / "CONTRIBUTING.md").read_text()
ROOMS = {path.stem for path in (PROJECT / "core").iterdir()}


def core_layers() -> list[list[str]]:
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [each["layers"] for each in contracts if each.get("containers") == ["reshard.core"]]
    return [re.split(r"\s*[|:]\s*", layer) for layer in layers]


def test_the_drawing_has_every_room_in_the_order_of_the_contract() -> None:
    [drawing] = re.findall(r"^\+-core: .*?^\+-", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    drawn = [
        [room for room in re.findall(r"(?:^\||\|) {1,2}(\w+)(?= )", line) if room in ROOMS]
        for line in drawing.splitlines()
    ]
    assert [sorted(line) for line in drawn if line] == [sorted(layer) for layer in core_layers()]


def test_files_that_contributing_names_exist() -> None:
    named = re.findall(r"`((?:core|cli|flows|tasks|tests|deployments|benchmarks)/[\w./]*)`", CONTRIBUTING)
    assert len(named) > 10
    assert [path for path in named if not (PROJECT / path).exists()] == []


def test_the_walk_names_modules_of_transfer() -> None:
    [step] = re.findall(r"^5\. .*?^6\. ", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    modules = re.findall(r"`(\w+\.py)`", step)
    assert modules
    assert [name for name in modules if not (PROJECT / "core/transfer" / name).exists()] == []

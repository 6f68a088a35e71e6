"""What is built and installed: wheel, sdist and checkout have one import name, `reshard`, and all that it needs."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import reshard
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT

SUBPACKAGES = ("cli", "core", "deployments", "flows", "tasks")
PROGRAMS = {
    f"{page.stem}_{number}": program
    for page in [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
    for number, program in enumerate(re.findall(r"```py(?:thon)?\n(.*?)```", page.read_text(), re.DOTALL))
}
FLOWS = """
import cloudpickle
from prefect.flows import load_flow_from_entrypoint
from reshard.deployments.described import read_descriptions
from reshard.tasks.conversion import transform_rank

for description in read_descriptions():
    assert description.entrypoint.startswith("reshard."), description
    assert load_flow_from_entrypoint(description.entrypoint).name
# what the workers of a Dask cluster unpickle
assert transform_rank.fn.__module__ == "reshard.tasks.conversion"
assert b"reshard.tasks.conversion" in cloudpickle.dumps(transform_rank.fn)
print("all are found")
"""

pytestmark = pytest.mark.slow


class Environment(NamedTuple):
    """An environment with reshard installed; the project's own dependencies are seen from it."""

    directory: Path

    @property
    def site_packages(self) -> Path:
        [found] = self.directory.glob("lib/python*/site-packages")
        return found

    @property
    def python(self) -> Path:
        return self.directory / "bin/python"

    def run(self, *command: str | Path, cwd: Path, path: str = "") -> str:
        """What a command prints; `path` is its PYTHONPATH."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment |= {"PREFECT_HOME": str(self.directory / "prefect"), **({"PYTHONPATH": path} if path else {})}
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def build(kind: str, source: Path, directory: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", directory],
        cwd=source,
        check=True,
        capture_output=True,
    )
    [built] = directory.iterdir()
    return built


def install(directory: Path, *what: str | Path) -> Environment:
    venv.create(directory, symlinks=True)
    environment = Environment(directory)
    (environment.site_packages / "project.pth").write_text(sysconfig.get_path("purelib"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        f"--python={environment.python}",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([*pip, "--no-build-isolation", "--force-reinstall", *what], check=True, cwd=directory)
    return environment


def top_names(environment: Environment) -> set[str]:
    return {path.name for path in environment.site_packages.iterdir()} - {"project.pth"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", PROJECT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return install(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture
def namesakes(tmp_path: Path) -> Path:
    """A directory with packages of its own that are called like reshard's folders."""
    for name in SUBPACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"WHOSE = 'the script of {name}'\n")
    (tmp_path / "script.py").write_text(
        "import core, tasks\n"
        "import reshard\n"
        "import reshard.core.errors, reshard.tasks\n"
        "print(core.WHOSE, reshard.convert.__module__, reshard.core.errors.InputError is reshard.errors.InputError)\n"
    )
    return tmp_path


def tracked_files() -> dict[str, bytes]:
    """The files of the package, by their paths in it."""
    listed = subprocess.run(
        ["git", "ls-files", "-s", "--", PROJECT / "reshard", *(PROJECT / name for name in SUBPACKAGES)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    paths = [line.split("\t")[1] for line in listed if not line.startswith("120000")]  # no links
    return {path if path.startswith("reshard/") else f"reshard/{path}": (PROJECT / path).read_bytes() for path in paths}


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def without_metadata(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if ".dist-info/" not in name}


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    assert without_metadata(contents(wheel)) == tracked_files()
    assert {"reshard/py.typed", "reshard/deployments/prefect.yaml", "reshard/core/strategy/strategy.proto"} <= set(
        contents(wheel)
    )


def test_a_wheel_of_the_sdist_is_that_of_the_checkout(wheel: Path, tmp_path: Path) -> None:
    sdist = build("sdist", PROJECT, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        assert all(member.isfile() or member.isdir() for member in archive)
        archive.extractall(tmp_path / "source", filter="data")
    [source] = (tmp_path / "source").iterdir()
    assert contents(build("wheel", source, tmp_path / "wheel")) == contents(wheel)


def test_nothing_else_is_installed(environment: Environment) -> None:
    assert top_names(environment) == {"reshard", f"reshard-{reshard.__version__}.dist-info"}
    assert not any(path.is_symlink() for path in environment.site_packages.rglob("*"))


def test_a_checkout_is_installed_by_its_path_alone(tmp_path: Path) -> None:
    environment = install(tmp_path / "environment", "--editable", PROJECT)
    added = top_names(environment)
    assert not any(name in (*SUBPACKAGES, "reshard") for name in added)
    [path] = [name for name in added if name.endswith(".pth")]
    assert (environment.site_packages / path).read_text().split() == [str(PROJECT)]
    printed = environment.run(environment.python, "-c", "import reshard.core as it; print(it.__file__)", cwd=tmp_path)
    assert printed.strip() == str(PROJECT / "reshard/core/__init__.py")


def test_a_script_may_have_packages_of_the_same_names(environment: Environment, namesakes: Path) -> None:
    printed = environment.run(environment.python, "script.py", cwd=namesakes)
    assert printed == "the script of core reshard.functions True\n"
    for command in ([environment.directory / "bin/reshard"], [environment.python, "-m", "reshard"]):
        assert "convert-latest" in environment.run(*command, "--help", cwd=namesakes, path=".")


def test_entry_points_and_pickles_name_the_package(environment: Environment, namesakes: Path) -> None:
    """Prefect and Dask."""
    assert environment.run(environment.python, "-c", FLOWS, cwd=namesakes, path=".") == "all are found\n"


def test_the_documented_programs_are_typed(environment: Environment, tmp_path: Path) -> None:
    """By a type checker that sees the installed wheel, not the checkout."""
    assert len(PROGRAMS) >= 27
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\n[mypy-torch.*,transformers.*,tqdm.*]\nignore_missing_imports = true\n"  # are not installed here
    )
    for name, program in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(program)
    (tmp_path / "wrong.py").write_text(
        "import reshard\n"
        "reshard.convert('a', 'b', formt='ckpt')\n"
        "reshard.convert('a', 'b', format='onnx')\n"
        "reshard.verify('a').problem\n"
        "reshard.load_rank('a', 'strategy')\n"
        "reshard.convert('a', 'b', step=3.5)\n"
        "reshard.fingerprint('a', source_strategy='b')\n"
        "reshard.open('a', strategi='b')\n"
        "reshard.open('a')['w'].shap\n"
    )
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--python-executable={environment.python}", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    refused = re.findall(r"^(\w+)\.py:(\d+): error: .*\[([a-z-]+)\]$", checked.stdout, re.MULTILINE)
    kinds = ["call-arg", "arg-type", "attr-defined", "arg-type", "arg-type", "call-arg", "call-arg", "attr-defined"]
    meant = [("wrong", str(line), kind) for line, kind in enumerate(kinds, 2)]
    assert sorted(refused) == meant, checked.stdout

"""The image's Dockerfile: what it copies makes the whole wheel, and its entrypoint finds the commands."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import reshard
from reshard.cli.main import _COMMANDS
from tests.support.places import PROJECT

DOCKERFILE = (PROJECT / "deployments/Dockerfile").read_text()
INSTRUCTIONS = [line.split(" ", 1) for line in re.sub(r"^#.*\n|\\\n", "", DOCKERFILE, flags=re.MULTILINE).splitlines()]
LET_THROUGH = re.findall(r"^!(\S+)$", (PROJECT / ".dockerignore").read_text(), re.MULTILINE)
ENTRYPOINT = PROJECT / "deployments/entrypoint.sh"


def copied() -> set[str]:
    """The paths that COPY takes from the project."""
    instructions = [shlex.split(rest[0]) for kind, *rest in INSTRUCTIONS if kind == "COPY"]
    return {source for words in instructions if not words[0].startswith("--from=") for source in words[:-1]}


def copy_files(build: Path) -> None:
    """Copy what the image's build sees and takes."""
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        if any(name == path or name.startswith(f"{path}/") for path in copied() if path in LET_THROUGH):
            (build / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, build / name, follow_symlinks=False)


def wheel_of(directory: Path, built: Path) -> dict[str, bytes]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
    [wheel] = built.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_of_the_copied_files_is_that_of_the_checkout(tmp_path: Path) -> None:
    copy_files(tmp_path / "image")
    assert wheel_of(tmp_path / "image", tmp_path / "of_image") == wheel_of(PROJECT, tmp_path / "of_checkout")


def test_what_is_copied_is_let_through_and_nothing_else() -> None:
    assert "*" in (PROJECT / ".dockerignore").read_text().splitlines()
    assert set(LET_THROUGH) == copied() - {"deployments/entrypoint.sh"}


def test_compose_s_passwords_get_neither_into_the_image_nor_into_git() -> None:
    # the last pattern that fits decides
    assert (PROJECT / ".dockerignore").read_text().splitlines()[-1] == "**/.env"
    ignored = subprocess.run(["git", "check-ignore", "--quiet", "deployments/.env"], cwd=PROJECT, check=False)
    assert ignored.returncode == 0


def test_the_image_is_that_of_this_version_and_licence() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="(.*?)"', DOCKERFILE))
    assert labels == {
        "title": project["name"],
        "description": project["description"],
        "version": reshard.__version__,
        "licenses": project["license"],
    }


def test_it_names_no_registry_and_runs_as_no_root() -> None:
    [base] = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+-slim", base)
    assert "://" not in DOCKERFILE
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE) == ["1000:1000"]
    assert DOCKERFILE.count("--require-hashes") == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--version"], f"reshard {reshard.__version__}"),
        (["reshard", "--version"], f"reshard {reshard.__version__}"),
        (["diff", "--help"], "Usage: reshard diff"),
        (["python", "-c", "print('python itself')"], "python itself"),
    ],
)
def test_arguments_are_those_of_reshard_unless_they_name_a_program(arguments: list[str], expected: str) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([ENTRYPOINT, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(expected)


def test_no_command_of_reshard_has_the_name_of_a_program() -> None:
    programs = re.findall(r'"(\w+) "\*', ENTRYPOINT.read_text())
    assert {"prefect", "dask", "python", "sh"} <= set(programs)
    assert not set(programs) & set(_COMMANDS)

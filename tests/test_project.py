"""The project's own files: what one says of another is true."""

import json
import os
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import reshard

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGE = ROOT / "reshard"
SUBPACKAGES = ("cli", "core", "deployments", "flows", "tasks")
LOCKS = ("build.lock", "dev.lock", "installer.lock", "mindformers.lock", "mindspore.lock", "runtime.lock", "torch.lock")


def locked(name: str) -> list[tuple[Requirement, int]]:
    """The requirements of a lock, each with the number of its hashes."""
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements" / name).read_text().strip())
    return [(Requirement(entry.split(" \\\n")[0]), entry.count("--hash=sha256:")) for entry in entries]


def direct_dependencies() -> list[Requirement]:
    groups = PROJECT["project"]["optional-dependencies"] | PROJECT["dependency-groups"]
    always = PROJECT["project"]["dependencies"], PROJECT["build-system"]["requires"]
    # a group may include another
    return [Requirement(text) for text in chain(*always, *groups.values()) if isinstance(text, str)]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_exact_versions_with_hashes(name: str) -> None:
    for requirement, hashes in locked(name):
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], requirement
        assert hashes > 0, requirement


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_registry(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text()
    assert not re.search(r"://|--(?!hash=)| @ ", text)


@pytest.mark.parametrize("wanted", direct_dependencies(), ids=str)
def test_the_lock_has_what_the_project_asks_for(wanted: Requirement) -> None:
    """Fails when pyproject.toml was changed without `make lock`."""
    versions = [
        specifier.version
        for requirement, _ in locked("dev.lock")
        if canonicalize_name(requirement.name) == canonicalize_name(wanted.name)
        for specifier in requirement.specifier
    ]
    assert versions
    assert all(wanted.specifier.contains(version) for version in versions)


@pytest.mark.parametrize("name", ["build.lock", "runtime.lock"])
def test_the_image_has_the_versions_that_are_tested(name: str) -> None:
    assert versions(name) <= versions("dev.lock")


def versions(name: str) -> set[tuple[str, str]]:
    """Names and versions in a lock; where they are installed may differ, because more packages may need them."""
    return {(canonicalize_name(requirement.name), str(requirement.specifier)) for requirement, _ in locked(name)}


def test_the_image_has_all_extras_and_no_tools_of_development() -> None:
    there = {canonicalize_name(requirement.name) for requirement, _ in locked("runtime.lock")}
    extras = [Requirement(text) for text in chain(*PROJECT["project"]["optional-dependencies"].values())]
    assert {canonicalize_name(requirement.name) for requirement in extras} <= there
    assert not there & {"pytest", "mypy", "hatchling", "matplotlib"}


@pytest.mark.parametrize("wanted", [Requirement(text) for text in PROJECT["project"]["dependencies"]], ids=str)
def test_the_lowest_versions_are_tried_beside_mindspore(wanted: Requirement) -> None:
    """Fails when a bound was changed without `make lock`."""
    tried = [
        Version(specifier.version)
        for requirement, _ in locked("mindspore.lock")
        if canonicalize_name(requirement.name) == canonicalize_name(wanted.name)
        for specifier in requirement.specifier
    ]
    assert tried
    assert all(version in wanted.specifier for version in tried)
    lowest = [Version(specifier.version) for specifier in wanted.specifier if specifier.operator == ">="]
    assert not lowest or [min(tried)] == lowest


def test_the_package_has_a_link_to_each_subpackage() -> None:
    links = {path.name: os.readlink(path) for path in PACKAGE.iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in SUBPACKAGES}
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [PACKAGE.name]


def test_no_other_link_is_tracked() -> None:
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    links = [line.split("\t")[1] for line in listed.splitlines() if line.startswith("120000")]
    assert sorted(links) == [f"{PACKAGE.name}/{name}" for name in SUBPACKAGES]


def test_import_contracts_cover_every_subpackage() -> None:
    contracts = PROJECT["tool"]["importlinter"]
    assert contracts["root_package"] == PACKAGE.name
    between, _, inside_core, *_ = contracts["contracts"]
    assert between["containers"] == [PACKAGE.name]
    assert set(SUBPACKAGES) <= set(between["layers"])
    assert inside_core["exhaustive"]


def test_subpackages_are_imported_by_one_name() -> None:
    """By the name of its folder a subpackage would be loaded a second time, with classes of its own."""
    source = "\n".join(f"import {name}.x\nfrom {name} import y" for name in SUBPACKAGES)
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--select=TID251",
            "--output-format=json",
            "--stdin-filename=x.py",
            "-",
        ],
        cwd=ROOT,
        input=source,
        capture_output=True,
        text=True,
        check=False,
    )
    refused = sorted(each["location"]["row"] for each in json.loads(ran.stdout))
    assert refused == list(range(1, 2 * len(SUBPACKAGES) + 1))
    assert "TID" in PROJECT["tool"]["ruff"]["lint"]["select"]


def test_changelog_has_the_version() -> None:
    assert f"## [{reshard.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_ci_runs_the_command_that_the_readme_gives() -> None:
    script = (ROOT / ".ci/run").read_text()
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert re.search(r"^\s*(\$ )?make test\b(?!-)", (ROOT / "README.md").read_text(), re.MULTILINE)
    steps = re.findall(r"^(?:step )?make ([a-z-]+)", script, re.MULTILINE)
    assert steps == ["check", "judges", "conformance", "test", "test-all"]


def test_make_alone_lists_every_target() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text().replace("\\\n", ""), re.MULTILINE)
    assert phony
    assert [line.split()[1] for line in listed.splitlines()] == phony[1].split()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        # prints a version when asked for one, fails when asked whether it is recent
        pytest.param('#!/bin/sh\ncase "$2" in *exit*) exit 1;; *) echo 3.9.18;; esac\n', "is 3.9.18", id="too old"),
        pytest.param("#!/bin/sh\nexit 127\n", "cannot be run", id="not a Python"),
    ],
)
def test_an_unusable_python_is_refused_in_one_line(tmp_path: Path, script: str, reason: str) -> None:
    python = tmp_path / "python3"
    python.write_text(script)
    python.chmod(0o755)
    done = subprocess.run(
        [ROOT / "requirements/install.sh", python], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert reason in done.stderr
    assert "3.11" in done.stderr

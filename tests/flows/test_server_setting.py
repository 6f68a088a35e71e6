"""Which server is configured, compared with Prefect's own answers."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from reshard.flows import server_setting
from reshard.flows.server_setting import configured_server
from tests.support.patience import PATIENCE_SECONDS

URL = "http://configured.example:4200/api"
PROFILES = f"""
active = "mine"
[profiles.mine]
PREFECT_API_URL = "{URL}"
[profiles.other]
PREFECT_LOGGING_LEVEL = "DEBUG"
[profiles.empty]
PREFECT_API_URL = ""
"""
OF_OTHER = PROFILES.replace('active = "mine"', 'active = "other"')

ANSWERS = """
import json, os, sys
from pathlib import Path
import prefect.settings.sources as sources
from prefect.settings import Settings

for directory, variables in json.load(sys.stdin):
    for name in [name for name in os.environ if name.upper().startswith("PREFECT_")]:
        del os.environ[name]
    os.environ |= variables
    os.environ["HOME"] = directory
    sources.DEFAULT_PREFECT_HOME = Path(directory, ".prefect")
    os.chdir(directory)
    sources._file_cache.clear()
    print(Settings().api.url or "")
"""


@dataclass(frozen=True)
class Case:
    """`origin`: where the server is configured; `asks`: Prefect is imported to find that none is."""

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    origin: str = ""
    asks: bool = False


HOME_PROFILES = ".prefect/profiles.toml"
CASES = [
    Case("nothing"),
    Case("a variable", {"PREFECT_API_URL": URL}, origin="PREFECT_API_URL in the environment"),
    Case("in small letters", {"prefect_api_url": URL}, origin="PREFECT_API_URL in the environment"),
    Case("the group", {"PREFECT_API": json.dumps({"url": URL})}, origin="PREFECT_API_URL in the environment"),
    Case("an empty variable", {"PREFECT_API_URL": ""}, asks=True),
    Case("an empty variable before a profile", {"PREFECT_API_URL": ""}, {HOME_PROFILES: PROFILES}, asks=True),
    Case("other variables", {"PREFECT_API_KEY": "x", "PREFECT_HOME": "elsewhere", "PREFECT_LOGGING_LEVEL": "DEBUG"}),
    Case("dotenv", files={".env": f"A=1\nPREFECT_API_URL={URL}\n"}, origin=".env in {here}"),
    Case("a dotenv of others", files={".env": "PREFECT_LOGGING_LEVEL=DEBUG\nAPI_URL=x\n"}),
    Case("a commented dotenv", files={".env": "# PREFECT_API_URL=x\n"}, asks=True),
    Case("prefect.toml", files={"prefect.toml": f'[api]\nurl = "{URL}"\n'}, origin="prefect.toml in {here}"),
    Case("prefect.toml in one line", files={"prefect.toml": f'api.url = "{URL}"\n'}, origin="prefect.toml in {here}"),
    Case("a prefect.toml of others", files={"prefect.toml": '[logging]\nlevel = "DEBUG"\n'}),
    Case(
        "pyproject.toml",
        files={"pyproject.toml": f'[tool.prefect.api]\nurl = "{URL}"\n'},
        origin="pyproject.toml in {here}",
    ),
    Case(
        "pyproject.toml inline",
        files={"pyproject.toml": f'tool = {{prefect = {{api = {{url = "{URL}"}}}}}}\n'},
        origin="pyproject.toml in {here}",
    ),
    Case("a pyproject.toml that requires Prefect", files={"pyproject.toml": '[project]\ndependencies = ["prefect"]\n'}),
    Case(
        "the active profile",
        files={HOME_PROFILES: PROFILES},
        origin="the profile mine in {here}/.prefect/profiles.toml",
    ),
    Case("an active profile without one", files={HOME_PROFILES: OF_OTHER}),
    Case("a chosen profile without one", {"PREFECT_PROFILE": "other"}, {HOME_PROFILES: PROFILES}),
    Case("a chosen profile with an empty one", {"PREFECT_PROFILE": "empty"}, {HOME_PROFILES: PROFILES}, asks=True),
    Case(
        "a chosen profile",
        {"PREFECT_PROFILE": "mine"},
        {HOME_PROFILES: OF_OTHER},
        origin="the profile mine in {here}/.prefect/profiles.toml",
    ),
    Case("an unknown profile", {"PREFECT_PROFILE": "nobody"}, {HOME_PROFILES: PROFILES}, asks=True),
    Case(
        "profiles in PREFECT_HOME",
        {"PREFECT_HOME": "home"},
        {"home/profiles.toml": PROFILES, HOME_PROFILES: OF_OTHER},
        origin="the profile mine in home/profiles.toml",
    ),
    Case(
        "profiles by their path",
        {"PREFECT_PROFILES_PATH": "p.toml"},
        {"p.toml": PROFILES},
        origin="the profile mine in p.toml",
    ),
    Case("PREFECT_HOME without profiles", {"PREFECT_HOME": "home"}, {HOME_PROFILES: PROFILES}),
    Case("damaged profiles", files={HOME_PROFILES: "active = "}, asks=True),
    Case(
        "a variable before a profile",
        {"PREFECT_API_URL": URL},
        {HOME_PROFILES: PROFILES.replace(URL, "http://x/api")},
        origin="PREFECT_API_URL in the environment",
    ),
    Case(
        "dotenv before a profile",
        files={".env": f"PREFECT_API_URL={URL}", HOME_PROFILES: PROFILES.replace(URL, "http://x/api")},
        origin=".env in {here}",
    ),
    Case(
        "profiles by a dotenv",
        files={".env": "PREFECT_PROFILES_PATH=p.toml", "p.toml": PROFILES},
        origin="Prefect's settings",
    ),
    Case("a profile that Prefect brings along", {"PREFECT_PROFILE": "local"}, origin="Prefect's settings"),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The URL that Prefect itself takes in each case, of one process: it starts for two seconds."""
    given = []
    for case in CASES:
        directory = tmp_path_factory.mktemp("case")
        lay(case, directory)
        given.append((str(directory), case.variables))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ANSWERS],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip((case.name for case in CASES), done.stdout.split("\n"), strict=False))


def lay(case: Case, directory: Path) -> None:
    for name, text in case.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and working directory without any setting."""
    for name in [name for name in os.environ if name.upper().startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_server_is_found_where_prefect_finds_it(
    case: Case, answers: dict[str, str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(case, here)
    for name, value in case.variables.items():
        monkeypatch.setenv(name, value)
    asked = []

    def ask(sources: object) -> str:
        asked.append(sources)
        return answers[case.name]

    monkeypatch.setattr(server_setting, "_url_by_prefect", ask)
    found = configured_server()
    assert (found.url if found else "") == answers[case.name]
    assert (found.origin if found else "") == case.origin.format(here=here)
    if not found:
        assert bool(asked) == case.asks

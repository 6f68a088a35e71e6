"""The setting that names a Prefect server, found without Prefect where possible: importing it takes two seconds.

Prefect reads its settings from the environment, from .env, prefect.toml and pyproject.toml in the working directory,
and from the active profile, in this order. The few rules here only tell whether one of them may name a server; if so,
Prefect itself is asked for the URL.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from reshard.core.errors import InputError
from reshard.core.runtime.records import Record
from reshard.core.text.secrets import scrubbed

_URL = "PREFECT_API_URL"
_NAMES = (_URL, "PREFECT_API")
"""Names of the setting, and of the group that holds it, which takes JSON."""
_DEFAULT_HOME = "~/.prefect"


class ServerSetting(Record):
    """The URL of a Prefect server's API, and where it is set."""

    url: str
    origin: str


class _Source(Record):
    """A source of settings that may name a server; `text` is what it contains, as far as it could be read."""

    origin: str
    text: str


def configured_server() -> ServerSetting | None:
    """Return the server that Prefect's settings name, or None.

    Raises:
        InputError: Prefect cannot read its settings, or they name no server.
    """
    if url := os.environ.get(_URL):
        check_server_url(url)
        return ServerSetting(url, origin_of(url))  # nothing comes before it
    sources = list(_sources())
    if not sources:
        return None
    url = _url_by_prefect(sources)
    if url:
        check_server_url(url)
    return ServerSetting(url, origin_of(url)) if url else None


def check_server_url(url: str, origin: str = "") -> None:
    """Check that a setting is the URL of a server; `origin` says where it is set, if that is known.

    Raises:
        InputError: it is not.
    """
    try:
        parts = urlsplit(url)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_server = False
    if not is_server:
        raise InputError(
            f"{scrubbed(url)} ({origin or origin_of(url)}) is not the URL of a Prefect server: set it like http://HOST:4200/api"
        )


def unreachable(url: str, problem: object, origin: str = "") -> str:
    """Format that a server does not answer; what to do is to follow."""
    where = f"{scrubbed(url)} ({origin or origin_of(url)})"
    return f"the Prefect server at {where} does not answer: {str(problem).rstrip('.')}"


def origin_of(url: str) -> str:
    """Return where this URL of a server is set, in Prefect's order; programs may have set it themselves."""
    return next((source.origin for source in _sources() if url in source.text), "Prefect's settings")


def _url_by_prefect(sources: list[_Source]) -> str | None:
    try:
        from prefect.settings import PREFECT_API_URL

        url: str | None = PREFECT_API_URL.value()
    except Exception as error:  # Prefect reads its settings when it is imported, and any kind of error may come of it
        origins = ", ".join(source.origin for source in sources)
        raise InputError(
            f"Prefect cannot read its settings ({origins}): {error}. "
            "Correct them, or convert without Prefect: --engine direct"
        ) from error
    return url


def _sources() -> Iterator[_Source]:
    """Yield the sources that may name a server, in Prefect's order; too many rather than too few."""
    named = [value for name, value in os.environ.items() if name.upper() in _NAMES]
    if named:
        yield _Source(f"{_URL} in the environment", "\n".join(named))
    for name in (".env", "prefect.toml", "pyproject.toml"):
        text = _text_of(Path(name))
        if text is not None and _may_name_a_server(name, text):
            yield _Source(f"{name} in {Path.cwd()}", text)
    yield from _profile()


def _text_of(path: Path) -> str | None:
    """Return a file's text, nothing of one that cannot be read, and None if there is no file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError:
        return ""


def _may_name_a_server(name: str, text: str) -> bool:
    if not text:
        return True  # unreadable; an empty file does no harm
    lower = text.lower()
    if name == ".env":
        return "prefect_api" in lower or "prefect_profiles_path" in lower
    if name == "prefect.toml":
        return "url" in lower or "profiles_path" in lower
    # the file of all tools, and of the requirement of Prefect
    content = _parsed(text) if "prefect" in lower else {"tool": {}}
    return not content or "prefect" in content.get("tool", {})


def _profile() -> Iterator[_Source]:
    home = os.environ.get("PREFECT_HOME") or _DEFAULT_HOME
    path = Path(os.environ.get("PREFECT_PROFILES_PATH") or Path(home, "profiles.toml")).expanduser()
    text = _text_of(path)
    named = os.environ.get("PREFECT_PROFILE")
    if text is None:
        if named:
            yield _Source(f"the profile {named}, by PREFECT_PROFILE", "")  # Prefect brings some profiles along
        return
    content = _parsed(text)
    active = named or content.get("active")
    profile = content.get("profiles", {}).get(active)
    origin = f"the profile {active} in {path}"
    if not isinstance(profile, dict):
        if named or not content:
            yield _Source(origin, text)
    elif any(name.upper() in _NAMES for name in profile):
        yield _Source(origin, "\n".join(map(str, profile.values())))


def _parsed(text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}

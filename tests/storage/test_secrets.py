"""Whole runs with secrets, good ones and failing ones: nothing that they print, write, log or raise has the secrets."""

import gzip
import json
import logging
import os
import re
import socket
import sqlite3
import subprocess
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from reshard.cli.main import run
from reshard.core.conversion.convert import convert
from reshard.core.errors import ReshardError
from reshard.core.runtime import retry
from reshard.core.runtime.retry import RetryPolicy
from reshard.core.storage.named_options import named_storages
from tests.support.checkpoints import case, read_tree
from tests.support.http_wire import Head
from tests.support.patience import PATIENCE_SECONDS
from tests.support.runs import RESHARD, start
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY
from tests.support.s3_traffic import Call, Exchange, Fault, Kind, S3Error
from tests.support.stores import Store

FOUR_TO_THREE = case(7009)
TOKEN = "hunter2-is-the-session-token"
WRONG_SECRET = "hunter2-is-not-the-secret-key"
SIDES = (("source", "src"), ("target", "dst"))
OURS = ("core", "cli", "tasks", "flows", "prefect", "obstore", "fsspec")
TALKATIVE = ("botocore", "boto3", "s3transfer", "urllib3")
"""Their debug logs have headers and signatures."""


@dataclass
class Leaks:
    """What must be nowhere: keys, tokens, and all signatures that requests came with."""

    secrets: set[str] = field(default_factory=lambda: {SECRET_KEY, TOKEN, WRONG_SECRET})
    leases: list[str] = field(default_factory=list)

    def learn(self, head: Head) -> None:
        """Takes note of a request's signature."""
        signed = re.search("Signature=([0-9a-f]+)", head.headers.get("authorization", ""))
        if signed:
            self.secrets.add(signed[1])

    def check(self, where: str, text: str | bytes) -> None:
        text = text if isinstance(text, str) else text.decode("latin-1")
        found = [secret for secret in self.secrets if secret in text]
        assert not found, f"{where} has {found}: {text[:2000]}"


@pytest.fixture
def leaks(store: Store, monkeypatch: pytest.MonkeyPatch) -> Leaks:
    """Learns from the requests; all settings are those of a place with a session token."""
    seen = Leaks()
    begin = store.proxy.begin

    def learn(head: Head) -> Exchange:
        seen.learn(head)
        return begin(head)

    def look_at_leases(exchange: Exchange) -> None:
        if "/out/rank_" in exchange.call.key:
            seen.leases.extend(path.read_text() for path in store.files("out/.reshard/leases").glob("*"))

    monkeypatch.setattr(store.proxy, "begin", learn)
    store.proxy.before = look_at_leases
    for name in ("src", "src_strategy.ckpt", "dst_strategy.ckpt"):
        store.add(FOUR_TO_THREE.directory / name, name)
    monkeypatch.setattr(retry, "REQUESTS", RetryPolicy(2, 0.001))
    monkeypatch.setattr(retry, "WORK", RetryPolicy(2, 0.001))
    return seen


@dataclass(frozen=True)
class RepeatingError(S3Error):
    """An answer of S3's kind with more in it than its message."""

    repeated: str = ""

    def body(self, call: Call) -> bytes:
        more = f"<Token-0>{self.repeated}</Token-0><SignatureProvided>{self.repeated}</SignatureProvided>"
        return super().body(call).replace(b"</Error>", f"{more}</Error>".encode())


@dataclass(frozen=True)
class Kinds:
    """As members of Kind are."""

    value: S3Error


def refusal(code: str) -> Fault:
    """Source files are refused, with the token in the answer."""
    kind = cast(Kind, Kinds(RepeatingError(403, code, TOKEN)))
    return Fault(kind, ("GetObject",), lambda exchange: "/src/" in exchange.call.key)


def with_environment(store: Store, monkeypatch: pytest.MonkeyPatch, secret: str = SECRET_KEY) -> tuple[str, ...]:
    """Keys in the environment, by the names that the protocol has for them."""
    prefix, token = {"s3": ("AWS", "AWS_SESSION_TOKEN"), "obs": ("OBS", "OBS_SECURITY_TOKEN")}[store.protocol]
    monkeypatch.setenv(f"{prefix}_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv(token, TOKEN)
    return ()


def with_options(
    store: Store, monkeypatch: pytest.MonkeyPatch, secret: str = SECRET_KEY, **more: object
) -> tuple[str, ...]:
    """Keys in storage options of a name, and wrong ones elsewhere."""
    with_environment(store, monkeypatch, WRONG_SECRET)
    keys = {"endpoint_url": store.proxy.url, "key": ACCESS_KEY, "secret": secret, "token": TOKEN}
    monkeypatch.setenv("STORAGE", json.dumps(keys | more))
    return "--source-storage=env:STORAGE", "--target-storage=env:STORAGE"


Way = Callable[..., tuple[str, ...]]
WAYS = [
    pytest.param("s3", with_environment, id="AWS's variables"),
    pytest.param("obs", with_environment, id="OBS's variables"),
    pytest.param("s3", with_options, id="named options"),
    pytest.param("obs", with_options, id="named options of OBS"),
]


def arguments(store: Store, *options: str) -> list[str]:
    strategies = [f"--{side}-strategy={store.url(f'{short}_strategy.ckpt')}" for side, short in SIDES]
    return ["convert", store.url("src"), store.url("out"), *strategies, *options]


def check_files(leaks: Leaks, directory: Path) -> None:
    """All files below a directory, and what is in those that are compressed."""
    for path in directory.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            leaks.check(str(path), gzip.decompress(data) if path.suffix == ".gz" else data)


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def check_error(leaks: Leaks, error: BaseException) -> None:
    """An exception, and those that it came from, in every form in which they are printed."""
    leaks.check("the traceback", "".join(traceback.format_exception(error)))
    for each in chain_of(error):
        leaks.check("an exception", f"{each}\n{each!r}\n{each.args!r}")


def quiet(names: Iterable[str]) -> bool:
    """Whether loggers do not tell what they do."""
    return all(not logging.getLogger(name).isEnabledFor(logging.INFO) for name in names)


@pytest.fixture
def run_command(
    store: Store, leaks: Leaks, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Callable[..., tuple[int, str]]:
    """`run_command(*options)`: runs the command, searches all its output for secrets; its exit code and its stderr."""

    def call(*options: str) -> tuple[int, str]:
        for name in OURS:
            caplog.set_level(logging.DEBUG, name)
        assert quiet(TALKATIVE)
        capfd.readouterr()
        code = run(arguments(store, "--engine=direct", *options))
        assert quiet(TALKATIVE)
        out, err = capfd.readouterr()
        leaks.check("stdout", out)
        leaks.check("stderr", err)
        leaks.check("the log", caplog.text)
        leaks.check("a lease", "\n".join(leaks.leases))
        check_files(leaks, store.files("out"))
        return code, err

    return call


@pytest.mark.parametrize(("protocol", "way"), WAYS)
def test_a_good_run(
    store: Store,
    leaks: Leaks,
    run_command: Callable[..., tuple[int, str]],
    way: Way,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = way(store, monkeypatch)
    code, err = run_command(*options, "--json")
    assert code == 0, err
    assert read_tree(store.files("out")) == FOUR_TO_THREE.want
    assert len(leaks.secrets) > 20, "no signatures were seen"
    assert leaks.leases
    names = {path.name for path in store.files("out/.reshard").rglob("*")}
    assert {"plan.json.gz", "manifest.json", "rank_0.json"} <= names


@dataclass(frozen=True)
class Trouble:
    """What goes wrong with a run."""

    fault: Fault | None = None
    secret: str = SECRET_KEY
    unreachable: bool = False


TROUBLES = [
    pytest.param(Trouble(secret=WRONG_SECRET), id="a wrong secret"),
    pytest.param(Trouble(refusal("InvalidToken")), id="a token that is refused"),
    pytest.param(Trouble(refusal("SignatureDoesNotMatch")), id="a signature that is refused"),
    pytest.param(Trouble(Fault(Kind.ACCESS_DENIED, ("PutObject",))), id="access denied"),
    pytest.param(Trouble(Fault(Kind.EXPIRED_TOKEN, ("GetObject",))), id="expired"),
    pytest.param(Trouble(Fault(Kind.RESET, ("GetObject",))), id="resets"),
    pytest.param(Trouble(unreachable=True), id="unreachable"),
]


@pytest.mark.parametrize(("protocol", "way"), WAYS[:3])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_run_that_fails(
    store: Store,
    leaks: Leaks,
    run_command: Callable[..., tuple[int, str]],
    way: Way,
    trouble: Trouble,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = way(store, monkeypatch, trouble.secret)
    if trouble.unreachable:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for name in ("AWS_ENDPOINT_URL", "OBS_ENDPOINT"):
            monkeypatch.setenv(name, url)
        monkeypatch.setenv("STORAGE", os.environ.get("STORAGE", "").replace(store.proxy.url, url))
    store.proxy.set_faults(*filter(None, [trouble.fault]))
    code, err = run_command(*options)
    assert code in (2, 3), err
    assert "reshard: error: " in err

    name = options[0].partition("=")[2] if options else ""
    urls = {f"{side}_strategy": store.url(f"{short}_strategy.ckpt") for side, short in SIDES}
    request = FOUR_TO_THREE.request(
        store.url("out"), source=store.url("src"), source_storage=name, target_storage=name, **urls
    )
    with pytest.raises(ReshardError) as caught:
        convert(request)
    check_error(leaks, caught.value)


@pytest.mark.parametrize("protocol", ["s3", "obs"])
@pytest.mark.parametrize(
    "more",
    [{"secrte": SECRET_KEY}, {"config_kwargs": {"read_timeuot": TOKEN}}, {"client_kwargs": {"password": TOKEN}}],
    ids=["option", "of the client's settings", "of the client"],
)
def test_options_that_are_none(
    store: Store,
    leaks: Leaks,
    run_command: Callable[..., tuple[int, str]],
    more: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = with_options(store, monkeypatch, **more)
    code, err = run_command(*options)
    assert code == 2, err
    assert "Traceback" not in err
    with pytest.raises(ReshardError) as caught, named_storages([(store.url("src"), "env:STORAGE")]):
        pass
    check_error(leaks, caught.value)


def rows_of(database: Path) -> dict[str, str]:
    """All that there is in each table, in words."""
    with closing(sqlite3.connect(database)) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        return {name: str(connection.execute(f'select * from "{name}"').fetchall()) for name in tables}


@dataclass(frozen=True)
class FlowEnded:
    """How a flow run ended."""

    code: int
    out: str
    err: str
    tables: dict[str, str]


@pytest.fixture(scope="module")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all flow runs: making its database takes as long as a run."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture
def flow_ended(store: Store, leaks: Leaks, prefect_home: Path) -> Callable[..., FlowEnded]:
    """`flow_ended(*options)`: runs the flow in a process of its own and looks for secrets in all that it leaves."""

    def call(*options: str) -> FlowEnded:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")} | {
            "PREFECT_HOME": str(prefect_home),
            "PREFECT_PROFILES_PATH": str(prefect_home / "profiles.toml"),
            "PREFECT_LOGGING_LEVEL": "DEBUG",
        }
        process: subprocess.Popen[str] = start([*RESHARD, *arguments(store, "--engine=prefect", *options)], environment)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        leaks.check("stdout", out)
        leaks.check("stderr", err)
        tables = rows_of(prefect_home / "prefect.db")
        for name, rows in tables.items():
            leaks.check(f"Prefect's table {name}", rows)
        for path in (prefect_home, store.files("out")):
            check_files(leaks, path)
        return FlowEnded(process.returncode, out, err, tables)

    return call


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "way"), WAYS[:3])
def test_a_good_flow_run(
    store: Store, leaks: Leaks, flow_ended: Callable[..., FlowEnded], way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = flow_ended(*way(store, monkeypatch))
    assert ended.code == 0, ended.err
    assert read_tree(store.files("out")) == FOUR_TO_THREE.want
    assert len(leaks.secrets) > 20, "no signatures were seen"
    # the tables that are searched show it
    assert store.url("out") in ended.tables["flow_run"]
    assert store.url("out") in ended.tables["artifact"]
    assert "Completed" in ended.tables["flow_run_state"]
    assert "transform-rank-0" in ended.tables["task_run"]
    assert ended.tables["log"] != "[]"


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [TROUBLES[0], TROUBLES[1], TROUBLES[3]])
def test_a_flow_run_that_fails(
    store: Store, flow_ended: Callable[..., FlowEnded], trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.proxy.set_faults(*filter(None, [trouble.fault]))
    ended = flow_ended(*with_options(store, monkeypatch, trouble.secret))
    assert ended.code in (2, 3), ended.err
    assert store.url("") in ended.tables["flow_run_state"]
    assert "env:STORAGE" in ended.tables["flow_run"]


@pytest.mark.slow
def test_a_flow_run_with_options_that_are_none(
    store: Store, flow_ended: Callable[..., FlowEnded], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = flow_ended(*with_options(store, monkeypatch, secrte=SECRET_KEY))
    assert ended.code == 2, ended.err
    assert "secrte: no such storage option" in ended.tables["flow_run_state"]

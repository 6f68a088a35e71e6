"""How commands end, and what they load to get there."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reshard.cli.main import run
from reshard.core.errors import ConversionError, StorageError, VerificationError
from tests.support.checkpoints import case
from tests.support.patience import PATIENCE_SECONDS
from tests.support.places import PROJECT

CASE = case(7010)
SOURCE = CASE.directory / "src"
STRATEGIES = (
    "--source-strategy",
    str(CASE.directory / "src_strategy.ckpt"),
    "--target-strategy",
    str(CASE.directory / "dst_strategy.ckpt"),
)
COMMANDS = (
    "convert",
    "convert-latest",
    "plan",
    "recover",
    "doctor",
    "verify",
    "sign",
    "attest",
    "diff",
    "fingerprint",
    "scan",
    "join-parts",
    "clean",
    "merge-strategy",
    "make-strategy",
    "presets",
    "inspect",
    "history",
    "deploy",
    "serve",
    "schedule",
    "metrics",
    "completion",
)


def loaded_modules(*arguments: str) -> set[str]:
    """The modules that a process has loaded after running a command, and after proving that it ended well."""
    code = (
        "import sys; from reshard.cli.main import run\n"
        f"code = run({list(arguments)!r})\n"
        "print(code, *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    exit_code, *modules = done.stderr.splitlines()[-1].split()
    assert exit_code == "0", done.stderr
    return {module.partition(".")[0] for module in modules} | {
        module for module in modules if module.startswith("reshard.")
    }


def test_completing_a_command_loads_none() -> None:
    code = (
        "import sys; from reshard.cli.main import cli; from reshard.cli.completion import complete\n"
        "code = complete(cli, 'bash_complete')\n"
        "print(code, *sys.modules, file=sys.stderr)"
    )
    environment = os.environ | {"COMP_WORDS": "reshard conv", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=environment, capture_output=True, text=True, check=True
    )
    exit_code, *modules = done.stderr.split()
    assert (exit_code, done.stdout) == ("0", "plain,convert\nplain,convert-latest\n")
    assert not set(modules) & {"prefect", "numpy", "rich", "pydantic", "fsspec", "reshard.cli.convert"}


def test_help_loads_next_to_nothing() -> None:
    assert not loaded_modules("--help") & {
        "prefect",
        "numpy",
        "rich",
        "pydantic",
        "fsspec",
        "yaml",
        "cryptography",
        "google",
        "asyncio",
        "ssl",
        "logging",
        "reshard.core.conversion.convert",
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_loads_no_engine(command: str) -> None:
    assert not loaded_modules(command, "--help") & {"prefect", "numpy", "rich", "reshard.core.conversion.convert"}


def test_without_a_server_prefect_is_never_loaded(tmp_path: Path) -> None:
    modules = loaded_modules("convert", str(SOURCE), str(tmp_path / "out"), *STRATEGIES)
    assert "reshard.core.conversion.convert" in modules
    assert not modules & {"prefect", "rich", "sqlalchemy", "reshard.flows.local"}


def test_a_local_conversion_loads_only_what_it_uses(tmp_path: Path) -> None:
    """From .ckpt to .ckpt, by strategies in protobuf: without object stores, keys, documents and Checkpoint 2.0."""
    modules = loaded_modules("convert", str(SOURCE), str(tmp_path / "out"), *STRATEGIES)
    assert {"numpy", "pydantic", "google"} <= modules
    assert not modules & {"fsspec", "asyncio", "ssl", "botocore", "cryptography", "yaml", "html", "difflib"}
    assert not modules & {
        "ml_dtypes",
        "reshard.core.custody.statements",
        "reshard.core.signing.signer",
        "reshard.core.layouts.dcp.assignment",
        "reshard.core.layouts.dcp.catalog",
        "reshard.core.layouts.checkpoint2.assignment",
        "reshard.core.layouts.checkpoint2.catalog",
        "reshard.core.layouts.unified.assignment",
        "reshard.core.layouts.unified.index_writing",
        "reshard.core.files.distcp",
        "reshard.core.source.replicas",
        "reshard.core.layouts.dcp.metadata_writing",
        "reshard.core.verification.tied_parameters",
        "reshard.core.verification.values",
    }


def test_classes_of_a_conversion_are_quick_to_define(tmp_path: Path) -> None:
    """A dataclass takes 0.3 to 0.7 ms, a record a tenth, and a conversion defines hundreds."""
    code = (
        "import sys, dataclasses; from reshard.cli.main import run\n"
        f"code = run({['convert', str(SOURCE), str(tmp_path / 'out'), *STRATEGIES]!r})\n"
        "modules = [module for name, module in sys.modules.items() if name.startswith('reshard.')]\n"
        "classes = {kind for module in modules for kind in vars(module).values() if dataclasses.is_dataclass(kind)}\n"
        "own = [kind.__name__ for kind in classes if kind.__module__.startswith('reshard.')]\n"
        "print(code, *own, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    exit_code, *dataclasses = done.stderr.splitlines()[-1].split()
    assert exit_code == "0"
    assert not dataclasses, "records are subclasses of Record, mutable state of msgspec.Struct"


def test_a_conversion_without_strategy_files_loads_no_protobuf(tmp_path: Path) -> None:
    """A converted checkpoint is read by its own strategy."""
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    loaded_modules("convert", str(SOURCE), first, *STRATEGIES)
    assert "google" not in loaded_modules("convert", first, second)


def test_a_command_starts_no_threads_of_numpy_and_ends_without_a_search_for_garbage(tmp_path: Path) -> None:
    code = (
        "import os, sys; from reshard.cli.main import main\n"
        f"sys.argv = {['reshard', 'convert', str(SOURCE), str(tmp_path / 'out'), *STRATEGIES]!r}\n"
        "try:\n    main()\nexcept SystemExit:\n"
        "    import gc, threading\n"
        "    print(len(os.listdir('/proc/self/task')) - threading.active_count(), gc.get_freeze_count() > 10_000)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 True"


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_explains_and_gives_examples(reshard: Callable[..., Any], command: tuple[str, ...]) -> None:
    shown = reshard(*command, "--help")
    assert shown.code == 0
    examples = shown.out.partition("Examples:")[2].partition("Options:")[0]
    assert f"reshard {' '.join(command)}".rstrip() in examples
    assert len(examples.split("\n\n")[0].strip().splitlines()) >= 2


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_fits_110_columns(
    reshard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert max(map(len, reshard(*command, "--help").out.splitlines())) <= 110


@pytest.mark.parametrize("columns", ["80", "92"])
def test_help_never_ends_a_line_inside_an_options_name(
    reshard: Callable[..., Any], columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could copy `--make-vocab-` from one line and `size-divisible-by` from the next."""
    monkeypatch.setenv("COLUMNS", columns)
    shown = reshard("convert", "--help").out
    assert re.findall(r"--[\w-]+-$", shown, re.MULTILINE) == []
    assert "--make-vocab-size-divisible-by" in shown


def test_help_explains_files_of_options_and_logs(reshard: Callable[..., Any]) -> None:
    shown = " ".join(reshard("convert", "--help").out.split())
    for text in (
        "--config FILE Read arguments and options from this YAML or JSON file",
        "a list given there replaces the file's",
        "--print-config Print a --config file with all the given options",
        "-q, --quiet Print only errors, RECOVERED, NOT COMPLETE and the requested output",
        "-v, --verbose Print more to stderr",
        "--log-file FILE Append everything that --verbose prints to this file",
    ):
        assert text in shown


def test_every_command_is_listed(reshard: Callable[..., Any]) -> None:
    listed = reshard("--help").out.partition("Commands:")[2]
    assert [line.split()[0] for line in listed.splitlines() if line] == list(COMMANDS)


def test_version(reshard: Callable[..., Any]) -> None:
    shown = reshard("--version")
    assert shown.code == 0
    assert shown.out.startswith("reshard 0.")


def test_no_command_is_wrong_input_and_shows_the_help(reshard: Callable[..., Any]) -> None:
    shown = reshard()
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith("Usage: reshard")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("covert",), "No such command 'covert'. Did you mean 'convert' or 'recover'?"),
        (("quit",), "No such command 'quit'.\n"),
        (("convert", "a", "b", "--verfy", "none"), "No such option '--verfy'"),
        (("convert", "a", "b", "--verify", "checksums"), "'content'. Did you mean 'checksum'?"),
        (("convert",), "Missing argument 'SOURCE'"),
        (("completion",), "Missing argument 'bash|zsh|fish'. Choose from: bash, zsh, fish\n"),
        (("convert", "a", "b", "--nonsense"), "No such option '--nonsense'"),
        (("convert", "a", "b", "--format", "pickle"), "'pickle' is not one of 'same', 'ckpt', 'safetensors'"),
        (("convert", "a", "b", "--workers", "many"), "'many' is not a valid integer"),
        (("verify", "a", "--level", "none"), "'none' is not one of 'structure', 'checksum'"),
        (("plan", "a", "--rank", "0"), "--rank: only valid with --param"),
        (("convert", "a", "b", "--prefix", "x/y"), "--prefix 'x/y': must be a plain name: no '/'"),
        (("convert", "a", "b", "--prefix", "../x"), "--prefix '../x'"),
        (("convert", "a", "b", "--memory-limit", "2 potatoes"), "--memory-limit '2 potatoes': must be a size"),
        (("convert", "a", "b", "--memory-limit", "1MiB"), "--memory-limit '1MiB': must be at least 16MiB"),
        (("convert", "a", "b", "--step", "newest"), "--step 'newest': must be EPOCH_STEP"),
        (("convert", "a", "b", "--ranks", "3-1"), "--ranks '3-1': must be ranks such as 0-3,7"),
        (("convert", "a", "b", "--workers", "-1"), "--workers -1: "),
        (("convert", "", "b"), "SOURCE ''"),
        (("convert", "s3://user:secret@bucket/a", "b", "--engine", "direct"), "must not carry credentials"),
        (("plan", "nowhere://a"), "unknown storage nowhere://"),
    ],
)
def test_wrong_options(reshard: Callable[..., Any], arguments: tuple[str, ...], message: str) -> None:
    shown = reshard(*arguments)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith("reshard: error: ")
    assert message in shown.err


def test_all_wrong_options_are_told_at_once(reshard: Callable[..., Any]) -> None:
    shown = reshard("convert", "a", "b", "--prefix", "/", "--ranks", "x")
    assert "--prefix '/'" in shown.err
    assert "--ranks 'x'" in shown.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", "/nonexistent/a", "/tmp/reshard-none", "--engine", "direct"),
        ("plan", "/nonexistent/a"),
        ("plan", "/nonexistent/{rank}/a.ckpt"),
        ("plan", str(SOURCE), "--source-strategy", "/nonexistent/strategy"),
        ("verify", "/nonexistent/a"),
        ("merge-strategy", "/nonexistent/a", "/tmp/reshard-none"),
        ("inspect", "/nonexistent/a"),
    ],
)
def test_what_is_not_there_is_wrong_input(reshard: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    shown = reshard(*arguments)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err.startswith("reshard: error: /nonexistent")
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (VerificationError("rank_3: 'w' [0:4] differs"), 1),
        (ConversionError("rank_3: 'w' [0:4] failed"), 3),
        (StorageError("/disk/out: cannot write it: No space left on device"), 3),
    ],
)
def test_errors_have_their_codes(
    reshard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr("reshard.core.conversion.convert.convert", failing)
    shown = reshard("convert", "a", "b", "--engine", "direct")
    assert (shown.code, shown.out, shown.err) == (code, "", f"reshard: error: {error}\n")


def test_a_bug_is_one_line_and_its_traceback_is_kept(
    reshard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("two\nlines")

    monkeypatch.setattr("reshard.core.conversion.convert.convert", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shown = reshard("convert", "a", "b", "--engine", "direct")
    assert (shown.code, shown.out) == (70, "")
    [line] = shown.err.splitlines()
    assert line.startswith("reshard: internal error: KeyError: 'two\\nlines', please report; the traceback is in ")
    kept = Path(line.rpartition(" ")[2]).read_text()
    assert "Traceback" in kept
    assert "in broken" in kept


def test_a_bug_is_told_though_its_traceback_cannot_be_kept(
    reshard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("reshard.core.conversion.convert.convert", lambda *_: 1 / 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    shown = reshard("convert", "a", "b", "--engine", "direct")
    assert shown.code == 70
    assert "ZeroDivisionError: division by zero, please report; the traceback could not be saved" in shown.err
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("number", "exit_code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_stops_the_workers_at_once_and_gives_the_target_back(
    tmp_path: Path, number: signal.Signals, exit_code: int, word: str
) -> None:
    code = (
        "import os, time\n"
        "from reshard.core.conversion.rank_work import RankWork\n"
        "from reshard.cli.main import main\n"
        "def endless(work, unit):\n"
        "    os.write(1, b'working\\n')\n"
        "    while True:\n"
        "        work.advance(0)\n"
        "        time.sleep(0.01)\n"
        "RankWork.make = endless\n"
        "main()\n"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "convert",
        str(SOURCE),
        str(tmp_path / "out"),
        *STRATEGIES,
        "--engine",
        "direct",
    ]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == exit_code
    said, left = err.splitlines()
    assert said == f"reshard: {word}; a rerun of the same command resumes where it stopped"
    assert left.startswith(f"reshard: left in {tmp_path}/out.reshard-partial: ")
    assert left.endswith(f" 0 of 2 ranks done: the same command resumes it, 'reshard clean {tmp_path}/out' removes it")
    assert not list(tmp_path.rglob("leases"))


def test_a_second_sigterm_does_not_interrupt_the_clean_up() -> None:
    code = (
        "import os, signal\n"
        "from reshard.cli import main as module\n"
        "module._REPEATED_SECONDS = 600\n"
        "def work(arguments):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    except module.Terminated:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        return 5\n"
        "module.run = work\n"
        "module.main()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=False).returncode == 5


def test_a_later_sigterm_ends_a_command_in_which_a_library_swallowed_the_first() -> None:
    code = (
        "import os, signal\n"
        "from reshard.cli import main as module\n"
        "module._REPEATED_SECONDS = 0\n"
        "def work(context):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    except BaseException:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "module.cli.invoke = work\n"
        "module.main()\n"
    )
    assert ended_by_sigterm(code)


def test_a_sigterm_that_a_library_turns_into_an_error_of_its_own_is_no_bug() -> None:
    code = (
        "import os, signal\n"
        "from pydantic import BaseModel, field_serializer\n"
        "from reshard.cli import main as module\n"
        "class Record(BaseModel):\n"
        "    name: str\n"
        "    @field_serializer('name')\n"
        "    def stop(self, name):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "module.cli.invoke = lambda context: Record(name='').model_dump_json()\n"
        "module.main()\n"
    )
    assert ended_by_sigterm(code)


def ended_by_sigterm(code: str) -> bool:
    command = [sys.executable, "-c", code, "inspect", str(SOURCE)]
    done = subprocess.run(command, cwd=PROJECT, check=False, stderr=subprocess.PIPE, text=True)
    return (done.returncode, done.stderr) == (143, "reshard: terminated\n")


def test_an_ignored_sigterm_stays_ignored() -> None:
    code = (
        "import os, signal\n"
        "from reshard.cli import main as module\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "module.run = lambda arguments: os.kill(os.getpid(), signal.SIGTERM) or 5\n"
        "module.main()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=False).returncode == 5


def test_a_reader_that_leaves_is_no_bug() -> None:
    """`reshard inspect … | head -0`."""
    command = [sys.executable, "-m", "reshard.cli.main", "inspect", str(SOURCE)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (141, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_bug(tmp_path: Path, closed: str) -> None:
    """As some daemons start programs."""
    log, out = tmp_path / "log", tmp_path / "out"
    words = [sys.executable, "-m", "reshard.cli.main", "convert", SOURCE, out, *STRATEGIES, "--engine", "direct"]
    command = f"{shlex.join(map(str, words))} --log-file {log} {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "committed" in log.read_text()
    assert run(["verify", str(out)]) == 0


def test_long_messages_do_not_wrap(spawned: Callable[..., Any]) -> None:
    missing = "/nonexistent/" + "x" * 200 + " [bold] [0:4]"
    shown = spawned("inspect", missing)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == f"reshard: error: {missing}: cannot read it: no such file or directory\n"

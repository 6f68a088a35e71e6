"""What a command says on its way: --quiet, --verbose and --log-file.

Everything goes to the logger `reshard` as well, from which the log file is written; the terminal shows notes and
progress by itself, and details of the logger with --verbose.
"""

import logging
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime

import click
from msgspec.structs import replace

from reshard import __version__
from reshard.cli.environment import (
    is_from_environment,
    name_variables,
    stray_variables,
    used_variables,
    with_variable_named,
)
from reshard.cli.help import HelpContext
from reshard.cli.output import print_line, print_lines
from reshard.cli.parameters import PATH, is_place
from reshard.core.errors import InputError, ReshardError, notes_of, text_with_notes
from reshard.core.runtime.log import LOGGER, log
from reshard.core.runtime.named_values import is_name
from reshard.core.runtime.progress import SilentProgress, reporting_to
from reshard.core.runtime.progress_lines import LoggedProgress
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import seconds_text
from reshard.core.text.printing import printable
from reshard.core.text.secrets import names_secret, scrubbed


class Verbosity(Record):
    """What was asked for with --quiet, --verbose and --log-file."""

    quiet: bool = False
    verbose: bool = False
    log_file: str | None = None


class Command(click.Command):
    """A command with the options --quiet, --verbose and --log-file, whose options may come from the environment."""

    context_class = HelpContext

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.params += _options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words of the command line for the log, and read the variables of options that it lacks."""
        ctx.meta[_WORDS] = [*ctx.command_path.split(), *args]
        name_variables(self.params)
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            raise with_variable_named(error) from None

    def invoke(self, ctx: click.Context) -> object:
        """Run the command with its logs."""
        asked = _verbosity(ctx)
        if asked.quiet and asked.verbose:
            raise click.UsageError("--quiet and --verbose cannot be combined: leave one out", ctx)
        if asked.log_file:
            _check_apart(asked.log_file, self.places(ctx))
        with _logging_as(asked, ctx.meta[_WORDS]) as ended:
            self._note_variables(ctx)
            code = self.work(ctx)
            ended(code if isinstance(code, int) else 0)
            return code

    def places(self, ctx: click.Context) -> Iterator[object]:
        """Yield the files, directories and URLs that the command line names."""
        for param in self.params:
            value = ctx.params.get(str(param.name)) if is_place(param) else None
            yield from value if isinstance(value, tuple) else [value]

    def fields_of_file(self, ctx: click.Context) -> dict[str, object]:
        """Return the options that a file gives, which take precedence over variables."""
        return {}

    def work(self, ctx: click.Context) -> object:
        """Call the command's function."""
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say in the help that options may come from the environment."""
        formatter.write_paragraph()
        formatter.write_text(_OF_ENVIRONMENT)

    def _note_variables(self, ctx: click.Context) -> None:
        """Print which variables gave options their values: one that was forgotten surprises."""
        fields = self.fields_of_file(ctx)
        used = ", ".join(used_variables(ctx, fields))
        if used:
            print_note(f"reshard: from the environment: {printable(used)}")
        for warning in stray_variables(ctx, (*ctx.params.values(), *fields.values())):
            _log_result(logging.WARNING, warning)
            if not is_quiet():
                print_line(f"reshard: warning: {printable(warning)}", err=True)


def is_quiet() -> bool:
    """True if only errors and answers should be printed."""
    return _asked.get().quiet


def print_note(text: str) -> None:
    """Print a line on stderr unless --quiet; log it."""
    log(logging.INFO, text)
    if not is_quiet():
        print_line(text, err=True)


def log_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Write facts of a result to the log file, if there is one; the terminal shows them as the command decides."""
    for name, text in facts:
        _log_result(logging.INFO, f"{name}: {text}")


def log_news(text: str) -> None:
    """Warn in the log file that a result is not as asked, and on stderr if --quiet hides the result."""
    _log_result(logging.WARNING, text)
    if is_quiet():
        print_line(f"reshard: {text}", err=True)


def _log_result(level: int, text: str) -> None:
    # without a handler, Python itself would print warnings
    if _asked.get().log_file is not None:
        log(level, printable(text))


@contextmanager
def details_above(say: Callable[[str], None]) -> Iterator[None]:
    """Print details with `say` inside the block, where they must not mix with what is on the terminal."""
    before, _terminal.say = _terminal.say, say
    try:
        yield
    finally:
        _terminal.say = before


def _verbosity(ctx: click.Context) -> Verbosity:
    """Take what was asked for from the parameters; the command line decides against a variable."""
    asked = Verbosity(**{name: ctx.params.pop(name) for name in Verbosity.__struct_fields__})
    if asked.quiet and asked.verbose and is_from_environment(ctx, "quiet") != is_from_environment(ctx, "verbose"):
        is_verbose = is_from_environment(ctx, "quiet")
        return replace(asked, quiet=not is_verbose, verbose=is_verbose)
    return asked


class _NotesIfVerbose(SilentProgress):
    """The listener of commands that show no progress."""

    def note(self, message: str) -> None:
        if _asked.get().verbose:
            _terminal.say(message)


def _options() -> list[click.Parameter]:
    return [
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            help="Print only errors, RECOVERED, NOT COMPLETE and the requested output, such as an answer or --json: no "
            "progress, notes or summaries.",
        ),
        click.Option(
            ["-v", "--verbose"],
            is_flag=True,
            help="Print more to stderr: files, ranks, retried requests, and the time of each phase.",
        ),
        click.Option(
            ["--log-file"],
            metavar="FILE",
            type=PATH,
            help="Append everything that --verbose prints to this file, with times and levels.",
        ),
    ]


class _Terminal(logging.Handler):
    """Prints details; notes and errors are printed where they arise."""

    def __init__(self) -> None:
        super().__init__()
        self.say: Callable[[str], None] = lambda message: print_lines(f"reshard: {message}", err=True)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.INFO:
            self.say(record.getMessage())


class _File(logging.Handler):
    """Appends lines to a file, each with a single write: several processes may share the file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        # a pipe without a reader is an error rather than waited for
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        self._path = path
        self._failed = False

    def emit(self, record: logging.LogRecord) -> None:
        at = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        lines = record.getMessage().split("\n")
        data = "".join(f"{at} {record.levelname:<7} {line}\n" for line in lines).encode(errors="backslashreplace")
        try:
            os.write(self._descriptor, data)
        except OSError as error:
            if not self._failed:  # the work is worth more than its log
                self._failed = True
                print_line(f"reshard: warning: {self._path}: the log is incomplete: {error.strerror}", err=True)

    def end(self) -> None:
        """Close the file. `close` is also called by libraries that configure logging anew, while it is in use."""
        os.close(self._descriptor)


@contextmanager
def _logging_as(asked: Verbosity, words: Sequence[str]) -> Iterator[Callable[[int], None]]:
    """Log inside the block as asked for; yields a function to call with the exit code."""
    file = _opened(asked.log_file) if asked.log_file is not None else None
    handlers = [*([_terminal] if asked.verbose else []), *([file] if file else [])]
    token = _asked.set(asked)
    started = time.monotonic()
    level, propagates = LOGGER.level, LOGGER.propagate

    def ended(code: int) -> None:
        log(logging.DEBUG, f"finished in {seconds_text(time.monotonic() - started)}, exit code {code}")

    if handlers:
        LOGGER.setLevel(logging.DEBUG)
        LOGGER.propagate = False  # Prefect gives the root logger a handler that prints
    for handler in handlers:
        LOGGER.addHandler(handler)
    try:
        if file:
            log(logging.INFO, f"reshard {__version__}: {shlex.join(_without_secrets(words))}")
        with reporting_to(LoggedProgress(_NotesIfVerbose())):
            yield ended
    except (ReshardError, click.ClickException) as error:
        if file:
            log(
                logging.ERROR,
                error.format_message() if isinstance(error, click.ClickException) else text_with_notes(error),
            )
        raise
    except BaseException as error:
        if file:
            ended_by = f"ended by {type(error).__name__}: {error}".rstrip(": ")
            log(logging.ERROR, "\n".join([ended_by, *notes_of(error)]))
        raise
    finally:
        for handler in handlers:
            LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
        LOGGER.propagate = propagates
        _asked.reset(token)
        if file:
            file.end()


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command line; what was given as the name of a secret, and is none, may be the secret."""
    is_value = False
    for word in words:
        option, equals, value = word.partition("=")
        if is_value:
            yield _shown_name(word)
        elif equals and _names_secret(option):
            yield f"{option}={_shown_name(value)}"
        else:
            yield word
        is_value = not (is_value or equals) and _names_secret(option)


def _names_secret(word: str) -> bool:
    return word.startswith("--") and names_secret(word.removeprefix("--").replace("-", "_"))


def _shown_name(value: str) -> str:
    return value if is_name(value) or not value else "…"


def _check_apart(log_file: str, places: Iterable[object]) -> None:
    """Check that a log file is apart from all that a command reads or writes.

    In a target it would be a foreign file, and lines appended to a shard would damage it.
    """
    from reshard.core.storage.patterns import Relation, relation_of
    from reshard.core.storage.publishing import PARTIAL_SUFFIX, REPLACED_SUFFIX

    path = os.path.realpath(log_file)
    for place in places:
        local = _local_path(place) if isinstance(place, str) else None
        for suffix in ("", PARTIAL_SUFFIX, REPLACED_SUFFIX) if local else ():
            relation = relation_of(path, f"{local}{suffix}")
            if relation in (Relation.AT, Relation.INSIDE):
                how = "is" if relation is Relation.AT else "lies inside"
                raise InputError(
                    f"--log-file {log_file}: {how} {scrubbed(str(place))}{suffix}, which the command reads or writes; "
                    "name a file elsewhere"
                )


def _local_path(place: str) -> str | None:
    """Return the path that a place has on this machine; None for other storages, and for what names no place."""
    from reshard.core.storage.urls import parse_url

    protocol, separator, _ = place.partition("://")
    if separator and protocol not in ("file", "local"):
        return None
    try:
        return parse_url(place).path
    except InputError:  # the command describes it better
        return None


def _opened(path: str) -> _File:
    try:
        return _File(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"--log-file {path}: cannot be written: {(reason or str(error)).lower()}") from None


_WORDS = "reshard.words"
_OF_ENVIRONMENT = (
    "Options may come from the environment: RESHARD_LOG_FILE=FILE is --log-file FILE. The command line, and a file of "
    "--config, take precedence."
)
_asked: ContextVar[Verbosity] = ContextVar("reshard_verbosity", default=Verbosity())  # noqa: B039
_terminal = _Terminal()

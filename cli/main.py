"""The command `reshard`: its subcommands and their exit codes.

Exit codes: 0 done, or yes; 1 the answer is no; 2 wrong input; 3 runtime failure; 70 a bug; 130 Ctrl-C; 143 SIGTERM. A
command's module is imported when the command is called, so `reshard --help` is fast.
"""

import errno
import gc
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

import click

from reshard.cli.output import print_error, print_line, print_lines
from reshard.cli.parameters import COMPLETION_VARIABLE, did_you_mean
from reshard.cli.spelling import flag
from reshard.core.errors import InputError, ReshardError, VerificationError, notes_of, text_with_notes
from reshard.core.runtime.arenas import share_arenas
from reshard.core.runtime.shortage import naming_shortage
from reshard.core.runtime.suggestions import close_words
from reshard.core.runtime.threads import rare_collections
from reshard.core.text.options import spelled_by
from reshard.core.text.printing import printable_lines
from reshard.core.text.secrets import scrubbed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NO, WRONG_INPUT, FAILED, BUG, INTERRUPTED, PIPE_CLOSED, TERMINATED = 1, 2, 3, 70, 130, 141, 143

_RESUMING = frozenset({"convert", "convert-latest", "join-parts"})

_COMMANDS = {
    "convert": ("reshard.cli.convert", "Convert a checkpoint to another sharding strategy."),
    "convert-latest": ("reshard.cli.convert_latest", "Convert the newest completely saved step."),
    "plan": ("reshard.cli.plan", "Show what a conversion would read and write."),
    "recover": ("reshard.cli.recover", "Check whether a damaged checkpoint can be recovered."),
    "doctor": ("reshard.cli.doctor", "Check a checkpoint's strategy, or a model directory."),
    "verify": ("reshard.cli.verify", "Check a converted checkpoint."),
    "sign": ("reshard.cli.sign", "Sign a converted checkpoint."),
    "attest": ("reshard.cli.attest", "Show where a converted checkpoint comes from."),
    "diff": ("reshard.cli.diff", "Check whether two checkpoints hold the same model."),
    "fingerprint": ("reshard.cli.fingerprint", "Print fingerprints, to compare on another machine."),
    "scan": ("reshard.cli.scan", "Look for NaN and Inf in a checkpoint."),
    "join-parts": ("reshard.cli.join_parts", "Join separately converted stages into one checkpoint."),
    "clean": ("reshard.cli.clean", "Remove unfinished work at a target."),
    "merge-strategy": ("reshard.cli.merge_strategy", "Merge the strategy files of a job's ranks into one."),
    "make-strategy": ("reshard.cli.make_strategy", "Make a strategy for other numbers of devices."),
    "presets": ("reshard.cli.presets", "List the known model families, or print a preset."),
    "inspect": ("reshard.cli.inspect", "Show the contents of a checkpoint or a strategy."),
    "history": ("reshard.cli.history", "List conversions: when, by whom, how much, at what cost."),
    "deploy": ("reshard.cli.deploy", "Create the deployments on a Prefect server, for workers."),
    "serve": ("reshard.cli.serve", "Serve the deployments from this process, without a worker."),
    "schedule": ("reshard.cli.schedule", "Schedule convert-latest on a Prefect server."),
    "metrics": ("reshard.cli.metrics", "Serve metrics of runs and conversions to Prometheus."),
    "completion": ("reshard.cli.completion", "Print the shell completion script."),
}
"""Command -> its module, and its summary in one line."""


_REPEATED_SECONDS = 5.0
"""A service manager may signal both the process and its group: the second signal must not interrupt the clean-up."""
_terminated_at: list[float] = []
"""When SIGTERM came, by `time.monotonic`."""


class Terminated(KeyboardInterrupt):
    """The process got SIGTERM: the command ends as it does after Ctrl-C."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        return cast(click.Command, import_module(_COMMANDS[cmd_name][0]).command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and args[0] not in _COMMANDS and not args[0].startswith("-"):
            suggestion = did_you_mean(args[0], list(_COMMANDS))
            raise click.UsageError(f"No such command {args[0]!r}.{suggestion}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        # Group's own would import every command
        commands = [
            CompletionItem(name, help=summary)
            for name, (_, summary) in _COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="reshard", message="%(prog)s %(version)s")
def cli() -> None:
    """Reshard MindSpore checkpoints trained on M devices to run on N.

    A checkpoint saved by M ranks becomes one for N ranks, for any numbers of devices and pipeline stages, with or
    without optimizer parallel, .ckpt or .safetensors. Written files are read back and checked before the checkpoint
    appears.

    \b
    Examples:
      reshard inspect /data/checkpoint
      reshard convert /data/checkpoint /data/for_inference --source-strategy /data/strategy
      reshard COMMAND --help

    \b
    Exit codes:
      0         done, or the answer is yes
      1         the answer is no
      2         wrong input
      3         runtime failure: I/O, full disk
      70        a bug
      130, 143  Ctrl-C, SIGTERM; the same conversion resumes
    """


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; errors are printed on stderr, none is raised."""
    with spelled_by(flag):
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    try:
        with naming_shortage(), cli.make_context("reshard", list(arguments)) as context:
            result = cli.invoke(context)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return WRONG_INPUT
    except click.ClickException as error:
        print_error(_usage_message(error))
        return WRONG_INPUT
    except ReshardError as error:
        print_error(text_with_notes(error))
        return _exit_code(error)
    except BrokenPipeError:
        # the reader of the output is gone; flushing the buffered rest must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Terminated as end:
        return _terminated(end, arguments)
    except KeyboardInterrupt as end:
        if sys.stderr.isatty():
            click.echo(err=True)  # the terminal shows ^C and stays on that line
        click.echo(f"reshard: interrupted{_resumption(arguments)}", err=True)
        _print_notes(end)
        return INTERRUPTED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            return _bug(error)
        # errors of files that core writes have their own class: this was our output
        click.echo("reshard: error: the output cannot be written: no space left on the device", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        # pydantic replaces whatever its serializers raise by errors of its own
        return _terminated(error, arguments) if _terminated_at else _bug(error)


def _terminated(end: BaseException, arguments: Sequence[str]) -> int:
    click.echo(f"reshard: terminated{_resumption(arguments)}", err=True)
    _print_notes(end)
    return TERMINATED


def _resumption(arguments: Sequence[str]) -> str:
    """The end of a sentence on a command that was stopped, if it goes on with what was done."""
    resumes = bool(_RESUMING.intersection(arguments[:1]))
    return "; a rerun of the same command resumes where it stopped" if resumes else ""


def _print_notes(error: BaseException) -> None:
    """Print what an error or an interruption left behind; Prefect raises a signal's exception twice."""
    noted: BaseException | None = error
    while noted is not None and not notes_of(noted):
        noted = noted.__context__
    for note in notes_of(noted) if noted else ():
        print_lines(f"reshard: {note}", err=True)


def _bug(error: Exception) -> int:
    print_line(f"reshard: internal error: {_one_line(error)}, please report; {_saved_traceback()}", err=True)
    _print_notes(error)
    return BUG


def main() -> None:
    """Run the console command."""
    # numpy's BLAS starts a thread for each processor, and nothing here multiplies matrices
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if any("://" in argument for argument in sys.argv[1:]):
        share_arenas()
    _end_in_order_on_sigterm()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # names of files and parameters may contain characters outside the terminal's encoding
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from reshard.cli.completion import complete

        sys.exit(complete(cli, instruction))
    with rare_collections():
        code = run(sys.argv[1:])
        gc.freeze()  # else Python searches all objects for cycles, several times, before the process ends
    sys.exit(code)


def _end_in_order_on_sigterm() -> None:
    """Let SIGTERM end the command as Ctrl-C does: uploads are aborted, and leases given back."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # otherwise the parent process ignores it
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: object) -> None:
    now = time.monotonic()
    if _terminated_at and now - _terminated_at[-1] < _REPEATED_SECONDS:
        return
    _terminated_at.append(now)
    raise Terminated


def _open_closed_streams() -> None:
    """Open the null device in place of closed standard streams, whose descriptors files would get otherwise."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r"))


def _exit_code(error: ReshardError) -> int:
    if isinstance(error, VerificationError):
        return NO
    return WRONG_INPUT if isinstance(error, InputError) else FAILED


def _usage_message(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        meant = close_words(error.option_name, error.possibilities)
        error = click.NoSuchOption(error.option_name, possibilities=meant, ctx=error.ctx)
    message = error.format_message().replace("\n\t", " ")  # click lists choices on lines of their own
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message}\nTry '{context.command_path} --help' for help." if context else message


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _saved_traceback() -> str:
    """Write the traceback of the current exception to a file, and return a text that names it."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="reshard-error-", suffix=".txt", delete=False
        ) as file:
            file.write(printable_lines(scrubbed(traceback.format_exc())))
    except OSError as error:
        return f"the traceback could not be saved: {error}"
    return f"the traceback is in {file.name}"


if __name__ == "__main__":
    main()

"""Options from the environment: `RESHARD_MEMORY_LIMIT` is `--memory-limit` of every command that has it.

click reads the variables; this module names them, says which options have none, and finds those that were used and
those that nothing reads. Only the command looks at them: flows and programs get what their callers give.
"""

import os
from collections.abc import Collection, Iterable, Iterator

import click
from click.core import ParameterSource

from reshard.core.runtime.named_values import is_name
from reshard.core.runtime.suggestions import close_words
from reshard.core.text.secrets import names_secret, scrubbed

PREFIX = "RESHARD_"
COMMAND_LINE_ONLY = frozenset(
    (
        *("overwrite", "yes", "keep_checkpoint_max", "keep_checkpoint_per_n_minutes"),
        *("trust_strategy", "trust_strategy_a", "trust_strategy_b", "recover", "fault_ranks"),
        *("allow_missing", "allow_model"),
        *("config", "print_config"),
        *("show_list", "pause", "resume", "remove", "extract"),
    )
)
"""Options without a variable: they replace or remove files, lift a refusal, or stand for a whole job or command."""
_READ_ELSEWHERE = frozenset(
    (
        *("RESHARD_RECORD_ASSETS", "RESHARD_FAULT_RANKS_FILE"),
        *("RESHARD_ADDRESS", "RESHARD_DATA", "RESHARD_IMAGE", "RESHARD_MEMORY", "RESHARD_RUNS", "RESHARD_UI_API_URL"),
        "RESHARD_USER",
    )
)
"""Variables of flows, of MindSpore's elastic training, and of the containers (`compose.yaml`)."""


def variable_of(param: click.Parameter) -> str | None:
    """Return the variable of an option, named after its long form; None for arguments and `COMMAND_LINE_ONLY`."""
    if not isinstance(param, click.Option) or param.name in COMMAND_LINE_ONLY:
        return None
    return _variable(_long_form(param))


def name_variables(params: Iterable[click.Parameter]) -> None:
    """Let click read the variables of a command's options."""
    for param in params:
        param.envvar = variable_of(param)


def is_from_environment(ctx: click.Context, name: str) -> bool:
    """True if a variable gave the value of an option."""
    return ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT


def with_variable_named(error: click.BadParameter) -> click.BadParameter:
    """Return an error about an option's value that names the variable, if that gave the value."""
    if error.ctx and error.param and error.param.name and is_from_environment(error.ctx, error.param.name):
        error.param_hint = variable_of(error.param)
    return error


def used_variables(ctx: click.Context, passed_over: Collection[str]) -> Iterator[str]:
    """Yield `NAME=VALUE` of the variables that gave options their values, but those of options `passed_over`."""
    for param in ctx.command.params:
        variable, name = variable_of(param), str(param.name)
        if variable and name not in passed_over and is_from_environment(ctx, name):
            yield f"{variable}={_shown(name, os.environ[variable])}"


def stray_variables(ctx: click.Context, values: Iterable[object]) -> Iterator[str]:
    """Yield a warning for each variable with the prefix that is nobody's; `values` may refer to some as `env:NAME`."""
    own = {variable_of(param) for param in ctx.command.params}
    referred = {text.removeprefix("env:") for text in values if isinstance(text, str) and text.startswith("env:")}
    strays = {name for name in os.environ if name.startswith(PREFIX)} - own - referred - _READ_ELSEWHERE
    if not strays:
        return
    options = list(_all_options(ctx))
    known = {variable for each in options if (variable := variable_of(each))}
    barred = {_variable(_long_form(each)): _long_form(each) for each in options if each.name in COMMAND_LINE_ONLY}
    for name in sorted(strays - known):
        if name in barred:
            yield f"{name} is ignored: {barred[name]} is for the command line only"
        else:
            yield f"{name} is ignored: no option has this variable{_did_you_mean(name, known)}"


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest variables; the prefix, which all share, does not make them similar."""
    words = sorted(each.removeprefix(PREFIX) for each in known)
    found = [PREFIX + word for word in close_words(name.removeprefix(PREFIX), words)]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _long_form(option: click.Option) -> str:
    return next(each for each in option.opts if each.startswith("--"))


def _variable(long_form: str) -> str:
    return PREFIX + long_form.removeprefix("--").replace("-", "_").upper()


def _all_options(ctx: click.Context) -> Iterator[click.Option]:
    """Yield the options of all commands, whose modules are imported: a variable may be another command's."""
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    for name in root.list_commands(ctx):
        command = root.get_command(ctx, name)
        yield from (each for each in (command.params if command else ()) if isinstance(each, click.Option))


def _shown(name: str, value: str) -> str:
    """Return a value as a note may show it; what was given as the name of a secret, and is none, may be the secret."""
    return "…" if names_secret(name) and not is_name(value) else scrubbed(value)

"""Commands whose arguments and options are the fields of a request, which may also come from a file."""

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from msgspec import field

from reshard.cli.environment import is_from_environment, variable_of
from reshard.cli.logs import Command
from reshard.cli.parameters import PATH, is_place
from reshard.cli.spelling import flag
from reshard.core.options.validation import build_options
from reshard.core.runtime.records import Record
from reshard.core.text.options import Option

if TYPE_CHECKING:
    from pydantic import BaseModel

_STDIN = "-"
_FILE = "reshard.config"


class _File(Record):
    """Fields that --config gives; `origin` is the file's name in messages."""

    origin: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


class RequestCommand(Command):
    """A command that calls its function with the request that its options, or a file, make.

    Args:
        request: the model of the request.
        fixed: fields that the command itself decides.
        passed_over: fields that a file may have because it is made for another command, too.
    """

    def __init__(
        self,
        *args: object,
        request: "type[BaseModel]",
        fixed: Mapping[str, object] | None = None,
        passed_over: Collection[str] = (),
        **settings: object,
    ) -> None:
        super().__init__(*args, **settings)
        self._request = request
        self._fixed = fixed or {}
        self._passed_over = passed_over
        self.params += self._options()

    def places(self, ctx: click.Context) -> Iterator[object]:
        """Yield the places that the command line or the file of --config names."""
        yield from super().places(ctx)
        fields = ctx.meta.get(_FILE, _File()).fields
        yield from (fields.get(str(param.name)) for param in self.params if is_place(param))

    def fields_of_file(self, ctx: click.Context) -> dict[str, object]:
        """Return the fields that the file of --config gives, but those of the command line."""
        fields = ctx.meta.get(_FILE, _File()).fields
        return {name: value for name, value in fields.items() if not _is_typed(ctx, name)}

    def work(self, ctx: click.Context) -> object:
        """Make the request, and print it or call the function with it."""
        prints = ctx.params.pop("print_config")
        del ctx.params["config"]
        file = ctx.meta.get(_FILE, _File())
        names = [name for name in ctx.params if name in self._request.model_fields]
        self._refuse_half(ctx, file, {name for name in names if _is_typed(ctx, name)})
        from_file = self.fields_of_file(ctx)
        variables = {str(each.name): str(variable_of(each)) for each in self.params}
        given = {name: value for name in names if (value := ctx.params.pop(name)) is not None}

        def named(name: str) -> str:
            if name in from_file:
                return f"{file.origin}: {name}"
            return variables[name] if is_from_environment(ctx, name) else flag(Option(name))

        request = build_options(self._request, named, **given | from_file | dict(self._fixed))
        if prints:
            from reshard.core.request.job_file import dump_job

            click.echo(dump_job(request), nl=False)
            return 0
        ctx.params["request"] = request
        return super().work(ctx)

    def _refuse_half(self, ctx: click.Context, file: _File, typed: set[str]) -> None:
        """Refuse some of the arguments if the file has all: the first one is not always the one that was meant."""
        arguments = [str(each.name) for each in self.params if isinstance(each, click.Argument)]
        if all(name in file.fields for name in arguments) and 0 < len(typed & set(arguments)) < len(arguments):
            names = " and ".join(flag(Option(name)) for name in arguments)
            raise click.UsageError(f"{file.origin} has {names}: give both on the command line, or neither", ctx)

    def _options(self) -> list[click.Parameter]:
        return [
            click.Option(
                ["--config"],
                metavar="FILE",
                type=PATH,
                is_eager=True,
                callback=self._read,
                help="Read arguments and options from this YAML or JSON file, with underscores in names. The command "
                "line takes precedence; a list given there replaces the file's. -: standard input.",
            ),
            click.Option(
                ["--print-config"],
                is_flag=True,
                help="Print a --config file with all the given options, and exit.",
            ),
        ]

    def _read(self, ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
        if value is None or ctx.resilient_parsing:
            return value
        from reshard.core.changes.documents import MAX_DOCUMENT_BYTES, read_document
        from reshard.core.request.job_file import parse_job

        origin = "standard input" if value == _STDIN else value
        data = sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1) if value == _STDIN else read_document(value)
        options = {name.removeprefix("--").replace("-", "_") for each in self.params for name in each.opts}
        file = _File(origin, parse_job(data, origin, self._request, self._passed_over, options))
        ctx.meta[_FILE] = file
        # arguments in the file are not missing; like options, they get its values when the request is made
        ctx.default_map = {str(each.name): "" for each in self.params if each.name in file.fields and each.required}
        return value


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE

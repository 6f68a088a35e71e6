"""The flows as they are deployed: a run's parameters are the fields of its request, one by one.

So a run is started with `--param source=…`, and the form in Prefect's UI folds most of them by group (`form_groups`).
Programs call the flows in `flows/`, which take the request as a whole; a deployed flow does the same as the one that it
is made from.

The form, and the checks of the server before a run, come from the fields: title, description, limits,
`json_schema_extra`. Further errors that the request's validators find end the run at once as Failed.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from prefect import Flow, flow
from prefect.runtime import flow_run
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo

from reshard.core.conversion.merge_strategy import MergeRequest
from reshard.core.errors import InputError
from reshard.core.options.validation import describe_validation
from reshard.core.request.approval import ApprovedConversionRequest
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.conversion import ConversionOptions, ConversionRequest
from reshard.core.request.groups import GROUPS
from reshard.core.request.history import HistoryRequest
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.request.verification import VerificationRequest
from reshard.core.text.options import Option, keyword, spelled_by
from reshard.core.text.printing import printable
from reshard.deployments.failure_alerts import alert_of_failure
from reshard.deployments.form_groups import EVERYDAY, GROUPED, Group, groups_of, title_of, ungrouped
from reshard.deployments.places import deployed_places, relative_places
from reshard.flows import compare_checkpoints as comparison
from reshard.flows import convert_checkpoint as conversion
from reshard.flows import convert_latest_checkpoint as latest
from reshard.flows import convert_with_approval as approval
from reshard.flows import merge_strategy as merging
from reshard.flows import report_history as history
from reshard.flows import verify_checkpoint as verification
from reshard.flows.outcome import failed

Request = TypeVar("Request", bound=BaseModel)

_OF_CONVERSIONS = (*EVERYDAY, *(name for names in GROUPS.values() for name in names))
_OF_OTHERS = (
    *("a", "b", "strategy_a", "strategy_b", "step_a", "step_b", "source", "target"),
    *("select", "include", "exclude", "ignore_dtype"),
)
"""Fields of a form from top to bottom; others follow in the order of their model."""


def form_of(
    inner: Flow[[Request], Any], model: type[Request], name_of: Callable[[Request], str], *, folded: bool = True
) -> Flow[..., Any]:
    """Return a flow like `inner` with the fields of its request as parameters; `name_of` names its runs.

    A form that is not `folded` shows all fields at once.
    """
    fn: Callable[[Request], Any] = inner.fn

    @functools.wraps(fn)
    def run(**fields: Any) -> Any:
        with spelled_by(functools.partial(_field_of, model), verb="set"):
            return checked_run(fields)

    def checked_run(fields: dict[str, Any]) -> Any:
        try:
            request = model.model_validate(ungrouped(model, fields))
        except InputError as error:
            return failed(error)
        except ValidationError as error:
            wrong = InputError(describe_validation(error, lambda name: _title(model, name)))
            return failed(wrong)
        relative = relative_places(request)
        if relative:
            return failed(InputError("\n".join(f"{_title(model, name)} {why}" for name, why in relative.items())))
        return fn(request)

    def run_name() -> str:
        try:
            return name_of(model.model_validate(ungrouped(model, flow_run.parameters)))
        except (InputError, ValidationError):
            return f"{inner.name}: not understood"

    run.__signature__ = inspect.Signature(_parameters(model, folded))  # type: ignore[attr-defined]
    # Prefect's own validation adds nothing to the request's; it logs a stack trace and all parameters
    options: dict[str, Any] = {
        "name": inner.name,
        "flow_run_name": run_name,
        "persist_result": False,
        "on_failure": [alert_of_failure],
    }
    form: Flow[..., Any] = flow(**options, validate_parameters=False)(run)
    return form


def _parameters(model: type[BaseModel], folded: bool) -> list[inspect.Parameter]:
    fields = model.model_fields
    shown = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if fields[name].is_required() else fields[name].get_default(),
            annotation=Annotated[fields[name].annotation, fields[name], _shown(model, name, folded)],
        )
        for name in sorted(fields, key=lambda name: _place(model, name))
    ]
    return [*shown, *map(_group, groups_of(model))] if folded else shown


def _group(group: Group) -> inspect.Parameter:
    shown = Field(json_schema_extra={"title": group.title, GROUPED: list(group.fields)})
    annotation = Annotated[dict[str, Any] | None, shown]
    return inspect.Parameter(group.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _place(model: type[BaseModel], name: str) -> int:
    order = _OF_CONVERSIONS if issubclass(model, ConversionOptions) else _OF_OTHERS
    return order.index(name) if name in order else len(order)


def _shown(model: type[BaseModel], name: str, folded: bool) -> FieldInfo:
    """Title and description in `json_schema_extra`: in their own places Prefect would replace or drop them.

    Places also get a pattern, which is stricter than the request's.
    """
    field = model.model_fields[name]
    title = field.title if folded else title_of(model, name)
    extra: dict[str, Any] = {"title": title, "description": field.description}
    places = deployed_places(field)
    if places is not None:
        extra |= {
            "description": f"{field.description} {places.note}",
            "pattern": places.pattern,
            "expected": places.expected,
        }
    shown: FieldInfo = Field(json_schema_extra=extra)
    return shown


def _field_of(model: type[BaseModel], option: Option) -> str:
    """Spell an option in a message as the form's field and what to fill in: `'Exclude' adam_*`."""
    if option.name not in model.model_fields:
        return keyword(option)
    return " ".join([f"'{title_of(model, option.name)}'", ", ".join(map(printable, option.texts))]).rstrip()


def _title(model: type[BaseModel], name: str) -> str:
    field = model.model_fields.get(name)
    return (field and field.title) or name


convert = form_of(conversion.convert_checkpoint, ConversionRequest, conversion.title_of)
convert_expert = form_of(conversion.convert_checkpoint, ConversionRequest, conversion.title_of, folded=False)
convert_with_approval = form_of(approval.convert_with_approval, ApprovedConversionRequest, conversion.title_of)
convert_latest = form_of(latest.convert_latest_checkpoint, LatestConversionRequest, latest.title_of)
verify = form_of(verification.verify_checkpoint, VerificationRequest, verification.title_of)
merge = form_of(merging.merge_strategy, MergeRequest, merging.title_of)
compare = form_of(comparison.compare_checkpoints, ComparisonRequest, comparison.title_of)
report = form_of(history.report_history, HistoryRequest, history.title_of)

"""The flows as they are deployed: a run's parameters are the fields of its request, one by one.

So the form in Prefect's UI is flat, and a run is started with `--param source=…`. Programs call the flows in `flows/`,
which take the request as a whole; a deployed flow has the same name, and does the same.

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
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.request.validation import describe_validation
from reshard.core.request.verification import VerificationRequest
from reshard.deployments.places import deployed_pattern, relative_places
from reshard.flows import compare_checkpoints as comparison
from reshard.flows import convert_checkpoint as conversion
from reshard.flows import convert_latest_checkpoint as latest
from reshard.flows import merge_strategy as merging
from reshard.flows import verify_checkpoint as verification
from reshard.flows.outcome import failed

Request = TypeVar("Request", bound=BaseModel)

FIELD_ORDER = (
    # needed by every run
    *("a", "b", "strategy_a", "strategy_b", "step_a", "step_b"),
    *("source", "target", "source_strategy", "target_strategy", "step", "layout", "format"),
    # checks and safety
    *("level", "verify", "overwrite", "dry_run"),
    # which conversions stay, and when a step counts as saved
    *("keep_checkpoint_max", "keep_checkpoint_per_n_minutes", "settle_seconds", "patience_seconds"),
    # selection of files and ranks
    *("prefix", "source_prefix", "ranks", "unmatched", "allow_missing", "check_crc"),
    # changes of parameters
    *("select", "include", "exclude", "rename", "cast", "cast_overflow", "transpose", "changes"),
    "ignore_dtype",
    *("max_shard_size", "unified_naming"),
    # damage and ambiguity
    *("recover", "fault_ranks", "shared_parameters", "check_replicas"),
    *("integrated_save", "integrated_save_a", "integrated_save_b", "trust_strategy"),
    # encryption and contents of files
    *("decrypt_key", "decrypt_mode", "source_decrypt_key", "source_decrypt_mode", "encrypt_key", "encrypt_mode"),
    *("decrypt_key_a", "decrypt_mode_a", "decrypt_key_b", "decrypt_mode_b"),
    *("write_crc", "append_info", "remove_redundancy", "replicas"),
    # storages and resources
    *("storage_a", "storage_b"),
    *("storage", "source_storage", "target_storage", "workers", "memory_limit", "dask_scheduler", "concurrency_limit"),
)
"""Fields of a form from top to bottom; others follow in the order of their model."""


def form_of(inner: Flow[[Request], Any], model: type[Request], title_of: Callable[[Request], str]) -> Flow[..., Any]:
    """Return a flow like `inner` with the fields of its request as parameters; `title_of` names its runs."""
    fn: Callable[[Request], Any] = inner.fn

    @functools.wraps(fn)
    def run(**fields: Any) -> Any:
        try:
            request = model.model_validate(fields)
        except ValidationError as error:
            wrong = InputError(describe_validation(error, lambda name: _title(model, name)))
            return failed(wrong)
        relative = relative_places(request)
        if relative:
            return failed(InputError("\n".join(f"{_title(model, name)} {why}" for name, why in relative.items())))
        return fn(request)

    def run_name() -> str:
        try:
            return title_of(model.model_validate(flow_run.parameters))
        except ValidationError:
            return f"{inner.name}: not understood"

    run.__signature__ = inspect.Signature(_parameters(model))  # type: ignore[attr-defined]
    # Prefect's own validation adds nothing to the request's; it logs a stack trace and all parameters
    options: dict[str, Any] = {"name": inner.name, "flow_run_name": run_name, "persist_result": False}
    form: Flow[..., Any] = flow(**options, validate_parameters=False)(run)
    return form


def _parameters(model: type[BaseModel]) -> list[inspect.Parameter]:
    fields = model.model_fields
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if fields[name].is_required() else fields[name].get_default(),
            annotation=Annotated[fields[name].annotation, fields[name], _shown(fields[name])],
        )
        for name in sorted(fields, key=_place)
    ]


def _place(name: str) -> int:
    return FIELD_ORDER.index(name) if name in FIELD_ORDER else len(FIELD_ORDER)


def _shown(field: FieldInfo) -> FieldInfo:
    """Title and description in `json_schema_extra`: in their own places Prefect would replace or drop them.

    Places also get a pattern, which is stricter than the request's.
    """
    extra: dict[str, Any] = {"title": field.title, "description": field.description}
    pattern = deployed_pattern(field)
    if pattern is not None:
        extra["pattern"] = pattern
    shown: FieldInfo = Field(json_schema_extra=extra)
    return shown


def _title(model: type[BaseModel], name: str) -> str:
    field = model.model_fields.get(name)
    return (field and field.title) or name


convert = form_of(conversion.convert_checkpoint, ConversionRequest, conversion.title_of)
convert_latest = form_of(latest.convert_latest_checkpoint, LatestConversionRequest, latest.title_of)
verify = form_of(verification.verify_checkpoint, VerificationRequest, verification.title_of)
merge = form_of(merging.merge_strategy, MergeRequest, merging.title_of)
compare = form_of(comparison.compare_checkpoints, ComparisonRequest, comparison.title_of)

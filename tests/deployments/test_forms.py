"""The forms: what they show of each field, what the server refuses by their schema, and what ends a run at once."""

from typing import Any

import pytest
from prefect import Flow
from prefect.client.schemas.objects import State
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.schema_tools.validation import ValidationError as SchemaError
from prefect.utilities.schema_tools.validation import validate
from pydantic import BaseModel, ValidationError

from reshard.core.conversion.merge_strategy import MergeRequest
from reshard.core.errors import InputError
from reshard.core.request.approval import ApprovedConversionRequest
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.groups import GROUPS
from reshard.core.request.history import HistoryRequest
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.request.verification import VerificationRequest
from reshard.deployments import forms
from reshard.deployments.form_groups import EVERYDAY, form_schema, groups_of, ungrouped
from reshard.deployments.places import relative_places

FORMS: list[tuple[Flow[..., Any], type[BaseModel]]] = [
    (forms.convert, ConversionRequest),
    (forms.convert_expert, ConversionRequest),
    (forms.convert_with_approval, ApprovedConversionRequest),
    (forms.convert_latest, LatestConversionRequest),
    (forms.verify, VerificationRequest),
    (forms.merge, MergeRequest),
    (forms.compare, ComparisonRequest),
    (forms.report, HistoryRequest),
]
IDS = ["convert", "convert_expert", "convert_with_approval", "convert_latest", "verify", "merge", "compare", "report"]
EACH_FORM = pytest.mark.parametrize(("form", "model"), FORMS, ids=IDS)
EACH_FOLDED_FORM = pytest.mark.parametrize(
    "form",
    [forms.convert, forms.convert_with_approval, forms.convert_latest, forms.compare],
    ids=["convert", "convert_with_approval", "convert_latest", "compare"],
)
PLACES = {
    *("source", "target", "source_strategy", "target_strategy", "changes", "like", "training_config", "config_json"),
    *("lora", "sign_certificate", "require_signed_by", "signed_by"),
    *("a", "b", "strategy_a", "strategy_b"),
}
NOTES = dict.fromkeys(PLACES, "An absolute path (/data/x) on the worker's machine, or a URL.") | {
    "preset": "Its path is absolute (/data/x), on the worker's machine."
}
NOTE_OF_NAMES = "PATH is absolute (/run/x), on the worker's machine."
WHERE = {"source": "/data/in", "target": "/data/out"}


def fields_of(form: Flow[..., Any]) -> dict[str, Any]:
    """The schema of each of a form's fields, wherever it is."""
    schema = form_schema(form)
    definitions = schema.get("definitions", {})
    groups = [definitions[name]["properties"] for name in definitions if name in schema["properties"]]
    alone = {name: field for name, field in schema["properties"].items() if name not in definitions}
    return {name: field for group in (alone, *groups) for name, field in group.items()}


def shown(properties: dict[str, Any]) -> list[str]:
    """The fields from top to bottom."""
    return sorted(properties, key=lambda name: int(properties[name]["position"]))


@EACH_FORM
def test_every_field_has_its_title_and_description(form: Flow[..., Any], model: type[BaseModel]) -> None:
    fields = fields_of(form)
    assert fields.keys() == model.model_fields.keys()
    for name, field in model.model_fields.items():
        assert field.title
        assert field.description
        assert fields[name]["title"].rpartition(": ")[2] == field.title
        note = fields[name]["description"].removeprefix(field.description).strip()
        assert note == NOTES.get(name, NOTE_OF_NAMES if is_of_secret(name) else "")


def is_of_secret(name: str) -> bool:
    """True for a field that says where a secret is kept."""
    return "storage" in name or "_key" in name or name in ("sign", "sign_passphrase")


@EACH_FORM
def test_defaults_are_the_requests(form: Flow[..., Any], model: type[BaseModel]) -> None:
    required = [name for name, field in model.model_fields.items() if field.is_required()]
    assert sorted(form_schema(form).get("required", ())) == sorted(required)
    given = {name: field["default"] for name, field in fields_of(form).items() if "default" in field}
    values = dict.fromkeys(required, "/data/x")
    assert model.model_validate(values | given) == model.model_validate(values)


TEN = [
    *("source", "source_strategy", "target", "target_strategy", "step"),
    *("select", "format", "layout", "verify", "overwrite"),
]


GROUPS_OF_CONVERT = [
    *("source_and_target", "parameters_and_their_changes", "output", "encrypted_and_damaged_sources"),
    *("checks", "signature", "resources"),
]


def test_the_form_of_a_conversion_has_ten_fields_and_closed_groups() -> None:
    schema = form_schema(forms.convert)
    assert shown(schema["properties"]) == [*TEN, *GROUPS_OF_CONVERT]
    checks = schema["properties"]["checks"]
    inside = "SHA-256, Check CRC, Check replicas, Trust strategy, Require signed by"
    assert (checks["title"], checks["description"]) == ("Checks", inside)
    closed, opened = checks["anyOf"]
    assert "properties" not in closed
    assert "default" not in checks
    assert shown(schema["definitions"][opened["$ref"].rpartition("/")[2]]["properties"]) == [
        *("sha256", "check_crc", "check_replicas", "trust_strategy", "require_signed_by"),
    ]


def test_the_other_long_forms_are_folded_as_well() -> None:
    assert shown(form_schema(forms.convert_with_approval)["properties"]) == [
        *TEN,
        "approval_seconds",
        *GROUPS_OF_CONVERT,
    ]
    assert shown(form_schema(forms.convert_latest)["properties"]) == [
        *("source", "source_strategy", "target", "target_strategy"),
        *("select", "format", "layout", "verify", "dry_run", "keep_checkpoint_max"),
        *GROUPS_OF_CONVERT[:-1],
        *("detecting_saved_steps_and_retention", "resources"),
    ]
    assert shown(form_schema(forms.compare)["properties"]) == [
        *("a", "b", "strategy_a", "strategy_b", "step_a", "step_b"),
        *("select", "include", "exclude", "ignore_dtype"),
        *("how_a_and_b_were_saved", "changes_between_a_and_b", "encrypted_checkpoints", "resources"),
    ]


def test_the_form_for_shells_has_all_fields_side_by_side_by_group() -> None:
    properties = form_schema(forms.convert_expert)["properties"]
    order = shown(properties)
    assert order[:10] == TEN
    titles = [properties[name]["title"] for name in order[10:]]
    groups = list(dict.fromkeys(title.partition(": ")[0] for title in titles))
    assert groups == [title for title in GROUPS if not title.startswith("Detecting")]
    assert titles == sorted(titles, key=lambda title: groups.index(title.partition(": ")[0]))
    assert properties["memory_limit"]["title"] == "Resources: Memory limit"
    assert properties.keys() == ConversionRequest.model_fields.keys()  # which `prefect deployment run --param` takes


@EACH_FORM
def test_texts_have_no_line_breaks(form: Flow[..., Any], model: type[BaseModel]) -> None:
    for field in fields_of(form).values():
        assert "\n" not in field["title"] + field["description"]


@EACH_FOLDED_FORM
def test_who_starts_runs_with_flat_fields_goes_on(form: Flow[..., Any]) -> None:
    schema = form_schema(form)
    right = dict.fromkeys(schema["required"], "/data/x") | {"workers": 2, "memory_limit": "1GiB", "switch": ["a=b"]}
    assert not validate(right, schema)
    [error] = validate(right | {"workers": "two"}, schema)
    assert list(error.absolute_path) == ["workers"]


def test_every_field_of_a_conversion_is_an_everyday_one_or_in_a_group() -> None:
    grouped = {name for names in GROUPS.values() for name in names}
    for model in (ConversionRequest, ApprovedConversionRequest, LatestConversionRequest):
        assert model.model_fields.keys() <= grouped | set(EVERYDAY)


@pytest.mark.parametrize("form", [forms.verify, forms.merge], ids=["verify", "merge"])
def test_small_forms_have_no_groups(form: Flow[..., Any]) -> None:
    assert "patternProperties" not in form_schema(form)
    assert fields_of(form).keys() == form_schema(form)["properties"].keys()


def test_every_field_of_a_comparison_is_shown_once() -> None:
    grouped = [name for group in groups_of(ComparisonRequest) for name in group.fields]
    alone = shown(form_schema(forms.compare)["properties"])[:10]
    assert sorted([*grouped, *alone]) == sorted(ComparisonRequest.model_fields)


def test_choices_are_choices() -> None:
    schema, fields = form_schema(forms.convert), fields_of(forms.convert)
    for name, count in {"format": 3, "verify": 4, "layout": 7, "select": 2, "unmatched": 2}.items():
        definition = fields[name]["$ref"].rpartition("/")[2]
        assert len(schema["definitions"][definition]["enum"]) == count


def test_options_of_torchs_trainings_are_in_the_forms() -> None:
    assert fields_of(forms.convert_expert)["root"]["title"].startswith("Source and target: ")
    assert fields_of(forms.compare).keys() >= {"root_a", "root_b"}
    optimizer_step = fields_of(forms.convert_expert)["optimizer_step"]
    assert optimizer_step["title"] == "Output: Steps of the optimizer"
    assert (optimizer_step["minimum"], optimizer_step["default"]) == (0, 0)
    assert "optimizer_step" not in fields_of(forms.convert_latest), "each step says its own"
    fields = {"root": "module.model", "layout": "universal", "optimizer_step": 40}
    assert not relative_places(ConversionRequest.model_validate(WHERE | fields)), "keys are no path"
    assert not validate(WHERE | fields, form_schema(forms.convert))


def test_fields_mean_the_same_directly_and_in_their_group() -> None:
    direct = WHERE | {"workers": 2, "cast": ["*=bfloat16"], "memory_limit": "1GiB"}
    grouped = WHERE | {
        "resources": {"workers": 2, "memory_limit": "1GiB"},
        "parameters_and_their_changes": {"cast": ["*=bfloat16"]},
        "output": None,
        "checks": {},
    }
    assert ungrouped(ApprovedConversionRequest, direct) == ungrouped(ApprovedConversionRequest, grouped) == direct
    assert ungrouped(ApprovedConversionRequest, direct | {"resources": {"workers": 2}}) == direct
    with_defaults = {"workers": 0, "memory_limit": "2GiB", "cast": []}
    assert ungrouped(ApprovedConversionRequest, with_defaults | grouped) == direct


def test_a_field_given_twice_is_refused_by_name() -> None:
    ended: State[Any] = forms.convert_with_approval.fn(**WHERE, workers=2, resources={"workers": 3})
    assert ended.is_failed()
    assert ended.message == (
        "workers: is given directly, and differently in resources: leave one of them out, or fill in a new form"
    )


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"worker": 3}, "resources: has no field 'worker'; its fields are workers, memory_limit, bandwidth_limit"),
        ([3], "resources: must be a mapping of its fields, not list"),
    ],
)
def test_a_wrong_group_is_refused_by_name(group: object, message: str) -> None:
    ended: State[Any] = forms.convert_with_approval.fn(**WHERE, resources=group)
    assert ended.is_failed()
    assert str(ended.message).startswith(message)


WRONG = [
    ("source", ""),
    ("source", "s3://bob:hunter2@bucket/run"),
    ("target", "https://host/x?X-Amz-Signature=abc"),
    ("source_strategy", "s3://bob:hunter2@bucket/run"),
    ("step", "newest"),
    ("ranks", "a-b"),
    ("memory_limit", "2 apples"),
    ("prefix", "../up"),
    ("prefix", "a/b"),
    ("source_storage", '{"key": "hunter2"}'),
    ("dask_scheduler", "somewhere"),
    ("format", "pickle"),
    ("workers", 5000),
    ("source", "https://hunter2@host/run"),
    ("source", "s3://AK%3Ahunter2@bucket/run"),
    ("target", "https://host/x?token=hunter2"),
    ("changes", "https://host/x?x-obs-security-token=hunter2"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_the_server_refuses_what_is_plainly_wrong(name: str, value: object) -> None:
    [error] = validate(WHERE | {name: value}, form_schema(forms.convert))
    assert list(error.absolute_path) == [name]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_the_server_refuses_it_directly_and_in_a_group_at_the_field(name: str, value: object) -> None:
    schema = form_schema(forms.convert_with_approval)
    [error] = validate(WHERE | {name: value}, schema)
    assert list(error.absolute_path) == [name]
    for group in groups_of(ApprovedConversionRequest):
        if name in group.fields:
            [error] = validate(WHERE | {group.parameter: {name: value}}, schema)
            assert list(error.absolute_path) == [group.parameter, name]


def test_the_server_refuses_unknown_fields_of_a_group() -> None:
    [error] = validate(WHERE | {"checks": {"workers": 2}}, form_schema(forms.convert_with_approval))
    assert list(error.absolute_path) == ["checks"]


@pytest.mark.parametrize("form", [forms.verify, forms.merge, forms.compare], ids=["verify", "merge", "compare"])
def test_the_server_refuses_secrets_and_so_stores_none(form: Flow[..., Any]) -> None:
    schema = form_schema(form)
    right = dict.fromkeys(schema.get("required", ()), "/data/x")
    assert not validate(right, schema)
    for name in schema.get("required", ()):
        assert validate(right | {name: "s3://bob:hunter2@bucket/run"}, schema)
    for name in schema["properties"]:
        if "storage" in name or "_key" in name:
            assert validate(right | {name: "hunter2"}, schema)


@pytest.mark.parametrize(
    "fields",
    [
        {"step": "10_5_breakpoint", "ranks": " 0-3, 7", "memory_limit": "1.5 gib", "prefix": "net-"},
        {"ranks": "", "memory_limit": "500MB", "prefix": "", "step": ""},
        {"source": "s3://bucket/run@5/x", "target": "obs://host:443/bucket", "source_strategy": "/a b/é.ckpt"},
        {"source_storage": "block:training-bucket", "target_storage": "file:/run/secrets/s3.json"},
        {"dask_scheduler": "tcp://10.0.0.5:8786", "workers": 1024, "format": "ckpt"},
    ],
)
def test_the_schema_refuses_nothing_that_is_right(fields: dict[str, Any]) -> None:
    ConversionRequest.model_validate(WHERE | fields)
    assert not validate(WHERE | fields, form_schema(forms.convert))


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_what_the_schema_refuses_the_request_refuses_too(name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        ConversionRequest.model_validate(WHERE | {name: value})


RELATIVE = ["out", "./out", "../out", "a b/c", "file://out", "file:/out", "local://out"]
ABSOLUTE = ["/out", "~/out", "s3://bucket/out", "file:///out", "memory://out"]


def _places(form: Flow[..., Any]) -> list[str]:
    alone = PLACES - {"like", "training_config", "config_json"}  # which have a meaning only with other fields
    return [name for name in fields_of(form) if name in alone]


@EACH_FORM
def test_the_server_refuses_a_mistyped_field_by_name(form: Flow[..., Any], model: type[BaseModel]) -> None:
    schema = form_schema(form)
    right = dict.fromkeys(schema.get("required", ()), "/data/x")
    assert not validate(right, schema)
    with pytest.raises(SchemaError, match=r"properties are not allowed \('tarjet' was unexpected\)"):
        validate(right | {"tarjet": "/data/y"}, schema, raise_on_error=True, ignore_required=True)


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_the_server_shows_no_regular_expression(name: str, value: object) -> None:
    for form in (forms.convert, forms.convert_expert, forms.convert_with_approval):
        for error in validate(WHERE | {name: value}, form_schema(form)):
            assert "does not match" not in error.message
            assert "hunter2" not in error.message


@EACH_FORM
def test_a_deployed_run_is_refused_a_relative_path_at_the_field(form: Flow[..., Any], model: type[BaseModel]) -> None:
    schema = form_schema(form)
    right = dict.fromkeys(schema.get("required", ()), "/data/x")
    right |= {"sign": "env:KEY"} if "sign" in model.model_fields else {}
    for name in _places(form):
        for place in RELATIVE:
            [error] = validate(right | {name: place}, schema)
            assert list(error.absolute_path) == [name]
            assert error.message.startswith(
                "'an absolute path such as /data/x, or a URL such as s3://bucket/x, without"
            )
            model.model_validate(right | {name: place})  # where it has a meaning it is taken
            ended: State[Any] = form.fn(**right | {name: place})
            title = model.model_fields[name].title
            assert ended.is_failed()
            assert str(ended.message).startswith(f"{title} {place!r}: a relative path, but a deployed run works in")
        for place in ABSOLUTE:
            assert not validate(right | {name: place}, schema)


@EACH_FORM
def test_a_deployed_run_is_refused_names_of_relative_files(form: Flow[..., Any], model: type[BaseModel]) -> None:
    schema = form_schema(form)
    right = dict.fromkeys(schema.get("required", ()), "/data/x")
    right |= {"sign": "env:KEY"} if "sign" in model.model_fields else {}
    names = [name for name in fields_of(form) if is_of_secret(name)]
    for name in names:
        assert validate(right | {name: "file:s3.json"}, schema)
        ended: State[Any] = form.fn(**right | {name: "file:s3.json"})
        assert f"{model.model_fields[name].title} 'file:s3.json': a relative path" in str(ended.message)
        for kept in ("file:/run/s3.json", "file:~/s3.json", "env:S3", "block:s3"):
            assert not validate(right | {name: kept}, schema)
    assert names or model is HistoryRequest  # which names nothing


@pytest.mark.parametrize("form", [forms.convert, forms.convert_with_approval, forms.convert_latest, forms.compare])
def test_a_preset_is_named_by_its_family_or_an_absolute_path(form: Flow[..., Any]) -> None:
    schema = form_schema(form)
    right = dict.fromkeys(schema.get("required", ()), "/data/x")
    for preset in ("", "qwen3", "deepseek3", "/data/own.yaml", "s3://bucket/own.yaml"):
        assert not validate(right | {"preset": preset}, schema)
        assert "a relative path" not in str(
            relative_places(form_model(form).model_validate(right | {"preset": preset}))
        )
    for preset in ("own.yaml", "presets/own.yaml", "s3://bob:hunter2@bucket/own.yaml"):
        [error] = validate(right | {"preset": preset}, schema)
        assert error.message.startswith("'the name of a preset, or the absolute path or URL of a changed one")


def form_model(form: Flow[..., Any]) -> type[BaseModel]:
    return next(model for each, model in FORMS if each is form)


def test_a_user_that_does_not_exist_has_no_home() -> None:
    ended: State[Any] = forms.verify.fn(target="~nobody-here/x")
    assert "Checkpoint '~nobody-here/x': a relative path" in str(ended.message)


def test_what_only_the_request_knows_is_told_by_the_fields_titles() -> None:
    ended: State[Any] = forms.convert.fn(**WHERE, memory_limit="1MiB", ranks="3-1")
    assert ended.is_failed()
    assert ended.message == "Memory limit '1MiB': must be at least 16MiB\nRanks '3-1': must be ranks such as 0-3,7"
    assert isinstance(ended.data, InputError)


def test_a_secret_is_not_repeated() -> None:
    ended: State[Any] = forms.verify.fn(target="/data/x", storage="hunter2")
    assert ended.is_failed()
    assert str(ended.message).startswith("Storage: must be env:NAME")
    assert "hunter2" not in str(ended.message)


@pytest.mark.parametrize("name", IDS)
def test_a_worker_finds_the_form_by_its_import_path(name: str) -> None:
    found: Flow[..., Any] = load_flow_from_entrypoint(f"reshard.deployments.forms.{name}")
    assert found.parameters == getattr(forms, name).parameters

"""The base of requests; builds them from loose options, and reports what is wrong with them in the user's words."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from reshard.core.errors import InputError
from reshard.core.options.written import plain
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.text.options import option, spelled
from reshard.core.text.secrets import carries_credentials, names_secret

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_QUOTED = re.compile(r"'([^']*)'")
_MEMBER = re.compile(r"<\w+\.\w+: ('[^']*')>")
"""A member of an enumeration, as pydantic shows it where only some are allowed."""
_MESSAGES = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "extra_forbidden": "there is no such option",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "missing": "is missing",
    "string_too_short": "must not be empty",
    "string_type": "must be a text",
}
"""pydantic's kind of error -> message in our words."""


class RequestModel(BaseModel):
    """What a user asks for; a field's title is its name, unless it has another one.

    Fields take what a program would write for them: see `reshard.core.options.written`.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        defer_build=True,
        field_title_generator=lambda name, _: name.replace("_", " ").capitalize(),
    )

    @field_validator("*", mode="before")
    @classmethod
    def _check_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false where a number is meant; pydantic takes them for 1 and 0."""
        if isinstance(plain(value), bool) and cls.model_fields[str(info.field_name)].annotation is int:
            raise ValueError("must be a whole number, not true or false")
        return value


Value = TypeVar("Value")


def only_with(*others: str) -> Callable[[type[BaseModel], Value, ValidationInfo], Value]:
    """The check that a field keeps its default unless one of other options is given, which come before it."""

    def check(cls: type[BaseModel], value: Value, info: ValidationInfo) -> Value:
        is_given = value != cls.model_fields[str(info.field_name)].default
        # what is wrong with the other option is reported already
        if is_given and not any(info.data.get(other, True) for other in others):
            raise ValueError(spelled(f"only valid with {' or '.join(map(option, others))}"))
        return value

    return check


Request = TypeVar("Request", bound=BaseModel)


def build_options(model: type[Request], name_of: Callable[[str], str] = str, /, **options: object) -> Request:
    """Build a request of any kind; an InputError names each wrong option by `name_of`, or as a keyword argument."""
    try:
        return model.model_validate(options)
    except ValidationError as error:
        raise InputError(describe_validation(error, name_of)) from error


def describe_validation(error: ValidationError, name_of: Callable[[str], str]) -> str:
    """Format what is wrong with a request, one line a field."""
    lines = []
    for detail in error.errors():
        # a name that is not text has no place
        name = str(detail["loc"][0] if detail["loc"] else detail["input"])
        # the input of what is missing is all the rest, and a secret is not repeated; what is not a name may be one
        secret = names_secret(name) or carries_credentials(str(detail["input"]))
        # an error in a list names the item itself
        hidden = detail["type"] == "missing" or secret or isinstance(detail["input"], list | tuple)
        given = "" if hidden else f" {detail['input']!r}"
        meant = did_you_mean(str(detail["input"]), _choices(detail)) if given else ""
        lines.append(f"{name_of(name)}{given}: {_problem(detail)}{meant}")
    return "\n".join(lines)


def _problem(detail: "ErrorDetails") -> str:
    message = _MESSAGES.get(detail["type"])
    if message:
        return message.format_map(detail.get("ctx", {}))
    text = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return _MEMBER.sub(r"\1", text)


def _choices(detail: "ErrorDetails") -> list[str]:
    """Return the values that a field of a few values may have; none for other fields."""
    return _QUOTED.findall(str(detail.get("ctx", {}).get("expected", "")))

"""How a layout declares the options of targets, and how requests are composed of these declarations.

Each layout has a `LayoutOptions` in its package. The fields of its models become fields of requests, and with that
options of the command, fields of forms and of job files, and keywords of functions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import new_class
from typing import Any, TypeVar

from msgspec import field
from pydantic import BaseModel, ValidationInfo, field_validator

from reshard.core.options.validation import RequestModel
from reshard.core.runtime.records import Record
from reshard.core.text.options import option, spelled

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")

_LAYOUT = "layout"


class LayoutOptions(Record):
    """What a layout says about the options of a target.

    Attributes:
        name: the value of `layout`.
        description: what the value means, for the description of `layout`.
        model: its own options. URLs among them are opened with the storage options of the source.
        one_target: its own options of a conversion into one target, which scheduled conversions decide themselves.
        suffix: suffix of the only kind of files that it has; empty: `format` decides.
        refused: options of all layouts that do not go with it -> why, and what to do.
    """

    name: str
    description: str
    model: type[RequestModel] = RequestModel
    one_target: type[RequestModel] = RequestModel
    suffix: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its own options, in the order in which they are shown."""
        return *self.one_target.model_fields, *self.model.model_fields

    def directory(self, target: str, options: BaseModel) -> str:
        """Return the URL of the directory with the files of a target, whose options are known."""
        return target

    def reference(self, options: BaseModel) -> str:
        """Return the URL of the checkpoint that a target is modelled on; empty if there is none."""
        return ""

    def modelled_on(self, options: BaseModel, url: str) -> dict[str, str]:
        """Return the options by which a target is modelled on the Hugging Face directory that its source brings.

        They are none if the request names another one.
        """
        return {}

    def padded_vocabulary(self, options: BaseModel) -> int:
        """Return how many rows embedding and head get, padding included; 0: those of the vocabulary."""
        return 0

    def check_for_all_steps(self, target: str) -> None:
        """Raise ValueError if a target cannot be the directory of the conversions of all steps."""

    def options_of_step(self, target: str, source: str, step: str) -> dict[str, str]:
        """Return the options that a step's conversion has if `target` is the directory of all conversions.

        Raises:
            InputError: the step cannot be converted to this layout.
        """
        return {"target": f"{target.rstrip('/')}/{step}"}


def own_options(request: BaseModel, model: type[Model]) -> Model:
    """Return a request as an object with a layout's own options, which are fields of every such request."""
    if not isinstance(request, model):
        raise TypeError(f"{type(request).__name__} is not composed with {model.__name__}")
    return request


def with_options_of(layouts: Sequence[LayoutOptions]) -> Callable[[type[Model]], type[Model]]:
    """Decorate a part of requests: the options of all layouts follow its own, and are checked against `layout`."""

    def composed(part: type[Model]) -> type[Model]:
        return _composed(part, [each.model for each in layouts], _checked_against(layouts))

    return composed


def with_one_target_options_of(layouts: Sequence[LayoutOptions]) -> Callable[[type[Model]], type[Model]]:
    """Decorate a request for one target: the options of layouts that only such a request has follow its own."""

    def composed(request: type[Model]) -> type[Model]:
        return _composed(request, [each.one_target for each in layouts])

    return composed


def _composed(part: type[Model], models: Sequence[type[BaseModel]], *checks: type[BaseModel]) -> type[Model]:
    """A class in place of `part` with the fields of all models after its own.

    pydantic takes fields and validators from the last base to the first.
    """
    own = dict.fromkeys(each for each in models if each is not RequestModel)  # layouts may share a model, or extend it
    own = {each: None for each in own if not any(each is not other and issubclass(other, each) for other in own)}
    bases = (*own, *checks, part)
    about = {name: getattr(part, name) for name in ("__doc__", "__module__", "__qualname__")}
    composed: type[Model] = new_class(part.__name__, bases, exec_body=lambda body: body.update(about))
    return composed


def _checked_against(layouts: Sequence[LayoutOptions]) -> type[RequestModel]:
    """A base of requests that refuses options that do not go with the layout."""
    by_name = {each.name: each for each in layouts}
    owners = {name: [each for each in layouts if name in each.names] for each in layouts for name in each.names}

    class Checked(RequestModel):
        @field_validator("*")
        @classmethod
        def _check_goes_with_layout(cls, value: Value, info: ValidationInfo) -> Value:
            name = str(info.field_name)
            if name == _LAYOUT:
                _check_before(cls, by_name[str(value)], info.data)
            elif _LAYOUT in info.data and value != cls.model_fields[name].default:
                _check_after(name, by_name[info.data[_LAYOUT]], owners.get(name, ()))
            return value

    return Checked


def _check_before(request: type[BaseModel], layout: LayoutOptions, given: Mapping[str, Any]) -> None:
    """Raise ValueError if options that come before the layout do not go with it."""
    for name, why in layout.refused.items():
        if name in given and given[name] != request.model_fields[name].default:
            raise ValueError(spelled(why))
    of_files = (None, request.model_fields["format"].default, layout.suffix.removeprefix("."))
    if layout.suffix and given.get("format") not in of_files:
        raise ValueError(spelled(f"writes {layout.suffix} files: leave out {option('format')}"))


def _check_after(name: str, layout: LayoutOptions, owners: Sequence[LayoutOptions]) -> None:
    """Raise ValueError if an option that comes after the layout does not go with it."""
    if name in layout.refused:
        raise ValueError(spelled(layout.refused[name]))
    if owners and layout not in owners:
        raise ValueError(spelled(f"only valid with {' or '.join(option('layout', each.name) for each in owners)}"))


def described(layouts: Sequence[LayoutOptions]) -> str:
    """Return what each value of `layout` means."""
    return " ".join(f"{each.name}: {each.description}" for each in layouts)


def own_names(layouts: Sequence[LayoutOptions]) -> Iterable[str]:
    """Return the names of the layouts' own options, in the order in which they are shown."""
    return dict.fromkeys(name for each in reversed(layouts) for name in each.names)

"""The steps of declared changes: rules in order, each of which sees the names and shapes that the one before left.

Names are given by templates (see `reshard.core.changes.templates`). Every number may be an expression of the document's
variables, which are replaced when the document is read. A step that fits nothing is an error unless it is `optional`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from reshard.core.changes.expressions import whole_number
from reshard.core.changes.rules import Axis, Count, Length, Name, Rule, Several, shares_of
from reshard.core.changes.templates import Template, parse_template, parse_templates
from reshard.core.runtime.wording import quoted

_NUMBERS = frozenset({"axis", "parts", "groups", "count", "start", "stop", "length", "axes", "block", "number"})
_TEMPLATES = frozenset({"parameters", "into", "to", "scale", "copy_of"})


class StepRule(Rule):
    """A step of one kind; `optional`: it may fit nothing."""

    optional: bool = False

    @property
    def templates(self) -> tuple[Template, ...]:
        """Its templates, those that names have to fit first."""
        return parse_templates(tuple(self._texts()))

    def _texts(self) -> Iterator[str]:
        raise NotImplementedError

    @model_validator(mode="after")
    def _check_templates(self) -> "StepRule":
        self._check_names(self.templates)
        return self

    def _check_names(self, templates: tuple[Template, ...]) -> None:
        """Check the placeholders; ValueError if they do not go together."""
        first, *others = templates
        for other in others:
            if other.names != first.names:
                raise ValueError(
                    f"{quoted(str(first))} and {quoted(str(other))} have different placeholders: "
                    f"{', '.join(sorted(first.names ^ other.names))}"
                )


class _OfOne(StepRule):
    """A step that leaves the name; `parameters` is a template."""

    parameters: Name

    def _texts(self) -> Iterator[str]:
        yield self.parameters


class RenameStep(_OfOne):
    """A new name."""

    to: Name

    def _texts(self) -> Iterator[str]:
        yield from (self.parameters, self.to)

    def __str__(self) -> str:
        return f"the rename of {quoted(self.parameters)}"


class SplitStep(_OfOne):
    """A fused parameter becomes several along an axis, as with `SplitRule`."""

    into: Annotated[Several[Name], Field(min_length=2)]
    axis: Axis = 0
    parts: Several[Length] = ()
    groups: Count = 1

    def _texts(self) -> Iterator[str]:
        yield from (self.parameters, *self.into)

    @model_validator(mode="after")
    def _check_parts(self) -> "SplitStep":
        _check_parts(self.parts, self.into, "into")
        return self

    @property
    def shares(self) -> tuple[int, ...]:
        """Shares of the axis that each part gets."""
        return shares_of(self.parts, len(self.into))

    def __str__(self) -> str:
        return f"the split of {quoted(self.parameters)}"


class JoinStep(StepRule):
    """Several parameters become one along an axis; `parts` are their shares of it, by default equal ones."""

    parameters: Annotated[Several[Name], Field(min_length=2)]
    into: Name
    axis: Axis = 0
    parts: Several[Length] = ()
    groups: Count = 1

    def _texts(self) -> Iterator[str]:
        yield from (*self.parameters, self.into)

    @model_validator(mode="after")
    def _check_parts(self) -> "JoinStep":
        _check_parts(self.parts, self.parameters, "parameters")
        return self

    @property
    def shares(self) -> tuple[int, ...]:
        """Shares of the axis that each part has."""
        return shares_of(self.parts, len(self.parameters))

    def __str__(self) -> str:
        return f"the join into {quoted(self.into)}"


class TransposeStep(_OfOne):
    """Axes are reordered: reversed, or by `axes` (axis i was axis `axes[i]`)."""

    axes: Several[Axis] = ()

    @field_validator("axes")
    @classmethod
    def _check_axes(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return check_permutation(value)

    def __str__(self) -> str:
        return f"the transposition of {quoted(self.parameters)}"


class _Numbered(_OfOne):
    """A step between one parameter and a numbered family; the family's index is the one further placeholder."""

    into: Name
    count: Count

    def _texts(self) -> Iterator[str]:
        yield from (self.parameters, self.into)


class StackStep(_Numbered):
    """A numbered family of `count` parameters becomes one with a new first axis, in the order of the numbers."""

    def _check_names(self, templates: tuple[Template, ...]) -> None:
        family, one = templates
        check_index(family, one, required=True)

    def __str__(self) -> str:
        return f"the stack into {quoted(self.into)}"


class UnstackStep(_Numbered):
    """Each of the `count` indexes of the first axis becomes a parameter without that axis."""

    def _check_names(self, templates: tuple[Template, ...]) -> None:
        one, family = templates
        check_index(family, one, required=True)

    def __str__(self) -> str:
        return f"the unstacking of {quoted(self.parameters)}"


class MergeStep(_OfOne):
    """The first two axes, of which the first has `count` elements, become one: `[E, H, F]` -> `[E * H, F]`."""

    count: Count

    def __str__(self) -> str:
        return f"the merge of axes of {quoted(self.parameters)}"


class DivideStep(_OfOne):
    """The first axis becomes two, the first of which has `count` elements: `[E * H, F]` -> `[E, H, F]`."""

    count: Count

    def __str__(self) -> str:
        return f"the division of the first axis of {quoted(self.parameters)}"


class SliceStep(_OfOne):
    """Elements `start` to `stop` of an axis are kept; the others are lost, so there is no inverse."""

    axis: Axis = 0
    start: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    stop: Length

    @model_validator(mode="after")
    def _check_order(self) -> "SliceStep":
        if self.start >= self.stop:
            raise ValueError(f"'start' is {self.start}, 'stop' {self.stop}: nothing would be left")
        return self

    def __str__(self) -> str:
        return f"the slice of {quoted(self.parameters)}"


class PadStep(_OfOne):
    """An axis gets `length` elements: its last one is there again, as Megatron-LM fills up a vocabulary."""

    axis: Axis = 0
    length: Length

    def __str__(self) -> str:
        return f"the padding of {quoted(self.parameters)}"


class RepeatStep(_OfOne):
    """A parameter is written again under the name `to`; with an index in it, `count` times, from 0 on."""

    to: Name
    count: Count = 1

    def _texts(self) -> Iterator[str]:
        yield from (self.parameters, self.to)

    def _check_names(self, templates: tuple[Template, ...]) -> None:
        one, family = templates
        check_index(family, one, required=self.count > 1)

    def __str__(self) -> str:
        return f"the repetition of {quoted(self.parameters)}"


class ZerosStep(_OfOne):
    """A new parameter of zeros, under the name `to`: like another one, but for the `length` of an axis, if it is given.

    What it has of the other one is its dtype and sharding, so it has no inverse.
    """

    to: Name
    axis: Axis = 0
    length: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0

    def _texts(self) -> Iterator[str]:
        yield from (self.parameters, self.to)

    def __str__(self) -> str:
        return f"the zeros {quoted(self.to)}"


class DropStep(_OfOne):
    """Parameters that are copies of `copy_of` are left out, once their bytes are known to be equal.

    With an index in `parameters` there are `count` of them, from 0 on.
    """

    copy_of: Name
    count: Count = 1

    def _texts(self) -> Iterator[str]:
        yield from (self.parameters, self.copy_of)

    def _check_names(self, templates: tuple[Template, ...]) -> None:
        family, one = templates
        check_index(family, one, required=self.count > 1)

    def __str__(self) -> str:
        return f"the drop of {quoted(self.parameters)}"


class AddStep(_OfOne):
    """A number is added to the values of weights, and of float32 copies of them; other states are as they were."""

    number: Annotated[int, Field(strict=True, gt=-(2**24), lt=2**24)]

    def __str__(self) -> str:
        return f"the addition to {quoted(self.parameters)}"


class DequantizeStep(_OfOne):
    """Block-scaled weights become `dtype`: each value times its block's scale, in float32, rounded to the nearest.

    Fits parameters of the element type F8_E4M3 that have a `scale`, a float32 matrix with an element for each block;
    the blocks at the ends of axes may be smaller. Others are left as they are. It has no inverse.
    """

    scale: Name
    block: Annotated[Several[Length], Field(min_length=2, max_length=2)] = (128, 128)
    dtype: Literal["bfloat16"] = "bfloat16"

    def _texts(self) -> Iterator[str]:
        yield from (self.parameters, self.scale)

    def __str__(self) -> str:
        return f"the dequantization of {quoted(self.parameters)}"


class UnpackStep(_OfOne):
    """Experts in MXFP4 become bfloat16, under the name `to`: two values a byte, each times its group's power of two.

    `parameters` are of bytes, `[experts, rows, groups, 16]`, `scale` of theirs, `[experts, rows, groups]`; the result
    is `[experts, 32 * groups, rows]`, as transformers unpacks it. It has no inverse.
    """

    scale: Name
    to: Name

    def _texts(self) -> Iterator[str]:
        yield from (self.parameters, self.scale, self.to)

    def __str__(self) -> str:
        return f"the unpacking of {quoted(self.parameters)}"


AnyStep = (
    RenameStep
    | SplitStep
    | JoinStep
    | TransposeStep
    | StackStep
    | UnstackStep
    | MergeStep
    | DivideStep
    | SliceStep
    | PadStep
    | RepeatStep
    | ZerosStep
    | DropStep
    | AddStep
    | DequantizeStep
    | UnpackStep
)


class Step(Rule):
    """One step: a mapping with its kind as the only key."""

    rename: RenameStep | None = None
    split: SplitStep | None = None
    join: JoinStep | None = None
    transpose: TransposeStep | None = None
    stack: StackStep | None = None
    unstack: UnstackStep | None = None
    merge: MergeStep | None = None
    divide: DivideStep | None = None
    slice: SliceStep | None = None
    pad: PadStep | None = None
    repeat: RepeatStep | None = None
    zeros: ZerosStep | None = None
    drop: DropStep | None = None
    add: AddStep | None = None
    dequantize: DequantizeStep | None = None
    unpack: UnpackStep | None = None

    @model_validator(mode="after")
    def _check_one(self) -> "Step":
        # records have all kinds, the others as null
        if len(self._given) != 1:
            raise ValueError(f"must have one key, its kind: {', '.join(_KINDS)}")
        return self

    @property
    def rule(self) -> AnyStep:
        """The step itself."""
        return self._given[0]

    @property
    def _given(self) -> list[AnyStep]:
        rules = (getattr(self, name) for name in type(self).model_fields)
        return [rule for rule in rules if rule is not None]


_KINDS = tuple(Step.model_fields)


def with_variables(steps: Any, variables: Mapping[str, int]) -> Any:
    """Replace variables and expressions in steps, as a document has them; malformed steps are left for validation.

    Raises:
        ValueError: an expression is malformed, or names no variable.
    """
    if not isinstance(steps, list | tuple):
        return steps
    return [_step_with_variables(number, step, variables) for number, step in enumerate(steps, 1)]


def check_permutation(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Check that axes are in some order; ValueError if not."""
    if sorted(axes) != list(range(len(axes))):
        raise ValueError(f"must name each axis once, from 0 on, not {list(axes)}")
    return axes


def check_index(family: Template, one: Template, *, required: bool) -> None:
    """Check that a family's template has one placeholder more, a number, at most once; ValueError if not."""
    further = family.names - one.names
    lacking = one.names - family.names
    texts = any(each.texts for each in family.placeholders if each.name in further)
    if lacking or texts or (len(further) != 1 and (required or further)):
        raise ValueError(
            f"{quoted(str(family))} must have the placeholders of {quoted(str(one))} and one more, a number"
        )


def index_of(family: Template, one: Template) -> str:
    """Return the name of a family's index; empty without one."""
    return next(iter(family.names - one.names), "")


def _step_with_variables(number: int, step: Any, variables: Mapping[str, int]) -> Any:
    if isinstance(step, Step):  # its variables were replaced
        return step
    if not isinstance(step, dict) or len(step) != 1:
        return step
    [(kind, fields)] = step.items()
    if not isinstance(fields, dict):
        return step

    def replaced(field: str, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [replaced(field, each) for each in value]
        if not isinstance(value, str):
            return value
        try:
            if field in _NUMBERS:
                return whole_number(value, variables)
            return str(parse_template(value, variables)) if field in _TEMPLATES else value
        except ValueError as error:
            raise ValueError(f"in step {number}, {kind}.{field}: {error}") from error

    return {kind: {field: replaced(field, value) for field, value in fields.items()}}


def _check_parts(parts: tuple[int, ...], names: tuple[str, ...], field: str) -> None:
    if parts and len(parts) != len(names):
        raise ValueError(f"'parts' has {len(parts)} numbers, {field!r} {len(names)} names")
    if len(set(names)) < len(names):
        raise ValueError(f"{field!r} has a name twice")

"""Rows of presets: a parameter under MindFormers' name and under Hugging Face's, and how it lies in each."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from reshard.core.changes.rules import Name, Rule
from reshard.core.runtime.wording import quoted

EXPERT = "e"
"""The placeholder of a stack's index."""

TemplateText = Name


def _with_shapes(value: Any) -> Any:
    return {value: ()} if isinstance(value, str) else value


Shapes = Annotated[dict[TemplateText, tuple[str, ...]], Field(min_length=1)]


class Regrouping(Rule):
    """The parts that a parameter's rows consist of, which MindFormers and Hugging Face have in different groups.

    Attributes:
        parts: rows of each part in one of Hugging Face's groups.
        mf: number of groups in MindFormers' rows, each of which has an equal share of every part.
        hf: the same in Hugging Face's.
        axis: the axis of Hugging Face's shape that is regrouped, if it is not that of rows.
    """

    parts: Annotated[tuple[str, ...], Field(min_length=2)]
    mf: str = "1"
    hf: str = "1"
    axis: int = Field(default=0, ge=0)


class Positions(Rule):
    """Heads with rows that positions rotate: MindFormers has these last, in pairs, Hugging Face first, in halves.

    Attributes:
        head: rows of a head.
        rows: those of them that positions rotate.
    """

    head: str
    rows: str


class Row(Rule):
    """A parameter of MindFormers, and the one or several that it is for Hugging Face, or several of one.

    Attributes:
        mf: its name; several with their shapes, if they are one for Hugging Face. If it is left out, Hugging Face's.
        hf: Hugging Face's name -> shape there.
        groups: of several side by side along axis 0, the rows are in so many groups, each of which has an equal share
            of every part.
        rope: a name of `mf` or `hf` -> rows of a head. In each head MindFormers has Hugging Face's even rows, then its
            odd ones.
        regrouped: a name of `hf` -> its parts, in other groups than in MindFormers.
        positions: the rows are heads, whose rows for positions MindFormers has in another place and order.
        stacked: MindFormers has so many in one tensor, along a new first axis: those of the index that `hf` has
            besides, or all of a tensor that has them so already.
        transposed: each is transposed in MindFormers.
        merged: the first two axes of the stack are one.
        boxed: MindFormers' stack has axes of one element before the first axis and after it.
        added: this number is added to MindFormers' values.
        dtype: of this dtype, whatever the others are cast to.
        optional: it may be absent.
        required_if: it may be absent only if this number is 0: a variable that counts names.
        padded: Hugging Face's side has rows of padding after those of its shape.
        beside: the row counts in layers that have this parameter, too.
        only_in: the row counts below these prefixes of layers only, as MindFormers has them; empty: below all.
        refused: why there is no such parameter on the other side, if `when` holds.
        part: each layer has one of the rows of this part, or all of one variant.
        variant: rows of a part that belong together.
        when: switch -> the value for which the row counts.
    """

    mf: Annotated[Shapes, BeforeValidator(_with_shapes)]
    hf: Shapes
    groups: str = ""
    rope: dict[TemplateText, str] = Field(default={})
    regrouped: dict[TemplateText, Regrouping] = Field(default={})
    positions: Positions | None = None
    stacked: str = ""
    transposed: bool = False
    merged: bool = False
    boxed: bool = False
    added: int = 0
    dtype: Literal["", "float16", "bfloat16", "float32", "float64"] = ""
    optional: bool = False
    required_if: str = ""
    padded: bool = False
    beside: str = ""
    only_in: tuple[TemplateText, ...] = ()
    refused: str = ""
    part: str = ""
    variant: str = ""
    when: dict[str, str] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _with_own_name(cls, value: Any) -> Any:
        """Rows without `mf` have the same name on both sides."""
        if not isinstance(value, dict) or "mf" in value or not isinstance(value.get("hf"), dict):
            return value
        return {**value, "mf": dict.fromkeys(value["hf"], ())}

    @model_validator(mode="after")
    def _check(self) -> "Row":
        if (self.merged or self.boxed) and not self.stacked:
            raise ValueError(f"only a stack has axes to be '{'merged' if self.merged else 'boxed'}'")
        if len(self.mf) > 1 and len(self.hf) > 1:
            raise ValueError("'mf' and 'hf' cannot both list several names")
        if len({len(shape) for shape in self.hf.values()}) > 1:
            raise ValueError("the shapes of 'hf' have different numbers of axes")
        if len(self.mf) > 1 and not all(self.mf.values()):
            raise ValueError("several of 'mf' need their shapes: {name: [rows, columns], …}")
        if self.variant and not self.part:
            raise ValueError("'variant' is one of a 'part'")
        unknown = self.rope.keys() - self.parts.keys()
        if unknown:
            raise ValueError(f"'rope' has {quoted(min(unknown))}, which is none of the parts that the others become")
        if self.rope and (self.stacked or self.transposed):
            raise ValueError("'rope' is for matrices and vectors of one layer, as they are")
        if not all(self.parts[name] for name in self.rope):
            raise ValueError("'rope' needs the shapes of the parts that it is for")
        if self.added and (len(self.mf) > 1 or len(self.hf) > 1 or self.stacked):
            raise ValueError("'added' is for one parameter that is one parameter on the other side")
        if self.positions and (len(self.mf) > 1 or len(self.hf) > 1 or self.stacked or not self._only_shape):
            raise ValueError("'positions' is for one parameter that is one parameter, with its shape, of 'hf'")
        if any(len(self.hf.get(name, ())) <= each.axis for name, each in self.regrouped.items()):
            raise ValueError("'regrouped' is for names of 'hf' with their shapes, of which 'axis' is an axis")
        if self.regrouped and (len(self.mf) > 1 or self.stacked or self.transposed):
            raise ValueError("'regrouped' is for one parameter of 'mf', neither 'stacked' nor 'transposed'")
        if len(self.parts) > 1 and any(shape and len(shape) <= self.rows_axis for shape in self.parts.values()):
            raise ValueError("the parts of a whole stack have shapes of the stack's axis, rows and columns")
        return self

    @property
    def name(self) -> str:
        """MindFormers' name, for messages; of several the first."""
        return next(iter(self.mf))

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """The side with several names; Hugging Face's if each has one."""
        return self.mf if len(self.mf) > 1 else self.hf

    @property
    def _only_shape(self) -> tuple[str, ...]:
        """The shape of the first of `hf`."""
        return next(iter(self.hf.values()))

    @property
    def is_apart(self) -> bool:
        """True if Hugging Face has each of a stack as a parameter of its own."""
        return bool(self.stacked) and f"{{{EXPERT}}}" in next(iter(self.hf))

    @property
    def rows_axis(self) -> int:
        """The axis of rows, in the shapes of `parts`."""
        return 1 if self.stacked and not self.is_apart else 0

    def below(self, mf: str, hf: str) -> "Row":
        """Return the row with whole names: below prefixes of a layer."""

        def whole(names: dict[str, Any], prefix: str) -> dict[str, Any]:
            return {f"{prefix}.{name}": value for name, value in names.items()}

        prefix = mf if len(self.mf) > 1 else hf
        beside = f"{mf}.{self.beside}" if self.beside else ""
        return self.model_copy(
            update={
                "mf": whole(self.mf, mf),
                "hf": whole(self.hf, hf),
                "rope": whole(self.rope, prefix),
                "regrouped": whole(self.regrouped, hf),
                "beside": beside,
            }
        )

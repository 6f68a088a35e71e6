"""Presets: documents with the names and layouts of a model family, as MindFormers and as Hugging Face have them.

A preset is a table. Each row has a parameter of MindFormers and what it is for Hugging Face: one parameter or several,
with their shapes, and how they lie in it. Those of the package are in `presets/` beside this module; a user may print
one, change the copy and name it in its place.

Megatron's names are a world of a preset, too: nearly those of MindFormers, with switches settled. Where it spells the
same parameter in several ways, a table of `spellings/`, of the same form, leads from the world's names to each of them.
"""

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from reshard.core.changes.expressions import VariableName
from reshard.core.changes.option_types import is_own_preset
from reshard.core.changes.rules import Name, Rule, Several
from reshard.core.changes.templates import parse_template
from reshard.core.changes.training_config import GENERATIONS
from reshard.core.errors import InputError
from reshard.core.reports.blocks import Block, Table
from reshard.core.reports.report import Report
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import listed, quoted
from reshard.core.text.printing import listed_lines

MINDFORMERS = "MindFormers"
"""The program whose names worlds have, unless they say otherwise."""

_SUFFIX = ".yaml"
_WEIGHT = ".weight"
_MAX_ROWS = 2**13
"""Of one world of names, those of each kind of layer and of adapters included; families have some 200."""
_EXPERT = "e"
"""The placeholder of a stack's index."""


def _several(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _of_all_generations(value: Any) -> Any:
    return {"": value} if isinstance(value, str) else value


def _with_shapes(value: Any) -> Any:
    return {value: ()} if isinstance(value, str) else value


TemplateText = Name
Expressions = Annotated[tuple[str, ...], BeforeValidator(_several)]
Shapes = Annotated[dict[TemplateText, tuple[str, ...]], Field(min_length=1)]


class Row(Rule):
    """A parameter of MindFormers, and the one or several that it is for Hugging Face, or several of one.

    Attributes:
        mf: its name; several with their shapes, if they are one for Hugging Face.
        hf: Hugging Face's name -> shape there.
        groups: of several side by side along axis 0, the rows are in so many groups, each of which has an equal share
            of every part.
        rope: a name of `mf` or `hf` -> rows of a head. In each head MindFormers has Hugging Face's even rows, then its
            odd ones.
        stacked: MindFormers has so many in one tensor, along a new first axis: those of the index that `hf` has
            besides, or all of a tensor that has them so already.
        transposed: each is transposed in MindFormers.
        merged: the first two axes of the stack are one.
        boxed: MindFormers' stack has axes of one element before the first axis and after it.
        dtype: of this dtype, whatever the others are cast to.
        optional: it may be absent.
        padded: Hugging Face's side has rows of padding after those of its shape.
        beside: the row counts in layers that have this parameter, too.
        part: each layer has one of the rows of this part, or all of one variant.
        variant: rows of a part that belong together.
        when: switch -> the value for which the row counts.
    """

    mf: Annotated[Shapes, BeforeValidator(_with_shapes)]
    hf: Shapes
    groups: str = ""
    rope: dict[TemplateText, str] = Field(default={})
    stacked: str = ""
    transposed: bool = False
    merged: bool = False
    boxed: bool = False
    dtype: Literal["", "float16", "bfloat16", "float32", "float64"] = ""
    optional: bool = False
    padded: bool = False
    beside: str = ""
    part: str = ""
    variant: str = ""
    when: dict[str, str] = Field(default={})

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
        if self.rope and not all(self.parts[name] for name in self.rope):
            raise ValueError("'rope' needs the shapes of the parts that it is for")
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
    def is_apart(self) -> bool:
        """True if Hugging Face has each of a stack as a parameter of its own."""
        return bool(self.stacked) and f"{{{_EXPERT}}}" in next(iter(self.hf))

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
                "beside": beside,
            }
        )


class CopyRow(Rule):
    """A parameter that Hugging Face has once more: a copy `of` another, for each index below `count`."""

    of: TemplateText
    count: str


class StatePrefixes(Rule):
    """Prefixes of one state of the optimizer, on either side; of several the first is written."""

    mf: Annotated[Several[Name], Field(min_length=1)]
    hf: Annotated[Several[Name], Field(min_length=1)]


class Names(Rule):
    """The rows of one world of MindFormers' names, or of Megatron's.

    Attributes:
        like: the world whose rows these are, but for those with names that this one has rows of: one of the same
            preset, or of another, `PRESET/WORLD`.
        without: names of that world that this one lacks.
        switches: the values of switches that never have others in this world.
        spellings: the table of further spellings of this world's names; empty if each has one.
        whose: the program whose names these are.
        model: rows of whole names.
        layers: where layers are: MindFormers' prefix -> Hugging Face's.
        layer: rows below each of these prefixes.
        copies: Hugging Face's name -> what it is a copy of.
        adapters: names of LoRA's parameters, in place of `weight`: MindFormers' -> Hugging Face's. Those of matrices
            that are one parameter on either side, and lie alike, are known.
        states: prefixes of the optimizer's states that have other names on the other side.
        proof: as the preset's, where it is another.
    """

    like: str = ""
    without: tuple[Name, ...] = ()
    switches: dict[str, str] = Field(default={})
    spellings: Literal["", "megatron"] = ""
    whose: str = MINDFORMERS
    model: tuple[Row, ...] = ()
    layers: dict[TemplateText, TemplateText] = Field(default={})
    layer: tuple[Row, ...] = ()
    copies: dict[TemplateText, CopyRow] = Field(default={})
    adapters: dict[str, str] = Field(default={})
    states: tuple[StatePrefixes, ...] = ()
    proof: Literal["", "run", "read"] = ""

    @model_validator(mode="after")
    def _check(self) -> "Names":
        if not self.like and not (self.layers and (self.model or self.layer)):
            raise ValueError("needs rows, in 'model' and 'layer', and 'layers', or to be 'like' another world")
        if self.without and not self.like:
            raise ValueError("'without' is for names of the world that this one is 'like'")
        rows = (len(self.model) + len(self.layers) * len(self.layer)) * (1 + len(self.adapters))
        if rows > _MAX_ROWS:
            raise ValueError(
                f"{rows:,} rows, with those of each of its layers and adapters, are more than {_MAX_ROWS:,}, the limit"
            )
        return self

    def completed(self, base: "Names") -> "Names":
        """Return the world with the rows of the one that it is like.

        Raises:
            ValueError: that one lacks a name that this is without.
        """
        own = {name for row in (*self.model, *self.layer) for name in row.mf} | {*self.without}
        unknown = {*self.without}.difference(name for row in (*base.model, *base.layer) for name in row.mf)
        if unknown:
            raise ValueError(f"'without' has {quoted(min(unknown))}, which {quoted(self.like)} has no row of")

        def kept(rows: tuple[Row, ...]) -> Iterator[Row]:
            for row in rows:
                if own.isdisjoint(row.mf) and all(
                    self.switches.get(name, value) == value for name, value in row.when.items()
                ):
                    when = {name: value for name, value in row.when.items() if name not in self.switches}
                    yield row.model_copy(update={"when": when})

        return self.model_copy(
            update={
                "like": "",
                "without": (),
                "model": (*kept(base.model), *self.model),
                "layers": self.layers or base.layers,
                "layer": (*kept(base.layer), *self.layer),
                "copies": self.copies or base.copies,
            }
        )

    @property
    def rows(self) -> Iterator[tuple[str, Row]]:
        """All rows with whole names, each with MindFormers' prefix of its layer."""
        for prefix, row in self.rows_of_weights:
            yield prefix, row
            yield from ((prefix, each) for each in self._adapters_of(row))

    @property
    def rows_of_weights(self) -> Iterator[tuple[str, Row]]:
        """Those of weights, without adapters."""
        yield from (("", row) for row in self.model)
        for mf, hf in self.layers.items():
            yield from ((mf, row.below(mf, hf)) for row in self.layer)

    def _adapters_of(self, row: Row) -> Iterator[Row]:
        """The rows of LoRA's parameters of a row's matrix."""
        [mf, *other_mf], [(hf, shape), *other_hf] = row.mf, row.hf.items()
        is_plain = not (other_mf or other_hf or row.rope or row.stacked or row.transposed) and len(shape) == 2
        if is_plain and mf.endswith(_WEIGHT) and hf.endswith(_WEIGHT):
            for ours, theirs in self.adapters.items():
                names = {"mf": {f"{mf.removesuffix(_WEIGHT)}.{ours}": ()}}
                names |= {"hf": {f"{hf.removesuffix(_WEIGHT)}.{theirs}": ()}}
                yield Row.model_validate({**names, "optional": True, "when": row.when})


class Switch(Rule):
    """What a training's configuration decides and a checkpoint does not show, or shows by names or axes only.

    Attributes:
        about: what it decides.
        values: value -> what it means.
        shown_by: value -> a name that is there only then.
        axes_of: the value is the number of axes of the parameter with this name of MindFormers.
        default: what MindFormers does if the configuration does not say it, by generation of its configurations; under
            an empty name, in all of them. See `reshard.core.changes.training_config`.
        otherwise: the value where nothing says it: a choice that names or axes of the result show.
    """

    about: str
    values: Annotated[dict[str, str], Field(min_length=2)]
    shown_by: dict[str, TemplateText] = Field(default={})
    axes_of: str = ""
    default: Annotated[dict[str, str], BeforeValidator(_of_all_generations)] = Field(default={})
    otherwise: str = ""

    @model_validator(mode="after")
    def _check(self) -> "Switch":
        unknown = {*self.shown_by, *self.default.values(), *filter(None, [self.otherwise])} - self.values.keys()
        if unknown:
            raise ValueError(f"{quoted(min(unknown))} is not one of its 'values'")
        others = self.default.keys() - {"", *GENERATIONS}
        if others:
            raise ValueError(
                f"'default' has {quoted(min(others))}: MindFormers' generations are {listed([*GENERATIONS])}"
            )
        return self

    def default_of(self, generation: str) -> str:
        """Return the default in a generation of MindFormers' configurations; empty if it is not known."""
        return self.default.get(generation) or self.default.get("", "")

    def default_text(self, value: str) -> str:
        """Name the versions of MindFormers in which a value is the default; empty if it is in none."""
        versions = [GENERATIONS.get(each, "MindFormers") for each, default in self.default.items() if default == value]
        return "".join(f"; the default of {each}" for each in versions)


class LoadedName(Rule):
    """A parameter that loaders read by config.json, where rows do not tell it; in place of a row's of the same name.

    Attributes:
        shape: its shape; empty if config.json does not tell it.
        field: the field of config.json that asks for it; empty: every model of the family has it.
        default: what the field is where config.json lacks it.
        part: the part of a layer that it belongs to, and the `variant`, as in rows.
    """

    shape: tuple[str, ...] = ()
    field: str = ""
    default: bool = False
    part: str = ""
    variant: str = ""


class Preset(Rule):
    """The document of a model family.

    Attributes:
        preset: its name.
        proof: whether its rules were `run` against MindFormers' own code, or `read` from it.
        models: values of `model_type` in config.json.
        variables: variable -> field of config.json, or expression of fields; of several the first that is there.
        counted: variable -> templates of names, of both sides: the number of indexes that they have.
        quantized: ending of the names of block-fp8 scales; empty: there are none.
        switches: what decides between rows.
        loaded: Hugging Face's name -> when loaders read it.
        loaded_world: the world whose rows have all that loaders read; empty: the first.
        names: world of MindFormers' names -> rows. On the way to MindFormers the first, unless another is asked for.
    """

    preset: str
    title: str
    proof: Literal["run", "read"]
    models: tuple[str, ...] = ()
    variables: dict[VariableName, Expressions] = Field(default={})
    counted: dict[VariableName, tuple[TemplateText, ...]] = Field(default={})
    quantized: str = ""
    switches: dict[str, Switch] = Field(default={})
    loaded: dict[TemplateText, LoadedName] = Field(default={})
    loaded_world: str = ""
    names: Annotated[dict[str, Names], Field(min_length=1)]

    @field_validator("names")
    @classmethod
    def _complete(cls, value: dict[str, Names]) -> dict[str, Names]:
        """Complete the worlds that are like others."""
        return {world: _completed(world, names, value) for world, names in value.items()}

    @model_validator(mode="after")
    def _check_rows(self) -> "Preset":
        numbers = dict.fromkeys((*self.variables, *self.counted), 1)
        for text in self.loaded:
            parse_template(text, numbers)
        if self.loaded_world and self.loaded_world not in self.names:
            raise ValueError(f"'loaded_world' is {quoted(self.loaded_world)}, which is not one of 'names'")
        for names in self.names.values():
            for hf in names.copies:
                parse_template(hf, numbers)
            for _, row in names.rows:
                for text in (*row.mf, *row.hf):
                    _check_indexes(text, row, numbers)
                for switch, value in row.when.items():
                    if switch not in self.switches or value not in self.switches[switch].values:
                        raise ValueError(
                            f"the row of {quoted(row.name)} counts for {switch}: {value}, which is not a switch"
                        )
        return self

    @cached_property
    def worlds(self) -> tuple[str, ...]:
        """The worlds of MindFormers' names."""
        return tuple(self.names)

    def is_run(self, world: str) -> bool:
        """True if the rules of a world were run against MindFormers' own code."""
        return (self.names[world].proof or self.proof) == "run"


def _completed(world: str, names: Names, worlds: Mapping[str, Names]) -> Names:
    if not names.like:
        return names
    preset, _, other = names.like.rpartition("/")
    known = read_preset(preset).names if preset in preset_names() else {} if preset else worlds
    base = known.get(other)
    if base is None or base.like:
        raise ValueError(f"{world} is like {quoted(names.like)}, which is not a world with rows of its own")
    return names.completed(base)


def _check_indexes(text: str, row: Row, numbers: Mapping[str, int]) -> None:
    """Raise ValueError if a name's placeholders are not those of layers, or of a stack."""
    template = parse_template(text, numbers)
    if any(placeholder.texts for placeholder in template.placeholders):
        raise ValueError(f"{quoted(text)}: placeholders of a preset are numbers")
    if _EXPERT in template.names and not row.stacked:
        raise ValueError(
            f"{quoted(text)}: {{{_EXPERT}}} is the index of a stack, and 'stacked' does not say of how many"
        )


def preset_names() -> tuple[str, ...]:
    """Return the names of the package's presets."""
    return tuple(sorted(each.name.removesuffix(_SUFFIX) for each in _directory().iterdir() if _is_preset(each.name)))


def preset_text(name: str) -> str:
    """Return the document of one of the package's presets.

    Raises:
        InputError: there is no such preset.
    """
    if name not in preset_names():
        names = preset_names()
        suggestion = did_you_mean(name, names)
        known = f"{suggestion} There are" if suggestion else ":"
        raise InputError(f"there is no preset {quoted(name)}{known} {', '.join(names)}, or a .yaml file of your own")
    text: str = (_directory() / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    return text


def read_preset(name: str) -> Preset:
    """Read a preset: one of the package's, by its name, or a document of one's own, by its URL.

    Raises:
        InputError: there is no such preset, or it is malformed.
        StorageError: a transient failure.
    """
    from reshard.core.changes.documents import read_document  # loads YAML

    if is_own_preset(name):
        return parse_preset(read_document(name), name)
    return parse_preset(preset_text(name).encode(), f"{name}{_SUFFIX}")


def parse_preset(data: bytes, origin: str) -> Preset:
    """Parse the document of a preset; `origin` is its name in messages.

    Raises:
        InputError: it is malformed.
    """
    from reshard.core.changes.documents import parse_mapping

    document = parse_mapping(data, origin, "preset", "preset: my_model", texts=True)
    try:
        return Preset.model_validate(document or {})
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg'].removeprefix('Value error, ')}"
            for each in error.errors(include_url=False, include_input=False)
        ]
        raise InputError("\n".join(f"{origin}: {problem}" for problem in listed_lines(problems))) from error


@cache
def read_spellings(name: str) -> Preset:
    """Read the package's table of further spellings of a world's names, which are its other side."""
    text = (files("reshard.core.changes") / "spellings" / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    return parse_preset(text.encode(), f"spellings/{name}{_SUFFIX}")


def _directory() -> Any:
    return files("reshard.core.changes") / "presets"


def _is_preset(name: str) -> bool:
    return name.endswith(_SUFFIX)


class PresetSummary(Summary):
    """A preset in a list."""

    preset: str
    title: str
    proof: str
    worlds: tuple[str, ...]
    models: tuple[str, ...]
    switches: tuple[str, ...]


class PresetList(Report):
    """The package's presets."""

    presets: tuple[PresetSummary, ...]

    def blocks(self) -> Iterator[Block]:
        """Yield its content: a table."""
        rows = [
            (each.preset, each.title, listed(list(each.worlds)), each.proof, listed(list(each.switches)) or "-")
            for each in self.presets
        ]
        yield Table(("preset", "models", "names", "rules", "switches"), rows)


def list_presets() -> PresetList:
    """Describe the package's presets."""
    found = []
    for name in preset_names():
        each = read_preset(name)
        common = {field: getattr(each, field) for field in ("preset", "title", "proof", "models", "worlds")}
        found.append(PresetSummary(**common, switches=tuple(each.switches)))
    return PresetList(presets=tuple(found))
